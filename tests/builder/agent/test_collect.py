"""Garbage is what no generation and no running process uses; the rest stays whole."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder import process
from builder.agent import collect
from builder.agent.collect import Garbage, find_garbage, remove_garbage, running_environments
from builder.agent.generations import activate, list_generations, roll_back
from builder.agent.observe import compare_manifests, find_drift, measure_site, read_env_record
from builder.agent.store import Store, env_record_path, remove_readonly_tree
from tests.support.stores import SITE, InlinePool, add_wheel, build, built, make_plan, new_store, snapshot

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from builder.agent.realise import Plan

PROC = Path("/proc")
WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


def own_files(number: int) -> dict[str, bytes | str]:
    return {f"own{number}.py": f"x = {number}\n", f"own{number}.txt": str(number) * 20_000}


class Bench:
    """A store with three environments of one profile that share a wheel; all were active once."""

    def __init__(self, folder: Path) -> None:
        self.store = new_store(folder / "store")
        self.shared = add_wheel(self.store, "shared", {"shared.py": "x = 1\n", "shared.txt": "x" * 20_000})
        self.own = [add_wheel(self.store, f"own{n}", own_files(n)) for n in range(3)]
        self.plans = [make_plan(self.store, [self.shared, own]) for own in self.own]
        for plan in self.plans:
            built(self.store, plan)
            self.activate(plan)

    def activate(self, plan: Plan) -> None:
        activate(self.store, plan.name, env=plan.env, site=plan.site, lock_sha256="", spec_sha256="", created="")

    def path(self, index: int) -> Path:
        return self.store.env(self.plans[index].env, "demo")

    def gc(self, *, keep: int | None = None, proc: Path = PROC) -> Garbage:
        with self.store.lock("gc"):
            garbage = find_garbage(self.store, keep=keep, proc=proc)
            remove_garbage(self.store, garbage)
        return garbage

    def there(self) -> list[int]:
        """Which of the environments are there."""
        return [index for index in range(len(self.plans)) if self.path(index).exists()]

    def trees(self) -> set[str]:
        return {path.name for path in (self.store.root / "trees").iterdir() if path.is_dir()}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # What a power cut would leave is not looked at here, and syncing waits for all that the machine writes.
    monkeypatch.setattr("builder.agent.realise.sync_filesystem", lambda _path: None)
    return Bench(tmp_path)


def assert_whole(store: Store, plan: Plan) -> None:
    record = read_env_record(store, plan.env, plan.name)
    assert find_drift(store, record) == ()
    expected = (store.receipts(plan.env) / "site.mtree").read_text()
    assert compare_manifests(expected, measure_site(record.path, InlinePool(store), lambda _bytes: None)) == ()


def assert_clean(store: Store) -> None:
    """Nothing is left over, and every object is whole."""
    assert list((store.root / ".tmp").iterdir()) == []
    for kind in ("trees", "bytecode"):
        names = {path.name for path in (store.root / kind).iterdir()}
        whole = {name for name in names if "." not in name}
        assert names == {name + suffix for name in whole for suffix in ("", ".mtree", ".proven")}


def used_bytes(store: Store) -> int:
    inodes = {}
    for path in store.root.rglob("*"):
        status = path.lstat()
        if not path.is_dir() or path.is_symlink():
            inodes[status.st_ino] = status.st_blocks * 512
    return sum(inodes.values())


# -- roots ----------------------------------------------------------------------------------------------------------------------------


def test_every_generation_is_a_root(bench: Bench) -> None:
    before = snapshot(bench.store.root)
    garbage = bench.gc()
    assert (garbage.paths, garbage.generations, garbage.freed_bytes) == ((), (), 0)
    assert {path for path in snapshot(bench.store.root) if not path.startswith("locks/")} == {
        path for path in before if not path.startswith("locks/")
    }


@pytest.mark.parametrize(
    ("keep", "active", "left"),
    [
        (None, 3, [0, 1, 2]),
        (3, 3, [0, 1, 2]),
        (99, 3, [0, 1, 2]),
        (2, 3, [1, 2]),
        (1, 3, [2]),
        (0, 3, [2]),
        (1, 1, [0, 2]),
        (0, 2, [1]),
    ],
)
def test_keep_leaves_the_newest_and_the_active_one(
    bench: Bench, keep: int | None, active: int, left: list[int]
) -> None:
    roll_back(bench.store, "demo", active)
    garbage = bench.gc(keep=keep)
    assert bench.there() == left
    assert [each.number - 1 for each in list_generations(bench.store, "demo")] == left
    assert garbage.generations == tuple(("demo", index + 1) for index in range(3) if index not in left)
    assert bench.trees() == {bench.shared.tree, *(bench.own[index].tree for index in left)}
    assert {path.name for path in bench.store.wheels.iterdir()} == {
        bench.shared.sha256,
        *(bench.own[index].sha256 for index in left),
    }
    assert {path.name for path in (bench.store.root / "receipts").iterdir()} == {bench.plans[n].env for n in left}
    for index in left:
        assert_whole(bench.store, bench.plans[index])
    assert_clean(bench.store)
    assert (bench.store.root / "profiles" / "demo" / "pyvenv.cfg").is_file()


def test_the_active_environment_of_every_profile_stays(bench: Bench) -> None:
    other = replace(make_plan(bench.store, [bench.own[0]]), name="other")
    built(bench.store, other)
    bench.activate(other)
    bench.gc(keep=0)
    assert bench.there() == [2]
    assert_whole(bench.store, other)
    assert bench.own[0].tree in bench.trees()


def test_what_was_built_and_never_active_goes(bench: Bench) -> None:
    never = make_plan(bench.store, [bench.shared, add_wheel(bench.store, "never")])
    path = built(bench.store, never).path
    state = bench.store.state(never.env)
    (state / "triton").mkdir(parents=True)
    (state / "triton" / "kernel").write_text("x")
    garbage = bench.gc()
    assert not path.exists()
    assert not state.exists()
    assert {path, state, bench.store.receipts(never.env)} <= set(garbage.paths)
    assert bench.there() == [0, 1, 2]


def test_two_names_of_one_env_id_keep_what_they_share(bench: Bench) -> None:
    other = replace(bench.plans[0], name="other")
    built(bench.store, other)
    bench.activate(other)
    bench.gc(keep=1)
    assert_whole(bench.store, other)
    assert_whole(bench.store, bench.plans[0])


def test_the_base_of_a_patched_wheel_stays_with_it(bench: Bench) -> None:
    base = add_wheel(bench.store, "alpha", {"alpha.py": "x = 1\n", "same.py": ""})
    patched = add_wheel(bench.store, "alpha", {"alpha.py": "x = 2\n", "same.py": ""}, version="1.0+p")
    for part in (base, patched):
        built(bench.store, make_plan(bench.store, [part], name="scratch"))
    plan = replace(
        make_plan(bench.store, [patched], env="p" * 32),
        parts=(replace(patched, donor=base.tree, base_sha256=base.sha256),),
    )
    built(bench.store, plan)
    bench.activate(plan)
    bench.gc(keep=1)
    assert bench.trees() == {base.tree, patched.tree}
    assert {path.name for path in bench.store.wheels.iterdir()} == {base.sha256, patched.sha256}
    assert len([path for path in (bench.store.root / "bytecode").iterdir() if path.is_dir()]) == 2
    assert_whole(bench.store, plan)


@pytest.mark.parametrize("content", [None, "", "[]"])
def test_where_a_record_cannot_be_read_nothing_that_it_may_name_goes(bench: Bench, content: str | None) -> None:
    path = env_record_path(bench.store, bench.plans[2].env, "demo")
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    garbage = bench.gc(keep=1)
    assert bench.there() == [2]
    assert bench.trees() == {bench.shared.tree, *(own.tree for own in bench.own)}
    assert {each.parent.name for each in garbage.paths} <= {"envs", "receipts", "state"}


def test_a_collected_environment_can_be_built_again(bench: Bench) -> None:
    bench.gc(keep=1)
    again = make_plan(bench.store, [bench.shared, add_wheel(bench.store, "own0", own_files(0))])
    assert again == bench.plans[0]
    built(bench.store, again)
    assert_whole(bench.store, again)


def test_an_empty_store_has_no_garbage(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    assert find_garbage(store, keep=0, proc=PROC) == Garbage((), (), 0, ())


# -- what it frees --------------------------------------------------------------------------------------------------------------------


def test_a_look_removes_nothing(bench: Bench) -> None:
    before = snapshot(bench.store.root)
    garbage = find_garbage(bench.store, keep=0, proc=PROC)
    assert garbage.paths
    assert garbage.freed_bytes > 0
    assert snapshot(bench.store.root) == before


@pytest.mark.parametrize("keep", [None, 2, 0])
def test_freed_bytes_are_those_that_the_disk_gets_back(bench: Bench, keep: int | None) -> None:
    (bench.store.wheels / "loose").mkdir()
    (bench.store.wheels / "loose" / "x.whl").write_bytes(b"x" * 50_000)
    before = used_bytes(bench.store)
    garbage = bench.gc(keep=keep)
    generations = 2 * 4096 * len(garbage.generations)  # a record and a link each, not counted
    assert garbage.freed_bytes > 50_000
    assert garbage.freed_bytes <= before - used_bytes(bench.store) <= garbage.freed_bytes + generations


def test_environments_go_before_what_they_are_linked_from(bench: Bench) -> None:
    order = [path.parent.name for path in find_garbage(bench.store, keep=0, proc=PROC).paths]
    assert order == sorted(order, key=["envs", "receipts", "state", "bytecode", "trees", "wheels"].index)


# -- interruptions --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(14))
def test_an_interrupted_collection_leaves_a_store_that_builds_and_collects(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    calls = 0

    def interrupted(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise KeyboardInterrupt
        remove_readonly_tree(path)

    with monkeypatch.context() as patch:
        patch.setattr(collect, "remove_readonly_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.gc(keep=1)
    assert_whole(bench.store, bench.plans[2])
    new = make_plan(bench.store, [bench.shared, bench.own[2], add_wheel(bench.store, "new")], name="other")
    built(bench.store, new)
    assert_whole(bench.store, new)
    bench.activate(new)
    bench.gc(keep=1)
    assert bench.there() == [2]
    assert bench.trees() == {bench.shared.tree, *(part.tree for part in new.parts)}
    assert_whole(bench.store, bench.plans[2])
    assert_clean(bench.store)


@pytest.mark.parametrize("cleaner", ["the next collection", "the next build"])
def test_what_a_killed_collection_left_is_cleaned(bench: Bench, cleaner: str) -> None:
    left = bench.store.root / ".tmp" / f"trash.envs-{bench.plans[0].env}-demo" / "lib"
    left.mkdir(parents=True)
    (left / "file").write_text("")
    left.chmod(0o555)
    left.parent.chmod(0o555)
    if cleaner == "the next build":
        assert build(bench.store, bench.plans[2]) is None
    else:
        bench.gc()
    assert_clean(bench.store)


def test_a_collection_waits_for_builds(bench: Bench) -> None:
    with bench.store.lock("gc", shared=True), bench.store.try_lock("gc") as held:
        assert not held


def test_what_vanished_meanwhile_is_no_error(bench: Bench) -> None:
    garbage = find_garbage(bench.store, keep=1, proc=PROC)
    remove_garbage(bench.store, garbage)
    remove_garbage(bench.store, garbage)
    assert bench.there() == [2]


# -- running processes ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for child in starter.children:
        child.kill()
        child.communicate()


class Starter:
    """Starts processes that run until the test ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[subprocess.Popen[str]] = []

    def __call__(self, *argv: str | Path, **variables: str) -> int:
        child = process.start_worker([os.fspath(word) for word in argv], env=variables)
        self.children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        return child.pid


