"""Why a probe fails, most likely: what it says beside what the checks and the lock know."""

from __future__ import annotations

from typing import Any

import pytest

from envspec.checks import registered_checks
from envspec.likely import likely_causes
from envspec.lock import Lock, LockedFinding, LockedNeeds, LockedOverlay, LockedPackage, LockedPatch
from envspec.receipt import receipt_of
from tests.support.receipts import case, receipt, run

MODULES = {
    "torchvision": ("torch", "torchvision"),
    "sgl_kernel": ("torch", "sgl_kernel"),
    "triton": ("torch", "triton"),
    "ddtree": ("torch", "sglang"),
    "libraries": ("torch",),
}


def package(name: str, version: str, cuda: str = "", code: tuple[str, ...] = ()) -> LockedPackage:
    return LockedPackage(
        name=name,
        version=version,
        index="default",
        file=f"{name}.whl",
        size=1,
        sha256="0" * 64,
        tree="1" * 64,
        cuda=cuda,
        gpu_code=code,
    )


def lock() -> Lock:
    packages = (
        package("sglang", "0.5.11"),
        package("sglang-kernel", "0.4.2", "13.0", ("sm_100a", "sm_120a")),
        package("torch", "2.11.0", "13.0", ("sm_90", "sm_120")),
        package("torchvision", "0.26.0", "13.0", ("sm_90",)),
    )
    overlay = LockedOverlay(
        package="sglang",
        series="overlays/ddtree/series",
        base_sha256="0" * 64,
        patches=(LockedPatch(name="0001.patch", sha256="2" * 64),) * 9,
        files=(),
        version="0.5.11+ddtree.1",
        file="x.whl",
        size=1,
        sha256="3" * 64,
        tree="4" * 64,
    )
    finding = LockedFinding(
        check="gpu-code-missing",
        severity="warning",
        subject="sglang-kernel",
        message="sglang-kernel 0.4.2 has no code for compute 9.0 in 1 library",
        waived="not used",
    )
    return Lock(
        spec_sha256="0" * 64,
        env="a" * 32,
        site="1" * 64,
        name="demo",
        snapshot="",
        python="3.12",
        python_exact="",
        platform="linux-x86_64",
        glibc="2.35",
        libraries=(),
        cuda_toolkit="13.0",
        cuda_compute=("9.0", "12.0"),
        needs=LockedNeeds(driver="580"),
        packages=packages,
        overlays=(overlay,),
        findings=(finding,),
    )


def causes(
    probe: str, reason: str, *, stderr: str = "", figures: dict[str, Any] | None = None, **changes: Any
) -> list[str]:
    failed = run(
        probe,
        case("one", "fail", reason, **(figures or {})),
        result="fail",
        reason=f"one: {reason}",
        stderr=stderr or None,
    )
    made = receipt_of(receipt(failed, **changes), name="x")
    found = likely_causes(made.runs[0], made, lock(), MODULES)
    known = {check.id for check in registered_checks()}
    assert {cause.check for cause in found} <= known | {""}
    return [cause.line() for cause in found]


def differs(name: str, version: str, cuda: str = "") -> dict[str, Any]:
    return {
        "package": name,
        "kind": "other version",
        "version": version,
        "detail": f"{version}, the lock has another",
        "cuda": cuda,
    }


TORCHVISION_128 = {"differ": [differs("torchvision", "0.24.1", "12.8")]}

