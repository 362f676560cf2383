"""Shared objects written byte by byte: what `ld.so` needs to load them, and nothing else.

    content = tiny_library(soname="liba.so.1", needed=["libb.so"], runpath="$ORIGIN", exports=["f"], undefined=[Wanted("g")])

A compiler takes 50 ms for one, this takes none, so that thousands of odd combinations can be tried on the real linker. There is no code in them:
a symbol that is exported is eight bytes of data, one that is wanted is an address that `ld.so` has to fill in.
"""

from __future__ import annotations

import platform
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# e_machine, and the relocation that stands for the address of a symbol
_MACHINES = {"x86_64": (62, 6), "aarch64": (183, 1025)}
RUNS_HERE = platform.system() == "Linux" and platform.machine() in _MACHINES and platform.libc_ver()[0] == "glibc"

_HEADER_SIZE, _PROGRAM_HEADER_SIZE = 64, 56
_LOAD, _DYNAMIC, _GNU_STACK = 1, 2, 0x6474E551
_READ_WRITE = 6
_GLOBAL, _WEAK, _OBJECT = 1, 2, 1


class Wanted(NamedTuple):
    """A symbol that another library has to offer."""

    name: str
    weak: bool = False
    version: str = ""
    library: str = ""
    """The NEEDED entry that has the version."""


def tiny_library(
    *,
    soname: str = "",
    needed: Sequence[str] = (),
    rpath: str | None = None,
    runpath: str | None = None,
    exports: Sequence[str] = (),
    undefined: Sequence[Wanted] = (),
    machine: str = platform.machine(),
) -> bytes:
    """The content of a shared object.

    Args:
        soname: DT_SONAME; none if empty.
        needed: DT_NEEDED, in this order.
        rpath: DT_RPATH; both it and `runpath` may be there.
        runpath: DT_RUNPATH.
        exports: `name` or `name@VERSION`.
        undefined: What it wants.
        machine: Whose; those of other machines are refused by `ld.so`.
    """
    number, relocation = _MACHINES.get(machine, (243, 0))
    strings = _Strings()
    definitions = list(dict.fromkeys(each.partition("@")[2] for each in exports if "@" in each))
    wanted_versions = list(dict.fromkeys((each.library, each.version) for each in undefined if each.version))
    index_of = {version: 2 + place for place, version in enumerate(definitions)}
    index_needed = {pair: 2 + len(definitions) + place for place, pair in enumerate(wanted_versions)}
    symbols = bytearray(24)
    indexes = [0]
    image = _Image(_HEADER_SIZE + 3 * _PROGRAM_HEADER_SIZE)
    slots = image.add(bytes(8 * (len(exports) + len(undefined)) or 8))
    for place, export in enumerate(exports):
        name, _, version = export.partition("@")
        symbols += struct.pack("<IBBHQQ", strings.at(name), _GLOBAL << 4 | _OBJECT, 0, 1, slots + 8 * place, 8)
        indexes.append(index_of.get(version, 1))
    relocations = bytearray()
    for place, wanted in enumerate(undefined):
        binding = _WEAK if wanted.weak else _GLOBAL
        symbols += struct.pack("<IBBHQQ", strings.at(wanted.name), binding << 4, 0, 0, 0, 0)
        indexes.append(index_needed.get((wanted.library, wanted.version), 1))
        where = slots + 8 * (len(exports) + place)
        relocations += struct.pack("<QQq", where, (1 + len(exports) + place) << 32 | relocation, 0)
    count = len(indexes)
    entries = [(1, strings.at(name)) for name in needed]
    entries += [
        (tag, strings.at(text)) for tag, text in ((14, soname or None), (15, rpath), (29, runpath)) if text is not None
    ]
    # One bucket for all symbols, so that no hash is needed.
    chain = [*range(2, count), 0] if count > 1 else []
    hashes = struct.pack(f"<{3 + count}I", 1, count, 1 if count > 1 else 0, 0, *chain)
    entries += [(6, image.add(bytes(symbols))), (11, 24), (4, image.add(hashes))]
    if relocations:
        entries += [(7, image.add(bytes(relocations))), (8, len(relocations)), (9, 24)]
    if definitions or wanted_versions:
        entries.append((0x6FFFFFF0, image.add(struct.pack(f"<{count}H", *indexes))))
    if definitions:
        own = soname or "tiny"
        rows = [(1, 1, own), *((0, index_of[version], version) for version in definitions)]
        table = b"".join(
            struct.pack("<HHHHIII", 1, flags, index, 1, elf_hash(name), 20, 28 if place + 1 < len(rows) else 0)
            + struct.pack("<II", strings.at(name), 0)
            for place, (flags, index, name) in enumerate(rows)
        )
        entries += [(0x6FFFFFFC, image.add(table)), (0x6FFFFFFD, len(rows))]
    if wanted_versions:
        table = b"".join(
            struct.pack("<HHIII", 1, 1, strings.at(library), 16, 32 if place + 1 < len(wanted_versions) else 0)
            + struct.pack("<IHHII", elf_hash(version), 0, index_needed[library, version], strings.at(version), 0)
            for place, (library, version) in enumerate(wanted_versions)
        )
        entries += [(0x6FFFFFFE, image.add(table)), (0x6FFFFFFF, len(wanted_versions))]
    entries += [(5, image.add(bytes(strings.table))), (10, len(strings.table)), (0, 0)]
    dynamic_size = 16 * len(entries)
    dynamic = image.add(b"".join(struct.pack("<QQ", tag, value) for tag, value in entries))
    size = len(image.content)
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, number, 1, 0, _HEADER_SIZE, 0, 0, 64, 56, 3, 64, 0, 0)
    head += struct.pack("<IIQQQQQQ", _LOAD, _READ_WRITE, 0, 0, 0, size, size, 0x10000)
    head += struct.pack("<IIQQQQQQ", _DYNAMIC, _READ_WRITE, dynamic, dynamic, dynamic, dynamic_size, dynamic_size, 8)
    head += struct.pack("<IIQQQQQQ", _GNU_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16)
    return head + bytes(image.content[len(head) :])


def elf_hash(name: str) -> int:
    """The hash of the System V gABI, by which versions are compared."""
    found = 0
    for character in name.encode():
        found = (found << 4) + character
        high = found & 0xF0000000
        found = (found ^ high >> 24) & ~high & 0xFFFFFFFF
    return found


class _Strings:
    def __init__(self) -> None:
        self.table = bytearray(1)

    def at(self, text: str) -> int:
        self.table += text.encode() + b"\0"
        return len(self.table) - len(text.encode()) - 1


class _Image:
    """A file whose addresses are its offsets."""

    def __init__(self, start: int) -> None:
        self.content = bytearray(start)

    def add(self, piece: bytes) -> int:
        self.content += bytes(-len(self.content) % 8)
        self.content += piece
        return len(self.content) - len(piece)
