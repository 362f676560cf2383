"""A plan becomes one tree, the same everywhere, complete and proven, or nothing at all."""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

import pytest

from builder import process
from builder.agent import realise as realise_module
from builder.agent.files import walk_paths
from builder.agent.generations import activate
from builder.agent.observe import bytecode_drift, find_drift, measure_site, read_env_record
from builder.agent.pool import WorkerPool
from builder.agent.realise import CorruptObjects, bytecode_digest
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.tree import is_host_path, tree_digest
from tests.support.stores import (
    PYTHON,
    SITE,
    InlinePool,
    add_wheel,
    build,
    built,
    edit_in_place,
    forget_objects,
    make_objects,
    make_plan,
    new_store,
    said,
    snapshot,
    start_build,
    this_interpreter,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Any

    from builder.agent.realise import Plan, PlanPart
    from builder.agent.store import Store

KILL_ROUNDS = int(os.environ.get("ENVSPEC_KILL_ROUNDS", "60"))
ALPHA = {
    "alpha/__init__.py": "import alpha.data\nx = 1\n",
    "alpha/data/__init__.py": "",
    "alpha/data/a b ü.txt": "text",
    "alpha/data/empty": "",
    "alpha/tool": "#!/bin/sh\necho tool\n",
    "alpha/main.py": "import sys\ndef main():\n    print('alpha', sys.argv[1:], sys.prefix)\n    return 3\n",
}
SCRIPTS = "[console_scripts]\nalpha-run = alpha.main:main\n"


def alpha_part(store: Store) -> PlanPart:
    return add_wheel(
        store,
        "alpha",
        ALPHA,
        entry_points=SCRIPTS,
        executable=["alpha/tool"],
        data={"scripts/hello": "#!python\nimport alpha\nprint('hello', alpha.x)\n", "data/share/alpha.conf": "y"},
    )


def two_parts(store: Store) -> list[PlanPart]:
    return [alpha_part(store), add_wheel(store, "beta", {"beta/__init__.py": "import alpha\n"})]


def colliding_parts(store: Store) -> list[PlanPart]:
    """Three wheels with files of one name: equal in two of them, with another content in the third."""
    return [
        add_wheel(store, name, {f"{name}.py": "", "build_backend.py": content, "LICENSE": "same"})
        for name, content in (("first", "a = 1\n"), ("second", "b = 22\n"), ("third", "a = 1\n"))
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "store")


def assert_nothing_registered(store: Store, plan: Plan) -> None:
    assert list((store.root / "envs").iterdir()) == []
    assert list((store.root / ".tmp").iterdir()) == []
    assert not store.receipts(plan.env).exists()


def assert_complete(store: Store, plan: Plan) -> None:
    """The environment is what was planned, seen from the disk alone."""
    record = read_env_record(store, plan.env, plan.name)
    found = measure_site(record.path, InlinePool(store), lambda _bytes: None)
    assert tree_digest(found) == plan.site == record.site
    assert found == (store.receipts(plan.env) / "site.mtree").read_text(encoding="ascii")
    assert bytecode_drift(store, record) == ()
    assert find_drift(store, record) == ()


def run(path: Path, *words: str) -> str:
    done = process.run([os.fspath(path), *words], env={"PATH": os.defpath})
    assert done.returncode in (0, 3), done.stderr
    return done.stdout.strip()


# -- one tree everywhere --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_stores(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Store, Plan]]:
    """One plan, built by real workers under different paths, umasks, time zones and locales."""
    found = []
    for place, mask, variables in (
        ("one", 0o077, {"TZ": "Pacific/Kiritimati", "LANG": "C", "LC_ALL": "C"}),
        ("a deeper/place of/another", 0o002, {"TZ": "America/St_Johns", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "7"}),
    ):
        folder = tmp_path_factory.mktemp("store") / place
        folder.mkdir(parents=True)
        before = os.umask(mask)
        try:
            store = new_store(folder / "store")
            plan = make_plan(store, [*two_parts(store), *colliding_parts(store)], owners={"build_backend.py": "second"})
            assert said(start_build(store, plan, folder, **variables)) == "built"
        finally:
            os.umask(before)
        found.append((store, plan))
    return found


def path_of(store: Store, plan: Plan) -> Path:
    return store.env(plan.env, plan.name)


def test_two_stores_give_the_same_site_bytecode_and_manifest(two_stores: list[tuple[Store, Plan]]) -> None:
    (one, plan), (two, same_plan) = two_stores
    assert plan == same_plan
    for store in (one, two):
        assert_complete(store, plan)
    texts = [(store.receipts(plan.env) / "site.mtree").read_bytes() for store in (one, two)]
    assert texts[0] == texts[1]
    assert [path.name for path in sorted((one.root / "bytecode").glob("*.mtree"))] == [
        path.name for path in sorted((two.root / "bytecode").glob("*.mtree"))
    ]
    for path in (one.root / "bytecode").glob("*.mtree"):
        assert path.read_bytes() == (two.root / "bytecode" / path.name).read_bytes()


def test_two_stores_give_the_same_modes(two_stores: list[tuple[Store, Plan]]) -> None:
    modes = [
        {path: mode for path, (mode, _, _) in snapshot(path_of(store, plan)).items()} for store, plan in two_stores
    ]
    assert modes[0] == modes[1]


def mtree(manifest: Path, root: Path) -> process.Completed:
    """Check a tree with Debian's mtree; what only the tree has is not looked at, since that belongs to the host."""
    return process.run(
        ["mtree", "-e", "-f", os.fspath(manifest), "-p", os.fspath(root)], env={"PATH": os.environ["PATH"]}
    )


@pytest.fixture
def copy_to_break(two_stores: list[tuple[Store, Plan]], tmp_path: Path) -> tuple[Path, Path]:
    """The manifest of an environment and a writable copy of it."""
    store, plan = two_stores[0]
    copy = tmp_path / "copy"
    shutil.copytree(path_of(store, plan), copy, symlinks=True)
    for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir() and not path.is_symlink())):
        folder.chmod(0o755)
    return store.receipts(plan.env) / "site.mtree", copy


