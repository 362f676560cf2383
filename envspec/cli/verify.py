"""`envspec verify`: is an environment what it was proven to be, and do its kernels compute what they should?"""

from __future__ import annotations

import os
import time
from pathlib import Path  # noqa: TC003 - the command line reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from envspec.cli.hosts import (
    DEFAULT_JOBS,
    AllOption,
    GroupOption,
    HostOption,
    InventoryOption,
    JobsOption,
    chosen_hosts,
)
from envspec.cli.nodes import LineOption, ReceiptsOption, leave, node_name
from envspec.cli.options import Inputs, JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import make_reporter, print_error, say, say_json
from envspec.cli.proofs import Keeping, failure_of, keeping_of, lock_if_any, proof_to_json, say_proof
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from builder.agent.observe import Drift
    from builder.agent.probe_scripts import ProbeOrder
    from envspec.receipt import Receipt
    from envspec.spec import Spec

DRIFT_SHOWN = 20


def verify(
    *,
    full: Annotated[
        bool,
        Parameter(name="--full", negative=(), help="Run all probes that the lock's packages allow, not the quick set."),
    ] = False,
    probe: Annotated[
        list[str] | None,
        Parameter(
            name="--probe",
            negative=(),
            help="Run this probe only, or one case of it: `torch`, `torch:CASE`. May be given several times.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        Parameter(name="--seed", help="Of the probes' random inputs, to repeat what a receipt says. Default: fresh."),
    ] = None,
    deep: Annotated[
        bool,
        Parameter(
            name="--deep", negative=(), help="Read and hash every byte instead of what changed since it was proven."
        ),
    ] = False,
    env: Annotated[
        str,
        Parameter(name="--env", help="An environment of the store by its id, active or not. Default: the active one."),
    ] = "",
    python: Annotated[
        Path | None,
        Parameter(
            name="--python",
            help="A venv, or its interpreter, that envspec did not build: which of its packages are the locked ones, and do they work?",
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        Parameter(
            name="--compare",
            help="Show the figures of two receipts side by side: names of hosts, or files. Nothing is run.",
        ),
    ] = None,
    save: Annotated[
        bool, Parameter(name="--save", negative=(), help="Save the receipt in `receipts/` beside the spec, for review.")
    ] = False,
    sign: Annotated[
        Path | None,
        Parameter(name="--sign", help="Sign the receipt with this SSH key; give KEY.pub where ssh-agent has the key."),
    ] = None,
    host: HostOption = None,
    group: GroupOption = None,
    inventory: InventoryOption = None,
    every: AllOption = False,
    jobs: JobsOption = DEFAULT_JOBS,
    receipts: ReceiptsOption = None,
    line: LineOption = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Prove the active environment again, here or on hosts: its tree, its imports, and its kernels on the GPUs. Leaves a receipt.

    By default the probes of [verify] kernels run on each GPU, in seconds; `--full` runs all. Where there is no GPU, what can be compiled without
    one is, and the rest is skipped; what was run, compiled, or proven from the wheels only is said.

    With `--deep` every file is read and the site digest is made anew from the disk alone. Exit 1 if anything is not as locked, or fails.
    """
    started = time.monotonic()
    inputs = read_inputs(spec)
    wanted = inputs.parse_spec()
    root = store_root(store)
    if compare is not None:
        from envspec.cli.compare import say_comparison  # noqa: PLC0415 - only where it is asked for

        return say_comparison(inputs, root, compare, as_json=as_json)
    from datetime import datetime, timezone  # noqa: PLC0415

    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    hosts = chosen_hosts(wanted, host, group, every=every, inventory=inventory)
    if (receipts is not None or line) and (hosts or python is not None):
        raise EnvspecError(
            "`--receipts` and `--line` are for a node that verifies its own environment",
            hint="leave out `--host`, `--group`, `--all`, `--inventory` and `--python`",
        )
    order = _order(wanted, full=full, only=probe, seed=seed)
    keeping = keeping_of(inputs, root, save=save, key=sign)
    if python is not None:
        if hosts or env or deep:
            raise EnvspecError(
                "`--python` is for one venv of this machine", hint="leave out `--host`, `--env` and `--deep`"
            )
        from envspec.cli.verify_venv import verify_venv  # noqa: PLC0415

        return verify_venv(inputs, python, order, keeping, now=now, as_json=as_json, quiet=quiet)
    if hosts:
        from envspec.cli.verify_hosts import verify_hosts  # noqa: PLC0415 - only where hosts are meant

        return verify_hosts(
            inputs, hosts, order, keeping, now=now, deep=deep, env=env, jobs=jobs, as_json=as_json, quiet=quiet
        )
    return _verify_here(
        inputs,
        wanted,
        root,
        order,
        keeping,
        now=now,
        deep=deep,
        env=env,
        receipts=receipts,
        line=line,
        as_json=as_json,
        quiet=quiet,
        started=started,
    )


def _order(spec: Spec, *, full: bool, only: list[str] | None, seed: int | None) -> ProbeOrder | None:
    if not full and not only and not spec.verify.kernels:
        return None
    from builder.ordering_probes import order_probes  # noqa: PLC0415 - reads every probe

    return order_probes(spec, full=full, only=tuple(only or ()), seed=seed, compile_too=True)


def _verify_here(
    inputs: Inputs,
    spec: Spec,
    root: Path,
    order: ProbeOrder | None,
    keeping: Keeping,
    *,
    now: str,
    deep: bool,
    env: str,
    receipts: Path | None,
    line: bool,
    as_json: bool,
    quiet: bool,
    started: float,
) -> int:
    from builder.agent.proving import VerifyOrder, verify_environment  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.explaining import causes_of  # noqa: PLC0415
    from envspec.receipt import receipt_of  # noqa: PLC0415

    wanted = VerifyOrder(
        name=spec.name,
        imports=spec.verify.imports,
        libraries=spec.target.libraries,
        now=now,
        deep=deep,
        env=env,
        probes=order,
    )
    os.umask(0o022)  # the store is for every user of the machine to read, whoever verifies
    outcome = verify_environment(Store(root), wanted, os.environ, make_reporter(quiet=quiet))
    receipt = receipt_of(outcome.receipt, name="the receipt")
    kept = keeping.keep(receipt)
    if receipts is not None:
        leave(receipts, outcome.receipt, generation=outcome.generation, path=outcome.path, now=now)
    failed = bool(outcome.drift) or receipt.failed
    lock = lock_if_any(inputs) if failed else None
    if as_json:
        record: dict[str, Any] = {
            "host": node_name(os.environ) if line else outcome.host,
            "env": outcome.env,
            "site": outcome.site,
            "path": os.fspath(outcome.path),
            "generation": outcome.generation,
            "built": False,
            "deep": deep,
            "drift": [each.to_json() for each in outcome.drift],
            **proof_to_json(receipt, spec, causes_of(receipt, lock) if failed else {}),
            "receipt": None if kept is None else os.fspath(kept),
            "seconds": {**outcome.seconds, "total": round(time.monotonic() - started, 3)},
        }
        say_json({"hosts": [record]}, line=line)
        return FOUND_WRONG if failed else 0
    if line:
        say(_line(outcome.env, outcome.site, receipt, len(outcome.drift)))
        return FOUND_WRONG if failed else 0
    say(f"path     {outcome.path}")
    say(f"env      {outcome.env}{'' if outcome.generation is not None else ', which is not active'}")
    say(f"site     {outcome.site}{', proven from every byte on the disk' if deep and not outcome.drift else ''}")
    say_proof(receipt, spec)
    if kept is not None:
        say(f"receipt  {kept}{', signed' if keeping.key is not None else ''}")
    say(f"seconds  {time.monotonic() - started:.1f}")
    failure = failure_of(receipt, lock, inputs.lock_name, f"--env {env}" if env else "")
    if outcome.drift:
        if failure is not None:
            print_error(failure, as_json=False)
        raise _drifted(outcome.drift)
    if failure is not None:
        raise failure
    return FOUND_WRONG if failed else 0


def _line(env: str, site: str, receipt: Receipt, drift: int) -> str:
    failing = [name for name, result, _ in receipt.probes if result == "fail"]
    proofs = f"failed: {', '.join(failing)}" if failing else f"{len(receipt.probes)} proofs, none failed"
    return f"{node_name(os.environ)}  env {env}  site {site}  drift {drift or 'none'}  {proofs}"


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
