"""The store: made once, of one format, written under locks, and clean after whoever was killed."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder import process
from builder.agent.store import (
    Store,
    process_mark,
    remove_readonly_tree,
    rename_new,
    sync_filesystem,
    write_atomically,
)
from envspec.errors import EnvspecError
from tests.support.stores import REPOSITORY, new_store

if TYPE_CHECKING:
    import subprocess
    from typing import Self

HOLD = """
import sys
from pathlib import Path
from builder.agent.store import Store
store = Store(Path(sys.argv[1]))
with store.lock(sys.argv[2], shared=sys.argv[3] == "shared"):
    if sys.argv[4] == "leave":
        (store.temporary(sys.argv[2]) / "half").write_text("made")
    print("held", flush=True)
    sys.stdin.readline()
"""


class Holder:
    """Another process that holds a lock until it is let go or killed."""

    def __init__(self, store: Store, name: str, *, shared: bool = False, leave: bool = False) -> None:
        words = [str(store.root), name, "shared" if shared else "alone", "leave" if leave else "nothing"]
        self.child: subprocess.Popen[str] = process.start_worker(
            [sys.executable, "-c", HOLD, *words], env={"PYTHONPATH": str(REPOSITORY)}
        )
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "held\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "store")


def leftovers(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / ".tmp").iterdir())


# -- making it ------------------------------------------------------------------------------------------------------------------------


def test_a_store_is_made_and_ensured_again_without_a_change(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "store")
    store.ensure()
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*") if path.name != ".tmp"}
    store.ensure()
    assert json.loads((store.root / "store.json").read_text()) == {"store": 1}
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*") if path.name != ".tmp"} == before
    assert leftovers(store) == []


def test_making_the_value_touches_nothing(tmp_path: Path) -> None:
    Store(tmp_path / "store").check_format()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"store": 2}', "has format 2, this envspec knows 1"),
        ('{"version": "x"}', "has format None, this envspec knows 1"),
        ("[1]", "cannot be read"),
        ("not json", "cannot be read"),
    ],
)
def test_a_store_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "store.json").write_text(content)
    for look in (Store(tmp_path).ensure, Store(tmp_path).check_format):
        with pytest.raises(EnvspecError, match=message) as caught:
            look()
        assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]
    assert (tmp_path / "store.json").read_text() == content


def test_a_store_below_a_regular_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvspecError, match="cannot be written: Not a directory") as caught:
        Store(tmp_path / "file" / "store").ensure()
    assert "--store" in caught.value.hint


def test_a_file_in_the_place_of_a_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(EnvspecError, match=r"/store` cannot be written"):
        Store(tmp_path / "store").ensure()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_without_write_permission_is_named(store: Store) -> None:
    (store.root / ".tmp").chmod(0o555)
    with pytest.raises(EnvspecError, match="cannot be written: Permission denied"):
        store.ensure()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_of_another_user_is_named() -> None:
    code = """
import os, sys
from pathlib import Path
from builder.agent.store import Store
from envspec.errors import EnvspecError
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    Store(Path(sys.argv[1])).ensure()
except EnvspecError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = new_store(Path(folder) / "store")
        done = process.run([sys.executable, "-c", code, str(store.root)], env={"PYTHONPATH": str(REPOSITORY)})
    assert "cannot be written: Permission denied" in done.stdout, done.stderr
    assert "--store PATH" in done.stdout


def test_a_read_only_file_system_is_named(store: Store) -> None:
    code = "import sys, pathlib, builder.agent.store as s; s.Store(pathlib.Path(sys.argv[1])).ensure()"
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" "$1" && echo mounted && exec "$2" -c "$3" "$1"'
    done = process.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(store.root), sys.executable, code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
    )
    if "mounted" not in done.stdout:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode != 0
    assert f"the store `{store.root}` cannot be written: Read-only file system" in done.stderr
    assert "hint: give another store with `--store PATH` or ENVSPEC_STORE" in done.stderr


