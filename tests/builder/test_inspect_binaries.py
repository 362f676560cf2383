"""The binaries of a wheel: found by their bytes, read as the linker would, whatever they pretend."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder import sparse
from builder.agent.archive import Member
from builder.agent.unpack import read_wheel
from builder.binary_facts import merged_facts
from builder.elf import read_elf
from builder.elf_image import HoleRead
from builder.inspect_binaries import BinaryInspector
from builder.sparse import SparseImage
from envspec.binaries import (
    Assembler,
    Binary,
    BinaryFacts,
    CubinCount,
    GpuCode,
    Label,
    Reference,
    VersionNeed,
    binary_facts_from_json,
    binary_facts_to_json,
)
from tests.support.fatbins import Code, cubin, fatbin
from tests.support.shared_objects import needs_gcc, shared_object
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

pytestmark = needs_gcc

SITE = "lib/python3.12/site-packages"
LARGE = bytes(9000)
"""A payload that is left out while a file is read."""


def inspected(directory: Path, files: Mapping[str, bytes | str], **more: Any) -> BinaryFacts:
    """The facts of a wheel with these files."""
    wheel = make_wheel(directory, "demo", "1.0", files, **more)
    inspector = BinaryInspector("3.12")
    read_wheel(wheel, wheel.name, "3.12", watch=inspector.watch)
    return inspector.finish(wheel)


def one(directory: Path, content: bytes, path: str = "demo/libdemo.so") -> Binary:
    (binary,) = inspected(directory, {path: content}).binaries
    return binary


def watched(
    content: bytes, path: str = f"{SITE}/demo/x", cuts: Sequence[int] = ()
) -> tuple[BinaryInspector, list[bytes]]:
    """An inspector past which one file went in pieces, and what it passed on."""
    inspector = BinaryInspector("3.12")
    member = Member(path, len(content), len(content), 0, deflated=False, executable=False, symlink=False, crc=0)
    edges = [0, *cuts, len(content)]
    pieces = [content[start:end] for start, end in pairwise(edges)]
    return inspector, list(inspector.watch(member, path, iter(pieces)))


def facts_of(inspector: BinaryInspector, directory: Path) -> BinaryFacts:
    return inspector.finish(directory / "is-not-read")


# -- what the linker reads ------------------------------------------------------------------------------------------------------------


def test_facts_of_a_library(tmp_path: Path) -> None:
    binary = one(
        tmp_path,
        shared_object(
            soname="libdemo.so.1",
            needed=["libcudart.so.13", "libc.so.6"],
            runpath="$ORIGIN/../lib",
            exports=["b", "a@DEMO_1"],
            hidden=["c"],
            modules=["_C"],
            undefined=["zeta", "cudaMalloc", "memcpy@GLIBC_2.14@libc.so.6"],
            weak=["maybe"],
            fatbins=[fatbin("sm_90a", "compute_120"), fatbin("sm_80"), fatbin("compute_120", "sm_90a")],
        ),
    )
    assert binary == Binary(
        path=f"{SITE}/demo/libdemo.so",
        machine="x86_64",
        kind="shared",
        soname="libdemo.so.1",
        needed=("libcudart.so.13", "libc.so.6"),
        runpath="$ORIGIN/../lib",
        version_needs=(VersionNeed("libc.so.6", ("GLIBC_2.14",)),),
        version_definitions=("DEMO_1",),
        undefined=(
            Reference("cudaMalloc", weak=False, version="", library=""),
            Reference("zeta", weak=False, version="", library=""),
            Reference("memcpy", weak=False, version="GLIBC_2.14", library="libc.so.6"),
            Reference("maybe", weak=True, version="", library=""),
        ),
        exports="DEMO_1\nPyInit__C\na\nb",
        gpu=GpuCode(fatbins=((("compute_120", "sm_90a"), 2), (("sm_80",), 1)), releases=("13.0.88",)),
    )
    assert binary.is_loadable


def test_rpath_program_stack_and_machine_are_told(tmp_path: Path) -> None:
    assert one(tmp_path, shared_object(rpath="/opt/lib")).rpath == "/opt/lib"
    program = one(tmp_path, shared_object(program=True, executable_stack=True))
    assert (program.program, program.executable_stack, program.is_loadable) == (True, True, False)
    assert one(tmp_path, shared_object(machine=183)).machine == "aarch64"


def test_binaries_are_sorted_by_path_wherever_the_wheel_has_them(tmp_path: Path) -> None:
    content = shared_object()
    facts = inspected(tmp_path, {"z/b.so": content, "a/c.so": content}, data={"data/lib/x.so": content})
    assert [binary.path for binary in facts.binaries] == [f"{SITE}/a/c.so", f"{SITE}/z/b.so", "lib/x.so"]


@pytest.mark.parametrize("name", ["ptxas", "lib.so.13", "x.py", "version.py", "x.cubin", "data.json", "a b", "x.pth"])
def test_a_binary_is_found_whatever_its_name(tmp_path: Path, name: str) -> None:
    assert one(tmp_path, shared_object(soname="libx.so"), f"demo/{name}").soname == "libx.so"


def test_a_program_among_the_scripts_of_a_wheel_is_found(tmp_path: Path) -> None:
    facts = inspected(tmp_path, {}, data={"scripts/tool": shared_object(needed=["libc.so.6"], program=True)})
    assert [(binary.path, binary.needed) for binary in facts.binaries] == [("bin/tool", ("libc.so.6",))]


@pytest.mark.parametrize("content", [b"", b"\x7f", b"\x7fEL", b"#!/bin/sh\n", b"\0\x7fELF", b"print('hello')\n"])
def test_what_is_no_elf_file_is_no_binary(tmp_path: Path, content: bytes) -> None:
    assert inspected(tmp_path, {"demo/x.so": content}) == BinaryFacts()


def test_other_classes_are_named_by_their_machine(tmp_path: Path) -> None:
    head = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HH", 3, 3)
    binary = one(tmp_path, head.ljust(100, b"\0"))
    assert (binary.machine, binary.kind, binary.damage, binary.needed) == ("i386", "shared", "", ())


def test_a_version_that_the_linker_only_warns_of_is_no_need(tmp_path: Path) -> None:
    content = shared_object(needed=["libc.so.6"], undefined=["a@GLIBC_2.17@libc.so.6"], weak=["b@GLIBC_2.38@libc.so.6"])
    weak = content.replace(entry_of(content, "GLIBC_2.38", flags=0), entry_of(content, "GLIBC_2.38", flags=2))
    for each in (content, weak):
        (need,) = one(tmp_path, each).version_needs
        assert set(need.versions) <= {"GLIBC_2.17", "GLIBC_2.38"}
    assert one(tmp_path, weak).version_needs == (VersionNeed("libc.so.6", ("GLIBC_2.17",)),)


def entry_of(content: bytes, version: str, *, flags: int) -> bytes:
    """Hash and flags of a version, as an entry of the version needs begins."""
    value = 0
    for character in version.encode():
        value = (value << 4) + character
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    assert struct.pack("<I", value) in content
    return struct.pack("<IH", value, flags)


# -- damage ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF", "lie outside the file"),
        (b"\x7fELF\x09\x01" + bytes(100), "class 9"),
        (b"\x7fELF\x02\x01" + bytes(40), "lie outside the file"),
    ],
)
def test_a_binary_that_cannot_be_read_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    facts = inspected(tmp_path, {"demo/x.so": content})
    (binary,) = facts.binaries
    assert (binary.path, binary.machine, binary.kind) == (f"{SITE}/demo/x.so", "", "")
    assert message in binary.damage
    assert binary_facts_from_json(binary_facts_to_json(facts)) == facts


def test_a_binary_with_too_much_beside_gpu_code_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MOST_BYTES", 1 << 16)
    large = shared_object() + bytes(1 << 17)
    facts = inspected(tmp_path, {"demo/a.so": large, "demo/b.so": shared_object(soname="libb.so")})
    assert facts.binaries[0].damage == "has more than 65536 bytes beside GPU code"
    assert facts.binaries[1].soname == "libb.so"


def test_a_binary_that_cannot_be_kept_whole_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = hiding(".rodata.fake", "end")
    monkeypatch.setattr(sparse, "MOST_BYTES", len(content) - 1)
    assert f"has {len(content)} bytes, at most" in one(tmp_path, content).damage


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (fatbin("sm_90", stated_size=1 << 50), "ends beyond its section"),
        (fatbin(Code("sm_90", stated_size=1 << 50)), "ends beyond"),
        (fatbin(*[Code(f"sm_{number}", payload=b"") for number in range(100, 400)]), "301 targets in 2 different sets"),
    ],
    ids=["fatbin", "entry", "targets"],
)
def test_damaged_gpu_code_leaves_the_rest_readable(tmp_path: Path, code: bytes, message: str) -> None:
    binary = one(tmp_path, shared_object(soname="libx.so", needed=["libc.so.6"], fatbins=[fatbin("sm_80"), code]))
    assert binary.damage.startswith("its GPU code cannot be read: ")
    assert message in binary.damage
    assert (binary.soname, binary.needed, binary.gpu) == ("libx.so", ("libc.so.6",), None)


def test_more_sets_of_targets_than_any_compiler_makes_are_refused(tmp_path: Path) -> None:
    names = [f"sm_{number}" for number in range(13)]
    sets = [[name for bit, name in enumerate(names) if chosen >> bit & 1] for chosen in range(1, 1 << 13)]
    code = b"".join(fatbin(*[Code(name, payload=b"") for name in each]) for each in sets)
    assert "4097 different sets" in one(tmp_path, shared_object(fatbins=[code])).damage


def test_a_damaged_section_table_leaves_what_the_linker_reads(tmp_path: Path) -> None:
    content = bytearray(shared_object(soname="libx.so"))
    struct.pack_into("<Q", content, 40, len(content) - 10)
    binary = one(tmp_path, bytes(content))
    assert (binary.soname, binary.damage[:28]) == ("libx.so", "its GPU code cannot be read:")


# -- GPU code -------------------------------------------------------------------------------------------------------------------------


def test_only_code_that_the_driver_loads_counts(tmp_path: Path) -> None:
    content = shared_object(sections={"__nv_relfatbin": fatbin("sm_75")}, fatbins=[fatbin("sm_90")])
    assert one(tmp_path, content).gpu == GpuCode(fatbins=((("sm_90",), 1),), releases=("13.0.88",))
    assert one(tmp_path, shared_object(sections={"__nv_relfatbin": fatbin("sm_75")})).gpu is None


def test_code_of_an_object_file_does_not_count(tmp_path: Path) -> None:
    content = bytearray(shared_object(fatbins=[fatbin("sm_90")]))
    struct.pack_into("<H", content, 16, 1)
    assert one(tmp_path, bytes(content)).gpu is None


def test_codes_are_sorted_by_kind_number_and_suffix(tmp_path: Path) -> None:
    names = ["sm_120a", "sm_90a", "sm_100f", "compute_90", "sm_90", "sm_100", "compute_120"]
    gpu = one(tmp_path, shared_object(fatbins=[fatbin(*names)])).gpu
    assert gpu is not None
    order = ("compute_90", "compute_120", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_120a")
    assert gpu.fatbins == ((order, 1),)


def test_releases_are_those_of_the_smallest_cubin_of_each_code(tmp_path: Path) -> None:
    content = shared_object(
        fatbins=[
            fatbin(
                Code("sm_90", release="12.8.93", padding=20_000),
                Code("sm_90", release="13.0.88", padding=10_000),
                Code("sm_100", release="13.1.9", padding=50_000, compression="zstd"),
                Code("sm_75", release="", padding=10_000),
                Code("compute_90", payload=LARGE),
            )
        ]
    )
    gpu = one(tmp_path, content).gpu
    assert gpu is not None
    assert gpu.releases == ("13.0.88", "13.1.9")


def test_releases_are_the_same_where_a_smaller_cubin_lies_outside_of_what_is_loaded(tmp_path: Path) -> None:
    small, large = Code("sm_90", release="12.8.93", padding=8000), Code("sm_90", release="13.0.88", padding=9000)
    gpu = one(tmp_path, shared_object(sections={".a_relfatbin": fatbin(small)}, fatbins=[fatbin(large)])).gpu
    assert gpu == GpuCode(fatbins=((("sm_90",), 1),), releases=("13.0.88",))


# -- raw cubins -----------------------------------------------------------------------------------------------------------------------


def test_raw_cubins_are_counted_by_target(tmp_path: Path) -> None:
    facts = inspected(
        tmp_path,
        {
            "demo/a_sm100f.cubin": cubin("sm_100"),
            "demo/b_Sm_100f.cubin": cubin("sm_100", release="12.9.86"),
            "demo/c_sm103a_x.bin": cubin("sm_103"),
            "demo/sm_90/d.cubin": cubin("sm_90", abi=7, release=""),
            "demo/e_sm100ab.cubin": cubin("sm_100"),
        },
    )
    assert facts.binaries == ()
    assert facts.cubins == (
        CubinCount("sm_100", 1),
        CubinCount("sm_100f", 2),
        CubinCount("sm_103a", 1),
        CubinCount("sm_90", 1),
    )
    assert facts.releases == ("12.9.86", "13.0.88")


def test_a_cubin_of_32_bits_is_a_binary(tmp_path: Path) -> None:
    content = bytearray(cubin("sm_90"))
    content[4] = 1
    assert one(tmp_path, bytes(content)).machine == "cuda"


# -- in any pieces --------------------------------------------------------------------------------------------------------------------

PASSING = ("library", "cubin", "text", "damaged", "short")


@cache
def passing() -> dict[str, bytes]:
    code = fatbin(Code("sm_90", payload=LARGE), "sm_80")
    return {
        "library": shared_object(soname="libx.so", exports=["a"], fatbins=[code]),
        "cubin": cubin("sm_100", padding=70_000),
        "text": b"x" * 70_000,
        "damaged": b"\x7fELF\x02\x01" + bytes(60),
        "short": b"\x7fE",
    }


@settings(max_examples=60)
@given(name=st.sampled_from(PASSING), data=st.data())
def test_content_passes_on_unchanged_and_gives_the_same_facts_in_any_pieces(name: str, data: st.DataObject) -> None:
    content = passing()[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, min(len(content), 300)), max_size=8), label="cuts"))
    whole, _ = watched(content)
    inspector, passed = watched(content, cuts=cuts)
    assert b"".join(passed) == content
    assert merged_facts(inspector._found) == merged_facts(whole._found)
    assert inspector._again == []


@pytest.mark.parametrize("first", range(70))
def test_a_first_piece_of_any_size_hides_no_binary(tmp_path: Path, first: int) -> None:
    """Empty blocks of deflate make it as short as a wheel wants it."""
    inspector, _ = watched(passing()["library"], cuts=[first])
    (binary,) = facts_of(inspector, tmp_path).binaries
    assert binary.soname == "libx.so"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_facts_do_not_depend_on_the_compression(tmp_path: Path, compression: int) -> None:
    files = {f"demo/{name}.so": content for name, content in passing().items()}
    facts = inspected(tmp_path, files, compression=compression)
    assert [binary.soname for binary in facts.binaries] == ["", "libx.so"]
    assert facts.cubins == (CubinCount("sm_100", 1),)


def test_what_is_read_is_what_is_hashed(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {f"demo/{name}": content for name, content in passing().items()})
    tree = read_wheel(wheel, wheel.name, "3.12", watch=BinaryInspector("3.12").watch)
    assert tree.digest == read_wheel(wheel, wheel.name, "3.12").digest
    assert tree.members["demo/library"][0] == hashlib.sha256(passing()["library"]).hexdigest()


# -- fake GPU code --------------------------------------------------------------------------------------------------------------------


REAL = fatbin(Code("sm_90a", padding=9000), Code("compute_120", payload=LARGE))
FAKE = fatbin(Code("compute_90", payload=b""))
"""What claims all that follows it as the payload of its only entry."""


def library(fake: bytes, section: str) -> bytes:
    """A library with a fatbin that is to become a fake one."""
    return shared_object(
        soname="libx.so.1",
        needed=["libcudart.so.13"],
        runpath="$ORIGIN",
        exports=["offered"],
        undefined=["cudaMalloc"],
        sections={section: fake} if section != ".nv_fatbin" else None,
        fatbins=[fake, REAL] if section == ".nv_fatbin" else [REAL],
    )


def stretched(content: bytes, end: int) -> bytes:
    """The same file with the fake fatbin claiming everything up to a place."""
    place = content.index(FAKE)
    body = end // 8 * 8 - place - 16
    header = content[place : place + 8] + struct.pack("<Q", body)
    entry = content[place + 16 : place + 24] + struct.pack("<Q", body - 80)
    return content[:place] + header + entry + content[place + 32 :]


def dynamic_offset(content: bytes) -> int:
    """Where the dynamic section lies in the file, as its program header says."""
    return int(struct.unpack_from("<Q", content, content.index(struct.pack("<II", 2, 6), 64) + 8)[0])


def hiding(section: str, until: str) -> bytes:
    content = library(FAKE, section)
    return stretched(content, len(content) if until == "end" else dynamic_offset(content) + 24)


@pytest.mark.parametrize("until", ["end", "within"])
@pytest.mark.parametrize("section", [".rodata.fake", ".nv_fatbin"])
def test_tables_inside_of_a_fake_fatbin_are_read_all_the_same(tmp_path: Path, section: str, until: str) -> None:
    content = hiding(section, until)
    with SparseImage(len(content)) as image:
        image.feed(content)
        image.finish()
        assert any(start <= dynamic_offset(content) < end for start, end in image.holes)
        with pytest.raises(HoleRead):
            read_elf(image.buffer, holes=image.holes)
    binary = one(tmp_path, content)
    expected = one(tmp_path / "plain", library(FAKE, section))
    assert expected.gpu is not None
    if section == ".nv_fatbin":  # the lie shows there, with and without holes
        assert "ends beyond its section" in binary.damage
        assert replace(binary, damage="") == replace(expected, gpu=None)
    else:
        assert binary == expected


@settings(max_examples=100)
@given(st.data())
def test_a_fake_fatbin_of_any_size_changes_nothing(data: st.DataObject) -> None:
    content = library(FAKE, ".a_fake")
    end = data.draw(st.integers(content.index(FAKE) + len(FAKE), len(content)), label="end")
    inspector, _ = watched(stretched(content, end))
    if inspector._again:
        (again,) = inspector._again
        for _ in inspector._imaged(*again, iter([stretched(content, end)]), keep_all=True):
            pass
    plain, _ = watched(content)
    assert merged_facts(inspector._found) == merged_facts(plain._found)


def test_code_inside_of_a_fake_fatbin_is_listed_all_the_same(tmp_path: Path) -> None:
    """The linker's tables are in sight; only the beginning of the section with the GPU code is not."""
    content = library(FAKE, ".a_fake")
    content = stretched(content, content.index(REAL) + 5000)
    with SparseImage(len(content)) as image:
        image.feed(content)
        image.finish()
        assert read_elf(image.buffer, symbols=True, holes=image.holes) == read_elf(content, symbols=True)
    gpu = one(tmp_path, content).gpu
    assert gpu == GpuCode(fatbins=((("compute_120", "sm_90a"), 1),), releases=("13.0.88",))


