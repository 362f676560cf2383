"""Writes a wheel's archive and metadata in one fixed form: the same members give the same bytes, whoever writes them.

No compressor is ever asked, since what it gives depends on its version: content of our own is stored, and a member of another wheel is copied
as the compressed bytes that it has there, inflated on the way only to check and hash it. Time, host system, mode and zip version of an entry
are constants; there are no extra fields, data descriptors, comments or folders. Zip64 structures appear exactly where a number needs them.

Memory: one chunk (1 MiB) beside the directory. `docs/overlays.md` has the form to the byte.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from packaging.version import InvalidVersion, Version

from builder.agent.archive import ArchiveDamaged, Member
from builder.agent.files import CHUNK_BYTES
from envspec.errors import EnvspecError
from envspec.patch_format import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_MAX_16 = 0xFFFF
_MAX_32 = 0xFFFFFFFF
_UNIX = 3
_ZIP_2_0 = 20
_ZIP_4_5 = 45
_UTF8_NAME = 0x800
_ENCRYPTED = 0x1
_HAS_DESCRIPTOR = 0x8
_STORED = 0
_DEFLATED = 8
_TIME = 0
_DATE = 1 << 5 | 1  # 1980-01-01, the oldest that the format knows
_FILE_TYPE = 0o100000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What an archive states of a member's content."""

    method: int
    """0 (stored) or 8 (deflated)."""

    crc: int
    """CRC-32 of the content."""

    compressed_size: int
    """Bytes in the archive."""

    size: int
    """Bytes of the content."""


class RawMember:
    """The bytes of a member as they lie in its wheel, compressed, checked while they are read.

    Iterating gives the bytes; once it ends without an error, they inflate to exactly what the archive's directory states, and `sha256` is the
    digest of the inflated content.

    Attributes:
        sha256: Of the inflated content, 64 hex digits; empty until the iteration has ended.
    """

    def __init__(self, fd: int, member: Member, *, end: int) -> None:
        """Prepare to read.

        Args:
            fd: The wheel, open for reading.
            member: As the directory states it.
            end: Offset in bytes of what comes next in the wheel: the member may not reach into it.
        """
        self._fd = fd
        self._member = member
        self._end = end
        self.sha256 = ""

    def __iter__(self) -> Iterator[bytes]:
        """The compressed bytes, piece by piece.

        Raises:
            ArchiveDamaged: The local header contradicts the directory, the member reaches into the next one, or its bytes do not inflate to
                content of the stated size and CRC.
        """
        member = self._member
        offset = self._data_offset()
        end = offset + member.compressed_size
        if end > self._end:
            raise ArchiveDamaged("bad-archive", member.name, "overlaps what comes after it in the archive")
        inflated = Inflated(member)
        while offset < end:
            raw = os.pread(self._fd, min(CHUNK_BYTES, end - offset), offset)
            if not raw:
                raise ArchiveDamaged("bad-archive", member.name, "the archive ends inside the member")
            offset += len(raw)
            inflated.feed(raw)
            yield raw
        self.sha256 = inflated.finish()

    def _data_offset(self) -> int:
        member = self._member
        header = os.pread(self._fd, _LOCAL.size, member.header_offset)
        if len(header) != _LOCAL.size or not header.startswith(b"PK\x03\x04"):
            raise ArchiveDamaged("bad-archive", member.name, "no local header where the directory places the member")
        _, _, flags, method, _, _, crc, compressed_size, size, name_length, extra_length = _LOCAL.unpack(header)
        name = os.pread(self._fd, name_length, member.header_offset + _LOCAL.size)
        if name != member.name.encode("utf-8", "surrogateescape"):
            text = name.decode("utf-8", "backslashreplace")
            raise ArchiveDamaged("bad-archive", member.name, f"the local header has another name, `{text}`")
        if not name.isascii() and not flags & _UTF8_NAME:
            raise ArchiveDamaged("bad-name", member.name, "is neither ASCII nor marked as UTF-8")
        if flags & _ENCRYPTED:
            raise ArchiveDamaged("encrypted-member", member.name, "is encrypted")
        stated = (_DEFLATED if member.deflated else _STORED, member.crc, member.compressed_size, member.size)
        local = (method, crc, compressed_size, size)
        for ours, theirs, empty in zip(stated, local, (None, 0, 0, 0), strict=True):
            in_extra_field = theirs == _MAX_32  # a zip64 size; the directory's is what is checked in the end
            later = bool(flags & _HAS_DESCRIPTOR) and theirs == empty
            if ours != theirs and not in_extra_field and not later:
                detail = f"the local header says {theirs} where the directory says {ours}"
                raise ArchiveDamaged("size-lie", member.name, detail)
        return member.header_offset + _LOCAL.size + int(name_length) + int(extra_length)