def test_a_probe_that_a_sweep_took_away_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes = type(store.root).write_bytes

    def write_and_lose(path: Path, content: bytes) -> int:
        written = write_bytes(path, content)
        store.sweep()
        return written

    monkeypatch.setattr(type(store.root), "write_bytes", write_and_lose)
    store.ensure()
    assert leftovers(store) == []


# -- locks ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.b", "a b", "a\n", "ä"])
def test_what_is_no_name_of_a_lock_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a lock"), store.lock(name):
        pass
    with pytest.raises(ValueError, match="not the name of a lock"), store.try_lock(name):
        pass
    assert list((store.root / "locks").iterdir()) == []


@pytest.mark.parametrize("theirs", ["alone", "shared"])
def test_a_lock_excludes_other_processes_until_they_end_however_that_is(store: Store, theirs: str) -> None:
    with Holder(store, "gc", shared=theirs == "shared"):
        with store.try_lock("gc") as held:
            assert not held
        with store.try_lock("gc-2") as held:
            assert held
    with store.try_lock("gc") as held:
        assert held


def test_a_shared_lock_admits_others_that_share(store: Store) -> None:
    with Holder(store, "gc", shared=True), store.lock("gc", shared=True), store.try_lock("gc") as alone:
        assert not alone


def test_a_lock_is_waited_for(store: Store) -> None:
    got = threading.Event()

    def take() -> None:
        with store.lock("gc"):
            got.set()

    with Holder(store, "gc"):
        thread = threading.Thread(target=take)
        thread.start()
        assert not got.is_set()
    thread.join(30)
    assert got.is_set()


def test_a_lock_excludes_another_part_of_this_process_too(store: Store) -> None:
    with store.lock("gc"), store.try_lock("gc") as held:
        assert not held


# -- what killed holders leave --------------------------------------------------------------------------------------------------------


def test_what_a_killed_holder_left_goes_with_the_next_holder(store: Store) -> None:
    with Holder(store, "env-a", leave=True) as holder:
        assert leftovers(store) == [f"env-a.{holder.child.pid}"]
    assert leftovers(store) == [f"env-a.{holder.child.pid}"]
    with store.lock("env-a"):
        mine = store.temporary("env-a")
        assert leftovers(store) == [mine.name]
        assert list(mine.iterdir()) == []


def test_a_sweep_removes_what_killed_holders_left_and_nothing_of_living_ones(store: Store) -> None:
    with Holder(store, "tree-living", leave=True) as living:
        with Holder(store, "tree-killed", leave=True):
            pass
        store.sweep()
        assert leftovers(store) == [f"tree-living.{living.child.pid}"]
        half = store.root / ".tmp" / f"tree-living.{living.child.pid}" / "half"
        assert half.read_text() == "made"
    store.sweep()
    assert leftovers(store) == []


def test_a_sweep_leaves_what_this_process_holds_itself(store: Store) -> None:
    with store.lock("env-a"):
        mine = store.temporary("env-a")
        store.sweep()
        assert mine.is_dir()


def test_temporaries_of_a_lock_whose_name_begins_alike_stay(store: Store) -> None:
    with store.lock("env-a"), store.lock("env-ab"):
        other = store.temporary("env-ab")
        store.temporary("env-a")
        assert other.is_dir()


