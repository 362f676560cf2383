"""Trees and bytecode are made once each, in an order that donors need, and are complete or absent."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent.bytecode import bytecode_tag
from builder.agent.files import hash_file
from builder.agent.objects import ObjectMaker
from builder.agent.pool import WorkerPool
from builder.agent.realise import WheelDamaged
from builder.agent.store import Store, remove_readonly_tree
from envspec.errors import EnvspecError
from envspec.tree import manifest_lines, parse_line, tree_digest
from tests.support.stores import (
    PYTHON,
    SITE,
    InlinePool,
    add_wheel,
    edit_in_place,
    make_objects,
    make_plan,
    new_store,
    this_interpreter,
    unpack_task,
)

if TYPE_CHECKING:
    from pathlib import Path

    from builder.agent.realise import PlanPart
    from builder.agent.store import StoreObject

DEADLINE_S = 30.0


class HeldPool(InlinePool):
    """Keeps tasks until they are let go, one by one."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.held: list[tuple[dict[str, Any], Future[dict[str, Any]]]] = []

    def submit(self, task: dict[str, Any], *, weight_s: float = 0.0) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        self.held.append((task, future))
        return future

    def names(self) -> list[tuple[str, str]]:
        return [(task["task"], task["tree"]) for task, _ in self.held]

    def let_go(self) -> None:
        task, future = self.held.pop(0)
        done = super().submit(task)
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "store")


@pytest.fixture
def part(store: Store) -> PlanPart:
    return add_wheel(store, "alpha", {"alpha/__init__.py": "x = 1\n", "alpha/tool": "x"}, executable=["alpha/tool"])


def maker_of(store: Store, pool: WorkerPool, made: list[tuple[str, str]] | None = None) -> ObjectMaker:
    seen = [] if made is None else made
    return ObjectMaker(
        store, this_interpreter(), pool, PYTHON, lambda kind, each: seen.append((kind, each.package or each.tree))
    )


def wheel_of(store: Store, part: PlanPart) -> Path:
    return store.wheel(part.sha256, part.file)


def objects_of(store: Store, part: PlanPart) -> tuple[StoreObject, StoreObject]:
    return store.tree(part.tree), store.bytecode(part.tree, bytecode_tag())


def assert_whole(found: StoreObject) -> None:
    """The folder has exactly what the manifest states, read-only."""
    assert found.exists
    entries = {entry.path: entry for entry in map(parse_line, manifest_lines(found.manifest_path.read_text()))}
    assert {path.relative_to(found.path).as_posix() for path in found.path.rglob("*")} == set(entries)
    assert found.path.stat().st_mode & 0o777 == 0o555
    for path, entry in entries.items():
        status = (found.path / path).lstat()
        if entry.kind == "dir":
            assert status.st_mode & 0o777 == 0o555
        else:
            assert status.st_mode & 0o777 == (0o555 if entry.executable else 0o444)
            assert (hash_file(os.fspath(found.path / path)), status.st_size) == (entry.sha256, entry.size)


def test_a_wheel_becomes_a_tree_and_its_bytecode(store: Store, part: PlanPart) -> None:
    made: list[tuple[str, str]] = []
    maker = maker_of(store, InlinePool(store), made)
    assert not maker.is_tree_there(part)
    maker.add(part, wheel_of(store, part))
    proven = maker.wait()
    assert made == [("trees", "alpha"), ("bytecode", "alpha")]
    assert maker.is_tree_there(part)
    tree, bytecode = objects_of(store, part)
    assert_whole(tree)
    assert_whole(bytecode)
    assert tree_digest(tree.manifest_path.read_text()) == part.tree == tree.path.name
    assert set(proven) == {("trees", tree.path.name), ("bytecode", bytecode.path.name)}
    for found in (tree, bytecode):
        newest = max(path.lstat().st_ctime_ns for path in found.path.rglob("*") if path.is_file())
        assert newest <= proven[found.path.parent.name, found.path.name]
        assert found.proven_ns() == 0, "it is stamped once its data is on the disk"
    assert list((store.root / ".tmp").iterdir()) == []


def test_what_is_there_is_not_made_again(store: Store, part: PlanPart) -> None:
    plan = make_plan(store, [part])
    make_objects(store, plan, InlinePool(store))
    made: list[tuple[str, str]] = []
    pool = InlinePool(store)
    assert make_objects(store, plan, pool, lambda kind, each: made.append((kind, each.package))) == {}
    assert (pool.tasks, made) == ([], [])


