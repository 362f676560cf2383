"""Reads a wheel as the hostile input that it is: members, their bytes as a checked stream, and what is odd.

The central directory is read by `zipfile`, the bytes by this module: the local header must agree with the directory, a member may not inflate
beyond its stated size, and its CRC must hold. What violates this raises `ArchiveDamaged`; nothing else comes out, whatever the file contains.

Memory: one chunk (1 MiB) beside the directory. Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

CHUNK_BYTES = 1 << 20
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_ENCRYPTED = 0x1
_UTF8 = 0x800
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
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
        except OSError:
            raise
        except (
            Exception
        ) as error:  # zipfile lets several kinds escape for damaged input (struct, unicode, overflow, ...)
            raise ArchiveDamaged("bad-archive", "", f"not a readable zip archive: {error}") from error
        self.members: tuple[Member, ...] = tuple(
            _member(info) for info in infos if not info.orig_filename.endswith("/")
        )
        for info in infos:
            if info.flag_bits & _ENCRYPTED:
                raise ArchiveDamaged("encrypted-member", info.orig_filename, "is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArchiveDamaged(
                    "bad-archive",
                    info.orig_filename,
                    f"compression method {info.compress_type}; only stored and deflated are wheels",
                )
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

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
        offset = self._data_offset(member)
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

    def _data_offset(self, member: Member) -> int:
        header = os.pread(self._fd, _LOCAL_HEADER.size, member.header_offset)
        if len(header) != _LOCAL_HEADER.size:
            raise ArchiveDamaged("bad-archive", member.name, "the archive ends before the member")
        magic, _, flags, method, _, _, _, _, _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        if magic != b"PK\x03\x04":
            raise ArchiveDamaged("bad-archive", member.name, "no local header where the directory places the member")
        raw_name = os.pread(self._fd, name_length, member.header_offset + _LOCAL_HEADER.size)
        name = raw_name.decode("utf-8" if flags & _UTF8 else "cp437", "replace")
        deflated = method == zipfile.ZIP_DEFLATED
        if name != member.name or deflated != member.deflated or flags & _ENCRYPTED:
            raise ArchiveDamaged(
                "bad-archive", member.name, f"the local header says `{name}`, the directory `{member.name}`"
            )
        return member.header_offset + _LOCAL_HEADER.size + int(name_length) + int(extra_length)

    def _inflated(self, member: Member, offset: int) -> Iterator[bytes]:
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
                try:
                    chunk = inflater.decompress(raw, min(CHUNK_BYTES, room))
                except zlib.error as error:
                    raise ArchiveDamaged("bad-archive", member.name, f"cannot be inflated: {error}") from error
                room -= len(chunk)
                raw = inflater.unconsumed_tail
                if chunk:
                    yield chunk
                elif not raw:
                    break
        if inflater is not None:
            while room > 0 and not inflater.eof:
                chunk = inflater.decompress(b"", min(CHUNK_BYTES, room))  # what zlib still holds back
                if not chunk:
                    break
                room -= len(chunk)
                yield chunk
            if room > 0 and not inflater.eof:
                raise ArchiveDamaged("bad-archive", member.name, "the compressed data is cut off")


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
