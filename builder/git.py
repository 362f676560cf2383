"""git, run so that its answer depends on what we ask and on the repository, and on no configuration of a user or a machine.

- No configuration file but the repository's own is read, and no variable `GIT_*` of the environment reaches it.
- Identity and times of what is committed are fixed; nothing is signed; no hook, pager, editor, template or prompt runs.
- Contents are taken as they are: no conversion of line ends, no filter, no attribute of the machine.

Example:
    git = find_git(os.environ).at(folder)
    git.run(["rev-parse", "HEAD"]).decode().strip()
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import process
from envspec.errors import EnvspecError
from envspec.printable import printable_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST_GIT = (2, 26)
"""The oldest git with the options that are used; the tests run with 2.39."""

MERGE_TREE_GIT = (2, 38)
"""The first git that merges without a work tree (`git merge-tree --write-tree`)."""

IDENTITY = ("envspec", "envspec@localhost")
MOMENT = "315532800 +0000"
"""1980-01-01: of everything that is committed by us, so that a commit's id depends on its content."""

_KEPT_VARIABLES = ("PATH", "TMPDIR", "LD_LIBRARY_PATH")
_OPTIONS = {
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.quotePath": "false",
    "core.editor": ":",
    "commit.gpgSign": "false",
    "commit.cleanup": "scissors",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "i18n.commitEncoding": "UTF-8",
    "merge.conflictStyle": "merge",
    "merge.renames": "true",
    "merge.directoryRenames": "conflict",
    "rebase.autoSquash": "false",
    "rebase.autoStash": "false",
    "rebase.updateRefs": "false",
    "rerere.enabled": "false",
    "submodule.recurse": "false",
    "user.name": IDENTITY[0],
    "user.email": IDENTITY[1],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """A git that can be used, in one work tree."""

    version: tuple[int, int]
    folder: Path
    """The work tree."""

    environ: Mapping[str, str] = field(repr=False)

    def at(self, folder: Path) -> Git:
        """The same git in another work tree."""
        return replace(self, folder=folder)

    def run(self, args: Sequence[str], *, input_bytes: bytes = b"") -> bytes:
        """What git prints.

        Args:
            args: The command and its arguments.
            input_bytes: Its standard input.

        Raises:
            EnvspecError: It fails; with the end of what it says.
        """
        ended = self.ask(args, input_bytes=input_bytes)
        if ended.returncode != 0:
            raise self.failure(args, ended)
        return ended.stdout

    def ask(self, args: Sequence[str], *, input_bytes: bytes = b"") -> process.CompletedBytes:
        """How git ends, and what it prints; that it fails is an answer too.

        Args:
            args: The command and its arguments.
            input_bytes: Its standard input.
        """
        options = [word for key, value in _OPTIONS.items() for word in ("-c", f"{key}={value}")]
        # Nothing above the work tree is taken for its repository.
        environ = {**self.environ, "GIT_CEILING_DIRECTORIES": os.fspath(self.folder.parent)}
        return process.run_bytes(
            ["git", *options, *args],
            env=environ,
            cwd=self.folder,
            input_bytes=input_bytes,
        )

    def failure(self, args: Sequence[str], ended: process.CompletedBytes) -> EnvspecError:
        """The error for a git that failed."""
        words = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-8:]
        hint = ""
        if any("index.lock" in word for word in words):
            hint = "if no other git runs there, one was killed: remove the file"
        elif any("dubious ownership" in word for word in words):
            hint = "the work tree belongs to another user: run as that user"
            words = [word for word in words if "dubious ownership" in word]  # what git advises has no effect here
        return EnvspecError(
            f"`git {args[0]}` failed with exit code {ended.returncode}",
            input_name=os.fspath(self.folder),
            detail="\n".join(printable_line(word.expandtabs(2)) for word in words),
            hint=hint,
        )


def find_git(environ: Mapping[str, str]) -> Git:
    """The git in PATH; its work tree is to be set with `at`.

    Args:
        environ: Gives `PATH`.

    Raises:
        EnvspecError: There is none, or it is too old.
    """
    git = Git(version=(0, 0), folder=Path("/"), environ=_environ_of_git(environ))
    ended = git.ask(["version"])
    found = re.match(rb"git version (\d+)\.(\d+)", ended.stdout)
    least = ".".join(map(str, LEAST_GIT))
    if ended.returncode != 0 or found is None:
        raise EnvspecError(
            "git was not found, or does not start",
            detail=ended.stderr.decode("utf-8", "replace").strip()[-300:],
            hint=f"install git {least} or later so that it is in PATH",
        )
    version = (int(found[1]), int(found[2]))
    if version < LEAST_GIT:
        raise EnvspecError(f"git {version[0]}.{version[1]} is too old", hint=f"install git {least} or later")
    return replace(git, version=version)


def write_local_config(git: Git) -> None:
    """Give a new repository what shields it from its user's configuration too, when the user works in it with git.

    Args:
        git: At the work tree.
    """
    lines = ["# Written by envspec: what git does here depends on nothing outside."]
    for key, value in _OPTIONS.items():
        if key != "core.editor":
            section, name = key.split(".")
            lines += [f"[{section}]", f"\t{name} = {value}"]
    folder = git.folder / ".git"
    config = folder / "config"
    config.write_text("\n".join([config.read_text(encoding="utf-8").rstrip("\n"), *lines, ""]), encoding="utf-8")
    (folder / "info").mkdir(exist_ok=True)
    (folder / "info" / "attributes").write_text(
        "* -text !eol !filter !ident !diff !merge !working-tree-encoding\n", encoding="utf-8"
    )
    (folder / "info" / "exclude").write_text("".join(f"{name}\n" for name in NOT_LOOKED_AT), encoding="utf-8")


NOT_LOOKED_AT = ("__pycache__/", "*.pyc", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/")
"""What tools leave in a work tree; no part of anything."""


def _environ_of_git(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: environ[name] for name in _KEPT_VARIABLES if name in environ}
    name, address = IDENTITY
    return {
        **kept,
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_DEFAULT_HASH": "sha1",
        "GIT_DEFAULT_REF_FORMAT": "files",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": ":",
        "GIT_SEQUENCE_EDITOR": ":",
        "GIT_PAGER": "cat",
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": address,
        "GIT_AUTHOR_DATE": MOMENT,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": address,
        "GIT_COMMITTER_DATE": MOMENT,
        "LC_ALL": "C",
        "TZ": "UTC",
    }
