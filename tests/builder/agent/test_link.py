"""Objects are linked file by file, and what is not as proven is never linked in."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from builder.agent.link import Linked, file_rows, link_object
from builder.agent.store import StoreObject
from builder.agent.unpack import make_folders
from envspec.tree import Entry, manifest, parent_dirs
from tests.support.stores import (
    SITE,
    InlinePool,
    add_wheel,
    edit_in_place,
    make_objects,
    make_plan,
    new_store,
    outlast,
    unlock,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODULE = f"{SITE}/alpha/__init__.py"
TOOL = f"{SITE}/alpha/tool"
NOTHING: frozenset[str] = frozenset()


class Bench:
    """An object of a store, proven as a build would leave it, and places to link it to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = new_store(folder / "store")
        files = {"alpha/__init__.py": "x = 1\n", "alpha/inner/a b ü.txt": "text", "alpha/tool": "#!/bin/sh\n"}
        part = add_wheel(store, "alpha", files, executable=["alpha/tool"])
        proven = make_objects(store, make_plan(store, [part]), InlinePool(store))
        self.tree = store.tree(part.tree)
        self.proven_ns = proven["trees", part.tree]
        self.rows = list(file_rows(self.tree.manifest_path.read_text(encoding="ascii")))
        self.paths = [path for path, *_ in self.rows]

    def target(self, name: str = "target") -> Path:
        root = self.folder / name
        root.mkdir()
        make_folders(root, parent_dirs(self.paths))
        return root

    def prove(self, *, skip: frozenset[str] = NOTHING) -> Linked:
        return link_object(self.tree, None, skip=skip, proven_ns=self.proven_ns)

    def link(self, name: str = "target", *, skip: frozenset[str] = NOTHING) -> Linked:
        linked = link_object(self.tree, self.target(name), skip=skip, proven_ns=self.proven_ns)
        self.proven_ns = linked.proven_ns
        return linked


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def files_below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}


def test_every_file_is_linked_with_its_mode_and_nothing_is_read_again(bench: Bench) -> None:
    linked = bench.link()
    target = bench.folder / "target"
    assert (linked.files, linked.rehashed, linked.corrupt) == (len(bench.paths), 0, ())
    assert files_below(target) == set(bench.paths)
    for path, mode, _, size in bench.rows:
        status = (target / path).lstat()
        assert os.path.samestat(status, (bench.tree.path / path).lstat())
        assert (stat.S_IMODE(status.st_mode), status.st_size) == (mode, size)
    assert {path: mode for path, mode, *_ in bench.rows}[TOOL] == 0o555


def test_the_new_stamp_covers_the_links_so_that_the_next_build_reads_nothing(bench: Bench) -> None:
    before = bench.proven_ns
    outlast(bench.folder, before)
    assert bench.link("one").proven_ns > before
    assert bench.link("two").rehashed == 0
    assert bench.link("three", skip=frozenset({MODULE})).rehashed == 0
    assert bench.prove().rehashed == 0


def test_links_that_others_made_since_cost_reading_and_no_more(bench: Bench) -> None:
    outlast(bench.folder, bench.proven_ns)
    os.link(bench.tree.path / MODULE, bench.folder / "elsewhere")
    linked = bench.link()
    assert (linked.rehashed, linked.corrupt) == (1, ())
    assert bench.prove().rehashed == 0


def test_a_change_and_back_again_is_read_and_found_right(bench: Bench) -> None:
    path = bench.tree.path / MODULE
    edit_in_place(path, b"x = 2\n")
    edit_in_place(path, b"x = 1\n")
    linked = bench.prove()
    assert (linked.rehashed, linked.corrupt) == (1, ())
    assert linked.proven_ns >= path.stat().st_ctime_ns


def test_without_a_stamp_everything_is_read(bench: Bench) -> None:
    linked = link_object(bench.tree, None, skip=NOTHING, proven_ns=0)
    assert (linked.files, linked.rehashed, linked.corrupt) == (0, len(bench.paths), ())
    assert linked.proven_ns == max((bench.tree.path / path).lstat().st_ctime_ns for path in bench.paths)


def test_an_edit_in_place_with_its_times_put_back_is_corrupt_and_not_linked(bench: Bench) -> None:
    path = bench.tree.path / MODULE
    before = path.stat()
    edit_in_place(path, b"x = 2\n")
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_mode) == (before.st_size, before.st_mtime_ns, before.st_mode)
    linked = bench.link()
    assert linked.corrupt == (MODULE,)
    assert files_below(bench.folder / "target") == set(bench.paths) - {MODULE}


