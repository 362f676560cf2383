"""`envspec status` on hosts: one table, what has drifted where, and which hosts differ from which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envspec.cli.hosts import on_each, result_to_json, say_table, tell_problems
from envspec.cli.output import say, say_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    locked = None if lock is None else (lock.env, lock.site)
    last = last_receipts(here, spec.name, [each.host for each in results if each.value is None])
    if as_json:
        say_json({"hosts": [result_to_json(each, _to_json(each, locked, last)) for each in results]})
    else:
        header = ("host", "env", "site", "generation", "drift", "python", "driver", "gpus")
        say_table(header, [_row(each, last.get(each.host)) for each in results])
        for receipt in last.values():
            what = {"build": "build", "verify": "verification"}[receipt.kind]
            say(f"{receipt.host}  {STALE}: shown is what its {what} left on {receipt.time}")
        for result in results:
            _say_verification(result)
            _say_drift(result)
        _say_differences(results, last, locked)
    tell_problems(results)
    return FOUND_WRONG if any(_is_wrong(each, locked) for each in results) else 0


def _is_wrong(result: HostResult[HostStatus], locked: tuple[str, str] | None) -> bool:
    status = result.value
    if status is None or status.generation is None or status.drift:
        return True
    return locked not in {None, (status.generation.env, status.generation.site)}


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
            _gpus_text(last.gpus) if last.python else "?",
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
    return _gpus_text([(gpu.name, gpu.compute) for gpu in status.facts.gpus])


def _gpus_text(gpus: Sequence[tuple[str, str]]) -> str:
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


def _say_differences(
    results: Sequence[HostResult[HostStatus]], last: Mapping[str, HostReceipt], locked: tuple[str, str] | None
) -> None:
    """Name the hosts that are unlike the others, attribute by attribute."""
    gone = {f"{host} ({STALE})": receipt for host, receipt in last.items()}
    reached = [(result.host, result.value) for result in results if result.value is not None]
    there = [(host, status, status.generation) for host, status in reached if status.generation is not None]
    attributes = {
        "env": [(host, generation.env) for host, _, generation in there],
        "site": [(host, generation.site) for host, _, generation in there],
        "python": [(host, status.python) for host, status, _ in there],
        "driver": [(host, status.facts.driver or "none") for host, status in reached],
        "gpus": [(host, _gpus(status)) for host, status in reached],
    }
    attributes["env"] += [(host, receipt.env) for host, receipt in gone.items()]
    attributes["site"] += [(host, receipt.site) for host, receipt in gone.items()]
    for host, receipt in gone.items():
        if receipt.python:
            attributes["python"].append((host, receipt.python))
            attributes["driver"].append((host, receipt.driver or "none"))
            attributes["gpus"].append((host, _gpus_text(receipt.gpus)))
    wanted = {} if locked is None else dict(zip(("env", "site"), locked, strict=True))
    if not _same_env_other_site(attributes["env"], attributes["site"], locked):
        del attributes["site"]  # it differs as the env does: that is said
    for attribute, pairs in attributes.items():
        values: dict[str, list[str]] = {}
        for host, value in pairs:
            values.setdefault(value, []).append(host)
        unlike = attribute in wanted and any(value != wanted[attribute] for value in values)
        if len(values) < 2 and not unlike:
            continue
        say(f"{attribute} differs:" if len(values) > 1 else f"{attribute} is not the lock's:")
        for value, hosts in sorted(values.items(), key=lambda item: (-len(item[1]), item[0])):
            note = "  (the lock's)" if value == wanted.get(attribute) else ""
            say(f"  {value}{note}: {', '.join(hosts)}")


def _same_env_other_site(
    envs: Sequence[tuple[str, str]], sites: Sequence[tuple[str, str]], locked: tuple[str, str] | None
) -> bool:
    """Whether an env id has two site digests, or the lock's another one than the lock's."""
    pairs = {(env, site) for (_, env), (_, site) in zip(envs, sites, strict=True)}
    if locked is not None:
        pairs.add(locked)
    return len(pairs) > len({env for env, _ in pairs})


def _to_json(
    result: HostResult[HostStatus], locked: tuple[str, str] | None, last: Mapping[str, HostReceipt]
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
        "locked_env": None if locked is None else locked[0],
        "python": {"version": status.python, "path": status.python_path} if status.python else None,
        "drift": [each.to_json() for each in status.drift],
        "verification": None if status.verification is None else status.verification.to_json(),
        "facts": status.facts.to_json(),
    }
