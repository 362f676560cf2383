"""DDTREE on a GPU: `pytest -m gpu tests/benchmarks`, run by the Python of the built environment."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_sglang() -> None:
    pytest.importorskip("sglang")


def run(*command: str) -> None:
    subprocess.run([sys.executable, "-m", *command], check=True, timeout=400)


def test_kernel_attends_to_prefix_ancestors_and_itself(tmp_path: Path) -> None:
    run("benchmarks.ddtree.kernel_mask", "--out", str(tmp_path / "kernel.json"))
    found = json.loads((tmp_path / "kernel.json").read_text(encoding="utf-8"))
    assert found["passed"]
    assert found["least_error_if_parents_follow"]["130"] > found["bound"]


def test_engines_start_and_answer_with_the_lengths_that_were_asked_for(tmp_path: Path) -> None:
    places = ("--logs", str(tmp_path / "logs"), "--scratch", str(tmp_path / "scratch"))
    run("benchmarks.ddtree.smoke", "--out", str(tmp_path / "smoke.json"), *places)
    found = json.loads((tmp_path / "smoke.json").read_text(encoding="utf-8"))
    assert found["failed"] == {}
    lengths = {
        (engine, label): told.get("lengths")
        for engine, tries in found["engines"].items()
        for label, told in tries.items()
    }
    assert set(map(str, lengths.values())) == {str([24] * 5)}