def _edit(path: Path) -> None:
    edit_in_place(path, b"x = 3\n")


def _lengthen(path: Path) -> None:
    edit_in_place(path, b"x = 10\n")


def _make_writable(path: Path) -> None:
    path.chmod(0o644)


def _make_executable(path: Path) -> None:
    path.chmod(0o555)


def _make_setuid(path: Path) -> None:
    path.chmod(0o4444)


def _remove(path: Path) -> None:
    path.unlink()


def _link_to_the_same_content(path: Path) -> None:
    copy = path.with_name("copy")
    path.rename(copy)
    path.symlink_to("copy")


def _put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o444)


def _put_a_file_for_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("")


@pytest.mark.parametrize(
    "tamper",
    [
        _edit,
        _lengthen,
        _make_writable,
        _make_executable,
        _make_setuid,
        _remove,
        _link_to_the_same_content,
        _put_a_folder,
        _put_a_pipe,
    ],
)
@pytest.mark.parametrize("skipped", ["skipped", "linked"])
def test_what_is_not_as_proven_is_corrupt_whether_it_is_linked_or_not(
    bench: Bench, tamper: Callable[[Path], None], skipped: str
) -> None:
    unlock((bench.tree.path / MODULE).parent, bench.tree.path)
    tamper(bench.tree.path / MODULE)
    linked = bench.link(skip=frozenset({MODULE}) if skipped == "skipped" else NOTHING)
    assert linked.corrupt == (MODULE,)
    assert not os.path.lexists(bench.folder / "target" / MODULE)


def test_a_file_in_the_place_of_a_folder_makes_all_below_corrupt(bench: Bench) -> None:
    for folder in (bench.tree.path / SITE / "alpha").rglob("inner"):
        unlock(folder, bench.tree.path)
    _put_a_file_for_its_folder(bench.tree.path / MODULE)
    linked = bench.prove()
    assert set(linked.corrupt) == {path for path in bench.paths if path.startswith(f"{SITE}/alpha/")}


def test_a_new_file_with_the_right_content_is_read_and_linked(bench: Bench) -> None:
    path = bench.tree.path / MODULE
    outlast(bench.folder, bench.proven_ns)
    unlock(path.parent, bench.tree.path)
    path.unlink()
    path.write_text("x = 1\n")
    path.chmod(0o444)
    linked = bench.link()
    assert (linked.rehashed, linked.corrupt) == (1, ())


def test_skipped_paths_are_proven_and_not_linked(bench: Bench) -> None:
    linked = bench.link(skip=frozenset({MODULE, TOOL}))
    assert linked.files == len(bench.paths) - 2
    assert files_below(bench.folder / "target") == set(bench.paths) - {MODULE, TOOL}


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_where_no_link_can_be_made_an_own_copy_is(bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    outlast(bench.folder, bench.proven_ns)
    linked = bench.link()
    target = bench.folder / "target"
    assert (linked.files, linked.corrupt) == (len(bench.paths), ())
    for path, mode, _, _ in bench.rows:
        status = (target / path).lstat()
        assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (mode, 1)
        assert (target / path).read_bytes() == (bench.tree.path / path).read_bytes()
        assert status.st_ctime_ns <= linked.proven_ns, "the stamp covers the copies"


def test_a_copy_that_differs_from_its_source_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def lose(_source: object, _target: object, _length: int) -> None:
        pass

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copyfileobj", lose)
    with pytest.raises(OSError, match="the copy differs from its source"):
        bench.link()


def test_any_other_failure_of_a_link_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="No space"):
        bench.link()


def test_rows_are_those_of_the_manifest_whatever_the_path(tmp_path: Path) -> None:
    entries = [
        Entry("a b/ü=\\.py", "file", "1" * 64, 3, executable=True),
        Entry("plain", "file", "2" * 64, 0),
        Entry("link", "link", target="plain"),
    ]
    source = StoreObject(tmp_path / "object")
    source.manifest_path.write_text(manifest(entries), encoding="ascii")
    assert list(file_rows(source.manifest_path.read_text(encoding="ascii"))) == [
        ("a b/ü=\\.py", 0o555, "1" * 64, 3),
        ("plain", 0o444, "2" * 64, 0),
    ]
