"""Gzip without a compressor: what is compressed already is taken as it is, the rest is written by fixed rules.

What a compressor gives depends on its version and build, and an image has to be the same on every machine. A gzip file may consist of several
members, one after the other; so the deflated bytes that a wheel has of a file become a member as they are, checked while they pass, and between
them stand members of our own: headers of tar, whose long runs of zeros are all that is worth compressing.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEADER = (
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, no time, no word on the effort, system unknown
)
_TRAILER = struct.Struct("<2L")
_STORED_BYTES = 0xFFFF
_LONGEST_MATCH = 258
_ZEROS = re.compile(rb"\0{4,}")
_LITERALS = tuple(f"{0x30 + byte:08b}" if byte < 144 else f"{0x190 + byte - 144:09b}" for byte in range(256))
_END_OF_BLOCK = "0000000"
_LAST_FIXED_BLOCK = "110"  # the bits of a number begin with the lowest
_DISTANCE_1 = "00000"


class GzipWriter:
    """Writes one gzip file, and hashes both what it writes and what that inflates to.

    Attributes:
        size: Bytes written so far.
        content_size: Bytes that they inflate to.
    """

    def __init__(self, stream: BinaryIO) -> None:
        """Begin.

        Args:
            stream: Where it goes.
        """
        self._stream = stream
        self._digest = hashlib.sha256()
        self._content_digest = hashlib.sha256()
        self.size = 0
        self.content_size = 0

    @property
    def sha256(self) -> str:
        """Of the file."""
        return self._digest.hexdigest()

    @property
    def content_sha256(self) -> str:
        """Of what it inflates to."""
        return self._content_digest.hexdigest()

    def add(self, content: bytes) -> None:
        """Add content as it is; runs of zeros are made short."""
        self._content_digest.update(content)
        self.content_size += len(content)
        self._write(_HEADER)
        self._write(deflate_zeros(content))
        self._write(_TRAILER.pack(zlib.crc32(content), len(content) & 0xFFFFFFFF))

    def begin_deflated(self) -> None:
        """Begin a member that is deflated already."""
        self._write(_HEADER)

    def add_deflated(self, raw: bytes) -> None:
        """Add deflated bytes of the member that is begun."""
        self._write(raw)

    def watch(self, content: bytes) -> None:
        """Learn what the deflated bytes inflate to, in order."""
        self._content_digest.update(content)
        self.content_size += len(content)

    def end_deflated(self, crc: int, size: int) -> None:
        """End the member.

        Args:
            crc: CRC-32 of what it inflates to.
            size: Of that, in bytes.
        """
        self._write(_TRAILER.pack(crc, size & 0xFFFFFFFF))

    def add_stored(self, chunks: Iterable[bytes]) -> None:
        """Add content of any length uncompressed, as a member of its own."""
        self._write(_HEADER)
        crc = size = 0
        for chunk in chunks:
            self.watch(chunk)
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            self._write(stored_blocks(chunk))
        self._write(stored_blocks(b"", last=True))
        self._write(_TRAILER.pack(crc, size & 0xFFFFFFFF))

    def _write(self, raw: bytes) -> None:
        self._digest.update(raw)
        self.size += len(raw)
        self._stream.write(raw)


def stored_blocks(content: bytes, *, last: bool = False) -> bytes:
    """Content as uncompressed deflate blocks.

    Args:
        content: Of any length.
        last: Whether it ends with an empty block that ends the stream.
    """
    blocks: list[bytes] = []
    for start in range(0, len(content), _STORED_BYTES):
        piece = content[start : start + _STORED_BYTES]
        blocks += [struct.pack("<BHH", 0, len(piece), len(piece) ^ 0xFFFF), piece]
    if last:
        blocks.append(struct.pack("<BHH", 1, 0, 0xFFFF))
    return b"".join(blocks)


def deflate_zeros(content: bytes) -> bytes:
    """A deflate stream of one block with fixed codes, in which only runs of zeros are made short.

    Args:
        content: Best short: every byte of it is looked at.
    """
    pieces = [_LAST_FIXED_BLOCK]
    start = 0
    for match in _ZEROS.finditer(content):
        pieces += map(_LITERALS.__getitem__, content[start : match.start()])
        pieces.append(_zeros(match.end() - match.start()))
        start = match.end()
    pieces += map(_LITERALS.__getitem__, content[start:])
    pieces.append(_END_OF_BLOCK)
    bits = "".join(pieces)
    return int(bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")


def _zeros(count: int) -> str:
    """A zero, and copies of it."""
    pieces = [_LITERALS[0]]
    left = count - 1
    while left >= 3:
        length = min(left, _LONGEST_MATCH)
        if 0 < left - length < 3:  # a copy has three bytes or more
            length -= 3
        pieces.append(_COPIES[length])
        left -= length
    pieces += [_LITERALS[0]] * left
    return "".join(pieces)


def _copy_codes() -> dict[int, str]:
    """Length of a copy from one byte before -> its bits (RFC 1951, 3.2.5 and 3.2.6)."""
    codes: dict[int, str] = {}
    length = 3
    for symbol in range(257, 285):
        extra = max(0, (symbol - 261) // 4)
        code = f"{symbol - 256:07b}" if symbol < 280 else f"{0xC0 + symbol - 280:08b}"
        for value in range(1 << extra):
            bits = f"{value:0{extra}b}"[::-1] if extra else ""
            codes[length] = code + bits + _DISTANCE_1
            length += 1
    codes[_LONGEST_MATCH] = f"{0xC0 + 285 - 280:08b}" + _DISTANCE_1
    return codes


_COPIES = _copy_codes()