@pytest.mark.skipif(shutil.which("mtree") is None, reason="Debian's mtree-netbsd is not installed")
class TestMtreeAsJudge:
    def test_both_trees_verify(self, two_stores: list[tuple[Store, Plan]]) -> None:
        for store, plan in two_stores:
            done = mtree(store.receipts(plan.env) / "site.mtree", path_of(store, plan))
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_a_copy_elsewhere_verifies(self, copy_to_break: tuple[Path, Path]) -> None:
        done = mtree(*copy_to_break)
        assert (done.returncode, done.stdout) == (0, "")

    def test_a_flipped_byte_is_found(self, copy_to_break: tuple[Path, Path]) -> None:
        edit_in_place(copy_to_break[1] / SITE / "alpha" / "__init__.py", b"import alpha.data\nx = 2\n")
        done = mtree(*copy_to_break)
        assert done.returncode != 0
        assert "alpha/__init__.py" in done.stdout

    def test_a_changed_executable_bit_is_found(self, copy_to_break: tuple[Path, Path]) -> None:
        (copy_to_break[1] / SITE / "alpha" / "tool").chmod(0o444)
        done = mtree(*copy_to_break)
        assert done.returncode != 0
        assert "alpha/tool" in done.stdout

    def test_a_missing_file_is_found(self, copy_to_break: tuple[Path, Path]) -> None:
        (copy_to_break[1] / SITE / "alpha" / "data" / "a b ü.txt").unlink()
        assert "missing: ./lib" in mtree(*copy_to_break).stdout  # which mtree does not count as a mismatch


