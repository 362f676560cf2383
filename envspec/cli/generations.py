"""`envspec generations` and `envspec rollback`: what was active, and back to it."""

from __future__ import annotations

import os
from dataclasses import asdict
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
    on_each,
    result_to_json,
    tell_problems,
)
from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import say, say_json
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.agent.generations import Generation
    from envspec.spec import HostSpec


def generations(
    *,
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
    """List the environments that were active, here or on hosts, oldest first; `*` marks the one that is."""
    wanted = read_inputs(spec).parse_spec()
    hosts = chosen_hosts(wanted, host, group, every=every, inventory=inventory)
    if hosts:
        return _on_hosts(hosts, wanted.name, jobs=jobs, as_json=as_json, quiet=quiet)
    from builder.agent.generations import list_generations  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    place = Store(store_root(store))
    place.check_format()
    found = list_generations(place, wanted.name)
    if as_json:
        say_json({"generations": [_to_json(generation) for generation in found]})
        return 0
    for each in found:
        gone = "" if each.path.is_dir() else "  (collected)"
        say(f"{'*' if each.active else ' '} {each.number:4}  {each.created}  {each.env}  site {each.site[:16]}{gone}")
    if not found:
        say(f"nothing built in {place.root}")
    return 0


def rollback(
    number: Annotated[int | None, Parameter(help="Which generation. Default: the one before the active one.")] = None,
    /,
    *,
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
    """Make an earlier generation the active one, here or on hosts, in one step. Its caches come back with it."""
    wanted = read_inputs(spec).parse_spec()
    name = wanted.name
    hosts = chosen_hosts(wanted, host, group, every=every, inventory=inventory)
    if hosts:
        return _roll_back_hosts(hosts, name, number, jobs=jobs, as_json=as_json, quiet=quiet)
    from builder.agent.generations import list_generations, roll_back  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    os.umask(0o022)
    place = Store(store_root(store))
    place.check_format()
    if not list_generations(place, name):
        raise EnvspecError(f"`{name}` has no generation in `{place.root}`", hint="`envspec build` builds the first one")
    chosen = roll_back(place, name, number)
    if as_json:
        say_json({"generations": [_to_json(chosen)]})
    else:
        say(f"generation {chosen.number} is active: {chosen.path}")
    return 0


def _on_hosts(hosts: Sequence[HostSpec], name: str, *, jobs: int, as_json: bool, quiet: bool) -> int:
    from builder.host_verbs import generations_of  # noqa: PLC0415 - only where hosts are meant

    results = on_each(hosts, generations_of(name), jobs=jobs, quiet=quiet)
    if as_json:
        records = [
            result_to_json(each, {} if each.value is None else {"generations": [asdict(one) for one in each.value]})
            for each in results
        ]
        say_json({"hosts": records})
    else:
        for result in results:
            for each in result.value or ():
                gone = "" if each.there else "  (collected)"
                mark = "*" if each.active else " "
                say(f"{result.host}  {mark} {each.number:4}  {each.created}  {each.env}  site {each.site[:16]}{gone}")
            if result.value == ():
                say(f"{result.host}  nothing built")
    tell_problems(results)
    return FOUND_WRONG if any(each.error is not None for each in results) else 0


def _roll_back_hosts(
    hosts: Sequence[HostSpec], name: str, number: int | None, *, jobs: int, as_json: bool, quiet: bool
) -> int:
    from builder.host_verbs import rollback_of  # noqa: PLC0415 - only where hosts are meant

    results = on_each(hosts, rollback_of(name, number), jobs=jobs, quiet=quiet)
    if as_json:
        records = [
            result_to_json(each, {} if each.value is None else {"generations": [asdict(each.value)]})
            for each in results
        ]
        say_json({"hosts": records})
    else:
        for result in results:
            if result.value is not None:
                say(f"{result.host}  generation {result.value.number} is active: {result.value.path}")
    tell_problems(results)
    return FOUND_WRONG if any(each.error is not None for each in results) else 0


def _to_json(generation: Generation) -> dict[str, Any]:
    return {
        "number": generation.number,
        "env": generation.env,
        "site": generation.site,
        "created": generation.created,
        "active": generation.active,
        "path": os.fspath(generation.path),
        "there": generation.path.is_dir(),
    }
