"""`envspec gc`: remove what nothing uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from envspec.cli.hosts import (
    DEFAULT_JOBS,
    AllOption,
    GroupOption,
    HostOption,
    InventoryOption,
    JobsOption,
    chosen_hosts,
    on_each,
    result_to_json,
    tell_problems,
)
from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import say, say_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.spec import HostSpec


def gc(
    *,
    keep: Annotated[
        int | None,
        Parameter(
            name="--keep",
            validator=Number(gte=0),
            help="Forget all but the N newest generations of each profile; the active one always stays.",
        ),
    ] = None,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative=(), help="Only say what would be removed.")] = False,
    host: HostOption = None,
    group: GroupOption = None,
    inventory: InventoryOption = None,
    every: AllOption = False,
    jobs: JobsOption = DEFAULT_JOBS,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Remove environments, trees and wheels that no generation and no running process uses, here or on hosts.

    Waits for builds that are running. `envspec build` fetches again what it needs.
    """
    if host or group or every or inventory:
        hosts = chosen_hosts(read_inputs(spec).parse_spec(), host, group, every=every, inventory=inventory)
        return _on_hosts(hosts, keep=keep, dry_run=dry_run, jobs=jobs, as_json=as_json, quiet=quiet)
    from builder.agent.collect import check_may_collect, find_garbage, remove_garbage  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    os.umask(0o022)
    place = Store(store_root(store))
    place.check_format()
    place.ensure()
    if not dry_run:
        check_may_collect(place)
    with place.lock("gc"):
        garbage = find_garbage(place, keep=keep, proc=Path("/proc"))
        if not dry_run:
            remove_garbage(place, garbage)
    if as_json:
        say_json(
            {
                "removed": not dry_run,
                "paths": [os.fspath(path) for path in garbage.paths],
                "generations": [{"name": name, "number": number} for name, number in garbage.generations],
                "freed_bytes": garbage.freed_bytes,
                "in_use": [{"env": env, "pid": pid} for env, pid in garbage.in_use],
            }
        )
        return 0
    for env, pid in garbage.in_use:
        say(f"kept      {env}  process {pid} runs from it")
    for name, number in garbage.generations:
        say(f"{'would forget' if dry_run else 'forgot'}  generation {number} of {name}")
    verb = "would free" if dry_run else "freed"
    say(f"{verb} {garbage.freed_bytes / 1e9:.2f} GB in {len(garbage.paths)} paths")
    return 0


def _on_hosts(
    hosts: Sequence[HostSpec], *, keep: int | None, dry_run: bool, jobs: int, as_json: bool, quiet: bool
) -> int:
    from builder.host_verbs import collection_of  # noqa: PLC0415 - only where hosts are meant

    results = on_each(hosts, collection_of(keep=keep, dry_run=dry_run), jobs=jobs, quiet=quiet)
    if as_json:
        records: list[dict[str, Any]] = []
        for result in results:
            garbage = result.value
            value: dict[str, Any] = {}
            if garbage is not None:
                value = {
                    "removed": not dry_run,
                    "paths": list(garbage.paths),
                    "generations": [{"name": name, "number": number} for name, number in garbage.generations],
                    "freed_bytes": garbage.freed_bytes,
                    "in_use": [{"env": env, "pid": pid} for env, pid in garbage.in_use],
                }
            records.append(result_to_json(result, value))
        say_json({"hosts": records})
    else:
        verb = "would free" if dry_run else "freed"
        for result in results:
            if result.value is not None:
                for env, pid in result.value.in_use:
                    say(f"{result.host}  kept {env}: process {pid} runs from it")
                say(
                    f"{result.host}  {verb} {result.value.freed_bytes / 1e9:.2f} GB in {len(result.value.paths)} paths, "
                    f"{len(result.value.generations)} generations forgotten"
                )
    tell_problems(results)
    return FOUND_WRONG if any(each.error is not None for each in results) else 0
