"""A wheel -> its tree: on disk, or only its manifest.

What is written and what is hashed are the same bytes. `read_wheel` without a folder only measures, which is what the lock needs; with a folder
it writes the tree there. A tree that is written has modes 0444 and 0555 and only what the layout plans.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.archive import CHUNK_BYTES, Member, WheelArchive
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
from envspec.tree import Entry, entry_line, manifest, manifest_lines, parent_dirs, parse_line, tree_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import TypeAlias

    Watch: TypeAlias = Callable[[Member, str, Iterator[bytes]], Iterator[bytes]]

ENTRY_POINTS_LIMIT_BYTES = 1 << 20
KEPT_LIMIT_BYTES = 64 << 20
_FILE_MODE = 0o444
_EXECUTABLE_MODE = 0o555


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
    donor: tuple[Path, Mapping[str, str]] | None = None,
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
        donor: A tree of the same file system with its manifest lines (path -> line); files that are equal there are hard-linked from it instead
            of being written again.
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
                files.append(_stream(archive, member, target, base, donor, watch))
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


def donor_lines(manifest_text: str) -> dict[str, str]:
    """Path -> manifest line of every file of a tree, for `read_wheel(donor=...)`."""
    return {parse_line(line).path: line for line in manifest_lines(manifest_text) if line.endswith(" type=file")}


def make_folders(root: Path, folders: Collection[str]) -> None:
    """Make folders below a root, parents first."""
    base = os.fspath(root)
    for folder in sorted(folders):
        os.mkdir(f"{base}/{folder}", 0o755)  # noqa: PTH102 - quicker on many folders


def write_file(path: str, content: bytes, *, executable: bool) -> None:
    """Write a new read-only file."""
    mode = _EXECUTABLE_MODE if executable else _FILE_MODE
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
    finally:
        os.close(fd)


def hash_file(path: str) -> str:
    """The sha256 of a file's content, in hex.

    Raises:
        OSError: It cannot be read, or is a symbolic link.
    """
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        while length := os.readv(fd, [buffer]):
            digest.update(buffer[:length])
    finally:
        os.close(fd)
    return digest.hexdigest()


def _stream(
    archive: WheelArchive,
    member: Member,
    target: str,
    base: str | None,
    donor: tuple[Path, Mapping[str, str]] | None,
    watch: Watch | None,
) -> Entry:
    """Hash a member, and bring it to its place: linked from the donor if it is equal there, else written."""
    if base is not None and donor is not None and target in donor[1]:
        entry = _write(None, target, archive.chunks(member), executable=member.executable)
        if donor[1][target] == entry_line(entry) and _link(donor[0], base, entry):
            return entry
    chunks = archive.chunks(member)
    return _write(
        base, target, chunks if watch is None else watch(member, target, chunks), executable=member.executable
    )


def _link(donor: Path, base: str, entry: Entry) -> bool:
    """Link a file from a donor, which is proven by what it contains now, whatever was known of it; False if it cannot be used."""
    source = f"{os.fspath(donor)}/{entry.path}"
    mode = stat.S_IFREG | (_EXECUTABLE_MODE if entry.executable else _FILE_MODE)
    try:
        if os.lstat(source).st_mode != mode or hash_file(source) != entry.sha256:
            return False
        os.link(source, base + entry.path)
    except (
        OSError
    ):  # it is gone, lies on another file system or has too many links; what else is wrong shows when writing
        return False
    return True


def _write(base: str | None, target: str, chunks: Iterable[bytes], *, executable: bool) -> Entry:
    """Hash a file, and write it unless there is no base."""
    digest = hashlib.sha256()
    size = 0
    if base is None:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
        return Entry(target, "file", digest.hexdigest(), size, executable)
    mode = _EXECUTABLE_MODE if executable else _FILE_MODE
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
