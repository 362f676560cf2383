"""ELF files are read as binutils and pyelftools read them, and damaged ones are refused without effort."""

from __future__ import annotations

import importlib
import io
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder import process
from builder.elf import (
    ElfFacts,
    ElfSymbols,
    UndefinedSymbol,
    VersionNeed,
    read_elf,
    read_elf_file,
    read_sections,
)
from builder.elf_image import ElfDamaged, HoleRead, refuse_holes
from tests.support.elf_judge import as_judged, judged
from tests.support.shared_objects import GCC, needs_gcc, shared_object

READELF = shutil.which("readelf")
NM = shutil.which("nm")

needs_binutils = pytest.mark.skipif(READELF is None or NM is None, reason="binutils are not installed")


def loaded_libraries() -> dict[str, Path]:
    """Shared objects of this process by file name: some extension modules, libc, and libpython where it is shared."""
    paths = []
    for name in ("_ctypes", "_ssl", "_hashlib", "_decimal", "_bisect", "_sqlite3"):
        try:
            paths.append(Path(getattr(importlib.import_module(name), "__file__", "")))
        except ImportError:
            continue
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}
    paths += sorted(path for path in mapped if path.name.startswith(("libc.so", "libc-", "libm.so", "libpython")))
    return {path.name: path for path in paths if path.suffix and path.is_file()}


LIBRARIES = loaded_libraries()
SMALLEST = min(LIBRARIES.values(), key=lambda path: path.stat().st_size)
SMALLEST_BYTES = SMALLEST.read_bytes()


def facts_of(path: Path) -> tuple[ElfFacts, ElfSymbols]:
    facts = read_elf_file(path, symbols=True)
    assert facts is not None
    assert facts.symbols is not None
    return facts, facts.symbols


def compile_library(folder: Path, source: str, *options: str) -> Path:
    path = folder / "library.c"
    path.write_text(source, encoding="ascii")
    library = folder / "library.so"
    done = process.run([str(GCC), "-shared", "-fPIC", "-nostdlib", "-o", str(library), str(path), *options])
    assert done.returncode == 0, done.stderr
    return library


# -- as binutils read them ------------------------------------------------------------------------------------------------------------


@needs_binutils
@pytest.mark.parametrize("name", LIBRARIES)
def test_dynamic_section_is_read_as_readelf_reads_it(name: str) -> None:
    facts, _symbols = facts_of(LIBRARIES[name])
    said = process.run([str(READELF), "-dW", str(LIBRARIES[name])], env={"LC_ALL": "C"}).stdout
    values = {tag: re.findall(rf"\({tag}\).*\[(.*)\]", said) for tag in ("NEEDED", "SONAME", "RPATH", "RUNPATH")}
    assert list(facts.needed) == values["NEEDED"]
    assert ([facts.soname] if facts.soname is not None else []) == values["SONAME"]
    assert ([facts.rpath] if facts.rpath is not None else []) == values["RPATH"]
    assert ([facts.runpath] if facts.runpath is not None else []) == values["RUNPATH"]


@needs_binutils
@pytest.mark.parametrize("name", LIBRARIES)
def test_symbols_are_read_as_nm_reads_them(name: str) -> None:
    _facts, symbols = facts_of(LIBRARIES[name])
    undefined, exported = set(), set()
    for line in process.run([str(NM), "-D", str(LIBRARIES[name])], env={"LC_ALL": "C"}).stdout.splitlines():
        kind, symbol = line.split()[-2:]
        if kind in "Uwv" and line.startswith(" "):
            undefined.add((symbol, kind != "U"))
        else:
            exported.add(symbol.partition("@")[0])
    ours = {(item.name + (f"@{item.version}" if item.version else ""), item.weak) for item in symbols.undefined}
    assert ours == undefined
    assert symbols.exported == exported


@needs_binutils
@pytest.mark.parametrize("name", LIBRARIES)
def test_version_needs_are_read_as_readelf_reads_them(name: str) -> None:
    facts, _symbols = facts_of(LIBRARIES[name])
    said = process.run([str(READELF), "-VW", str(LIBRARIES[name])], env={"LC_ALL": "C"}).stdout
    section = re.search(r"Version needs section.*?(?:\n\n|\Z)", said, re.DOTALL)
    expected: dict[str, list[str]] = {}
    versions: list[str] = []
    for line in section[0].splitlines() if section else []:
        if match := re.search(r"File: (\S+)", line):
            versions = expected.setdefault(match[1], [])
        elif match := re.search(r"Name: (\S+)", line):
            versions.append(match[1])
    assert {need.library: list(need.versions) for need in facts.version_needs} == expected


