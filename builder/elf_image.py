"""Bytes of an ELF file by offset and by address, each access checked; part of `builder.elf`.

Standard library only, CPython >= 3.10: the agent uses it on hosts.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap
    import struct
    from collections.abc import Sequence
    from typing import TypeAlias

    Buffer: TypeAlias = bytes | bytearray | mmap.mmap

_END = itemgetter(1)


class ElfDamaged(ValueError):  # noqa: N818 - it says what the file is
    """A file has the magic of ELF and contradicts itself or its own size."""


class HoleRead(Exception):  # noqa: N818 - it says what happened
    """Something that was needed lies in a part of the file that was left out."""


class Image:
    """The bytes of a file, by offset and by address; every access is checked against the file's size and its holes."""

    def __init__(self, buffer: Buffer, holes: Sequence[tuple[int, int]] = ()) -> None:
        self._buffer = buffer
        self._holes = holes
        self.size = len(buffer)
        self.segments: list[tuple[int, int, int]] = []
        """Address, offset and size in the file of each loaded segment."""

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Bytes of the file.

        Raises:
            ElfDamaged: The file ends before them.
            HoleRead: Some of them were left out.
        """
        self._check(offset, size)
        return bytes(self._buffer[offset : offset + size])

    def unpack(self, layout: struct.Struct, offset: int) -> tuple[int, ...]:
        """Numbers of the file; raises as `bytes_at`."""
        self._check(offset, layout.size)
        return layout.unpack_from(self._buffer, offset)

    def offset_of(self, address: int, size: int = 1) -> int:
        """Where the bytes lie in the file that `ld.so` has at an address.

        Raises:
            ElfDamaged: No single segment has them.
        """
        offset, room = self.place_of(address)
        if size > room:
            raise ElfDamaged(f"{size} bytes at address {address:#x} reach beyond the {room} of their segment")
        return offset

    def place_of(self, address: int) -> tuple[int, int]:
        """Where an address lies in the file, and how many bytes of its segment follow.

        Raises:
            ElfDamaged: No segment has it.
        """
        for start, offset, size in self.segments:
            if start <= address < start + size:
                return offset + address - start, start + size - address
        raise ElfDamaged(f"address {address:#x} lies in no loaded segment")

    def _check(self, offset: int, size: int) -> None:
        if offset + size > self.size:
            raise ElfDamaged(f"{size} bytes at offset {offset} lie outside the file of {self.size} bytes")
        refuse_holes(self._holes, offset, size)


class Strings:
    """The dynamic string table.

    Names may overlap (`bar` inside `foobar`), so a small table could stand for any amount of text: a budget bounds what is taken from it. Of
    1,016 libraries measured (torch, sglang-kernel, a whole Debian) none takes more than 1.1 times a table of more than 2,000 bytes.
    """

    def __init__(self, table: bytes) -> None:
        self._table = table
        self._budget = 4 * len(table) + 0x10000

    def at(self, offset: int) -> str:
        """The string at an offset of the table.

        Raises:
            ElfDamaged: None ends there, or far more was asked for than the table has.
        """
        end = self._table.find(b"\0", offset)
        if end < 0:
            raise ElfDamaged(f"no string ends after offset {offset} of the string table of {len(self._table)} bytes")
        self._budget -= end - offset
        if self._budget < 0:
            raise ElfDamaged(f"the names are far longer than their string table of {len(self._table)} bytes")
        # Names are hostile as well: whatever they hold, they can be printed and written as UTF-8.
        return self._table[offset:end].decode("utf-8", "backslashreplace")


def refuse_holes(holes: Sequence[tuple[int, int]], offset: int, size: int) -> None:
    """See that bytes are there.

    Args:
        holes: Beginnings and ends of the parts of a file that were left out, in bytes, sorted, none within another.
        offset: Of the bytes in the file.
        size: Their number.

    Raises:
        HoleRead: Some of them lie in a hole.
    """
    if holes:
        following = bisect_right(holes, offset, key=_END)  # the first hole that ends beyond the offset
        if following < len(holes) and holes[following][0] < offset + size:
            raise HoleRead
