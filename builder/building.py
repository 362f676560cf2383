"""A lock -> an environment on this machine: fetched, patched, realised, proven, and active.

Everything happens once: what the store has is not made again. Wheels are unpacked and compiled while others are still being fetched. Nothing
becomes active before its tree has the locked site digest and its imports work; whatever fails leaves what was active as it was.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import platform
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.agent.generations import activate, active_number
from builder.agent.observe import Drift, find_drift, read_env_record
from builder.agent.realise import (
    CorruptObjects,
    Plan,
    PlanPart,
    WheelDamaged,
    bytecode_digest,
    realise,
)
from builder.agent.store import read_json, remove_readonly_tree, sync_folder, write_atomically
from builder.outcome import LOCALHOST, BuildOutcome, Probe, patch_files
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.lock import Lock, LockedOverlay, LockedPackage, owners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from builder.agent.imports import ImportProof
    from builder.agent.interpreter import Interpreter
    from builder.agent.objects import ObjectMaker
    from builder.agent.store import Store
    from builder.overlay import Series
    from builder.progress import Advance, Reporter
    from envspec.spec import Spec

if TYPE_CHECKING:
    Use = Callable[[Path, bool], None]  # what to do with a wheel, and whether its sha256 was checked just now

IMPORT_TIMEOUT_S = 600.0
LARGE_WHEELS = 16
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
    with store.lock("gc", shared=True):  # until it is active: nothing may be collected that is about to be used
        with store.lock(f"env-{lock.env}") as fd:
            store.sweep()
            path = store.env(plan.env, plan.name)
            built = not path.is_dir() or not _is_sound(request, path)
            if built:
                try:
                    with _timed(seconds, "realise"):
                        _realise_healing(request, plan, series, interpreter, fd, reporter)
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
            parts.append(_base_part(package))
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


def _base_part(package: LockedPackage) -> PlanPart:
    return PlanPart(package=package.name, file=package.file, sha256=package.sha256, tree=package.tree)


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
    lock_fd: int,
    reporter: Reporter,
) -> None:
    """Realise; a damaged wheel is fetched again, and with `repair` objects that turn out damaged are made anew, each once."""
    healed: set[str] = set()
    while True:
        try:
            _realise(request, plan, series, interpreter, lock_fd, reporter)
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
    lock_fd: int,
    reporter: Reporter,
) -> None:
    from builder.agent.objects import ObjectMaker  # noqa: PLC0415 - not for a build of what is there
    from builder.agent.pool import WorkerPool  # noqa: PLC0415

    store = request.store
    with WorkerPool(interpreter.path, store.root, pass_fds=(lock_fd,)) as pool:
        with _stages(plan, reporter) as on_made:
            maker = ObjectMaker(store, interpreter, pool, plan.python, on_made)
            _supply(request, plan, series, maker, reporter)
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


def _supply(
    request: BuildRequest, plan: Plan, series: Mapping[str, Series], maker: ObjectMaker, reporter: Reporter
) -> None:
    """Hand every part to the maker: those whose wheels are there at once, the others as they arrive."""
    store = request.store
    overlays = {overlay.package: overlay for overlay in request.lock.overlays}
    packages = {package.name: package for package in request.lock.packages}
    wanted: list[LockedPackage] = []
    then: dict[str, list[Use]] = {}

    def have_or_fetch(package: LockedPackage, use: Use) -> None:
        wheel = store.wheel(package.sha256, package.file)
        if _is_there(wheel, package.size):
            use(wheel, False)  # noqa: FBT003 - of the kind `Use`
            return
        if package.sha256 not in then:
            wanted.append(package)
        then.setdefault(package.sha256, []).append(use)

    for part in plan.parts:
        package = packages[part.package]
        overlay = overlays.get(part.package)
        if overlay is None:
            if maker.is_tree_there(part):
                maker.add(part, None)
            else:
                have_or_fetch(package, _adder(maker, part))
        elif maker.is_tree_there(part):
            maker.add(replace(part, donor=""), None)
        else:
            base = _base_part(package)
            if maker.is_tree_there(base):
                maker.add(base, None)
            else:
                have_or_fetch(package, _adder(maker, base))
            patched = store.wheel(overlay.sha256, overlay.file)
            if _is_there(patched, overlay.size):
                maker.add(part, patched)
            else:
                have_or_fetch(package, _patcher(store, maker, part, overlay, series[part.package]))
    if wanted:
        _fetch(request, wanted, then, maker, reporter)


def _is_there(wheel: Path, size: int) -> bool:
    """Whether a wheel is in the wheelhouse; its sha256 is checked by the worker that reads it."""
    return wheel.is_file() and wheel.stat().st_size == size


def _adder(maker: ObjectMaker, part: PlanPart) -> Use:
    return lambda wheel, checked: maker.add(part, wheel, checked=checked)


def _patcher(store: Store, maker: ObjectMaker, part: PlanPart, overlay: LockedOverlay, series: Series) -> Use:
    def patch(base_wheel: Path, _checked: bool) -> None:  # noqa: FBT001 - of the kind `Use`
        maker.add(part, ensure_patched(store, base_wheel, overlay, series))

    return patch


def ensure_patched(store: Store, base_wheel: Path, overlay: LockedOverlay, series: Series) -> Path:
    """The patched wheel of an overlay in the wheelhouse.

    Args:
        store: The store.
        base_wheel: The base wheel.
        overlay: What was locked of it.
        series: The patches, checked against the lock.

    Raises:
        WheelDamaged: The base wheel is not the locked one.
        EnvspecError: The patches do not apply, or the result is not the locked one.
    """
    from builder.agent.unpack import hash_file  # noqa: PLC0415 - only where there is an overlay
    from builder.overlay import build_patched_wheel  # noqa: PLC0415

    target = store.wheel(overlay.sha256, overlay.file)
    if _is_there(target, overlay.size):
        return target
    if (found := hash_file(os.fspath(base_wheel))) != overlay.base_sha256:
        raise WheelDamaged(base_wheel, f"`{base_wheel.name}` has sha256 {found}, the lock has {overlay.base_sha256}")
    with overlay_folder(store, overlay.sha256) as folder:
        patched = build_patched_wheel(base_wheel, series, destination_dir=folder)
        if (patched.sha256, patched.file) != (overlay.sha256, overlay.file):
            raise EnvspecError(
                f"the overlay of `{overlay.package}` gives {patched.file} with sha256 {patched.sha256}, "
                f"the lock has {overlay.file} with {overlay.sha256}",
                hint="lock again with this version of envspec",
                exit_code=FOUND_WRONG,
            )
        place_wheel(patched.path, target)
    return target


@contextlib.contextmanager
def overlay_folder(store: Store, sha256: str) -> Iterator[Path]:
    """An empty folder in which a patched wheel is made, under a lock of its own. Nothing of it stays, whatever happens.

    Args:
        store: The store.
        sha256: Of the wheel that the lock is named by.
    """
    lock_name = f"overlay-{sha256[:40]}"
    with store.lock(lock_name):
        folder = store.temporary(lock_name)
        try:
            yield folder
        finally:
            remove_readonly_tree(folder)


def place_wheel(source: Path, target: Path) -> None:
    """Move a finished wheel to its place in the wheelhouse, read-only and on the disk before it has its name."""
    target.parent.mkdir(exist_ok=True)
    source.chmod(0o444)
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # the wheelhouse may lie on another disk than the rest of the store
            raise
        _copy_durably(source, target)
    sync_folder(target.parent)


def _copy_durably(source: Path, target: Path) -> None:
    """Copy a wheel to another file system: there under another name first. The caller holds the lock of the wheel."""
    import shutil  # noqa: PLC0415 - beside its only use

    beside = target.with_name(f".{target.name}")
    with source.open("rb") as reader, beside.open("wb") as writer:
        shutil.copyfileobj(reader, writer)
        writer.flush()
        os.fsync(writer.fileno())
    beside.chmod(0o444)
    beside.replace(target)


class _SharedStage:
    """A reporter for several fetches at once that fill one bar."""

    def __init__(self, reporter: Reporter, advance: Advance) -> None:
        self._reporter = reporter
        self._advance = advance

    def note(self, text: str) -> None:
        """Say one line."""
        self._reporter.note(text)

    def stage(self, label: str, *, total: int, unit: str) -> AbstractContextManager[Advance]:  # noqa: ARG002
        """The one bar."""
        return contextlib.nullcontext(self._advance)


def _fetch(
    request: BuildRequest,
    wanted: list[LockedPackage],
    then: Mapping[str, list[Use]],
    maker: ObjectMaker,
    reporter: Reporter,
) -> None:
    """Locate and fetch wheels; the largest are located on their own, so that they are on their way while the others are looked up."""
    from builder.supply import Supply  # noqa: PLC0415 - httpx and uv only where something is missing

    ordered = sorted(wanted, key=lambda package: -package.size)
    batches = [batch for batch in (ordered[:LARGE_WHEELS], ordered[LARGE_WHEELS:]) if batch]
    total = sum(package.size for package in wanted)
    supply = Supply.of(request.spec, request.lock, request.store, request.environ)

    errors: list[BaseException] = []

    def arrived(sha256: str, wheel: Path) -> None:
        if errors:  # the other batch failed: this one need not go on
            raise errors[0]
        for use in then[sha256]:
            use(wheel, True)  # noqa: FBT003 - of the kind `Use`

    with reporter.stage("fetching", total=total, unit="bytes") as advance:
        shared = _SharedStage(reporter, advance)

        def fetch(batch: list[LockedPackage]) -> None:
            try:
                supply.fetch(batch, shared, arrived)
            except BaseException as error:  # noqa: BLE001 - carried to the main thread
                errors.append(error)
                maker.fail(error)

        threads = [threading.Thread(target=fetch, args=(batch,), daemon=True) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


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
    tag = record.fields["bytecode_tag"]
    texts = [
        store.bytecode(part["tree"], tag).manifest_path.read_text(encoding="ascii") for part in record.fields["parts"]
    ]
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
        "bytecode": {"tag": tag, "sha256": bytecode_digest(texts)},
        "interpreter": interpreter.to_json(),
        "probes": [{"id": probe.id, "result": probe.result, "reason": probe.reason} for probe in probes],
        "imports": None if proof is None else proof.to_json(),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }
    folder = store.receipts(lock.env)
    text = json.dumps(receipt, indent=1, sort_keys=True) + "\n"
    write_atomically(folder / f"{request.now.replace(':', '')}-build.json", text)
    write_atomically(folder / "build.json", text)
