"""Probes in the environment that the lock builds, as far as a machine without a GPU can run them.

Kernels are compiled for the GPUs of the lock; comparisons are given right and wrong results by plain torch in place of kernels; faults that do
not need a GPU to be found are planted in a copy. As the other tests here they need `ENVSPEC_REAL_STORE`; the copy lies beside the store, for
its hard links.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.verify import faults
from builder.agent.driver_stub import BuiltStub, build_stub, driver_symbols, find_compiler, has_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
PROBES = ROOT / "builder" / "probes"
TRIAL = ROOT / "tests/builder/probes/in_environment/trial.py"
STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
TIMEOUT_S = 600

if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Place]:
    """A copy of the environment for faults, as a machine without a GPU runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "envspec", "build", "--store", STORE, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    environment = Path(json.loads(done.stdout)["hosts"][0]["path"])
    environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8"}
    environ["HOME"] = os.fspath(tmp_path_factory.mktemp("home"))
    if not has_driver(environment / "bin/python", environ=environ):
        files = [Path(folder) / name for folder, _, names in os.walk(environment) for name in names]
        needs = driver_symbols(file for file in files if file.is_file())
        stub = build_stub(tmp_path_factory.mktemp("stub"), needs, find_compiler(os.environ), environ=dict(os.environ))
        if not isinstance(stub, BuiltStub):
            pytest.skip(stub.reason)
        environ["LD_LIBRARY_PATH"] = os.fspath(stub.folder)
    environ["CUDA_VISIBLE_DEVICES"] = ""
    work = Path(f"{STORE}-faults")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        faults.copy_of(environment, work / "copy")
        yield faults.Place(
            root=work / "copy",
            site=next((work / "copy").glob("lib/python3*/site-packages")),
            work=work,
            base_wheel=next(Path(STORE, "wheels").glob("*/sglang-0.5.11-*.whl"), None),
            torchvision_wheel=None,
            compute="",
            environ=environ,
        )
    finally:
        shutil.rmtree(work)


