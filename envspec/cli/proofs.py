"""What a verification found, as it is shown, kept and signed: the same for this machine, hosts and venvs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.cli.output import say
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from envspec.cli.options import Inputs
    from envspec.likely import Cause
    from envspec.lock import Lock
    from envspec.probe import Figure
    from envspec.receipt import Receipt
    from envspec.spec import Spec

RECEIPTS = "receipts"
"""Folder of receipts beside the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What becomes of receipts."""

    folder: Path | None
    """Of the repository; None if they are not saved there."""

    key: Path | None
    """That signs them; None if none does."""

    store: Path
    """The store of this machine."""

    def keep(self, receipt: Receipt, *, host: str = "", seen: Mapping[str, Any] | None = None) -> Path | None:
        """Save and sign a receipt.

        Args:
            receipt: The receipt.
            host: As the spec calls it; empty for this machine, whose store has the receipt already.
            seen: Of a host: the receipt with what this machine saw besides.

        Returns:
            The file that is best to look at; None if there is none here.

        Raises:
            EnvspecError: It cannot be signed.
            OSError: It cannot be written.
        """
        from builder.receipts import keep  # noqa: PLC0415 - each verb loads what it needs

        paths: list[Path] = []
        if seen is not None:
            from builder.agent.store import Store  # noqa: PLC0415
            from builder.host_receipts import keep_receipt  # noqa: PLC0415

            kept = keep_receipt(Store(self.store), seen)
            paths += [] if kept is None else [kept]
        elif self.key is not None:
            paths.append(keep(self.store / RECEIPTS, receipt.fields))
        if self.folder is not None:
            paths.append(keep(self.folder, seen or receipt.fields, host=host or receipt.host_name))
        if self.key is not None:
            from builder.signing import sign  # noqa: PLC0415

            for path in paths:
                sign(path, self.key, os.environ)
        if not paths:  # the store has it from whoever made it
            name = f"{receipt.time.replace(':', '')}-{receipt.kind}.json"
            there = self.store / RECEIPTS / receipt.env / name
            return there if there.is_file() else None
        return paths[-1]


def keeping_of(inputs: Inputs, store: Path, *, save: bool, key: Path | None) -> Keeping:
    """What the options say that becomes of receipts.

    Args:
        inputs: The spec; saved receipts lie beside it.
        store: The store of this machine.
        save: Whether they are saved in the repository.
        key: That signs them.

    Raises:
        EnvspecError: There is no such key.
    """
    if key is not None and not key.is_file():
        raise EnvspecError(
            f"there is no key at `{key}`", input_name="--sign", hint="give an SSH key: `--sign ~/.ssh/id_ed25519`"
        )
    folder = inputs.spec_path.parent / RECEIPTS if save else None
    return Keeping(folder=folder, key=None if key is None else key.absolute(), store=store)


def computes_of(spec: Spec) -> tuple[str, ...]:
    """Compute capabilities that an environment is for."""
    return () if spec.cuda is None else spec.cuda.compute


def lock_if_any(inputs: Inputs) -> Lock | None:
    """The lock; None if there is none."""
    return inputs.parse_lock() if inputs.lock_bytes is not None else None


def proof_to_json(receipt: Receipt, spec: Spec, causes: Mapping[str, tuple[Cause, ...]]) -> dict[str, Any]:
    """What `--json` says of a verification's probes.

    Args:
        receipt: The receipt.
        spec: The spec.
        causes: Id of a probe that failed -> likely causes.
    """
    from envspec.claims import claims_of  # noqa: PLC0415
    from envspec.gpu_table import rates_of  # noqa: PLC0415

    return {
        "probes": [{"id": name, "result": result, "reason": reason} for name, result, reason in receipt.probes],
        "set": receipt.set,
        "verified": receipt.verified,
        "runs": [run.to_json() for run in receipt.runs],
        "left_out": [{"id": name, "reason": reason} for name, reason in receipt.left_out],
        "claims": claims_of(receipt, computes_of(spec)).to_json(),
        "rates": [rate.to_json() for rate in rates_of(receipt)],
        "causes": {name: [cause.to_json() for cause in found] for name, found in causes.items()},
    }


def say_proof(receipt: Receipt, spec: Spec) -> None:
    """Print each probe, what is left out, and what is claimed on which ground."""
    from envspec.claims import claims_of  # noqa: PLC0415

    width = max((len(name) for name, _, _ in receipt.probes), default=0)
    for name, result, reason in receipt.probes:
        say(f"{name:{max(width, 8)}} {result}{f' ({reason})' if reason else ''}")
    for name, reason in receipt.left_out:
        say(f"{name:{max(width, 8)}} left out ({reason})")
    for line in claims_of(receipt, computes_of(spec)).lines():
        say(f"claims   {line}")
    say_rates(receipt)


def say_rates(receipt: Receipt) -> None:
    """Print what each GPU of several reached, and which of them stands out; nothing for one GPU."""
    from envspec.cli.hosts import say_table  # noqa: PLC0415
    from envspec.gpu_table import rates_of  # noqa: PLC0415

    rates = rates_of(receipt)
    if not rates:
        return
    rows = []
    for rate in rates:
        cells = ["-" if value is None else number_text(value) for value in rate.values]
        marked = [f"{cell} SLOW" if gpu in rate.slow else cell for gpu, cell in enumerate(cells)]
        rows.append((rate.probe, rate.case, rate.unit, number_text(rate.of), *marked))
    say_table(("probe", "case", "unit", "chip", *(f"GPU {gpu}" for gpu in range(len(rates[0].values)))), rows)
    for gpu in range(len(rates[0].values)):
        slow = [rate for rate in rates if gpu in rate.slow]
        if slow:
            worst = min(slow, key=lambda rate: (rate.values[gpu] or 0.0) / rate.median)
            share = 100 * (worst.values[gpu] or 0.0) / worst.median
            say(
                f"GPU {gpu} stands out: in {len(slow)} of {len(rates)} it is more than 10 % under the median, "
                f"at worst {share:.0f} % of it ({worst.probe}, {worst.case})"
            )


def failure_of(receipt: Receipt, lock: Lock | None, lock_name: str, target: str) -> EnvspecError | None:
    """The error that failing probes are; None if none failed.

    Args:
        receipt: The receipt.
        lock: The lock, if there is one.
        lock_name: Of its file.
        target: Options that say where: `--host ct200`.
    """
    from builder.explaining import causes_of, failing_runs, failure_lines  # noqa: PLC0415

    failing = failing_runs(receipt)
    if not failing:
        return None
    names = ", ".join(f"`{run.id}`" for run in failing)
    return EnvspecError(
        f"{len(failing)} probe{'s' if len(failing) != 1 else ''} failed: {names}",
        input_name=lock_name,
        detail="\n".join(failure_lines(receipt, causes_of(receipt, lock), target)),
        exit_code=FOUND_WRONG,
    )


def figure_text(figure: Figure) -> str:
    """A figure for a person, with its bound or what the chip can do."""
    text = number_text(figure.value)
    if figure.unit:
        text += f" {figure.unit}"
    if figure.bound is not None:
        text += f" (bound {number_text(figure.bound)})"
    if figure.of and not isinstance(figure.value, str):
        text += f" ({100 * figure.value / figure.of:.0f} % of {number_text(figure.of)})"
    return text


def number_text(value: float | str) -> str:
    """A number for a person."""
    if isinstance(value, (str, int)):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