def test_a_process_that_runs_from_an_environment_keeps_it(bench: Bench, start: Starter) -> None:
    pid = start(bench.path(0) / "bin" / "python", "-c", WAIT)
    garbage = bench.gc(keep=1)
    assert garbage.in_use == ((bench.plans[0].env, pid),)
    assert bench.there() == [0, 2]
    assert [each.number for each in list_generations(bench.store, "demo")] == [3]
    assert_whole(bench.store, bench.plans[0])
    child = start.children.pop()
    child.kill()
    child.communicate()
    assert bench.gc(keep=1).in_use == ()
    assert bench.there() == [2]


@pytest.mark.parametrize("way", ["profile", "generation"])
def test_a_process_that_came_through_a_link_keeps_what_it_began_with(bench: Bench, start: Starter, way: str) -> None:
    roll_back(bench.store, "demo", 1)
    place = bench.store.root / ("profiles/demo" if way == "profile" else "generations/demo/1")
    start(place / "bin" / "python", "-c", WAIT)
    roll_back(bench.store, "demo", 3)
    bench.gc(keep=1)
    assert 0 in bench.there()
    assert 2 in bench.there()
    if way == "generation":
        assert bench.there() == [0, 2]


def test_scripts_keep_their_environment(bench: Bench, start: Starter) -> None:
    part = add_wheel(
        bench.store,
        "tool",
        {"tool.py": f"def main(): exec({WAIT!r})\n"},
        entry_points="[console_scripts]\nt = tool:main\n",
    )
    plan = make_plan(bench.store, [part])
    built(bench.store, plan)
    bench.activate(plan)
    pid = start(bench.store.root / "profiles" / "demo" / "bin" / "t", PATH=os.defpath)
    bench.activate(bench.plans[2])
    garbage = bench.gc(keep=1)
    assert (plan.env, pid) in garbage.in_use
    assert_whole(bench.store, plan)


