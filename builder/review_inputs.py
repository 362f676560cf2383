"""What a review needs, from where it is: locks, specs and patches from files or from git, wheels and their facts from the store.

Only the lock has to be there; of the rest whatever is at hand is taken. A patch, or a file of a wheel, counts only with the sha256 that the lock
states, so that no link or stale wheel can put another text into a review. Nothing is written, fetched or executed: git is asked for objects
alone, and may neither fetch what a partial clone lacks nor run what a repository's configuration names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from builder.git import find_git
from envspec.diff.sides import WheelContents
from envspec.errors import EnvspecError
from envspec.forms import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.git import Git
    from envspec.diff.pairs import Pair
    from envspec.diff.sides import Side
    from envspec.lock import LockedOverlay

MOST_MEMBER_BYTES = 200_000
"""Of a file in a wheel that is compared."""

MOST_FILE_BYTES = 64 << 20
"""Of a lock, spec or patch; what lies behind is not read, so that it is damaged."""

SHOWN_COMMIT = 10

_CHUNK_BYTES = 1 << 20
_BINARIES = b',"binaries":'
"""Where the binaries begin in facts. No string of JSON has an unescaped quote, so that this is nothing but the key."""


class Source(Protocol):
    """Where the files of one side lie."""

    @property
    def label(self) -> str:
        """For a person."""

    def read(self, paths: Sequence[str]) -> list[bytes | None]:
        """Files by their paths relative to the spec's folder, with `/`; None for each that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Files as they lie on the disk."""

    path: Path
    label: str

    def read(self, paths: Sequence[str]) -> list[bytes | None]:
        """See `Source`."""
        return [self._read(path) for path in paths]

    def _read(self, path: str) -> bytes | None:
        place = self.path / path
        try:
            if not place.is_file():  # a pipe would be waited for; the null device stands for no lock
                return None
            with place.open("rb") as file:
                return file.read(MOST_FILE_BYTES)
        except (OSError, ValueError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """Files as a commit has them."""

    git: Git
    commit: str
    """Its whole id."""

    prefix: str
    """The spec's folder in the repository, with `/` at its end; empty for the root."""

    label: str

    def read(self, paths: Sequence[str]) -> list[bytes | None]:
        """See `Source`."""
        return _files(self.git, self.commit, [f"{self.prefix}{path}" for path in paths])


def find_work_tree(folder: Path) -> Path:
    """The root of the git work tree that a folder is in.

    Args:
        folder: Absolute.

    Raises:
        EnvspecError: It is in none.
    """
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return place
    raise EnvspecError(
        f"`{folder}` is in no git repository, so that there is no revision to compare with",
        hint="give two locks as files: `envspec diff OLD.lock NEW.lock`",
    )


def open_revision(name: str, folder: Path, environ: Mapping[str, str]) -> Revision:
    """A revision of the repository that a folder is in.

    Args:
        name: As git knows it: `HEAD`, `origin/main`, `v1.2`, `A...B` for the commit at which B left A.
        folder: Of the spec, absolute.
        environ: Gives PATH.

    Raises:
        EnvspecError: There is no repository, no git, or no such revision.
    """
    root = find_work_tree(folder)
    git = find_git(environ).at(root)
    prefix = folder.relative_to(root).as_posix()
    base, dots, tip = name.partition("...")
    if dots:
        asked = _ask(git, ["merge-base", _commit(git, base or "HEAD"), _commit(git, tip or "HEAD")])
        commit = asked.decode("ascii", "replace").strip().split("\n")[0] if asked is not None else ""
        if not commit:
            raise EnvspecError(
                f"{quoted(base or 'HEAD')} and {quoted(tip or 'HEAD')} have no commit in common",
                hint="a shallow clone has too few of them: fetch more (`git fetch --unshallow`)",
            )
        label = f"where {base or 'HEAD'} and {tip or 'HEAD'} part ({commit[:SHOWN_COMMIT]})"
    else:
        commit = _commit(git, name)
        label = name if commit.startswith(name.lower()) else f"{name} ({commit[:SHOWN_COMMIT]})"
    return Revision(git=git, commit=commit, prefix="" if prefix == "." else f"{prefix}/", label=label)


def read_patches(source: Source, overlays: Iterable[LockedOverlay]) -> dict[tuple[str, str], bytes]:
    """The patches of some overlays that are at hand: package and name -> content.

    Args:
        source: Where they lie.
        overlays: Of the lock of the same side.
    """
    wanted = [
        (overlay, patch, f"{os.path.dirname(overlay.series)}/{patch.name}".lstrip("/"))  # noqa: PTH120 - no path of a disk
        for overlay in overlays
        for patch in overlay.patches
    ]
    contents = source.read([path for _, _, path in wanted]) if wanted else []
    return {
        (overlay.package, patch.name): content
        for (overlay, patch, _), content in zip(wanted, contents, strict=True)
        if content is not None and hashlib.sha256(content).hexdigest() == patch.sha256
    }


def read_all_contents(
    facts_dir: Path, pairs: Iterable[Pair], old: Side, new: Side
) -> tuple[dict[str, WheelContents], ...]:
    """What is in the wheels that changed, as far as it was measured: sha256 -> contents, of the old and of the new side.

    Args:
        facts_dir: Of the store.
        pairs: The packages that changed.
        old: The old side.
        new: The new side.
    """
    found: tuple[dict[str, WheelContents], ...] = ({}, {})
    if old.lock is None or not facts_dir.is_dir():
        return found
    for pair in pairs:
        parts = (
            old.parts[pair.old.name] if pair.old else None,
            new.parts[pair.new.name] if pair.new else None,
        )
        if parts[0] and parts[1] and parts[0].sha256 == parts[1].sha256:
            continue
        for into, part, side in zip(found, parts, (old, new), strict=True):
            contents = read_contents(facts_dir, part.sha256, side.lock.python) if part and side.lock else None
            if part and contents:
                into[part.sha256] = contents
    return found


def read_contents(facts_dir: Path, sha256: str, python: str) -> WheelContents | None:
    """What a wheel puts into an environment, from its facts; None if they are not there, or are not such facts.

    The facts of one wheel take up to 26 MB, nearly all of it symbols of binaries, which stand last and are not read.

    Args:
        facts_dir: Of the store.
        sha256: Of the wheel.
        python: Minor version whose layout they have.
    """
    from builder.facts_cache import facts_path  # noqa: PLC0415 - it loads what facts of binaries are made of
    from envspec.facts import INSPECTOR  # noqa: PLC0415

    try:
        record = json.loads(_before_binaries(facts_path(facts_dir, sha256, python)))
        if record["inspector"] != INSPECTOR or record["sha256"] != sha256:
            return None
        return WheelContents(
            files={str(path): (str(digest), int(size)) for path, digest, size, _ in record["files"]},
            scripts=tuple(str(name) for name in record["scripts"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the last one where a table is no table
        return None


def _before_binaries(path: Path) -> bytes:
    """The record without its binaries."""
    content = bytearray()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            start = max(len(content) - len(_BINARIES), 0)
            content += chunk
            end = content.find(_BINARIES, start)
            if end >= 0:
                return bytes(content[:end]) + b"}"
    return bytes(content)


def _commit(git: Git, name: str) -> str:
    """The id of the commit that a name means."""
    # Not an option, whatever it looks like; `--end-of-options` is newer than the oldest git that will do.
    found = None if name.startswith("-") else _ask(git, ["rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"])
    text = found.decode("ascii", "replace").strip() if found is not None else ""
    if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) is None:
        raise EnvspecError(
            f"{quoted(name)} is neither a file nor a revision of this repository",
            input_name=os.fspath(git.folder),
            hint="a clone may lack it: `git fetch`; a lock as a file is given by its path",
        )
    return text


def _files(git: Git, commit: str, paths: Sequence[str]) -> list[bytes | None]:
    """Files of a commit by their paths from the root; None for each that the commit does not have.

    Raises:
        EnvspecError: The commit has a file that the repository lacks: taken for absent, its whole environment would seem to be new.
    """
    wanted = sorted(set(paths))
    listed = _ask(git, ["ls-tree", "-z", "--full-tree", commit, "--", *wanted]) if wanted else b""
    if listed is None:
        raise _lacking(git)
    ids: dict[str, str] = {}
    for entry in listed.split(b"\0"):
        facts, _, path = entry.partition(b"\t")
        words = facts.decode("ascii", "replace").split()
        if words[1:2] == ["blob"]:
            ids[os.fsdecode(path)] = words[2]
    contents = _objects(git, list(ids.values()))
    found = dict(zip(ids, contents, strict=True))
    return [found.get(path) for path in paths]


def _objects(git: Git, ids: Sequence[str]) -> list[bytes]:
    """The contents of some blobs."""
    if not ids:
        return []
    out = _ask(git, ["cat-file", "--batch"], input_bytes="".join(f"{each}\n" for each in ids).encode("ascii"))
    if out is None:
        raise _lacking(git)
    found: list[bytes] = []
    position = 0
    for _ in ids:
        end = out.find(b"\n", position)
        header = re.fullmatch(rb"[0-9a-f]+ blob (\d+)", out[position:end])
        if header is None:
            raise _lacking(git)
        position = end + 1
        found.append(out[position : position + int(header[1])])
        position += int(header[1]) + 1
    return found


def _lacking(git: Git) -> EnvspecError:
    return EnvspecError(
        "the repository lacks objects of the commit, or git cannot read them",
        input_name=os.fspath(git.folder),
        hint="a partial clone has to fetch them first (`git checkout` of the commit does); else see `git fsck`",
    )


def _ask(git: Git, args: Sequence[str], *, input_bytes: bytes = b"") -> bytes | None:
    """What git answers; None if it fails.

    The repository may belong to another user, as in a container of a CI job: what is asked runs nothing that a repository can name, and no
    protocol is allowed by which a partial clone would fetch.
    """
    options = ["-c", f"safe.directory={git.folder}", "-c", "protocol.allow=never"]
    ended = git.ask([*options, *args], input_bytes=input_bytes)
    return ended.stdout if ended.returncode == 0 else None
