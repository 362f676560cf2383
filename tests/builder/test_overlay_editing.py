"""A series into a git work tree and back: byte for byte, whatever git's user configured, and nothing that an overlay may not do."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.agent.store import write_atomically
from builder.overlay import build_patched_wheel, read_series
from builder.overlay_editing import Saved, edit, save
from builder.overlay_worktree import locked_work_tree
from envspec.errors import EnvspecError
from envspec.patch_writing import FileEdit, render_diff
from tests.support.wheels import make_wheel
from tests.support.worktrees import MadeOverlay, copy_overlay, make_overlay

if TYPE_CHECKING:
    from collections.abc import Callable

TWO_FUNCTIONS = "def a():\n    return 1\n\n\ndef c():\n    return 3\n"
BASE: dict[str, bytes | str] = {
    "demo/__init__.py": "",
    "demo/one.py": "x = 1\n",
    "demo/two.py": TWO_FUNCTIONS,
    "demo/run.sh": "#!/bin/sh\n",
    "demo/crlf.txt": "a\r\nb\r\n",
    "demo/lib.so": b"\x7fELF\0\0",
    "demo/.gitattributes": "* filter=shout\n",
    "demo/ü.txt": "ü",
}
ONE = "x: be two\n\nPurpose: to be two\n# no comment\n\n--- a/demo/one.py\n+++ b/demo/one.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TWO = "diff --git a/demo/new.sh b/demo/new.sh\nnew file mode 100755\n--- /dev/null\n+++ b/demo/new.sh\n@@ -0,0 +1 @@\n+echo\n"
THREE = (
    "Three files\n\n--- a/demo/one.py\n+++ b/demo/one.py\n@@ -1 +1,2 @@\n x = 2\n+y = 3\n--- a/demo/crlf.txt\n+++ b/demo/crlf.txt\n"
    "@@ -1,2 +1,2 @@\n-a\r\n+z\r\n b\r\n--- a/demo/ü.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-ü\n\\ No newline at end of file\n-- \n2.39.5\n"
)
PATCHES = {"0001-one.patch": ONE, "0002-two.patch": TWO, "0003-three.patch": THREE}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> MadeOverlay:
    """A series of three patches, and its work tree; to be copied."""
    overlay = make_overlay(
        tmp_path_factory.mktemp("original"), BASE, PATCHES, comment="# why\n", executable=["demo/run.sh"]
    )
    edit(overlay.task)
    return overlay


@pytest.fixture
def made(original: MadeOverlay, tmp_path: Path) -> MadeOverlay:
    """A series of three patches, and its work tree."""
    return copy_overlay(original, tmp_path)


def statuses(saved: Saved) -> list[tuple[str, str]]:
    return [(patch.name, patch.status) for patch in saved.patches]


def refused(act: Callable[[], object]) -> EnvspecError:
    with pytest.raises(EnvspecError) as caught:
        act()
    return caught.value


def save_refused(made: MadeOverlay) -> str:
    """Save, and see that it is refused and touches nothing."""
    before = made.series_files()
    error = refused(lambda: save(made.task))
    assert error.exit_code == 1
    assert error.hint or any(problem.hint for problem in error.problems)
    assert made.series_files() == before
    return str(error)


# edit


def test_edit_gives_the_base_and_one_commit_a_patch(made: MadeOverlay) -> None:
    log = made.git("log", "--reverse", "--format=%an <%ae> %at %s").splitlines()
    assert log == [
        "envspec <envspec@localhost> 315532800 demo 1.0, the base wheel",
        "envspec <envspec@localhost> 315532800 x: be two",
        "envspec <envspec@localhost> 315532800 two",
        "envspec <envspec@localhost> 315532800 Three files",
    ]
    assert made.git("log", "-1", "--format=%B", "HEAD~2") == "x: be two\n\nPurpose: to be two\n# no comment\n\n"
    base = made.git("log", "-1", "--format=%B", "HEAD~3")
    assert f"sha256:   {made.task.package.sha256}\n" in base
    assert "left out: 2 files" in base
    assert made.git("status", "--porcelain") == ""
    assert made.git("ls-files").splitlines() == sorted(
        ["demo/__init__.py", "demo/crlf.txt", "demo/new.sh", "demo/one.py", "demo/run.sh", "demo/two.py"]
    )
    assert (made.tree / "demo/one.py").read_bytes() == b"x = 2\ny = 3\n"
    assert (made.tree / "demo/crlf.txt").read_bytes() == b"z\r\nb\r\n"
    modes = {name: (made.tree / "demo" / name).stat().st_mode & stat.S_IXUSR for name in ("run.sh", "new.sh", "one.py")}
    assert modes == {"run.sh": stat.S_IXUSR, "new.sh": stat.S_IXUSR, "one.py": 0}


def test_edit_says_what_is_left_out(tmp_path: Path) -> None:
    overlay = make_overlay(tmp_path, BASE, PATCHES)
    edited = edit(overlay.task)
    assert edited.made
    assert edited.left_out == ("demo/.gitattributes", "demo/lib.so")
    assert edited.patches == tuple(PATCHES)
    assert edited.base.sha256 == overlay.task.package.sha256


def test_first_commit_has_the_same_id_for_everyone(made: MadeOverlay) -> None:
    assert made.git("rev-list", "--max-parents=0", "HEAD").strip() == "a0f1f7991d2c93c11691883a7e56ee29ea5a1918"


def test_edit_of_what_is_there_changes_nothing(made: MadeOverlay) -> None:
    made.commit("more", {"demo/one.py": "x = 5\n"})
    head = made.git("rev-parse", "HEAD")
    assert not edit(made.task).made
    assert made.git("rev-parse", "HEAD") == head


def test_edit_makes_a_work_tree_anew_if_the_series_changed_and_nothing_would_be_lost(made: MadeOverlay) -> None:
    made.series.write_text("0001-one.patch\n")
    assert edit(made.task).made
    assert made.git("rev-list", "--count", "HEAD").strip() == "2"
    assert [path.name for path in made.tree.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("work", ["commit", "file", "new file"])
def test_edit_never_throws_work_away(made: MadeOverlay, work: str) -> None:
    if work == "commit":
        made.commit("more", {"demo/one.py": "x = 5\n"})
    else:
        made.write("demo/one.py" if work == "file" else "demo/new.py", "x = 5\n")
    made.series.write_text("0001-one.patch\n")
    error = refused(lambda: edit(made.task))
    assert "the series on disk has changed since the work tree was made" in str(error)
    assert "--dir" in error.hint


def test_edit_takes_a_folder_that_is_empty_and_no_other(tmp_path: Path) -> None:
    overlay = make_overlay(tmp_path, BASE, PATCHES)
    overlay.tree.mkdir()
    assert edit(overlay.task).made
    other = replace(overlay.task, folder=tmp_path / "home")
    assert "is there and no work tree of envspec" in str(refused(lambda: edit(other)))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "home")
    assert "no work tree of envspec" in str(refused(lambda: edit(replace(overlay.task, folder=link))))


def test_edit_without_a_series_gives_the_base_and_save_makes_the_series(tmp_path: Path) -> None:
    overlay = make_overlay(tmp_path, BASE)
    assert edit(overlay.task).patches == ()
    assert "the series would be empty" in str(refused(lambda: save(overlay.task)))
    overlay.commit("one: be two\n\nPurpose: so\n", {"demo/one.py": "x = 2\n"})
    assert statuses(save(overlay.task)) == [("0001-one-be-two.patch", "new")]
    assert set(overlay.series_files()) == {"series", "0001-one-be-two.patch"}
    assert overlay.patch("0001-one-be-two.patch") == (
        "one: be two\n\nPurpose: so\n\ndiff --git a/demo/one.py b/demo/one.py\nindex 7d4290a117a4..407de3068e7b 100644\n"
        "--- a/demo/one.py\n+++ b/demo/one.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    )


def test_series_that_is_no_file_gives_no_work_tree(tmp_path: Path) -> None:
    overlay = make_overlay(tmp_path, BASE, PATCHES)
    overlay.series.unlink()
    os.mkfifo(overlay.series)
    assert "there is no file `series`" in str(refused(lambda: edit(overlay.task)))
    assert not overlay.tree.exists()


def test_series_that_does_not_fit_gives_no_work_tree(tmp_path: Path) -> None:
    overlay = make_overlay(tmp_path, BASE, {**PATCHES, "0004.patch": ONE})
    assert "0004.patch: demo/one.py: hunk 1 of 1" in str(refused(lambda: edit(overlay.task)))
    assert not overlay.tree.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "overlays", "wheels"]


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "leaves the wheel"),
        ("--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+touch /tmp/x\n", "is one of git's own names"),
        ("--- /dev/null\n+++ b/demo/.GitModules\n@@ -0,0 +1 @@\n+x\n", "is one of git's own names"),
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n",
            "a symbolic link",
        ),
        ("--- /dev/null\n+++ b/demo-1.0.dist-info/x\n@@ -0,0 +1 @@\n+x\n", "`.dist-info`"),
        ("a\0b\n--- a/demo/one.py\n+++ b/demo/one.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n", "there is a NUL byte"),
        ("--- /dev/null\n+++ b/demo/one.py/x\n@@ -0,0 +1 @@\n+x\n", "cannot be brought into a git work tree and back"),
    ],
)
def test_hostile_patch_gives_no_work_tree(tmp_path: Path, patch: str, told: str) -> None:
    overlay = make_overlay(tmp_path, BASE, {"0001.patch": patch})
    assert told in str(refused(lambda: edit(overlay.task)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "overlays", "wheels"]


def test_hostile_members_of_a_base_wheel_stay_out_of_the_work_tree(tmp_path: Path) -> None:
    base = {
        "demo/one.py": "x = 1\n",
        ".git/hooks/post-checkout": "#!/bin/sh\ntouch done\n",
        ".git/config": "[core]\n",
        "demo/.gitmodules": "x",
    }
    overlay = make_overlay(tmp_path, base, {"0001-one.patch": ONE})
    assert edit(overlay.task).left_out == (".git/config", ".git/hooks/post-checkout", "demo/.gitmodules")
    assert not (overlay.tree / ".git" / "hooks").exists()
    assert not save(overlay.task).written


@pytest.mark.parametrize("options", [{"symlinks": {"demo/link": "/etc/passwd"}}, {"raw_members": [("../x", b"")]}])
def test_hostile_base_wheel_gives_no_work_tree(tmp_path: Path, options: dict[str, object]) -> None:
    overlay = make_overlay(tmp_path, BASE, PATCHES)
    wheel = make_wheel(tmp_path / "bad", "demo", "1.0", BASE, **options)  # type: ignore[arg-type]
    assert "not that of an honest wheel" in str(refused(lambda: edit(replace(overlay.task, base_wheel=lambda: wheel))))
    assert not overlay.tree.exists()


# save


def test_saving_what_was_not_changed_changes_not_a_byte(made: MadeOverlay) -> None:
    before = made.series_files()
    moments = {path.name: path.stat().st_mtime_ns for path in made.series.parent.iterdir()}
    saved = save(made.task)
    assert not saved.written
    assert statuses(saved) == [(name, "unchanged") for name in PATCHES]
    assert made.series_files() == before
    assert {path.name: path.stat().st_mtime_ns for path in made.series.parent.iterdir()} == moments


def test_new_commit_becomes_a_patch_and_the_others_keep_their_bytes(made: MadeOverlay) -> None:
    before = made.series_files()
    added = TWO_FUNCTIONS.replace("1\n", "1\n\n\ndef b():\n    return 2\n")
    made.commit("two: add b\n\nWhy: so\n", {"demo/two.py": added})
    saved = save(made.task)
    assert saved.written
    assert statuses(saved)[-1] == ("0004-two-add-b.patch", "new")
    after = made.series_files()
    assert after.pop("0004-two-add-b.patch").startswith(
        b"two: add b\n\nWhy: so\n\ndiff --git a/demo/two.py b/demo/two.py\n"
    )
    assert after.pop("series") == before.pop("series") + b"0004-two-add-b.patch\n"
    assert after == before
    assert not save(made.task).written


def test_amended_reordered_and_dropped_commits(made: MadeOverlay) -> None:
    base = made.git("rev-list", "--max-parents=0", "HEAD").strip()
    made.git("checkout", "-q", base)
    made.commit("x: be two\n\nPurpose: to be two\n# no comment", {"demo/one.py": "x = 1\nx = 2\n"})
    made.git("cherry-pick", "overlay~1")
    saved = save(made.task)
    assert statuses(saved) == [
        ("0001-one.patch", "changed"),
        ("0002-two.patch", "unchanged"),
        ("0003-three.patch", "removed"),
    ]
    assert set(made.series_files()) == {"series", "0001-one.patch", "0002-two.patch"}
    assert made.series.read_text() == "# why\n0001-one.patch\n0002-two.patch\n"
    assert made.patch("0001-one.patch").startswith("x: be two\n\nPurpose: to be two\n# no comment\n\ndiff --git ")
    # The other way round.
    made.git("checkout", "-q", "-B", "overlay", base)
    made.git("cherry-pick", "HEAD@{1}", "HEAD@{1}~1")
    saved = save(made.task)
    assert [(patch.name, patch.status, patch.old_name) for patch in saved.patches] == [
        ("0001-two.patch", "unchanged", "0002-two.patch"),
        ("0002-one.patch", "unchanged", "0001-one.patch"),
    ]
    assert set(made.series_files()) == {"series", "0001-two.patch", "0002-one.patch"}


def test_saved_series_gives_the_committed_files(made: MadeOverlay) -> None:
    made.commit("more", {"demo/one.py": "x = 7", "demo/new.sh": None, "demo/deep/er.py": "y\n"})
    save(made.task)
    patched = build_patched_wheel(made.task.base_wheel(), read_series(made.series), destination_dir=made.home)
    changed = {file.path for file in patched.files}
    assert changed == {"demo/one.py", "demo/crlf.txt", "demo/ü.txt", "demo/deep/er.py"}


def test_new_executable_file_keeps_its_mode(made: MadeOverlay) -> None:
    made.write("demo/tool", "#!/bin/sh\n")
    (made.tree / "demo/tool").chmod(0o755)
    made.git("add", "-A")
    made.git("commit", "-qm", "tool")
    save(made.task)
    assert "new file mode 100755" in made.patch("0004-tool.patch")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("demo/one.py", "demo/one.py"),
        ("demo/new.txt", "demo/new.txt (new)"),
        ("demo/.gitignore", "demo/.gitignore (new)"),
    ],
)
def test_what_is_not_committed_is_refused_with_what_to_do(made: MadeOverlay, path: str, told: str) -> None:
    made.write(path, "*\n")
    message = save_refused(made)
    assert "1 file is not committed" in message
    assert told in message
    assert "git commit --amend" in message
    made.git("add", "-A", "-f")
    assert "1 file is not committed" in save_refused(made)


def test_bytecode_and_caches_of_tools_are_looked_past(made: MadeOverlay) -> None:
    for path in ("demo/__pycache__/one.pyc", ".mypy_cache/x", ".ruff_cache/y"):
        made.write(path, "x")
    assert not save(made.task).written
    made.git("add", "-A")
    assert not save(made.task).written


def add_link(made: MadeOverlay) -> None:
    (made.tree / "demo/link").symlink_to("/etc/passwd")


def add_repository(made: MadeOverlay) -> None:
    made.git("init", "-q", "inner")
    made.git(
        "-C",
        "inner",
        "-c",
        "user.name=x",
        "-c",
        "user.email=x",
        "-c",
        "commit.gpgsign=0",
        "commit",
        "--allow-empty",
        "-nqm",
        "x",
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda made: made.write("demo/new.bin", b"\0\1"), "`demo/new.bin` is binary"),
        (add_link, "`demo/link` is a symbolic link"),
        (add_repository, "`inner` is a git repository of its own"),
        (lambda made: (made.tree / "demo/one.py").chmod(0o755), "has its mode changed from 100644 to 100755"),
        (lambda made: made.write("demo-1.0.dist-info/x", "x"), "`.dist-info`"),
        (lambda made: made.write("demo.data/scripts/x", "x"), "`.data` folder"),
        (lambda made: made.write("demo/.gitattributes", "x"), "is one of git's own names"),
        (lambda made: made.write("demo/a\\b", "x"), "has a backslash or a control character"),
        (lambda made: made.write("demo/a\nb", "x"), "has a backslash or a control character"),
        (lambda made: made.write("demo/\x1b[31m", "x"), "has a backslash or a control character"),
        (lambda made: made.write('demo/a"b', "x"), "has a quotation mark"),
        (lambda made: made.write("c:x", "x"), "leaves the wheel or is not in its plain form"),
        (lambda made: (made.tree / os.fsdecode(b"demo/\xff")).touch(), "has a backslash or a control character"),
        (lambda made: made.write("demo/__pycache__/x.py", "x"), "is in `__pycache__`"),
        (lambda made: made.write("demo/lib.so", "text"), "demo/lib.so: the file is to be added, and is there"),
        (
            lambda made: made.write("demo/one.py", "<<<<<<< HEAD\nx\n=======\ny\n>>>>>>> z\n"),
            "has the marks of a conflict",
        ),
    ],
)
def test_commit_that_does_what_an_overlay_may_not_is_refused(
    made: MadeOverlay, change: Callable[[MadeOverlay], object], told: str
) -> None:
    change(made)
    made.git("-c", "core.fileMode=true", "add", "-A", "-f")
    made.git("commit", "-qm", "what it does")
    message = save_refused(made)
    assert told in message
    assert "\x1b" not in message
    message.encode()


def test_problems_of_all_commits_are_told_at_once(made: MadeOverlay) -> None:
    made.commit("one", {"demo/.gitignore": "x"})
    made.commit("two", {"x.data/y": "x"})
    message = save_refused(made)
    assert "`one`: `demo/.gitignore`" in message
    assert "`two`: `x.data/y`" in message


def test_merge_is_refused(made: MadeOverlay) -> None:
    made.git("checkout", "-q", "-b", "side", "HEAD~1")
    made.commit("side", {"demo/two.py": "x\n"})
    made.git("checkout", "-q", "overlay")
    made.git("merge", "-q", "--no-edit", "side")
    message = save_refused(made)
    assert "a commit is a merge" in message
    assert "git rebase" in message


@pytest.mark.parametrize(
    ("commands", "told"),
    [
        (
            [["checkout", "-q", "--orphan", "other"], ["commit", "-qm", "x"]],
            "do not stand on the commit of the base wheel",
        ),
        (
            [["checkout", "-q", "HEAD~3"], ["commit", "-q", "--amend", "-m", "x"]],
            "do not stand on the commit of the base wheel",
        ),
        ([["commit", "-q", "--allow-empty", "-m", "nothing"]], "`nothing`: it changes nothing"),
        ([["commit", "-q", "--allow-empty-message", "-m", "", "--amend"]], "it has no message"),
        ([["commit", "-q", "--amend", "-m", "fixup! x"]], "it is meant for another commit"),
        ([["reset", "-q", "--hard", "HEAD~3"]], "the series would be empty"),
    ],
)
def test_commits_that_are_no_series_are_refused(made: MadeOverlay, commands: list[list[str]], told: str) -> None:
    for command in commands:
        made.git(*command)
    assert told in save_refused(made)


@pytest.mark.parametrize("verb", ["rebase", "cherry-pick", "merge", "revert"])
def test_half_done_operation_of_git_is_refused_by_name(made: MadeOverlay, verb: str) -> None:
    made.git("checkout", "-q", "-b", "side", "HEAD~1")
    made.commit("side", {"demo/one.py": "x = 9\n"})
    made.git("checkout", "-q", "overlay")
    made.git(verb, *(["HEAD~2"] if verb == "revert" else ["side"]), check=False)
    message = save_refused(made)
    assert f"a {verb} is under way" in message
    assert f"git {verb} --abort" in message


def test_series_that_someone_else_changed_is_not_written_over(made: MadeOverlay) -> None:
    made.commit("more", {"demo/two.py": "x\n"})
    (made.series.parent / "0003-three.patch").write_text(THREE.replace("Three", "3"))
    message = save_refused(made)
    assert "the series on disk has changed since the work tree was made" in message
    assert "`0003-three.patch`" in message
    (made.series.parent / "0003-three.patch").write_text(THREE)
    made.series.write_text("0001-one.patch\n0002-two.patch\n")
    assert "`0003-three.patch`" in save_refused(made)


def test_comment_that_someone_else_wrote_is_kept(made: MadeOverlay) -> None:
    made.series.write_text("# another\n" + "".join(f"{name}\n" for name in PATCHES))
    made.commit("more", {"demo/two.py": "x\n"})
    save(made.task)
    assert made.series.read_text().startswith("# another\n0001-one.patch\n")


def test_file_that_is_no_part_of_the_series_is_not_written_over(made: MadeOverlay) -> None:
    (made.series.parent / "0004-more.patch").write_text("mine\n")
    made.commit("more", {"demo/two.py": "x\n"})
    assert "`0004-more.patch`" in save_refused(made)


def test_work_tree_of_another_base_is_refused(made: MadeOverlay) -> None:
    other = made.locked_to(made.add_version("1.1", BASE))
    made.commit("more", {"demo/two.py": "x\n"})
    message = save_refused(other)
    assert made.task.package.sha256 in message
    assert other.task.package.sha256 in message
    assert "envspec overlay rebase demo --to 1.1" in message
    error = refused(lambda: edit(other.task))
    assert "the lock has changed since the work tree was made" in str(error)
    made.git("reset", "-q", "--hard", "HEAD~1")
    assert edit(other.task).made
    assert not save(other.task).written


def test_work_tree_of_another_series_is_refused(made: MadeOverlay) -> None:
    for task in (
        replace(made.task, series="x/series"),
        replace(made.task, package=replace(made.task.package, name="other")),
    ):
        assert "the work tree is of `demo` with `overlays/demo/series`" in str(refused(lambda task=task: save(task)))  # type: ignore[misc]
    assert "there is no work tree of `demo`" in str(refused(lambda: save(replace(made.task, folder=made.home))))


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"envspec-overlay": 2}', "\0", '{"envspec-overlay": 1, "bases": 3}']
)
def test_damaged_record_of_a_work_tree_is_told(made: MadeOverlay, content: str) -> None:
    (made.tree / ".git/envspec.json").write_text(content)
    assert "the record of the work tree cannot be read" in str(refused(lambda: save(made.task)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"0001-one.patch"', '"../../../precious"'),
        ('"0001-one.patch"', '"-R"'),
        ('"0001-one.patch"', "3"),
        ('"sha256": "', '"sha256": "../../'),
        ('"file": "demo', '"file": "\\u001b[31mdemo'),
        ('"tip": "', '"tip": "--upload-pack='),
    ],
)
def test_record_that_envspec_would_not_have_written_is_not_followed(made: MadeOverlay, old: str, new: str) -> None:
    record = made.tree / ".git/envspec.json"
    assert old in record.read_text()
    record.write_text(record.read_text().replace(old, new))
    assert "the record of the work tree cannot be read" in str(refused(lambda: save(made.task)))


def test_base_wheel_that_is_another_one_now_is_noticed(made: MadeOverlay) -> None:
    wheel = make_wheel(made.home / "x", "demo", "1.0", {**BASE, "demo/one.py": "x = 3\n"})
    error = refused(lambda: save(replace(made.task, base_wheel=lambda: wheel)))
    assert "is not in the store any more" in str(error)
    assert made.task.package.sha256 in str(error)


def test_configuration_inside_of_the_work_tree_has_no_say(made: MadeOverlay) -> None:
    made.commit("more\n\ntext", {"demo/two.py": "x\r\n", "demo/z.py": "def f():\n\tpass\n"})
    plain = replace(made.task, series_file=made.home / "plain" / "series")
    for config in (
        "diff.noprefix",
        "diff.mnemonicPrefix",
        "core.autocrlf",
        "diff.renames",
        "status.showUntrackedFiles=no",
        "log.showSignature",
    ):
        name, _, value = config.partition("=")
        made.git("config", name, value or "true")
    (made.tree / ".git/info/attributes").write_text("* binary\n")
    made.git("replace", "HEAD~1", "HEAD~2")
    assert statuses(save(made.task))[-1] == ("0004-more.patch", "new")
    assert b"+x\r\n" in made.series_files()["0004-more.patch"]
    assert plain.series_file.parent.exists() is False


def test_second_command_in_one_work_tree_is_refused(made: MadeOverlay) -> None:
    with locked_work_tree(made.tree):
        assert "another `envspec overlay` works in this work tree" in str(refused(lambda: save(made.task)))
        assert "another `envspec overlay` works in this work tree" in str(refused(lambda: edit(made.task)))


def kill_after(allowed: int, patched: pytest.MonkeyPatch) -> None:
    """End whatever writes or removes more than some files."""
    left = allowed
    unlink = Path.unlink

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    def counted_write(path: Path, content: str | bytes) -> None:
        count()
        write_atomically(path, content)

    def counted_unlink(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == ".patch" and not path.name.startswith("."):  # not those that a write makes and removes itself
            count()
        unlink(path, missing_ok=missing_ok)

    for module in ("overlay_series", "overlay_record"):
        patched.setattr(f"builder.{module}.write_atomically", counted_write)
    patched.setattr(Path, "unlink", counted_unlink)


def test_save_that_was_killed_at_any_instant_is_ended_by_the_next(
    made: MadeOverlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write and removal is atomic; the process ends between two of them."""
    base = made.git("rev-list", "--max-parents=0", "HEAD").strip()
    made.git("checkout", "-q", base)
    made.commit("first", {"demo/two.py": "x\n"})
    made.commit("x: be two\n\nPurpose: to be two\n# no comment", {"demo/one.py": "x = 1\nx = 2\n"})
    made.commit("two", {"demo/new.sh": "echo 2\n"})
    old = made.series_files()
    state = (made.tree / ".git/envspec.json").read_bytes()
    old_digest = read_series(made.series).digest
    save(made.task)
    new = made.series_files()
    new_digest = read_series(made.series).digest
    assert sorted(new) == ["0001-first.patch", "0002-one.patch", "0003-two.patch", "series"]
    seen = set()
    for allowed in range(60):
        for path in made.series.parent.iterdir():
            path.unlink()
        for name, content in old.items():
            (made.series.parent / name).write_bytes(content)
        (made.tree / ".git/envspec.json").write_bytes(state)
        ended = True
        with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
            kill_after(allowed, patched)
            ended = False
            save(made.task)
            ended = True
        digest = read_series(made.series).digest
        assert digest in {old_digest, new_digest}
        seen.add(digest)
        save(made.task)
        assert made.series_files() == new
        assert not save(made.task).written
        if ended:
            break
    else:
        pytest.fail("it never ended")
    assert seen == {old_digest, new_digest}