def test_a_process_named_relative_to_its_folder_keeps_its_environment(bench: Bench, start: Starter) -> None:
    script = f'cd "{bench.store.root}/envs" && exec ./{bench.path(0).name}/bin/python -c "$1"'
    pid = start("sh", "-c", script, "sh", WAIT, PATH=os.defpath)
    assert running_environments(bench.store, PROC) == [(bench.plans[0].env, pid)]


def test_a_python_that_found_itself_in_path_keeps_its_environment(bench: Bench, start: Starter) -> None:
    pid = start("env", "-C", "/", "python", "-c", WAIT, PATH=f"{bench.path(1)}/bin:{os.defpath}")
    assert running_environments(bench.store, PROC) == [(bench.plans[1].env, pid)]


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH"])
def test_a_process_whose_variables_lead_there_keeps_its_environment(
    bench: Bench, start: Starter, variable: str
) -> None:
    pid = start("/bin/sh", "-c", "echo up; read x", **{variable: os.fspath(bench.path(1) / SITE)})
    assert running_environments(bench.store, PROC) == [(bench.plans[1].env, pid)]


def test_a_process_that_works_in_a_folder_of_it_keeps_its_environment(bench: Bench, start: Starter) -> None:
    pid = start("/bin/sh", "-c", f'cd "{bench.path(0) / SITE}" && echo up && read x')
    assert running_environments(bench.store, PROC) == [(bench.plans[0].env, pid)]


