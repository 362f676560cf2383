"""Reads a wheel as the hostile input that it is: members, their bytes as a checked stream, and what is odd.

The central directory is read by `zipfile`, the bytes by this module: the local header must agree with the directory, a member may not inflate
beyond its stated size, and its CRC must hold. What violates this raises `ArchiveDamaged`; nothing else comes out, whatever the file contains.

Memory: one chunk (256 KiB) beside the directory. Work: no byte of the file belongs to two members, so that reading all of them inflates at most
what deflate can make of the file, about a thousand times its size. Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from builder.agent.files import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_ENCRYPTED = 0x1
_HAS_DESCRIPTOR = 0x8
_UTF8 = 0x800
_IN_EXTRA_FIELD = 0xFFFFFFFF  # what stands for a zip64 size
_MADE_BY_UNIX = 3


class ArchiveDamaged(ValueError):  # noqa: N818 - it says what is the matter
    """A wheel's archive cannot be read as it says of itself.

    Attributes:
        kind: `encrypted-member`, `size-lie`, `bad-crc` or `bad-archive`.
        member: The member; empty if the whole archive is meant.
    """

    def __init__(self, kind: str, member: str, detail: str) -> None:
        super().__init__(f"{member}: {detail}" if member else detail)
        self.kind = kind
        self.member = member
        self.detail = detail


@dataclass(frozen=True)
class Member:
    """One entry of the archive that is not a folder."""

    name: str
    """As the archive writes it: nothing is known about it yet."""

    size: int
    compressed_size: int
    header_offset: int
    deflated: bool
    executable: bool
    symlink: bool
    crc: int


class WheelArchive:
    """An open wheel.

    Example:
        with WheelArchive(path) as archive:
            for member in archive.members:
                for chunk in archive.chunks(member):
                    ...
    """

    def __init__(self, path: Path) -> None:
        """Open a wheel and read its directory.

        Args:
            path: The wheel file.

        Raises:
            ArchiveDamaged: It is no readable zip archive.
            OSError: The file cannot be read.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            infos, directory_offset = _read_directory(self._fd)
            self.members: tuple[Member, ...] = tuple(
                _member(info) for info in infos if not info.orig_filename.endswith("/")
            )
        except BaseException:
            os.close(self._fd)
            raise
        self._ends: dict[int, int] = {}  # place of a local header -> where what comes next begins
        for start, following in pairwise([*sorted(info.header_offset for info in infos), directory_offset]):
            self._ends.setdefault(start, following)  # of two members at one place, neither has room

    def __enter__(self) -> WheelArchive:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def chunks(self, member: Member) -> Iterator[bytes]:
        """The inflated content of a member, piece by piece; complete and right if the iteration ends.

        Raises:
            ArchiveDamaged: The local header contradicts the directory, the content is longer or shorter than stated, or its CRC is wrong.
        """
        offset = self.data_offset(member)
        crc = 0
        length = 0
        for chunk in self._inflated(member, offset):
            length += len(chunk)
            if length > member.size:
                raise ArchiveDamaged(
                    "size-lie", member.name, f"inflates beyond the {member.size} bytes that the archive states"
                )
            crc = zlib.crc32(chunk, crc)
            yield chunk
        if length != member.size:
            raise ArchiveDamaged("size-lie", member.name, f"has {length} bytes, the archive states {member.size}")
        if crc != member.crc:
            raise ArchiveDamaged("bad-crc", member.name, f"has the CRC {crc:08x}, the archive states {member.crc:08x}")

    def read(self, member: Member, *, limit: int = 64 << 20) -> bytes:
        """The whole content of a small member.

        Args:
            member: Which.
            limit: Bytes beyond which the member is refused.

        Raises:
            ArchiveDamaged: As `chunks`, or the member is larger than the limit.
        """
        if member.size > limit:
            raise ArchiveDamaged(
                "size-lie", member.name, f"has {member.size} bytes, at most {limit} are read into memory"
            )
        return b"".join(self.chunks(member))

    @property
    def fd(self) -> int:
        """The file, open for reading."""
        return self._fd

    def data_offset(self, member: Member) -> int:
        """Where the bytes of a member begin in the file, as they lie there; they reach into no other one.

        Raises:
            ArchiveDamaged: The local header contradicts the directory.
        """
        header = os.pread(self._fd, _LOCAL_HEADER.size, member.header_offset)
        if len(header) != _LOCAL_HEADER.size:
            raise ArchiveDamaged("bad-archive", member.name, "the archive ends before the member")
        magic, _, flags, method, _, _, *numbers, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        if magic != b"PK\x03\x04":
            raise ArchiveDamaged("bad-archive", member.name, "no local header where the directory places the member")
        raw_name = os.pread(self._fd, name_length, member.header_offset + _LOCAL_HEADER.size)
        if not _is_name(raw_name, member.name, utf8=bool(flags & _UTF8)):
            shown = raw_name.decode("utf-8", "backslashreplace")
            detail = f"the local header says `{shown}`, the directory `{member.name}`"
            raise ArchiveDamaged("bad-archive", member.name, detail)
        if flags & _ENCRYPTED:
            raise ArchiveDamaged("encrypted-member", member.name, "is encrypted")
        if method != (zipfile.ZIP_DEFLATED if member.deflated else zipfile.ZIP_STORED):
            detail = f"the local header has the compression method {method}, the directory another"
            raise ArchiveDamaged("bad-archive", member.name, detail)
        kinds, stated = ("bad-crc", "size-lie", "size-lie"), (member.crc, member.compressed_size, member.size)
        for kind, ours, theirs in zip(kinds, stated, numbers, strict=True):
            elsewhere = (flags & _HAS_DESCRIPTOR and theirs == 0) or (kind == "size-lie" and theirs == _IN_EXTRA_FIELD)
            if ours != theirs and not elsewhere:
                detail = f"the local header says {theirs} where the directory says {ours}"
                raise ArchiveDamaged(kind, member.name, detail)
        offset = member.header_offset + _LOCAL_HEADER.size + int(name_length) + int(extra_length)
        if offset + member.compressed_size > self._ends[member.header_offset]:
            raise ArchiveDamaged("bad-archive", member.name, "overlaps what comes after it in the archive")
        return offset

    def _inflated(self, member: Member, offset: int) -> Iterator[bytes]:
        """The content, at most one chunk beyond the stated size."""
        end = offset + member.compressed_size
        inflater = zlib.decompressobj(-zlib.MAX_WBITS) if member.deflated else None
        # One byte more than stated is asked for, so that a longer stream shows.
        room = member.size + 1
        while offset < end and room > 0:
            raw = os.pread(self._fd, min(CHUNK_BYTES, end - offset), offset)
            if not raw:
                raise ArchiveDamaged("bad-archive", member.name, "the archive ends inside the member")
            offset += len(raw)
            if inflater is None:
                room -= len(raw)
                yield raw
                continue
            while raw and room > 0:
                chunk = _inflate(inflater, raw, min(CHUNK_BYTES, room), member)
                room -= len(chunk)
                raw = inflater.unconsumed_tail
                if chunk:
                    yield chunk
                # At its end an inflater hoards what it is fed, so it is never fed more.
                if inflater.unused_data or (inflater.eof and offset < end):
                    raise ArchiveDamaged("bad-archive", member.name, "bytes follow the end of its compressed data")
        if inflater is not None:
            while room > 0 and not inflater.eof:
                chunk = _inflate(inflater, b"", min(CHUNK_BYTES, room), member)  # what zlib still holds back
                if not chunk and not inflater.eof:
                    raise ArchiveDamaged("bad-archive", member.name, "the compressed data is cut off")
                room -= len(chunk)
                yield chunk