TABLE: dict[str, tuple[list[str], str]] = {
    "a library that LD_LIBRARY_PATH brings in": (
        causes(
            "libraries",
            "/usr/local/cuda-12/lib64/libcudart.so.13 is mapped from outside the environment",
            variables={"LD_LIBRARY_PATH": "/x:/usr/local/cuda-12/lib64/"},
        ),
        (
            "`/usr/local/cuda-12/lib64/libcudart.so.13` is loaded, which is not the environment's: LD_LIBRARY_PATH names "
            "`/usr/local/cuda-12/lib64` [dual-cuda-runtime]; take it out of LD_LIBRARY_PATH"
        ),
    ),
    "a library that LD_PRELOAD brings in": (
        causes("libraries", "LD_PRELOAD loads /opt/libcublas.so.12", variables={"LD_PRELOAD": "/opt/libcublas.so.12"}),
        (
            "`/opt/libcublas.so.12` is loaded, which is not the environment's: LD_PRELOAD names `/opt/libcublas.so.12` [dual-cuda-runtime]; "
            "take it out of LD_PRELOAD"
        ),
    ),
    "torchvision of another CUDA line in a venv": (
        causes("torchvision", "operator torchvision::nms does not exist", venv=TORCHVISION_128),
        (
            "torchvision 0.24.1 is built for CUDA 12.8, torch 2.11.0 for CUDA 13.0 [cuda-major-mismatch]; "
            "use the build of torchvision for CUDA 13.0"
        ),
    ),
    "a package of a venv that is not the locked one": (
        causes("sgl_kernel", "x", venv={"differ": [differs("sglang-kernel", "0.4.1")]}),
        "sglang-kernel is not the locked one: 0.4.1, the lock has another; install what the lock has, or `envspec build`",
    ),
    "a file that drifted": (
        causes("ddtree", "masks differ", drift=[["modified", "sglang/srt/x.py", "its content", "sglang"]]),
        "sglang is not what was built: `sglang/srt/x.py`; `envspec build --repair` makes it anew",
    ),
    "a symbol of another torch": (
        causes(
            "torchvision", "x", stderr="ImportError: /e/torchvision/_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"
        ),
        "`_C.so` needs `_ZN3c104cuda9SetDeviceEa`, which nothing loaded defines [torch-abi-mismatch]; it was built for another torch",
    ),
    "a library of another CUDA": (
        causes("torchvision", "libcudart.so.12: cannot open shared object file: No such file or directory"),
        "something needs `libcudart.so.12` of CUDA 12, the lock has CUDA 13.0 [cuda-major-mismatch]; use the build for that CUDA",
    ),
    "a library of the host": (
        causes("sgl_kernel", "libnuma.so.1: cannot open shared object file: No such file or directory"),
        "`libnuma.so.1` is not found [missing-library]; install what it is in, and declare it in [target]",
    ),
    "no code for the GPU": (
        causes("sgl_kernel", "CUDA error: no kernel image is available for execution on the device"),
        (
            "sglang-kernel 0.4.2 has code for sm_100a, sm_120a; this GPU has compute capability 9.0 [gpu-code-missing]; "
            "use a build that covers it; `envspec check` lists what does"
        ),
    ),
    "another ptxas": (
        causes(
            "triton", "ptxas fatal: Value 'sm_90a' is not defined", variables={"TRITON_PTXAS_PATH": "/usr/bin/ptxas"}
        ),
        "TRITON_PTXAS_PATH names `/usr/bin/ptxas`, which takes the place of triton's own ptxas [assembler-too-old]; unset it",
    ),
    "an old driver": (
        causes("libraries", "CUDA driver version is insufficient for CUDA runtime version"),
        "the NVIDIA driver is 580.95.05, the lock needs 580 or later [driver-too-old]; upgrade it, or lock for an older CUDA",
    ),
    "a sick GPU": (
        causes("torchvision", "CUDA error: uncorrectable ECC error encountered"),
        "the GPU reports a fault of its own; see `nvidia-smi -q` and the kernel's log (Xid)",
    ),
    "a full GPU": (
        causes("torchvision", "CUDA out of memory. Tried to allocate 2 GiB"),
        "the GPU has too little free memory; see what else uses it (`nvidia-smi`)",
    ),
    "wrong numbers in a patched package": (
        causes("ddtree", "relative error is 0.5", figures={"relative_error": {"value": 0.5, "bound": 0.006}}),
        "sglang is patched here: 9 patches of `overlays/ddtree/series`; repeat the probe with one patch fewer",
    ),
    "wrong numbers": (
        causes("torchvision", "boxes differ"),
        (
            "a kernel computes something else than its reference; repeat it on another GPU: if it is right there, this GPU is sick; "
            "else the build is wrong"
        ),
    ),
    "a slow GPU": (
        causes("torchvision", "300 TFLOP/s, less than 40% of the 989 that this chip can do"),
        "the GPU is slower than its kind; see clocks, temperature and other users (`nvidia-smi -q`)",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_likely_cause_comes_first(name: str) -> None:
    found, expected = TABLE[name]
    assert found[:1] == [expected]


def test_what_the_lock_let_through_is_said_of_the_packages_concerned() -> None:
    assert (
        "the lock let through: sglang-kernel 0.4.2 has no code for compute 9.0 in 1 library (waived: not used)"
        in "\n".join(causes("sgl_kernel", "something else"))
    )
    assert causes("torchvision", "something else") == []


def test_the_driver_s_own_libraries_and_the_environment_s_are_no_strangers() -> None:
    prefix = receipt()["prefix"]
    text = f"/usr/lib/x86_64-linux-gnu/libcuda.so.580.95 {prefix}/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13"
    assert causes("libraries", text) == []


def test_a_hang_is_told_from_a_crash() -> None:
    failed = run("triton", result="fail", reason="no end after 60 s, its limit before its first case", cases=[])
    made = receipt_of(receipt(failed), name="x")
    (cause,) = likely_causes(made.runs[0], made, None, MODULES)
    assert cause.message == "it hangs, or what it compiles takes longer than its limit"
