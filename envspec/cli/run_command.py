"""`envspec run`: run a program in the active environment."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from envspec.cli.options import SpecOption, StoreOption, read_inputs, store_root
from envspec.errors import EnvspecError


def run(
    command: Annotated[
        list[str],
        Parameter(help="The program, found in the environment first, and its arguments, after `--`."),
    ],
    /,
    *,
    spec: SpecOption = None,
    store: StoreOption = None,
) -> int:
    """Run a program in the active environment; its exit code is passed through.

    Compilers' caches (triton, inductor, flashinfer) are kept with the environment, so that a rollback switches them too.
    """
    from builder.agent.generations import active_generation  # noqa: PLC0415
    from builder.agent.hostfiles import run_environment, state_folder  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.process import replace_with  # noqa: PLC0415

    name = read_inputs(spec).parse_spec().name
    place = Store(store_root(store))
    place.check_format()
    generation = active_generation(place, name)
    if generation is None or not generation.path.is_dir():
        raise EnvspecError(f"nothing is active for `{name}` in `{place.root}`", hint="`envspec build` builds it")
    if not (generation.path / "bin" / "python").exists():  # else a Python from PATH would run in its stead
        raise EnvspecError(
            f"the interpreter of `{generation.path}` is gone",
            hint="`envspec build --repair` finds another and makes it anew",
        )
    environment = run_environment(generation.path, state_folder(place, generation.env, os.environ), os.environ)
    try:
        replace_with(command, env=environment)
    except OSError as error:
        raise EnvspecError(
            f"`{command[0]}` cannot be run: {error.strerror}", hint=f"is it in `{generation.path}/bin` or in PATH?"
        ) from error
    return 0
