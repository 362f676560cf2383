"""An order -> an environment on this machine: realised, proven, imported, and active.

This is the part of a build that runs where the environment lies: in the process of `envspec build`, or in the agent on a host. What differs
between the two is where wheels come from, and that is the caller's `provide`.

Nothing becomes active before its tree has the locked site digest and its imports work; whatever fails leaves what was active as it was.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from builder.agent import evidence as evidence_of
from builder.agent.generations import activate, active_number
from builder.agent.host import user_name
from builder.agent.observe import Drift, find_drift, read_env_record
from builder.agent.proving import probe_of, prove_imports_of, read_site_manifest
from builder.agent.realise import CorruptObjects, Plan, PlanPart, WheelDamaged, realise
from builder.agent.store import remove_readonly_tree
from builder.outcome import LOCALHOST, BuildOutcome, ProbesFailed
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.agent.evidence import Evidence
    from builder.agent.imports import ImportProof
    from builder.agent.interpreter import Interpreter
    from builder.agent.objects import ObjectMaker
    from builder.agent.probe_scripts import ProbeOrder
    from builder.agent.store import Store
    from builder.progress import Reporter

DRIFT_SHOWN = 10

Provide = Callable[["ObjectMaker"], None]
"""Hands every part of the plan to the maker: those that are there at once, the others as they come."""


@dataclass(frozen=True)
class Order:
    """Everything that a build is asked for, as plain values."""

    plan: Plan
    imports: tuple[str, ...]
    """Modules that must import."""

    libraries: tuple[str, ...]
    """Host libraries that the environment declares."""

    lock_name: str
    """Of the lock's file, for messages."""

    lock_sha256: str
    spec_sha256: str
    """Of the bytes of the two files."""

    patches: tuple[tuple[str, str], ...]
    """File of an overlay, relative to the spec's folder, and its sha256."""

    now: str
    """RFC 3339 in UTC."""

    repair: bool = False
    """Whether a drifted environment and damaged objects are made anew."""

    verify: bool = True
    """Whether it becomes active only if its imports and probes pass; else neither is run."""

    probes: ProbeOrder | None = None
    """Which probes are run; None if the spec names none."""

    def to_json(self) -> dict[str, Any]:
        """The order as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Order:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError: It is none.
        """
        from builder.agent.probe_scripts import ProbeOrder  # noqa: PLC0415 - not for a build of what is there

        plan = fields["plan"]
        return cls(
            plan=Plan(
                env=plan["env"],
                name=plan["name"],
                python=plan["python"],
                site=plan["site"],
                parts=tuple(PlanPart(**part) for part in plan["parts"]),
                owners=tuple((pattern, owner) for pattern, owner in plan["owners"]),
            ),
            imports=tuple(fields["imports"]),
            libraries=tuple(fields["libraries"]),
            lock_name=fields["lock_name"],
            lock_sha256=fields["lock_sha256"],
            spec_sha256=fields["spec_sha256"],
            patches=tuple((path, sha256) for path, sha256 in fields["patches"]),
            now=fields["now"],
            repair=fields["repair"],
            verify=fields["verify"],
            probes=None if fields["probes"] is None else ProbeOrder.from_json(fields["probes"]),
        )


def build_environment(
    store: Store,
    order: Order,
    interpreter: Interpreter,
    *,
    environ: Mapping[str, str],
    provide: Provide,
    reporter: Reporter,
) -> BuildOutcome:
    """Build an environment on this machine and make it active.

    Args:
        store: The store; it exists.
        order: What to build.
        interpreter: The Python of the environment, seen to fit the lock.
        environ: This process's environment.
        provide: Where wheels come from.
        reporter: Where progress goes.

    Raises:
        EnvspecError: What went wrong; nothing was activated.
    """
    started = time.monotonic()
    seconds: dict[str, float] = {}
    plan = order.plan
    with store.lock(
        "gc", shared=True, waiting=reporter.note
    ) as gc_fd:  # until it is active: nothing may be collected that is about to be used
        with store.lock(f"env-{plan.env}", waiting=reporter.note) as env_fd:
            store.sweep()
            path = store.env(plan.env, plan.name)
            built = not path.is_dir() or not _is_sound(store, order, path)
            if built:
                try:
                    with _timed(seconds, "realise"):
                        _realise_healing(store, order, interpreter, (gc_fd, env_fd), provide, reporter)
                finally:
                    with contextlib.suppress(OSError):  # it must not hide what went wrong; the next build sweeps again
                        store.sweep()
        evidence = evidence_of.begin(environ, path)
        evidence.seconds = seconds
        if order.verify:
            _prove(evidence, store, order, path, environ, reporter)
        seconds["total"] = time.monotonic() - started
        receipt = _write_receipt(store, order, interpreter, evidence)
        if evidence.imports is not None and evidence.imports.result == "fail":
            raise import_failure(evidence.imports, order.lock_name)
        if evidence.failed:
            names = ", ".join(f"`{probe.id}`" for probe in evidence.probes if probe.result == "fail")
            raise ProbesFailed(f"the environment does not pass its probes: {names}", receipt)
        reporter.note("activating")  # on a host this ends a build whose controller is gone
        before = active_number(store, plan.name)
        generation = activate(
            store,
            plan.name,
            env=plan.env,
            site=plan.site,
            lock_sha256=order.lock_sha256,
            spec_sha256=order.spec_sha256,
            created=order.now,
        )
    seconds["total"] = time.monotonic() - started
    return BuildOutcome(
        host=LOCALHOST,
        env=plan.env,
        site=plan.site,
        path=path,
        generation=generation.number,
        built=built,
        activated=generation.number != before,
        probes=tuple(evidence.probes),
        seconds=seconds,
        verified=order.verify,
        receipt=receipt,
    )


