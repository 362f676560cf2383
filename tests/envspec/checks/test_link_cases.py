"""Public reports of environments that cannot load, with facts of the wheels that they were about.

C01 to C10 and C32 are numbers of a collection of such reports. Each has the pair as a user would force it, and the nearest good neighbour.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from envspec.checks import run_checks
from envspec.spec import CudaSpec
from tests.support.facts import make_closure, make_spec
from tests.support.recorded_links import FACTS, recorded
from tests.support.wheels import expand_tag

if TYPE_CHECKING:
    from envspec.checks import Closure, Verdict
    from envspec.facts import Finding

OF_CUDA_12 = ("nvidia-cuda-runtime-cu12-12.8.90",)
OF_CUDA_13 = ("nvidia-cuda-runtime-13.0.96", "nvidia-cuda-nvrtc-13.0.88", "nvidia-cublas-13.1.0.3")
OTHER_CHECKS = frozenset({"tag-mismatch", "generic-top-level", "absolute-runpath"})
"""Of the wheels as such, not of how they fit together."""


def environment(*wheels: str, toolkit: str = "13.0", libraries: tuple[str, ...] = ("libnuma.so.1",)) -> Closure:
    """Recorded wheels, with what a user of them declares and overrides."""
    facts = [recorded(wheel) for wheel in wheels]
    spec = make_spec(
        [f"{each.name}=={each.version.partition('+')[0]}" for each in facts],
        overrides=[f"{each.name}=={each.version.partition('+')[0]}" for each in facts if each.name == "torch"],
    )
    spec = replace(
        spec,
        cuda=CudaSpec(toolkit=toolkit, compute=()),
        target=replace(spec.target, libraries=libraries),
    )
    # Tags are another matter.
    tags = [tag for each in facts for tag in (*each.wheel_tags, *expand_tag(_tag(each.filename)))]
    return make_closure(facts, spec, accepted_tags=tags)


def _tag(filename: str) -> str:
    return "-".join(filename.removesuffix(".whl").split("-")[-3:])


def verdict(*wheels: str, toolkit: str = "13.0", libraries: tuple[str, ...] = ("libnuma.so.1",)) -> Verdict:
    return run_checks(environment(*wheels, toolkit=toolkit, libraries=libraries))


def the_only_error(found: Verdict) -> Finding:
    """The error that there is one of, and that comes first."""
    assert [each.message for each in found.errors] == [found.errors[0].message]
    assert found.findings[0] == found.errors[0]
    return found.errors[0]


def test_good_neighbours_fit() -> None:
    """torch 2.11.0 with the releases that belong to it: no error, and of linking no warning but what is known of the wheels."""
    found = verdict(
        *("torch-2.11.0", "torchvision-0.26.0", "torchaudio-2.11.0", "sglang-kernel-0.4.2", "triton-3.6.0"), *OF_CUDA_13
    )
    assert found.errors == ()
    warnings = {each.check for each in found.findings if each.severity == "warning"} - OTHER_CHECKS
    assert warnings <= {"dead-extension"}


def test_c01_kernels_for_cuda_13_beside_torch_for_cuda_12() -> None:
    found = the_only_error(verdict("torch-2.9.1", "sglang-kernel-0.4.2", *OF_CUDA_12))
    assert found.check == "cuda-major-mismatch"
    assert found.message == "sglang-kernel 0.4.2 is built for CUDA 13.0, torch 2.9.1 for CUDA 12.8"
    assert found.hint == "the spec asks for CUDA 13.0: use torch 2.11 or later"
    assert found.evidence[0] == (
        "deep_gemm/deep_gemm_cpp.abi3.so and 5 more need libcudart.so.13; the lock provides libcudart.so.12 "
        "(nvidia-cuda-runtime-cu12 12.8.90)"
    )


def test_c01_with_a_spec_for_cuda_12_other_kernels_are_advised() -> None:
    found = the_only_error(verdict("torch-2.9.1", "sglang-kernel-0.4.2", *OF_CUDA_12, toolkit="12.8"))
    assert found.hint == "use sglang-kernel 0.4.0 or sgl-kernel 0.3.21"


def test_c02_kernels_for_cuda_12_beside_torch_for_cuda_13() -> None:
    found = the_only_error(verdict("torch-2.11.0", "sgl-kernel-0.3.21", *OF_CUDA_13))
    assert found.check == "cuda-major-mismatch"
    assert found.message == "sgl-kernel 0.3.21 is built for CUDA 12.9, torch 2.11.0 for CUDA 13.0"
    assert found.hint == "use sglang-kernel 0.4.2 or later, its successor"
    assert any(
        "libnvrtc.so.12; the lock provides libnvrtc.so.13 (nvidia-cuda-nvrtc 13.0.88)" in line
        for line in found.evidence
    )


def test_c02_is_not_mended_by_the_other_runtime() -> None:
    """Whoever adds the libraries of CUDA 12 still has symbols that torch does not export."""
    found = verdict("torch-2.11.0", "sgl-kernel-0.3.21", *OF_CUDA_13, *OF_CUDA_12).errors
    assert [each.check for each in found] == ["cuda-major-mismatch"]


def test_c03_torchvision_from_another_cuda_line() -> None:
    found = the_only_error(verdict("torch-2.11.0", "torchvision-0.24.1", *OF_CUDA_13))
    assert found.check == "cuda-major-mismatch"
    assert found.message == "torchvision 0.24.1 is built for CUDA 12.8, torch 2.11.0 for CUDA 13.0"
    assert found.hint == "use torchvision 0.26, the release built with torch 2.11.0"
    assert found.packages == ("torchvision", "torch")
    assert found.path == "torchvision/_C.so"
    assert found.evidence[0] == (
        "torchvision/_C.so needs libcudart.so.12; the lock provides libcudart.so.13 (nvidia-cuda-runtime 13.0.96)"
    )
    for fact in (
        "torchvision/version.py says `__version__ = '0.24.1+cu128'`",
        "torchvision/_C.so has GPU code made by CUDA 12.8.93",
        "torchvision METADATA: Requires-Dist: torch (==2.9.1)",
        "torch/version.py says `cuda = '13.0'`",
    ):
        assert fact in found.evidence


def test_c03_torchvision_whose_symbols_all_fit_is_caught_by_its_cuda() -> None:
    found = the_only_error(verdict("torch-2.11.0", "torchvision-0.25.0", *OF_CUDA_13))
    assert found.message == "torchvision 0.25.0 is built for CUDA 12.8, torch 2.11.0 for CUDA 13.0"


def test_c03_torchvision_whose_cuda_fits_is_caught_by_its_symbols() -> None:
    found = the_only_error(verdict("torch-2.11.0", "torchvision-0.27.0", *OF_CUDA_13))
    assert found.check == "torch-abi-mismatch"
    assert found.message == "torchvision 0.27.0 needs `torch::Library::_def`, which torch 2.11.0 does not export"
    assert found.hint == "use torchvision 0.26, the release built with torch 2.11.0"


def test_c04_torchaudio_without_a_pin_on_torch() -> None:
    found = the_only_error(verdict("torch-2.10.0", "torchaudio-2.11.0", *OF_CUDA_12, toolkit="12.8"))
    assert found.check == "cuda-major-mismatch"
    assert found.message == "torchaudio 2.11.0 is built for CUDA 13.0, torch 2.10.0 for CUDA 12.8"
    assert found.hint == "use torchaudio 2.10, the release built with torch 2.10.0"


@pytest.mark.parametrize("torch", ["torch-2.11.0", "torch-2.14.1"])
def test_c04_torchaudio_keeps_to_the_stable_interface_of_torch(torch: str) -> None:
    """A later torch of the same CUDA is no mistake."""
    found = verdict(torch, "torchaudio-2.11.0", *OF_CUDA_13)
    assert [each.check for each in found.findings if each.severity != "info" and each.check not in OTHER_CHECKS] == []


def test_c05_framework_for_another_cuda_than_torch() -> None:
    found = verdict("torch-2.10.0", "vllm-0.33.0", *OF_CUDA_12, toolkit="12.8").errors
    assert found[0].check == "cuda-major-mismatch"
    assert found[0].message == "vllm 0.33.0 is built for CUDA 13.0, torch 2.10.0 for CUDA 12.8"
    assert found[0].hint == "use a build of vllm for CUDA 12.8"
    assert [each.check for each in found].count("cuda-major-mismatch") == 1


def test_c06_parts_of_one_package_that_own_the_same_files() -> None:
    found = the_only_error(verdict("nvidia-cutlass-dsl-libs-base-4.4.1", "nvidia-cutlass-dsl-libs-cu13-4.4.1"))
    assert found.check == "file-collision"
    assert "nvidia-cutlass-dsl-libs-base" in found.message
    assert "nvidia-cutlass-dsl-libs-cu13" in found.message


@pytest.mark.parametrize("successor", ["sglang-kernel-0.4.0", "sglang-kernel-0.4.10"])
def test_c07_package_beside_its_successor(successor: str) -> None:
    found = verdict("sgl-kernel-0.3.21", successor)
    assert [each.check for each in found.errors].count("file-collision") == 1


def test_c10_library_of_the_system_that_nobody_installs() -> None:
    found = the_only_error(verdict("torch-2.11.0", "sglang-kernel-0.4.2", *OF_CUDA_13, libraries=()))
    assert found.check == "host-library"
    assert found.message == (
        "libnuma.so.1 is needed by sglang-kernel 0.4.2, and the spec does not say that the hosts have it"
    )
    assert found.hint == "add `libnuma.so.1` to `libraries` in [target] and install it on the hosts"


def test_c10_declared_library_is_enough() -> None:
    assert verdict("torch-2.11.0", "sglang-kernel-0.4.2", *OF_CUDA_13).errors == ()


def test_c32_copies_of_the_runtime_of_one_major_are_no_mistake() -> None:
    """torchvision brings a libcudart of its own, beside that of NVIDIA's wheel."""
    copies = [each.path for each in recorded("torchvision-0.26.0").binaries.binaries if "libcudart" in each.path]
    assert copies
    found = verdict("torch-2.11.0", "torchvision-0.26.0", *OF_CUDA_13)
    assert found.errors == ()


def test_c32_variants_for_two_cudas_are_no_second_runtime() -> None:
    found = verdict("torch-2.11.0", "torch-memory-saver-0.0.9.post1", *OF_CUDA_13)
    assert found.errors == ()
    assert [each.severity for each in found.findings if each.check == "no-fitting-variant"] == ["info"]


def test_c32_tools_for_two_cudas_in_one_package_are_no_second_runtime() -> None:
    """triton has libcupti of 12 and 13 side by side, for its profiler to choose."""
    assert verdict("torch-2.11.0", "triton-3.6.0", *OF_CUDA_13).errors == ()


def test_c32_second_runtime_that_loads_is_an_error() -> None:
    found = the_only_error(verdict("torch-2.11.0", "torchvision-0.25.0", *OF_CUDA_13, *OF_CUDA_12))
    assert found.check == "dual-cuda-runtime"
    assert found.message == (
        "torchvision 0.25.0 would load the libraries of CUDA 12.8, torch 2.11.0 those of CUDA 13.0, in one process"
    )


def test_recorded_facts_are_small() -> None:
    assert sum(path.stat().st_size for path in FACTS.iterdir()) < 300_000
