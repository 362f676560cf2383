"""The machine that a venv was made for: what the host says, then what packages say, and what was assumed."""

from __future__ import annotations

from typing import Any

import pytest

from envspec.adoption.target import target_of
from envspec.binaries import Binary, BinaryFacts, GpuCode, Label
from envspec.errors import EnvspecError
from envspec.observed import ObservedPython
from tests.support.adoptions import SITE, distribution, observation

TORCH = BinaryFacts(
    labels=(Label("torch/version.py", "cuda", "13.0"),),
    binaries=(
        Binary(
            path=f"{SITE}/torch/lib/libtorch_cuda.so",
            machine="x86_64",
            kind="shared",
            gpu=GpuCode(fatbins=((("sm_90", "sm_120", "sm_75"), 4),)),
        ),
    ),
)


def python(**changes: Any) -> ObservedPython:
    values: dict[str, Any] = {
        "executable": "",
        "link": "",
        "version": "3.12.3",
        "minor": "3.12",
        "home": "",
        "system_site_packages": False,
    }
    return ObservedPython(**{**values, **changes})


def test_host_says_glibc_and_gpus_and_torch_says_cuda() -> None:
    gpus = [{"name": "B", "compute": "12.0"}, {"name": "A", "compute": "9.0"}, {"name": "B", "compute": "12.0"}]
    seen = observation(
        [distribution("torch", "2.11.0", {}, binaries=TORCH)],
        host={"glibc": "2.39", "machine": "aarch64", "gpus": gpus},
    )
    target = target_of(seen)
    assert (target.platform, target.glibc, target.cuda_toolkit, target.compute) == (
        "linux-aarch64",
        "2.39",
        "13.0",
        ("9.0", "12.0"),
    )
    assert target.notes == ()


def test_without_a_gpu_compute_is_what_torch_has_code_for_and_that_is_said() -> None:
    target = target_of(observation([distribution("torch", "2.11.0", {}, binaries=TORCH)]))
    assert target.compute == ("7.5", "9.0", "12.0")
    assert "no GPU was seen" in target.notes[0]


def test_cuda_runtime_says_the_line_where_torch_says_nothing() -> None:
    target = target_of(observation([distribution("nvidia-cuda-runtime-cu12", "12.8.90", {})]))
    assert target.cuda_toolkit == "12.8"


def test_venv_without_cuda_has_none() -> None:
    target = target_of(observation([distribution("six", "1.16.0", {})]))
    assert (target.cuda_toolkit, target.compute) == ("", ())


def test_tags_say_the_machine_where_the_host_says_nothing() -> None:
    each = distribution("numpy", "2", {}, wheel_tags=("cp312-cp312-manylinux_2_38_aarch64",))
    target = target_of(observation([each], host={}))
    assert (target.platform, target.glibc) == ("linux-aarch64", "2.38")
    assert "glibc of the host is not known" in target.notes[0]


@pytest.mark.parametrize(
    ("host", "labels"),
    [
        ({"glibc": "2.36; rm", "machine": 7, "gpus": "no list"}, "13.0; x"),
        ({"glibc": None, "gpus": [3, {"compute": "12.0\\n[packages]"}]}, "thirteen"),
    ],
)
def test_hostile_values_of_a_host_give_defaults(host: dict[str, Any], labels: str) -> None:
    torch = BinaryFacts(labels=(Label("torch/version.py", "cuda", labels),))
    target = target_of(observation([distribution("torch", "2", {}, binaries=torch)], host=host))
    assert target.glibc == "2.35"
    assert target.cuda_toolkit == ""


@pytest.mark.parametrize(("version", "exact"), [("3.12.3", "3.12.3"), ("3.12", ""), ("3.11.9", ""), ("x", "")])
def test_exact_python_is_one_of_the_minor_version(version: str, exact: str) -> None:
    assert target_of(observation(python=python(version=version))).python_exact == exact


@pytest.mark.parametrize("minor", ["", "3", "2.7", "3.12/../..", "3.12\n"])
def test_folder_without_a_python_is_refused(minor: str) -> None:
    with pytest.raises(EnvspecError, match="does not say for which Python"):
        target_of(observation(python=python(minor=minor)))
