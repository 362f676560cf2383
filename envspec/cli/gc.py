"""`envspec gc`: remove what nothing uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from envspec.cli.options import JsonOption, QuietOption, StoreOption, store_root
from envspec.cli.output import say, say_json


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
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,  # noqa: ARG001 - every verb takes it
) -> int:
    """Remove environments, trees and wheels that no generation and no running process uses.

    Waits for builds that are running. `envspec build` fetches again what it needs.
    """
    from builder.agent.collect import find_garbage, remove_garbage  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    place = Store(store_root(store))
    place.check_format()
    place.ensure()
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