def test_a_sweep_removes_read_only_trees_links_and_strange_files(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    tmp = store.root / ".tmp"
    deep = tmp / "env-a.1" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").write_text("")
    (deep / "link").symlink_to(outside)
    for folder in (deep, deep.parent, deep.parent.parent):
        folder.chmod(0o555)
    (tmp / "env-b.2").symlink_to(outside)
    (tmp / "a-file").write_text("")
    (tmp / "ä ö").mkdir()
    (tmp / "probe.77").write_text("")
    store.sweep()
    assert leftovers(store) == []
    assert (outside / "kept").is_file()


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_readonly_tree(tmp_path / "nothing")


# -- writing --------------------------------------------------------------------------------------------------------------------------


def test_a_file_is_written_and_overwritten_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("one\n", "two, longer\n", "3"):
        write_atomically(path, text)
        assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_text_that_cannot_be_encoded_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\udc80")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_a_writer_of_another_machine_left_goes_after_a_day(tmp_path: Path) -> None:
    """Nobody here knows whether it lives: process ids of another node say nothing."""
    dead = process.run([sys.executable, "-c", "import os; print(os.getpid())"]).stdout.strip()
    mine = process_mark().partition(".")[2]
    names = {
        "old": f".envspec-{dead}.0f0f-old",
        "new": f".envspec-{dead}.0f0f-new",
        "here": f".envspec-{dead}.{mine}-x",
    }
    for name in names.values():
        (tmp_path / name).write_text("")
    os.utime(tmp_path / names["old"], (1, 1))
    write_atomically(tmp_path / "file", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names["new"], "file"])


def test_what_a_killed_writer_left_goes_with_the_next_write_and_nothing_else_does(tmp_path: Path) -> None:
    dead = process.run([sys.executable, "-c", "import os; print(os.getpid())"]).stdout.strip()
    for name in (f".envspec-{dead}-other", f".envspec-{os.getppid()}-file", ".envspec-notes", ".other.tmp"):
        (tmp_path / name).write_text("")
    write_atomically(tmp_path / "file", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f".envspec-{os.getppid()}-file", ".envspec-notes", ".other.tmp", "file"]
    )


def test_a_name_that_is_taken_is_not_taken_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert rename_new(tmp_path / "one", tmp_path / "target")
    assert not rename_new(tmp_path / "two", tmp_path / "target")
    assert (tmp_path / "two" / "file").is_file()
    assert (tmp_path / "target" / "file").read_text() == "one"


def test_the_file_system_can_be_synced_and_an_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_filesystem(tmp_path)

    class Broken:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        @staticmethod
        def syncfs(_fd: int) -> int:
            ctypes.set_errno(errno.EIO)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Broken)
    with pytest.raises(OSError, match="Input/output error"):
        sync_filesystem(tmp_path)


# -- stamps ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "", "12x", "\xff"])
def test_a_stamp_that_cannot_be_read_proves_nothing(store: Store, content: str | None) -> None:
    tree = store.tree("0" * 64)
    if content is not None:
        tree.stamp_path.write_text(content, encoding="latin-1")
    assert tree.proven_ns() == 0


def test_a_stamp_is_read_back_to_the_nanosecond(store: Store) -> None:
    tree = store.tree("0" * 64)
    tree.stamp(1_764_470_000_123_456_789)
    assert tree.proven_ns() == 1_764_470_000_123_456_789


def test_an_object_without_its_manifest_or_its_folder_is_absent(store: Store) -> None:
    tree = store.tree("0" * 64)
    assert not tree.exists
    tree.manifest_path.write_text("")
    assert not tree.exists
    tree.path.mkdir()
    assert tree.exists
    tree.manifest_path.unlink()
    assert not tree.exists


def test_two_processes_may_ensure_and_sweep_at_once(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from builder.agent.store import Store
store = Store(Path(sys.argv[1]))
for _ in range(300):
    store.ensure()
    store.sweep()
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "store")]
    children = [process.start_worker(argv, env={"PYTHONPATH": str(REPOSITORY)}) for _ in range(3)]
    for child in children:
        assert child.wait(timeout=60) == 0
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            stream.close()


def test_stamp_of_the_future_says_nothing(store: Store) -> None:
    """A clock that was ahead made it: what is changed from now on would have an earlier change time."""
    made = store.tree("a" * 64)
    made.stamp(time.time_ns())
    assert made.proven_ns() > 0
    made.stamp(time.time_ns() + 86_400 * 10**9)
    assert made.proven_ns() == 0
