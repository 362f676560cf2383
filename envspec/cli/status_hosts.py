"""`envspec status` on hosts: one table, what has drifted where, and which hosts differ from which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.cli.hosts import on_each, result_to_json, say_table, tell_problems
from envspec.cli.output import say, say_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from builder.agent.store import Store
    from builder.host_receipts import HostReceipt
    from builder.host_verbs import HostStatus
    from builder.hosts import HostResult
    from envspec.lock import Lock
    from envspec.spec import HostSpec, Spec

DRIFT_SHOWN = 20
STALE = "not reached"


def say_status(
    spec: Spec,
    lock: Lock | None,
    hosts: Sequence[HostSpec],
    here: Store,
    *,
    deep: bool,
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Say how hosts are; of those that cannot be reached, what is known here.

    Args:
        spec: The spec.
        lock: The lock, if there is one.
        hosts: Which.
        here: The store of this machine, with its receipts of hosts.
        deep: Whether every byte is read.
        jobs: How many hosts at a time.
        as_json: Whether to print one JSON object instead of a table.
        quiet: Whether to show no progress.

    Returns:
        The exit code: 1 if a host cannot be reached, has drifted, or has something else than the lock.
    """
    from builder.host_receipts import last_receipts  # noqa: PLC0415 - only where hosts are meant
    from builder.host_verbs import status_of  # noqa: PLC0415

    results = on_each(hosts, status_of(spec, lock, deep=deep), jobs=jobs, quiet=quiet)
    locked = {} if lock is None else {"env": lock.env, "site": lock.site}
    last = last_receipts(here, spec.name, [each.host for each in results if each.value is None])
    comparison = compare(_attributes(results, last, locked), locked)
    if as_json:
        say_json({"hosts": [result_to_json(each, _to_json(each, locked, last, comparison)) for each in results]})
    else:
        header = ("host", "env", "site", "generation", "drift", "python", "driver", "gpus", "differs in")
        say_table(header, [(*_row(each, last.get(each.host)), comparison.of(each.host)) for each in results])
        for receipt in last.values():
            what = {"build": "build", "verify": "verification"}[receipt.kind]
            say(f"{receipt.host}  {STALE}: shown is what its {what} left on {receipt.time}")
        for result in results:
            _say_verification(result)
            _say_drift(result)
        say_differences(comparison, last, locked)
    tell_problems(results)
    return FOUND_WRONG if any(_is_wrong(each, locked) for each in results) else 0


def _is_wrong(result: HostResult[HostStatus], locked: Mapping[str, str]) -> bool:
    status = result.value
    if status is None or status.generation is None or status.drift:
        return True
    return bool(locked) and (locked["env"], locked["site"]) != (status.generation.env, status.generation.site)


def _row(result: HostResult[HostStatus], last: HostReceipt | None) -> tuple[str, ...]:
    status = result.value
    if status is None and last is not None:
        return (
            result.host,
            last.env,
            last.site[:16],
            str(last.generation),
            STALE,
            last.python or "?",
            (last.driver or "none") if last.python else "?",
            gpus_text(last.gpus) if last.python else "?",
        )
    if status is None:
        return (result.host, STALE, *([""] * 6))
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
    return gpus_text([(gpu.name, gpu.compute) for gpu in status.facts.gpus])


def gpus_text(gpus: Sequence[tuple[str, str]]) -> str:
    """GPUs, each with its compute capability, for a person."""
    kinds = sorted({f"{name} ({compute})" if compute else name for name, compute in gpus})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hosts beside each other: attribute -> value -> those that have it, only where something is unlike something else."""

    values: Mapping[str, Mapping[str, tuple[str, ...]]]
    expected: Mapping[str, str]
    """Attribute -> the value that is right: the lock's, else what more than half of the hosts have."""

    def of(self, host: str) -> str:
        """The attributes in which a host is unlike what it should be, or unlike the others where nobody knows."""
        unlike = [
            attribute
            for attribute, values in self.values.items()
            if any(host in hosts and value != self.expected.get(attribute) for value, hosts in values.items())
        ]
        return ", ".join(unlike)


