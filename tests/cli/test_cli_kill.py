"""SIGKILL at random instants of `lock` and `build` loses nothing and leaves nothing that the next run does not clean up.

`ENVSPEC_KILL_ROUNDS` says how often (40 by default; 200 for a thorough look). The instants are drawn with a fixed seed, but what a process has
reached by then differs from run to run: a failure tells the round and the instant.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.conftest import fill
from tests.support.projects import Project, copy_tree, make_writable, remove_tree, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = int(os.environ.get("ENVSPEC_KILL_ROUNDS", "40"))
SEED = 20261130
LOOK_EVERY = 8  # rounds; in between, kills pile up on what the kill before has left


def timed(run: Callable[[], object]) -> float:
    started = time.monotonic()
    run()
    return time.monotonic() - started


def killed_after(project: Project, verb: str, seconds: float) -> None:
    """Start a command and kill it after some time, if it still runs."""
    process = project.start(verb)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    _, errors = process.communicate()
    assert "Traceback" not in errors
    assert process.returncode in {0, -9}, errors


def assert_wheels_are_whole(project: Project) -> None:
    for wheel in project.store.glob("wheels/*/*.whl"):
        if not wheel.name.startswith("."):
            assert hashlib.sha256(wheel.read_bytes()).hexdigest() == wheel.parent.name, wheel


def test_kill_of_lock_leaves_the_old_lock_or_the_new_one(project: Project) -> None:
    instants = random.Random(SEED)  # noqa: S311 - no secret
    fill(project)
    duration = timed(lambda: project.good("lock"))
    new, spec = project.lock_text(), project.spec_path.read_bytes()
    project.spec_path.write_bytes(spec.replace(b'alpha = "==1.0"', b'alpha = ">=1"'))
    remove_tree(project.store)
    project.good("lock")
    old = project.lock_text()
    assert old != new
    project.spec_path.write_bytes(spec)
    project.lock_path.write_text(new)
    begun = 0
    for number in range(ROUNDS):
        if project.lock_text() == new:  # begin again, by turns with all wheels at hand and with none
            project.lock_path.write_text(old)
            if begun % 2:
                remove_tree(project.store)
            begun += 1
        instant = instants.uniform(0, duration * 1.1)
        killed_after(project, "lock", instant)
        what = f"round {number}, killed after {instant:.3f} s"
        assert project.lock_text() in {old, new}, what
        assert project.spec_path.read_bytes() == spec, what
        assert_wheels_are_whole(project)
        if number % LOOK_EVERY == LOOK_EVERY - 1:
            ran = project.run("lock")
            assert ran.code == 0, f"{what}\n{ran.text}"
            assert project.lock_text() == new, what
            assert project.run("lock", "--check").code == 0, what
            assert project.leftovers() == [], what
    project.good("build")
    project.good("verify", "--deep")
    assert project.leftovers() == []


def test_kill_of_build_leaves_the_old_environment_or_the_new_one(built: Project) -> None:
    instants = random.Random(SEED + 1)  # noqa: S311 - no secret
    first = built.active()
    assert first is not None
    built.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 7")
    built.good("lock")
    kept = built.folder / "kept"
    make_writable(built.store)
    copy_tree(built.store, kept)
    durations = [timed(lambda: built.good("build"))]
    second = built.active()
    assert second is not None
    whole = set(snapshot_of(second))
    remove_tree(built.store)
    durations.append(timed(lambda: built.good("build")))
    before: Path | None = first
    duration, begun = 0.0, 0
    for number in range(ROUNDS):
        if built.active() == second:
            # Begin again, by turns with another environment active and with nothing there at all.
            remove_tree(built.store)
            if begun % 2 == 0:
                copy_tree(kept, built.store)
            assert built.active() == (None if begun % 2 else first)
            before, duration = built.active(), durations[begun % 2]
            begun += 1
        instant = instants.uniform(0, duration * 1.1)
        killed_after(built, "build", instant)
        what = f"round {number}, killed after {instant:.3f} s"
        assert built.active() in {before, second}, what
        for environment in (built.store / "envs").glob("*"):
            if environment.name == second.name:
                assert set(snapshot_of(environment)) == whole, what
        assert_wheels_are_whole(built)
        if number % LOOK_EVERY == LOOK_EVERY - 1:
            ran = built.run("build")
            assert ran.code == 0, f"{what}\n{ran.text}"
            assert built.active() == second, what
            ran = built.run("verify", "--deep")
            assert ran.code == 0, f"{what}\n{ran.text}"
            assert built.leftovers() == [], what
    assert built.good("run", "--", "alpha").stdout == "alpha 7\n"


def test_killed_worker_fails_the_build_and_nothing_is_half_made(locked: Project) -> None:
    """The kernel kills the largest process when memory runs out, which may be a worker."""
    instants = random.Random(SEED + 2)  # noqa: S311 - no secret
    for _ in range(max(2, ROUNDS // 10)):
        remove_tree(locked.store)
        process = locked.start("build")
        deadline = time.monotonic() + 20
        worker = None
        while worker is None and process.poll() is None and time.monotonic() < deadline:
            worker = next(iter(workers_of(process.pid)), None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(instants.uniform(0, 0.2))
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, 9)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors
        if process.returncode != 0:
            assert "worker" in errors
            assert locked.active() is None
        assert locked.leftovers() == []
    locked.good("build")
    locked.good("verify", "--deep")


def workers_of(pid: int) -> list[int]:
    """The worker processes of a build."""
    process = Path("/proc", str(pid))
    found = []
    with contextlib.suppress(OSError):
        for child in (process / "task" / str(pid) / "children").read_text().split():
            with contextlib.suppress(OSError):
                if b"builder.agent.worker" in Path("/proc", child, "cmdline").read_bytes():
                    found.append(int(child))
    return found


def test_interrupted_build_says_so_and_activates_nothing(locked: Project) -> None:
    remove_tree(locked.store)
    process = locked.start("build")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.35)
    process.send_signal(2)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    if process.returncode != 0:
        assert process.returncode in {130, -2}
        assert locked.active() is None
    locked.good("build")
    assert locked.leftovers() == []