def _read_directory(fd: int) -> tuple[list[zipfile.ZipInfo], int]:
    """All entries of the central directory, folders included, and where it begins."""
    try:
        with os.fdopen(fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
            infos, directory_offset = archive.infolist(), archive.start_dir
    except Exception as error:  # zipfile lets several kinds escape for damaged input (struct, unicode, overflow, ...)
        # EINVAL comes of an archive that names a place where no file reaches; other errors are the disk's.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ArchiveDamaged("bad-archive", "", f"not a readable zip archive: {error}") from error
    for info in infos:
        if info.flag_bits & _ENCRYPTED:
            raise ArchiveDamaged("encrypted-member", info.orig_filename, "is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArchiveDamaged(
                "bad-archive",
                info.orig_filename,
                f"compression method {info.compress_type}; only stored and deflated are wheels",
            )
        if not 0 <= info.header_offset < directory_offset:
            raise ArchiveDamaged("bad-archive", info.orig_filename, "lies outside of the archive")
    return infos, directory_offset


def _is_name(raw_name: bytes, name: str, *, utf8: bool) -> bool:
    try:
        return raw_name.decode("utf-8" if utf8 else "cp437") == name
    except UnicodeDecodeError:
        return False


def _inflate(inflater: zlib._Decompress, raw: bytes, limit: int, member: Member) -> bytes:
    try:
        return inflater.decompress(raw, limit)
    except zlib.error as error:
        raise ArchiveDamaged("bad-archive", member.name, f"cannot be inflated: {error}") from error


def _member(info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16 if info.create_system == _MADE_BY_UNIX else 0
    return Member(
        name=info.orig_filename,
        size=info.file_size,
        compressed_size=info.compress_size,
        header_offset=info.header_offset,
        deflated=info.compress_type == zipfile.ZIP_DEFLATED,
        executable=bool(mode & 0o111),
        symlink=stat.S_ISLNK(mode),
        crc=info.CRC,
    )
