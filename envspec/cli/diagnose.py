"""`envspec diagnose`: why does this venv not work?"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from envspec.cli.options import JsonOption, QuietOption, SpecOption, find_spec
from envspec.cli.output import make_reporter, say, say_json, tell
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from builder.hosts import Target, Visit
    from builder.progress import Reporter
    from envspec.diagnosis.offers import Index
    from envspec.diagnosis.values import Diagnosis
    from envspec.observed import Observation
    from envspec.traced import Traced

DEFAULT_TIMEOUT_S = 300.0
_COLOURS = {"error": "\x1b[31;1m", "warning": "\x1b[33;1m", "good": "\x1b[32m", "head": "\x1b[1m"}


def diagnose(
    path: Annotated[
        str,
        Parameter(help="The venv: its folder or its interpreter. Default: VIRTUAL_ENV, else `.venv` here."),
    ] = "",
    /,
    *,
    run: Annotated[
        str,
        Parameter(
            name="--run",
            help="Import this module, or run this script, in the venv, and say why it fails. Without it nothing is run.",
        ),
    ] = "",
    timeout: Annotated[
        float, Parameter(name="--timeout", validator=Number(gt=0), help="Seconds until a run is stopped. Default: 300.")
    ] = DEFAULT_TIMEOUT_S,
    host: Annotated[
        str,
        Parameter(
            name="--host",
            help="A host of the spec, or a name of ssh_config, where the venv lies. Nothing is left there.",
        ),
    ] = "",
    offline: Annotated[
        bool,
        Parameter(name=("--offline", "--no-index"), negative=(), help="Look up no version for a fix in an index."),
    ] = False,
    spec: SpecOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Say why a venv does not work, whoever made it: the causes with their evidence, what is not the cause, and what mends it.

    Its files are looked at and nothing of it is run, unless `--run` asks for it. Exit 1 if a cause was found, or the run failed.
    """
    chosen, chosen_by = (path, "") if path else _default_path(host)
    if chosen_by:
        tell(f"{chosen}, {chosen_by}")
    gc.disable()  # a million small values that all live to the end: looking for garbage among them takes half of the time
    reporter = make_reporter(quiet=quiet)
    target = _target(host, spec) if host else None
    observation, traced = _look(chosen, target, run, timeout, reporter)
    notes: list[str] = []
    index = None if offline else _index(observation, notes)
    from envspec.diagnosis.diagnose import diagnose as judge  # noqa: PLC0415

    reporter.note("judging")
    diagnosis = judge(observation, traced, host=host, index=index)
    if as_json:
        say_json(to_json(diagnosis, observation, notes))
    else:
        from envspec.diagnosis.text import render  # noqa: PLC0415

        place = f"{host}:{diagnosis.prefix}" if host else diagnosis.prefix
        version = f"  Python {observation.python.version}" if observation.python.version else ""
        say(f"{place}{version}  {len(observation.distributions)} packages, {observation.files_seen:,} files")
        for line in render(diagnosis, _paint):
            say(line)
        for note in notes:
            tell(note)
    return 0 if diagnosis.healthy else FOUND_WRONG


def to_json(diagnosis: Diagnosis, observation: Observation, notes: list[str]) -> dict[str, Any]:
    """The object that `--json` prints; `docs/schemas/diagnose.schema.json` describes it."""
    from envspec.printable import printable_json  # noqa: PLC0415
    from envspec.traced import traced_to_json  # noqa: PLC0415

    value: dict[str, Any] = printable_json(
        {
            "host": diagnosis.host or "localhost",
            "path": diagnosis.prefix,
            "python": observation.python.version or None,
            "packages": len(observation.distributions),
            "files": observation.files_seen,
            "locked": dict(observation.locked) or None,
            "healthy": diagnosis.healthy,
            "run": None if diagnosis.traced is None else traced_to_json(diagnosis.traced),
            "causes": [cause.to_json(rank) for rank, cause in enumerate(diagnosis.causes, 1)],
            "not_causes": [each.to_json() for each in diagnosis.not_causes],
            "remarks": list(diagnosis.remarks),
            "notes": [*diagnosis.notes, *notes],
        }
    )
    return value


def _default_path(host: str) -> tuple[str, str]:
    """The venv that is meant where none is named, and why it is that one."""
    if host:
        raise EnvspecError(
            "a venv on a host has to be named", hint="give its path: `envspec diagnose PATH --host NAME`"
        )
    active = os.environ.get("VIRTUAL_ENV", "")
    if active:
        return active, "as VIRTUAL_ENV says"
    here = Path(".venv").absolute()
    if here.is_dir():
        return os.fspath(here), "the `.venv` of this folder"
    raise EnvspecError(
        "no venv is named: VIRTUAL_ENV is not set, and there is no `.venv` here",
        hint="give its path: `envspec diagnose PATH`",
    )


def _target(host: str, spec: Path | None) -> Target:
    """The way to a host: that of the spec if it declares it, else the name is one of ssh_config."""
    from envspec.cli.hosts import targets_of  # noqa: PLC0415
    from envspec.cli.options import read_inputs  # noqa: PLC0415
    from envspec.spec import HostSpec  # noqa: PLC0415

    declared: tuple[HostSpec, ...] = ()
    try:
        place = spec or find_spec(Path())
    except EnvspecError:
        place = None  # no spec is needed to reach a host
    if place is not None:
        declared = read_inputs(place).parse_spec().hosts
    found = next((each for each in declared if each.name == host), None)
    if found is None and (host.startswith("-") or any(character.isspace() for character in host)):
        raise EnvspecError(f"`{host}` is no name of a host")
    return targets_of([found or HostSpec(name=host, ssh=host)])[0]


def _look(
    path: str, target: Target | None, run: str, timeout: float, reporter: Reporter
) -> tuple[Observation, Traced | None]:
    """Observe the venv, and run what is to be run: first the one, then the other, since a run may write bytecode."""
    from builder.observing import observe  # noqa: PLC0415

    observation = observe(path, host=target, reporter=reporter)
    if not run:
        return observation, None
    from builder.tracing import trace  # noqa: PLC0415

    # A script is named from here; a module is imported in no folder in particular.
    if target is None and (run.endswith(".py") or "/" in run):
        run = os.fspath(Path(run).absolute())
    reporter.note(f"running {run}")
    if target is None:
        return observation, trace(run, path, environ=os.environ, timeout_s=timeout, cwd=os.fspath(Path.cwd()))
    from builder.bundle import make_bundle  # noqa: PLC0415
    from builder.hosts import Visit as OneVisit  # noqa: PLC0415
    from builder.progress import SilentHost  # noqa: PLC0415

    visit: Visit = OneVisit(target=target, bundle=make_bundle(), progress=SilentHost())
    return observation, visit.with_session(
        lambda session: trace(run, path, environ={}, session=session, timeout_s=timeout)
    )


def _index(observation: Observation, notes: list[str]) -> Index | None:
    """Where versions for fixes are looked up, if something is to be mended."""
    from builder.offering import UvIndex  # noqa: PLC0415
    from envspec.diagnosis.installed import closure_of  # noqa: PLC0415

    spec = closure_of(observation).spec
    cache = os.environ.get("XDG_CACHE_HOME") or os.fspath(Path.home() / ".cache")
    return UvIndex(
        python=spec.python.exact or spec.python.version,
        platform=spec.target.platform,
        glibc=spec.target.glibc,
        environ=os.environ,
        cache_dir=Path(cache) / "envspec" / "uv",
        note=notes.append,
    )


def _paint(word: str, role: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return word
    return f"{_COLOURS[role]}{word}\x1b[0m"
