"""Workers answer one task at a time, end when nobody needs them, and hold what they were given until then."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder import process
from builder.agent import pool as pool_module
from builder.agent import worker
from builder.agent.pool import WorkerPool, own_interpreter
from builder.agent.realise import CorruptObjects
from envspec.errors import FOUND_WRONG, EnvspecError
from tests.support.stores import (
    REPOSITORY,
    add_wheel,
    make_objects,
    make_plan,
    new_store,
    this_interpreter,
    unpack_task,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.agent.store import Store

DEADLINE_S = 30.0

# A controller with two workers, which may be in the middle of a task that takes an hour.
CONTROLLER = """
import sys
from pathlib import Path
from builder.agent.pool import WorkerPool
from builder.agent.store import Store
store = Store(Path(sys.argv[1]))
with store.lock("env-a") as fd, WorkerPool(Path(sys.argv[2]), store.root, pass_fds=(fd,), size=2) as pool:
    tasks = []
    if sys.argv[3] == "busy":
        tasks = [pool.submit({"task": "hash", "root": sys.argv[1], "paths": ["endless"]}) for _ in range(2)]
    print(*[worker.pid for worker in pool._workers], flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "store")


@pytest.fixture
def pool(store: Store) -> Iterator[WorkerPool]:
    with WorkerPool(own_interpreter(), store.root, size=2) as workers:
        yield workers


def hash_task(root: Path, *paths: str) -> dict[str, Any]:
    return {"task": "hash", "root": str(root), "paths": list(paths)}


def endless_task(root: Path) -> dict[str, Any]:
    """A task that takes an hour: to hash a terabyte of nothing."""
    with (root / "endless").open("wb") as file:
        file.truncate(1 << 40)
    return hash_task(root, "endless")


def wait_until_busy(pids: list[int], root: Path) -> None:
    """Return once all these workers are at an `endless_task`."""
    deadline = time.monotonic() + DEADLINE_S
    for pid in pids:
        while os.fspath(root / "endless") not in open_files(pid):
            assert time.monotonic() < deadline


def open_files(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.fspath(path.readlink()))
    return found


