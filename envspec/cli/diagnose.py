"""`envspec diagnose`: why does this venv not work?"""

from __future__ import annotations

import gc
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from envspec.cli.options import JsonOption, QuietOption, SpecOption, find_spec, not_empty
from envspec.cli.output import make_reporter, say, say_json, tell
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from builder.hosts import Target
    from builder.offering import UvIndex
    from builder.progress import Reporter
    from envspec.diagnosis.told import Told
    from envspec.observed import Observation
    from envspec.spec import Waiver
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
        str | None,
        Parameter(
            name="--run",
            validator=not_empty,
            help="Import this module, or run this script, in the venv, and say why it fails. Without it nothing is run.",
        ),
    ] = None,
    timeout: Annotated[
        float, Parameter(name="--timeout", validator=Number(gt=0), help="Seconds until a run is stopped. Default: 300.")
    ] = DEFAULT_TIMEOUT_S,
    host: Annotated[
        str | None,
        Parameter(
            name="--host",
            validator=not_empty,
            help="A host of the spec, or a name of ssh_config, where the venv lies. Nothing is left there.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        Parameter(name=("--offline", "--no-index"), negative=(), help="Look up no version for a fix in an index."),
    ] = False,
    no_cache: Annotated[
        bool, Parameter(name="--no-cache", negative=(), help="Read and judge everything anew; remember nothing.")
    ] = False,
    spec: SpecOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Say why a venv does not work, whoever made it: the causes with their evidence, what is not the cause, and what mends it.

    Its files are looked at and nothing of it is run, unless `--run` asks for it. Exit 1 if a cause was found, or the run failed.
    """
    host = host or ""
    chosen, chosen_by = (path, "") if path else _default_path(host)
    if chosen_by:
        tell(f"{chosen}, {chosen_by}")
    gc.disable()  # a million small values that all live to the end: looking for garbage among them takes half of the time
    reporter = make_reporter(quiet=quiet)
    order = Order(
        path=chosen, run=run or "", timeout_s=timeout, host=host, offline=offline, remember=not no_cache, spec=spec
    )
    told = told_there(order, _target(host, spec), reporter) if host else told_here(order, reporter)
    if as_json:
        say_json(told.to_json())
    else:
        from envspec.diagnosis.text import render  # noqa: PLC0415
        from envspec.wording import counted  # noqa: PLC0415

        place = f"{host}:{told.diagnosis.prefix}" if host else told.diagnosis.prefix
        version = f"  Python {told.python}" if told.python else ""
        say(f"{place}{version}  {counted(told.packages, 'package')}, {told.files:,} files")
        for line in render(told.diagnosis, _paint):
            say(line)
        for note in told.notes:
            tell(note)
    return 0 if told.diagnosis.healthy else FOUND_WRONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for."""

    path: str
    run: str
    timeout_s: float
    host: str
    offline: bool
    remember: bool
    spec: Path | None = None
    """Beside it the lock lies of which waivers are taken, if it is that of the venv."""


def told_here(order: Order, reporter: Reporter) -> Told:
    """Of a venv of this machine: what was told the last time, if nothing changed since."""
    from builder.diagnosed import DiagnosisMemory, index_state  # noqa: PLC0415
    from builder.observing import begin_look, finish_look  # noqa: PLC0415

    look = begin_look(order.path, reporter)
    memory = None
    if order.remember and look.state and not order.run:
        index = None if order.offline else index_state(os.environ)
        basis = {"state": look.state, "index": index}
        if look.place.config and "envspec-env" in look.place.config:
            from envspec.cli.accepted import lock_digest  # noqa: PLC0415

            basis["lock"] = lock_digest(order.spec)
        memory = DiagnosisMemory(os.environ, look.place.prefix, basis)
        recalled = memory.recall(time.time())
        if recalled is not None:
            return recalled
    survey = finish_look(look, remember=order.remember)
    # First the look, then the run: a run may write bytecode.
    traced = _run_here(order, reporter) if order.run else None
    begun_s = time.time()
    told, asked = _judged(order, survey.observation, traced, reporter)
    if memory is not None and survey.basis is not None and not told.notes:
        memory.keep(told, survey.basis.outside, begun_s if asked else None)
    return told


def told_there(order: Order, target: Target, reporter: Reporter) -> Told:
    """Of a venv on a host, where nothing is remembered."""
    from builder.observing import observe  # noqa: PLC0415

    observation = observe(order.path, host=target, reporter=reporter)
    traced = _run_there(order, target, reporter) if order.run else None
    return _judged(order, observation, traced, reporter)[0]


def _judged(order: Order, observation: Observation, traced: Traced | None, reporter: Reporter) -> tuple[Told, bool]:
    """What is told of an observation, and whether an index was asked for it."""
    from envspec.diagnosis.diagnose import diagnose as judge  # noqa: PLC0415
    from envspec.diagnosis.told import told_of  # noqa: PLC0415

    notes: list[str] = []
    index = None if order.offline else _index(observation, notes)
    reporter.note("judging")
    waivers: tuple[Waiver, ...] = ()
    if observation.locked:
        from envspec.cli.accepted import accepted_in  # noqa: PLC0415

        waivers = accepted_in(observation.locked.get("env", ""), order.spec)
    diagnosis = judge(observation, traced, host=order.host, waivers=waivers, index=index)
    return told_of(diagnosis, observation, tuple(notes)), index is not None and index.was_asked


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


def _run_here(order: Order, reporter: Reporter) -> Traced:
    from builder.tracing import trace  # noqa: PLC0415

    # A script is named from here; a module is imported in no folder in particular.
    is_script = order.run.endswith(".py") or "/" in order.run
    run = os.fspath(Path(order.run).absolute()) if is_script else order.run
    reporter.note(f"running {run}")
    return trace(run, order.path, environ=os.environ, timeout_s=order.timeout_s, cwd=os.fspath(Path.cwd()))


def _run_there(order: Order, target: Target, reporter: Reporter) -> Traced:
    from builder.bundle import make_bundle  # noqa: PLC0415
    from builder.hosts import Visit  # noqa: PLC0415
    from builder.progress import SilentHost  # noqa: PLC0415
    from builder.tracing import trace  # noqa: PLC0415

    reporter.note(f"running {order.run}")
    visit = Visit(target=target, bundle=make_bundle(), progress=SilentHost())
    return visit.with_session(
        lambda session: trace(order.run, order.path, environ={}, session=session, timeout_s=order.timeout_s)
    )


def _index(observation: Observation, notes: list[str]) -> UvIndex:
    """Where versions for fixes are looked up, if something is to be mended."""
    from builder.offering import UvIndex as Index  # noqa: PLC0415
    from envspec.diagnosis.installed import closure_of  # noqa: PLC0415

    spec = closure_of(observation).spec
    cache = os.environ.get("XDG_CACHE_HOME") or os.fspath(Path.home() / ".cache")
    return Index(
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
