"""`gpu-code-missing`, `gpu-code-partial`, `gpu-code-jit` and `assembler-too-old`; the public reports C12 and C13."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.binaries import Assembler, BinaryFacts, CubinCount
from envspec.checks import run_checks
from envspec.spec import HostSpec
from tests.support.facts import Row, fails, make_binary, make_closure, make_facts, make_spec, passes, waiver
from tests.support.recorded import recorded_facts

if TYPE_CHECKING:
    from envspec.facts import WheelFacts

SPARK = HostSpec(name="spark", ssh="spark", compute="12.1")
HOPPER = HostSpec(name="a", ssh="a", compute="9.0")

KERNELS = make_facts(
    "kernels",
    binaries=[
        make_binary("kernels/_C.so", gpu={"sm_80 sm_90": 3}),
        make_binary("kernels/_C90.so", gpu={"sm_90a": 2}),
        make_binary("kernels/plain.so"),
    ],
)
PTX = make_facts("ptx", binaries=[make_binary("ptx/_C.so", gpu={"sm_80 compute_80": 4}, releases=["13.1.80"])])
PARTIAL = make_facts("part", binaries=[make_binary("part/_C.so", gpu={"sm_120": 3, "sm_90a": 2})])
CUBINS = make_facts("cubins", binaries=BinaryFacts(cubins=(CubinCount("sm_100f", 5), CubinCount("sm_90a", 1))))


def assembling(name: str, version: str, *assemblers: tuple[str, str]) -> WheelFacts:
    """A wheel with assemblers: CUDA release and codes."""
    return make_facts(
        name,
        version,
        binaries=BinaryFacts(
            assemblers=tuple(
                Assembler(f"lib/python3.12/site-packages/{name}/bin/ptxas{number}", release, tuple(codes.split()))
                for number, (release, codes) in enumerate(assemblers)
            )
        ),
    )


ROWS = (
    passes("gpu-code-missing", "code for every capability", make_closure([KERNELS], make_spec(compute=["9.0"]))),
    passes("gpu-code-missing", "a spec without [cuda]", make_closure([KERNELS])),
    passes(
        "gpu-code-missing", "a package without GPU code", make_closure([make_facts("a")], make_spec(compute=["9.0"]))
    ),
    passes(
        "gpu-code-missing",
        "NVIDIA's own libraries",
        make_closure([recorded_facts("nvidia-cufft-12.0.0.61")], make_spec(compute=["9.0", "12.0"])),
    ),
    passes("gpu-code-missing", "cubins for the GPU", make_closure([CUBINS], make_spec(compute=["10.3", "9.0"]))),
    passes(
        "gpu-code-missing",
        "a library that is waived",
        make_closure(
            [KERNELS],
            make_spec(compute=["8.6"], waivers=[waiver("gpu-code-missing", "kernels", path="kernels/_C90.so")]),
        ),
    ),
    fails(
        "gpu-code-missing",
        "a library for another GPU alone",
        make_closure([KERNELS], make_spec(compute=["8.6", "9.0"])),
        "warning",
        "kernels 1.0 has 1 library without code for compute capability 8.6: `kernels/_C90.so`",
    ),
    fails(
        "gpu-code-missing",
        "several capabilities, with the hosts that have them",
        make_closure([KERNELS], make_spec(compute=["9.0", "12.1", "10.0"], hosts=[SPARK, HOPPER])),
        "warning",
        "kernels 1.0 has 2 libraries without code for compute capability 10.0 or 12.1 (host spark): "
        "`kernels/_C.so` and `kernels/_C90.so`",
    ),
    fails(
        "gpu-code-missing",
        "raw cubins for other GPUs",
        make_closure([CUBINS], make_spec(compute=["9.0", "12.0"])),
        "warning",
        "cubins 1.0 has 6 raw cubins, none of them for compute capability 12.0",
    ),
    fails(
        "gpu-code-missing",
        "a required package without any code for it",
        make_closure([KERNELS], make_spec(compute=["9.0", "12.0"], require_gpu_code=["kernels"])),
        "error",
        "kernels 1.0 has no library with machine code for compute capability 12.0",
    ),
    fails(
        "gpu-code-missing",
        "a required package with code for others of the major",
        make_closure(
            [
                make_facts(
                    "k", binaries=[make_binary("k/a.so", gpu={"sm_120a": 1}), make_binary("k/b.so", gpu={"sm_121": 1})]
                )
            ],
            make_spec(compute=["12.1"], require_gpu_code=["k"]),
        ),
        "error",
        "k 1.0 has 1 library for GPUs of compute capability 12.x without code for 12.1: `k/a.so`",
    ),
    passes(
        "gpu-code-missing",
        "a required package whose libraries all have PTX",
        make_closure([PTX], make_spec(compute=["12.0"], require_gpu_code=["ptx"])),
    ),
    fails(
        "gpu-code-missing",
        "a required package of which only some libraries have PTX",
        make_closure(
            [
                make_facts(
                    "k",
                    binaries=[make_binary("k/a.so", gpu={"compute_80": 1}), make_binary("k/b.so", gpu={"sm_80": 1})],
                )
            ],
            make_spec(compute=["9.0"], require_gpu_code=["k"]),
        ),
        "error",
        "k 1.0 has no library with machine code for compute capability 9.0",
    ),
    fails(
        "gpu-code-missing",
        "a required package that is not there",
        make_closure([], make_spec(compute=["9.0"], require_gpu_code=["kernls"])),
        "error",
        "`require-gpu-code` in [cuda] names kernls, which the environment does not have",
    ),
    fails(
        "gpu-code-missing",
        "a required package that compiles on the host",
        make_closure([make_facts("flash")], make_spec(compute=["9.0"], require_gpu_code=["flash"])),
        "error",
        "`require-gpu-code` in [cuda] names flash, which has no GPU code in its wheel",
    ),
    fails(
        "gpu-code-missing",
        "a required package of NVIDIA's",
        make_closure(
            [recorded_facts("nvidia-cufft-12.0.0.61")],
            make_spec(compute=["9.0"], require_gpu_code=["nvidia-cufft"]),
        ),
        "error",
        "`require-gpu-code` in [cuda] names nvidia-cufft, whose libraries choose their code at run time",
    ),
    passes("gpu-code-partial", "all or nothing", make_closure([KERNELS], make_spec(compute=["9.0", "12.0"]))),
    passes("gpu-code-partial", "raw cubins", make_closure([CUBINS], make_spec(compute=["9.0", "10.0"]))),
    fails(
        "gpu-code-partial",
        "some source files for another GPU",
        make_closure([PARTIAL], make_spec(compute=["12.0"])),
        "info",
        "part 1.0 has 1 library of which a part has no code for compute capability 12.0: `part/_C.so`",
    ),
    passes("gpu-code-jit", "machine code", make_closure([PTX], make_spec(compute=["8.9"]))),
    fails(
        "gpu-code-jit",
        "PTX alone",
        make_closure([PTX], make_spec(compute=["8.0", "9.0"], hosts=[HOPPER])),
        "info",
        "ptx 1.0 has 1 library with PTX alone for compute capability 9.0 (host a): `ptx/_C.so`",
    ),
    fails(
        "gpu-code-jit",
        "PTX that the host's driver cannot compile",
        make_closure([PTX], make_spec(compute=["9.0"], hosts=[replace(HOPPER, driver="580.65.06")])),
        "warning",
    ),
    fails(
        "gpu-code-jit",
        "a driver with which nothing runs, which is another check's",
        make_closure([PTX], make_spec(compute=["9.0"], hosts=[replace(HOPPER, driver="570.86")])),
        "info",
    ),
    passes(
        "assembler-too-old",
        "an assembler that knows the GPU",
        make_closure([assembling("triton", "3.6.0", ("12.9.86", "sm_121 sm_121a"))], make_spec(compute=["12.1"])),
    ),
    passes(
        "assembler-too-old",
        "one of two assemblers that knows the GPU",
        make_closure(
            [assembling("triton", "3.6.0", ("12.8.93", "sm_120"), ("12.9.86", "sm_121a"))],
            make_spec(compute=["12.0", "12.1"]),
        ),
    ),
    passes(
        "assembler-too-old",
        "a GPU whose name is not found by itself, in a release that knows it",
        make_closure([assembling("triton", "3.6.0", ("12.8.93", "sm_87 sm_90"))], make_spec(compute=["8.9"])),
    ),
    passes(
        "assembler-too-old",
        "an assembler of which nothing was read",
        make_closure([assembling("triton", "3.6.0", ("", ""))], make_spec(compute=["8.9"])),
    ),
    passes("assembler-too-old", "no [cuda]", make_closure([assembling("triton", "3.5.1", ("12.8.93", "sm_120"))])),
    fails(
        "assembler-too-old",
        "a GPU that came later",
        make_closure([assembling("jit", "1.0", ("12.8.93", "sm_90 sm_120a"))], make_spec(compute=["10.3", "12.1"])),
        "error",
        "jit 1.0 brings a `ptxas` of CUDA 12.8, which does not know compute capability 10.3 or 12.1",
    ),
    fails(
        "assembler-too-old",
        "torch's, which torch.compile alone uses",
        make_closure([assembling("torch", "2.9.1", ("12.8.93", "sm_120"))], make_spec(compute=["12.1"])),
        "warning",
    ),
    fails(
        "assembler-too-old",
        "a GPU that nobody knows yet",
        make_closure([assembling("jit", "1.0", ("", "sm_120"))], make_spec(compute=["99.9"])),
        "error",
        "jit 1.0 brings a `ptxas` of an unknown release, which does not know compute capability 99.9",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def found(check: str, wheels: list[str], **spec: object) -> list[tuple[str, str, str]]:
    """Severity, message and hint of what a check finds in recorded wheels."""
    closure = make_closure([recorded_facts(wheel) for wheel in wheels], make_spec(**spec))  # type: ignore[arg-type]
    return [(each.severity, each.message, each.hint) for each in run_checks(closure).findings if each.check == check]


def test_c12_optional_kernels_for_another_gpu_are_a_warning_that_names_them() -> None:
    [(severity, message, _)] = found("gpu-code-missing", ["sgl-flash-mla-1.0.0"], compute=["12.0"])
    assert severity == "warning"
    assert message == (
        "sgl-flash-mla 1.0.0 has 2 libraries without code for compute capability 12.0: "
        "`flash_mla/_C_legacy.abi3.so` and `flash_mla/cuda.abi3.so`"
    )


def test_c12_required_kernels_for_another_gpu_are_an_error() -> None:
    [(severity, message, hint)] = found(
        "gpu-code-missing", ["sgl-flash-mla-1.0.0"], compute=["12.0"], require_gpu_code=["sgl-flash-mla"]
    )
    assert severity == "error"
    assert message == "sgl-flash-mla 1.0.0 has no library with machine code for compute capability 12.0"
    assert "choose a release of sgl-flash-mla that has code for 12.0" in hint


def test_c12_torchvision_with_ptx_alone_is_informed_of() -> None:
    wheels = ["torchvision-0.21.0"]
    assert found("gpu-code-missing", wheels, compute=["12.0"]) == []
    [(severity, message, _)] = found("gpu-code-jit", wheels, compute=["12.0"])
    assert severity == "info"
    assert message == (
        "torchvision 0.21.0 has 2 libraries with PTX alone for compute capability 12.0: "
        "`torchvision.libs/libnvjpeg.02b6d700.so.12` and `torchvision/_C.so`"
    )


def test_c12_required_sglang_kernel_runs_on_12_0_though_two_of_its_libraries_do_not() -> None:
    [(severity, message, _)] = found(
        "gpu-code-missing", ["sglang-kernel-0.4.2"], compute=["9.0", "12.0"], require_gpu_code=["sglang-kernel"]
    )
    assert severity == "warning"
    assert message == (
        "sglang-kernel 0.4.2 has 2 libraries without code for compute capability 12.0: "
        "`sgl_kernel/flash_ops.abi3.so` and `sgl_kernel/flashmla_ops.abi3.so`"
    )


def test_c12_code_for_12_0_alone_does_not_count_for_12_1() -> None:
    [(severity, message, _)] = found(
        "gpu-code-missing",
        ["sglang-kernel-0.4.2"],
        compute=["12.1"],
        require_gpu_code=["sglang-kernel"],
        hosts=[SPARK],
    )
    assert severity == "error"
    assert message == (
        "sglang-kernel 0.4.2 has 2 libraries for GPUs of compute capability 12.x without code for 12.1 (host spark): "
        "`sgl_kernel/sm100/common_ops.abi3.so` and `sgl_kernel/spatial_ops.abi3.so`"
    )


@pytest.mark.parametrize("compute", ["9.0", "10.0", "10.3", "12.0", "12.1"])
def test_c12_torch_and_torchvision_of_cuda_13_run_everywhere(compute: str) -> None:
    wheels = ["torch-2.11.0", "torchvision-0.26.0", "torchaudio-2.11.0"]
    required = ["torch", "torchaudio", "torchvision"]
    assert found("gpu-code-missing", wheels, compute=[compute], require_gpu_code=required) == []
    assert found("gpu-code-partial", wheels, compute=[compute]) == []


def test_c12_nothing_in_torch_runs_on_thor() -> None:
    [(severity, message, _)] = found("gpu-code-missing", ["torch-2.11.0"], compute=["11.0"], require_gpu_code=["torch"])
    assert severity == "error"
    assert message == "torch 2.11.0 has no library with machine code for compute capability 11.0"


def test_c13_triton_3_5_1_cannot_assemble_for_12_1() -> None:
    [(severity, message, hint)] = found("assembler-too-old", ["triton-3.5.1"], compute=["12.0", "12.1"], hosts=[SPARK])
    assert severity == "error"
    assert message == (
        "triton 3.5.1 brings a `ptxas` of CUDA 12.8, which does not know compute capability 12.1 (host spark)"
    )
    assert hint == "use triton 3.6.0 or later"


@pytest.mark.parametrize(
    ("wheel", "compute"),
    [("triton-3.5.1", "12.0"), ("triton-3.6.0", "12.1"), ("triton-3.6.0", "8.9"), ("torch-2.11.0", "11.0")],
)
def test_c13_assembler_that_knows_the_gpu_passes(wheel: str, compute: str) -> None:
    assert found("assembler-too-old", [wheel], compute=[compute]) == []


def test_c13_triton_for_thor_is_named() -> None:
    [(_, _, hint)] = found("assembler-too-old", ["triton-3.6.0"], compute=["11.0"])
    assert hint == "use triton 3.7.1 or later"


def test_copies_of_a_library_are_counted_once() -> None:
    names = ["lib/m.so", "lib/m.so.0", "lib/m.so.0.6.0"]
    facts = make_facts(
        "k", files=dict.fromkeys(names, "same"), binaries=[make_binary(name, gpu={"sm_90": 1}) for name in names]
    )
    [finding] = [
        each
        for each in run_checks(make_closure([facts], make_spec(compute=["12.0"]))).findings
        if each.check == "gpu-code-missing"
    ]
    assert finding.message == "k 1.0 has 1 library without code for compute capability 12.0: `lib/m.so`"
    assert finding.evidence == ("lib/m.so: nothing for 12.0, has sm_90 in 1 fatbin, in 2 copies of it too",)


CODES = st.sampled_from(["sm_90", "sm_120a", "compute_90", "sm_100f", "kind-9"]) | st.from_regex(
    r"[a-z]{1,8}_[0-9]{0,5}[af]?", fullmatch=True
)
RELEASES = st.from_regex(r"[0-9]{1,5}(\.[0-9]{1,5}){1,3}", fullmatch=True)


@given(
    st.lists(st.tuples(st.lists(CODES, max_size=3), st.integers(1, 9)), max_size=3),
    st.lists(RELEASES, max_size=2),
    st.lists(st.tuples(RELEASES | st.just(""), st.lists(CODES, max_size=3)), max_size=2),
    st.sampled_from([[], ["odd"]]),
)
def test_whatever_a_wheel_carries_is_judged_without_raising(
    fatbins: list[tuple[list[str], int]],
    releases: list[str],
    assemblers: list[tuple[str, list[str]]],
    required: list[str],
) -> None:
    gpu = {" ".join(sorted(set(codes))): number for codes, number in fatbins}
    odd = make_facts(
        "odd",
        binaries=BinaryFacts(
            binaries=(make_binary("odd/_C.so", gpu=gpu, releases=releases),),
            cubins=tuple(CubinCount(code, number) for codes, number in fatbins for code in codes[:1]),
            releases=tuple(releases),
            assemblers=tuple(Assembler("odd/ptxas", release, tuple(codes)) for release, codes in assemblers),
        ),
    )
    spec = make_spec(compute=["9.0", "12.1"], require_gpu_code=required, hosts=[replace(SPARK, driver="580.65.06")])
    for finding in run_checks(make_closure([odd], spec)).findings:
        assert finding.message
        assert finding.message.isprintable()