# -- assemblers, labels, the driver's functions ---------------------------------------------------------------------------------------

TARGETS = b"\0compute_90\0lto_90a\0compute_120\0lto_100f\0lto_1\0xlto_80\0sm_11\0sm_90\0"
NOTE = b"Cuda compilation tools, release 12.8, V12.8.93\0"


@pytest.mark.parametrize("name", ["ptxas", "ptxas-blackwell"])
def test_an_assembler_says_its_release_and_its_targets(tmp_path: Path, name: str) -> None:
    content = shared_object(program=True, sections={".rodata.x": TARGETS + NOTE})
    facts = inspected(tmp_path, {f"demo/bin/{name}": content})
    path = f"{SITE}/demo/bin/{name}"
    assert facts.assemblers == (Assembler(path, "12.8.93", ("sm_90", "sm_90a", "sm_100f", "sm_120")),)
    assert facts.binaries[0].path == path


@pytest.mark.parametrize(("name", "program"), [("ptxas", False), ("fatbinary", True), ("ptxas2", True)])
def test_only_a_program_of_that_name_is_an_assembler(tmp_path: Path, name: str, *, program: bool) -> None:
    content = shared_object(program=program, sections={".rodata.x": TARGETS + NOTE})
    assert inspected(tmp_path, {f"demo/{name}": content}).assemblers == ()


