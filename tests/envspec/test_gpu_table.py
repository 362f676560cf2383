"""Rates of a host's GPUs side by side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.gpu_table import SLOW, Rate, rates_of
from envspec.receipt import receipt_of
from tests.support.receipts import case, receipt, run


def rates(*values: float | None, **changes: Any) -> tuple[Rate, ...]:
    """Of one case, by GPU; None where nothing is known of the chip."""
    figures: list[dict[str, Any]] = [
        {"rate": {"value": 700.0, "unit": "TFLOP/s"} | ({} if value is None else {"value": value, "of": 989.0})}
        for value in values
    ]
    runs = [run("torch", case("matmul", **figure), gpu=gpu, **changes) for gpu, figure in enumerate(figures)]
    gpus = [{"name": "NVIDIA H200", "compute": "9.0", "memory_mib": 143771}] * len(values)
    host = {**receipt()["host"], "gpus": gpus}
    return rates_of(receipt_of(receipt(*runs, host=host), name="test"))


@pytest.mark.parametrize(
    ("values", "slow"),
    [
        ((780.0, 790.0), ()),
        ((780.0, 690.0), (1,)),
        ((600.0, 780.0, 790.0, 800.0), (0,)),
        ((780.0, 790.0, 700.0, 795.0, 801.0, 640.0, 790.0, 788.0), (2, 5)),
        ((400.0, 400.0, 400.0, 800.0), ()),
    ],
    ids=["two alike", "one of two", "one of four", "two of eight", "one that is faster"],
)
def test_a_gpu_more_than_a_tenth_below_the_median_stands_out(values: tuple[float, ...], slow: tuple[int, ...]) -> None:
    (rate,) = rates(*values)
    assert rate.values == values
    assert rate.slow == slow


def test_one_gpu_has_nothing_beside_it() -> None:
    assert rates(700.0) == ()


def test_what_has_no_measure_of_the_chip_is_left_out() -> None:
    (rate,) = rates(700.0, None, 710.0)
    assert rate.values == (700.0, None, 710.0)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=8))
def test_the_fastest_half_never_stands_out(values: list[float]) -> None:
    rate = Rate(probe="torch", case="copy", unit="GB/s", values=tuple(values), of=4800.0)
    assert len(rate.slow) <= len(values) // 2
    assert all(values[gpu] < SLOW * rate.median for gpu in rate.slow)