@pytest.mark.skipif(shutil.which("nix-hash") is None, reason="nix-bin is not installed")
def test_nix_hash_finds_the_trees_equal_and_one_bit_unequal(
    two_stores: list[tuple[Store, Plan]], tmp_path: Path
) -> None:
    hashes = []
    for index, (store, plan) in enumerate(two_stores):
        site = tmp_path / str(index)
        root = path_of(store, plan)
        for path in sorted(walk_paths(root)[0]):
            if not is_host_path(path):
                (site / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / path, site / path, follow_symlinks=False)
        hashes.append(nix_hash(site))
    assert hashes[0] == hashes[1]
    (tmp_path / "0" / SITE / "alpha" / "tool").chmod(0o444)
    assert nix_hash(tmp_path / "0") != hashes[1]


def nix_hash(path: Path) -> str:
    done = process.run(["nix-hash", "--type", "sha256", os.fspath(path)])
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- what an environment is -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(store: Store) -> Plan:
    return make_plan(store, two_parts(store))


def test_an_environment_lies_at_its_path_and_is_what_was_predicted(store: Store, plan: Plan) -> None:
    made = built(store, plan)
    assert made.path == store.root / "envs" / f"{plan.env}-demo"
    assert made.rehashed == 0
    assert_complete(store, plan)
    assert made.files == sum(
        " type=file" in line for line in (store.receipts(plan.env) / "site.mtree").read_text().splitlines()
    )
    manifests = [path.read_text() for path in (store.root / "bytecode").glob("*.mtree")]
    assert made.bytecode_sha256 == bytecode_digest(manifests)
    assert list((store.root / ".tmp").iterdir()) == []


def test_everything_in_it_is_read_only_and_only_read_only_files_share_an_inode(store: Store, plan: Plan) -> None:
    root = built(store, plan).path
    assert stat.S_IMODE(root.stat().st_mode) == 0o555
    shared = 0
    for path in root.rglob("*"):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            assert stat.S_IMODE(status.st_mode) == 0o555
        elif not stat.S_ISLNK(status.st_mode):
            assert stat.S_IMODE(status.st_mode) in (0o444, 0o555)
            shared += status.st_nlink > 1
    assert shared > 0


def test_its_files_are_those_of_the_store_and_cost_no_space(store: Store, plan: Plan) -> None:
    root = built(store, plan).path
    for part in plan.parts:
        tree = store.tree(part.tree).path
        for path in walk_paths(tree)[0]:
            assert (root / path).samefile(tree / path)


def test_python_in_it_has_its_packages_and_no_others(store: Store, plan: Plan) -> None:
    root = built(store, plan).path
    code = "import alpha, beta, sys; print(sys.prefix, [p for p in sys.path if p.endswith('-packages')])"
    for name in ("python", "python3", f"python{PYTHON}"):
        assert run(root / "bin" / name, "-c", code) == f"{root} ['{root}/{SITE}']"


def test_scripts_run_at_the_path_through_the_profile_and_after_a_move(store: Store, plan: Plan, tmp_path: Path) -> None:
    root = built(store, plan).path
    activate(store, "demo", env=plan.env, site=plan.site, lock_sha256="", spec_sha256="", created="")
    profile = store.root / "profiles" / "demo"
    moved = tmp_path / "moved to"
    shutil.copytree(root, moved, symlinks=True)
    for place, prefix in ((root, root), (profile, root), (moved, moved)):
        assert run(place / "bin" / "alpha-run", "one two", "3") == f"alpha ['one two', '3'] {prefix}"
        assert run(place / "bin" / "hello") == "hello 1"
        assert run(place / "bin" / "python", "-c", "import alpha; print(alpha.__file__)").startswith(os.fspath(place))
    link = tmp_path / "linked-script"
    link.symlink_to(profile / "bin" / "alpha-run")
    assert run(link) == f"alpha [] {root}"