def test_work_may_go_on_after_a_save_that_was_killed(made: MadeOverlay, monkeypatch: pytest.MonkeyPatch) -> None:
    made.commit("more", {"demo/two.py": "x\n"})
    made.commit("yet more", {"demo/z.py": "x\n"})
    with monkeypatch.context() as patched:
        kill_after(4, patched)  # the record, two patches and the series are written, and the record is not
        with pytest.raises(KeyboardInterrupt):
            save(made.task)
    assert made.names()[-1] == "0005-yet-more.patch"
    made.git("reset", "-q", "--hard", "HEAD~2")
    made.commit("something else", {"demo/two.py": "y\n"})
    assert statuses(save(made.task))[3:] == [
        ("0004-something-else.patch", "new"),
        ("0004-more.patch", "removed"),
        ("0005-yet-more.patch", "removed"),
    ]
    assert sorted(made.series_files()) == sorted([*PATCHES, "0004-something-else.patch", "series"])


# any series

STATES = st.sampled_from(
    [
        None,
        b"",
        b"a\n",
        b"a\nb\n",
        b"b\na\nb\n",
        b"a",
        b"a\r\nb\r\n",
        b"\xff\n",
        b"x" * 200 + b"\n",
        b"a\n" * 9 + b"b\n" + b"a\n" * 9,
    ]
)
TREES = st.fixed_dictionaries(dict.fromkeys(("demo/a.py", "demo/b b.py", "c/ö.txt", "d.md"), STATES))
HEADERS = st.sampled_from(
    [
        "",
        "one\n\n",
        "one\n\nWhy: so\n\n\n",
        "# x\n",
        "\n\nlate\n",
        "From: A\nSubject: [PATCH] x\n\ny\n---\n x | 2 +-\n\n",
        "ü\r\n\r\n",
    ]
)
TAILS = st.sampled_from(["", "-- \n2.39.5\n\n"])


