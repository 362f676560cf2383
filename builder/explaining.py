"""A receipt of proofs that fail -> an error that says what failed, why most likely, and how to repeat just that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.ordering_probes import probe_modules
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.likely import Cause, likely_causes
from envspec.receipt import Receipt, receipt_of

if TYPE_CHECKING:
    from builder.outcome import ProbesFailed
    from envspec.lock import Lock
    from envspec.probe import ProbeRun

STDERR_LINES = 12
SHOWN_RUNS = 5


class ReceiptError(EnvspecError):
    """An error with the receipt that it comes from.

    Attributes:
        receipt: The receipt.
        causes: Id of a probe that failed -> likely causes.
    """

    receipt: Receipt
    causes: dict[str, tuple[Cause, ...]]


def failing_runs(receipt: Receipt) -> tuple[ProbeRun, ...]:
    """The runs that failed; of one probe on several GPUs the first."""
    found: dict[str, ProbeRun] = {}
    for run in receipt.runs:
        if run.result == "fail":
            found.setdefault(run.id, run)
    return tuple(found.values())


def causes_of(receipt: Receipt, lock: Lock | None) -> dict[str, tuple[Cause, ...]]:
    """Id of each probe that failed -> its likely causes.

    Args:
        receipt: The receipt.
        lock: The lock, if it is known.
    """
    failing = failing_runs(receipt)
    modules = probe_modules() if failing else {}
    return {run.id: likely_causes(run, receipt, lock, modules) for run in failing}


def repeat_command(run: ProbeRun, receipt: Receipt, target: str) -> str:
    """The command that runs just what failed again, with the same inputs.

    Args:
        run: What failed.
        receipt: That it is part of.
        target: Options that say where, such as `--host ct200` or `--python PATH`.
    """
    failed = [case.case for case in run.cases if case.result == "fail"]
    case = f":{failed[0]}" if failed else ""
    seed = receipt.fields.get("seed")
    words = ["envspec verify", target, f"--probe {run.id}{case}"]
    if isinstance(seed, int):
        words.append(f"--seed {seed}")
    return " ".join(word for word in words if word)


def failure_lines(receipt: Receipt, causes: dict[str, tuple[Cause, ...]], target: str) -> list[str]:
    """What failed, for a person.

    Args:
        receipt: The receipt.
        causes: As `causes_of` has them.
        target: As for `repeat_command`.
    """
    lines: list[str] = []
    failing = failing_runs(receipt)
    for run in failing[:SHOWN_RUNS]:
        place = f" on {run.place}" if run.place else ""
        lines.append(f"{run.id}{place}: {run.reason}")
        lines += [f"  | {line}" for line in run.stderr.splitlines()[-STDERR_LINES:]]
        lines += [f"  likely cause: {cause.line()}" for cause in causes.get(run.id, ())]
        if run.mode != "skip":
            lines.append(f"  to repeat it: {repeat_command(run, receipt, target)}")
    if len(failing) > SHOWN_RUNS:
        lines.append(f"and {len(failing) - SHOWN_RUNS} more; `--json` has all")
    return lines


def explained(error: ProbesFailed, lock: Lock, lock_name: str, target: str) -> ReceiptError:
    """A build's failure with what explains it.

    Args:
        error: As it was raised where the environment lies.
        lock: What was built.
        lock_name: Of its file.
        target: Options that say where: `--host ct200`; empty for this machine.

    Raises:
        EnvspecError: The receipt is none: a host may say anything.
    """
    receipt = receipt_of(error.receipt, name="the receipt")
    causes = causes_of(receipt, lock)
    # What failed is not active, so it is named.
    where = " ".join(word for word in (target, f"--env {receipt.env}") if word)
    failing = failing_runs(receipt)
    first = failing[0] if failing else None
    names = ", ".join(f"`{run.id}`" for run in failing)
    message = f"the environment does not pass its probes: {names}"
    if first is not None and len(failing) == 1:
        message = f"the environment does not pass its probes: `{first.id}`, {first.reason}"
    found = ReceiptError(
        message,
        input_name=f"{lock_name}, [verify] kernels",
        hint=error.hint,
        detail="\n".join(failure_lines(receipt, causes, where)),
        exit_code=FOUND_WRONG,
    )
    found.receipt, found.causes = receipt, causes
    return found
