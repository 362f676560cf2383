"""`envspec status --receipts`: nodes that an engine built, as their receipts say; none of them is reached."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from envspec.cli.hosts import say_table
from envspec.cli.output import error_to_json, print_error, say, say_json
from envspec.cli.status_hosts import compare, gpus_text, say_differences
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.gathered import Gathered
    from envspec.cli.status_hosts import Comparison
    from envspec.lock import Lock
    from envspec.spec import HostSpec, Spec

MISSING = "no receipt"


def say_receipts(spec: Spec, lock: Lock | None, hosts: Sequence[HostSpec], folder: Path, *, as_json: bool) -> int:
    """Say what nodes had when they left their receipts.

    Args:
        spec: The spec.
        lock: The lock, if there is one.
        hosts: Those that are expected; none for whichever left one.
        folder: That the nodes share.
        as_json: Whether to print one JSON object instead of a table.

    Returns:
        The exit code: 1 if a node that is expected left none, has something else than the lock, or did not pass its proofs.

    Raises:
        EnvspecError: There is no such folder.
    """
    from builder.gathered import gather  # noqa: PLC0415 - only where it is asked for

    found, refused = gather(folder, spec.name)
    names = [host.name for host in hosts] or list(found)
    shown = {name: found.get(name) for name in names}
    locked = {} if lock is None else {"env": lock.env, "site": lock.site}
    comparison = compare(_attributes(shown), locked)
    if as_json:
        records = [_to_json(name, each, locked, comparison) for name, each in shown.items()]
        say_json({"hosts": records, "refused": [error_to_json(error) for error in refused]})
    else:
        header = (
            "host",
            "env",
            "site",
            "generation",
            "proofs",
            "seen",
            "drift",
            "python",
            "driver",
            "gpus",
            "differs in",
        )
        say_table(header, [(*_row(name, each), comparison.of(name)) for name, each in shown.items()])
        if not shown:
            say(f"no node left a receipt of `{spec.name}` in {folder}")
        say_differences(comparison, (), locked)
    for error in refused:
        print_error(error, as_json=False)
    return FOUND_WRONG if refused or not shown or any(_is_wrong(each, locked) for each in shown.values()) else 0


def _is_wrong(found: Gathered | None, locked: Mapping[str, str]) -> bool:
    if found is None or not found.receipt.verified or found.receipt.failed or found.seen.drift:
        return True
    return bool(locked) and (locked["env"], locked["site"]) != (found.seen.env, found.seen.site)


def _proofs(found: Gathered) -> str:
    word = "failed" if found.receipt.failed else "passed" if found.receipt.verified else "not verified"
    return f"{word} on {found.elsewhere}" if found.elsewhere else word


def _drift(found: Gathered) -> str:
    """A receipt says what was so when it was made: nothing of now."""
    return str(found.seen.drift) if found.seen.drift else "unknown"


def _row(name: str, found: Gathered | None) -> tuple[str, ...]:
    if found is None:
        return (name, MISSING, *([""] * 8))
    seen = found.seen
    return (
        name,
        seen.env,
        seen.site[:16],
        str(seen.generation),
        _proofs(found),
        seen.time,
        _drift(found),
        # Of the machine that made the receipt: nothing is known of another one.
        *(("?", "?", "?") if found.elsewhere else (seen.python, seen.driver or "none", gpus_text(seen.gpus))),
    )


def _attributes(shown: Mapping[str, Gathered | None]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"env": {}, "site": {}, "python": {}, "driver": {}, "gpus": {}}
    for name, each in shown.items():
        if each is not None:
            seen = each.seen
            row = {"env": seen.env, "site": seen.site}
            if not each.elsewhere:
                row |= {"python": seen.python, "driver": seen.driver or "none", "gpus": gpus_text(seen.gpus)}
            for attribute, value in row.items():
                found[attribute][name] = value
    return found


def _to_json(name: str, found: Gathered | None, locked: Mapping[str, str], comparison: Comparison) -> dict[str, Any]:
    common: dict[str, Any] = {
        "host": name,
        "locked_env": locked.get("env"),
        "differs_in": comparison.of(name).split(", ") if comparison.of(name) else [],
    }
    if found is None:
        return {**common, "env": None, "site": None, "generation": None, "drift": None, "receipt": None}
    return {
        **common,
        "env": found.seen.env,
        "site": found.seen.site,
        "generation": found.seen.generation,
        "path": found.seen.path,
        "drift": None,  # a receipt does not know
        "receipt": os.fspath(found.path),
        "kind": found.seen.kind,
        "seen": found.seen.time,
        "proven_on": found.receipt.host_name,
        "verified": found.receipt.verified,
        "probes": [{"id": each, "result": result, "reason": reason} for each, result, reason in found.receipt.probes],
        "python": found.seen.python,
        "driver": found.seen.driver or None,
        "gpus": [list(gpu) for gpu in found.seen.gpus],
    }
