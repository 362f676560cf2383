"""`envspec verify`: is the active environment what it was proven to be?"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from envspec.cli.hosts import (
    DEFAULT_JOBS,
    AllOption,
    GroupOption,
    HostOption,
    JobsOption,
    chosen_hosts,
    on_each,
    result_to_json,
    say_table,
    tell_problems,
)
from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import make_reporter, say, say_json
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.agent.observe import Drift
    from builder.agent.store import Store
    from envspec.spec import HostSpec, Spec

DRIFT_SHOWN = 20


def verify(
    *,
    deep: Annotated[
        bool,
        Parameter(
            name="--deep", negative=(), help="Read and hash every byte instead of what changed since it was proven."
        ),
    ] = False,
    host: HostOption = None,
    group: GroupOption = None,
    every: AllOption = False,
    jobs: JobsOption = DEFAULT_JOBS,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Prove the active environment again, here or on hosts: its tree, and that its imports work. Leaves a receipt.

    With `--deep` every file is read and the site digest is made anew from the disk alone. Exit 1 if anything is not as locked.
    """
    from datetime import datetime, timezone  # noqa: PLC0415

    from builder.agent.proving import VerifyOrder, verify_environment  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    started = time.monotonic()
    inputs = read_inputs(spec)
    wanted = inputs.parse_spec()
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    hosts = chosen_hosts(wanted, host, group, every=every)
    if hosts:
        here = Store(store_root(store))
        return _verify_hosts(wanted, hosts, here, now=now, deep=deep, jobs=jobs, as_json=as_json, quiet=quiet)
    order = VerifyOrder(
        name=wanted.name,
        imports=wanted.verify.imports,
        libraries=wanted.target.libraries,
        now=now,
        deep=deep,
    )
    os.umask(0o022)
    outcome = verify_environment(Store(store_root(store)), order, os.environ, make_reporter(quiet=quiet))
    failed = bool(outcome.drift) or any(probe.result == "fail" for probe in outcome.probes)
    if as_json:
        say_json(
            {
                "hosts": [
                    {
                        "host": outcome.host,
                        "env": outcome.env,
                        "site": outcome.site,
                        "path": os.fspath(outcome.path),
                        "generation": outcome.generation,
                        "built": False,
                        "deep": deep,
                        "drift": [each.to_json() for each in outcome.drift],
                        "probes": [
                            {"id": each.id, "result": each.result, "reason": each.reason} for each in outcome.probes
                        ],
                        "seconds": {**outcome.seconds, "total": round(time.monotonic() - started, 3)},
                    }
                ]
            }
        )
        return FOUND_WRONG if failed else 0
    say(f"path     {outcome.path}")
    say(f"env      {outcome.env}")
    say(f"site     {outcome.site}{', proven from every byte on the disk' if deep and not outcome.drift else ''}")
    for probe in outcome.probes:
        say(f"{probe.id:8} {probe.result}{f' ({probe.reason})' if probe.reason else ''}")
    say(f"seconds  {time.monotonic() - started:.1f}")
    if outcome.drift:
        raise _drifted(outcome.drift)
    return FOUND_WRONG if failed else 0


def _verify_hosts(
    spec: Spec, hosts: Sequence[HostSpec], here: Store, *, now: str, deep: bool, jobs: int, as_json: bool, quiet: bool
) -> int:
    from builder.host_receipts import HostReceipt, keep_receipt  # noqa: PLC0415 - only where hosts are meant
    from builder.host_verbs import proof_of  # noqa: PLC0415

    results = on_each(hosts, proof_of(spec, now=now, deep=deep), jobs=jobs, quiet=quiet)
    records: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    failed = False
    for result in results:
        proof = result.value
        value: dict[str, Any] = {}
        if proof is None:
            failed = True
            rows.append((result.host, "failed", "", "", ""))
        else:
            failed = failed or any(probe.result == "fail" for probe in proof.probes)
            receipt = HostReceipt(
                kind="verify",
                host=result.host,
                name=spec.name,
                time=now,
                env=proof.env,
                site=proof.site,
                generation=proof.generation,
                path=proof.path,
                probes=proof.probes,
                drift=len(proof.drift),
            )
            keep_receipt(here, receipt)
            value = {
                "env": proof.env,
                "site": proof.site,
                "path": proof.path,
                "generation": proof.generation,
                "built": False,
                "deep": deep,
                "drift": [each.to_json() for each in proof.drift],
                "probes": [{"id": each.id, "result": each.result, "reason": each.reason} for each in proof.probes],
                "seconds": dict(proof.seconds),
            }
            probes = ", ".join(f"{each.id} {each.result}" for each in proof.probes)
            rows.append((result.host, probes, proof.env, proof.site[:16], f"{result.seconds:.1f}"))
        records.append(result_to_json(result, value))
    if as_json:
        say_json({"hosts": records})
    else:
        say_table(("host", "proof", "env", "site", "seconds"), rows)
        for result in results:
            for each in result.value.drift[:DRIFT_SHOWN] if result.value else ():
                say(f"{result.host}  {each.line()}")
    tell_problems(results)
    return FOUND_WRONG if failed else 0


def _drifted(drift: tuple[Drift, ...]) -> EnvspecError:
    lines = [each.line() for each in drift[:DRIFT_SHOWN]]
    if len(drift) > DRIFT_SHOWN:
        lines.append(f"and {len(drift) - DRIFT_SHOWN} more; `--json` lists all")
    return EnvspecError(
        f"the environment is not what was locked: {len(drift)} path{'s' if len(drift) != 1 else ''} differ",
        detail="\n".join(lines),
        hint="`envspec build --repair` makes it anew",
        exit_code=FOUND_WRONG,
    )