def diff_of(before: dict[str, bytes | None], after: dict[str, bytes | None]) -> bytes:
    return render_diff(
        FileEdit(path=path, before=before[path], after=after[path], executable=False)
        for path in before
        if before[path] != after[path]
    )


@settings(max_examples=8)
@given(TREES, st.lists(st.tuples(TREES, HEADERS, TAILS), min_size=1, max_size=4), st.booleans())
def test_any_series_comes_out_of_its_work_tree_as_it_was(
    base: dict[str, bytes | None],
    states: list[tuple[dict[str, bytes | None], str, str]],
    plain: bool,  # noqa: FBT001 - given
) -> None:
    patches: dict[str, bytes] = {}
    before = base
    for number, (after, header, tail) in enumerate(states):
        diff = diff_of(before, after)
        if diff:
            lines = diff.split(b"\n")
            if plain and all(content for content in (*before.values(), *after.values())):
                diff = b"\n".join(line for line in lines if not line.startswith((b"diff --git ", b"index ")))
            patches[f"{number}.patch"] = header.encode() + diff + tail.encode()
            before = after
    files = {path: content for path, content in base.items() if content is not None}
    with TemporaryDirectory() as folder:
        overlay = make_overlay(Path(folder), {**files, "demo/__init__.py": ""}, patches)
        edit(overlay.task)
        series = overlay.series_files()
        if patches:
            overlay.git(
                "rebase", "--force-rebase", overlay.git("rev-list", "--max-parents=0", "HEAD").strip()
            )  # other commits that say the same
            assert not save(overlay.task).written
        assert overlay.series_files() == series
        # And without the old series, written anew, it does the same.
        wheel = (
            build_patched_wheel(overlay.task.base_wheel(), read_series(overlay.series), destination_dir=overlay.home)
            if patches
            else None
        )
        if wheel is not None:
            for path in overlay.series.parent.iterdir():
                path.unlink()
            overlay.series.write_text("")
            state = overlay.tree / ".git/envspec.json"
            state.write_text(state.read_text().replace('"patches": [', '"patches": [], "was": [', 1))
            save(overlay.task)
            again = build_patched_wheel(
                overlay.task.base_wheel(), read_series(overlay.series), destination_dir=overlay.home
            )
            assert again.files == wheel.files
