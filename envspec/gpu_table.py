"""The rates that a host's GPUs reached, side by side: one that is slower than the others shows.

A probe judges each GPU against what its chip can do by the data sheet, and a GPU passes that is a third slower than its neighbours. GPUs of
one host that do the same work are each other's best measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_high
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envspec.receipt import Receipt

SLOW = 0.9
"""A GPU below this share of the median stands out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What each GPU reached in one case."""

    probe: str
    case: str
    unit: str
    values: tuple[float | None, ...]
    """By GPU; None where it was not measured."""

    of: float
    """What the chip can do."""

    @property
    def median(self) -> float:
        """Of the GPUs; of an even number the higher of the two in the middle, so that of two the slower one is measured by the other."""
        return median_high([value for value in self.values if value is not None])

    @property
    def slow(self) -> tuple[int, ...]:
        """GPUs that stand out."""
        return tuple(gpu for gpu, value in enumerate(self.values) if value is not None and value < SLOW * self.median)

    def to_json(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        return {
            "probe": self.probe,
            "case": self.case,
            "unit": self.unit,
            "values": list(self.values),
            "of": self.of,
            "slow": list(self.slow),
        }


def rates_of(receipt: Receipt) -> tuple[Rate, ...]:
    """The rates of a receipt that at least two GPUs have, in the order of the probes."""
    gpus = 1 + max((run.gpu for run in receipt.runs if run.gpu is not None), default=0)
    found: dict[tuple[str, str, str, str], tuple[dict[int, float], float]] = {}
    for run in receipt.runs:
        if run.gpu is None or run.mode != "run":
            continue
        for case in run.cases:
            for figure in case.figures:
                if figure.of is not None and isinstance(figure.value, (int, float)):
                    key = (run.id, case.case, figure.name, figure.unit)
                    found.setdefault(key, ({}, figure.of))[0][run.gpu] = float(figure.value)
    return tuple(
        Rate(probe=probe, case=case, unit=unit, values=tuple(values.get(gpu) for gpu in range(gpus)), of=of)
        for (probe, case, _, unit), (values, of) in found.items()
        if len(values) > 1
    )