def test_what_another_process_made_meanwhile_is_taken_and_not_vouched_for(store: Store, part: PlanPart) -> None:
    maker = maker_of(store, InlinePool(store))
    make_objects(store, make_plan(store, [part]), InlinePool(store))
    store.tree(part.tree).stamp(12345)
    maker.add(part, wheel_of(store, part))
    assert maker.wait() == {}


def test_bytecode_alone_is_made_for_a_tree_that_is_there(store: Store, part: PlanPart) -> None:
    make_objects(store, make_plan(store, [part]), InlinePool(store))
    bytecode = objects_of(store, part)[1]
    remove_readonly_tree(bytecode.path)
    bytecode.manifest_path.unlink()
    pool = InlinePool(store)
    proven = make_objects(store, make_plan(store, [part]), pool)
    assert [task["task"] for task in pool.tasks] == ["compile"]
    assert list(proven) == [("bytecode", bytecode.path.name)]
    assert_whole(bytecode)


@pytest.mark.parametrize("left", ["a folder without its manifest", "a manifest without its folder", "a stamp"])
def test_halves_that_a_crash_left_are_made_anew(store: Store, part: PlanPart, left: str) -> None:
    make_objects(store, make_plan(store, [part]), InlinePool(store))
    for found in objects_of(store, part):
        found.stamp(1 << 62)
        if left == "a folder without its manifest":
            found.manifest_path.unlink()
            found.path.chmod(0o755)
            (found.path / "junk").write_text("")
        else:
            remove_readonly_tree(found.path)
            if left == "a stamp":
                found.manifest_path.unlink()
    proven = make_objects(store, make_plan(store, [part]), InlinePool(store))
    assert len(proven) == 2
    for found in objects_of(store, part):
        assert_whole(found)
        assert found.proven_ns() == 0, "an old stamp says nothing about new files"


def test_a_package_without_modules_has_empty_bytecode(store: Store) -> None:
    part = add_wheel(store, "data-only", {"data_only.txt": "x"})
    make_objects(store, make_plan(store, [part]), InlinePool(store))
    assert_whole(objects_of(store, part)[1])


# -- donors ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def patched(store: Store, part: PlanPart) -> PlanPart:
    files = {"alpha/__init__.py": "x = 2\n", "alpha/tool": "x"}
    made = add_wheel(store, "alpha", files, version="1.0+p", executable=["alpha/tool"])
    return replace(made, donor=part.tree)


@pytest.mark.parametrize("first", ["donor", "patched"])
def test_a_tree_with_a_donor_waits_for_the_donor_and_its_bytecode(
    store: Store, part: PlanPart, patched: PlanPart, first: str
) -> None:
    pool = HeldPool(store)
    maker = maker_of(store, pool)
    for each in (part, patched) if first == "donor" else (patched, part):
        maker.add(each, wheel_of(store, each))
    order = []
    while pool.held:
        (name,) = pool.names()
        order.append(name)
        pool.let_go()
    maker.wait()
    assert order == [(task, tree) for tree in (part.tree, patched.tree) for task in ("unpack", "compile")]
    base, changed = store.tree(part.tree).path, store.tree(patched.tree).path
    assert (base / SITE / "alpha" / "tool").samefile(changed / SITE / "alpha" / "tool")
    assert not (base / SITE / "alpha" / "__init__.py").samefile(changed / SITE / "alpha" / "__init__.py")
    for found in (*objects_of(store, part), *objects_of(store, patched)):
        assert_whole(found)


def test_a_donor_that_is_there_already_is_not_made_but_used(store: Store, part: PlanPart, patched: PlanPart) -> None:
    make_objects(store, make_plan(store, [part]), InlinePool(store))
    maker = maker_of(store, InlinePool(store))
    maker.add(patched, wheel_of(store, patched))
    maker.add(part, None)
    maker.wait()
    shared = f"{SITE}/alpha/tool"
    assert (store.tree(part.tree).path / shared).samefile(store.tree(patched.tree).path / shared)


def test_a_donor_that_was_edited_gives_nothing_of_it(store: Store, part: PlanPart, patched: PlanPart) -> None:
    make_objects(store, make_plan(store, [part]), InlinePool(store))
    edit_in_place(store.tree(part.tree).path / SITE / "alpha" / "tool", b"y")
    maker = maker_of(store, InlinePool(store))
    maker.add(part, None)
    maker.add(patched, wheel_of(store, patched))
    maker.wait()
    for found in objects_of(store, patched):
        assert_whole(found)


