"""Bytes of a section -> the GPU code in it.

nvcc packs the code of one source file for all GPUs into a *fatbin*: a header, then entries, each of which is a cubin (machine code, `sm_90`) or
PTX (`compute_90`, which the driver compiles). A library has one fatbin for each of its source files, so what a GPU can run is asked for each
fatbin, not for the file.

Layout, little-endian, measured on files that nvcc 12.8 and 13.0 made for every target that they have, and compared with `cuobjdump`:

    fatbin  u32 magic 0xBA55ED50 · u16 version 1 · u16 header size 16 · u64 size of what follows
    entry   u16 kind (1 PTX, 2 cubin) · u16 · u32 header size · u64 payload size · u32 compressed size · ... · u32 architecture at 28 · ... ·
            u64 flags at 40 · ... · u64 inflated size at 56

The flags say what the architecture's number does not: `a` (that GPU alone) and `f` (its family), and how the payload is compressed.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from builder.elf_image import refuse_holes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.elf_image import Buffer

MAGIC = b"\x50\xed\x55\xba\x01\0\x10\0"
"""With the version and the header's size, which never were different ones."""

HEADER_BYTES = 16
ENTRY_BYTES = 64
"""The least size of an entry's header; a PTX entry's is longer, since it names its options."""

LONGEST_ENTRY_HEADER_BYTES = 4096
PTX, CUBIN = 1, 2
ALIGNMENT = 8
_HEADER = struct.Struct("<8sQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ8xQ")
ZSTD_FLAG, LZ4_FLAG = 0x8000, 0x2000
"""Of an entry: how its payload is compressed."""

_ONLY, _FAMILY = 0x100000, 0x200000
CUBIN_LIMIT_BYTES = 64 << 20
_MOST_ENTRIES = 4096
"""Of one fatbin; nvcc has some 60 targets."""

MOST_STEPS = 1 << 20
"""Fatbins and entries, real ones or not, of one section: some seconds. The most that were seen are 9,000."""

_RELEASE = re.compile(rb"Cuda compilation tools, release [0-9.]{1,16}, V([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})")


class FatbinDamaged(ValueError):  # noqa: N818 - it says what the bytes are
    """Bytes begin as a fatbin does and do not go on as one."""


class FatbinEntry(NamedTuple):
    """One piece of GPU code."""

    code: str
    """`sm_90`, `sm_90a`, `sm_100f`; `compute_90` for PTX; `kind-<n>` for anything else."""

    payload_offset: int
    payload_size: int
    flags: int

    @property
    def is_cubin(self) -> bool:
        """Whether it is machine code."""
        return self.code.startswith("sm_")


def read_header(buffer: Buffer | memoryview, offset: int) -> int | None:
    """The size of the entries of a fatbin that begins at an offset, in bytes; None if none begins there."""
    if offset + HEADER_BYTES > len(buffer):
        return None
    magic, body = _HEADER.unpack_from(buffer, offset)
    return int(body) if magic == MAGIC else None


def read_entry(buffer: Buffer | memoryview, offset: int, end: int, *, base: int = 0) -> tuple[FatbinEntry, int]:
    """An entry, and where its payload ends.

    Args:
        buffer: Holds at least the 64 bytes of the entry at the offset.
        offset: Of the entry within the buffer.
        end: Where the fatbin ends, as an offset within the file.
        base: Offset of the buffer within the file.

    Returns:
        The entry with its payload's offset within the file, and the end of that payload within the file.

    Raises:
        FatbinDamaged: The entry reaches beyond its fatbin.
    """
    kind, _, header_size, payload_size, compressed, _, _, _, architecture, _, _, flags, _ = _ENTRY.unpack_from(
        buffer, offset
    )
    start = base + offset
    if not ENTRY_BYTES <= header_size <= LONGEST_ENTRY_HEADER_BYTES or start + header_size + payload_size > end:
        raise FatbinDamaged(f"an entry of {header_size} and {payload_size} bytes at {start} ends beyond {end}")
    prefix = {PTX: "compute_", CUBIN: "sm_"}.get(kind)
    suffix = "a" if flags & _ONLY else "f" if flags & _FAMILY else ""
    code = f"kind-{kind}" if prefix is None else f"{prefix}{architecture}{suffix}"
    stored = compressed if 0 < compressed <= payload_size else payload_size
    return FatbinEntry(code, start + header_size, stored, flags), start + header_size + payload_size


def read_fatbins(
    buffer: Buffer, offset: int, size: int, *, holes: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[FatbinEntry, ...]]:
    """The fatbins of a section, one tuple of entries each.

    Args:
        buffer: The whole file.
        offset: Of the section, in bytes.
        size: Of the section, in bytes.
        holes: Beginnings and ends of the parts of the buffer that were left out, in bytes, sorted, none within another.

    Raises:
        FatbinDamaged: A fatbin contradicts itself or its section.
        HoleRead: Something else than a payload was left out, so that a fatbin may lie there.
    """
    end = offset + size
    seen = offset  # all before was looked at, or is the payload of an entry
    steps = 0
    place = buffer.find(MAGIC, offset, end)
    while place >= 0:
        steps += 1
        if steps > MOST_STEPS:
            raise FatbinDamaged(f"more than {MOST_STEPS} fatbins and entries")
        body = read_header(buffer, place) if place % ALIGNMENT == 0 else None
        if body is None:
            place = buffer.find(MAGIC, place + 1, end)
            continue
        at = place + HEADER_BYTES
        stop = at + body
        refuse_holes(holes, seen, at - seen)
        if stop > end:
            raise FatbinDamaged(f"a fatbin of {body} bytes at {place} ends beyond its section, at {end}")
        entries: list[FatbinEntry] = []
        while at + ENTRY_BYTES <= stop:
            if len(entries) >= _MOST_ENTRIES:
                raise FatbinDamaged(f"a fatbin at {place} has more than {_MOST_ENTRIES} entries")
            refuse_holes(holes, at, ENTRY_BYTES)
            entry, following = read_entry(buffer, at, stop)
            refuse_holes(holes, at, entry.payload_offset - at)
            entries.append(entry)
            at = following
        steps += len(entries)
        yield tuple(entries)
        seen = at
        place = buffer.find(MAGIC, stop, end)
    refuse_holes(holes, seen, end - seen)


def release_in(payload: Buffer) -> str | None:
    """The CUDA release that made a cubin, as its note says; None where it has none that can be read as it stands."""
    found = _RELEASE.search(payload)
    return found[1].decode("ascii") if found else None
