"""GPU code is listed as nvcc packed it, and bytes that only look like it are refused without effort."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.cubin_notes import toolkit_release
from builder.elf_image import HoleRead
from builder.fatbin import (
    CUBIN_LIMIT_BYTES,
    MAGIC,
    FatbinDamaged,
    FatbinEntry,
    read_entry,
    read_fatbins,
    read_header,
)
from tests.support.fatbins import Code, cubin, fatbin, ptx

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEADER, ENTRY = 16, 64


def codes_of(content: bytes, *, holes: tuple[tuple[int, int], ...] = ()) -> list[tuple[str, ...]]:
    return [tuple(entry.code for entry in each) for each in read_fatbins(content, 0, len(content), holes=holes)]


def payloads_of(content: bytes) -> list[bytes]:
    return [
        content[entry.payload_offset : entry.payload_offset + entry.payload_size]
        for entries in read_fatbins(content, 0, len(content))
        for entry in entries
    ]


# -- what is there --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["sm_75", "sm_90", "sm_90a", "sm_100f", "sm_103a", "sm_120", "compute_80", "compute_90a", "compute_120f"]
)
@pytest.mark.parametrize("compression", ["", "zstd", "lz4"])
def test_code_is_named_by_kind_number_and_suffix_however_it_is_compressed(code: str, compression: str) -> None:
    assert codes_of(fatbin(Code(code, compression=compression))) == [(code,)]


def test_only_machine_code_is_a_cubin() -> None:
    content = fatbin("sm_90", "compute_90")
    (entries,) = read_fatbins(content, 0, len(content))
    assert [entry.is_cubin for entry in entries] == [True, False]


def test_entries_are_listed_in_order_for_each_fatbin() -> None:
    content = fatbin("sm_90a", "compute_120") + fatbin("sm_80") + fatbin() + fatbin("sm_80", "sm_80")
    assert codes_of(content) == [("sm_90a", "compute_120"), ("sm_80",), (), ("sm_80", "sm_80")]


def test_payload_is_what_was_stored() -> None:
    content = fatbin(
        Code("sm_90", padding=100), "compute_90", Code("sm_80", payload=b"12345678"), Code("sm_75", payload=b"")
    )
    assert payloads_of(content) == [cubin("sm_90", padding=100), padded(ptx("compute_90")), b"12345678", b""]


def padded(content: bytes) -> bytes:
    return content.ljust(-len(content) // 8 * -8, b"\0")


def test_payload_of_compressed_code_ends_before_its_padding() -> None:
    (stored,) = payloads_of(fatbin(Code("sm_90", payload=b"x" * 1000, compression="zstd")))
    assert zstd.decompress(stored) == b"x" * 1000


def test_unknown_kind_of_code_is_named_by_its_number() -> None:
    assert codes_of(fatbin(Code("sm_90", kind=8))) == [("kind-8",)]


@pytest.mark.parametrize(
    "between", [bytes(8), bytes(4096), b"some bytes of a section", MAGIC[:6], MAGIC[:4] + b"\x02\0\x10\0" + bytes(8)]
)
def test_what_lies_between_fatbins_is_passed_over(between: bytes) -> None:
    content = padded(between) + fatbin("sm_80") + padded(between) + fatbin("sm_90") + between
    assert codes_of(content) == [("sm_80",), ("sm_90",)]


def test_a_fatbin_begins_at_a_multiple_of_8_only() -> None:
    assert codes_of(bytes(4) + fatbin("sm_80").ljust(1004, b"\0") + fatbin("sm_90")) == [("sm_90",)]


def test_a_fatbin_in_a_payload_is_a_payload() -> None:
    assert codes_of(fatbin(Code("sm_90", payload=fatbin("sm_80")), "sm_100")) == [("sm_90", "sm_100")]


def test_only_the_section_is_looked_at() -> None:
    before, here, after = fatbin("sm_80"), fatbin("sm_90"), fatbin("sm_100")
    content = before + here + after
    assert [e.code for each in read_fatbins(content, len(before), len(here)) for e in each] == ["sm_90"]


@pytest.mark.parametrize("version", [0, 2])
def test_a_fatbin_of_another_version_is_none(version: int) -> None:
    assert codes_of(fatbin("sm_90", version=version)) == []
    assert codes_of(fatbin("sm_90", header_size=24)) == []


@pytest.mark.parametrize("size", range(HEADER))
def test_a_header_that_is_cut_off_is_none(size: int) -> None:
    assert read_header(fatbin("sm_90")[:size], 0) is None
    assert codes_of(fatbin("sm_80") + fatbin("sm_90")[:size]) == [("sm_80",)]


@pytest.mark.parametrize("rest", [1, 8, 63])
def test_a_rest_that_holds_no_entry_is_padding(rest: int) -> None:
    content = fatbin("sm_90")
    longer = struct.pack("<8sQ", MAGIC, len(content) - HEADER + rest) + content[HEADER:] + bytes(rest)
    assert codes_of(padded(longer) + fatbin("sm_80")) == [("sm_90",), ("sm_80",)]


# -- damage ---------------------------------------------------------------------------------------------------------------------------

DAMAGED = {
    "a fatbin longer than its section": (fatbin("sm_90", stated_size=10_000), "ends beyond its section"),
    "a fatbin of impossible size": (fatbin("sm_90", stated_size=(1 << 64) - 1), "ends beyond its section"),
    "a payload longer than its fatbin": (fatbin(Code("sm_90", stated_size=10_000), "sm_80"), "ends beyond"),
    "a payload of impossible size": (fatbin(Code("sm_90", stated_size=(1 << 64) - 1)), "ends beyond"),
    "an entry's header that is too short": (fatbin(Code("sm_90", header_size=16), Code("sm_90")), "an entry of 16"),
    "an entry's header that is too long": (fatbin(Code("sm_90", header_size=8192)), "an entry of 8192"),
    "an entry's header of size 0": (
        fatbin("sm_90")[: HEADER + 4] + bytes(4) + fatbin("sm_90")[HEADER + 8 :],
        "of 0 and",
    ),
    "entries without measure": (fatbin(*[Code("sm_90", payload=b"")] * 5000), "more than 4096 entries"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_fatbin_is_refused(name: str) -> None:
    content, message = DAMAGED[name]
    with pytest.raises(FatbinDamaged, match=message):
        codes_of(fatbin("sm_80") + content)


def test_sections_with_fatbins_without_measure_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.fatbin.MOST_STEPS", 100)
    assert len(codes_of(fatbin() * 100)) == 100
    assert len(codes_of(fatbin(*[Code("sm_90", payload=b"")] * 9) * 10)) == 10
    false = bytes(4) + MAGIC + bytes(4)
    for content in (fatbin() * 101, fatbin(*[Code("sm_90", payload=b"")] * 10) * 11, false * 101):
        with pytest.raises(FatbinDamaged, match="more than 100 fatbins and entries"):
            codes_of(content)


TWO = bytearray(
    fatbin(Code("sm_90", padding=50), "compute_90") + bytes(24) + fatbin(Code("sm_100a", compression="zstd"))
)


@settings(max_examples=300)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(TWO) - 1), st.binary(min_size=1, max_size=8)), max_size=5),
    keep=st.integers(0, len(TWO)),
)
def test_mutated_fatbins_give_entries_within_the_section_or_are_refused(
    edits: list[tuple[int, bytes]], keep: int
) -> None:
    content = bytearray(TWO)
    for offset, value in edits:
        content[offset : offset + len(value)] = value
    content = content[:keep]
    try:
        found = [entry for each in read_fatbins(content, 0, len(content)) for entry in each]
    except FatbinDamaged:
        return
    ends = [entry.payload_offset + entry.payload_size for entry in found]
    assert all(end <= len(content) for end in ends)
    assert sorted(ends) == ends


@given(st.binary(min_size=ENTRY, max_size=200), st.integers(0, 1 << 64), st.integers(0, 1 << 64))
def test_an_entry_of_any_bytes_ends_within_its_fatbin_or_is_refused(content: bytes, end: int, base: int) -> None:
    try:
        entry, following = read_entry(content, 0, end, base=base)
    except FatbinDamaged:
        return
    assert base + ENTRY <= entry.payload_offset <= entry.payload_offset + entry.payload_size <= following <= end


# -- parts that were left out ---------------------------------------------------------------------------------------------------------


def test_payloads_may_be_missing() -> None:
    content = bytearray(fatbin(Code("sm_90", payload=b"x" * 100), Code("sm_80", payload=b"y" * 100)))
    holes = ((HEADER + ENTRY, HEADER + ENTRY + 104), (HEADER + 2 * ENTRY + 104, HEADER + 2 * ENTRY + 208))
    for start, end in holes:
        content[start:end] = bytes(end - start)
    assert codes_of(bytes(content), holes=holes) == [("sm_90", "sm_80")]


FIRST, SECOND = fatbin(Code("sm_90", header_size=112, payload=b"x" * 64)), fatbin("sm_80")
GAP = 64
IN_HOLES = {
    "the gap before": (0, 8),
    "a header": (GAP + 8, GAP + 16),
    "the magic": (GAP, GAP + 4),
    "an entry's head": (GAP + HEADER + 8, GAP + HEADER + 16),
    "the rest of an entry's header": (GAP + HEADER + 100, GAP + HEADER + 108),
    "the gap between": (GAP + len(FIRST) + 8, GAP + len(FIRST) + 16),
    "a whole fatbin": (GAP + len(FIRST) + GAP, GAP + len(FIRST) + GAP + len(SECOND)),
    "the gap behind": (2 * GAP + len(FIRST) + len(SECOND) + 8, 3 * GAP + len(FIRST) + len(SECOND)),
    "a payload and more": (GAP + HEADER + 112, GAP + len(FIRST) + 8),
}


@pytest.mark.parametrize("name", IN_HOLES)
def test_anything_but_a_payload_may_not_be_missing(name: str) -> None:
    start, end = IN_HOLES[name]
    content = bytearray(bytes(GAP) + FIRST + bytes(GAP) + SECOND + bytes(GAP))
    assert codes_of(bytes(content)) == [("sm_90",), ("sm_80",)]
    content[start:end] = bytes(end - start)
    with pytest.raises(HoleRead):
        codes_of(bytes(content), holes=((start, end),))


def test_holes_outside_of_the_section_do_not_matter() -> None:
    content = bytes(64) + fatbin("sm_90") + bytes(64)
    holes = ((0, 64), (len(content) - 64, len(content)))
    assert [e.code for each in read_fatbins(content, 64, len(content) - 128, holes=holes) for e in each] == ["sm_90"]


@settings(max_examples=300)
@given(edges=st.lists(st.integers(0, len(TWO)), min_size=2, max_size=6, unique=True).map(sorted))
def test_fatbins_with_holes_are_the_same_or_a_hole_was_read(edges: list[int]) -> None:
    holes = tuple(zip(edges[::2], edges[1::2], strict=False))
    content = bytearray(TWO)
    for start, end in holes:
        content[start:end] = bytes(end - start)
    try:
        found = codes_of(bytes(content), holes=holes)
    except HoleRead:
        return
    assert found == codes_of(bytes(TWO))


# -- the toolkit's note ---------------------------------------------------------------------------------------------------------------

ZSTD, LZ4 = 0x8000, 0x2000


def test_release_is_read_from_the_note_of_a_cubin() -> None:
    assert toolkit_release(cubin("sm_100", release="13.0.88")) == "13.0.88"
    assert toolkit_release(cubin("sm_100", release="12.8.93", padding=5000)) == "12.8.93"
    assert toolkit_release(zstd.compress(cubin("sm_100", release="13.1.9")), ZSTD) == "13.1.9"


@pytest.mark.parametrize(
    ("payload", "flags"),
    [
        (cubin("sm_90", release=""), 0),
        (ptx("compute_90"), 0),
        (b"", 0),
        (b"", ZSTD),
        (b"no zstd at all", ZSTD),
        (zstd.compress(cubin("sm_100"))[:20], ZSTD),
        (cubin("sm_100"), LZ4),
        (b"Cuda compilation tools, release 13.0, V", 0),
        (b"Cuda compilation tools, release " + b"1" * 10_000 + b", V13.0.88", 0),
        (b"Cuda compilation tools, release 13.0, V" + b"9" * 10_000, 0),
    ],
    ids=["without", "ptx", "empty", "empty zstd", "not zstd", "cut off", "lz4", "half", "long release", "long version"],
)
def test_release_is_none_where_no_note_can_be_read(payload: bytes, flags: int) -> None:
    assert toolkit_release(payload, flags) is None


def test_a_bomb_is_inflated_to_its_limit_only() -> None:
    note = b"Cuda compilation tools, release 13.0, V13.0.88\0"
    bomb = zstd.compress(bytes(CUBIN_LIMIT_BYTES) + note)
    assert len(bomb) < 100_000
    assert toolkit_release(bomb, ZSTD) is None
    assert toolkit_release(zstd.compress(bytes(CUBIN_LIMIT_BYTES - len(note)) + note), ZSTD) == "13.0.88"


def test_an_entry_of_a_compressed_cubin_leads_to_its_note() -> None:
    content = fatbin(Code("sm_120a", compression="zstd", release="12.9.86"))
    ((entry,),) = read_fatbins(content, 0, len(content))
    assert entry == FatbinEntry("sm_120a", HEADER + ENTRY, entry.payload_size, entry.flags)
    payload = content[entry.payload_offset : entry.payload_offset + entry.payload_size]
    assert toolkit_release(payload, entry.flags) == "12.9.86"
