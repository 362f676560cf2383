"""Locks in a real repository: merged by `git merge`, `rebase`, `cherry-pick`, or refused so that nothing wrong is ever written."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from envspec.lock_toml import parse_lock
from tests.support.projects import Project, Ran, copy_tree, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC = """\
envspec = 1
name = "demo"

[python]
version = "{minor}"

[target]
platform = "{platform}"
glibc = "2.17"

[packages]
alpha = "==1.0"
# What follows belongs to one team.

gamma = "==1.0"

# What follows belongs to another team.

delta = "==1.0"

[overlays.beta]
series = "overlays/series"
"""


class Repository:
    """A project whose spec's folder is a repository of git."""

    def __init__(self, project: Project, folder: Path | None = None) -> None:
        self.project = project
        self.folder = folder or project.spec_folder

    def git(self, *arguments: str, check: bool = True, **changes: str | None) -> Ran:
        """Run git as a person does."""
        environ = self.project.environ(
            GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b", **changes
        )
        done = subprocess.run(
            ["/usr/bin/env", "git", *arguments],
            cwd=self.folder,
            env={**environ, "GIT_EDITOR": "true"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return Ran(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def edit(self, old: str, new: str) -> None:
        """Change the spec."""
        path = self.folder / "demo.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def commit(self, subject: str, *lock: str) -> None:
        """Lock and commit everything."""
        self.project.good("lock", *lock, cwd=self.folder)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", subject)

    def branch(self, name: str, old: str, new: str) -> None:
        """A branch from main with one change of the spec, locked."""
        self.git("checkout", "--quiet", "-B", name, "main")
        self.edit(old, new)
        self.commit(name)

    def versions(self) -> dict[str, str]:
        """Package -> locked version."""
        lock = parse_lock((self.folder / "demo.lock").read_text(), input_name="demo.lock")
        return {package.name: package.version for package in lock.packages}

    def check(self) -> None:
        """See that the lock is current in every field."""
        assert "current" in self.project.good("lock", "--check", cwd=self.folder).stdout


def fill(project: Project) -> None:
    """The packages and the first commit."""
    project.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 1\n", "beta/more.py": "MORE = 1\n"})
    project.wheel("alpha", "1.0", {"alpha/__init__.py": "import beta\n"}, requires=["beta>=1"])
    for name in ("gamma", "delta", "zeta"):
        for version in ("1.0", "2.0"):
            project.wheel(name, version, {f"{name}.py": f"VERSION = '{version}'\n"}, requires=["shared>=1"])
    project.wheel("shared", "1.0", {"shared.py": ""})
    project.wheel("picky", "1.0", {"picky.py": ""}, requires=["gamma<2"])
    project.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 2")
    project.write_spec({})
    head = project.spec_path.read_text()
    minor = head.partition('version = "')[2].partition('"')[0]
    platform = head.partition('platform = "')[2].partition('"')[0]
    project.spec_path.write_text(SPEC.format(minor=minor, platform=platform))
    repository = Repository(project)
    repository.git("init", "--quiet", "--initial-branch=main")
    project.good("git", "install")
    repository.commit("first")


@pytest.fixture(scope="session")
def first_commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository") / "project"
    with serve(folder) as served:
        fill(served)
    return folder


@pytest.fixture
def repository(first_commit: Path, tmp_path: Path) -> Iterator[Repository]:
    """A repository with one commit and the drivers installed."""
    copy_tree(first_commit, tmp_path / "project")
    with serve(tmp_path / "project") as served:
        yield Repository(served)


@pytest.fixture(scope="session")
def two_commits(first_commit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diverged") / "project"
    copy_tree(first_commit, folder)
    with serve(folder) as served:
        two_branches(Repository(served))
    return folder


@pytest.fixture
def diverged(two_commits: Path, tmp_path: Path) -> Iterator[Repository]:
    """A repository with two branches that change different packages; the second is checked out."""
    copy_tree(two_commits, tmp_path / "project")
    with serve(tmp_path / "project") as served:
        yield Repository(served)


def two_branches(repository: Repository) -> None:
    """Two branches that change different packages; the second is checked out."""
    repository.branch("one", 'gamma = "==1.0"', 'gamma = "==2.0"')
    repository.branch("two", 'delta = "==1.0"', 'delta = "==2.0"')


def assert_merged(repository: Repository) -> None:
    assert repository.git("status", "--porcelain").stdout == ""
    assert repository.versions() == {"alpha": "1.0", "beta": "1.0", "delta": "2.0", "gamma": "2.0", "shared": "1.0"}
    repository.check()


def assert_refused(repository: Repository, ran: Ran, *, ours: str, said: str) -> None:
    """See that git stopped with a conflict of the lock, that our lock lies there unchanged, and that a person is told what to do."""
    assert ran.code != 0
    assert f"`demo.lock` was not merged: {said}" in ran.text
    assert "take one side's lock" in ran.text
    assert "run `envspec lock`" in ran.text
    assert (repository.folder / "demo.lock").read_text() == ours
    stages = repository.git("ls-files", "--unmerged", "demo.lock").stdout.splitlines()
    assert [line.split()[2] for line in stages] == ["1", "2", "3"]


def test_merge_of_branches_that_change_different_packages_gives_a_current_lock(diverged: Repository) -> None:
    ran = diverged.git("merge", "--quiet", "--no-edit", "one")
    assert "demo.lock  merged: 5 packages" in ran.stderr
    assert_merged(diverged)
    # It is the one that a person would have locked.
    merged = (diverged.folder / "demo.lock").read_text()
    (diverged.folder / "demo.lock").unlink()
    diverged.project.good("lock", "--store", diverged.project.folder / "other")
    assert (diverged.folder / "demo.lock").read_text() == merged


def test_rebase_of_two_commits_gives_a_current_lock_at_each(diverged: Repository) -> None:
    diverged.edit("[overlays.beta]", 'zeta = "==1.0"\n\n[overlays.beta]')
    diverged.commit("more")
    diverged.git("rebase", "--quiet", "one")
    assert diverged.versions()["zeta"] == "1.0"
    diverged.check()
    diverged.git("checkout", "--quiet", "HEAD^")
    assert_merged(diverged)


def test_cherry_pick_merges_the_lock(diverged: Repository) -> None:
    diverged.git("cherry-pick", "one")
    assert_merged(diverged)


def test_revert_of_an_older_commit_merges_the_lock(repository: Repository) -> None:
    repository.branch("one", 'gamma = "==1.0"', 'gamma = "==2.0"')
    repository.edit('delta = "==1.0"', 'delta = "==2.0"')
    repository.commit("two")
    repository.git("revert", "--no-edit", "HEAD^")
    assert repository.versions()["gamma"] == "1.0"
    assert repository.versions()["delta"] == "2.0"
    repository.check()


def test_stashed_change_is_merged_when_it_comes_back(diverged: Repository) -> None:
    diverged.git("reset", "--quiet", "--soft", "main")
    diverged.git("stash", "--quiet")
    diverged.git("checkout", "--quiet", "one")
    diverged.git("stash", "pop", "--quiet")
    assert diverged.versions()["delta"] == diverged.versions()["gamma"] == "2.0"
    diverged.check()


def test_merge_works_in_a_linked_work_tree(diverged: Repository) -> None:
    diverged.git("checkout", "--quiet", "main")
    linked = diverged.project.folder / "linked"
    diverged.git("worktree", "add", "--quiet", str(linked), "two")
    other = Repository(diverged.project, linked)
    other.git("merge", "--quiet", "--no-edit", "one")
    assert_merged(other)


def test_spec_in_a_subfolder_is_merged_too(repository: Repository) -> None:
    repository.git("mv", "-k", "demo.toml", "demo.lock", "overlays", ".")
    sub = repository.folder / "envs" / "gpu"
    sub.mkdir(parents=True)
    repository.git("mv", "demo.toml", "demo.lock", "overlays", "envs/gpu")
    ran = repository.project.good("git", "install", cwd=sub)
    assert "envs/gpu/demo.lock" in ran.stdout
    inner = Repository(repository.project, sub)
    inner.commit("moved")
    two_branches(inner)
    inner.git("merge", "--quiet", "--no-edit", "one")
    assert_merged(inner)


def test_changed_patch_and_changed_package_are_merged(repository: Repository) -> None:
    repository.branch("one", 'gamma = "==1.0"', 'gamma = "==2.0"')
    repository.git("checkout", "--quiet", "-b", "two", "main")
    repository.project.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    repository.commit("two")
    repository.git("merge", "--quiet", "--no-edit", "one")
    assert repository.versions()["gamma"] == "2.0"
    repository.check()


def test_patches_that_both_sides_added_come_together(repository: Repository) -> None:
    overlays = repository.folder / "overlays"
    patch = "--- a/beta/more.py\n+++ b/beta/more.py\n@@ -1 +1 @@\n-MORE = 1\n+MORE = 2\n"
    series = overlays / "series"
    series.write_text("# first\n\n0001-change.patch\n\n# last\n")
    repository.commit("room in the series")
    repository.git("checkout", "--quiet", "-b", "one")
    (overlays / "0000-more.patch").write_text(patch)
    series.write_text(series.read_text().replace("# first\n", "# first\n0000-more.patch\n"))
    repository.commit("one")
    repository.git("checkout", "--quiet", "-b", "two", "main")
    new = "--- /dev/null\n+++ b/beta/new.py\n@@ -0,0 +1 @@\n+NEW = 1\n"
    (overlays / "0002-new.patch").write_text(new)
    series.write_text(series.read_text() + "0002-new.patch\n")
    repository.commit("two")
    repository.git("merge", "--quiet", "--no-edit", "one")
    repository.check()
    lock = parse_lock((repository.folder / "demo.lock").read_text(), input_name="demo.lock")
    assert [each.name for each in lock.overlays[0].patches] == [
        "0000-more.patch",
        "0001-change.patch",
        "0002-new.patch",
    ]


def test_branches_that_pin_one_package_differently_are_refused(repository: Repository) -> None:
    repository.project.wheel("gamma", "3.0", {"gamma.py": ""})
    repository.branch("one", 'gamma = "==1.0"', 'gamma = "==2.0"')
    repository.branch("two", 'gamma = "==1.0"', 'gamma = "==3.0"')
    ours = (repository.folder / "demo.lock").read_text()
    ran = repository.git("merge", "--no-edit", "one", check=False)
    assert_refused(repository, ran, ours=ours, said="both sides moved 1 package to different wheels")
    assert "gamma: ours has `3.0`, theirs `2.0`, before it was `1.0`" in ran.text


def test_what_was_refused_is_mended_as_the_hint_says(repository: Repository) -> None:
    repository.project.wheel("gamma", "3.0", {"gamma.py": ""})
    repository.branch("one", 'gamma = "==1.0"', 'gamma = "==2.0"')
    repository.branch("two", 'gamma = "==1.0"', 'gamma = "==3.0"')
    repository.git("merge", "--no-edit", "one", check=False)
    assert repository.git("commit", "-m", "too soon", check=False).code != 0
    repository.git("checkout", "--theirs", "--", "demo.toml")
    repository.git("checkout", "--ours", "--", "demo.lock")
    repository.project.good("lock")
    repository.git("add", "demo.toml", "demo.lock")
    repository.git("commit", "--quiet", "--no-edit")
    assert repository.versions()["gamma"] == "2.0"
    repository.check()


def test_branches_that_move_what_no_spec_pins_to_different_versions_are_refused(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "one")
    repository.project.wheel("shared", "2.0", {"shared.py": ""})
    repository.commit("one", "--upgrade", "shared")
    repository.git("checkout", "--quiet", "-b", "two", "main")
    repository.project.wheel("shared", "3.0", {"shared.py": ""})
    repository.commit("two", "--upgrade", "shared")
    ours = (repository.folder / "demo.lock").read_text()
    ran = repository.git("merge", "--no-edit", "one", check=False)
    assert_refused(repository, ran, ours=ours, said="both sides moved 1 package")
    assert "shared: ours has `3.0`, theirs `2.0`, before it was `1.0`" in ran.text


def test_version_that_one_side_moved_without_a_change_of_the_spec_stays_moved(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "one")
    repository.project.wheel("shared", "2.0", {"shared.py": ""})
    repository.commit("one", "--upgrade", "shared")
    repository.branch("two", 'gamma = "==1.0"', 'gamma = "==2.0"')
    assert repository.versions()["shared"] == "1.0"
    repository.git("merge", "--quiet", "--no-edit", "one")
    assert repository.versions()["shared"] == "2.0"
    repository.check()


def test_newer_version_that_nobody_asked_for_does_not_come_in_with_a_merge(diverged: Repository) -> None:
    diverged.project.wheel("shared", "9.0", {"shared.py": ""})
    diverged.git("merge", "--quiet", "--no-edit", "one")
    assert_merged(diverged)


def test_sides_whose_specs_cannot_be_resolved_together_are_refused(repository: Repository) -> None:
    repository.branch("one", 'gamma = "==1.0"', 'gamma = "==2.0"')
    repository.branch("two", "[overlays.beta]", 'picky = "==1.0"\n\n[overlays.beta]')
    ours = (repository.folder / "demo.lock").read_text()
    ran = repository.git("merge", "--no-edit", "one", check=False)
    assert_refused(repository, ran, ours=ours, said="")
    assert "picky" in ran.text
    # The spec merged, so that only the lock is left to a person.
    assert repository.git("ls-files", "--unmerged", "demo.toml").stdout == ""


def test_histories_that_cross_are_refused(diverged: Repository) -> None:
    first = diverged.git("rev-parse", "two").stdout.strip()
    diverged.git("merge", "--quiet", "--no-edit", "one")
    diverged.edit("[overlays.beta]", 'zeta = "==1.0"\n\n[overlays.beta]')
    diverged.commit("more here")
    diverged.git("checkout", "--quiet", "one")
    diverged.git("merge", "--quiet", "--no-edit", first)
    assert_merged(diverged)
    diverged.edit('alpha = "==1.0"', 'alpha = ">=1.0"')
    diverged.commit("more there")
    ours = (diverged.folder / "demo.lock").read_text()
    ran = diverged.git("merge", "--no-edit", "two", check=False)
    assert_refused(diverged, ran, ours=ours, said="the histories cross")


def test_patch_that_both_sides_changed_is_refused(repository: Repository) -> None:
    for name, value in (("one", 5), ("two", 6)):
        repository.git("checkout", "--quiet", "-b", name, "main")
        repository.project.write_patch("beta/__init__.py", "VALUE = 1", f"VALUE = {value}")
        repository.commit(name)
    ours = (repository.folder / "demo.lock").read_text()
    ran = repository.git("merge", "--no-edit", "one", check=False)
    assert_refused(repository, ran, ours=ours, said="both sides changed `overlays/0001-change.patch`")


def test_lock_that_is_not_current_on_one_side_is_refused(repository: Repository) -> None:
    repository.branch("one", 'gamma = "==1.0"', 'gamma = "==2.0"')
    repository.branch("two", 'delta = "==1.0"', 'delta = "==2.0"')
    text = (repository.folder / "demo.lock").read_text()
    (repository.folder / "demo.lock").write_text(text.replace('glibc = "2.17"', 'glibc = "2.16"'))
    repository.git("commit", "--quiet", "-a", "-m", "edited by hand")
    ours = (repository.folder / "demo.lock").read_text()
    ran = repository.git("merge", "--no-edit", "one", check=False)
    assert_refused(repository, ran, ours=ours, said="the lock of ours does not describe the spec")
    assert "`target.glibc`" in ran.text


def test_index_that_cannot_be_asked_leaves_a_conflict_and_our_lock(diverged: Repository) -> None:
    ours = (diverged.folder / "demo.lock").read_text()
    ran = diverged.git(
        "merge", "--no-edit", "one", check=False, UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_HTTP_RETRIES="0"
    )
    assert_refused(diverged, ran, ours=ours, said="")


def test_envspec_that_is_gone_leaves_a_conflict_and_our_lock(diverged: Repository) -> None:
    ours = (diverged.folder / "demo.lock").read_text()
    diverged.git("config", "merge.envspec.driver", "/nowhere/envspec git merge-driver %O %A %B %P")
    ran = diverged.git("merge", "--no-edit", "one", check=False)
    assert ran.code != 0
    assert (diverged.folder / "demo.lock").read_text() == ours
    assert diverged.git("ls-files", "--unmerged", "demo.lock").stdout != ""


def test_clone_without_the_driver_gets_a_conflict_that_no_verb_takes_for_a_lock(diverged: Repository) -> None:
    diverged.git("config", "--remove-section", "merge.envspec")
    assert diverged.git("merge", "--no-edit", "one", check=False).code != 0
    ran = diverged.project.run("lock", "--check")
    assert ran.code == 2
    assert "conflict" in ran.stderr


def test_install_twice_changes_nothing_and_uninstall_takes_everything_out(repository: Repository) -> None:
    folder = repository.folder
    attributes, config = folder / ".gitattributes", folder / ".git" / "config"
    assert attributes.read_text() == "/demo.lock merge=envspec diff=envspec\n"
    before = config.read_text()
    again = repository.project.good("git", "install", "--json").json()
    assert (again["attributes_changed"], again["config_changed"], again["locks"]) == (False, False, ["demo.lock"])
    assert config.read_text() == before
    attributes.write_bytes(b"*.png binary\r\n" + attributes.read_bytes() + b"*.jpg binary")
    repository.project.good("git", "uninstall")
    assert attributes.read_bytes() == b"*.png binary\r\n*.jpg binary"
    assert "envspec" not in config.read_text()
    gone = repository.project.good("git", "uninstall", "--json").json()
    assert (gone["attributes_changed"], gone["config_changed"]) == (False, False)


def test_install_covers_every_spec_and_no_other_lock(repository: Repository) -> None:
    other = repository.folder / "a b" / "x[1].toml"
    other.parent.mkdir()
    other.write_text(repository.project.spec_path.read_text())
    (repository.folder / "pyproject.toml").write_text("[project]\n")
    repository.project.good("git", "install", cwd=repository.folder)
    asked = ("check-attr", "merge", "--", "a b/x[1].lock", "demo.lock", "uv.lock", "a b/x1.lock")
    assert repository.git(*asked).stdout.splitlines() == [
        "a b/x[1].lock: merge: envspec",
        "demo.lock: merge: envspec",
        "uv.lock: merge: unspecified",
        "a b/x1.lock: merge: unspecified",
    ]


def test_install_outside_of_a_repository_and_without_a_spec_says_so(project: Project) -> None:
    ran = project.run("git", "install")
    assert ran.code == 2
    assert "lies in no work tree of git" in ran.stderr
    Repository(project).git("init", "--quiet")
    ran = project.run("git", "install")
    assert ran.code == 1
    assert "there is no spec in this repository" in ran.stderr


def test_nothing_of_the_repository_is_imported_by_a_driver(diverged: Repository) -> None:
    (diverged.folder / "json.py").write_text("raise SystemExit('imported')\n")
    (diverged.folder / "envspec.py").write_text("raise SystemExit('imported')\n")
    assert "imported" not in diverged.git("merge", "--quiet", "--no-edit", "one").text
    (diverged.folder / "json.py").unlink()
    (diverged.folder / "envspec.py").unlink()
    diverged.check()


def test_git_diff_shows_a_change_of_a_lock(repository: Repository) -> None:
    repository.edit('gamma = "==1.0"', 'gamma = "==2.0"')
    repository.project.good("lock")
    shown = repository.git("diff", "--", "demo.lock").stdout
    assert "gamma" in shown
    assert "2.0" in shown


def test_git_diff_of_a_lock_that_cannot_be_read_or_is_new_shows_its_lines(repository: Repository) -> None:
    path = repository.folder / "demo.lock"
    path.write_text(path.read_text() + "<<<<<<< ours\n")
    assert "+<<<<<<< ours" in repository.git("diff", "--", "demo.lock").stdout
    path.unlink()
    assert "-lock = 1" in repository.git("diff", "--", "demo.lock").stdout


def test_git_log_names_the_package_above_each_hunk(repository: Repository) -> None:
    repository.edit('gamma = "==1.0"', 'gamma = "==2.0"')
    repository.commit("moved")
    assert "@@" in repository.git("log", "-1", "-p", "--no-ext-diff", "-U0", "--", "demo.lock").stdout
    shown = repository.git("log", "-1", "-p", "--no-ext-diff", "-U0", "--", "demo.lock").stdout
    assert any(line.startswith("@@") and line.endswith('name = "gamma"') for line in shown.splitlines())


def test_pre_commit_hook_refuses_a_stale_lock_and_takes_a_current_one(repository: Repository) -> None:
    hook = repository.folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexec {sys.executable} -m envspec lock --check --spec demo.toml\n")
    hook.chmod(0o755)
    repository.edit('gamma = "==1.0"', 'gamma = "==2.0"')
    ran = repository.git("commit", "--quiet", "-a", "-m", "stale", check=False)
    assert ran.code != 0
    assert "stale: the spec has digest" in ran.stderr
    repository.commit("current")