def test_a_mapped_file_keeps_its_environment(bench: Bench, start: Starter) -> None:
    # The name of the file is not in the command line.
    (start.folder / "names").write_text(os.fspath(bench.path(1) / SITE / "shared.py"))
    code = f"""
import mmap
file = open(open({os.fspath(start.folder / "names")!r}).read(), "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
file.close()
{WAIT}
"""
    pid = start("/usr/bin/env", "python3", "-c", code, PATH=os.environ["PATH"])
    assert running_environments(bench.store, PROC) == [(bench.plans[1].env, pid)]


def test_a_store_that_is_reached_by_another_name_is_recognised(bench: Bench, start: Starter, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(bench.store.root)
    alias = Store(tmp_path / "alias")
    pids = [
        start(alias.env(bench.plans[0].env, "demo") / "bin" / "python", "-c", WAIT),
        start(bench.path(1) / "bin" / "python", "-c", WAIT),
    ]
    found = running_environments(alias, PROC)
    assert sorted(found) == sorted([(bench.plans[0].env, pids[0]), (bench.plans[1].env, pids[1])])


def test_environments_of_other_stores_are_not_ours(bench: Bench, start: Starter, tmp_path: Path) -> None:
    other = new_store(tmp_path / "store2")
    plan = make_plan(other, [add_wheel(other, "x")])
    start(built(other, plan).path / "bin" / "python", "-c", WAIT)
    assert running_environments(bench.store, PROC) == []


class FakeProc:
    """A /proc of our own making."""

    def __init__(self, root: Path, *, boot_s: float | None = 1_700_000_000) -> None:
        self.root = root
        (root / "sys").mkdir(parents=True)
        if boot_s is not None:
            (root / "stat").write_text(f"cpu 1 2 3\nbtime {boot_s}\nprocesses 7\n")

    def add(
        self, pid: int, command: str, *, started_s: float = 0, exe: str = "/usr/bin/python3", **variables: str
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        ticks = int(started_s * os.sysconf("SC_CLK_TCK"))
        # A name may hold anything, a closing bracket and spaces included.
        (folder / "stat").write_text(f"{pid} (a) b (c) S 1 {' '.join(['0'] * 17)} {ticks} 0 0\n")
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in variables.items()))
        (folder / "maps").write_text("")
        (folder / "exe").symlink_to(exe)
        (folder / "cwd").symlink_to("/")


