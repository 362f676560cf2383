"""`driver-too-old`, and the least driver of an environment; the public report C11."""

from __future__ import annotations

from typing import Any

import pytest

from envspec.binaries import Binary, BinaryFacts, CubinCount, Label, Reference
from envspec.checks import run_checks
from envspec.checks.driver import DriverFloor, cuda_evidence, function_since, least_driver
from envspec.spec import HostSpec
from tests.support.facts import Row, fails, make_binary, make_closure, make_facts, make_spec, passes
from tests.support.recorded import recorded_facts


def host(driver: str, name: str = "old") -> HostSpec:
    return HostSpec(name=name, ssh=name, driver=driver)


def linked(path: str, *symbols: str, weak: bool = False) -> Binary:
    """A library that needs functions of the driver's."""
    return make_binary(
        path,
        needed=("libcuda.so.1", "libc.so.6"),
        undefined=tuple(Reference(name, weak, "", "") for name in (*symbols, "malloc")),
    )


def extension(name: str, **more: Any) -> Binary:
    """A library that Python imports."""
    return make_binary(f"{name}.abi3.so", exports=f"PyInit_{name}", **more)


TORCH = make_facts("torch", "2.11.0", binaries=BinaryFacts(labels=(Label("torch/version.py", "cuda", "13.0"),)))
TORCH_12 = make_facts("torch", "2.9.1", binaries=BinaryFacts(labels=(Label("torch/version.py", "cuda", "12.8"),)))
HEADER = make_facts(
    "nvidia-cuda-runtime",
    binaries=BinaryFacts(
        driver_functions=(
            ("cuCtxCreate", (2000, 3020, 11040)),
            ("cuGreenCtxCreate", (12040,)),
            ("cuLaunchKernel", (4000,)),
            ("cuNew", (13010,)),
        )
    ),
)
GREEN = make_facts("green", binaries=[linked("green/_C.so", "cuGreenCtxCreate", "cuLaunchKernel")])
HOOKS = make_facts(
    "hooks",
    binaries=[
        make_binary(f"hook{cuda}.abi3.so", needed=(f"libcudart.so.{major}",))
        for cuda, major in [("", 12), ("_cu12", 12), ("_cu13", 13)]
    ],
)