def test_targets_of_an_assembler_cannot_hide_in_a_fake_fatbin(tmp_path: Path) -> None:
    fake = fatbin(Code("compute_90", payload=LARGE + TARGETS + NOTE + bytes(7)))
    content = shared_object(program=True, sections={".rodata.x": fake})
    (assembler,) = inspected(tmp_path, {"demo/ptxas": content}).assemblers
    assert (assembler.release, assembler.codes) == ("12.8.93", ("sm_90", "sm_90a", "sm_100f", "sm_120"))


def test_labels_are_texts_that_a_version_module_assigns(tmp_path: Path) -> None:
    source = """
from typing import Optional
__version__ = version = '2.11.0+cu130'
cuda: Optional[str] = '13.0'
hip: Optional[str] = None
debug = False
git_version = "70d99e99" + "8"
cpu: str
if True:
    inner = 'x'
a.b = 'no name'
"""
    facts = inspected(tmp_path, {"torch/version.py": source, "torch/other.py": source, "torch/sub/version.py": source})
    assert facts.labels == (
        Label("torch/version.py", "__version__", "2.11.0+cu130"),
        Label("torch/version.py", "cuda", "13.0"),
        Label("torch/version.py", "version", "2.11.0+cu130"),
    )


@pytest.mark.parametrize("name", ["_version.py", "__version__.py"])
def test_labels_stand_in_modules_of_these_names(tmp_path: Path, name: str) -> None:
    assert inspected(tmp_path, {f"demo/{name}": "v = '1'"}).labels == (Label(f"demo/{name}", "v", "1"),)


