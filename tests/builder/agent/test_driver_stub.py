"""What an environment needs of the driver is read from its files, and a stub stands in for it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder import process
from builder.agent.driver_stub import (
    CUDA_SONAME,
    NVML_SONAME,
    BuiltStub,
    DriverNeed,
    NoStub,
    build_stub,
    driver_symbols,
    ending_name,
    find_compiler,
    has_driver,
    load_errors,
    stub_source,
)
from envspec.errors import EnvspecError

COMPILER = find_compiler(os.environ)
PYTHON = Path(sys.executable)
ENVIRON = {"PATH": os.environ.get("PATH", "")}

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed")


def compile_library(library: Path, source: str, *options: str) -> Path:
    library.parent.mkdir(parents=True, exist_ok=True)
    text = library.with_suffix(".c")
    text.write_text(source, encoding="ascii")
    assert COMPILER is not None
    # -nostdlib comes with no libc: the file needs what it is told to need.
    argv = [*COMPILER, "-shared", "-fPIC", "-nostdlib", "-w", "-o", str(library), str(text), *options]
    done = process.run(argv, env=ENVIRON)
    assert done.returncode == 0, done.stderr
    return library


def linked_against(folder: Path, soname: str, functions: tuple[str, ...], library: Path, *, call: str = "") -> Path:
    """A library that calls functions of another one, which is there only while it is linked."""
    other = compile_library(
        folder / soname, "".join(f"int {name}(void) {{ return 7; }}\n" for name in functions), f"-Wl,-soname,{soname}"
    )
    body = " + ".join(f"{name}()" for name in functions) or "0"
    source = "".join(f"int {name}(void);\n" for name in functions) + f"int {call or 'use'}(void) {{ return {body}; }}\n"
    return compile_library(library, source, "-Wl,--no-as-needed", str(other))


# -- reading --------------------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_undefined_driver_functions_of_all_linked_files_are_united(tmp_path: Path) -> None:
    one = linked_against(tmp_path / "a", CUDA_SONAME, ("cuInit", "cuLaunchKernel"), tmp_path / "tree/one.so")
    two = linked_against(tmp_path / "b", CUDA_SONAME, ("cuInit", "cuMemAlloc_v2"), tmp_path / "tree/two.so.3")
    nvml = linked_against(tmp_path / "c", NVML_SONAME, ("nvmlInit_v2",), tmp_path / "tree/three")
    assert driver_symbols([two, nvml, one]) == (
        DriverNeed(soname=CUDA_SONAME, symbols=("cuInit", "cuLaunchKernel", "cuMemAlloc_v2")),
        DriverNeed(soname=NVML_SONAME, symbols=("nvmlInit_v2",)),
    )


@needs_compiler
def test_only_functions_of_the_driver_are_taken(tmp_path: Path) -> None:
    functions = ("cuInit", "cudaMalloc", "cublasCreate_v2", "cuFileOpen", "nvmlInit_v2", "PyInit_x")
    library = linked_against(tmp_path / "a", CUDA_SONAME, functions, tmp_path / "tree/one.so")
    assert driver_symbols([library]) == (DriverNeed(soname=CUDA_SONAME, symbols=("cuInit",)),)


@needs_compiler
def test_a_library_that_is_linked_and_calls_nothing_needs_the_soname(tmp_path: Path) -> None:
    library = linked_against(tmp_path / "a", CUDA_SONAME, (), tmp_path / "tree/one.so")
    assert driver_symbols([library]) == (DriverNeed(soname=CUDA_SONAME, symbols=()),)


@needs_compiler
def test_driver_functions_of_files_that_are_not_linked_against_it_do_not_count(tmp_path: Path) -> None:
    library = linked_against(tmp_path / "a", "libother.so.1", ("cuInit",), tmp_path / "tree/one.so")
    assert driver_symbols([library]) == ()


def test_files_that_are_no_library_need_nothing(tmp_path: Path) -> None:
    contents = {"a.py": b"import x", "b.so": b"\x7fELF damaged", "c": b"", "d.so": b"#!/bin/sh"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert driver_symbols([*(tmp_path / name for name in contents), tmp_path / "gone.so"]) == ()


# -- compilers ------------------------------------------------------------------------------------------------------------------------


def programs(folder: Path, *names: str) -> dict[str, str]:
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_the_compiler_of_the_environment_comes_first(tmp_path: Path) -> None:
    environ = programs(tmp_path, "cc", "special")
    assert find_compiler(environ) == (str(tmp_path / "cc"),)
    assert find_compiler({**environ, "CC": "special -m64 '-DX=a b'"}) == (str(tmp_path / "special"), "-m64", "-DX=a b")


@pytest.mark.parametrize("named", ["missing", "", "unbalanced '"])
def test_a_compiler_that_is_named_and_missing_is_passed_over(tmp_path: Path, named: str) -> None:
    environ = programs(tmp_path, "gcc", "clang")
    assert find_compiler({**environ, "CC": named}) == (str(tmp_path / "gcc"),)


def test_without_a_compiler_there_is_none(tmp_path: Path) -> None:
    assert find_compiler({"PATH": str(tmp_path)}) is None


# -- stubs ----------------------------------------------------------------------------------------------------------------------------

NEEDS = (
    DriverNeed(soname=CUDA_SONAME, symbols=("cuDeviceGet", "cuInit")),
    DriverNeed(soname=NVML_SONAME, symbols=("nvmlShutdown",)),
)


@needs_compiler
def test_functions_of_a_stub_return_the_error_codes_of_an_absent_driver(tmp_path: Path) -> None:
    stub = build_stub(tmp_path, NEEDS, COMPILER, environ=ENVIRON)
    assert isinstance(stub, BuiltStub)
    assert sorted(path.name for path in stub.folder.iterdir()) == [CUDA_SONAME, NVML_SONAME]
    script = (
        f"import ctypes; cuda, nvml = ctypes.CDLL('{CUDA_SONAME}'), ctypes.CDLL('{NVML_SONAME}')\n"
        "print(cuda.cuInit(0), cuda.cuDeviceGet(), nvml.nvmlInit_v2(), nvml.nvmlShutdown())"
    )
    done = process.run([str(PYTHON), "-c", script], env={"LD_LIBRARY_PATH": str(stub.folder)})
    assert done.stdout.split() == ["100", "100", "9", "9"], done.stderr


@needs_compiler
def test_the_stub_exports_what_was_asked_for(tmp_path: Path) -> None:
    library = linked_against(tmp_path / "a", CUDA_SONAME, ("cuInit", "cuCtxGetCurrent"), tmp_path / "tree/one.so")
    stub = build_stub(tmp_path / "stub", driver_symbols([library]), COMPILER, environ=ENVIRON)
    assert isinstance(stub, BuiltStub)
    script = f"import ctypes, os; print(ctypes.CDLL('{library}', mode=os.RTLD_NOW).use())"
    done = process.run([str(PYTHON), "-c", script], env={"LD_LIBRARY_PATH": str(stub.folder)})
    assert done.stdout.split() == ["200"], done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "cuX(void){return 0;}int main",
        "cuX;",
        "cuX\nint y",
        'cuX"',
        "cu X",
        "",
        "main",
        "int",
        "cuX\\",
        "cuÄ",
        "cu\x00X",
    ],
)
def test_names_that_are_no_function_of_the_driver_stay_out_of_the_source(name: str) -> None:
    source = stub_source(DriverNeed(soname=CUDA_SONAME, symbols=(name, "cuCtxCreate")))
    assert source == "int cuCtxCreate(void) { return 100; }\nint cuInit(void) { return 100; }\n"


@given(st.lists(st.text(st.characters(max_codepoint=300)).map(lambda text: f"cu{text}")))
def test_whatever_the_names_are_the_source_is_one_function_a_line(names: list[str]) -> None:
    source = stub_source(DriverNeed(soname=CUDA_SONAME, symbols=tuple(names)))
    assert source.isascii()
    for line in source.removesuffix("\n").split("\n"):
        words = line.split(" ", 2)
        assert words[0] == "int"
        assert words[1].removesuffix("(void)").replace("_", "").isalnum()
        assert words[2] == "{ return 100; }"


def test_without_a_compiler_there_is_no_stub_and_the_reason_says_so(tmp_path: Path) -> None:
    stub = build_stub(tmp_path, NEEDS, None, environ={})
    assert stub == NoStub(reason="no NVIDIA driver and no C compiler to build a stub")


def test_a_compiler_that_fails_gives_no_stub_and_its_last_words(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'cc: cannot execute cc1' >&2; exit 4\n", encoding="ascii")
    compiler.chmod(0o755)
    stub = build_stub(tmp_path / "stub", NEEDS, (str(compiler),), environ={})
    assert stub == NoStub(
        reason=f"no NVIDIA driver, and the C compiler cannot build a stub: `{compiler}` ended with rc 4: cc: cannot execute cc1"
    )


# -- loading --------------------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_driver_is_there_if_the_interpreter_can_load_it(tmp_path: Path) -> None:
    stub = build_stub(tmp_path, NEEDS, COMPILER, environ=ENVIRON)
    assert isinstance(stub, BuiltStub)
    assert has_driver(PYTHON, environ={"LD_LIBRARY_PATH": str(stub.folder)})


def test_a_driver_that_cannot_be_loaded_is_not_there(tmp_path: Path) -> None:
    # A damaged file is found before any driver that this machine may have, and the linker stops at it.
    (tmp_path / CUDA_SONAME).write_bytes(b"not a library")
    assert not has_driver(PYTHON, environ={"LD_LIBRARY_PATH": str(tmp_path)})


def test_libraries_that_cannot_be_loaded_are_told_with_what_the_linker_says() -> None:
    errors = load_errors(PYTHON, ("libc.so.6", "libmissing.so.7", "libm.so.6", "libgone.so.1"), environ={})
    assert list(errors) == ["libmissing.so.7", "libgone.so.1"]
    assert errors["libgone.so.1"] == "libgone.so.1: cannot open shared object file: No such file or directory"
    assert load_errors(PYTHON, (), environ={}) == {}


@needs_compiler
def test_a_library_that_ends_the_process_is_named(tmp_path: Path) -> None:
    source = "static __attribute__((constructor)) void run(void) { *(volatile int *)0 = 1; }"
    library = compile_library(tmp_path / "libcrash.so.1", source)
    errors = load_errors(PYTHON, ("libc.so.6", str(library), "libm.so.6"), environ={})
    assert errors == {str(library): "loading it ends the process (SIGSEGV)"}


def test_an_interpreter_that_cannot_be_asked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EnvspecError, match=r"cannot say whether `libcuda\.so\.1` can be loaded: rc 127"):
        has_driver(tmp_path / "python", environ={})


@pytest.mark.parametrize(
    ("returncode", "expected"), [(-11, "SIGSEGV"), (-9, "SIGKILL"), (3, "rc 3"), (124, "a timeout"), (-40, "rc -40")]
)
def test_endings_are_named(returncode: int, expected: str) -> None:
    assert ending_name(returncode) == expected


def test_the_compiler_of_this_machine_is_a_program() -> None:
    if COMPILER is None:
        pytest.skip("no C compiler is installed")
    assert shutil.which(COMPILER[0]) is not None