class Inflated:
    """What compressed bytes inflate to, hashed and forgotten at once."""

    def __init__(self, member: Member, sink: Callable[[bytes], object] = lambda _content: None) -> None:
        """Begin.

        Args:
            member: What the archive states of it.
            sink: Given the content, piece by piece.
        """
        self._member = member
        self._sink = sink
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS) if member.deflated else None
        self._digest = hashlib.sha256()
        self._crc = 0
        self._size = 0

    def feed(self, raw: bytes) -> None:
        """Take the next compressed bytes."""
        if self._inflater is None:
            self._take(raw)
            return
        while raw and not self._inflater.eof:
            self._take(self._inflate(raw))
            raw = self._inflater.unconsumed_tail
        if raw or self._inflater.unused_data:
            raise ArchiveDamaged("bad-archive", self._member.name, "bytes follow the end of its compressed data")

    def finish(self) -> str:
        """Check what can only be known at the end, and give the sha256."""
        member = self._member
        while self._inflater is not None and not self._inflater.eof:
            rest = self._inflate(b"")  # what the inflater still holds back
            if not rest and not self._inflater.eof:
                raise ArchiveDamaged("bad-archive", member.name, "the compressed data is cut off")
            self._take(rest)
        if self._size != member.size:
            detail = f"has {self._size} bytes, the archive states {member.size}"
            raise ArchiveDamaged("size-lie", member.name, detail)
        if self._crc != member.crc:
            detail = f"has the CRC {self._crc:08x}, the archive states {member.crc:08x}"
            raise ArchiveDamaged("bad-crc", member.name, detail)
        return self._digest.hexdigest()

    def _inflate(self, raw: bytes) -> bytes:
        assert self._inflater is not None  # noqa: S101 - both callers asked before
        try:
            return self._inflater.decompress(raw, CHUNK_BYTES)
        except zlib.error as error:
            raise ArchiveDamaged("bad-archive", self._member.name, f"cannot be inflated: {error}") from error

    def _take(self, content: bytes) -> None:
        self._size += len(content)
        if self._size > self._member.size:
            detail = f"inflates beyond the {self._member.size} bytes that the archive states"
            raise ArchiveDamaged("size-lie", self._member.name, detail)
        self._crc = zlib.crc32(content, self._crc)
        self._digest.update(content)
        self._sink(content)


class ArchiveWriter:
    """Writes members in the order in which they come, then the directory.

    Attributes:
        size: Bytes written so far.

    Example:
        writer = ArchiveWriter(stream)
        writer.add("demo/__init__.py", b"", executable=False)
        sha256 = writer.finish()
    """

    def __init__(self, stream: BinaryIO) -> None:
        """Begin an archive at the stream's current place, which must be its start."""
        self._stream = stream
        self._digest = hashlib.sha256()
        self._directory: list[bytes] = []
        self.size = 0

    def add(self, name: str, content: bytes, *, executable: bool) -> None:
        """Store a member of our own.

        Args:
            name: Of the member.
            content: All of it.
            executable: Whether its mode is 0755 instead of 0644.
        """
        size = len(content)
        stated = Stated(method=_STORED, crc=zlib.crc32(content), compressed_size=size, size=size)
        self._member(name, [content], stated, executable=executable)

    def copy(self, name: str, raw: RawMember, member: Member) -> None:
        """Copy a member of another wheel as it is compressed there.

        Args:
            name: That it gets here.
            raw: Its bytes.
            member: What the other wheel's directory states of it.

        Raises:
            ArchiveDamaged: As iterating `raw` does; what has been written is useless then.
        """
        method = _DEFLATED if member.deflated else _STORED
        stated = Stated(method=method, crc=member.crc, compressed_size=member.compressed_size, size=member.size)
        self._member(name, raw, stated, executable=member.executable)

    def finish(self) -> str:
        """Write the directory.

        Returns:
            The sha256 of the whole archive.
        """
        start = self.size
        for entry in self._directory:
            self._write(entry)
        self._write(end_of_archive(len(self._directory), self.size - start, start))
        return self._digest.hexdigest()

    def _member(self, name: str, chunks: Iterable[bytes], stated: Stated, *, executable: bool) -> None:
        local, central = member_headers(name, stated, executable=executable, offset=self.size)
        self._directory.append(central)
        self._write(local)
        for chunk in chunks:
            self._write(chunk)

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self.size += len(data)


