"""A small store with a few wheels, a plan for them, and the ways to build it: in this process, or in one that may be killed.

    store = new_store(tmp_path / "store")
    parts = [add_wheel(store, "alpha", {"alpha/__init__.py": "x = 1\n"}), ...]
    plan = make_plan(store, parts)
    made = build(store, plan)

`python -m tests.support.stores STORE PLAN` builds a plan with real worker processes and says `built` or `there`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.agent import worker
from builder.agent.interpreter import Interpreter, find_interpreter
from builder.agent.objects import ObjectMaker
from builder.agent.pool import WorkerPool, _error_of
from builder.agent.realise import Plan, PlanPart, Realised, realise
from builder.agent.store import Store, remove_readonly_tree
from builder.agent.unpack import read_wheel
from envspec.canonical import record_sha256, short_id
from envspec.compose import CollisionError, compose
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The minor version of the Python that runs the tests, and of every environment that they build."""

SITE = f"lib/python{PYTHON}/site-packages"
REPOSITORY = Path(__file__).parents[2]


class InlinePool(WorkerPool):
    """Does the tasks of worker processes in this process: the same code, without their start."""

    def __init__(self, store: Store) -> None:
        self.size = 2
        self.tasks: list[dict[str, Any]] = []
        self._store = store

    def submit(self, task: dict[str, Any], *, weight_s: float = 0.0) -> Future[dict[str, Any]]:
        self.tasks.append(task)
        future: Future[dict[str, Any]] = Future()
        answer = worker._answer(self._store, json.loads(json.dumps(task)))
        if answer["ok"]:
            future.set_result(json.loads(json.dumps(answer)))
        else:
            future.set_exception(_error_of(task, answer))
        return future


@functools.cache
def this_interpreter() -> Interpreter:
    """The Python that runs the tests, outside its virtual environment."""
    base = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    return find_interpreter(PYTHON, environ=os.environ, remembered=base, platform=f"linux-{os.uname().machine}")


def new_store(root: Path) -> Store:
    store = Store(root)
    store.ensure()
    return store


def add_wheel(
    store: Store, name: str, files: Mapping[str, bytes | str] | None = None, *, version: str = "1.0", **options: Any
) -> PlanPart:
    """Make a wheel and put it into the wheelhouse; options are those of `make_wheel`."""
    made = make_wheel(store.root / ".tmp" / "new-wheels", name, version, files, **options)
    sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
    place = store.wheel(sha256, made.name)
    place.parent.mkdir(exist_ok=True)
    made.rename(place)
    made.parent.rmdir()
    return PlanPart(package=name, file=made.name, sha256=sha256, tree=read_wheel(place, made.name, PYTHON).digest)


def make_plan(
    store: Store,
    parts: Sequence[PlanPart],
    *,
    name: str = "demo",
    owners: Mapping[str, str] | None = None,
    site: str = "",
    env: str = "",
) -> Plan:
    """The plan of some wheels of the wheelhouse; its site digest is predicted as a lock does it."""
    ordered = tuple(sorted(parts, key=lambda part: part.package))
    manifests = [
        (part.package, read_wheel(store.wheel(part.sha256, part.file), part.file, PYTHON).manifest) for part in ordered
    ]
    with contextlib.suppress(CollisionError):
        site = site or compose(manifests, owners or {}).site
    inputs = [("wheel", part.sha256) for part in ordered] + sorted((owners or {}).items())
    return Plan(
        env=env or short_id(record_sha256("test", inputs)),
        name=name,
        python=PYTHON,
        site=site,
        parts=ordered,
        owners=tuple(sorted((owners or {}).items())),
    )


def build(store: Store, plan: Plan, *, pool: WorkerPool | None = None) -> Realised | None:
    """Build a plan as `envspec build` does; None if it is there already. Without a pool, all happens in this process."""
    with store.lock("gc", shared=True), store.lock(f"env-{plan.env}") as fd:
        store.sweep()
        if store.env(plan.env, plan.name).is_dir():
            return None
        if pool is not None:
            return make_all(store, plan, pool)
        if os.environ.get("ENVSPEC_TEST_PROCESSES"):
            with WorkerPool(this_interpreter().path, store.root, pass_fds=(fd,), size=2) as workers:
                return make_all(store, plan, workers)
        return make_all(store, plan, InlinePool(store))


def built(store: Store, plan: Plan) -> Realised:
    """As `build`, for a plan that is not there yet."""
    made = build(store, plan)
    assert made is not None
    return made


