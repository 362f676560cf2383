"""A store that a group shares: nobody links what another could change, and what another put there leads nowhere."""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from builder import process
from builder.agent.build import _check_owner
from builder.agent.collect import check_may_collect
from builder.agent.hostfiles import CACHE_VARIABLES, host_files, state_folder
from builder.agent.link import link_object
from builder.agent.store import (
    Store,
    StoreObject,
    is_shared,
    make_folder,
    process_mark,
    remove_dead_temporaries,
    remove_readonly_tree,
    write_atomically,
    write_new,
)
from envspec.errors import EnvspecError
from tests.support.stores import add_wheel, built, make_plan, new_store, this_interpreter

if TYPE_CHECKING:
    from pathlib import Path

NOBODYS = 47999


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store that a group shares."""
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o2775)
    made = Store(root)
    made.ensure()
    return made


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A file that no store has to do with."""
    path = tmp_path / "treasure"
    path.write_text("mine")
    path.chmod(0o640)
    return path


def test_folders_are_the_groups_and_files_are_not(store: Store) -> None:
    for folder in store.root.iterdir():
        if folder.is_dir():
            assert stat.S_IMODE(folder.stat().st_mode) == 0o2775, folder
    assert stat.S_IMODE((store.root / "store.json").stat().st_mode) == 0o644
    with store.lock("gc"):
        pass
    assert stat.S_IMODE((store.root / "locks" / "gc").stat().st_mode) & 0o007 == 0


def test_private_store_has_locks_that_only_its_owner_can_hold(tmp_path: Path) -> None:
    private = new_store(tmp_path / "private")
    assert not private.shared
    with private.lock("gc"):
        pass
    assert stat.S_IMODE((private.root / "locks" / "gc").stat().st_mode) == 0o600


def test_folder_below_a_private_one_is_private(tmp_path: Path) -> None:
    make_folder(tmp_path / "a")
    assert not is_shared(tmp_path / "a")


def test_links_of_another_user_lead_no_write_out_of_the_store(store: Store, treasure: Path) -> None:
    """Whoever may make things in a folder can guess the names of temporary files."""
    for trap in (
        store.facts / f".envspec-{process_mark()}-x.json",
        store.root / ".tmp" / f"probe.{process_mark()}",
        store.facts / "new",
        store.root / "trees" / "t.proven",
        store.root / "locks" / "gc",
    ):
        trap.symlink_to(treasure)
    write_atomically(store.facts / "x.json", "1")
    write_new(store.facts / "new", b"1")
    store.ensure()
    with pytest.raises(OSError, match="symbolic links"):
        StoreObject(store.root / "trees" / "t").stamp(1)
    with pytest.raises(OSError, match="symbolic links"), store.lock("gc"):
        pass
    assert treasure.read_text() == "mine"
    assert (store.facts / "x.json").read_text() == (store.facts / "new").read_text() == "1"


def test_deleting_follows_no_link(store: Store, treasure: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    leftover = store.root / ".tmp" / "env-a.1"
    (leftover / "deep").mkdir(parents=True)
    (leftover / "file").symlink_to(treasure)
    (leftover / "deep" / "folder").symlink_to(outside)
    (leftover / "deep").chmod(0o555)
    remove_readonly_tree(leftover)
    assert not leftover.exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o750
    assert stat.S_IMODE(treasure.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_another_user_made_is_copied_and_its_stamp_left_alone(store: Store, tmp_path: Path) -> None:
    part = add_wheel(store, "alpha", {"alpha/__init__.py": "x = 1\n", "alpha/tool": "#!/bin/sh\n"})
    built(store, make_plan(store, [part]))
    tree = store.tree(part.tree)
    for path in tree.path.rglob("*"):
        os.chown(path, NOBODYS, NOBODYS, follow_symlinks=False)
    before = tree.stamp_path.read_bytes()
    (tmp_path / "target").mkdir()
    linked = link_object(tree, tmp_path / "target", skip=frozenset(), proven_ns=0, owner=os.geteuid())
    assert (linked.copied, linked.corrupt) == (linked.files, ())
    for path in (tmp_path / "target").rglob("*.py"):
        status = path.stat()
        assert (status.st_uid, status.st_nlink, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 1, 0o444)
        assert status.st_ctime_ns <= linked.proven_ns
    # Of another patch, and so another environment.
    again = built(store, make_plan(store, [part, add_wheel(store, "beta", {"beta.py": "y = 1\n"})]))
    assert {path.stat().st_nlink for path in again.path.rglob("alpha/__init__.py")} == {1}
    assert tree.stamp_path.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_only_its_maker_and_root_may_mend_or_collect(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.root / "envs" / "x"
    path.mkdir()
    os.chown(path, NOBODYS, NOBODYS)
    _check_owner(path)
    check_may_collect(store)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODYS + 1)
    with pytest.raises(EnvspecError, match=f"was made by {NOBODYS}, and this is {NOBODYS + 1}"):
        _check_owner(path)
    with pytest.raises(EnvspecError, match="only root sees"):
        check_may_collect(store)
    remove_dead_temporaries(path.parent)
    _check_owner(path.parent / "not there")


def test_caches_of_compilers_are_each_users_own(store: Store, tmp_path: Path) -> None:
    private = new_store(tmp_path / "private")
    home = {"HOME": "/users/a b"}
    assert state_folder(private, "e", home) == private.state("e")
    assert state_folder(store, "e", home).as_posix() == "/users/a b/.cache/envspec/state/e"
    assert state_folder(store, "e", {**home, "XDG_CACHE_HOME": "/c"}).as_posix() == "/c/envspec/state/e"


@pytest.mark.parametrize("shell", ["sh", "bash", "fish"])
@pytest.mark.parametrize("variables", [{}, {"XDG_CACHE_HOME": "/tmp/c $x"}, {"XDG_CACHE_HOME": ""}])
def test_activation_in_a_shared_store_names_the_users_own_caches(
    tmp_path: Path, shell: str, variables: dict[str, str]
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    root, home = tmp_path / "env", "/users/it's $HOME"
    files = host_files(root, None, env="e" * 32, name="demo", site="0" * 64, interpreter=this_interpreter())
    name = "bin/activate.fish" if shell == "fish" else "bin/activate"
    (root / "bin").mkdir(parents=True)
    (root / name).write_text(files[name])
    done = process.run(
        [program, "-c", f". {root / name} && env"],
        env={"PATH": os.defpath, "HOME": home, **variables},
    )
    expected = (variables.get("XDG_CACHE_HOME") or f"{home}/.cache") + f"/envspec/state/{'e' * 32}"
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {each: found.get(each) for each in CACHE_VARIABLES} == {
        each: f"{expected}/{folder}" for each, folder in CACHE_VARIABLES.items()
    }, done.stderr