def _prove(
    evidence: Evidence, store: Store, order: Order, path: Path, environ: Mapping[str, str], reporter: Reporter
) -> None:
    """Imports, then probes: what does not import need not be run."""
    if order.imports:
        with _timed(evidence.seconds, "imports"):
            proof = prove_imports_of(store, order.plan.env, path, order.imports, order.libraries, environ, reporter)
        evidence.imports = proof
        evidence.probes.append(probe_of(proof))
    if order.probes is not None and not evidence.failed:
        evidence_of.probe(evidence, store, order.plan.env, path, order.probes, environ, reporter)


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


def _is_sound(store: Store, order: Order, path: Path) -> bool:
    """Whether an environment that is there is still what was built; a drifted one is taken away if repair is asked for."""
    try:
        record = read_env_record(store, order.plan.env, order.plan.name)
        drift = find_drift(store, record)
        if order.repair:
            read_site_manifest(store, record)
    except EnvspecError as error:
        drift = (Drift("", "missing", error.message),)
    if not drift:
        return True
    if not order.repair:
        raise EnvspecError(
            f"the environment `{path}` has drifted: {len(drift)} path{'s' if len(drift) != 1 else ''} differ from what was built",
            detail="\n".join(each.line() for each in drift[:DRIFT_SHOWN]),
            hint="`envspec status` lists all; `envspec build --repair` makes it anew",
            exit_code=FOUND_WRONG,
        )
    _take_away(store, path)
    return False


def _take_away(store: Store, path: Path) -> None:
    """Remove an environment: first out of its place, in one step."""
    _check_owner(path)
    moved = store.root / ".tmp" / f"env-{path.name.partition('-')[0]}.old"
    remove_readonly_tree(moved)
    path.chmod(0o755)
    path.rename(moved)
    remove_readonly_tree(moved)


def _check_owner(path: Path) -> None:
    """See that this user may remove what is to be made anew.

    Raises:
        EnvspecError: It is another user's.
    """
    with contextlib.suppress(FileNotFoundError):
        owner = path.lstat().st_uid
        if os.geteuid() not in {0, owner}:
            raise EnvspecError(
                f"`{path}` was made by {user_name(owner)}, and this is {user_name()}",
                hint=f"only {user_name(owner)} or root can mend it: there `envspec build --repair`",
            )


def _realise_healing(
    store: Store,
    order: Order,
    interpreter: Interpreter,
    lock_fds: tuple[int, ...],
    provide: Provide,
    reporter: Reporter,
) -> None:
    """Realise; a damaged wheel is fetched again, and with `repair` objects that turn out damaged are made anew, each once."""
    healed: set[str] = set()
    while True:
        try:
            _realise(store, order.plan, interpreter, lock_fds, provide, reporter)
        except WheelDamaged as damaged:
            if damaged.wheel.name in healed:
                raise
            reporter.note(f"{damaged.message}: getting it again")
            healed.add(damaged.wheel.name)
            damaged.wheel.unlink(missing_ok=True)
        except CorruptObjects as damaged:
            trees = set(damaged.trees)
            if not order.repair or trees <= healed:
                raise
            reporter.note(f"making {len(trees)} damaged objects anew")
            healed |= trees
            for tree in trees:
                _remove_objects(store, tree)
        else:
            return


def _remove_objects(store: Store, tree: str) -> None:
    """Remove a tree and all bytecode of it."""
    with store.lock(f"tree-{tree[:40]}"), store.lock(f"bytecode-{tree[:40]}"):
        objects = [store.root / "trees" / tree, *(store.root / "bytecode").glob(f"{tree}-*")]
        for found in objects:
            _check_owner(found)
        for found in objects:
            if found.is_dir():
                remove_readonly_tree(found)
        for folder in ("trees", "bytecode"):
            for found in (store.root / folder).glob(f"{tree}*"):
                found.unlink(missing_ok=True)


def _realise(
    store: Store,
    plan: Plan,
    interpreter: Interpreter,
    lock_fds: tuple[int, ...],
    provide: Provide,
    reporter: Reporter,
) -> None:
    from builder.agent.objects import ObjectMaker  # noqa: PLC0415 - not for a build of what is there
    from builder.agent.pool import WorkerPool  # noqa: PLC0415

    with WorkerPool(interpreter.path, store.root, pass_fds=lock_fds) as pool:
        with _stages(plan, reporter) as on_made:
            maker = ObjectMaker(store, interpreter, pool, plan.python, on_made)
            provide(maker)
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


def _write_receipt(store: Store, order: Order, interpreter: Interpreter, evidence: Evidence) -> dict[str, Any]:
    """Leave the evidence of this build; also of one whose imports or probes fail."""
    plan = order.plan
    record = read_env_record(store, plan.env, plan.name)
    receipt = evidence.receipt(
        "build",
        time=order.now,
        user=user_name(),
        name=plan.name,
        env=plan.env,
        site=plan.site,
        lock_sha256=order.lock_sha256,
        spec_sha256=order.spec_sha256,
        patches=dict(order.patches),
        bytecode={"tag": record.fields["bytecode_tag"], "sha256": record.fields["bytecode_sha256"]},
        interpreter=interpreter.to_json(),
        verified=order.verify and not evidence.failed,
    )
    evidence_of.write_receipt(store, plan.env, "build", receipt)
    return receipt