def make_all(store: Store, plan: Plan, pool: WorkerPool) -> Realised:
    """Make the objects and the environment. The caller holds the locks."""
    return realise(store, plan, this_interpreter(), pool, proven=make_objects(store, plan, pool))


def make_objects(
    store: Store, plan: Plan, pool: WorkerPool, on_made: Callable[[str, PlanPart], None] = lambda _kind, _part: None
) -> dict[tuple[str, str], int]:
    """Make the trees and the bytecode of a plan; trees of donors are there."""
    maker = ObjectMaker(store, this_interpreter(), pool, PYTHON, on_made)
    for part in plan.parts:
        if part.donor:
            maker.add(PlanPart(package=part.package, file="", sha256="", tree=part.donor), None)
        maker.add(part, None if maker.is_tree_there(part) else store.wheel(part.sha256, part.file))
    return maker.wait()


def unpack_task(store: Store, part: PlanPart, *, donor: str = "", checked: bool = False) -> dict[str, Any]:
    """The task of a worker that makes a part's tree."""
    return {
        "task": "unpack",
        "wheel": os.fspath(store.wheel(part.sha256, part.file)),
        "file": part.file,
        "sha256": None if checked else part.sha256,
        "python": PYTHON,
        "tree": part.tree,
        "donor": donor or None,
    }


def start_build(store: Store, plan: Plan, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Build a plan in a process of its own, with real workers; to be waited for or killed.

    Args:
        store: The store.
        plan: The plan.
        folder: Where the plan is written to.
        variables: Of the process's environment.
    """
    from builder.process import start_worker  # noqa: PLC0415 - only where it is used

    path = folder / f"{plan.env}.json"
    path.write_text(json.dumps(asdict(plan)), encoding="utf-8")
    argv = [sys.executable, "-m", "tests.support.stores", str(store.root), str(path)]
    fixed = {"PATH": os.defpath, "HOME": str(folder), "PYTHONPATH": str(REPOSITORY), "ENVSPEC_TEST_PROCESSES": "1"}
    return start_worker(argv, env={**variables, **fixed})


def said(child: subprocess.Popen[str]) -> str:
    """Wait for a `start_build` to end well; what it said."""
    with child:
        stdout, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    return stdout.strip()


def forget_objects(store: Store) -> None:
    """Remove all environments and objects, so that the next build makes them anew. Nobody builds meanwhile."""
    for kind in ("envs", "trees", "bytecode"):
        for path in (store.root / kind).iterdir():
            remove_readonly_tree(path)


def outlast(folder: Path, moment_ns: int) -> None:
    """Return once the clock that gives files their times has passed a moment: it moves in steps of milliseconds."""
    probe = folder / "clock"
    while True:
        probe.write_bytes(b"")
        passed = probe.stat().st_ctime_ns > moment_ns
        probe.unlink()
        if passed:
            return


def unlock(folder: Path, root: Path) -> None:
    """Make the folders from a root down to one writable for their owner: their modes are no part of any proof."""
    for each in (folder, *folder.parents):
        if each.is_relative_to(root):
            each.chmod(0o755)


def edit_in_place(path: Path, content: bytes) -> None:
    """Overwrite a file's inode and put its mode and modification time back, as a careless or a careful culprit would."""
    path.parent.chmod(0o755)
    before = path.stat()
    outlast(path.parent, before.st_ctime_ns)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(before.st_mode & 0o777)
    outlast(path.parent, path.stat().st_ctime_ns)


def replace_file(path: Path, content: bytes, *, mode: int = 0o444) -> None:
    """Put a new file in the place of another, as most editors and installers do."""
    path.parent.chmod(0o755)
    outlast(path.parent, path.stat().st_ctime_ns)
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.chmod(mode)
    new.replace(path)
    outlast(path.parent, path.stat().st_ctime_ns)


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    """Path -> mode, size and inode of everything below a folder."""
    return {
        path.relative_to(root).as_posix(): (status.st_mode, status.st_size, status.st_ino)
        for path in sorted(root.rglob("*"))
        for status in (path.lstat(),)
    }


def main(arguments: Sequence[str]) -> int:
    store_root, plan_path = arguments
    fields = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    plan = Plan(
        **{
            **fields,
            "parts": tuple(PlanPart(**part) for part in fields["parts"]),
            "owners": tuple((pattern, owner) for pattern, owner in fields["owners"]),
        }
    )
    store = Store(Path(store_root))
    store.ensure()
    made = build(store, plan)
    sys.stdout.write("there\n" if made is None else "built\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
