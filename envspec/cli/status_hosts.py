"""`envspec status` on hosts: one table, what has drifted where, and which hosts differ from which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envspec.cli.hosts import on_each, result_to_json, say_table, tell_problems
from envspec.cli.output import say, say_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.host_verbs import HostStatus
    from builder.hosts import HostResult
    from envspec.lock import Lock
    from envspec.spec import HostSpec, Spec

DRIFT_SHOWN = 20


def say_status(
    spec: Spec,
    lock: Lock | None,
    hosts: Sequence[HostSpec],
    *,
    deep: bool,
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Say how hosts are.

    Returns:
        The exit code: 1 if a host cannot be reached, has drifted, or has something else than the lock.
    """
    from builder.host_verbs import status_of  # noqa: PLC0415 - only where hosts are meant

    results = on_each(hosts, status_of(spec, lock, deep=deep), jobs=jobs, quiet=quiet)
    locked = None if lock is None else lock.env
    if as_json:
        say_json({"hosts": [result_to_json(each, _to_json(each.value, locked)) for each in results]})
    else:
        header = ("host", "env", "site", "generation", "drift", "python", "driver", "gpus")
        say_table(header, [_row(each) for each in results])
        for result in results:
            _say_verification(result)
            _say_drift(result)
        _say_differences(results, locked)
    tell_problems(results)
    return FOUND_WRONG if any(_is_wrong(each, locked) for each in results) else 0


def _is_wrong(result: HostResult[HostStatus], locked: str | None) -> bool:
    status = result.value
    if status is None or status.generation is None or status.drift:
        return True
    return locked not in {None, status.generation.env}


def _row(result: HostResult[HostStatus]) -> tuple[str, ...]:
    status = result.value
    if status is None:
        return (result.host, "not reached", *([""] * 6))
    facts, generation = status.facts, status.generation
    gpus = _gpus(status)
    if generation is None:
        return (result.host, "nothing built", "", "", "", facts.python or "none", facts.driver or "none", gpus)
    return (
        result.host,
        generation.env,
        generation.site[:16],
        f"{generation.number} of {generation.created}",
        str(len(status.drift) or "none"),
        status.python,
        facts.driver or "none",
        gpus,
    )


def _gpus(status: HostStatus) -> str:
    gpus = status.facts.gpus
    kinds = sorted({f"{gpu.name} ({gpu.compute})" if gpu.compute else gpu.name for gpu in gpus})
    return f"{len(gpus)} x {', '.join(kinds)}" if gpus else "none"


def _say_verification(result: HostResult[HostStatus]) -> None:
    """Of a host whose last proof was not a good one; the others need no line."""
    found = None if result.value is None else result.value.verification
    if found is not None and not found.verified:
        say(f"{result.host}  verified {found.line()}")


def _say_drift(result: HostResult[HostStatus]) -> None:
    drift = () if result.value is None else result.value.drift
    for each in drift[:DRIFT_SHOWN]:
        say(f"{result.host}  {each.line()}")
    if len(drift) > DRIFT_SHOWN:
        say(f"{result.host}  and {len(drift) - DRIFT_SHOWN} more; `--json` lists all")


def _say_differences(results: Sequence[HostResult[HostStatus]], locked: str | None) -> None:
    """Name the hosts that are unlike the others, attribute by attribute."""
    reached = [(result.host, result.value) for result in results if result.value is not None]
    there = [(host, status, status.generation) for host, status in reached if status.generation is not None]
    attributes = {
        "env": [(host, generation.env) for host, _, generation in there],
        "python": [(host, status.python) for host, status, _ in there],
        "driver": [(host, status.facts.driver or "none") for host, status in reached],
        "gpus": [(host, _gpus(status)) for host, status in reached],
    }
    for attribute, pairs in attributes.items():
        values: dict[str, list[str]] = {}
        for host, value in pairs:
            values.setdefault(value, []).append(host)
        unlike = attribute == "env" and locked is not None and any(value != locked for value in values)
        if len(values) < 2 and not unlike:
            continue
        say(f"{attribute} differs:" if len(values) > 1 else f"{attribute} is not the lock's:")
        for value, hosts in sorted(values.items(), key=lambda item: (-len(item[1]), item[0])):
            note = "  (the lock's)" if attribute == "env" and value == locked else ""
            say(f"  {value}{note}: {', '.join(hosts)}")


def _to_json(status: HostStatus | None, locked: str | None) -> dict[str, Any]:
    if status is None:
        return {}
    generation = status.generation
    return {
        "env": generation.env if generation else None,
        "site": generation.site if generation else None,
        "generation": generation.number if generation else None,
        "path": generation.path if generation else None,
        "locked_env": locked,
        "python": status.python or None,
        "drift": [each.to_json() for each in status.drift],
        "verification": None if status.verification is None else status.verification.to_json(),
        "facts": status.facts.to_json(),
    }
