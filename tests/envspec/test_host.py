"""What a host is taken to offer."""

from __future__ import annotations

import pytest

from envspec.host import BASE_LIBRARIES, cpython_symbols, host_profile, is_interpreter

HOST = host_profile(("libnuma.so.1", "libodd.so.1"), "3.12")
NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("name", "libraries", "defined"),
    [
        ("malloc", NONE, True),
        ("__tls_get_addr", NONE, True),
        ("cos", NONE, True),
        ("deflate", NONE, False),
        ("deflate", frozenset({"libz.so.1"}), True),
        ("numa_alloc", NONE, False),
        ("numa_alloc", frozenset({"libnuma.so.1"}), True),
        ("PyObject_Call", NONE, True),
        ("PyUnicode_GET_SIZE", NONE, False),
        ("cuLaunchKernel", frozenset({"libcuda.so.1"}), True),
        ("cuFileOpen", frozenset({"libcuda.so.1"}), False),
        ("nvmlInit_v2", frozenset({"libnvidia-ml.so.1"}), True),
        ("cuLaunchKernel", frozenset({"libnvidia-ml.so.1"}), False),
        # What is not recorded is given the benefit of the doubt, but not for what only a package has.
        ("odd_function", frozenset({"libodd.so.1"}), True),
        ("_ZN3c105ErrorC1Ev", frozenset({"libodd.so.1"}), False),
        ("cudaMalloc", frozenset({"libodd.so.1"}), False),
        ("odd_function", frozenset({"libpython3.12.so.1.0"}), False),
    ],
)
def test_symbol_is_defined_by_what_is_loaded(name: str, libraries: frozenset[str], defined: bool) -> None:  # noqa: FBT001 - a column
    assert HOST.defines(name, libraries) is defined


def test_libraries_are_the_base_those_of_the_driver_and_the_declared_ones() -> None:
    assert HOST.libraries - BASE_LIBRARIES == {
        *("libnuma.so.1", "libodd.so.1", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"),
        "libnvidia-ptxjitcompiler.so.1",
    }


def test_every_process_has_libc() -> None:
    assert "libc.so.6" in HOST.loaded
    assert "libstdc++.so.6" not in HOST.loaded


@pytest.mark.parametrize(
    ("name", "minors"),
    [("PyObject_Call", "10 11 12 13"), ("PyUnicode_READY", ""), ("PyDict_Pop", "13"), ("PyCode_New", "10 11")],
)
def test_symbols_are_those_of_the_minor_version(name: str, minors: str) -> None:
    known = [minor for minor in ("10", "11", "12", "13") if name in cpython_symbols(f"3.{minor}")]
    assert " ".join(known) == minors


def test_python_that_is_not_recorded_has_every_symbol_of_its_form() -> None:
    unknown = host_profile((), "3.99")
    assert cpython_symbols("3.99") == NONE
    assert unknown.defines("PyAnything", NONE)
    assert not unknown.defines("anything", NONE)


@pytest.mark.parametrize(
    ("soname", "is_it"),
    [
        ("libpython3.12.so.1.0", True),
        ("libpython3.so", True),
        ("libpython3.12.so", True),
        ("libpython2.7.so.1.0", False),
        ("libpythonic.so", False),
    ],
)
def test_interpreter_is_known_by_its_soname(soname: str, is_it: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_interpreter(soname) is is_it
