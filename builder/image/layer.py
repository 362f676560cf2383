"""Wheels -> one layer of an image: a tar of their trees, in gzip, the same bytes on every machine.

The deflated bytes of a wheel's member become the layer's: nothing is compressed. Each is inflated on the way to see that it is what the lock's
tree digest says, and to know the digest of the tar. Memory: one chunk beside the directories of the wheels.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.agent.archive import ArchiveDamaged, Member, WheelArchive
from builder.agent.files import CHUNK_BYTES, hash_file
from builder.agent.link import file_rows
from builder.image.deflating import GzipWriter
from builder.image.tar_headers import END, FILE, FOLDER, LINK, padding, tar_header
from builder.wheel_writing import Inflated
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.image_plan import IMAGE_ROOT
from envspec.layout import find_dist_info, name_problem, plan_layout, record_content, rewrite_script
from envspec.tree import encode_path, parent_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from envspec.layout import Layout

FOLDER_MODE = 0o755
TEXT_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """One wheel of a layer."""

    package: str
    wheel: str
    """Path of the file."""

    file: str
    """Its name as the lock has it."""

    sha256: str
    manifest: str
    """Of its tree, seen to have the locked digest."""

    skipped: frozenset[str] = frozenset()
    """Paths of its tree that come from another package, or from `LayerOrder.instead`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The Python that makes bytecode."""

    path: str
    version: str
    """In full: `3.12.1`."""

    cache_tag: str
    """`cpython-312`."""

    magic: str
    """In hex."""

    @property
    def name(self) -> str:
        """What decides the bytecode, as keys and labels have it."""
        return f"{self.cache_tag}-{self.magic} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOrder:
    """What a layer is made of; can be sent to another process."""

    title: str
    key: str
    python: str
    """The minor version."""

    parts: tuple[LayerPart, ...]
    instead: dict[str, bytes] = field(default_factory=dict)
    """Path in the environment -> content that no wheel has."""

    compiler: Compiler | None = None
    """Of a layer that has the bytecode of modules, and not the files of the wheels."""

    modules: frozenset[str] = frozenset()
    """Paths of those modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer as an image names it."""

    digest: str
    """sha256 of the blob, 64 hex digits."""

    size: int
    """Of the blob, in bytes."""

    diff_id: str
    """sha256 of the tar that it inflates to."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the content of a file comes from."""

    mode: int
    sha256: str
    size: int
    wheel: int = -1
    """Index of the part; -1 for `content`."""

    member: Member | None = None
    content: bytes = b""


def write_layer(order: LayerOrder, target: str) -> Layer:
    """Write the blob of a layer.

    Args:
        order: What it is made of.
        target: A path that is not there yet.

    Raises:
        EnvspecError: A wheel is not the locked one, or cannot be read.
        OSError: It cannot be written.
    """
    with contextlib.ExitStack() as stack:
        archives: list[WheelArchive] = []
        files: dict[str, Source] = {}
        for number, part in enumerate(order.parts):
            check_wheel(part)
            try:
                archives.append(stack.enter_context(WheelArchive(Path(part.wheel))))
                files.update(sources_of(order, number, archives[-1]))
            except ArchiveDamaged as error:
                raise damaged_wheel(part, str(error)) from error
        for path, content in order.instead.items():
            files[path] = Source(0o444, hashlib.sha256(content).hexdigest(), len(content), content=content)
        stream = stack.enter_context(new_file(target))
        writer = TarLayer(stream)
        writer.folders(parent_dirs(f"{IMAGE_ROOT[1:]}/{path}" for path in files))
        for path, source in sorted(files.items(), key=lambda row: encode_path(row[0])):
            place = f"{IMAGE_ROOT[1:]}/{path}"
            if source.member is None:
                if hashlib.sha256(source.content).hexdigest() != source.sha256:
                    raise damaged_wheel(order.parts[source.wheel], f"`{path}` is not what the lock's tree has")
                writer.file(place, source.content, mode=source.mode)
                continue
            try:
                found = writer.member(place, archives[source.wheel], source.member, mode=source.mode)
            except ArchiveDamaged as error:
                raise damaged_wheel(order.parts[source.wheel], str(error)) from error
            if found != source.sha256:
                raise damaged_wheel(order.parts[source.wheel], f"`{path}` is not what the lock's tree has")
        return writer.finish()