def test_a_copy_elsewhere_has_the_same_site_digest_and_names_the_old_path_only_for_shells(
    store: Store, plan: Plan, tmp_path: Path
) -> None:
    root = built(store, plan).path
    shutil.copytree(root, tmp_path / "moved", symlinks=True)
    assert tree_digest(measure_site(tmp_path / "moved", InlinePool(store), lambda _bytes: None)) == plan.site
    naming = {
        path
        for path in walk_paths(tmp_path / "moved")[0]
        if not (tmp_path / "moved" / path).is_symlink()
        and os.fsencode(store.root) in (tmp_path / "moved" / path).read_bytes()
    }
    assert naming == {"bin/activate", "bin/activate.fish"}


def test_a_second_environment_shares_all_files_and_reads_none_again(store: Store, plan: Plan) -> None:
    built(store, plan)
    other = make_plan(store, [*plan.parts, add_wheel(store, "gamma")], name="other")
    made = built(store, other)
    assert made.rehashed == 0
    assert_complete(store, other)
    assert_complete(store, plan)


def test_an_empty_plan_is_an_environment_without_packages(store: Store) -> None:
    empty = make_plan(store, [])
    root = built(store, empty).path
    assert_complete(store, empty)
    assert run(root / "bin" / "python", "-c", "print(1)") == "1"


def test_a_patched_wheel_with_a_donor_gives_the_same_tree_as_without(store: Store) -> None:
    base = alpha_part(store)
    changed = {**ALPHA, "alpha/__init__.py": "x = 'patched'\n"}
    patched = add_wheel(store, "alpha", changed, version="1.0+p", executable=["alpha/tool"])
    make_objects(store, make_plan(store, [base]), InlinePool(store))
    plan = make_plan(store, [replace(patched, donor=base.tree, base_sha256=base.sha256)])
    built(store, plan)
    assert_complete(store, plan)
    record = read_env_record(store, plan.env, "demo")
    (part,) = record.fields["parts"]
    assert (part["sha256"], part["base_sha256"], part["donor"]) == (patched.sha256, base.sha256, base.tree)


def test_two_names_of_one_env_id_are_looked_after_apart(store: Store, plan: Plan) -> None:
    for name in ("demo", "other"):
        built(store, replace(plan, name=name))
    for name in ("demo", "other"):
        record = read_env_record(store, plan.env, name)
        assert (record.name, record.path) == (name, store.env(plan.env, name))
        assert_complete(store, replace(plan, name=name))


# -- collisions -----------------------------------------------------------------------------------------------------------------------


def test_a_contended_path_goes_to_its_owner_every_time(tmp_path: Path) -> None:
    found = set()
    for attempt in range(20):
        store = new_store(tmp_path / str(attempt))
        parts = colliding_parts(store)
        random.Random(attempt).shuffle(parts)  # noqa: S311 - an order, no secret
        plan = make_plan(store, parts, owners={"build_backend.py": "second"})
        root = built(store, plan).path
        assert (root / SITE / "build_backend.py").read_text() == "b = 22\n"
        assert run(root / "bin" / "python", "-c", "import build_backend; print(build_backend.b)") == "22"
        found.add((plan.site, tree_digest(measure_site(root, InlinePool(store), lambda _bytes: None))))
    assert len(found) == 1
    assert len(next(iter(found))) == 2
    assert len(set(next(iter(found)))) == 1


def test_the_record_of_a_package_that_gives_way_is_true(store: Store) -> None:
    plan = make_plan(store, colliding_parts(store), owners={"build_backend.py": "second"})
    site = built(store, plan).path / SITE
    rows = {
        name: [line.partition(",")[0] for line in (site / f"{name}-1.0.dist-info" / "RECORD").read_text().splitlines()]
        for name in ("first", "second", "third")
    }
    assert [name for name, paths in rows.items() if "build_backend.py" in paths] == ["second"]
    assert all(f"{name}.py" in paths and "LICENSE" in paths for name, paths in rows.items())
    record = site / "first-1.0.dist-info" / "RECORD"
    assert record.stat().st_nlink == 1
    assert stat.S_IMODE(record.stat().st_mode) == 0o444
    assert_complete(store, plan)