@pytest.mark.parametrize(
    "source",
    [
        b"this is no python",
        b"v = '1'\n\0",
        b"# coding: nowhere\nv = '1'\n",
        b"v = '\xff'\n",
        b"v = '1'\n" + b" " * (1 << 16),
        b"v = '1'\nx = " + b"-" * 60_000 + b"1\n",
        b"v = '1'\nx = a" + b".a" * 30_000 + b"\n",
        b"v = '1'\nx = " + b"(" * 60_000,
        b"v = '1'\nx = " + b"9" * 60_000,
    ],
    ids=["syntax", "null", "coding", "utf-8", "too large", "signs", "attributes", "brackets", "digits"],
)
def test_a_module_that_cannot_be_read_has_no_labels(tmp_path: Path, source: bytes) -> None:
    assert inspected(tmp_path, {"demo/version.py": source}).labels == ()


def test_a_label_can_be_printed_whatever_it_holds(tmp_path: Path) -> None:
    (label,) = inspected(tmp_path, {"demo/version.py": "v = '\\ud800'"}).labels
    assert label.value == "\\ud800"


def test_nothing_of_a_version_module_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    facts = inspected(tmp_path, {"demo/version.py": f"v = '1'\nopen({str(mark)!r}, 'w')\n"})
    assert facts.labels == (Label("demo/version.py", "v", "1"),)
    assert not mark.exists()