def test_tasks_are_answered_and_more_tasks_than_workers_wait(pool: WorkerPool, tmp_path: Path) -> None:
    contents = {f"f{index}": str(index).encode() * index for index in range(20)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    futures = [pool.submit(hash_task(tmp_path, name)) for name in contents]
    assert [future.result()["digests"] for future in futures] == [
        [hashlib.sha256(content).hexdigest()] for content in contents.values()
    ]
    assert pool.size == 2


def test_what_cannot_be_hashed_is_null(pool: WorkerPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    digests = pool.submit(hash_task(tmp_path, "missing", "link", "folder", "file/x", "file")).result()["digests"]
    assert digests == [None, None, None, None, hashlib.sha256(b"x").hexdigest()]


def test_paths_of_any_bytes_pass(pool: WorkerPool, tmp_path: Path) -> None:
    names = ["a b", "ü", "new\nline", "raw\udcff", '"quoted"', "\u2028"]
    for name in names:
        (tmp_path / name).write_bytes(os.fsencode(name))
    assert pool.submit(hash_task(tmp_path, *names)).result()["digests"] == [
        hashlib.sha256(os.fsencode(name)).hexdigest() for name in names
    ]


def test_noise_on_stdout_does_not_disturb_the_answers(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    code = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from builder.agent import worker
def noisy(store, task):
    print('{"ok": true, "from": "print"}')
    os.write(1, b'{"ok": true, "from": "write"}\\n')
    subprocess.run(["echo", '{"ok": true, "from": "a child"}'])
    sys.stdout.flush()
    return {"from": "the task"}
worker._TASKS["noisy"] = noisy
worker.main(sys.argv[2])
"""
    child = process.start_worker(
        [sys.executable, "-c", code, str(REPOSITORY), str(store.root)], env={"PATH": os.defpath}
    )
    stdout, _ = child.communicate('{"task": "noisy"}\n{"task": "noisy"}\n', timeout=DEADLINE_S)
    assert [json.loads(line) for line in stdout.splitlines()] == [{"ok": True, "from": "the task"}] * 2
    assert child.returncode == 0
    assert capfd.readouterr().err.count("a child") == 2


@pytest.mark.parametrize("when", ["in the middle of a task", "before a task"])
def test_a_killed_worker_is_a_clear_error_and_no_hang(store: Store, tmp_path: Path, when: str) -> None:
    with WorkerPool(own_interpreter(), store.root, size=1) as pool:
        (victim,) = pool._workers
        task = endless_task(tmp_path)
        if when == "before a task":
            victim.kill()
            victim.wait()
            future = pool.submit(task)
        else:
            future = pool.submit(task)
            wait_until_busy([victim.pid], tmp_path)
            assert not future.done()
            victim.kill()
        with pytest.raises(EnvspecError, match="a worker process ended in the middle of `hash`") as caught:
            future.result(timeout=DEADLINE_S)
        assert "memory" in caught.value.hint
        with pytest.raises(EnvspecError, match="a worker process ended"):
            pool.submit(task).result(timeout=DEADLINE_S)


def test_an_answer_that_is_cut_off_is_the_same_error(store: Store, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nread task\nprintf '{\"ok\": tr'\n")
    program.chmod(0o755)
    with WorkerPool(program, store.root, size=1) as pool, pytest.raises(EnvspecError, match="ended in the middle"):
        pool.submit(hash_task(tmp_path)).result(timeout=DEADLINE_S)


def test_an_interpreter_that_does_not_start_is_named(store: Store) -> None:
    with pytest.raises(EnvspecError, match=r"`/nowhere/python` does not start: .*No such file"):
        WorkerPool(Path("/nowhere/python"), store.root)


def test_workers_end_with_the_pool(store: Store) -> None:
    with WorkerPool(own_interpreter(), store.root, size=3) as pool:
        workers = list(pool._workers)
        assert len({child.pid for child in workers}) == 3
    assert [child.returncode for child in workers] == [0, 0, 0]


def test_an_error_in_the_controller_ends_stuck_workers_and_drops_waiting_tasks(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "STOP_TIMEOUT_S", 0.2)
    pool = WorkerPool(own_interpreter(), store.root, size=2)
    workers = list(pool._workers)
    futures = [pool.submit(endless_task(tmp_path)) for _ in range(6)]
    wait_until_busy([child.pid for child in workers], tmp_path)
    with pytest.raises(KeyboardInterrupt), pool:
        raise KeyboardInterrupt
    assert [child.returncode for child in workers] == [-signal.SIGKILL] * 2
    assert all(future.cancelled() or future.exception(timeout=0) for future in futures)


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_workers_end_when_their_controller_is_killed(store: Store, state: str) -> None:
    endless_task(store.root)
    argv = [sys.executable, "-c", CONTROLLER, str(store.root), str(this_interpreter().path), state]
    controller = process.start_worker(argv, env={"PYTHONPATH": str(REPOSITORY)})
    with controller:
        assert controller.stdout is not None
        pids = [int(word) for word in controller.stdout.readline().split()]
        assert len(pids) == 2
        descriptors = [os.pidfd_open(pid) for pid in pids]
        if state == "busy":
            wait_until_busy(pids, store.root)
        with store.try_lock("env-a") as held:
            assert not held
        controller.kill()
        for descriptor in descriptors:
            readable, _, _ = select.select(
                [descriptor], [], [], DEADLINE_S
            )  # it becomes readable when the process ends
            assert readable, "a worker outlived its controller"
            os.close(descriptor)
    with store.lock("env-a"):
        pass


def test_a_lock_that_was_passed_on_is_held_until_the_last_worker_ends(store: Store) -> None:
    with store.lock("env-a") as fd:
        pool = WorkerPool(own_interpreter(), store.root, pass_fds=(fd,), size=2)
    with store.try_lock("env-a") as held:
        assert not held, "the controller let go of it, the workers have not"
    first, second = pool._workers
    first.kill()
    first.wait()
    with store.try_lock("env-a") as held:
        assert not held
    second.kill()
    second.wait()
    with store.try_lock("env-a") as held:
        assert held
    pool.__exit__(None, None, None)


def test_a_lock_that_was_not_passed_on_is_not_held_by_workers(store: Store) -> None:
    with store.lock("env-a"):
        pool = WorkerPool(own_interpreter(), store.root, size=1)
    with pool, store.try_lock("env-a") as held:
        assert held


# -- what tasks may answer ------------------------------------------------------------------------------------------------------------


def test_a_wheel_that_is_not_the_locked_one_is_named(store: Store, pool: WorkerPool) -> None:
    part = add_wheel(store, "alpha")
    task = {**unpack_task(store, part), "tree": "0" * 64}
    with pytest.raises(
        EnvspecError, match=f"{part.file}: the wheel gives the tree {part.tree}, the lock has 000"
    ) as caught:
        pool.submit(task).result()
    assert caught.value.exit_code == FOUND_WRONG
    assert not store.tree("0" * 64).exists


def test_a_wheel_that_is_gone_is_named(store: Store, pool: WorkerPool) -> None:
    part = add_wheel(store, "alpha")
    plan = make_plan(store, [part])
    store.wheel(part.sha256, part.file).unlink()
    with pytest.raises(EnvspecError, match=f"unpack of `{part.file}` failed: .*No such file"):
        make_objects(store, plan, pool)


@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        ({"error": "os", "errno": 28, "message": "No space left"}, "link failed: No space left", "free some space"),
        ({"error": "os", "errno": 5, "message": "I/O error"}, "link failed: I/O error", ""),
        ({"error": "damaged", "message": "not a manifest"}, "link failed: not a manifest", ""),
        ({"error": "bug", "message": "KeyError: 'x'"}, "link failed: KeyError: 'x'", "this is a bug in envspec"),
    ],
)
def test_what_a_worker_answers_becomes_an_error(answer: dict[str, Any], message: str, hint: str) -> None:
    error = pool_module._error_of({"task": "link", "target": None, "objects": []}, answer)
    assert error.message == message
    assert error.hint.startswith(hint)
    assert bool(error.hint) is bool(hint)


def test_a_changed_source_becomes_corrupt_objects_of_its_tree() -> None:
    error = pool_module._error_of(
        {"task": "compile", "tree": "abc", "donor": None}, {"error": "corrupt", "files": ["trees/abc/x"], "message": ""}
    )
    assert isinstance(error, CorruptObjects)
    assert (error.trees, error.files) == (("abc",), ("trees/abc/x",))


def test_whatever_a_task_raises_the_worker_lives_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_store: Store, _task: dict[str, Any]) -> dict[str, Any]:
        raise RecursionError("too deep")

    monkeypatch.setitem(worker._TASKS, "fail", fail)
    assert worker._answer(store, {"task": "fail"}) == {
        "ok": False,
        "error": "bug",
        "message": "RecursionError: too deep",
    }
    assert worker._answer(store, {"task": "no such task"})["error"] == "bug"