class TarLayer:
    """A tar in gzip, entry by entry.

    Headers and padding gather until content comes, and are then one member of the gzip file.
    """

    def __init__(self, stream: BinaryIO) -> None:
        """Begin.

        Args:
            stream: Where it goes.
        """
        self._gzip = GzipWriter(stream)
        self._pending: list[bytes] = []

    def folders(self, paths: set[str], *, mode: int = FOLDER_MODE) -> None:
        """Add folders, parents first."""
        for path in sorted(paths, key=encode_path):
            self._pending.append(tar_header(f"{path}/", kind=FOLDER, mode=mode))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._pending.append(tar_header(path, kind=LINK, mode=0o777, target=target))

    def file(self, path: str, content: bytes, *, mode: int) -> None:
        """Add a file that is in memory."""
        self._pending.append(tar_header(path, kind=FILE, mode=mode, size=len(content)))
        if content:
            self._flush()
            self._gzip.add_stored([content])
        self._pending.append(padding(len(content)))

    def stream(self, path: str, chunks: Iterator[bytes], *, mode: int, size: int) -> None:
        """Add a file that comes piece by piece, uncompressed."""
        self._pending.append(tar_header(path, kind=FILE, mode=mode, size=size))
        self._flush()
        self._gzip.add_stored(chunks)
        self._pending.append(padding(size))

    def member(self, path: str, archive: WheelArchive, member: Member, *, mode: int) -> str:
        """Add a file of a wheel with the bytes that it has there.

        Returns:
            The sha256 of its content.

        Raises:
            ArchiveDamaged: It is not what the archive states.
        """
        self._pending.append(tar_header(path, kind=FILE, mode=mode, size=member.size))
        self._flush()
        offset = archive.data_offset(member)
        end = offset + member.compressed_size
        gzip, inflated = self._gzip, Inflated(member, self._gzip.watch)
        if not member.deflated:
            plain = Inflated(member)
            gzip.add_stored(_watched(_pieces(archive.fd, offset, end), plain))
            self._pending.append(padding(member.size))
            return plain.finish()
        gzip.begin_deflated()
        for raw in _pieces(archive.fd, offset, end):
            inflated.feed(raw)
            gzip.add_deflated(raw)
        found = inflated.finish()
        gzip.end_deflated(member.crc, member.size)
        self._pending.append(padding(member.size))
        return found

    def finish(self) -> Layer:
        """End the tar."""
        self._pending.append(END)
        self._flush()
        return Layer(digest=self._gzip.sha256, size=self._gzip.size, diff_id=self._gzip.content_sha256)

    def _flush(self) -> None:
        content = b"".join(self._pending)
        self._pending.clear()
        if content:
            self._gzip.add(content)


def sources_of(order: LayerOrder, number: int, archive: WheelArchive) -> dict[str, Source]:
    """Path in the environment -> where its content comes from, for what a wheel brings to the layer."""
    part = order.parts[number]
    regular: dict[str, Member] = {}
    for member in archive.members:
        if not member.symlink:
            regular.setdefault(member.name, member)
    layout = plan_layout(list(regular), part.file, order.python, _entry_points(archive, regular, part.file))
    members = {target: regular[name] for name, target in layout.targets.items()}
    scripts = {layout.targets[name] for name in layout.scripts}
    rows = list(file_rows(part.manifest))
    found: dict[str, Source] = {}
    for path, mode, sha256, size in rows:
        if path in part.skipped:
            continue
        if path in scripts:
            content = rewrite_script(archive.read(members[path], limit=TEXT_LIMIT_BYTES))
            found[path] = Source(mode, sha256, size, number, content=content)
        elif path in members and members[path].size == size:
            found[path] = Source(mode, sha256, size, number, members[path])
        elif path in layout.generated or path == layout.record_path:
            found[path] = Source(mode, sha256, size, number, content=_generated(layout, path, rows))
        else:
            raise ArchiveDamaged("bad-archive", path, "is not in the wheel as the lock's tree has it")
    return found


def _generated(layout: Layout, path: str, rows: list[tuple[str, int, str, int]]) -> bytes:
    if path != layout.record_path:
        return layout.generated[path]
    return record_content(path, [(each, sha256, size) for each, _, sha256, size in rows if each != path])


def _entry_points(archive: WheelArchive, regular: dict[str, Member], filename: str) -> str:
    dist_info, _ = find_dist_info([name for name in regular if name_problem(name) is None], filename)
    member = regular.get(f"{dist_info}/entry_points.txt") if dist_info else None
    return "" if member is None else archive.read(member, limit=1 << 20).decode("utf-8", "replace")


def _pieces(fd: int, offset: int, end: int) -> Iterator[bytes]:
    while offset < end:
        raw = os.pread(fd, min(CHUNK_BYTES, end - offset), offset)
        if not raw:
            return  # what comes of it is too short, and said so
        offset += len(raw)
        yield raw


def _watched(pieces: Iterator[bytes], plain: Inflated) -> Iterator[bytes]:
    for piece in pieces:
        plain.feed(piece)
        yield piece


def new_file(path: str) -> BinaryIO:
    """A file that was not there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    return os.fdopen(fd, "wb", buffering=1 << 20)


def check_wheel(part: LayerPart) -> None:
    """See that a wheel is the locked one.

    Raises:
        EnvspecError: It is not.
    """
    if (found := hash_file(part.wheel)) != part.sha256:
        raise EnvspecError(
            f"the wheel {part.file} in the store has sha256 {found}, the lock has {part.sha256}",
            input_name=part.wheel,
            hint="remove that file: it is fetched again",
            exit_code=FOUND_WRONG,
        )


def damaged_wheel(part: LayerPart, message: str) -> EnvspecError:
    """A wheel that is not what the lock says."""
    return EnvspecError(
        f"{part.file}: {message}",
        input_name=part.wheel,
        hint="remove that file: it is fetched again",
        exit_code=FOUND_WRONG,
    )