def test_functions_of_the_driver_are_read_from_its_typedefs(tmp_path: Path) -> None:
    header = """
    typedef CUresult (CUDAAPI *PFN_cuGetErrorString_v6000)(CUresult error, const char **pStr);
    typedef CUresult (CUDAAPI *PFN_cuMemcpy_v7000_ptds)(int);
    typedef CUresult (CUDAAPI *PFN_cuMemcpy_v4000)(int);
    #define PFN_cuGetErrorString  PFN_cuGetErrorString_v6000
    #define PFN_cuCtxCreate  PFN_cuCtxCreate_v3020
    typedef int PFN_cuCtxCreate_v11040; PFN_other_v1000
    """
    facts = inspected(tmp_path, {"nvidia/include/cudaTypedefs.h": header, "nvidia/include/other.h": header})
    assert facts.driver_functions == (
        ("cuCtxCreate", (3020, 11040)),
        ("cuGetErrorString", (6000,)),
        ("cuMemcpy", (4000,)),
    )


def test_a_member_that_ends_early_gives_no_binary(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield passing()["library"][:100]
        raise OSError

    inspector = BinaryInspector("3.12")
    member = Member("x", 100_000, 1, 0, deflated=False, executable=False, symlink=False, crc=0)
    with pytest.raises(OSError):  # noqa: PT011 - the one above
        list(inspector.watch(member, "x", broken()))
    assert facts_of(inspector, tmp_path) == BinaryFacts()