@pytest.mark.parametrize("name", LIBRARIES)
def test_undefined_symbol_with_a_version_names_the_library_that_it_is_expected_from(name: str) -> None:
    facts, symbols = facts_of(LIBRARIES[name])
    offered = {(need.library, version) for need in facts.version_needs for version in need.versions}
    asked = {(item.library, item.version) for item in symbols.undefined if item.version}
    assert asked <= offered
    assert {library for library, _version in asked} == {library for library, _version in offered}


@pytest.mark.parametrize("path", [*LIBRARIES.values()], ids=[*LIBRARIES])
def test_the_bytes_and_the_mapped_file_give_equal_facts_and_symbols_only_on_request(path: Path) -> None:
    assert read_elf(path.read_bytes(), symbols=True) == read_elf_file(path, symbols=True)
    facts = read_elf_file(path)
    assert facts is not None
    assert facts.symbols is None


@pytest.mark.parametrize("path", [*LIBRARIES.values()], ids=[*LIBRARIES])
def test_a_file_without_section_headers_gives_the_same_facts(path: Path) -> None:
    stripped = bytearray(path.read_bytes())
    struct.pack_into("<Q", stripped, 40, 0)
    struct.pack_into("<HH", stripped, 60, 0, 0)
    assert read_elf(stripped, symbols=True) == read_elf(path.read_bytes(), symbols=True)


@needs_gcc
@pytest.mark.parametrize("hash_style", ["sysv", "gnu", "both"])
def test_symbols_are_counted_by_either_hash_table(tmp_path: Path, hash_style: str) -> None:
    source = "int wanted(void); int __attribute__((weak)) optional(void); int offered(void) { return wanted() + optional(); }"
    library = compile_library(tmp_path, source, f"-Wl,--hash-style={hash_style}", "-Wl,-soname,libx.so.1")
    facts, symbols = facts_of(library)
    assert facts.soname == "libx.so.1"
    assert set(symbols.undefined) == {
        UndefinedSymbol("wanted", weak=False, version="", library=""),
        UndefinedSymbol("optional", weak=True, version="", library=""),
    }
    assert symbols.exported == {"offered"}


@needs_gcc
def test_symbols_of_a_file_that_exports_nothing_are_counted_by_its_section(tmp_path: Path) -> None:
    source = "int wanted(void); static int (*volatile kept)(void) = wanted;"
    source += "static __attribute__((constructor)) void run(void) { kept(); }"
    _facts, symbols = facts_of(compile_library(tmp_path, source, "-Wl,--hash-style=gnu"))
    assert [item.name for item in symbols.undefined] == ["wanted"]
    assert symbols.exported == frozenset()