def figures_of(place: faults.Place, probe: str) -> dict[str, dict[str, object]]:
    """The records of a probe in compile mode, by case."""
    folder = place.work / "compile"
    folder.mkdir(exist_ok=True)
    request = {
        "set": "quick",
        "mode": "compile",
        "compute": ["9.0", "12.0"],
        "seed": 3,
        "prefix": str(place.root),
        "site": str(place.site),
        "toolkit": "13.0",
    }
    done = subprocess.run(
        [place.root / "bin/python", "-s", PROBES / f"{probe}.py"],
        input=json.dumps(request) + "\n",
        cwd=folder,
        env={**place.environ, "TRITON_CACHE_DIR": str(folder / "triton")},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records, done.stderr
    assert records[-1] == {"end": True, "cases": len(records) - 1}, done.stderr
    return {record["case"]: record for record in records[:-1]}


def trial(place: faults.Place, probe: str, groups: dict[str, tuple[str, ...]]) -> dict[str, dict[str, str]]:
    """Results by fault and case on the CPU, with a fault in what stands for the kernels."""
    folder = place.work / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PROBES, folder)
    done = subprocess.run(
        [
            place.root / "bin/python",
            "-s",
            TRIAL,
            folder,
            probe,
            *(f"{fault}={','.join(cases)}" for fault, cases in groups.items()),
        ],
        cwd=place.work,
        env=place.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    found: dict[str, dict[str, str]] = {}
    fault = ""
    for line in done.stdout.splitlines():
        record = json.loads(line)
        if "fault" in record:
            fault = record["fault"]
            found[fault] = {}
        elif "case" in record:
            found[fault][record["case"]] = record["result"]
    assert {fault: set(results) for fault, results in found.items()} == {
        fault: set(cases) for fault, cases in groups.items()
    }, done.stderr
    return found


def test_libraries_of_the_environment_come_from_the_environment(place: faults.Place) -> None:
    records = figures_of(place, "libraries")
    assert {record["result"] for record in records.values()} == {"pass"}
    assert {"import-torch", "import-torchvision", "import-sgl_kernel", "import-flashinfer", "mapped", "runtime"} <= set(
        records
    )


@pytest.mark.parametrize(("probe", "kernels"), [("triton", 8), ("ddtree", 6)])
def test_kernels_compile_for_every_gpu_of_the_lock(place: faults.Place, probe: str, kernels: int) -> None:
    records = figures_of(place, probe)
    compiled = [record for record in records.values() if record["result"] == "compiled"]
    assert len(compiled) == kernels
    assert {record["result"] for record in records.values()} == {"compiled", "pass"}
    for record in compiled:
        figures = record["figures"]
        assert isinstance(figures, dict)
        assert {"registers", "spilled", "code", "shared_memory"} <= set(figures), record["case"]
        assert 0 < figures["registers"]["value"] <= 255


SGL_KERNEL = (
    "rmsnorm-bfloat16-7x256",
    "silu-and-mul-float16-7x256",
    "rotary-neox-5",
    "top-k-renorm-3x1000",
    "top-p-renorm-3x1000",
    "fp8-scaled-mm-16x256x128",
    "build-tree-17",
    "verify-tree-16x65",
)
TORCH = ("copy", "matmul-bf16-321x257x123", "matmul-fp8-336x272x128", "convolution-3x17x31", "sum")
DDTREE = ("walk", "build-8x63", "mask-3x63", "attention-9-0+5-64")
FLASHINFER = ("decode-3x70", "prefill-mask-9-0+5")
# Probe -> fault -> the cases that are tried, and those of them that must find it.
TRIALS: dict[str, dict[str, tuple[tuple[str, ...], set[str]]]] = {
    "sgl_kernel": {
        "none": (SGL_KERNEL, set()),
        "one": (SGL_KERNEL[:6], set(SGL_KERNEL[:6])),
        "nan": (SGL_KERNEL[:6], set(SGL_KERNEL[:6])),
        "tile": (SGL_KERNEL[:6], set(SGL_KERNEL[:6])),
        "coarse": (SGL_KERNEL[:5], set(SGL_KERNEL[:5])),
        "off-by-one": (SGL_KERNEL, {"top-k-renorm-3x1000", "top-p-renorm-3x1000", "verify-tree-16x65"}),
        "style": (SGL_KERNEL[:3], {"rotary-neox-5"}),
        "mask": (SGL_KERNEL[6:], {"build-tree-17"}),
        "links": (SGL_KERNEL[6:], {"build-tree-17"}),
    },
    "torch": {"none": (TORCH, set()), "one": (TORCH, set(TORCH)), "nan": (TORCH[1:4], set(TORCH[1:4]))},
    "ddtree": {
        "none": (DDTREE, set()),
        "order": (DDTREE[:2], {"build-8x63"}),
        "mask": (DDTREE[2:], {"mask-3x63", "attention-9-0+5-64"}),
        "pack": (DDTREE[2:], {"mask-3x63", "attention-9-0+5-64"}),
        "causal": (DDTREE[2:], {"mask-3x63", "attention-9-0+5-64"}),
        "walk": (DDTREE[:1], {"walk"}),
    },
    "flashinfer": {
        "none": (FLASHINFER, set()),
        "last-page": (FLASHINFER, set(FLASHINFER)),
        "unmasked": (FLASHINFER, {"prefill-mask-9-0+5"}),
    },
    "torchvision": {"none": (("cuda", "nms-1000", "roi-align-5x3x20"), set())},
}


@pytest.mark.parametrize("probe", sorted(TRIALS))
def test_comparisons_pass_right_results_and_find_wrong_ones(place: faults.Place, probe: str) -> None:
    wanted = TRIALS[probe]
    results = trial(place, probe, {fault: cases for fault, (cases, _) in wanted.items()})
    failed = {fault: {case for case, result in cases.items() if result == "fail"} for fault, cases in results.items()}
    assert failed == {fault: found for fault, (_, found) in wanted.items()}


@pytest.mark.parametrize("name", [fault.name for fault in faults.FAULTS if fault.without_gpu])
def test_planted_faults_are_found(place: faults.Place, name: str) -> None:
    outcome = faults.try_fault(place, next(fault for fault in faults.FAULTS if fault.name == name))
    assert outcome.caught is True, (outcome.why, outcome.before, outcome.after)


def test_a_mask_bug_in_the_series_own_file_is_found(place: faults.Place) -> None:
    with contextlib.ExitStack() as undo:
        faults.mask_bug(place, undo)
        found = trial(place, "ddtree", {"none": ("walk", "mask-3x63")})
    assert found == {"none": {"walk": "pass", "mask-3x63": "fail"}}
