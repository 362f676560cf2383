"""A lock -> an environment on this machine: fetched, patched, realised, proven, and active.

Everything happens once: what the store has is not made again. Wheels are unpacked and compiled while others are still being fetched. Nothing
becomes active before its tree has the locked site digest and its imports work; whatever fails leaves what was active as it was.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.build import Order, build_environment
from builder.agent.interpreter import interpreter_for
from builder.agent.realise import Plan, PlanPart
from builder.outcome import BuildOutcome, ProbesFailed, patch_files
from builder.provision import base_part, provide
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.lock import Lock, owners

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.interpreter import Interpreter
    from builder.agent.store import Store
    from builder.overlay import Series
    from builder.progress import Reporter
    from envspec.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What is to be built, and from where."""

    spec: Spec
    lock: Lock
    folder: Path
    """Where the spec lies; the paths of overlays are relative to it."""

    lock_name: str
    """Of the lock's file, for messages."""

    lock_sha256: str
    spec_sha256: str
    """Of the bytes of the two files."""

    store: Store
    environ: Mapping[str, str]
    now: str
    """RFC 3339 in UTC."""

    repair: bool = False
    """Whether a drifted environment and damaged objects are made anew."""

    verify: bool = True
    """Whether it becomes active only if its imports and probes pass; else neither is run."""

    offline: bool = False
    """Whether all that is needed is here, and no Python may be fetched."""


def build_here(request: BuildRequest, reporter: Reporter) -> BuildOutcome:
    """Build an environment on this machine and make it active.

    Raises:
        EnvspecError: What went wrong; nothing was activated.
    """
    store, lock = request.store, request.lock
    series = check_overlays(lock, request.folder, request.lock_name)
    store.ensure()
    interpreter = _interpreter(request, reporter)
    check_interpreter(lock, interpreter, request.lock_name)
    order = order_of(request)
    try:
        return build_environment(
            store,
            order,
            interpreter,
            environ=request.environ,
            provide=lambda maker: provide(request, order.plan, series, maker, reporter),
            reporter=reporter,
        )
    except ProbesFailed as error:
        from builder.explaining import explained  # noqa: PLC0415 - only where something failed

        raise explained(error, lock, request.lock_name, "") from error


def order_of(request: BuildRequest) -> Order:
    """What the machine that gets the environment needs to know of a request.

    Raises:
        EnvspecError: The spec names a probe that does not exist.
        OSError: A patch cannot be read.
    """
    from builder.ordering_probes import order_probes  # noqa: PLC0415 - reads every probe

    probes = order_probes(request.spec) if request.verify and request.spec.verify.kernels else None
    return Order(
        plan=plan_of(request.lock),
        imports=request.spec.verify.imports,
        libraries=request.spec.target.libraries,
        lock_name=request.lock_name,
        lock_sha256=request.lock_sha256,
        spec_sha256=request.spec_sha256,
        patches=tuple(sorted(patch_files(request.lock, request.folder).items())),
        now=request.now,
        repair=request.repair,
        verify=request.verify,
        probes=probes,
    )


def plan_of(lock: Lock) -> Plan:
    """What the agent needs to know of a lock."""
    overlays = {overlay.package: overlay for overlay in lock.overlays}
    parts: list[PlanPart] = []
    for package in lock.packages:
        overlay = overlays.get(package.name)
        if overlay is None:
            parts.append(base_part(package))
        else:
            parts.append(
                PlanPart(
                    package=package.name,
                    file=overlay.file,
                    sha256=overlay.sha256,
                    tree=overlay.tree,
                    donor=package.tree,
                    base_sha256=package.sha256,
                )
            )
    return Plan(
        env=lock.env,
        name=lock.name,
        python=lock.python,
        site=lock.site,
        parts=tuple(parts),
        owners=tuple(sorted(owners(lock.waivers).items())),
    )


