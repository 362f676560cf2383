"""`envspec check`: do the binaries of the lock fit together, and fit the hosts?"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.cli.options import (
    JsonOption,
    QuietOption,
    SpecOption,
    StoreOption,
    StrictOption,
    read_inputs,
    store_root,
)
from envspec.cli.output import finding_lines, make_reporter, say, say_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from envspec.checks import Verdict


def check(
    *,
    strict: StrictOption = False,
    notes: Annotated[
        bool, Parameter(name="--notes", negative=(), help="Show what is only worth knowing, too.")
    ] = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Judge the lock: do its binaries fit together, and fit the hosts?

    Nothing of a wheel is executed. Exit 1 if a check finds an error; wheels that were never measured here are brought first.
    """
    inputs = read_inputs(spec)
    wanted, locked = inputs.parse_spec(), inputs.parse_lock()
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.checking import check_lock  # noqa: PLC0415
    from builder.locking import LockRequest  # noqa: PLC0415

    gc.disable()  # half a million small values that all live to the end: looking for garbage among them takes a third of the time
    verdict = check_lock(
        LockRequest(
            spec=wanted,
            spec_name=inputs.spec_name,
            folder=inputs.spec_path.parent,
            previous=locked,
            upgrade=frozenset(),
            strict=strict,
            store=Store(store_root(store)),
            environ=os.environ,
        ),
        make_reporter(quiet=quiet),
    )
    if as_json:
        say_json(
            {
                "lock": os.fspath(inputs.lock_path),
                "env": locked.env,
                "findings": [finding.to_json() for finding in verdict.findings],
                "waived": [{**finding.to_json(), "reason": waiver.reason} for finding, waiver in verdict.waived],
            }
        )
    else:
        _show(verdict, os.fspath(inputs.lock_path), notes=notes)
    return FOUND_WRONG if verdict.errors else 0


def _show(verdict: Verdict, lock_path: str, *, notes: bool) -> None:
    counts = {"error": 0, "warning": 0, "info": 0}
    for finding in verdict.findings:
        counts[finding.severity] += 1
        if finding.severity != "info" or notes:
            for line in finding_lines(finding):
                say(line)
    for finding, waiver in verdict.waived:
        say(f"waived: {finding.message} [{finding.check}]")
        say(f"  reason: {waiver.reason}")
    words = [
        f"{counts['error']} {'errors' if counts['error'] != 1 else 'error'}",
        f"{counts['warning']} {'warnings' if counts['warning'] != 1 else 'warning'}",
        f"{len(verdict.waived)} waived",
        f"{counts['info']} {'notes' if counts['info'] != 1 else 'note'}",
    ]
    say(f"{lock_path}  {', '.join(words)}")
