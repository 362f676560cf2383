"""`envspec generations` and `envspec rollback`: what was active, and back to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import say, say_json
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from builder.agent.generations import Generation


def generations(
    *,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,  # noqa: ARG001 - every verb takes it
) -> int:
    """List the environments that were active, oldest first; `*` marks the one that is."""
    from builder.agent.generations import list_generations  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    place = Store(store_root(store))
    place.check_format()
    found = list_generations(place, read_inputs(spec).parse_spec().name)
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
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,  # noqa: ARG001 - every verb takes it
) -> int:
    """Make an earlier generation the active one, in one step. Its caches come back with it."""
    from builder.agent.generations import list_generations, roll_back  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    place = Store(store_root(store))
    place.check_format()
    name = read_inputs(spec).parse_spec().name
    if not list_generations(place, name):
        raise EnvspecError(f"`{name}` has no generation in `{place.root}`", hint="`envspec build` builds the first one")
    chosen = roll_back(place, name, number)
    if as_json:
        say_json({"generations": [_to_json(chosen)]})
    else:
        say(f"generation {chosen.number} is active: {chosen.path}")
    return 0


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
