"""What is known of an environment's kernels after a verification, and how: run, only compiled, or proven from the wheels alone.

A kernel that ran on one GPU says nothing of another compute capability. What neither ran nor was compiled rests on the wheels: `envspec check`
proved that the libraries fit together and that there is code for the GPU, and not that the code is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.receipt import Receipt

NOT_OF_KERNELS = ("driver", "libraries")
"""Probes that are about the host, and so prove nothing for a compute capability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Ids of probes, each with the compute capabilities for which it holds."""

    run: tuple[tuple[str, tuple[str, ...]], ...]
    compiled: tuple[tuple[str, tuple[str, ...]], ...]
    wheels: tuple[tuple[str, tuple[str, ...]], ...]
    failed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        return {
            "run": {name: list(computes) for name, computes in self.run},
            "compiled": {name: list(computes) for name, computes in self.compiled},
            "wheels": {name: list(computes) for name, computes in self.wheels},
            "failed": list(self.failed),
        }

    def lines(self) -> tuple[str, ...]:
        """It for a person."""
        spoken = (
            ("run on a GPU", self.run),
            ("compiled only", self.compiled),
            ("from the wheels only", self.wheels),
        )
        lines = []
        for label, rows in spoken:
            named = [f"{name} ({', '.join(computes)})" if computes else name for name, computes in rows]
            if named:
                lines.append(f"{label}: {', '.join(named)}")
        if self.failed:
            lines.append(f"failed: {', '.join(self.failed)}")
        return tuple(lines)


def claims_of(receipt: Receipt, computes: Sequence[str]) -> Claims:
    """What a receipt claims of kernels.

    Args:
        receipt: The receipt.
        computes: Compute capabilities that the lock covers.
    """
    there = [str(gpu["compute"]) for gpu in receipt.host.get("gpus", [])]
    run: dict[str, set[str]] = {}
    compiled: dict[str, set[str]] = {}
    failed: list[str] = []
    names: list[str] = []
    for each in receipt.runs:
        if each.id in NOT_OF_KERNELS:
            continue
        if each.id not in names:
            names.append(each.id)
        if each.result == "fail":
            failed.append(each.id)
        elif each.result == "pass" and each.mode == "run" and there:
            on = there[each.gpu : each.gpu + 1] if each.gpu is not None else there
            run.setdefault(each.id, set()).update(on)
        elif each.result == "compiled":
            compiled.setdefault(each.id, set()).update(computes)
    wanted = list(computes)
    wheels = {
        name: {compute for compute in wanted if compute not in run.get(name, set()) | compiled.get(name, set())}
        for name in names
        if name not in failed
    }
    return Claims(
        run=tuple((name, _sorted(run[name])) for name in names if name in run and name not in failed),
        compiled=tuple((name, _sorted(compiled[name])) for name in names if name in compiled and name not in failed),
        wheels=tuple((name, _sorted(wheels[name])) for name in names if wheels.get(name)),
        failed=tuple(dict.fromkeys(failed)),
    )


def _sorted(computes: set[str]) -> tuple[str, ...]:
    return tuple(sorted(computes, key=lambda compute: [int(part) for part in compute.split(".") if part.isdecimal()]))