def compare(attributes: Mapping[str, Mapping[str, str]], locked: Mapping[str, str]) -> Comparison:
    """Hosts beside each other.

    Args:
        attributes: Attribute -> host -> value; a host that has none is left out.
        locked: Attribute -> the lock's value, where the lock has one.
    """
    values: dict[str, dict[str, tuple[str, ...]]] = {}
    expected: dict[str, str] = {}
    for attribute, of_hosts in attributes.items():
        by_value: dict[str, tuple[str, ...]] = {}
        for host, value in of_hosts.items():
            by_value[value] = (*by_value.get(value, ()), host)
        right = locked.get(attribute)
        if len(by_value) < 2 and (right is None or not by_value or right in by_value):
            continue
        ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
        if right is None and len(ordered[0][1]) * 2 > len(of_hosts):
            right = ordered[0][0]
        values[attribute] = dict(ordered)
        if right is not None:
            expected[attribute] = right
    return Comparison(values=values, expected=expected)


def _attributes(
    results: Sequence[HostResult[HostStatus]], last: Mapping[str, HostReceipt], locked: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Attribute -> host -> value."""
    found: dict[str, dict[str, str]] = {"env": {}, "site": {}, "python": {}, "driver": {}, "gpus": {}}
    for result in results:
        status, receipt = result.value, last.get(result.host)
        row: dict[str, str] = {}
        if status is not None:
            row = {"driver": status.facts.driver or "none", "gpus": _gpus(status)}
            if status.generation is not None:
                row |= {"env": status.generation.env, "site": status.generation.site, "python": status.python}
        elif receipt is not None:
            row = {"env": receipt.env, "site": receipt.site}
            if receipt.python:
                gpus = gpus_text(receipt.gpus)
                row |= {"python": receipt.python, "driver": receipt.driver or "none", "gpus": gpus}
        for attribute, value in row.items():
            found[attribute][result.host] = value
    pairs = {(env, found["site"][host]) for host, env in found["env"].items()}
    if locked:
        pairs.add((locked["env"], locked["site"]))
    if len(pairs) == len({env for env, _ in pairs}):
        del found["site"]  # it differs as the env does: that is said
    return found


def say_differences(comparison: Comparison, last: Collection[str], locked: Mapping[str, str]) -> None:
    """Name the hosts that are unlike the others, attribute by attribute.

    Args:
        comparison: Of them.
        last: Those that were not reached.
        locked: Attribute -> the lock's value, where the lock has one.
    """
    for attribute, values in comparison.values.items():
        say(f"{attribute} differs:" if len(values) > 1 else f"{attribute} is not the lock's:")
        for value, hosts in values.items():
            note = "  (the lock's)" if value == locked.get(attribute) else ""
            say(f"  {value}{note}: {', '.join(f'{each} ({STALE})' if each in last else each for each in hosts)}")


def _to_json(
    result: HostResult[HostStatus],
    locked: Mapping[str, str],
    last: Mapping[str, HostReceipt],
    comparison: Comparison,
) -> dict[str, Any]:
    status = result.value
    if status is None:
        return {"last": last[result.host].to_json()} if result.host in last else {}
    generation = status.generation
    return {
        "env": generation.env if generation else None,
        "site": generation.site if generation else None,
        "generation": generation.number if generation else None,
        "path": generation.path if generation else None,
        "locked_env": locked.get("env"),
        "python": {"version": status.python, "path": status.python_path} if status.python else None,
        "drift": [each.to_json() for each in status.drift],
        "verification": None if status.verification is None else status.verification.to_json(),
        "differs_in": comparison.of(result.host).split(", ") if comparison.of(result.host) else [],
        "facts": status.facts.to_json(),
    }
