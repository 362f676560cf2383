"""Facts of CUDA's libraries: majors in sonames, traces, and the names of symbols."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.cuda import (
    CudaTrace,
    is_torch_library,
    is_torch_symbol,
    major_of_soname,
    most_precise,
    readable_symbol,
    same_function,
    trace_of_label,
    trace_of_version,
    traces_of_binary,
)
from tests.support.facts import make_binary
from tests.support.torch_stack import CHECK_NEW, CHECK_OLD


@pytest.mark.parametrize(
    ("soname", "major"),
    [
        ("libcudart.so.13", 13),
        ("libcudart.so.11.0", 11),
        ("libcudart.e8e8b82a.so.12", 12),
        ("libcudart-d0da41ae.so.11.0", 11),
        ("libnvrtc-builtins.so.13.0", 13),
        ("libcublasLt.so.12", 12),
        ("libnppicc.so.13", 13),
        ("libcupti.so.12", 12),
        # Their numbers are their own: libcufft.so.12 is of CUDA 13.
        ("libcufft.so.12", None),
        ("libcusolver.so.12", None),
        ("libcudnn.so.9", None),
        ("libnvjpeg.so.5", None),
        ("libcudart.so", None),
        ("libcudart.so.٣٤", None),
        ("xlibcudart.so.12", None),
    ],
)
def test_major_in_a_soname(soname: str, major: int | None) -> None:
    assert major_of_soname(soname) == major


def test_binary_tells_by_its_needs_and_by_the_notes_in_its_code() -> None:
    binary = make_binary("k/_C.so", needed=("libc.so.6", "libcudart.so.12"), gpu={"sm_90": 1}, releases=["12.8.93"])
    assert traces_of_binary(binary, "k/_C.so") == (
        CudaTrace(12, "12", "k/_C.so needs libcudart.so.12"),
        CudaTrace(12, "12.8.93", "k/_C.so has GPU code made by CUDA 12.8.93"),
    )


@pytest.mark.parametrize(
    ("key", "value", "release"),
    [
        ("__version__", "2.11.0+cu130", "13.0"),
        ("__version__", "0.24.1+cu128", "12.8"),
        ("__version__", "0.24.1", None),
        ("__version__", "0.24.1+cpu", None),
        ("cuda", "13.0", "13.0"),
        ("cuda", "13.0.2", None),
        ("other", "13.0", None),
        ("__version__", "1.0+cu1", None),
    ],
)
def test_label_tells_the_release(key: str, value: str, release: str | None) -> None:
    found = trace_of_label("t/version.py", key, value)
    assert (found.release if found else None) == release


def test_local_version_tells_the_release() -> None:
    assert trace_of_version("2.9.1+cu126", "METADATA") == CudaTrace(12, "12.6", "METADATA says 2.9.1+cu126")
    assert trace_of_version("2.9.1", "METADATA") is None


@pytest.mark.parametrize(
    ("releases", "shown"),
    [(["12"], "12"), (["12", "12.8", "12.8.93"], "12.8"), (["12.8", "12.6"], "12"), ([], "")],
)
def test_release_is_as_precise_as_the_traces_agree(releases: list[str], shown: str) -> None:
    assert most_precise(CudaTrace(12, release, "") for release in releases) == shown


@pytest.mark.parametrize(
    ("name", "of_torch"),
    [
        (CHECK_NEW, True),
        ("_ZNK2at10TensorBase4sizeEv", True),
        ("_ZNR5torch7Library4_defEv", True),
        ("_ZN6caffe28TypeMeta11fromCanonicalEv", True),
        ("aoti_torch_empty", True),
        ("torch_library_impl", True),
        ("_Z16THPVariable_WrapN2at10TensorBaseE", True),
        ("_ZN4mycode3runEv", False),
        ("_ZN12at5torchcode3runEv", False),
        ("cudaMalloc", False),
        ("PyObject_Call", False),
    ],
)
def test_symbols_of_torch(name: str, of_torch: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_torch_symbol(name) is of_torch


@pytest.mark.parametrize(
    ("soname", "of_torch"),
    [
        ("libtorch.so", True),
        ("libtorch_cuda.so", True),
        ("libc10.so", True),
        ("libtorchaudio.so", False),
        ("libc10.so.1", False),
    ],
)
def test_libraries_of_torch(soname: str, of_torch: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_torch_library(soname) is of_torch


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", "c10::cuda::c10_cuda_check_implementation"),
        ("_ZNR5torch7Library4_defEON3c1014FunctionSchemaE", "torch::Library::_def"),
        ("_ZNK2at10TensorBase4sizeEv", "at::TensorBase::size"),
        ("_ZNSt6vectorIiE3endEv", "_ZNSt6vectorIiE3endEv"),
        ("cudaMalloc", "cudaMalloc"),
        ("_ZN9999xE", "_ZN9999xE"),
        ("_ZN0E", "_ZN0E"),
        ("_ZN", "_ZN"),
        ("", ""),
    ],
)
def test_mangled_name_is_shown_without_its_parameters(name: str, shown: str) -> None:
    assert readable_symbol(name) == shown


def test_function_with_other_parameters_is_the_same_one() -> None:
    assert same_function(CHECK_OLD) == same_function(CHECK_NEW) == "3c104cuda29c10_cuda_check_implementation"
    assert same_function("cudaMalloc") == ""


@given(st.text("_ZNK0123456789abcE", max_size=30))
def test_any_name_has_a_form_to_show(name: str) -> None:
    assert readable_symbol(name) or not name
    assert same_function(name) in name
