"""Which probes are run by hand, and what is made of how they end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.verify import by_hand

if TYPE_CHECKING:
    from pathlib import Path


def test_every_probe_has_its_place_in_the_order() -> None:
    scripts = {path.stem for path in by_hand.PROBES.glob("*.py") if "\nABOUT" in path.read_text(encoding="utf-8")}
    assert scripts == set(by_hand.ORDER)
    assert [by_hand.about_of(name)["id"] for name in by_hand.ORDER] == list(by_hand.ORDER)


@pytest.mark.parametrize(
    ("name", "modules", "gpus", "why"),
    [
        ("torch", ["torch"], 1, ""),
        ("torch", [], 1, "no torch"),
        ("torch", ["torch"], 0, "0 GPUs"),
        ("triton", ["torch", "triton"], 0, ""),
        ("libraries", ["torch"], 0, ""),
        ("nccl", ["torch"], 1, "1 GPUs"),
        ("nccl", ["torch"], 2, ""),
    ],
)
def test_a_probe_is_left_out_for_want_of_modules_or_gpus(name: str, modules: list[str], gpus: int, why: str) -> None:
    facts: dict[str, Any] = {"modules": modules, "gpus": [["NVIDIA H200", "9.0"]] * gpus}
    assert by_hand.left_out(by_hand.about_of(name), facts) == why


def test_a_probe_without_what_it_probes_fails_at_its_imports(tmp_path: Path) -> None:
    request = {"set": "quick", "mode": "run", "seed": 1}
    ran = by_hand.run_one(sys.executable, "torchvision", request, 60, tmp_path / "run")
    assert ran["ending"] == ""
    assert [(case["case"], case["result"]) for case in ran["cases"]] == [("import", "fail")]
    assert "No module named 'torch'" in ran["cases"][0]["reason"]