def check_overlays(lock: Lock, folder: Path, lock_name: str) -> dict[str, Series]:
    """See that the patches on disk are the locked ones.

    Args:
        lock: The lock.
        folder: Where the spec lies.
        lock_name: Of the lock's file, for messages.

    Returns:
        Package -> its series.

    Raises:
        EnvspecError: A patch is not the locked one, or cannot be read.
    """
    if not lock.overlays:
        return {}
    from builder.overlay import read_series  # noqa: PLC0415 - only where there is an overlay

    found: dict[str, Series] = {}
    problems: list[Problem] = []
    for overlay in lock.overlays:
        series = read_series(folder / overlay.series)
        found[overlay.package] = series
        locked = {patch.name: patch.sha256 for patch in overlay.patches}
        there = {patch.name: patch.sha256 for patch in series.patches}
        problems.extend(
            Problem(
                where=f"overlay {overlay.package}, {name}",
                message=f"the lock has sha256 {locked.get(name, 'none')}, {overlay.series} gives {there.get(name, 'none')}",
            )
            for name in {**locked, **there}
            if locked.get(name) != there.get(name)
        )
        if not problems and list(locked) != list(there):
            problems.append(
                Problem(where=f"overlay {overlay.package}", message="the series has another order than the lock")
            )
    if problems:
        raise EnvspecError(
            "the patches on disk are not the locked ones",
            input_name=lock_name,
            problems=tuple(problems),
            hint="run `envspec lock` to lock them",
            exit_code=FOUND_WRONG,
        )
    return found


def check_interpreter(lock: Lock, interpreter: Interpreter, lock_name: str) -> None:
    """See that a Python is one that every locked wheel and the declared target allow.

    Raises:
        EnvspecError: It is not.
    """
    problems = interpreter_problems(lock, path=str(interpreter.path), version=interpreter.version)
    found = tuple(int(piece) for piece in interpreter.libc.split(" ")[-1].split(".")[:2])
    wanted = tuple(int(piece) for piece in lock.glibc.split(".")[:2])
    if found < wanted:
        problems.append(
            Problem(
                where="target.glibc",
                message=f"the lock is for glibc {lock.glibc} or newer, this machine has {interpreter.libc}",
            )
        )
    if problems:
        raise EnvspecError(
            f"this machine's Python {interpreter.version} does not fit the lock",
            input_name=lock_name,
            problems=tuple(problems),
            hint="install another patch level of the Python, or declare the oldest host in the spec and lock again",
            exit_code=FOUND_WRONG,
        )


def interpreter_problems(lock: Lock, *, path: str, version: str) -> list[Problem]:
    """Which locked packages do not allow a Python.

    Args:
        lock: The lock.
        path: Of the interpreter, for messages.
        version: Its full version.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - not for a build of what is there

    problems: list[Problem] = []
    for requires in sorted({package.requires_python for package in lock.packages if package.requires_python}):
        try:
            allowed = SpecifierSet(requires).contains(version, prereleases=True)
        except InvalidSpecifier:
            allowed = True  # judged when the lock was written
        if not allowed:
            names = ", ".join(package.name for package in lock.packages if package.requires_python == requires)
            problems.append(Problem(where=names, message=f"requires Python `{requires}`, `{path}` is {version}"))
    return problems


def _interpreter(request: BuildRequest, reporter: Reporter) -> Interpreter:
    """The Python of the environment on this machine; without network that of the pinned archive, if there is no other."""
    store, lock, pinned = request.store, request.lock, request.spec.python

    def find(only: str = "") -> Interpreter:
        return interpreter_for(
            store,
            lock.python,
            lock.python_exact,
            platform=lock.platform,
            environ=request.environ,
            uv=uv_path(request.environ),
            may_install=not request.offline,
            only=only,
        )

    try:
        return find()
    except EnvspecError:
        if not (request.offline and pinned.archive):
            raise
    from builder.agent.pythons import keep_python  # noqa: PLC0415 - rarely needed
    from builder.host_building import PinnedFile  # noqa: PLC0415

    path = keep_python(
        store,
        pinned.archive_sha256,
        lambda: PinnedFile.of(request).path,
        lock.python,
        lock.python_exact,
        note=reporter.note,
    )
    return find(str(path))


def uv_path(environ: Mapping[str, str]) -> str | None:
    """Where uv is; None if it is nowhere."""
    return environ.get("UV") or shutil.which("uv", path=environ.get("PATH"))
