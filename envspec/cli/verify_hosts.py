"""`envspec verify` on hosts: side by side, each with a receipt there, and a copy of it here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from envspec.cli.hosts import for_host, on_each, result_to_json, say_table, tell_problems
from envspec.cli.output import print_error, say, say_json
from envspec.cli.proofs import Keeping, computes_of, failure_of, lock_if_any, proof_to_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.agent.probe_scripts import ProbeOrder
    from builder.host_verbs import HostProof
    from builder.hosts import HostResult
    from envspec.cli.options import Inputs
    from envspec.lock import Lock
    from envspec.spec import HostSpec, Spec

DRIFT_SHOWN = 20


def verify_hosts(
    inputs: Inputs,
    hosts: Sequence[HostSpec],
    order: ProbeOrder | None,
    keeping: Keeping,
    *,
    now: str,
    deep: bool,
    env: str,
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Verify on hosts, and say what came of it.

    Args:
        inputs: The spec and its lock.
        hosts: Where.
        order: Which probes; None for none.
        keeping: What becomes of the receipts.
        now: RFC 3339 in UTC.
        deep: Whether every byte is read.
        env: Which environment of the hosts' stores; empty for the active one.
        jobs: How many at a time.
        as_json: Whether to print one JSON object instead of a table.
        quiet: Whether to show no progress.

    Returns:
        The exit code: 1 if anything failed.
    """
    from builder.host_receipts import seen_receipt  # noqa: PLC0415 - only where hosts are meant
    from builder.host_verbs import proof_of  # noqa: PLC0415

    spec = inputs.parse_spec()
    results = on_each(hosts, proof_of(spec, now=now, deep=deep, env=env, probes=order), jobs=jobs, quiet=quiet)
    kept: dict[str, Path | None] = {}
    for result in results:
        proof = result.value
        if proof is not None:
            seen = seen_receipt(proof.receipt, host=result.host, time=now, generation=proof.generation, path=proof.path)
            kept[result.host] = keeping.keep(proof.receipt, host=result.host, seen=seen)
    failed = any(result.value is None or result.value.receipt.failed for result in results)
    lock = lock_if_any(inputs) if failed else None
    if as_json:
        records = [_to_json(result, spec, lock, deep=deep) for result in results]
        for record in records:
            path = kept.get(record["host"])
            record["receipt"] = None if path is None else os.fspath(path)
        say_json({"hosts": records})
    else:
        say_table(("host", "proof", "env", "site", "seconds"), [_row(result) for result in results])
        _say_claims(results, spec)
        for result in results:
            for each in result.value.drift[:DRIFT_SHOWN] if result.value else ():
                say(f"{result.host}  {each.line()}")
    tell_problems(results)
    for result in results:
        if result.value is not None:
            target = f"--host {result.host}{f' --env {env}' if env else ''}"
            failure = failure_of(result.value.receipt, lock, inputs.lock_name, target)
            if failure is not None:
                print_error(for_host(result.host, failure), as_json=False)
    return FOUND_WRONG if failed else 0


def _row(result: HostResult[HostProof]) -> tuple[str, ...]:
    proof = result.value
    if proof is None:
        return (result.host, "failed", "", "", "")
    probes = ", ".join(f"{name} {outcome}" for name, outcome, _ in proof.receipt.probes)
    return (result.host, probes, proof.env, proof.site[:16], f"{result.seconds:.1f}")


def _say_claims(results: Sequence[HostResult[HostProof]], spec: Spec) -> None:
    """What is claimed on which ground; hosts that are alike are named together."""
    from envspec.claims import claims_of  # noqa: PLC0415

    alike: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        if result.value is not None:
            alike.setdefault(claims_of(result.value.receipt, computes_of(spec)).lines(), []).append(result.host)
    for lines, hosts in alike.items():
        for line in lines:
            say(f"{', '.join(hosts)}  {line}")


def _to_json(result: HostResult[HostProof], spec: Spec, lock: Lock | None, *, deep: bool) -> dict[str, Any]:
    from builder.explaining import causes_of  # noqa: PLC0415

    proof = result.value
    if proof is None:
        return result_to_json(result, {})
    causes = causes_of(proof.receipt, lock) if proof.receipt.failed else {}
    return result_to_json(
        result,
        {
            "env": proof.env,
            "site": proof.site,
            "path": proof.path,
            "generation": proof.generation,
            "built": False,
            "deep": deep,
            "drift": [each.to_json() for each in proof.drift],
            **proof_to_json(proof.receipt, spec, causes),
            "seconds": dict(proof.seconds),
        },
    )
