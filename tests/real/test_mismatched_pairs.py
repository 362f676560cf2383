"""Pairs of real packages that a resolver accepts and that do not work: `envspec lock` refuses each and names the cause first.

Beside each stands the nearest pair that works, which has to lock without an error. `ENVSPEC_REAL_STORE` names the store, whose wheels are used.
The pairs that need another torch than the flagship's take 3 GB of downloads each, and run where `ENVSPEC_REAL_PAIRS=all` is set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
ALL = os.environ.get("ENVSPEC_REAL_PAIRS", "") == "all"
SNAPSHOT = "2026-11-01T00:00:00Z"

if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A small spec."""

    packages: dict[str, str]
    overrides: dict[str, str] = field(default_factory=dict)
    toolkit: str = "13.0"
    compute: tuple[str, ...] = ("9.0", "12.0")
    require: tuple[str, ...] = ()
    host: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """In TOML."""
        lines = [
            "envspec = 1",
            'name = "pair"',
            f"snapshot = {SNAPSHOT}",
            '[python]\nversion = "3.12"',
            '[target]\nplatform = "linux-x86_64"\nglibc = "2.35"\nlibraries = ["libnuma.so.1"]',
            f'[cuda]\ntoolkit = "{self.toolkit}"\ncompute = {json.dumps(list(self.compute))}',
            f"require-gpu-code = {json.dumps(list(self.require))}",
            "[packages]",
            *(f'{name} = "=={version}"' for name, version in self.packages.items()),
            "[overrides]",
            *(f'{name} = "=={version}"' for name, version in self.overrides.items()),
        ]
        if self.host:
            lines += ["[hosts.spark]", *(f'{key} = "{value}"' for key, value in self.host.items())]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair that does not work, what is said of it, and its good neighbour."""

    name: str
    bad: Wanted
    check: str
    says: str
    """What the first error says, whole."""

    good: Wanted
    needs_all: bool = False

    def __str__(self) -> str:
        return self.name


TORCH = {"torch": "2.11.0"}
PAIRS = (
    Pair(
        name="torch 2.11.0 + torchvision 0.24.1",
        bad=Wanted(packages={**TORCH, "torchvision": "0.24.1"}, overrides=TORCH),
        check="cuda-major-mismatch",
        says="torchvision 0.24.1 is built for CUDA 12.8, torch 2.11.0 for CUDA 13.0",
        good=Wanted(packages={**TORCH, "torchvision": "0.26.0"}),
    ),
    Pair(
        name="torch 2.9.1 + sglang-kernel 0.4.2",
        bad=Wanted(packages={"torch": "2.9.1", "sglang-kernel": "0.4.2"}),
        check="cuda-major-mismatch",
        says="sglang-kernel 0.4.2 is built for CUDA 13.0, torch 2.9.1 for CUDA 12.8",
        good=Wanted(packages={**TORCH, "sglang-kernel": "0.4.2"}),
        needs_all=True,
    ),
    Pair(
        name="torch 2.11.0 + sgl-kernel 0.3.21",
        bad=Wanted(packages={**TORCH, "sgl-kernel": "0.3.21"}),
        check="cuda-major-mismatch",
        says="sgl-kernel 0.3.21 is built for CUDA 12.9, torch 2.11.0 for CUDA 13.0",
        good=Wanted(packages={"torch": "2.9.1", "sgl-kernel": "0.3.21"}, toolkit="12.8"),
        needs_all=True,
    ),
    Pair(
        name="torch 2.10.0 + torchaudio 2.11.0",
        bad=Wanted(packages={"torch": "2.10.0", "torchaudio": "2.11.0"}, toolkit="12.8"),
        check="cuda-major-mismatch",
        says="torchaudio 2.11.0 is built for CUDA 13.0, torch 2.10.0 for CUDA 12.8",
        good=Wanted(packages={**TORCH, "torchaudio": "2.11.0"}),
        needs_all=True,
    ),
    Pair(
        name="opencv-python + opencv-python-headless 4.12.0.88",
        bad=Wanted(packages={"opencv-python": "4.12.0.88", "opencv-python-headless": "4.12.0.88"}),
        check="file-collision",
        says="opencv-python and opencv-python-headless have different contents for 3 of 79 shared files: `cv2/cv2.abi3.so`, "
        "`cv2/typing/__init__.py` and `cv2/version.py`",
        good=Wanted(packages={"opencv-python-headless": "4.12.0.88"}),
    ),
    Pair(
        name="nvidia-cutlass-dsl-libs-base + -libs-cu13 4.4.1",
        bad=Wanted(packages={"nvidia-cutlass-dsl-libs-base": "4.4.1", "nvidia-cutlass-dsl-libs-cu13": "4.4.1"}),
        check="file-collision",
        says="nvidia-cutlass-dsl-libs-base and nvidia-cutlass-dsl-libs-cu13 have different contents for 93 of 175 shared files",
        good=Wanted(packages={"nvidia-cutlass-dsl-libs-base": "4.8.0", "nvidia-cutlass-dsl-libs-cu13": "4.8.0"}),
    ),
    Pair(
        name="flashinfer-python 0.6.13 + flashinfer-cubin 0.6.12",
        bad=Wanted(packages={**TORCH, "flashinfer-python": "0.6.13", "flashinfer-cubin": "0.6.12"}),
        check="lock-step",
        says="flashinfer-python 0.6.13 and flashinfer-cubin 0.6.12 must be of one version",
        good=Wanted(packages={**TORCH, "flashinfer-python": "0.6.12", "flashinfer-cubin": "0.6.12"}),
    ),
    Pair(
        name="a host with driver 570.86",
        bad=Wanted(packages=TORCH, host={"compute": "12.0", "driver": "570.86.10"}),
        check="driver-too-old",
        says="host spark has driver 570.86.10; torch 2.11.0 is built for CUDA 13.0, which needs driver 580 or later",
        good=Wanted(packages=TORCH, host={"compute": "12.0", "driver": "580.65.06"}),
    ),
    Pair(
        name="a host of compute 12.1 with sglang-kernel in require-gpu-code",
        bad=Wanted(
            packages={**TORCH, "sglang-kernel": "0.4.2"},
            compute=("9.0", "12.1"),
            require=("sglang-kernel",),
            host={"compute": "12.1"},
        ),
        check="gpu-code-missing",
        says="sglang-kernel 0.4.2 has 3 libraries for GPUs of compute capability 12.x without code for 12.1 (host spark)",
        good=Wanted(
            packages={**TORCH, "sglang-kernel": "0.4.2"},
            compute=("9.0", "12.0"),
            require=("sglang-kernel",),
            host={"compute": "12.0"},
        ),
    ),
)


def lock(wanted: Wanted, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Lock a spec: exit code, what it printed as JSON, and stderr."""
    (folder / "pair.toml").write_text(wanted.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "envspec", "lock", "--store", STORE, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_pair_is_refused_and_its_cause_is_named_first(pair: Pair, tmp_path: Path) -> None:
    if pair.needs_all and not ALL:
        pytest.skip("needs another torch, 3 GB of downloads: ENVSPEC_REAL_PAIRS=all runs it")
    code, answer, said = lock(pair.bad, tmp_path)
    errors = [finding for finding in answer["findings"] if finding["severity"] == "error"]
    assert code == 1, said
    assert answer["written"] is False
    assert not (tmp_path / "pair.lock").exists()
    assert errors[0]["check"] == pair.check
    assert pair.says in errors[0]["message"]
    assert errors[0]["hint"]
    assert said.startswith(f"error: {errors[0]['message']}")
    assert len(errors) == 1, errors


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_its_good_neighbour_locks(pair: Pair, tmp_path: Path) -> None:
    if pair.needs_all and not ALL:
        pytest.skip("its neighbour is skipped, or needs another torch: ENVSPEC_REAL_PAIRS=all runs it")
    code, answer, said = lock(pair.good, tmp_path)
    assert code == 0, said
    assert answer["written"] is True
    assert [finding["message"] for finding in answer["findings"] if finding["severity"] == "error"] == []