ROWS = (
    passes("driver-too-old", "a new driver", make_closure([TORCH], make_spec(hosts=[host("580.65.06")]))),
    passes("driver-too-old", "a driver that nobody stated", make_closure([TORCH], make_spec(hosts=[host("")]))),
    passes(
        "driver-too-old", "CUDA 12 with a driver of its", make_closure([TORCH_12], make_spec(hosts=[host("525.60.13")]))
    ),
    passes("driver-too-old", "nothing for a GPU", make_closure([make_facts("a")], make_spec(hosts=[host("390.10")]))),
    passes(
        "driver-too-old",
        "libraries of which there is one for each CUDA",
        make_closure([TORCH_12, HOOKS], make_spec(hosts=[host("570.86")])),
    ),
    passes(
        "driver-too-old",
        "NVIDIA's own libraries, which nothing is linked to",
        make_closure(
            [make_facts("nvidia-x", binaries=[make_binary("x.so", needed=("libcudart.so.13",))])],
            make_spec(hosts=[host("570.86")]),
        ),
    ),
    passes(
        "driver-too-old",
        "a function that the driver has",
        make_closure([TORCH_12, HEADER, GREEN], make_spec(hosts=[host("550.54.14")])),
    ),
    passes(
        "driver-too-old",
        "a function that may be missing",
        make_closure(
            [TORCH_12, HEADER, make_facts("weak", binaries=[linked("w.so", "cuGreenCtxCreate", weak=True)])],
            make_spec(hosts=[host("535.54.03")]),
        ),
    ),
    passes(
        "driver-too-old",
        "a function, and no header that says since when",
        make_closure([TORCH_12, GREEN], make_spec(hosts=[host("535.54.03")])),
    ),
    fails(
        "driver-too-old",
        "a driver below that of the CUDA major",
        make_closure([TORCH], make_spec(hosts=[host("570.86"), host("580.65.06", "new")])),
        "error",
        "host old has driver 570.86; torch 2.11.0 is built for CUDA 13.0, which needs driver 580 or later",
    ),
    fails(
        "driver-too-old",
        "CUDA by the runtime that a library is linked to",
        make_closure(
            [make_facts("k", binaries=[extension("k", needed=("libcudart.so.13",))])],
            make_spec(hosts=[host("570.86")]),
        ),
        "error",
        "host old has driver 570.86; k 1.0 is built for CUDA 13, which needs driver 580 or later",
    ),
    fails(
        "driver-too-old",
        "CUDA by the notes in GPU code",
        make_closure(
            [make_facts("k", binaries=[extension("k", gpu={"sm_90": 1}, releases=["12.9.86", "13.1.80"])])],
            make_spec(hosts=[host("570.86")]),
        ),
        "error",
        "host old has driver 570.86; k 1.0 is built for CUDA 13.1, which needs driver 580 or later",
    ),
    fails(
        "driver-too-old",
        "CUDA by the notes in raw cubins",
        make_closure(
            [make_facts("k", binaries=BinaryFacts(cubins=(CubinCount("sm_90", 1),), releases=("12.9.86",)))],
            make_spec(hosts=[host("470.42.01")]),
        ),
        "error",
    ),
    fails(
        "driver-too-old",
        "a function that came later",
        make_closure([TORCH_12, HEADER, GREEN], make_spec(hosts=[host("535.54.03")])),
        "error",
        "host old has driver 535.54.03; green 1.0 needs `cuGreenCtxCreate`, which came with CUDA 12.4 and driver 550.54.14",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_c11_driver_too_old_for_torch_of_cuda_13_names_both_remedies() -> None:
    wheels = [recorded_facts(name) for name in ("torch-2.11.0", "sglang-kernel-0.4.2", "nvidia-cuda-runtime-13.0.96")]
    closure = make_closure(wheels, make_spec(compute=["9.0"], hosts=[host("570.86.10", "a")]))
    [finding] = [each for each in run_checks(closure).findings if each.check == "driver-too-old"]
    assert finding.severity == "error"
    assert finding.subject == "host a"
    assert finding.message == (
        "host a has driver 570.86.10; torch 2.11.0 is built for CUDA 13.0, which needs driver 580 or later"
    )
    assert finding.hint == (
        "install driver 580 or later on a, or choose packages that are built for CUDA 12, which runs with driver 525 or later: "
        "torch 2.10 or earlier; sglang-kernel 0.4.0 or sgl-kernel 0.3.21"
    )
    assert finding.packages == ("torch", "sglang-kernel")
    assert finding.evidence[:2] == (
        "torch 2.11.0: torch/version.py says `cuda = '13.0'`",
        "sglang-kernel 0.4.2: deep_gemm/deep_gemm_cpp.abi3.so needs libcudart.so.13",
    )


def test_c11_floor_of_the_flagship_is_known_from_its_wheels() -> None:
    wheels = [recorded_facts(name) for name in ("torch-2.11.0", "sglang-kernel-0.4.2", "nvidia-cuda-runtime-13.0.96")]
    floor = least_driver(make_closure(wheels))
    assert (floor.driver, floor.cuda_major) == ("580", 13)
    assert [each.package for each in floor.cuda_evidence] == ["torch", "sglang-kernel"]
    assert floor.function is not None
    assert (floor.function.path, floor.function.since) == ("sgl_kernel/spatial_ops.abi3.so", (12, 4))
    assert least_driver(make_closure(wheels[::-1])) == floor


def test_c11_floor_rises_from_cuda_12_to_13() -> None:
    assert least_driver(make_closure([TORCH_12])).driver == "525"
    assert least_driver(make_closure([TORCH])).driver == "580"
    assert least_driver(make_closure([TORCH_12, HEADER, GREEN])).driver == "550.54.14"


def test_floor_of_an_environment_without_cuda_is_none() -> None:
    assert least_driver(make_closure([make_facts("a"), HEADER])) == DriverFloor()


def test_floor_of_a_newer_function_lies_above_that_of_the_major() -> None:
    newer = make_facts("newer", binaries=[linked("n.so", "cuNew")])
    assert least_driver(make_closure([TORCH, HEADER, newer, GREEN])).driver == "590.44.01"


def test_newer_major_counts_and_torch_is_named_first() -> None:
    mixed = [make_facts("a", binaries=[extension("a", needed=("libcudart.so.13",))]), TORCH_12, HOOKS]
    assert [(each.package, each.cuda) for each in cuda_evidence(make_closure(mixed))] == [
        ("torch", "12.8"),
        ("a", "13"),
    ]
    floor = least_driver(make_closure(mixed))
    assert (floor.cuda_major, [each.package for each in floor.cuda_evidence]) == (13, ["a"])


FUNCTIONS = {
    "cuCtxCreate": (2000, 3020, 11040),
    "cuGetProcAddress": (11030, 12000),
    "cuMemcpy": (4000,),
    "cuLate": (12040,),
}


@pytest.mark.parametrize(
    ("symbol", "since"),
    [
        ("cuCtxCreate", 2000),
        ("cuCtxCreate_v2", 3020),
        ("cuCtxCreate_v3", 11040),
        ("cuCtxCreate_v9", 11040),
        ("cuGetProcAddress_v2", 12000),
        ("cuMemcpy_ptds", 7000),
        ("cuMemcpy_v2_ptsz", 7000),
        ("cuLate_ptsz", 12040),
        ("cuUnknown", 0),
        ("cudaMalloc", 0),
        ("cuCtxCreate_v0", 2000),
        ("", 0),
    ],
)
def test_function_is_found_in_all_its_spellings(symbol: str, since: int) -> None:
    assert function_since(symbol, FUNCTIONS) == since
