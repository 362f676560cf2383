from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.sizes import KINDS, kind_of, raw_gpu_code, shown_bytes, sizes_by_kind, total


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("lib/torch/lib/libtorch.so", "libraries"),
        ("lib/nvidia/libcublas.so.13", "libraries"),
        ("lib/x/_C.cpython-312-x86_64-linux-gnu.so", "libraries"),
        ("lib/x/kernel_sm90.cubin", "raw GPU code"),
        ("lib/x/a.py", "Python"),
        ("lib/x/a.pyi", "Python"),
        ("lib/x/a.pyc", "bytecode"),
        ("lib/x/a.h", "headers and archives"),
        ("lib/x/libx.a", "headers and archives"),
        ("lib/x/bin/ptxas", "programs"),
        ("lib/x/so", "data"),
        ("lib/x/LICENSE", "data"),
        ("lib/x/model.json", "data"),
    ],
)
def test_kind_of_a_file(path: str, kind: str) -> None:
    assert kind_of(path, {"lib/x/bin/ptxas"}) == kind


@given(st.lists(st.tuples(st.text(max_size=12), st.integers(0, 1 << 40)), max_size=20))
def test_every_byte_is_counted_once(files: list[tuple[str, int]]) -> None:
    kinds = sizes_by_kind(files, ())
    assert sum(kinds.values()) == sum(size for _, size in files)
    assert set(kinds) <= set(KINDS)


def test_raw_cubins_are_for_what_their_names_say() -> None:
    files = [("a/fmha_sm100f.cubin", 5), ("a/SM_90a/k.cubin", 3), ("a/k.cubin", 2), ("a/sm90.txt", 9)]
    assert raw_gpu_code(files) == {"sm_100f": 5, "sm_90a": 3, "raw": 2}


def test_totals_add_up() -> None:
    assert total([{"a": 1}, {"a": 2, "b": 3}]) == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (3_700_000_000, "3.7 GB"),
        (10**15, "1000.0 TB"),
    ],
)
def test_bytes_for_a_person(number: int, shown: str) -> None:
    assert shown_bytes(number) == shown