# -- errors ---------------------------------------------------------------------------------------------------------------------------


def test_the_first_error_ends_the_wait_and_starts_no_further_task(store: Store, part: PlanPart) -> None:
    other = add_wheel(store, "beta")
    pool = HeldPool(store)
    maker = maker_of(store, pool)
    maker.add(replace(part, tree="0" * 64), wheel_of(store, part))
    maker.add(other, wheel_of(store, other))
    pool.let_go()
    with pytest.raises(EnvspecError, match="the lock has 0000"):
        maker.wait()
    pool.let_go()
    assert pool.held == [], "the other tree is made, its bytecode is not even begun"
    with pytest.raises(EnvspecError, match="the lock has 0000"):
        maker.wait()


def test_an_error_elsewhere_ends_the_wait(store: Store, part: PlanPart) -> None:
    maker = maker_of(store, HeldPool(store))
    maker.add(part, wheel_of(store, part))
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            maker.wait()
        except KeyboardInterrupt as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    maker.fail(KeyboardInterrupt())
    maker.fail(EnvspecError("a later one"))
    thread.join(DEADLINE_S)
    assert len(caught) == 1


def test_an_error_of_the_listener_ends_the_wait(store: Store, part: PlanPart) -> None:
    def complain(_kind: str, _part: PlanPart) -> None:
        raise RuntimeError("no terminal")

    with pytest.raises(RuntimeError, match="no terminal"):
        make_objects(store, make_plan(store, [part]), InlinePool(store), complain)


def test_a_worker_that_dies_ends_the_wait(store: Store, part: PlanPart) -> None:
    with WorkerPool(this_interpreter().path, store.root, size=1) as pool:
        pool._workers[0].kill()
        with pytest.raises(EnvspecError, match="a worker process ended"):
            make_objects(store, make_plan(store, [part]), pool)


def test_a_wheel_that_changed_in_the_wheelhouse_is_not_read(store: Store, part: PlanPart) -> None:
    plan, wheel = make_plan(store, [part]), wheel_of(store, part)
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(WheelDamaged, match=f"`{part.file}` in the wheelhouse has sha256 ") as caught:
        make_objects(store, plan, InlinePool(store))
    assert caught.value.wheel == wheel
    assert not store.tree(part.tree).exists
    assert list((store.root / ".tmp").iterdir()) == []


def test_a_wheel_that_was_checked_just_now_is_not_hashed_again(store: Store, part: PlanPart) -> None:
    pool = InlinePool(store)
    maker = maker_of(store, pool)
    maker.add(part, wheel_of(store, part), checked=True)
    maker.wait()
    assert pool.tasks[0]["sha256"] is None


# -- several at once ------------------------------------------------------------------------------------------------------------------


def test_parts_may_be_added_from_any_thread(store: Store) -> None:
    parts = [add_wheel(store, f"p{index}", {f"p{index}.py": f"x = {index}\n"}) for index in range(12)]
    with WorkerPool(this_interpreter().path, store.root, size=2) as pool:
        maker = maker_of(store, pool)
        threads = [threading.Thread(target=maker.add, args=(each, wheel_of(store, each))) for each in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        proven = maker.wait()
    assert len(proven) == 24
    for each in parts:
        for found in objects_of(store, each):
            assert_whole(found)


def test_two_workers_asked_for_one_tree_make_it_once(store: Store, part: PlanPart) -> None:
    task = unpack_task(store, part)
    with WorkerPool(this_interpreter().path, store.root, size=2) as pool:
        answers = [future.result() for future in [pool.submit(task) for _ in range(6)]]
    assert sorted(answer["made"] for answer in answers) == [False] * 5 + [True]
    assert_whole(store.tree(part.tree))


def test_objects_do_not_depend_on_the_umask_or_locale(tmp_path: Path) -> None:
    manifests = []
    for mask, name in ((0o022, "one"), (0o077, "two")):
        before = os.umask(mask)
        try:
            store = new_store(tmp_path / name)
            part = add_wheel(store, "alpha", {"alpha.py": "x = 'ü'\n"})
            with WorkerPool(this_interpreter().path, store.root, size=1) as pool:
                make_objects(store, make_plan(store, [part]), pool)
        finally:
            os.umask(before)
        for found in objects_of(store, part):
            assert_whole(found)
            manifests.append(found.manifest_path.read_text())
    assert manifests[:2] == manifests[2:]