def test_the_same_wheels_with_and_without_an_owner_share_a_store(store: Store) -> None:
    parts = colliding_parts(store)
    plans = [make_plan(store, parts, owners={"build_backend.py": owner}) for owner in ("first", "second", "third")]
    assert len({plan.env for plan in plans}) == 3
    for plan in plans:
        built(store, plan)
    for plan in plans:
        assert_complete(store, plan)
    contents = [(path_of(store, plan) / SITE / "build_backend.py").read_text() for plan in plans]
    assert contents == ["a = 1\n", "b = 22\n", "a = 1\n"]


def test_a_collision_without_an_owner_is_an_error_that_names_the_path(store: Store) -> None:
    plan = make_plan(store, colliding_parts(store), site="0" * 64)
    with pytest.raises(EnvspecError, match=r"`.*build_backend\.py` is in first and second and third") as caught:
        build(store, plan)
    assert caught.value.exit_code == FOUND_WRONG
    assert_nothing_registered(store, plan)


# -- what is not as it should be ------------------------------------------------------------------------------------------------------


def test_another_site_digest_than_the_locked_one_registers_nothing(store: Store, plan: Plan) -> None:
    wrong = replace(plan, site="0" * 64)
    with pytest.raises(EnvspecError) as caught:
        build(store, wrong)
    assert caught.value.message == f"the locked wheels give the site digest {plan.site}, the lock has {'0' * 64}"
    assert "envspec lock" in caught.value.hint
    assert caught.value.exit_code == FOUND_WRONG
    assert_nothing_registered(store, plan)


def _edit_tree(store: Store, part: PlanPart) -> str:
    edit_in_place(store.tree(part.tree).path / SITE / "alpha" / "__init__.py", b"import alpha.data\nx = 2\n")
    return f"trees/{part.tree}/{SITE}/alpha/__init__.py"


def _remove_from_tree(store: Store, part: PlanPart) -> str:
    (store.tree(part.tree).path / "bin").chmod(0o755)
    (store.tree(part.tree).path / "bin" / "alpha-run").unlink()
    return f"trees/{part.tree}/bin/alpha-run"


def _edit_bytecode(store: Store, part: PlanPart) -> str:
    (found,) = (store.root / "bytecode").glob(f"{part.tree}-*/{SITE}/alpha/__pycache__/__init__.*.pyc")
    content = found.read_bytes()
    edit_in_place(found, content[:-1] + bytes([content[-1] ^ 1]))
    return f"bytecode/{found.relative_to(store.root / 'bytecode')}"


def _edit_manifest(store: Store, part: PlanPart) -> str:
    path = store.tree(part.tree).manifest_path
    path.write_text(path.read_text().replace("mode=0555", "mode=0444", 1))
    return f"trees/{part.tree}.mtree"


def _cut_manifest(store: Store, part: PlanPart) -> str:
    store.tree(part.tree).manifest_path.write_bytes(b"")
    return f"trees/{part.tree}.mtree"


def _cut_bytecode_manifest(store: Store, part: PlanPart) -> str:
    (found,) = (store.root / "bytecode").glob(f"{part.tree}-*.mtree")
    found.write_bytes(found.read_bytes()[:-20])
    return f"bytecode/{found.name}"


def _garble_bytecode_manifest(store: Store, part: PlanPart) -> str:
    (found,) = (store.root / "bytecode").glob(f"{part.tree}-*.mtree")
    found.write_bytes(found.read_bytes().replace(b"mode=0444", b"mode=0666"))
    return f"bytecode/{found.name}"


