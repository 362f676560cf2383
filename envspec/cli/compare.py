"""`envspec verify --compare A B`: the figures of two receipts side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envspec.cli.hosts import say_table
from envspec.cli.output import say, say_json, tell
from envspec.cli.proofs import RECEIPTS, number_text
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from builder.receipts import StoredReceipt
    from envspec.cli.options import Inputs
    from envspec.probe import Case, ProbeRun

Key = tuple[str, int | None, str, str]


def say_comparison(inputs: Inputs, store: Path, names: tuple[str, str], *, as_json: bool) -> int:
    """Show the figures of two receipts side by side.

    Args:
        inputs: The spec: saved receipts lie beside it.
        store: The store of this machine.
        names: Of two hosts, whose newest receipts are taken, or two files.
        as_json: Whether to print one JSON object.

    Returns:
        0: to compare is not to judge.

    Raises:
        EnvspecError: There is no such receipt.
    """
    folders = (store / "receipts", inputs.spec_path.parent / RECEIPTS)
    left, right = (_find(name, folders) for name in names)
    cells = (_figures(left), _figures(right))
    keys = list(dict.fromkeys([*cells[0], *cells[1]]))
    if as_json:
        say_json(
            {
                "receipts": [_about(name, each) for name, each in zip(names, (left, right), strict=True)],
                "figures": [
                    {
                        "probe": key[0],
                        "gpu": key[1],
                        "case": key[2],
                        "figure": key[3],
                        "unit": next(side[key][1] for side in cells if key in side) or None,
                        "values": [side[key][0] if key in side else None for side in cells],
                    }
                    for key in keys
                ],
            }
        )
        return 0
    for name, each in zip(names, (left, right), strict=True):
        about = _about(name, each)
        say(
            f"{name}: {about['time']}, env {about['env']}, driver {about['driver'] or 'none'}, {about['gpus'] or 'no GPU'}"
        )
    if left.receipt.env != right.receipt.env:
        tell("warning: the two are of different environments")
    rows = []
    for key in keys:
        probe, gpu, case, figure = key
        values = [side[key][0] if key in side else None for side in cells]
        unit = next(side[key][1] for side in cells if key in side)
        rows.append(
            (
                probe if gpu is None else f"{probe} GPU {gpu}",
                case,
                f"{figure}{f' [{unit}]' if unit else ''}",
                *("-" if value is None else number_text(value) for value in values),
                _ratio(values),
            )
        )
    say_table(("probe", "case", "figure", names[0], names[1], "ratio"), rows)
    return 0


def _find(name: str, folders: tuple[Path, ...]) -> StoredReceipt:
    from builder.receipts import newest_of, read_stored  # noqa: PLC0415

    if "/" in name or name.endswith(".json"):
        return read_stored(Path(name))
    found = newest_of(name, folders)
    if found is None:
        raise EnvspecError(
            f"there is no receipt of `{name}` with figures of probes",
            hint=f"`envspec verify --host {name}` makes one; `envspec receipts list` shows what there is",
        )
    return found


def _figures(stored: StoredReceipt) -> dict[Key, tuple[float | int | str, str]]:
    found: dict[Key, tuple[float | int | str, str]] = {}
    for run in stored.receipt.runs:
        for case in run.cases:
            found |= _of_case(run, case)
    return found


def _of_case(run: ProbeRun, case: Case) -> dict[Key, tuple[float | int | str, str]]:
    found: dict[Key, tuple[float | int | str, str]] = {
        (run.id, run.gpu, case.case, figure.name): (figure.value, figure.unit) for figure in case.figures
    }
    if case.result == "fail" or not case.figures:
        found[run.id, run.gpu, case.case, "result"] = (case.result, "")
    return found


def _ratio(values: list[float | int | str | None]) -> str:
    left, right = values
    if isinstance(left, (int, float)) and isinstance(right, (int, float)) and left:
        return f"{right / left:.2f}"
    return "" if left == right else "differs"


def _about(name: str, stored: StoredReceipt) -> dict[str, Any]:
    receipt = stored.receipt
    gpus = [str(gpu.get("name", "")) for gpu in receipt.host.get("gpus") or [] if isinstance(gpu, dict)]
    kinds = sorted(set(gpus))
    return {
        "name": name,
        "file": os.fspath(stored.path),
        "time": receipt.time,
        "env": receipt.env,
        "driver": receipt.host.get("driver") or None,
        "gpus": f"{len(gpus)} x {', '.join(kinds)}" if gpus else None,
    }
