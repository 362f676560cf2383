"""A file that streams by leaves the same image however it is cut, and nothing but payloads of GPU code is missing in it."""

from __future__ import annotations

import mmap
import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder import sparse
from builder.elf import read_elf
from builder.elf_image import HoleRead
from builder.fatbin import MAGIC, read_fatbins
from builder.sparse import ImageTooLarge, SparseImage
from tests.support.fatbins import Code, fatbin
from tests.support.shared_objects import needs_gcc, shared_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LARGE, SMALL = 9000, 1000
"""Payloads above and below what is worth a hole."""


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - the same in every run


def imaged(content: bytes, cuts: Iterable[int] = (), *, keep_all: bool = False) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes and the holes of an image of a file that arrives in pieces."""
    with SparseImage(len(content), keep_all=keep_all) as image:
        edges = [0, *cuts, len(content)]
        for start, end in pairwise(edges):
            image.feed(content[start:end])
        image.finish()
        return image.buffer[:], image.holes


def missing(content: bytes) -> list[bytes]:
    _, holes = imaged(content)
    return [content[start:end] for start, end in holes]


def expected(content: bytes, holes: Sequence[tuple[int, int]]) -> bytes:
    wanted = bytearray(content)
    for start, end in holes:
        wanted[start:end] = bytes(end - start)
    return bytes(wanted)


# -- what is left out -----------------------------------------------------------------------------------------------------------------


def code(name: str, size: int, seed: int = 1) -> Code:
    return Code(name, payload=noise(size, seed))


def test_a_file_without_gpu_code_is_kept() -> None:
    content = noise(100_000)
    assert imaged(content) == (content, [])


def test_all_but_the_smallest_cubin_of_each_code_is_left_out() -> None:
    one, two, three = noise(LARGE, 1), noise(LARGE + 800, 2), noise(LARGE - 800, 3)
    content = fatbin(Code("sm_90", payload=two), Code("sm_90", payload=one), Code("sm_90a", payload=two))
    content += fatbin(Code("sm_90", payload=two), Code("sm_90", payload=three), Code("sm_90", payload=one))
    assert missing(content) == [two, one]


def test_ptx_and_unknown_code_is_left_out() -> None:
    content = fatbin(code("compute_90", LARGE, 1), Code("sm_90", payload=noise(LARGE, 2), kind=9))
    assert missing(content) == [noise(LARGE, 1), noise(LARGE, 2)]


def test_small_payloads_are_kept() -> None:
    assert missing(fatbin(*[code("compute_90", 4088)] * 3, code("compute_80", 4096, 5))) == [noise(4096, 5)]


def test_headers_are_kept_so_that_the_code_can_still_be_listed() -> None:
    content = noise(800) + fatbin(*[code("sm_90a", LARGE), code("compute_120", LARGE)] * 4) + noise(803)
    buffer, holes = imaged(content)
    assert len(holes) == 7
    found = [e.code for each in read_fatbins(buffer, 0, len(buffer), holes=holes) for e in each]
    assert found == ["sm_90a", "compute_120"] * 4
    assert buffer == expected(content, holes)


def test_nothing_is_left_out_on_request() -> None:
    content = fatbin(*[code("sm_90", LARGE)] * 4)
    assert imaged(content, range(1, len(content), 7000), keep_all=True) == (content, [])


NO_FATBINS = {
    "at no multiple of 8": bytes(4) + fatbin(code("compute_90", LARGE)),
    "of another version": fatbin(code("compute_90", LARGE), version=2),
    "longer than the file": fatbin(code("compute_90", LARGE), stated_size=1 << 40),
    "with a payload longer than itself": fatbin(Code("compute_90", payload=noise(LARGE), stated_size=1 << 40)),
    "with an entry's header that is too long": fatbin(Code("compute_90", payload=noise(LARGE), header_size=8192)),
    "cut off": fatbin(code("compute_90", LARGE))[:-8],
}


@pytest.mark.parametrize("name", NO_FATBINS)
def test_what_is_no_fatbin_is_kept(name: str) -> None:
    content = NO_FATBINS[name]
    assert imaged(content) == (content, [])


def test_a_fatbin_behind_what_only_looks_like_one_is_found() -> None:
    false = struct.pack("<8sQ", MAGIC, 1 << 40)
    content = false * 3 + b"\x50\xed" * 4 + false + fatbin(code("compute_90", LARGE))
    assert missing(content) == [noise(LARGE)]
    broken = fatbin(Code("compute_90", payload=b"", stated_size=1 << 40))
    assert missing(broken + fatbin(code("compute_90", LARGE))) == [noise(LARGE)]


def test_a_byte_of_a_hole_is_refused() -> None:
    content = fatbin(code("compute_90", LARGE))
    with SparseImage(len(content)) as image:
        image.feed(content)
        image.finish()
        ((start, end),) = image.holes
        assert image.read(0, start) == content[:start]
        assert image.read(end, 0) == b""
        for offset, size in ((start - 1, 2), (start, 1), (end - 1, 1), (start + 10, 10), (0, len(content))):
            with pytest.raises(HoleRead):
                image.read(offset, size)


# -- however it is cut ----------------------------------------------------------------------------------------------------------------

TRICKY = b"".join(
    [
        noise(40),
        fatbin(code("compute_90", LARGE, 1), Code("sm_90", payload=noise(4096, 2), header_size=112), "compute_80"),
        MAGIC,
        bytes(8),
        fatbin(code("sm_90", LARGE, 3), code("sm_90", SMALL, 4)),
        MAGIC[:5] + bytes(11),
        fatbin(Code("compute_90", payload=noise(4200, 5), header_size=4096)),
        fatbin("sm_90", stated_size=1 << 30),
        MAGIC[:7],
    ]
)
WHOLE = imaged(TRICKY)


def test_the_tricky_file_has_holes() -> None:
    assert len(WHOLE[1]) == 3
    assert WHOLE[0] == expected(TRICKY, WHOLE[1])


def test_a_cut_at_any_byte_changes_nothing() -> None:
    for cut in range(len(TRICKY)):
        assert imaged(TRICKY, [cut]) == WHOLE, f"cut at {cut}"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 4095, 4097])
def test_pieces_of_any_size_change_nothing(size: int) -> None:
    assert imaged(TRICKY, range(size, len(TRICKY), size)) == WHOLE


PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([MAGIC, MAGIC[:4], MAGIC[:7], bytes(8), struct.pack("<8sQ", MAGIC, 5000), fatbin()]),
    st.builds(
        lambda name, size, header_size, lie: fatbin(
            Code(name, payload=noise(size), header_size=header_size, stated_size=lie)
        ),
        st.sampled_from(["sm_90", "sm_90a", "compute_90"]),
        st.sampled_from([0, 100, 4095, 4096, 5000, 9000]),
        st.sampled_from([64, 80, 112, 4096, 4104, 8]),
        st.sampled_from([None, None, None, 0, 50, 4096, 1 << 40]),
    ),
    st.builds(
        lambda size, names: fatbin(*[code(name, 4500) for name in names], stated_size=size),
        st.sampled_from([None, 0, 40, 64, 4700, 9000]),
        st.lists(st.sampled_from(["sm_90", "compute_90", "sm_80"]), max_size=3),
    ),
)


@settings(max_examples=200)
@given(pieces=st.lists(PIECES, min_size=1, max_size=8), data=st.data())
def test_any_file_gives_the_same_image_in_any_pieces_and_loses_nothing_outside_of_its_holes(
    pieces: list[bytes], data: st.DataObject
) -> None:
    content = b"".join(pieces) or b"\0"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=12), label="cuts"))
    buffer, holes = imaged(content, cuts)
    assert (buffer, holes) == imaged(content)
    assert buffer == expected(content, holes)
    assert all(start + 4096 <= end <= len(content) for start, end in holes)
    assert all(first[1] <= second[0] for first, second in pairwise(holes))


FALSE_STARTS = {
    "headers of a size that cannot be": struct.pack("<8sQ", MAGIC, 1 << 40) * 20,
    "headers at no multiple of 8": (bytes(4) + MAGIC + bytes(4)) * 20,
    "fatbins without entries": fatbin() * 20,
    "fatbins with a damaged entry": (fatbin()[:8] + struct.pack("<Q", 64)) * 20 + bytes(64),
    "entries without a payload": fatbin(*[Code("sm_90", payload=b"")] * 20),
}


@pytest.mark.parametrize("name", FALSE_STARTS)
def test_the_rest_of_a_file_with_fatbins_without_measure_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fatbin(code("compute_90", LARGE), code("compute_90", LARGE))
    content = real + FALSE_STARTS[name] + real
    assert len(imaged(content)[1]) == 4
    monkeypatch.setattr(sparse, "MOST_STEPS", 12)
    whole = imaged(content)
    assert whole[1] == imaged(content)[1][:2]
    assert len(whole[1]) == 2
    assert whole[0] == expected(content, whole[1])
    for cut in range(len(real) - 20, len(real) + len(FALSE_STARTS[name]) + 100):
        assert imaged(content, [cut]) == whole
    assert imaged(content, range(1, len(content))) == whole


def test_a_payload_at_the_last_step_is_still_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MOST_STEPS", 1)
    content = fatbin(code("compute_90", LARGE), code("compute_80", LARGE))
    assert missing(content) == [noise(LARGE)]
    assert imaged(content, [500, 600]) == imaged(content)


# -- bounds ---------------------------------------------------------------------------------------------------------------------------


def fed(size: int, chunks: Iterator[bytes], *, keep_all: bool = False) -> int:
    with SparseImage(size, keep_all=keep_all) as image:
        taken = 0
        for chunk in chunks:
            image.feed(chunk)
            taken += len(chunk)
        image.finish()
        return taken


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sparse, "MOST_BYTES", 1 << 20)
    return 1 << 20


def test_a_file_with_too_much_beside_gpu_code_is_refused(small_limit: int) -> None:
    assert fed(small_limit, iter([bytes(small_limit)])) == small_limit
    with pytest.raises(ImageTooLarge, match=f"more than {small_limit} bytes beside GPU code"):
        fed(small_limit + 1, iter([bytes(small_limit), bytes(1)]))


def test_a_file_of_any_size_is_taken_if_the_rest_of_it_is_gpu_code(small_limit: int) -> None:
    content = fatbin(*[code("compute_90", 200_000)] * 8)
    assert len(content) > small_limit
    assert fed(len(content), iter([content])) == len(content)


def test_memory_is_counted_in_pages_however_little_is_kept_in_each(small_limit: int) -> None:
    """Otherwise 64 bytes before each hole of a page would let a file of 64 GB into memory."""
    content = fatbin(*[Code("compute_90", payload=bytes(mmap.PAGESIZE))] * 400)
    assert 400 * 64 < small_limit < len(content)
    with pytest.raises(ImageTooLarge):
        fed(len(content), iter([content]))


def test_a_file_that_is_kept_whole_is_refused_by_its_size(small_limit: int) -> None:
    with pytest.raises(ImageTooLarge, match=f"has {small_limit + 1} bytes, at most"):
        SparseImage(small_limit + 1, keep_all=True)


@pytest.mark.parametrize("size", [1 << 62, 1 << 63, 1 << 64])
def test_a_size_for_which_there_is_no_memory_is_refused(size: int) -> None:
    with pytest.raises(ImageTooLarge, match="no memory"):
        SparseImage(size)


def test_holes_take_no_memory() -> None:
    size = 256 << 20
    header = struct.pack("<8sQ", MAGIC, size - 16)
    entry = struct.pack("<HHIQ", 1, 0x101, 64, size - 80).ljust(64, b"\0")

    def chunks() -> Iterator[bytes]:
        yield header + entry + bytes((1 << 20) - 80)
        for _ in range((size >> 20) - 1):
            yield bytes(1 << 20)

    before = resident_bytes()
    with SparseImage(size) as image:
        for chunk in chunks():
            image.feed(chunk)
        image.finish()
        assert image.holes == [(80, size)]
        assert image.buffer.find(b"\1", 1 << 20) < 0  # reading a hole takes none either
        assert resident_bytes() - before < size // 4


def resident_bytes() -> int:
    """Memory of this process; the zero page does not count."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


# -- what the linker reads from it ----------------------------------------------------------------------------------------------------


@needs_gcc
def test_a_library_with_gpu_code_gives_the_same_facts_as_without_holes() -> None:
    content = shared_object(
        soname="libx.so",
        needed=["libcudart.so.13"],
        exports=["one", "two"],
        undefined=["cudaMalloc"],
        fatbins=[fatbin(*[code("sm_90a", LARGE), code("compute_120", LARGE)] * 3)] * 2,
    )
    buffer, holes = imaged(content)
    assert len(holes) == 11
    assert read_elf(buffer, symbols=True, holes=holes) == read_elf(content, symbols=True)