@needs_gcc
def test_hidden_symbols_are_not_exported_and_defined_versions_are_listed(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.write_text("V1 { global: first; };\nV2 { global: second; local: *; } V1;\n", encoding="ascii")
    source = "int first(void) { return 1; } int second(void) { return 2; } int third(void) { return 3; }"
    facts, symbols = facts_of(compile_library(tmp_path, source, f"-Wl,--version-script={versions}"))
    assert facts.version_definitions == ("V1", "V2")
    assert symbols.exported == {"first", "second", "V1", "V2"}


# -- as pyelftools reads them ---------------------------------------------------------------------------------------------------------

MOST_JUDGED = 150
LARGEST_JUDGED_BYTES = 1_000_000


def libraries_of_this_machine() -> list[Path]:
    """Every tenth of the libraries that lie beside libc, the smaller ones."""
    folders = {path.parent for path in LIBRARIES.values() if path.name.startswith("libc")}
    found = {path.resolve() for folder in folders for path in folder.glob("*.so*")}
    small = sorted(path for path in found if path.is_file() and path.stat().st_size <= LARGEST_JUDGED_BYTES)
    return small[:: max(1, len(small) // MOST_JUDGED)]


def test_libraries_of_this_machine_are_read_as_pyelftools_reads_them() -> None:
    compared = 0
    for path in [*LIBRARIES.values(), *libraries_of_this_machine()]:
        facts = read_elf_file(path, symbols=True)
        if facts is None:
            continue  # a script of the linker, say
        with path.open("rb") as file:
            assert as_judged(facts) == judged(file), path
        compared += 1
    assert compared >= len(LIBRARIES)


OBJECTS: dict[str, dict[str, Any]] = {
    "nothing but a soname": {"soname": "libx.so.1"},
    "no soname": {"exports": ["offered"]},
    "rpath": {"needed": ["liba.so.1", "libb.so"], "rpath": "$ORIGIN/lib:/opt/lib"},
    "runpath": {"needed": ["liba.so.1"], "runpath": "$ORIGIN/../lib"},
    "symbols": {"exports": ["first", "second"], "hidden": ["third"], "undefined": ["wanted"], "weak": ["optional"]},
    "versions that it needs": {
        "needed": ["libc.so.6", "libx.so"],
        "undefined": ["memcpy@GLIBC_2.14@libc.so.6", "memmove@GLIBC_2.2.5@libc.so.6", "other@X_1@libx.so"],
        "weak": ["third@X_2@libx.so"],
    },
    "versions that it offers": {"exports": ["one@V1", "two@V2", "three@V1", "four"], "soname": "libv.so"},
    "a module": {"modules": ["_C"], "needed": ["libtorch.so"]},
    "a program": {"program": True, "undefined": ["wanted"]},
    "a static program at any address": {"options": ["-static-pie"], "program": True},
    "mangled names": {"exports": ["_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"], "undefined": ["$odd.name"]},
}


@needs_gcc
@pytest.mark.parametrize("name", OBJECTS)
def test_what_gcc_made_is_read_as_pyelftools_reads_it(name: str) -> None:
    content = shared_object(**OBJECTS[name])
    facts = read_elf(content, symbols=True)
    assert facts is not None
    assert as_judged(facts) == judged(io.BytesIO(content))


@needs_gcc
def test_facts_of_a_library_are_what_it_was_made_of() -> None:
    facts = read_elf(
        shared_object(
            soname="libx.so.1",
            needed=["libc.so.6", "libcudart.so.13"],
            runpath="$ORIGIN",
            exports=["one@V1", "two"],
            hidden=["three"],
            undefined=["cudaMalloc", "memcpy@GLIBC_2.14@libc.so.6"],
            weak=["maybe"],
        ),
        symbols=True,
    )
    assert facts is not None
    assert facts.symbols is not None
    assert (facts.soname, facts.needed) == ("libx.so.1", ("libc.so.6", "libcudart.so.13"))
    assert (facts.rpath, facts.runpath) == (None, "$ORIGIN")
    assert facts.version_needs == (VersionNeed(library="libc.so.6", versions=("GLIBC_2.14",)),)
    assert facts.version_definitions == ("V1",)
    assert set(facts.symbols.undefined) == {
        UndefinedSymbol("cudaMalloc", weak=False, version="", library=""),
        UndefinedSymbol("memcpy", weak=False, version="GLIBC_2.14", library="libc.so.6"),
        UndefinedSymbol("maybe", weak=True, version="", library=""),
    }
    assert facts.symbols.exported == {"one", "two", "V1"}
    assert (facts.program, facts.executable_stack) == (False, False)


@needs_gcc
@pytest.mark.parametrize(
    ("how", "program", "file_type"),
    [
        ({}, False, "shared"),
        ({"program": True}, True, "shared"),
        ({"options": ["-Wl,-z,pie"]}, False, "shared"),
        ({"options": ["-static-pie", "-Wl,--no-dynamic-linker"]}, True, "shared"),
        ({"options": ["-no-pie", "-static"]}, False, "executable"),
    ],
    ids=["a library", "with an interpreter", "a library still", "without an interpreter", "at a fixed address"],
)
def test_a_program_that_dlopen_refuses_is_no_library(how: dict[str, Any], *, program: bool, file_type: str) -> None:
    facts = read_elf(shared_object(**how))
    assert facts is not None
    assert (facts.program, facts.file_type) == (program, file_type)


@needs_gcc
@pytest.mark.parametrize(
    ("how", "machine", "expected"),
    [("executable", 62, True), ("plain", 62, False), ("silent", 62, True), ("silent", 183, False)],
)
def test_stack_is_executable_if_the_file_says_so_or_on_x86_64_says_nothing(
    how: str, machine: int, *, expected: bool
) -> None:
    content = bytearray(shared_object(executable_stack=how == "executable", machine=machine))
    if how == "silent":
        stack = struct.pack("<I", 0x6474E551)
        place = content.index(stack, 64)
        content[place : place + 4] = struct.pack("<I", 0x60000000)  # a kind that nobody knows
    facts = read_elf(content)
    assert facts is not None
    assert facts.executable_stack is expected


@needs_gcc
def test_sections_are_listed_with_their_place() -> None:
    content = shared_object(sections={".mine": b"some content"}, fatbins=[b"payload"])
    found = {name: content[offset : offset + size] for name, offset, size in read_sections(content)}
    assert (found[".mine"], found[".nv_fatbin"]) == (b"some content", b"payload\0")
    assert ".dynamic" in found
    assert ".bss" not in found


def test_sections_of_a_file_without_a_table_are_none() -> None:
    assert read_sections(crafted([])) == ()


# -- parts that were left out ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "size", "refused"),
    [(0, 10, False), (0, 11, True), (10, 1, True), (19, 1, True), (20, 10, False), (25, 6, True), (35, 100, False)],
)
def test_bytes_in_a_hole_are_refused(offset: int, size: int, *, refused: bool) -> None:
    holes = [(10, 20), (30, 35)]
    if refused:
        with pytest.raises(HoleRead):
            refuse_holes(holes, offset, size)
    else:
        refuse_holes(holes, offset, size)


@settings(max_examples=300)
@given(
    edges=st.lists(st.integers(4, len(SMALLEST_BYTES)), min_size=2, max_size=8, unique=True).map(sorted),
    symbols=st.booleans(),
)
def test_a_file_with_holes_gives_the_same_facts_or_says_that_one_was_read(edges: list[int], *, symbols: bool) -> None:
    holes = list(zip(edges[::2], edges[1::2], strict=False))
    content = bytearray(SMALLEST_BYTES)
    for start, end in holes:
        content[start:end] = bytes(end - start)
    try:
        facts = read_elf(content, symbols=symbols, holes=holes)
    except HoleRead:
        return
    assert facts == read_elf(SMALLEST_BYTES, symbols=symbols)


# -- what is not such a file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\x7fEL", b"#!/bin/sh\n", b"PK\x03\x04" + bytes(100)])
def test_a_file_that_is_not_elf_gives_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libnotelf.so"
    path.write_bytes(content)
    assert read_elf_file(path) is None
    assert read_elf(content) is None


@pytest.mark.parametrize(
    ("elf_class", "byte_order", "machine", "expected"),
    [(1, 1, 3, (32, True, "i386")), (2, 2, 21, (64, False, "ppc64")), (1, 2, 999, (32, False, "machine-999"))],
)
def test_of_other_classes_only_the_head_is_read(
    elf_class: int, byte_order: int, machine: int, expected: tuple[int, bool, str]
) -> None:
    head = b"\x7fELF" + bytes([elf_class, byte_order]) + bytes(10)
    facts = read_elf(head + struct.pack("<HH" if byte_order == 1 else ">HH", 3, machine), symbols=True)
    assert facts is not None
    assert (facts.bits, facts.little_endian, facts.machine) == expected
    assert (facts.complete, facts.file_type, facts.symbols) == (False, "shared", None)


def test_a_cubin_has_its_flags_and_no_dynamic_section() -> None:
    facts = read_elf(crafted([], program_headers=False, machine=190, e_flags=0x5A055A), symbols=True)
    assert facts is not None
    assert (facts.machine, facts.e_flags, facts.dynamic, facts.symbols) == ("cuda", 0x5A055A, False, None)


# -- hostile files --------------------------------------------------------------------------------------------------------------------

STRTAB, SYMTAB, STRSZ, SONAME, NEEDED, HASH, GNU_HASH = 5, 6, 10, 14, 1, 4, 0x6FFFFEF5
VERNEED, VERNEEDNUM, VERDEF, VERDEFNUM = 0x6FFFFFFE, 0x6FFFFFFF, 0x6FFFFFFC, 0x6FFFFFFD
BODY = 0x200


def crafted(
    dynamic: list[tuple[int, int]],
    body: bytes = b"",
    *,
    program_headers: bool = True,
    machine: int = 62,
    e_flags: int = 0,
    program_header_size: int = 56,
) -> bytes:
    """An ELF file with one segment for the whole file (address = offset), a dynamic section, and `body` at `BODY`."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    count = 2 if program_headers else 0
    header = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, e_flags, 64, program_header_size, count, 0, 0, 0)
    size = BODY + len(body)
    table = b"".join(struct.pack("<QQ", tag, value) for tag, value in [*dynamic, (0, 0)])
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 0x1000)
    section = struct.pack("<IIQQQQQQ", 2, 4, 176, 176, 176, len(table), len(table), 8)
    return (ident + header + load + section + table).ljust(BODY, b"\0") + body


def strings(content: bytes, offset: int = BODY) -> list[tuple[int, int]]:
    return [(STRTAB, offset), (STRSZ, len(content))]


def test_dynamic_section_is_read_at_its_address_up_to_its_end() -> None:
    """As `ld.so` reads it: what the program header says of its offset and size counts for nothing."""
    body = b"\0libcuda.so.1\0"
    content = bytearray(crafted([(NEEDED, 1), *strings(body)], body))
    second_header = 64 + 56
    struct.pack_into("<Q", content, second_header + 8, 8)
    struct.pack_into("<QQ", content, second_header + 32, 0, 0)
    facts = read_elf(content)
    assert facts is not None
    assert facts.needed == ("libcuda.so.1",)


def test_version_that_is_weak_in_one_place_only_is_not_weak() -> None:
    text = b"\0libc.so.6\0GLIBC_2.34\0"
    need = struct.pack("<HHIII", 1, 2, 1, 16, 0)
    need += struct.pack("<IHHII", 0, 2, 2, 11, 16) + struct.pack("<IHHII", 0, 0, 3, 11, 0)
    facts = read_elf(crafted([(VERNEED, BODY + len(text)), (VERNEEDNUM, 1), *strings(text)], text + need))
    assert facts is not None
    assert facts.version_needs == (VersionNeed(library="libc.so.6", versions=("GLIBC_2.34", "GLIBC_2.34")),)


@needs_gcc
def test_symbols_of_a_file_that_exports_nothing_are_counted_by_its_relocations_without_sections() -> None:
    content = bytearray(shared_object(undefined=["one", "two"], weak=["three"], options=["-Wl,--hash-style=gnu"]))
    struct.pack_into("<Q", content, 40, 0)
    struct.pack_into("<HH", content, 60, 0, 0)
    facts = read_elf(content, symbols=True)
    assert facts is not None
    assert facts.symbols is not None
    assert {symbol.name for symbol in facts.symbols.undefined} == {"one", "two", "three"}


def test_a_crafted_file_is_read() -> None:
    body = b"\0libcuda.so.1\0libme.so\0"
    facts = read_elf(crafted([(NEEDED, 1), (SONAME, 14), *strings(body)], body), symbols=True)
    assert facts is not None
    assert (facts.needed, facts.soname, facts.machine) == (("libcuda.so.1",), "libme.so", "x86_64")


def symbol_table(count: int, name_offset: int) -> bytes:
    return struct.pack("<IBBHQQ", name_offset, 0x10, 0, 0, 0, 0) * count


LONG = b"\0" + b"a" * 60_000 + b"\0"
ENDLESS_CHAIN = struct.pack("<IIIIQI", 1, 1, 1, 0, 0, 1) + bytes(64)
SHARED_NEEDS = b"".join(struct.pack("<HHIII", 1, 0x8000, 0, 48 - 16 * number, 16) for number in range(3))
SHARED_NEEDS += struct.pack("<IHHII", 0, 0, 2, 0, 16) * 0x8000
ENDLESS_DYNAMIC = [(21, 0)] * 70_000
DEFINITIONS = struct.pack("<HHHHIIIII", 1, 1, 1, 1, 0, 20, 28, 0, 0) * 70_000

DAMAGED = {
    "a head that ends early": (b"\x7fELF\x02\x01", "lie outside the file"),
    "a class that does not exist": (b"\x7fELF\x03\x01" + bytes(60), "class 3"),
    "program headers of another size": (crafted([], program_header_size=32), "program header has 32 bytes"),
    "program headers outside the file": (crafted([])[:100], "lie outside the file"),
    "a dynamic section that does not end": (
        crafted(ENDLESS_DYNAMIC, bytes(1 << 21)),
        "does not end after 65536 entries",
    ),
    "a dynamic section at no address": (crafted([])[:136] + b"\xff" * 8 + crafted([])[144:], "no loaded segment"),
    "no string table": (crafted([(NEEDED, 1)]), "no string table"),
    "a string table at no address": (crafted([(STRTAB, 1 << 60), (STRSZ, 4)]), "no loaded segment"),
    "a string table larger than the file": (crafted([(STRTAB, BODY), (STRSZ, 1 << 63)], b"\0"), "reach beyond the"),
    "a string that does not end": (crafted([(NEEDED, 1), *strings(b"\0abc")], b"\0abc"), "no string ends"),
    "a string outside its table": (crafted([(NEEDED, 1 << 62), *strings(b"\0")], b"\0"), "no string ends"),
    "symbols of an unknown number": (crafted([(SYMTAB, BODY), *strings(b"\0")], b"\0"), "number of symbols"),
    "more symbols than bytes": (
        crafted([(SYMTAB, BODY), (HASH, BODY), *strings(b"\0")], struct.pack("<II", 1, 0x100000)),
        "reach beyond the",
    ),
    "more symbols than any file has": (
        crafted([(SYMTAB, BODY), (HASH, BODY), *strings(b"\0")], struct.pack("<II", 1, 0xFFFFFFFF)),
        "at most 2097152 are read",
    ),
    "a hash chain without an end": (
        crafted([(SYMTAB, BODY), (GNU_HASH, BODY), *strings(b"\0")], ENDLESS_CHAIN),
        "does not end within the file",
    ),
    "names that overlap without measure": (
        crafted(
            [(SYMTAB, BODY + len(LONG) + 8), (HASH, BODY + len(LONG)), *strings(LONG)],
            LONG + struct.pack("<II", 1, 100) + symbol_table(100, 1),
        ),
        "far longer than their string table",
    ),
    "version needs that overlap": (
        crafted([(VERNEED, BODY + 1), (VERNEEDNUM, 3), *strings(b"\0")], b"\0" + SHARED_NEEDS),
        "more symbol versions than",
    ),
    "version definitions without measure": (
        crafted([(VERDEF, BODY + 1), (VERDEFNUM, 1 << 60), *strings(b"\0")], b"\0" + DEFINITIONS),
        "more symbol versions than",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused(name: str) -> None:
    content, message = DAMAGED[name]
    with pytest.raises(ElfDamaged, match=message):
        read_elf(content, symbols=True)


def test_version_needs_end_with_their_chain_whatever_their_number_says() -> None:
    text = b"\0libc.so.6\0GLIBC_2.34\0"
    need = struct.pack("<HHIII", 1, 1, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 2, 11, 0)
    dynamic = [(VERNEED, BODY + len(text)), (VERNEEDNUM, 1 << 60), *strings(text)]
    facts = read_elf(crafted(dynamic, text + need))
    assert facts is not None
    assert facts.version_needs == (VersionNeed(library="libc.so.6", versions=("GLIBC_2.34",)),)


def test_names_that_are_no_utf8_can_be_printed() -> None:
    body = b"\0lib\xff\xed\xa0\x80.so\0"
    facts = read_elf(crafted([(NEEDED, 1), *strings(body)], body))
    assert facts is not None
    assert facts.needed == ("lib\\xff\\xed\\xa0\\x80.so",)


edits = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 0x400), st.integers(0, len(SMALLEST_BYTES) - 1)),
        st.one_of(
            st.sampled_from([b"\0", b"\xff", b"\xff" * 8, b"\0" * 8, b"\x01"]), st.binary(min_size=1, max_size=8)
        ),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(edits=edits, keep=st.one_of(st.none(), st.integers(4, len(SMALLEST_BYTES))))
def test_a_mutated_library_gives_facts_or_says_that_it_is_damaged(
    edits: list[tuple[int, bytes]], keep: int | None
) -> None:
    mutated = bytearray(SMALLEST_BYTES[:keep])
    for offset, value in edits:
        if offset >= 4:
            mutated[offset : offset + len(value)] = value
    try:
        facts = read_elf(mutated, symbols=True)
    except ElfDamaged:
        return
    assert facts is not None
