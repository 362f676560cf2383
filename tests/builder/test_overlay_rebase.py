"""A series on another version of its package: carried, recognised as there already, or left as a conflict that a person can resolve."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.overlay_editing import edit, save
from builder.overlay_rebase import Rebased, TargetWheel, rebase
from envspec.errors import EnvspecError
from tests.support.worktrees import MadeOverlay, copy_overlay, make_overlay

if TYPE_CHECKING:
    from pathlib import Path

LINES = [f"line {number}\n" for number in range(1, 21)]
BASE = {"demo/one.py": "".join(LINES), "demo/two.py": "a\nb\nc\n", "demo/three.py": "x\n"}


def patch(title: str, path: str, line: int, old: str, new: str) -> str:
    return f"{title}\n\nPurpose: so\n\n--- a/{path}\n+++ b/{path}\n@@ -{line} +{line} @@\n-{old}\n+{new}\n"


PATCHES = {
    "0001-first.patch": patch("first", "demo/one.py", 3, "line 3", "LINE 3"),
    "0002-second.patch": patch("second", "demo/two.py", 2, "b", "B"),
    "0003-third.patch": patch("third", "demo/one.py", 15, "line 15", "LINE 15"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> MadeOverlay:
    overlay = make_overlay(tmp_path_factory.mktemp("original"), BASE, PATCHES)
    edit(overlay.task)
    return overlay


@pytest.fixture
def made(original: MadeOverlay, tmp_path: Path) -> MadeOverlay:
    """A series of three patches, and its work tree."""
    return copy_overlay(original, tmp_path)


def next_version(made: MadeOverlay, **changes: str | None) -> Rebased:
    """Carry the series to version 1.1, in which some files are others."""
    files = {**BASE, **{f"demo/{name}.py": content for name, content in changes.items()}}
    target = made.add_version("1.1", {path: content for path, content in files.items() if content is not None})
    before = made.series_files()
    rebased = rebase(made.task, target)
    assert made.series_files() == before
    return rebased


def results(rebased: Rebased) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.name.removesuffix(".patch"), one.result, one.files) for one in rebased.patches]


def test_patches_are_carried_to_where_their_lines_are_now(made: MadeOverlay) -> None:
    rebased = next_version(made, one="new\nnew\n" + BASE["demo/one.py"])
    assert [result for _, result, _ in results(rebased)] == ["carried"] * 3
    assert (rebased.old.version, rebased.new.version, rebased.moved, rebased.conflicts) == ("1.0", "1.1", True, False)
    saved = save(made.task)
    assert [patch.status for patch in saved.patches] == ["changed", "unchanged", "changed"]
    assert saved.base == rebased.new
    text = made.patch("0001-first.patch")
    assert text.startswith("first\n\nPurpose: so\n\n")
    assert "@@ -2,7 +2,7 @@" in text
    assert made.git("status", "--porcelain") == ""
    assert "1.1, the base wheel" in made.git("log", "--format=%s")


def test_patches_that_still_fit_keep_their_bytes(made: MadeOverlay) -> None:
    before = made.series_files()
    next_version(made, three="y\n")
    saved = save(made.task)
    assert not saved.written
    assert made.series_files() == before


def test_patch_that_the_new_version_has_is_dropped_and_said_to_be_there(made: MadeOverlay) -> None:
    rebased = next_version(made, two="a\nB\nc\n")
    assert results(rebased) == [
        ("0001-first", "carried", ()),
        ("0002-second", "upstream", ()),
        ("0003-third", "carried", ()),
    ]
    saved = save(made.task)
    assert [(patch.name, patch.status) for patch in saved.patches] == [
        ("0001-first.patch", "unchanged"),
        ("0003-third.patch", "unchanged"),
        ("0002-second.patch", "removed"),
    ]
    assert made.names() == ["0001-first.patch", "0003-third.patch"]


def test_conflict_is_told_by_patch_and_file_and_can_be_resolved(made: MadeOverlay) -> None:
    changed = BASE["demo/one.py"].replace("line 3\n", "line three\n").replace("line 15\n", "line fifteen\n")
    rebased = next_version(made, one=changed, two="a\nbee\nc\n")
    assert rebased.conflicts
    assert results(rebased) == [
        ("0001-first", "conflict", ("demo/one.py",)),
        ("0002-second", "later", ("demo/two.py",)),
        ("0003-third", "later", ()),  # its file was told
    ]
    assert "<<<<<<< " in (made.tree / "demo/one.py").read_text()
    target = TargetWheel(version="1.0", file="demo-1.0-py3-none-any.whl", path=made.task.base_wheel())
    for act in (lambda: save(made.task), lambda: rebase(made.task, target)):
        with pytest.raises(EnvspecError, match="a rebase is under way") as caught:
            act()
        assert "git rebase --continue" in caught.value.hint
    assert not edit(made.task).made
    made.write("demo/one.py", changed.replace("line three", "LINE three"))
    made.git("add", "-A")
    made.git("rebase", "--continue", check=False)
    made.write("demo/two.py", "a\nBEE\nc\n")
    made.git("add", "-A")
    made.git("rebase", "--continue", check=False)
    made.git("rebase", "--skip")
    saved = save(made.task)
    assert [(patch.name, patch.status) for patch in saved.patches] == [
        ("0001-first.patch", "changed"),
        ("0002-second.patch", "changed"),
        ("0003-third.patch", "removed"),
    ]
    assert made.patch("0001-first.patch").startswith("first\n\nPurpose: so\n\ndiff --git ")
    assert "-bee\n+BEE\n" in made.patch("0002-second.patch")


def test_conflict_that_is_committed_with_its_marks_is_not_saved(made: MadeOverlay) -> None:
    next_version(made, three="y\n", two="a\nbee\nc\n")
    made.git("add", "-A")
    made.git("rebase", "--continue")
    with pytest.raises(EnvspecError, match="commits cannot be written as patches") as caught:
        save(made.task)
    assert "`demo/two.py` has the marks of a conflict" in str(caught.value)


def test_file_that_is_gone_is_a_conflict(made: MadeOverlay) -> None:
    rebased = next_version(made, two=None)
    assert results(rebased)[1:] == [("0002-second", "conflict", ("demo/two.py",)), ("0003-third", "later", ())]


def test_file_that_moved_is_followed(made: MadeOverlay) -> None:
    rebased = next_version(made, one=None, other=BASE["demo/one.py"])
    assert [result for _, result, _ in results(rebased)] == ["carried"] * 3
    save(made.task)
    assert "--- a/demo/other.py\n" in made.patch("0001-first.patch")


def test_abort_leads_back_and_the_series_is_as_it_was(made: MadeOverlay) -> None:
    before = made.git("rev-parse", "overlay")
    assert next_version(made, two="x\n").conflicts
    made.git("rebase", "--abort")
    assert made.git("rev-parse", "HEAD", "overlay").split() == [before.strip()] * 2
    saved = save(made.task)
    assert not saved.written
    assert saved.base.version == "1.0"


def test_rebase_there_and_back_gives_the_same_commits(made: MadeOverlay) -> None:
    head = made.git("rev-parse", "HEAD")
    next_version(made, one="new\n" + BASE["demo/one.py"])
    assert made.git("rev-parse", "HEAD") != head
    back = made.add_version("1.0", BASE)
    assert rebase(made.task, back).moved
    assert made.git("rev-parse", "HEAD") == head
    again = rebase(made.task, back)
    assert (again.moved, again.patches) == (False, ())
    assert not save(made.task).written


def test_commits_that_are_not_saved_are_carried_too(made: MadeOverlay) -> None:
    made.commit("fourth", {"demo/three.py": "z\n"})
    rebased = next_version(made, one="new\n" + BASE["demo/one.py"])
    assert results(rebased)[-1] == ("0004-fourth", "carried", ())
    assert [patch.name for patch in save(made.task).patches][-1] == "0004-fourth.patch"


@pytest.mark.parametrize("work", ["dirty", "series", "merge"])
def test_rebase_of_what_could_not_be_saved_is_refused_and_changes_nothing(made: MadeOverlay, work: str) -> None:
    if work == "dirty":
        made.write("demo/one.py", "x\n")
        told = "1 file is not committed"
    elif work == "series":
        made.series.write_text("0001-first.patch\n")
        told = "the series on disk has changed"
    else:
        made.git("checkout", "-q", "-b", "side", "HEAD~1")
        made.commit("side", {"demo/three.py": "z\n"})
        made.git("merge", "-q", "--no-edit", "overlay")
        told = "a commit is a merge"
    head = made.git("rev-parse", "HEAD")
    with pytest.raises(EnvspecError, match=told):
        next_version(made)
    assert made.git("rev-parse", "HEAD") == head


def test_rebase_that_was_killed_before_git_began_is_begun_again(made: MadeOverlay) -> None:
    state = (made.tree / ".git/envspec.json").read_bytes()
    head = made.git("rev-parse", "HEAD").strip()
    assert next_version(made, two="a\nbee\nc\n").conflicts
    made.git("rebase", "--abort")
    (made.tree / ".git/envspec.json").write_bytes(state)  # what git has been told is there, its record is not
    assert made.git("rev-parse", "HEAD").strip() == head
    assert next_version(made, two="a\nbee\nc\n").conflicts
    made.git("rebase", "--skip")
    assert save(made.task).base.version == "1.1"


def test_old_git_tells_the_first_conflict_only(made: MadeOverlay) -> None:
    old = MadeOverlay(
        task=replace(made.task, git=replace(made.task.git, version=(2, 34))), home=made.home, wheels=made.wheels
    )
    rebased = next_version(old, one=BASE["demo/one.py"].replace("line 3\n", "three\n"), two="x\n")
    assert results(rebased) == [
        ("0001-first", "conflict", ("demo/one.py",)),
        ("0002-second", "later", ()),
        ("0003-third", "later", ()),
    ]


def test_base_that_left_the_store_is_named_with_how_to_get_it(made: MadeOverlay) -> None:
    next_version(made, one="new\n" + BASE["demo/one.py"])
    made.wheels.clear()
    with pytest.raises(
        EnvspecError, match=r"demo-1\.1-py3-none-any\.whl with sha256 \w{64} is not in the store"
    ) as caught:
        save(made.task)
    assert "envspec overlay rebase demo --to 1.1" in caught.value.hint


def test_lock_that_has_moved_to_the_new_version_is_satisfied(made: MadeOverlay) -> None:
    target = made.add_version("1.1", {**BASE, "demo/three.py": "y\n"})
    moved = made.locked_to(target)
    with pytest.raises(EnvspecError, match="the work tree stands on demo"):
        save(moved.task)
    rebase(moved.task, target)
    assert not save(moved.task).written
    assert not edit(moved.task).made