def member_headers(name: str, stated: Stated, *, executable: bool, offset: int) -> tuple[bytes, bytes]:
    """The local header of a member, and its entry in the directory.

    Args:
        name: Of the member, with `/`.
        stated: How its content lies in the archive.
        executable: Whether its mode is 0755 instead of 0644.
        offset: Of the local header, in bytes.
    """
    raw_name = name.encode()
    flags = 0 if raw_name.isascii() else _UTF8_NAME
    large = max(stated.size, stated.compressed_size) >= _MAX_32
    far = offset >= _MAX_32
    needed = _ZIP_4_5 if large or far else _ZIP_2_0
    sizes = (_MAX_32, _MAX_32) if large else (stated.compressed_size, stated.size)
    large_sizes = [stated.size, stated.compressed_size] if large else []
    local_extra = _zip64_extra(large_sizes)
    central_extra = _zip64_extra([*large_sizes, offset] if far else large_sizes)
    common = (needed, flags, stated.method, _TIME, _DATE, stated.crc, *sizes, len(raw_name))
    local = _LOCAL.pack(b"PK\x03\x04", *common, len(local_extra))
    mode = _FILE_TYPE | (0o755 if executable else 0o644)
    place = (len(central_extra), 0, 0, 0, mode << 16, _MAX_32 if far else offset)
    central = _CENTRAL.pack(b"PK\x01\x02", _UNIX << 8 | needed, *common, *place)
    return local + raw_name + local_extra, central + raw_name + central_extra


def end_of_archive(count: int, directory_size: int, directory_offset: int) -> bytes:
    """What follows the directory: the end record, after its zip64 form where a number needs that.

    Args:
        count: Of the members.
        directory_size: In bytes.
        directory_offset: In bytes from the start of the archive.
    """
    numbers = (min(count, _MAX_16), min(count, _MAX_16), min(directory_size, _MAX_32), min(directory_offset, _MAX_32))
    end = _END.pack(b"PK\x05\x06", 0, 0, *numbers, 0)
    if count < _MAX_16 and directory_size < _MAX_32 and directory_offset < _MAX_32:
        return end
    versions = (_UNIX << 8 | _ZIP_4_5, _ZIP_4_5)
    end_64 = _END_64.pack(
        b"PK\x06\x06", _END_64.size - 12, *versions, 0, 0, count, count, directory_size, directory_offset
    )
    return end_64 + _LOCATOR_64.pack(b"PK\x06\x07", 0, directory_offset + directory_size, 1) + end


def _zip64_extra(numbers: list[int]) -> bytes:
    return struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


def record_content(files: Iterable[tuple[str, str, int]], record_path: str) -> bytes:
    """The RECORD of a wheel.

    Args:
        files: Member, sha256 in hex, size in bytes; in the archive's order.
        record_path: Of RECORD itself, which comes last and without a digest.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for name, sha256, size in files:
        digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
        table.writerow((name, f"sha256={digest}", size))
    table.writerow((record_path, "", ""))
    return text.getvalue().encode()


def metadata_with_version(metadata: bytes, *, old: str, new: str, input_name: str) -> bytes:
    """METADATA with another version; every other byte stays.

    Args:
        metadata: The whole file.
        old: The version that it must state, in any form of PEP 440.
        new: The version that it gets.
        input_name: For messages: the name of the wheel.

    Raises:
        EnvspecError: It does not state the old version in exactly one line.
    """
    lines = metadata.splitlines(keepends=True)  # of bytes: at LF, CR and CRLF, as the readers of such headers do
    end = next((index for index, line in enumerate(lines) if not line.rstrip(b"\r\n")), len(lines))
    found = [index for index in range(end) if lines[index][:8].lower() == b"version:"]
    if len(found) != 1:
        raise EnvspecError(f"METADATA has {len(found)} lines `Version:`, expected one", input_name=input_name)
    at = found[0]
    body = lines[at].rstrip(b"\r\n")
    stated = body[8:].strip().decode("utf-8", "backslashreplace")
    try:
        same = Version(stated) == Version(old)
    except InvalidVersion:
        same = False
    continued = at + 1 < end and lines[at + 1][:1] in (b" ", b"\t")
    if not same or continued:
        raise EnvspecError(f"METADATA states the version {shown(stated)}, the file name `{old}`", input_name=input_name)
    lines[at] = b"Version: " + new.encode() + lines[at][len(body) :]
    return b"".join(lines)