@pytest.mark.parametrize(
    ("boot_s", "started_s", "kept"),
    [
        (1_700_000_000, 10, [0, 1, 2]),  # long before the last switch
        (4_000_000_000, 10, [2]),  # for sure after it
        (None, 10, [0, 1, 2]),  # the kernel does not say
    ],
)
def test_a_process_through_the_profile_keeps_older_environments_if_it_may_have_begun_before_the_last_switch(
    bench: Bench, tmp_path: Path, boot_s: float | None, started_s: float, kept: list[int]
) -> None:
    proc = FakeProc(tmp_path / "proc", boot_s=boot_s)
    proc.add(77, f"{bench.store.root}/profiles/demo/bin/python -m server", started_s=started_s)
    assert running_environments(bench.store, proc.root) == sorted((bench.plans[index].env, 77) for index in kept)


def test_a_shell_with_the_profile_in_its_path_keeps_only_the_active_environment(bench: Bench, tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    path = f"{bench.store.root}/profiles/demo/bin:/usr/bin"
    proc.add(77, "-bash", exe="/usr/bin/bash", PATH=path)
    assert running_environments(bench.store, proc.root) == [(bench.plans[2].env, 77)]
    proc.add(78, "python server.py", PATH=path)
    found = running_environments(bench.store, proc.root)
    assert [env for env, pid in found if pid == 78] == sorted(plan.env for plan in bench.plans)


@pytest.mark.parametrize(
    "command",
    [
        "cat {root}/profiles/demos/bin/python",
        "cat {root}/profiles",
        "cat {root}/generations/demo/99/x",
        "cat {root}x/envs/{env}-demo",
        "cat {root}/envs/{short}-demo",
        "cat {root}/envs",
    ],
)
def test_what_only_looks_alike_keeps_nothing(bench: Bench, tmp_path: Path, command: str) -> None:
    proc = FakeProc(tmp_path / "proc")
    env = bench.plans[0].env
    proc.add(77, command.format(root=bench.store.root, env=env, short=env[:-1]))
    assert running_environments(bench.store, proc.root) == []


def test_processes_that_may_not_be_looked_at_or_end_meanwhile_are_no_error(bench: Bench, tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    (proc.root / "12").mkdir()
    (proc.root / "13").mkdir()
    (proc.root / "13" / "cmdline").write_text(f"{bench.store.root}/profiles/demo/bin/python")
    assert {pid for _, pid in running_environments(bench.store, proc.root)} == {13}
    (proc.root / "13" / "stat").write_text("13 (x) S")
    assert {pid for _, pid in running_environments(bench.store, proc.root)} == {13}
