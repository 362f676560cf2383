"""A wheel -> its tree: on disk, or only its manifest.

What is written and what is hashed are the same bytes. `read_wheel` without a folder only measures, which is what the lock needs; with a folder
it writes the tree there. A tree that is written has modes 0444 and 0555 and only what the layout plans.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from builder.agent.archive import Member, WheelArchive
from builder.agent.files import EXECUTABLE_MODE, FILE_MODE
from envspec.layout import (
    FIRST_LINE_BYTES,
    Layout,
    Oddity,
    find_dist_info,
    name_problem,
    plan_layout,
    record_content,
    rewrite_script,
)
from envspec.tree import Entry, entry_line, manifest, parent_dirs, tree_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import TypeAlias

    from builder.agent.lending import Donor

    Watch: TypeAlias = Callable[[Member, str, Iterator[bytes]], Iterator[bytes]]

ENTRY_POINTS_LIMIT_BYTES = 1 << 20
KEPT_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class WheelTree:
    """What one wheel puts into an environment."""

    layout: Layout
    files: tuple[Entry, ...]
    """Every file, sorted by path."""

    manifest: str
    digest: str
    """The tree digest."""

    members: dict[str, tuple[str, int]]
    """Member -> sha256 and size of its content as the archive has it (a script before it is rewritten), RECORD included."""

    kept: dict[str, bytes]
    """Contents of the members that the caller asked to keep."""

    oddities: tuple[Oddity, ...]
    """The layout's, and symlinks."""


def read_wheel(
    wheel: Path,
    filename: str,
    python: str,
    *,
    folder: Path | None = None,
    keep: Callable[[str], bool] | None = None,
    donor: Donor | None = None,
    expected: str = "",
    advance: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> WheelTree:
    """Inflate and hash every member of a wheel, and write its tree if a folder is given.

    Args:
        wheel: The wheel file, its sha256 checked before.
        filename: Its name as the lock has it.
        python: Minor version of the environment's Python.
        folder: An existing empty folder that becomes the tree; None to measure only.
        keep: Which members' contents to return, by name; at most `KEPT_LIMIT_BYTES` in all.
        donor: A tree of the same file system; files that are equal there are hard-linked from it instead of being written again.
        expected: The tree digest, if it is known: then what a donor has is not even inflated. It decides nothing else; compare the result.
        advance: Told the inflated bytes as they pass.
        watch: Is given every member that is installed, with its path in the environment, and passes its content on, which is that of the
            archive. It sees nothing of what is linked from a donor.

    Raises:
        ArchiveDamaged: The archive is not what it says of itself.
        OSError: Reading or writing failed (no space, say).
    """
    with WheelArchive(wheel) as archive:
        regular: dict[str, Member] = {}
        oddities: list[Oddity] = []
        for member in archive.members:
            if member.symlink:
                goal = archive.read(member, limit=4096).decode("utf-8", "replace")
                oddities.append(Oddity("symlink-member", member.name, f"is a symbolic link to `{goal}`"))
            elif member.name in regular:
                oddities.append(Oddity("duplicate-member", member.name, "appears twice in the archive"))
            else:
                regular[member.name] = member
        layout = plan_layout(list(regular), filename, python, _entry_points(archive, regular, filename))
        if folder is not None:
            make_folders(folder, parent_dirs([*layout.targets.values(), *layout.generated, layout.record_path]))
        base = None if folder is None else f"{os.fspath(folder)}/"
        files: list[Entry] = []
        digests: dict[str, tuple[str, int]] = {}
        kept: dict[str, bytes] = {}
        kept_bytes = 0
        predicted: dict[str, Entry] = {}
        if donor is not None and expected:
            predicted = donor.predict(archive, regular, layout, partial(_measure, archive, layout), expected)
        for member in sorted(regular.values(), key=lambda each: each.header_offset):
            name = member.name
            target = layout.targets.get(name)
            if keep is not None and keep(name):
                kept[name] = archive.read(member, limit=KEPT_LIMIT_BYTES - kept_bytes)
                kept_bytes += member.size
                digests[name] = (hashlib.sha256(kept[name]).hexdigest(), member.size)
            if target is None:
                continue
            if name in layout.scripts:
                original = hashlib.sha256()
                chunks = archive.chunks(member)
                chunks = _hashing(chunks if watch is None else watch(member, target, chunks), original)
                script = _as_installed(chunks)
                files.append(_write(base, target, script, executable=True))
                digests[name] = (original.hexdigest(), member.size)
            else:
                known = predicted.get(target)
                if known is None or base is None or donor is None or not donor.link(target, entry_line(known), base):
                    known = _stream(archive, member, target, base, donor, watch)
                files.append(known)
                digests[name] = (files[-1].sha256, member.size)
            if advance is not None:
                advance(member.size)
    for path, content in layout.generated.items():
        files.append(_write(base, path, [content], executable=path.startswith("bin/")))
    if layout.record_path:
        rows = [(entry.path, entry.sha256, entry.size) for entry in files]
        files.append(_write(base, layout.record_path, [record_content(layout.record_path, rows)], executable=False))
    text = manifest(files)
    return WheelTree(
        layout=layout,
        files=tuple(sorted(files, key=lambda entry: entry.path)),
        manifest=text,
        digest=tree_digest(text),
        members=digests,
        kept=kept,
        oddities=(*oddities, *layout.oddities),
    )


def make_folders(root: Path, folders: Collection[str]) -> None:
    """Make folders below a root, parents first."""
    base = os.fspath(root)
    for folder in sorted(folders):
        os.mkdir(f"{base}/{folder}", 0o755)  # noqa: PTH102 - quicker on many folders


def _stream(
    archive: WheelArchive,
    member: Member,
    target: str,
    base: str | None,
    donor: Donor | None,
    watch: Watch | None,
) -> Entry:
    """Hash a member, and bring it to its place: linked from the donor if it is equal there, else written."""
    if base is not None and donor is not None and target in donor.lines:
        entry = _write(None, target, archive.chunks(member), executable=member.executable)
        if donor.link(target, entry_line(entry), base):
            return entry
    chunks = archive.chunks(member)
    return _write(
        base, target, chunks if watch is None else watch(member, target, chunks), executable=member.executable
    )


def _measure(archive: WheelArchive, layout: Layout, member: Member, target: str) -> Entry:
    """What a member becomes, without writing it."""
    if member.name in layout.scripts:
        return _write(None, target, _as_installed(archive.chunks(member)), executable=True)
    return _write(None, target, archive.chunks(member), executable=member.executable)


def _write(base: str | None, target: str, chunks: Iterable[bytes], *, executable: bool) -> Entry:
    """Hash a file, and write it unless there is no base."""
    digest = hashlib.sha256()
    size = 0
    if base is None:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
        return Entry(target, "file", digest.hexdigest(), size, executable)
    mode = EXECUTABLE_MODE if executable else FILE_MODE
    fd = os.open(base + target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    return Entry(target, "file", digest.hexdigest(), size, executable)


def _hashing(chunks: Iterator[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    """The same chunks, hashed as they pass."""
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _as_installed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """A script of any size with its first line rewritten."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= FIRST_LINE_BYTES:
            break
    yield rewrite_script(head)
    yield from chunks


def _entry_points(archive: WheelArchive, regular: Mapping[str, Member], filename: str) -> str:
    dist_info, _ = find_dist_info([name for name in regular if name_problem(name) is None], filename)
    member = regular.get(f"{dist_info}/entry_points.txt") if dist_info else None
    return "" if member is None else archive.read(member, limit=ENTRY_POINTS_LIMIT_BYTES).decode("utf-8", "replace")
