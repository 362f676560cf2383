"""A lock -> an environment on this machine: fetched, patched, realised, proven, and active.

Everything happens once: what the store has is not made again. Wheels are unpacked and compiled while others are still being fetched. Nothing
becomes active before its tree has the locked site digest and its imports work; whatever fails leaves what was active as it was.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.generations import activate, active_number
from builder.agent.observe import Drift, find_drift, read_env_record
from builder.agent.realise import (
    CorruptObjects,
    Plan,
    PlanPart,
    WheelDamaged,
    realise,
)
from builder.agent.store import read_json, remove_readonly_tree, write_atomically
from builder.outcome import LOCALHOST, BuildOutcome, Probe, patch_files
from builder.provision import base_part, provide
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.lock import Lock, owners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from builder.agent.imports import ImportProof
    from builder.agent.interpreter import Interpreter
    from builder.agent.store import Store
    from builder.overlay import Series
    from builder.progress import Reporter
    from envspec.spec import Spec

IMPORT_TIMEOUT_S = 600.0
DRIFT_SHOWN = 10


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


def build_here(request: BuildRequest, reporter: Reporter) -> BuildOutcome:
    """Build an environment on this machine and make it active.

    Raises:
        EnvspecError: What went wrong; nothing was activated.
    """
    started = time.monotonic()
    seconds: dict[str, float] = {}
    store, lock = request.store, request.lock
    series = check_overlays(lock, request.folder, request.lock_name)
    store.ensure()
    interpreter = _find_interpreter(request)
    check_interpreter(lock, interpreter, request.lock_name)
    plan = plan_of(lock)
    with store.lock(
        "gc", shared=True
    ) as gc_fd:  # until it is active: nothing may be collected that is about to be used
        with store.lock(f"env-{lock.env}") as env_fd:
            store.sweep()
            path = store.env(plan.env, plan.name)
            built = not path.is_dir() or not _is_sound(request, path)
            if built:
                try:
                    with _timed(seconds, "realise"):
                        _realise_healing(request, plan, series, interpreter, (gc_fd, env_fd), reporter)
                finally:
                    with contextlib.suppress(OSError):  # it must not hide what went wrong; the next build sweeps again
                        store.sweep()
        proof = None
        if request.spec.verify.imports:
            with _timed(seconds, "imports"):
                proof = prove_imports_of(store, lock.env, path, request.spec, request.environ, reporter)
        probes = () if proof is None else (probe_of(proof),)
        seconds["total"] = time.monotonic() - started
        _write_receipt(request, interpreter, probes, proof, seconds)
        if proof is not None and proof.result == "fail":
            raise import_failure(proof, request.lock_name)
        before = active_number(store, lock.name)
        generation = activate(
            store,
            lock.name,
            env=lock.env,
            site=lock.site,
            lock_sha256=request.lock_sha256,
            spec_sha256=request.spec_sha256,
            created=request.now,
        )
    seconds["total"] = time.monotonic() - started
    return BuildOutcome(
        host=LOCALHOST,
        env=lock.env,
        site=lock.site,
        path=path,
        generation=generation.number,
        built=built,
        activated=generation.number != before,
        probes=probes,
        seconds=seconds,
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
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - not for a build of what is there

    problems: list[Problem] = []
    for requires in sorted({package.requires_python for package in lock.packages if package.requires_python}):
        try:
            allowed = SpecifierSet(requires).contains(interpreter.version, prereleases=True)
        except InvalidSpecifier:
            allowed = True  # judged when the lock was written
        if not allowed:
            names = ", ".join(package.name for package in lock.packages if package.requires_python == requires)
            problems.append(
                Problem(
                    where=names, message=f"requires Python `{requires}`, `{interpreter.path}` is {interpreter.version}"
                )
            )
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


def import_failure(proof: ImportProof, lock_name: str) -> EnvspecError:
    """The error that a failed import proof is."""
    return EnvspecError(
        f"the environment does not import: {proof.reason}",
        input_name=f"{lock_name}, [verify] imports",
        detail="\n".join(module.evidence for module in proof.modules if module.result == "fail") or proof.stderr,
        hint=proof.hint or "nothing was activated; what was active still is",
        exit_code=FOUND_WRONG,
    )


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = time.monotonic() - started


def _find_interpreter(request: BuildRequest) -> Interpreter:
    from builder.agent.interpreter import find_interpreter  # noqa: PLC0415 - not for a build of what is there

    store, lock = request.store, request.lock
    memory = store.facts / f"interpreter-{lock.python_exact or lock.python}.json"
    remembered = (read_json(memory) or {}).get("path")
    interpreter = find_interpreter(
        lock.python,
        lock.python_exact,
        environ=request.environ,
        uv=_uv_path(request.environ),
        remembered=None if remembered is None else store.root.__class__(remembered),
        platform=lock.platform,
        may_install=True,
    )
    if remembered != os.fspath(interpreter.path):
        write_atomically(memory, json.dumps({"path": os.fspath(interpreter.path)}) + "\n")
    return interpreter


def _uv_path(environ: Mapping[str, str]) -> str | None:
    import shutil  # noqa: PLC0415 - beside its only use

    return environ.get("UV") or shutil.which("uv", path=environ.get("PATH"))


def _is_sound(request: BuildRequest, path: Path) -> bool:
    """Whether an environment that is there is still what was built; a drifted one is taken away if repair is asked for."""
    store, lock = request.store, request.lock
    try:
        record = read_env_record(store, lock.env, lock.name)
        drift = find_drift(store, record)
        if request.repair:
            from builder.verify import read_site_manifest  # noqa: PLC0415 - only here

            read_site_manifest(store, record)
    except EnvspecError as error:
        drift = (Drift("", "missing", error.message),)
    if not drift:
        return True
    if not request.repair:
        raise EnvspecError(
            f"the environment `{path}` has drifted: {len(drift)} path{'s' if len(drift) != 1 else ''} differ from what was built",
            detail="\n".join(f"{each.kind:8}  {each.path}  {each.detail}".rstrip() for each in drift[:DRIFT_SHOWN]),
            hint="`envspec status` lists all; `envspec build --repair` makes it anew",
            exit_code=FOUND_WRONG,
        )
    _take_away(request.store, path)
    return False


def _take_away(store: Store, path: Path) -> None:
    """Remove an environment: first out of its place, in one step."""
    moved = store.root / ".tmp" / f"env-{path.name.partition('-')[0]}.old"
    remove_readonly_tree(moved)
    path.chmod(0o755)
    path.rename(moved)
    remove_readonly_tree(moved)


def _realise_healing(
    request: BuildRequest,
    plan: Plan,
    series: Mapping[str, Series],
    interpreter: Interpreter,
    lock_fds: tuple[int, ...],
    reporter: Reporter,
) -> None:
    """Realise; a damaged wheel is fetched again, and with `repair` objects that turn out damaged are made anew, each once."""
    healed: set[str] = set()
    while True:
        try:
            _realise(request, plan, series, interpreter, lock_fds, reporter)
        except WheelDamaged as damaged:
            if damaged.wheel.name in healed:
                raise
            reporter.note(f"{damaged.message}: getting it again")
            healed.add(damaged.wheel.name)
            damaged.wheel.unlink(missing_ok=True)
        except CorruptObjects as damaged:
            trees = set(damaged.trees)
            if not request.repair or trees <= healed:
                raise
            reporter.note(f"making {len(trees)} damaged objects anew")
            healed |= trees
            for tree in trees:
                _remove_objects(request.store, tree)
        else:
            return


def _remove_objects(store: Store, tree: str) -> None:
    """Remove a tree and all bytecode of it."""
    with store.lock(f"tree-{tree[:40]}"), store.lock(f"bytecode-{tree[:40]}"):
        for found in [store.root / "trees" / tree, *(store.root / "bytecode").glob(f"{tree}-*")]:
            if found.is_dir():
                remove_readonly_tree(found)
        for folder in ("trees", "bytecode"):
            for found in (store.root / folder).glob(f"{tree}*"):
                found.unlink(missing_ok=True)


def _realise(
    request: BuildRequest,
    plan: Plan,
    series: Mapping[str, Series],
    interpreter: Interpreter,
    lock_fds: tuple[int, ...],
    reporter: Reporter,
) -> None:
    from builder.agent.objects import ObjectMaker  # noqa: PLC0415 - not for a build of what is there
    from builder.agent.pool import WorkerPool  # noqa: PLC0415

    store = request.store
    with WorkerPool(interpreter.path, store.root, pass_fds=lock_fds) as pool:
        with _stages(plan, reporter) as on_made:
            maker = ObjectMaker(store, interpreter, pool, plan.python, on_made)
            provide(request, plan, series, maker, reporter)
            proven = maker.wait()
        reporter.note("linking and proving")
        realise(store, plan, interpreter, pool, proven=proven)


@contextlib.contextmanager
def _stages(plan: Plan, reporter: Reporter) -> Iterator[Callable[[str, PlanPart], None]]:
    with reporter.stage("unpacking and compiling", total=len(plan.parts), unit="wheels") as advance:

        def on_made(kind: str, _part: PlanPart) -> None:
            if kind == "bytecode":
                advance(1)

        yield on_made


def prove_imports_of(
    store: Store, env: str, path: Path, spec: Spec, environ: Mapping[str, str], reporter: Reporter
) -> ImportProof:
    """Import what a spec names in an environment that is there.

    Args:
        store: The store.
        env: The env id.
        path: The environment.
        spec: With [verify] imports and the host libraries.
        environ: This process's environment.
        reporter: Where progress goes.
    """
    from builder.agent.imports import prove_imports  # noqa: PLC0415 - not for a build of what is there

    modules = spec.verify.imports
    reporter.note("importing " + ", ".join(modules))
    with store.lock(f"imports-{env}"):
        scratch = store.temporary(f"imports-{env}")
        try:
            return prove_imports(
                path / "bin" / "python",
                modules,
                env_root=path,
                scratch=scratch,
                environ=environ,
                timeout_s=IMPORT_TIMEOUT_S,
                libraries=spec.target.libraries,
            )
        finally:
            remove_readonly_tree(scratch)


def probe_of(proof: ImportProof) -> Probe:
    """An import proof as one probe."""
    reason = proof.reason
    if proof.result == "pass" and proof.with_stub:
        reason = "no driver here: a stub stood in for libcuda.so.1"
    return Probe(id="imports", result=proof.result, reason=reason)


def _write_receipt(
    request: BuildRequest,
    interpreter: Interpreter,
    probes: tuple[Probe, ...],
    proof: ImportProof | None,
    seconds: Mapping[str, float],
) -> None:
    """Leave the evidence of this build; also of one whose imports fail."""
    store, lock = request.store, request.lock
    record = read_env_record(store, lock.env, lock.name)
    receipt = {
        "version": 1,
        "kind": "build",
        "time": request.now,
        "host": platform.node(),
        "user": getpass.getuser(),
        "env": lock.env,
        "site": lock.site,
        "lock_sha256": request.lock_sha256,
        "spec_sha256": request.spec_sha256,
        "patches": patch_files(lock, request.folder),
        "bytecode": {"tag": record.fields["bytecode_tag"], "sha256": record.fields["bytecode_sha256"]},
        "interpreter": interpreter.to_json(),
        "probes": [{"id": probe.id, "result": probe.result, "reason": probe.reason} for probe in probes],
        "imports": None if proof is None else proof.to_json(),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }
    folder = store.receipts(lock.env)
    text = json.dumps(receipt, indent=1, sort_keys=True) + "\n"
    write_atomically(folder / f"{request.now.replace(':', '')}-build.json", text)
    write_atomically(folder / "build.json", text)