@pytest.mark.parametrize(
    "tamper",
    [
        _edit_tree,
        _remove_from_tree,
        _edit_bytecode,
        _edit_manifest,
        _cut_manifest,
        _cut_bytecode_manifest,
        _garble_bytecode_manifest,
    ],
)
def test_a_tampered_object_registers_nothing_and_is_named(
    store: Store, plan: Plan, tamper: Callable[[Store, PlanPart], str]
) -> None:
    make_objects(store, plan, InlinePool(store))
    file = tamper(store, plan.parts[0])
    with pytest.raises(CorruptObjects) as caught:
        build(store, plan)
    assert caught.value.trees == (plan.parts[0].tree,)
    assert caught.value.files == (file,)
    assert file in caught.value.detail
    assert "envspec build --repair" in caught.value.hint
    assert_nothing_registered(store, plan)
    forget_objects(store)
    built(store, plan)
    assert_complete(store, plan)


def test_an_extra_file_in_an_object_does_not_get_in(store: Store, plan: Plan) -> None:
    make_objects(store, plan, InlinePool(store))
    folder = store.tree(plan.parts[0].tree).path / SITE / "alpha"
    folder.chmod(0o755)
    (folder / "extra.py").write_text("")
    built(store, plan)
    assert_complete(store, plan)


def test_what_something_else_wrote_into_the_new_tree_is_found(store: Store, plan: Plan) -> None:
    class Meddling(InlinePool):
        def submit(self, task: dict[str, Any], *, weight_s: float = 0.0) -> Future[dict[str, Any]]:
            done = super().submit(task)
            if task["task"] == "link":
                root = Path(task["target"])
                (root / SITE / "injected.py").write_text("")
                (root / SITE / "alpha" / "tool").unlink(missing_ok=True)
            return done

    with pytest.raises(EnvspecError, match="1 paths are missing, 1 are too many") as caught:
        build(store, plan, pool=Meddling(store))
    assert f"missing  {SITE}/alpha/tool" in caught.value.detail
    assert f"extra    {SITE}/injected.py" in caught.value.detail
    assert_nothing_registered(store, plan)


