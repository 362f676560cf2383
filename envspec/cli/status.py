"""`envspec status`: what is active here, and has it drifted?"""

from __future__ import annotations

import os
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
from envspec.cli.nodes import LineOption, node_name
from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import make_reporter, say, say_json, tell
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from builder.agent.generations import Generation
    from builder.agent.observe import Drift
    from builder.outcome import Verification

DRIFT_SHOWN = 20


def status(
    *,
    deep: Annotated[
        bool, Parameter(name="--deep", negative=(), help="Read and hash every byte instead of what changed.")
    ] = False,
    host: HostOption = None,
    group: GroupOption = None,
    inventory: InventoryOption = None,
    every: AllOption = False,
    jobs: JobsOption = DEFAULT_JOBS,
    receipts: Annotated[
        Path | None,
        Parameter(
            name="--receipts",
            help="Show what nodes that an engine built left in this folder (`build --receipts`); none of them is reached.",
        ),
    ] = None,
    line: LineOption = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Show the active environment, here or on hosts, and what differs from what was built.

    Looks at each file's status and reads only what changed since it was proven, or everything with `--deep`. Exit 1 if anything differs.
    """
    from builder.agent.generations import active_generation  # noqa: PLC0415
    from builder.agent.observe import find_drift, read_env_record  # noqa: PLC0415
    from builder.agent.proving import deep_drift  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.outcome import LOCALHOST, last_verification  # noqa: PLC0415

    inputs = read_inputs(spec)
    wanted = inputs.parse_spec()
    name = wanted.name
    hosts = chosen_hosts(wanted, host, group, every=every, inventory=inventory)
    if receipts is not None:
        from envspec.cli.status_receipts import say_receipts  # noqa: PLC0415 - only where it is asked for

        locked_now = inputs.parse_lock() if inputs.lock_bytes is not None else None
        return say_receipts(wanted, locked_now, hosts, receipts, as_json=as_json)
    if hosts:
        from envspec.cli.status_hosts import say_status  # noqa: PLC0415 - only where hosts are meant

        lock = inputs.parse_lock() if inputs.lock_bytes is not None else None
        here = Store(store_root(store))
        return say_status(wanted, lock, hosts, here, deep=deep, jobs=jobs, as_json=as_json, quiet=quiet)
    place = Store(store_root(store))
    place.check_format()
    generation = active_generation(place, name)
    locked = inputs.parse_lock().env if inputs.lock_bytes is not None else None
    record = None if generation is None else read_env_record(place, generation.env, name)
    drift: tuple[Drift, ...] = ()
    if record is not None:
        drift = deep_drift(place, record, make_reporter(quiet=quiet)) if deep else find_drift(place, record)
    verification = None if generation is None else last_verification(place, generation.env)
    if as_json:
        python = record.fields["python"] if record else None
        host_name = node_name(os.environ) if line else LOCALHOST
        say_json({"hosts": [_to_json(host_name, generation, locked, drift, python, verification)]}, line=line)
    elif line:
        what = "nothing built" if generation is None else f"generation {generation.number}"
        ids = "" if generation is None else f"  env {generation.env}  site {generation.site}"
        say(f"{node_name(os.environ)}  {what}{ids}  drift {len(drift) or 'none'}")
    elif generation is None:
        say(f"{name}  nothing built in {place.root}")
        tell("hint: `envspec build` builds it")
    else:
        say(f"path     {generation.path}")
        say(f"env      {generation.env}{'' if locked in {None, generation.env} else f', the lock has {locked}'}")
        say(f"site     {generation.site}")
        say(f"profile  generation {generation.number} of {generation.created}")
        if record is not None:
            say(f"python   {record.fields['python']['version']}  {record.fields['python']['path']}")
        say(f"verified {'unknown: no receipt' if verification is None else verification.line()}")
        say(f"drift    {len(drift) or 'none'}")
        for each in drift[:DRIFT_SHOWN]:
            say(f"  {each.line()}")
        if len(drift) > DRIFT_SHOWN:
            say(f"  and {len(drift) - DRIFT_SHOWN} more; `--json` lists all")
    return FOUND_WRONG if drift or generation is None or locked not in {None, generation.env} else 0


def _to_json(
    host: str,
    generation: Generation | None,
    locked: str | None,
    drift: tuple[Drift, ...],
    python: dict[str, Any] | None,
    verification: Verification | None,
) -> dict[str, Any]:
    return {
        "host": host,
        "env": generation.env if generation else None,
        "site": generation.site if generation else None,
        "generation": generation.number if generation else None,
        "path": os.fspath(generation.path) if generation else None,
        "locked_env": locked,
        "python": python,
        "verification": None if verification is None else verification.to_json(),
        "drift": [each.to_json() for each in drift],
    }
