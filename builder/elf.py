"""Bytes of an ELF file -> what the dynamic linker would read from it.

Owns: the format. Everything a linker acts on is reached through the program headers and the dynamic section, because that is the path that
`ld.so` takes; section headers are a hint at most (a stripped file has none, and a wrong table does not stop a library from loading).

Refuses: a file that says it is ELF and contradicts itself, with `ElfDamaged` and nothing else. Wheels are hostile: work and memory are bounded
by a small multiple of the file's size, whatever its bytes are.

Limits: 64-bit little-endian files (x86-64, aarch64, CUDA cubins) are read in full; of others only class, byte order, type and machine.

    facts = read_elf_file(Path("libtorch_cuda.so"), symbols=True)
    if facts is not None and "libcuda.so.1" in facts.needed: ...

Standard library only, CPython >= 3.10: the agent uses it on hosts. Sources: System V gABI chapters 4 and 5, and for symbol versions the Linux
Standard Base, Core, chapter 10.7.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from builder.elf_image import ElfDamaged, Image, Strings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.elf_image import Buffer

MAGIC = b"\x7fELF"

MACHINES = {3: "i386", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86_64", 183: "aarch64", 190: "cuda", 243: "riscv"}
"""Names of the machines that turn up in Python packages; another one is named by its number."""

_FILE_TYPES = {1: "relocatable", 2: "executable", 3: "shared", 4: "core"}

_FILE_HEADER = struct.Struct("<HHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC_ENTRY = struct.Struct("<QQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NEED = struct.Struct("<HHIII")
_NEED_VERSION = struct.Struct("<IHHII")
_DEFINITION = struct.Struct("<HHHHIII")
_DEFINITION_NAME = struct.Struct("<II")
_RELOCATION = struct.Struct("<QQq")
_WORD = struct.Struct("<I")
_HALF = struct.Struct("<H")
_IDENT_SIZE = 16

_MOST_DYNAMIC_ENTRIES = 1 << 16
_MOST_SYMBOLS = 1 << 21
"""The largest table of a real environment has 0.1 million. The objects that stand for them here take ten times the bytes of a symbol."""

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_GNU_STACK = 1, 2, 3, 0x6474E551
_PF_X = 1
_EM_X86_64 = 62
_SHT_NULL, _SHT_NOBITS, _SHT_DYNSYM = 0, 8, 11
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 0, 1, 4, 5, 6, 10
_DT_SONAME, _DT_RPATH, _DT_RUNPATH = 14, 15, 29
_DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ = 7, 8, 23, 2
_DT_GNU_HASH, _DT_VERSYM, _DT_FLAGS_1 = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFB
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_STRING_TAGS = (_DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)
_SYMBOL_TAGS = (_DT_HASH, _DT_GNU_HASH, _DT_SYMTAB, _DT_VERSYM, _DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ)
_VERSION_TAGS = (_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM)
_TAGS = frozenset((*_STRING_TAGS, *_SYMBOL_TAGS, *_VERSION_TAGS, _DT_FLAGS_1))
_PROGRAM_FLAG = 0x08000000  # DF_1_PIE
_VERSION_INDEX = 0x7FFF  # the top bit hides a version from the static linker
_BASE_VERSION = 1  # flag of the definition that repeats the file's own name
_LOCAL, _WEAK = 0, 2
_UNDEFINED_SECTION = 0
_VISIBLE_OUTSIDE = (0, 3)  # STV_DEFAULT and STV_PROTECTED


class UndefinedSymbol(NamedTuple):
    """A symbol that another file has to offer."""

    name: str
    weak: bool
    """A weak one may stay without a definition."""

    version: str
    """`GLIBC_2.34`; empty if any version will do."""

    library: str
    """The NEEDED entry that the version is expected from; empty without a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfSymbols:
    """The dynamic symbols of a file."""

    undefined: tuple[UndefinedSymbol, ...]
    """In the file's order."""

    exported: frozenset[str]
    """Names that other files may bind to, without their versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNeed:
    """The symbol versions that a file asks of one library."""

    library: str
    versions: tuple[str, ...]
    """In the file's order."""

    weak: tuple[str, ...] = ()
    """Those among `versions` whose absence `ld.so` only warns of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFacts:
    """What an ELF file says of itself. Fields after `complete` are empty where it is false."""

    bits: int
    """32 or 64."""

    little_endian: bool
    machine: str
    """A name of `MACHINES`, or `machine-<number>`."""

    machine_number: int
    file_type: str
    """`relocatable`, `executable`, `shared` (position-independent programs too), `core`, or `type-<number>`."""

    complete: bool
    """False for 32-bit and for big-endian files, of which no more was read."""

    e_flags: int = 0
    """Processor-specific: of a cubin, its ABI and compute capability."""

    dynamic: bool = False
    """Whether there is a dynamic section: a static program, an object file and a cubin have none."""

    soname: str | None = None
    needed: tuple[str, ...] = ()
    """In the order in which they are loaded."""

    rpath: str | None = None
    """DT_RPATH as written, `:` between folders; unlike RUNPATH it is inherited by what the file loads."""

    runpath: str | None = None
    version_needs: tuple[VersionNeed, ...] = ()
    version_definitions: tuple[str, ...] = ()
    """Versions that the file itself offers, without the one that repeats its name."""

    symbols: ElfSymbols | None = None
    """None if they were not asked for, or where there is no dynamic section."""

    program: bool = False
    """Whether it names an interpreter (`ld.so`), or says that it is a position-independent program, which `dlopen` refuses: a program, even if
    `file_type` says `shared`."""

    executable_stack: bool = False
    """Whether `ld.so` has to make the stack executable for it: because the file says so, or on x86_64 because it says nothing."""


def read_elf(buffer: Buffer, *, symbols: bool = False, holes: Sequence[tuple[int, int]] = ()) -> ElfFacts | None:
    """What a whole ELF file says of itself.

    Args:
        buffer: The whole file.
        symbols: Whether to read the symbols too: 0.3 s for the largest libraries, against below 1 ms for everything else.
        holes: Beginnings and ends of the parts of the buffer that were left out, in bytes, sorted, none within another.

    Returns:
        The facts; None if the file is not ELF by its magic.

    Raises:
        ElfDamaged: The file is ELF by its magic and cannot be read.
        HoleRead: What the linker would read lies in one of the holes.
    """
    if buffer[: len(MAGIC)] != MAGIC:
        return None
    image = Image(buffer, holes)
    elf_class, byte_order = image.bytes_at(4, 2)
    if elf_class not in (1, 2) or byte_order not in (1, 2):
        raise ElfDamaged(f"class {elf_class} and byte order {byte_order} do not exist")
    if (elf_class, byte_order) != (2, 1):
        type_number, machine_number = struct.unpack("<HH" if byte_order == 1 else ">HH", image.bytes_at(_IDENT_SIZE, 4))
        return ElfFacts(
            bits=32 * elf_class,
            little_endian=byte_order == 1,
            machine=MACHINES.get(machine_number, f"machine-{machine_number}"),
            machine_number=machine_number,
            file_type=_FILE_TYPES.get(type_number, f"type-{type_number}"),
            complete=False,
        )
    return _read_64_bit(image, symbols=symbols)


def read_elf_file(path: Path, *, symbols: bool = False) -> ElfFacts | None:
    """What a file on disk says of itself; a file that is not ELF costs one read of four bytes.

    Raises:
        ElfDamaged: The file is ELF by its magic and cannot be read.
        OSError: The file cannot be opened.
    """
    with path.open("rb", buffering=0) as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return read_elf(mapped, symbols=symbols)


def read_sections(buffer: Buffer, *, holes: Sequence[tuple[int, int]] = ()) -> tuple[tuple[str, int, int], ...]:
    """Name, offset and size of each section that has bytes in the file; empty where there is no section table.

    Sections mean nothing to the dynamic linker, but GPU code is found by them.

    Args:
        buffer: A whole 64-bit little-endian ELF file.
        holes: As in `read_elf`.

    Raises:
        ElfDamaged: The section table contradicts the file.
        HoleRead: The table or its names lie in one of the holes.
    """
    image = Image(buffer, holes)
    header = image.unpack(_FILE_HEADER, _IDENT_SIZE)
    start, entry_size, count, names_index = header[5], header[10], header[11], header[12]
    if not start or not count:
        return ()
    if entry_size != _SECTION_HEADER.size:
        raise ElfDamaged(f"a section header has {entry_size} bytes, expected {_SECTION_HEADER.size}")
    rows = list(_SECTION_HEADER.iter_unpack(image.bytes_at(start, count * _SECTION_HEADER.size)))
    if names_index >= count:
        raise ElfDamaged(f"section {names_index} of {count} has the names")
    strings = Strings(image.bytes_at(rows[names_index][4], rows[names_index][5]))
    found = []
    for name, kind, _flags, _address, offset, size, *_ in rows:
        if kind not in (_SHT_NULL, _SHT_NOBITS):
            if offset + size > image.size:
                raise ElfDamaged(f"a section of {size} bytes at offset {offset} lies outside the file of {image.size}")
            found.append((strings.at(name), offset, size))
    return tuple(found)


class _Dynamic(NamedTuple):
    """The entries of the dynamic section that are used here: NEEDED may repeat, of the others the last one counts."""

    needed: list[int]
    values: dict[int, int]


def _read_64_bit(image: Image, *, symbols: bool) -> ElfFacts:
    header = image.unpack(_FILE_HEADER, _IDENT_SIZE)
    type_number, machine_number = header[:2]
    program_offset, section_offset, e_flags = header[4:7]
    program_entry_size, program_count, section_entry_size, section_count = header[8:12]
    headers = _ProgramHeaders()
    if program_count:
        if program_entry_size != _PROGRAM_HEADER.size:
            raise ElfDamaged(f"a program header has {program_entry_size} bytes, expected {_PROGRAM_HEADER.size}")
        headers = _read_program_headers(image, program_offset, program_count)
    dynamic = headers.dynamic
    bare = ElfFacts(
        bits=64,
        little_endian=True,
        machine=MACHINES.get(machine_number, f"machine-{machine_number}"),
        machine_number=machine_number,
        file_type=_FILE_TYPES.get(type_number, f"type-{type_number}"),
        complete=True,
        e_flags=e_flags,
        program=headers.program or (dynamic is not None and bool(dynamic.values.get(_DT_FLAGS_1, 0) & _PROGRAM_FLAG)),
        executable_stack=headers.executable_stack
        or (headers.executable_stack is None and dynamic is not None and machine_number == _EM_X86_64),
    )
    if dynamic is None:
        return bare
    values = dynamic.values
    strings = Strings(_read_string_table(image, values))
    needs, versions = _read_version_needs(image, values, strings)
    found = ElfSymbols(undefined=(), exported=frozenset()) if symbols else None
    if symbols and _DT_SYMTAB in values:
        sections = (section_offset, section_count) if section_entry_size == _SECTION_HEADER.size else (0, 0)
        found = _read_symbols(image, values, strings, versions, sections)
    return replace(
        bare,
        dynamic=True,
        soname=strings.at(values[_DT_SONAME]) if _DT_SONAME in values else None,
        needed=tuple(strings.at(offset) for offset in dynamic.needed),
        rpath=strings.at(values[_DT_RPATH]) if _DT_RPATH in values else None,
        runpath=strings.at(values[_DT_RUNPATH]) if _DT_RUNPATH in values else None,
        version_needs=needs,
        version_definitions=_read_version_definitions(image, values, strings),
        symbols=found,
    )


class _ProgramHeaders(NamedTuple):
    dynamic: _Dynamic | None = None
    program: bool = False
    executable_stack: bool | None = None


def _read_program_headers(image: Image, start: int, count: int) -> _ProgramHeaders:
    dynamic_address = None
    program = False
    executable_stack = None
    table = image.bytes_at(start, count * _PROGRAM_HEADER.size)
    for kind, flags, offset, address, _physical, size, _memory, _align in _PROGRAM_HEADER.iter_unpack(table):
        if kind == _PT_LOAD:
            image.segments.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic_address = address
        elif kind == _PT_INTERP:
            program = True
        elif kind == _PT_GNU_STACK:
            executable_stack = bool(flags & _PF_X)
    dynamic = None if dynamic_address is None else _read_dynamic(image, dynamic_address)
    return _ProgramHeaders(dynamic, program, executable_stack)


def _read_dynamic(image: Image, address: int) -> _Dynamic:
    """As `ld.so` reads it: at its address, whatever the header's offset says, and up to DT_NULL, whatever its size says."""
    found = _Dynamic([], {})
    offset, room = image.place_of(address)
    for number in range(room // _DYNAMIC_ENTRY.size):
        tag, value = image.unpack(_DYNAMIC_ENTRY, offset + number * _DYNAMIC_ENTRY.size)
        if tag == _DT_NULL:
            break
        if number >= _MOST_DYNAMIC_ENTRIES:
            raise ElfDamaged(f"the dynamic section does not end after {number} entries")
        if tag == _DT_NEEDED:
            found.needed.append(value)
        elif tag in _TAGS:
            found.values[tag] = value
    return found


def _read_string_table(image: Image, values: dict[int, int]) -> bytes:
    if _DT_STRTAB not in values or _DT_STRSZ not in values:
        raise ElfDamaged("the dynamic section names no string table")
    size = values[_DT_STRSZ]
    return image.bytes_at(image.offset_of(values[_DT_STRTAB], size), size)


def _read_version_needs(
    image: Image, values: dict[int, int], strings: Strings
) -> tuple[tuple[VersionNeed, ...], dict[int, tuple[str, str]]]:
    """The needs, and for each version index the pair of version and library."""
    if _DT_VERNEED not in values:
        return (), {}
    needs = []
    versions: dict[int, tuple[str, str]] = {}
    seen = 0
    offset = image.offset_of(values[_DT_VERNEED])
    for _record in range(values.get(_DT_VERNEEDNUM, 0)):
        _version, count, library_name, first, following = image.unpack(_NEED, offset)
        library = strings.at(library_name)
        names, strong = [], set()
        entry = offset + first
        for _entry in range(count):
            # Entries may overlap; but an index has 15 bits, so an honest file has no more of them than that.
            seen = _count_versions(seen)
            _hash, flags, index, name, step = image.unpack(_NEED_VERSION, entry)
            names.append(strings.at(name))
            if not flags & _WEAK:
                strong.add(names[-1])
            versions[index & _VERSION_INDEX] = (names[-1], library)
            if not step:
                break
            entry += step
        weak = tuple(name for name in names if name not in strong)
        needs.append(VersionNeed(library=library, versions=tuple(names), weak=weak))
        seen = _count_versions(seen)
        if not following:
            break
        offset += following
    return tuple(needs), versions


def _read_version_definitions(image: Image, values: dict[int, int], strings: Strings) -> tuple[str, ...]:
    if _DT_VERDEF not in values:
        return ()
    names = []
    seen = 0
    offset = image.offset_of(values[_DT_VERDEF])
    for _record in range(values.get(_DT_VERDEFNUM, 0)):
        seen = _count_versions(seen)
        _version, flags, _index, _count, _hash, first, following = image.unpack(_DEFINITION, offset)
        name, _next = image.unpack(_DEFINITION_NAME, offset + first)
        if not flags & _BASE_VERSION:
            names.append(strings.at(name))
        if not following:
            break
        offset += following
    return tuple(names)


def _count_versions(seen: int) -> int:
    if seen >= 2 * _VERSION_INDEX:
        raise ElfDamaged(f"more symbol versions than the {_VERSION_INDEX} that can be told apart")
    return seen + 1


def _read_symbols(
    image: Image,
    values: dict[int, int],
    strings: Strings,
    versions: dict[int, tuple[str, str]],
    sections: tuple[int, int],
) -> ElfSymbols:
    count = _count_symbols(image, values, sections)
    if count > _MOST_SYMBOLS:
        raise ElfDamaged(f"{count} symbols, at most {_MOST_SYMBOLS} are read")
    table = image.bytes_at(image.offset_of(values[_DT_SYMTAB], count * _SYMBOL.size), count * _SYMBOL.size)
    indexes = bytes(count * _HALF.size)  # no versions at all
    if _DT_VERSYM in values:
        indexes = image.bytes_at(image.offset_of(values[_DT_VERSYM], len(indexes)), len(indexes))
    undefined: list[UndefinedSymbol] = []
    exported: set[str] = set()
    rows = zip(_SYMBOL.iter_unpack(table), _HALF.iter_unpack(indexes), strict=True)
    for (name, info, other, section, _value, _size), (index,) in rows:
        binding = info >> 4
        if not name or binding == _LOCAL:
            continue
        if section == _UNDEFINED_SECTION:
            version, library = versions.get(index & _VERSION_INDEX, ("", ""))
            undefined.append(UndefinedSymbol(strings.at(name), binding == _WEAK, version, library))
        elif other & 3 in _VISIBLE_OUTSIDE:
            exported.add(strings.at(name))
    return ElfSymbols(undefined=tuple(undefined), exported=frozenset(exported))


def _count_symbols(image: Image, values: dict[int, int], sections: tuple[int, int]) -> int:
    """The number of dynamic symbols, which the dynamic section does not state.

    1. DT_HASH has one chain entry for each symbol.
    2. The section of type SHT_DYNSYM, if it begins where DT_SYMTAB does.
    3. DT_GNU_HASH: its chains end with the last symbol.
    4. A file that exports nothing has an empty table there: the symbols that its relocations name.
    """
    if _DT_HASH in values:
        _buckets, chains = image.unpack(struct.Struct("<II"), image.offset_of(values[_DT_HASH]))
        return chains
    table = image.offset_of(values[_DT_SYMTAB])
    start, section_count = sections
    if start and start + section_count * _SECTION_HEADER.size <= image.size:
        for index in range(section_count):
            section = image.unpack(_SECTION_HEADER, start + index * _SECTION_HEADER.size)
            if section[1] == _SHT_DYNSYM and section[4] == table:
                return section[5] // _SYMBOL.size
    if _DT_GNU_HASH in values:
        offset, most = image.offset_of(values[_DT_GNU_HASH]), (image.size - table) // _SYMBOL.size
        return _count_by_gnu_hash(image, offset, most) or _count_by_relocations(image, values)
    raise ElfDamaged("neither a hash table nor a section tells the number of symbols")


def _count_by_gnu_hash(image: Image, offset: int, most: int) -> int:
    bucket_count, first, filter_words, _shift = image.unpack(struct.Struct("<IIII"), offset)
    buckets = image.bytes_at(offset + 16 + 8 * filter_words, 4 * bucket_count)
    last = max((bucket for (bucket,) in _WORD.iter_unpack(buckets)), default=0)
    if last < first:
        return 0
    chains = offset + 16 + 8 * filter_words + 4 * bucket_count
    while last < most:
        (chain,) = image.unpack(_WORD, chains + 4 * (last - first))
        last += 1
        if chain & 1:  # the mark of a chain's end
            return last
    raise ElfDamaged("the last chain of the hash table does not end within the file")


def _count_by_relocations(image: Image, values: dict[int, int]) -> int:
    last = 0  # the first one has no name
    for place, stated in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        size = values.get(stated, 0) // _RELOCATION.size * _RELOCATION.size
        if place in values and size:
            table = image.bytes_at(image.offset_of(values[place], size), size)
            for _offset, info, _addend in _RELOCATION.iter_unpack(table):
                last = max(last, info >> 32)
    return last + 1