@pytest.mark.parametrize("step", ["write_file", "sync_filesystem", "write_atomically", "rename_new"])
def test_a_failure_at_any_step_registers_nothing(
    store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(realise_module, step, fail)
    with pytest.raises(OSError, match="No space"):
        build(store, plan)
    monkeypatch.undo()
    assert list((store.root / "envs").iterdir()) == []
    assert list((store.root / ".tmp").iterdir()) == []
    built(store, plan)
    assert_complete(store, plan)


def test_a_worker_that_dies_while_others_link_leaves_nothing(store: Store) -> None:
    parts = [add_wheel(store, f"p{index}", {f"p{index}/m{n}.py": "" for n in range(40)}) for index in range(8)]
    plan = make_plan(store, parts)
    make_objects(store, plan, InlinePool(store))
    with WorkerPool(this_interpreter().path, store.root, size=3) as pool:
        pool._workers[1].kill()
        with pytest.raises(EnvspecError, match="a worker process ended in the middle of `link`"):
            build(store, plan, pool=pool)
        assert_nothing_registered(store, plan)
    built(store, plan)
    assert_complete(store, plan)


def test_an_environment_that_appeared_meanwhile_is_left_alone(store: Store, plan: Plan) -> None:
    final = path_of(store, plan)

    class Slow(InlinePool):
        def submit(self, task: dict[str, Any], *, weight_s: float = 0.0) -> Future[dict[str, Any]]:
            if task["task"] == "link":
                final.mkdir(exist_ok=True)
                (final / "theirs").write_text("")
            return super().submit(task)

    with pytest.raises(EnvspecError, match="appeared while it was being built"):
        build(store, plan, pool=Slow(store))
    assert [path.name for path in final.iterdir()] == ["theirs"]
    assert list((store.root / ".tmp").iterdir()) == []


def test_leftovers_of_a_killed_build_of_the_same_environment_go(store: Store, plan: Plan) -> None:
    left = store.root / ".tmp" / f"env-{plan.env}.99999999" / "lib"
    left.mkdir(parents=True)
    (left / "file").write_text("")
    left.chmod(0o555)
    built(store, plan)
    assert list((store.root / ".tmp").iterdir()) == []


def test_an_environment_is_never_seen_half(store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the step: the path is absent, or it is there with a record that can be read."""
    seen = []

    def look(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            seen.append(path_of(store, plan).exists())
            result = step(*args, **kwargs)
            if path_of(store, plan).exists():
                assert_complete(store, plan)
            return result

        return wrapped

    for step in ("write_file", "sync_filesystem", "write_atomically", "rename_new", "sync_folder"):
        monkeypatch.setattr(realise_module, step, look(getattr(realise_module, step)))
    built(store, plan)
    assert seen.count(True) == 1


# -- several at once, and kills -------------------------------------------------------------------------------------------------------


def test_two_processes_that_build_one_environment_build_it_once(store: Store, plan: Plan, tmp_path: Path) -> None:
    children = [start_build(store, plan, tmp_path) for _ in range(3)]
    assert sorted(said(child) for child in children) == ["built", "there", "there"]
    assert_complete(store, plan)
    assert list((store.root / ".tmp").iterdir()) == []


def test_two_environments_that_share_wheels_are_built_at_once(store: Store, tmp_path: Path) -> None:
    shared = two_parts(store)
    plans = [
        make_plan(store, [*shared, add_wheel(store, f"own{index}", {f"own{index}.py": ""})], name=f"n{index}")
        for index in range(3)
    ]
    children = [start_build(store, plan, tmp_path) for plan in plans]
    assert [said(child) for child in children] == ["built"] * 3
    for plan in plans:
        assert_complete(store, plan)
    for part in shared:
        files = walk_paths(store.tree(part.tree).path)[0]
        for path in files:
            assert len({(path_of(store, plan) / path).stat().st_ino for plan in plans}) == 1
    assert list((store.root / ".tmp").iterdir()) == []


def test_a_build_that_is_killed_at_any_instant_loses_nothing_and_leaves_nothing(store: Store, tmp_path: Path) -> None:
    sources = {f"alpha/m{index}.py": f"def f{index}(x):\n    return x + {index}\n" * 30 for index in range(120)}
    parts = [
        add_wheel(store, "alpha", {"alpha/__init__.py": "", **sources}),
        *(add_wheel(store, f"p{index}", {f"p{index}/m{n}.py": "x = 1\n" for n in range(30)}) for index in range(4)),
        *colliding_parts(store),
    ]
    plan = make_plan(store, parts, owners={"build_backend.py": "first"})
    started = time.monotonic()
    assert said(start_build(store, plan, tmp_path)) == "built"
    duration_s = time.monotonic() - started
    forget_objects(store)
    chance = random.Random(20261130)  # noqa: S311 - moments, no secrets
    for _ in range(KILL_ROUNDS):
        started = time.monotonic()
        with start_build(store, plan, tmp_path) as child:
            try:
                child.wait(timeout=chance.uniform(0.05, 1.05) * duration_s)
                duration_s = min(duration_s, time.monotonic() - started)
            except TimeoutExpired:
                child.kill()
        with store.lock(f"env-{plan.env}"):  # its workers hold it until they are gone
            if path_of(store, plan).exists():
                assert_complete(store, plan)
                forget_objects(store)
    assert said(start_build(store, plan, tmp_path)) == "built"
    assert_complete(store, plan)
    assert list((store.root / ".tmp").iterdir()) == []
    for kind in ("trees", "bytecode"):
        names = {path.name for path in (store.root / kind).iterdir()}
        whole = {name for name in names if "." not in name}
        assert names == {name + suffix for name in whole for suffix in ("", ".mtree", ".proven")}
        assert len(whole) == len(plan.parts)
    assert list(store.root.rglob(".envspec-*")) == []
