"""Whether the binaries of an environment fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from envspec.binaries import Label
from envspec.checks import run_checks
from envspec.spec import CudaSpec
from tests.support.facts import Row, fails, make_closure, make_spec, passes
from tests.support.torch_stack import (
    CHECK_NEW,
    CHECK_OLD,
    DEFINE,
    cuda_runtime,
    extension,
    kernel,
    library,
    torch,
    torch_stack,
    wheel,
)

if TYPE_CHECKING:
    from envspec.checks import Closure
    from envspec.facts import Finding, WheelFacts
    from envspec.spec import Spec


def spec(*, toolkit: str = "13.0", libraries: tuple[str, ...] = (), **options: Any) -> Spec:
    made = make_spec(**options)
    return replace(
        made,
        cuda=CudaSpec(toolkit=toolkit, compute=()) if toolkit else None,
        target=replace(made.target, libraries=libraries),
    )


def around_torch(*wheels: WheelFacts, **options: Any) -> Closure:
    """Wheels beside torch 2.11.0 for CUDA 13.0."""
    return make_closure([*torch_stack(), *wheels], spec(**options))


NEEDS_12 = kernel("k", needed=("libtorch.so", "libcudart.so.12"))
LABELLED_12 = kernel("k", labels=[Label("k/version.py", "__version__", "1.0+cu128")])
NUMBERED = [library(f"p/libcore{number}.so", needed=["libc10.so", f"libavutil.so.{number}"]) for number in (56, 57)]


def with_cuda(*majors: int, name: str = "p") -> WheelFacts:
    binaries = [library(f"p/hook_cu{major}.so", needed=[f"libcudart.so.{major}"]) for major in majors]
    return wheel(name, binaries=binaries)


ROWS = (
    # cuda-major-mismatch
    passes(
        "cuda-major-mismatch",
        "a kernel for torch's CUDA",
        around_torch(kernel(needed=("libtorch.so", "libcudart.so.13"))),
    ),
    passes("cuda-major-mismatch", "no torch and no CUDA in the spec", make_closure([NEEDS_12])),
    passes("cuda-major-mismatch", "variants for either CUDA", around_torch(with_cuda(12, 13))),
    passes(
        "cuda-major-mismatch",
        "another minor release of the same CUDA",
        around_torch(kernel(labels=[Label("k/version.py", "__version__", "1.0+cu131")])),
    ),
    passes(
        "cuda-major-mismatch",
        "a plugin that nobody loads by itself",
        around_torch(wheel("p", binaries=[library("p/libplug.so", needed=["libcudart.so.12"])])),
    ),
    passes(
        "cuda-major-mismatch",
        "an extension with a CUDA of its own inside, which is not linked against torch",
        around_torch(wheel("p", binaries=[extension("p/a.so", gpu={"sm_90": 1}, releases=["12.8.93"])])),
    ),
    fails(
        "cuda-major-mismatch",
        "a kernel that needs the libraries of another CUDA",
        around_torch(NEEDS_12),
        "error",
        "k 1.0 is built for CUDA 12, torch 2.11.0 for CUDA 13.0",
    ),
    fails(
        "cuda-major-mismatch",
        "several packages for another CUDA",
        around_torch(NEEDS_12, kernel("m", needed=("libtorch.so", "libcudart.so.12"))),
        "error",
        "k 1.0 and m 1.0 are built for CUDA 12, torch 2.11.0 for CUDA 13.0",
    ),
    fails(
        "cuda-major-mismatch",
        "without torch the spec decides",
        make_closure([kernel("k", needed=("libcudart.so.12",))], spec()),
        "error",
        "k 1.0 is built for CUDA 12, the spec says 13.0",
    ),
    # dual-cuda-runtime
    passes("dual-cuda-runtime", "the runtime of one CUDA", around_torch(kernel(needed=("libcudart.so.13",)))),
    passes(
        "dual-cuda-runtime", "a runtime of another CUDA that nobody needs", around_torch(cuda_runtime(12, "12.8.90"))
    ),
    fails(
        "dual-cuda-runtime",
        "the libraries of both are there",
        around_torch(NEEDS_12, cuda_runtime(12, "12.8.90")),
        "error",
        "k 1.0 would load the libraries of CUDA 12, torch 2.11.0 those of CUDA 13.0, in one process",
    ),
    fails(
        "dual-cuda-runtime",
        "linked against torch with another CUDA inside",
        around_torch(LABELLED_12),
        "error",
        "k 1.0 would load the libraries of CUDA 12.8, torch 2.11.0 those of CUDA 13.0, in one process",
    ),
    # cuda-toolkit-mismatch
    passes("cuda-toolkit-mismatch", "the CUDA of the spec", around_torch()),
    passes("cuda-toolkit-mismatch", "a spec without CUDA", around_torch(toolkit="")),
    passes(
        "cuda-toolkit-mismatch",
        "a torch that does not say the minor release",
        make_closure([replace(torch(), binaries=replace(torch().binaries, labels=())), cuda_runtime()], spec()),
    ),
    passes("cuda-toolkit-mismatch", "an environment without torch", make_closure([cuda_runtime()], spec())),
    fails(
        "cuda-toolkit-mismatch",
        "torch for another CUDA",
        make_closure([torch("2.10.0", cuda="12.8"), cuda_runtime(12, "12.8.90")], spec()),
        "error",
        "torch 2.10.0 is built for CUDA 12.8, the spec says 13.0",
    ),
    fails(
        "cuda-toolkit-mismatch",
        "torch for another minor release",
        around_torch(toolkit="13.1"),
        "warning",
        "torch 2.11.0 is built for CUDA 13.0, the spec says 13.1",
    ),
    fails(
        "cuda-toolkit-mismatch",
        "torch without CUDA",
        make_closure([torch("2.11.0+cpu", cuda="")], spec()),
        "error",
        "torch 2.11.0+cpu is built without CUDA, the spec says 13.0",
    ),
    # torch-abi-mismatch
    passes("torch-abi-mismatch", "symbols that torch has", around_torch(kernel(undefined=(CHECK_NEW, DEFINE)))),
    passes("torch-abi-mismatch", "an environment without torch", make_closure([kernel(undefined=(CHECK_OLD,))])),
    fails(
        "torch-abi-mismatch",
        "a symbol that torch has not",
        around_torch(kernel("k", undefined=(CHECK_OLD,))),
        "error",
        "k 1.0 needs `c10::cuda::c10_cuda_check_implementation`, which torch 2.11.0 does not export",
    ),
    fails(
        "torch-abi-mismatch",
        "several",
        around_torch(kernel("k", undefined=("_ZN2at3newEv", "_ZN2at4moreEv", CHECK_NEW))),
        "error",
        "k 1.0 needs `at::new` and 1 more, which torch 2.11.0 does not export",
    ),
    # missing-library
    passes("missing-library", "a library of another wheel", around_torch(kernel(needed=("libcudart.so.13",)))),
    passes(
        "missing-library",
        "a library of its own",
        make_closure(
            [wheel("p", binaries=[extension("p/a.so", needed=["libb.so"], runpath="$ORIGIN"), library("p/libb.so")])]
        ),
    ),
    fails(
        "missing-library",
        "a library of NVIDIA",
        around_torch(kernel("k", needed=("libtorch.so", "libcudnn.so.9", "libcufft.so.12"))),
        "error",
        "k 1.0 needs `libcudnn.so.9` and 1 other library, which no wheel provides",
    ),
    fails(
        "missing-library",
        "another version of a library",
        make_closure(
            [
                wheel("p", binaries=[extension("p/a.so", needed=["libb.so.2"])]),
                wheel("b", "1.5", binaries=[library("b/libb.so.1", soname="libb.so.1")]),
            ]
        ),
        "error",
        "p 1.0 needs `libb.so.2`, which no wheel provides; there is `libb.so.1` (b 1.5)",
    ),
    fails(
        "missing-library",
        "a private copy that is gone",
        make_closure([wheel("p", binaries=[extension("p/a.so", needed=["libb-040039e1.so.2"])])]),
        "error",
        "p 1.0 needs `libb-040039e1.so.2`, which no wheel provides",
    ),
    # host-library
    passes(
        "host-library",
        "libraries that every server has",
        make_closure([wheel("p", binaries=[extension("p/a.so", needed=["libc.so.6", "libz.so.1", "libstdc++.so.6"])])]),
    ),
    passes(
        "host-library",
        "the driver",
        make_closure([wheel("p", binaries=[extension("p/a.so", needed=["libcuda.so.1"])])]),
    ),
    passes(
        "host-library",
        "a declared library",
        make_closure([kernel("p", needed=("libnuma.so.1",))], spec(libraries=("libnuma.so.1",))),
    ),
    fails(
        "host-library",
        "a library that is not declared",
        around_torch(kernel("p", needed=("libnuma.so.1",)), kernel("q", needed=("libnuma.so.1",))),
        "error",
        "libnuma.so.1 is needed by p 1.0 and q 1.0, and the spec does not say that the hosts have it",
    ),
    fails(
        "host-library",
        "several libraries of one package",
        make_closure([kernel("p", needed=tuple(f"libodd{number}.so.1" for number in range(5)))]),
        "error",
        "libodd0.so.1, libodd1.so.1, libodd2.so.1 and 2 more are needed by p 1.0, and the spec does not say that the hosts have them",
    ),
    fails("host-library", "a library of a desktop", make_closure([kernel("p", needed=("libGL.so.1",))]), "warning"),
    fails(
        "host-library", "a shared libpython", make_closure([kernel("p", needed=("libpython3.12.so.1.0",))]), "warning"
    ),
    # undefined-symbol
    passes(
        "undefined-symbol",
        "symbols of the interpreter and of libc",
        make_closure([kernel(needed=(), undefined=("PyObject_Call", "malloc"))]),
    ),
    passes(
        "undefined-symbol",
        "a symbol of torch, which another check judges",
        around_torch(kernel(undefined=(CHECK_OLD,))),
    ),
    fails(
        "undefined-symbol",
        "a function that Python has no more",
        make_closure([kernel("k", needed=(), undefined=("PyUnicode_GET_SIZE",))]),
        "error",
        "k 1.0 needs `PyUnicode_GET_SIZE`, which CPython 3.12 does not export",
    ),
    fails(
        "undefined-symbol",
        "functions of nobody",
        make_closure([kernel("k", needed=(), undefined=("odd_one", "odd_two", "odd_three"))]),
        "error",
        "k 1.0 needs `odd_one` and 2 more, which nothing defines",
    ),
    fails(
        "undefined-symbol",
        "a version that a library lacks",
        make_closure(
            [
                wheel(
                    "k",
                    binaries=[
                        extension(
                            "k/a.so", needed=["libb.so.1"], runpath="$ORIGIN/../b", versions={"libb.so.1": ["B_2"]}
                        )
                    ],
                ),
                wheel("b", "1.5", binaries=[library("b/libb.so.1", version_definitions=("B_1",))]),
            ]
        ),
        "error",
        "k 1.0 needs version `B_2` of b/libb.so.1, which that of b 1.5 lacks",
    ),
    fails(
        "undefined-symbol",
        "a symbol that is there for others",
        around_torch(kernel("k", needed=(), undefined=(DEFINE,))),
        "warning",
        "k 1.0 binds `torch::Library::_def` without being linked against the library that has it",
    ),
    fails(
        "undefined-symbol",
        "a package that sees to it",
        around_torch(kernel("cuda-core", needed=(), undefined=(DEFINE,))),
        "info",
    ),
    # no-fitting-variant
    passes(
        "no-fitting-variant",
        "variants that all load",
        around_torch(
            wheel("p", binaries=[library(f"p/hook{tag}.so", needed=["libcudart.so.13"]) for tag in ("", "_cu13")])
        ),
    ),
    passes("no-fitting-variant", "no variants", around_torch(kernel())),
    fails(
        "no-fitting-variant",
        "one that loads beside one that does not",
        around_torch(with_cuda(12, 13)),
        "info",
        "1 variant of p 1.0 does not load, others do: `p/hook_cu12.so`",
    ),
    fails(
        "no-fitting-variant",
        "variants that a host could help",
        around_torch(wheel("p", binaries=NUMBERED)),
        "warning",
        "none of the 2 variants of p 1.0 loads; the host has to offer the libraries of one",
    ),
    fails(
        "no-fitting-variant",
        "variants for other CUDAs",
        around_torch(with_cuda(11, 12)),
        "error",
        "none of the 2 variants of p 1.0 loads",
    ),
    # optional-plugin
    passes(
        "optional-plugin",
        "a plugin that loads",
        make_closure([wheel("p", binaries=[library("p/libplug.so", needed=["libc.so.6"])])]),
    ),
    fails(
        "optional-plugin",
        "a plugin for a network that the host has not",
        make_closure([wheel("p", binaries=[library("p/libplug.so", needed=["libfabric.so.1"])])]),
        "info",
        "1 plugin of p 1.0 does not load without `libfabric.so.1`",
    ),
    # dead-extension
    passes(
        "dead-extension",
        "an extension for this interpreter",
        make_closure([wheel("p", binaries=[extension("p/a.abi3.so")])]),
    ),
    passes(
        "dead-extension",
        "the same module for several interpreters",
        make_closure(
            [wheel("p", binaries=[extension(f"p/a.cpython-3{minor}-x86_64-linux-gnu.so") for minor in (10, 12)])]
        ),
    ),
    passes(
        "dead-extension",
        "a library with such a suffix that is loaded by its path",
        around_torch(wheel("p", binaries=[library("p/_C.cpython-310-x86_64-linux-gnu.so", needed=["libtorch.so"])])),
    ),
    fails(
        "dead-extension",
        "an extension for another interpreter",
        make_closure([wheel("p", binaries=[extension("p/a.cpython-310-x86_64-linux-gnu.so")])]),
        "warning",
        "p 1.0 has 1 extension that CPython 3.12 does not import: `p/a.cpython-310-x86_64-linux-gnu.so`",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def the_only_error(closure: Closure) -> Finding:
    (error,) = run_checks(closure).errors
    return error


TORCHVISION = kernel(
    "torchvision",
    "0.24.1",
    needed=("libtorch.so", "libcudart.so.12"),
    undefined=(CHECK_OLD,),
    labels=[Label("torchvision/version.py", "__version__", "0.24.1+cu128")],
    requires=["torch==2.9.1"],
)


def test_one_wrong_wheel_is_one_error_with_everything_that_follows_as_its_evidence() -> None:
    found = the_only_error(around_torch(TORCHVISION))
    assert found.message == "torchvision 0.24.1 is built for CUDA 12.8, torch 2.11.0 for CUDA 13.0"
    assert found.evidence == (
        "torchvision/ops.abi3.so needs libcudart.so.12; the lock provides libcudart.so.13 (nvidia-cuda-runtime 13.0.96)",
        "torchvision/version.py says `__version__ = '0.24.1+cu128'`",
        "torchvision METADATA: Requires-Dist: torch==2.9.1",
        "torch/version.py says `cuda = '13.0'`",
        "torch/lib/libtorch_global_deps.so needs libcudart.so.13",
        "torchvision 0.24.1 requires `torch==2.9.1`, the lock has torch 2.11.0",
    )
    assert found.hint == "use torchvision 0.26, the release built with torch 2.11.0"
    assert (found.packages, found.path) == (("torchvision", "torch"), "torchvision/ops.abi3.so")


def test_symbol_with_other_parameters_is_shown_beside_that_of_torch() -> None:
    found = the_only_error(around_torch(kernel("k", undefined=(CHECK_OLD,))))
    assert found.evidence == (f"k/ops.abi3.so needs {CHECK_OLD}; torch 2.11.0 exports {CHECK_NEW}",)


def test_symbol_that_torch_does_not_have_at_all_is_told() -> None:
    found = the_only_error(around_torch(kernel("k", undefined=("_ZN2at3newEv",))))
    assert found.evidence == ("k/ops.abi3.so needs _ZN2at3newEv; torch 2.11.0 exports no `at::new`",)


def test_library_of_the_host_is_named_beside_a_mismatch() -> None:
    """Two causes are two errors."""
    both = kernel("k", needed=("libtorch.so", "libcudart.so.12", "libnuma.so.1"))
    assert [each.check for each in run_checks(around_torch(both)).errors] == ["cuda-major-mismatch", "host-library"]


def test_mismatch_of_a_wheel_that_loads_but_for_the_host_is_a_second_runtime() -> None:
    both = kernel("k", needed=("libtorch.so", "libcudart.so.12", "libnuma.so.1"))
    found = run_checks(around_torch(both, cuda_runtime(12, "12.8.90"))).errors
    assert [each.check for each in found] == ["dual-cuda-runtime", "host-library"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sgl-kernel", "use sglang-kernel 0.4.2 or later, its successor"),
        ("torchaudio", "use torchaudio 2.11, the release built with torch 2.11.0"),
        ("k", "use a build of k for CUDA 13.0"),
    ],
)
def test_hint_names_the_release_where_it_is_known(name: str, hint: str) -> None:
    assert the_only_error(around_torch(kernel(name, needed=("libtorch.so", "libcudart.so.12")))).hint == hint


def test_where_torch_is_not_what_the_spec_asks_for_the_hint_is_another_torch() -> None:
    closure = make_closure(
        [
            torch("2.9.1", cuda="12.8"),
            cuda_runtime(12, "12.8.90"),
            kernel("k", needed=("libtorch.so", "libcudart.so.13")),
        ],
        spec(),
    )
    found = the_only_error(closure)
    assert found.message == "k 1.0 is built for CUDA 13, torch 2.9.1 for CUDA 12.8"
    assert found.hint == "the spec asks for CUDA 13.0: use torch 2.11 or later"


def test_names_out_of_a_wheel_are_safe_to_show() -> None:
    odd = kernel("k", needed=("lib\x1b[31m\nx.so.1",), undefined=("a\x07b",))
    for finding in run_checks(make_closure([odd])).findings:
        for text in (finding.subject, finding.message, finding.hint, finding.path, *finding.evidence):
            assert text.isprintable()
