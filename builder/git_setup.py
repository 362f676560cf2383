"""The entries in a repository that make git call envspec for its locks: attributes, which are committed, and configuration, which is not."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.agent.store import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.git import Git

DRIVER = "envspec"
ATTRIBUTES = f"merge={DRIVER} diff={DRIVER}"
_MINE = re.compile(rf"\S.*\s{re.escape(ATTRIBUTES)}\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What stands in a repository now."""

    locks: tuple[str, ...]
    """Paths of the locks that have attributes, from the top of the work tree."""

    attributes_changed: bool
    config_changed: bool


def find_specs(git: Git, is_spec: Callable[[bytes], bool]) -> tuple[PurePosixPath, ...]:
    """The specs of a work tree, by their paths from its top: files that are tracked, or would be.

    Args:
        git: At the top of the work tree.
        is_spec: Whether the first bytes of a file are a spec's.
    """
    listed = git.run(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.toml"])
    found = []
    for raw in sorted(set(listed.split(b"\0")) - {b""}):
        path = git.folder / os.fsdecode(raw)
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            if is_spec(file.read(4096)):
                found.append(PurePosixPath(os.fsdecode(raw)))
    return tuple(found)


def install(git: Git, locks: Sequence[PurePosixPath], program: str) -> Setup:
    """Set up the drivers; a second time it changes nothing.

    Args:
        git: At the top of the work tree.
        locks: Paths of the locks, from there.
        program: The command that starts envspec, quoted for a shell.
    """
    patterns = [f"{attribute_pattern(lock)} {ATTRIBUTES}" for lock in locks]
    changed = _write_attributes(git, patterns)
    wanted = {
        f"merge.{DRIVER}.name": "envspec: a lock is made anew from the merged spec",
        f"merge.{DRIVER}.driver": f"{program} git merge-driver %O %A %B %P",
        # Between several bases of a criss-cross merge: one of them as it is, since no person ever sees the result.
        f"merge.{DRIVER}.recursive": "binary",
        f"diff.{DRIVER}.command": f"{program} git diff-driver",
        f"diff.{DRIVER}.xfuncname": '^(name = ".*"|package = ".*"|\\[\\[finding\\]\\]|\\[[a-z]+\\])$',
    }
    before = {key: git.ask(["config", "--local", "--get", key]).stdout.decode().rstrip("\n") for key in wanted}
    for key, value in wanted.items():
        if before[key] != value:
            git.run(["config", "--local", "--replace-all", key, value])
    return Setup(locks=tuple(map(str, locks)), attributes_changed=changed, config_changed=before != wanted)


def uninstall(git: Git) -> Setup:
    """Take the drivers out again; where there are none it changes nothing.

    Args:
        git: At the top of the work tree.
    """
    changed = _write_attributes(git, [])
    found = False
    for section in (f"merge.{DRIVER}", f"diff.{DRIVER}"):
        found |= git.ask(["config", "--local", "--remove-section", section]).returncode == 0
    return Setup(locks=(), attributes_changed=changed, config_changed=found)


def attribute_pattern(path: PurePosixPath) -> str:
    r"""A path as .gitattributes has it: that file alone, from the top.

    Example:
        >>> attribute_pattern(PurePosixPath("a b/x[1].lock"))
        '"/a b/x\\\\[1].lock"'
    """
    pattern = "/" + re.sub(r"([\\*?\[])", r"\\\1", str(path))
    if re.fullmatch(r"[!-~]+", pattern) and '"' not in pattern:
        return pattern
    return '"' + pattern.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_attributes(git: Git, lines: Sequence[str]) -> bool:
    """Put our lines into .gitattributes in the place of those that are there; whether that changed anything."""
    path = git.folder / ".gitattributes"
    before = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""
    rows = before.splitlines(keepends=True)  # what others wrote stays as it is, line ends included
    there = [row.rstrip("\r\n") for row in rows if _MINE.fullmatch(row.rstrip("\r\n"))]
    if sorted(there) == sorted(lines):
        return False
    kept = "".join(row for row in rows if not _MINE.fullmatch(row.rstrip("\r\n")))
    if lines and kept and not kept.endswith("\n"):
        kept += "\n"
    after = kept + "".join(f"{line}\n" for line in lines)
    if after:
        write_atomically(path, after.encode("utf-8", "surrogateescape"))
    else:
        path.unlink()
    return True
