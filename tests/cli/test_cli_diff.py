"""`envspec diff` in a real repository: from git and from files, in every form, with the exit codes that a job relies on."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.support.projects import REPOSITORY, Project

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534
STEALER = "import os; os.environ.setdefault('SEEN', '1')"


def git(folder: Path, *arguments: str) -> str:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **{f"GIT_{who}_{what}": "t@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(
        ["/usr/bin/env", "git", "-c", "init.defaultBranch=main", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(project: Project, message: str) -> str:
    git(project.spec_folder, "add", "--all")
    git(project.spec_folder, "commit", "--quiet", "--message", message)
    return git(project.spec_folder, "rev-parse", "HEAD")


@pytest.fixture
def reviewed(locked: Project) -> Project:
    """A locked project whose lock, spec and patches are committed."""
    git(locked.spec_folder, "init", "--quiet")
    commit(locked, "first")
    return locked


def upgrade(project: Project) -> None:
    """Let alpha move to a release with a start-up hook and a second command."""
    project.wheel(
        "alpha",
        "1.1",
        {"alpha/__init__.py": "import beta\n\ndef main():\n    print(2)\n", "alpha.pth": STEALER + "\n"},
        requires=["beta>=1"],
        entry_points="[console_scripts]\nalpha = alpha:main\nalpha-sync = alpha:main\n",
    )
    text = project.spec_path.read_text(encoding="utf-8").replace('"==1.0"', '"==1.1"')
    project.spec_path.write_text(text, encoding="utf-8")
    project.good("lock")


def changes(project: Project, *arguments: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Kind -> the last change of it."""
    record = project.good("diff", *arguments, "--json", **more).json()
    schema = json.loads((REPOSITORY / "docs/schemas/review.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(record, schema)
    return {change["kind"]: change for change in record["changes"]}


def test_nothing_changed_is_said_and_is_good(reviewed: Project) -> None:
    ran = reviewed.good("diff", "--exit-code", "--fail-on", "stop")
    assert "no change: the same environment, the same tree" in ran.stdout
    assert ran.stderr == ""


def test_an_upgrade_is_reviewed_with_what_its_wheel_brings(reviewed: Project) -> None:
    upgrade(reviewed)
    found = changes(reviewed)
    assert found["hook-added"]["level"] == "stop"
    assert f"runs: `{STEALER}`" in found["hook-added"]["consequences"]
    assert found["script-added"]["new"] == "alpha-sync"
    assert found["upgraded"]["because"] == ["packages.alpha"]
    assert "contents-unknown" not in found
    assert next(iter(found)) == "hook-added"


def test_contents_are_not_known_where_the_store_has_no_facts(reviewed: Project, tmp_path: Path) -> None:
    upgrade(reviewed)
    empty = tmp_path / "empty"
    found = changes(reviewed, "--store", str(empty))
    assert "alpha" in found["contents-unknown"]["consequences"][0]
    assert "script-added" not in found
    assert not empty.exists()


def test_a_changed_patch_is_shown_with_what_comes_out_of_it(reviewed: Project, tmp_path: Path) -> None:
    reviewed.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    reviewed.good("lock")
    found = changes(reviewed)
    assert "-+VALUE = 2\n++VALUE = 3" in found["patch-changed"]["excerpts"][0]["text"]
    assert "-VALUE = 2\n+VALUE = 3" in found["patched-file"]["excerpts"][0]["text"]
    text = reviewed.good("diff", "--patches").stdout
    assert "++VALUE = 3" in text
    # Without the wheels there is no file to compare; with the base wheel alone the patches are applied to it.
    assert changes(reviewed, "--store", str(tmp_path / "none"))["patched-file"]["excerpts"] == []
    for wheel in (reviewed.store / "wheels").glob("*/beta-*+*.whl"):
        wheel.unlink()
    assert "-VALUE = 2\n+VALUE = 3" in changes(reviewed)["patched-file"]["excerpts"][0]["text"]


def test_a_patch_with_another_digest_than_the_locked_one_is_not_shown(reviewed: Project) -> None:
    reviewed.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    reviewed.good("lock")
    reviewed.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 4")
    assert changes(reviewed)["patch-changed"]["excerpts"] == []


def test_sides_are_revisions_ranges_and_files(reviewed: Project) -> None:
    first = git(reviewed.spec_folder, "rev-parse", "HEAD")
    old = reviewed.spec_folder / "old.lock"
    old.write_bytes(reviewed.lock_path.read_bytes())
    (reviewed.spec_folder / "old.toml").write_bytes(reviewed.spec_path.read_bytes().replace(b"envspec", b" envspec"))
    upgrade(reviewed)
    git(reviewed.spec_folder, "checkout", "--quiet", "-b", "topic")
    commit(reviewed, "second")
    git(reviewed.spec_folder, "tag", "v2")
    spec = ("--spec", "demo.toml")
    assert "upgraded" in changes(reviewed, "main", *spec)
    assert "upgraded" in changes(reviewed, first[:12], "v2", *spec)
    assert "upgraded" in changes(reviewed, "main..topic", *spec)
    assert "upgraded" in changes(reviewed, "main...topic", *spec)
    assert changes(reviewed, "..v2", *spec) == {}
    assert "upgraded" in changes(reviewed, "old.lock", "demo.lock")
    assert "upgraded" in changes(reviewed, str(old), *spec)
    assert "downgraded" in changes(reviewed, "topic", "main", *spec)
    assert changes(reviewed, *spec) == {}


def test_three_dots_start_where_the_branch_left(reviewed: Project) -> None:
    """What main got meanwhile is not what the branch does."""
    git(reviewed.spec_folder, "checkout", "--quiet", "-b", "topic")
    (reviewed.spec_folder / "notes").write_text("x", encoding="utf-8")
    commit(reviewed, "topic")
    git(reviewed.spec_folder, "checkout", "--quiet", "main")
    upgrade(reviewed)
    commit(reviewed, "main moves")
    assert changes(reviewed, "main...topic") == {}
    assert "downgraded" in changes(reviewed, "main..topic")


def test_a_spec_in_a_folder_of_the_repository_is_found(locked: Project) -> None:
    git(locked.folder, "init", "--quiet")
    git(locked.folder, "add", "spec")
    git(locked.folder, "commit", "--quiet", "--message", "first")
    upgrade(locked)
    found = changes(locked)
    assert found["upgraded"]["because"] == ["packages.alpha"]
    assert changes(locked, "--spec", "spec/demo.toml", cwd=locked.folder).keys() == found.keys()


def test_a_lock_that_is_new_is_reviewed_whole(reviewed: Project) -> None:
    git(reviewed.spec_folder, "rm", "--quiet", "--cached", "demo.lock")
    git(reviewed.spec_folder, "commit", "--quiet", "--message", "no lock")
    ran = reviewed.good("diff")
    assert "the first lock: 2 packages" in ran.stdout


def test_the_null_device_stands_for_no_lock(reviewed: Project) -> None:
    assert "the first lock: 2 packages" in reviewed.good("diff", os.devnull, "demo.lock").stdout
    assert reviewed.run("diff", "demo.lock", os.devnull).code == 2


def test_exit_codes_are_for_jobs(reviewed: Project) -> None:
    upgrade(reviewed)
    assert reviewed.run("diff").code == 0
    assert reviewed.run("diff", "--exit-code").code == 1
    ran = reviewed.run("diff", "--fail-on", "hook-added", "--fail-on", "driver")
    assert ran.code == 1
    assert ran.stderr == "fails on `hook-added`: 1 change\n"
    assert reviewed.run("diff", "--fail-on", "stop").code == 1
    assert reviewed.run("diff", "--fail-on", "driver").code == 0


FAULTS = (
    (("--fail-on", "drivers"), "`drivers` is no kind or level of change", "did you mean `driver`?"),
    (("nowhere",), "`nowhere` is neither a file nor a revision", "git fetch"),
    (("--", "-x"), "`-x` is neither a file nor a revision", "git fetch"),
    (("HEAD...nowhere",), "`nowhere` is neither a file nor a revision", "git fetch"),
    (("gone.lock",), "there is no file `gone.lock`", "by its path"),
    (("demo.toml", "demo.lock"), "", ""),
    (("--json", "--html"), "asked for html and json", "give one of them"),
    (("--format", "pdf"), "", ""),
)


@pytest.mark.parametrize(("arguments", "message", "hint"), FAULTS, ids=[" ".join(row[0]) for row in FAULTS])
def test_faults_say_what_and_what_to_do(reviewed: Project, arguments: tuple[str, ...], message: str, hint: str) -> None:
    ran = reviewed.run("diff", *arguments)
    assert ran.code == 2
    assert message in ran.stderr
    assert hint in ran.stderr


def test_outside_of_a_repository_files_are_the_way(locked: Project) -> None:
    ran = locked.run("diff")
    assert ran.code == 2
    assert "is in no git repository" in ran.stderr
    other = locked.spec_folder / "other.lock"
    other.write_bytes(locked.lock_path.read_bytes())
    assert locked.good("diff", "other.lock", "demo.lock", cwd=locked.spec_folder).code == 0


def test_a_damaged_lock_of_a_revision_names_the_revision(reviewed: Project) -> None:
    text = reviewed.lock_path.read_text(encoding="utf-8")
    reviewed.lock_path.write_text(text.replace("lock = 1", "lock = 9"), encoding="utf-8")
    commit(reviewed, "from the future")
    reviewed.lock_path.write_text(text, encoding="utf-8")
    ran = reviewed.run("diff")
    assert ran.code == 2
    assert "the lock has format 9" in ran.stderr
    assert "demo.lock, HEAD" in ran.stderr


def test_a_spec_that_cannot_be_read_is_said_and_the_lock_is_reviewed(reviewed: Project) -> None:
    text = reviewed.spec_path.read_text(encoding="utf-8")
    reviewed.spec_path.write_text(text + "[odd]\n", encoding="utf-8")
    commit(reviewed, "odd")
    reviewed.spec_path.write_text(text, encoding="utf-8")
    upgrade(reviewed)
    found = changes(reviewed)
    assert "cannot be read" in found["spec-unknown"]["consequences"][0]
    assert found["upgraded"]["because"] == []


def test_every_form_is_printed_and_only_text_goes_to_stdout(reviewed: Project) -> None:
    upgrade(reviewed)
    markdown = reviewed.good("diff", "--format", "markdown")
    assert markdown.stdout.startswith("<!-- envspec review -->\n### `demo.lock`: ")
    assert markdown.stderr == ""
    page = reviewed.good("diff", "--html").stdout
    assert page == reviewed.good("diff", "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert reviewed.good("diff", "--json").stdout == reviewed.good("diff", "--format", "json").stdout


def test_a_locale_without_arrows_changes_no_comment_and_breaks_no_text(reviewed: Project) -> None:
    upgrade(reviewed)
    plain = reviewed.good("diff", "--format", "markdown").stdout
    assert reviewed.good("diff", "--format", "markdown", PYTHONIOENCODING="ascii").stdout == plain
    assert reviewed.good("diff", PYTHONIOENCODING="ascii").stdout == reviewed.good("diff").stdout


def test_git_is_the_only_process_and_nobody_is_asked(reviewed: Project) -> None:
    upgrade(reviewed)
    ran = reviewed.run("diff", watch=True)
    assert ran.code == 0
    assert {event for event in ran.events if event.startswith("socket")} == set()
    assert 0 < ran.events.count("subprocess.Popen") <= 5


def test_nothing_that_a_repository_names_is_run(reviewed: Project, tmp_path: Path) -> None:
    upgrade(reviewed)
    mark = tmp_path / "ran"
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {mark}\nexec cat\n", encoding="utf-8")
    program.chmod(0o755)
    config = reviewed.spec_folder / ".git" / "config"
    keys: dict[str, dict[str, object]] = {
        "core": {"fsmonitor": program, "pager": program, "sshCommand": program, "editor": program},
        "diff": {"external": program},
        'diff "x"': {"textconv": program, "command": program},
        'filter "x"': {"smudge": program, "clean": program, "process": program, "required": "true"},
        "alias": {"rev-parse": f"!{program}", "cat-file": f"!{program}"},
        'remote "origin"': {"url": f"ext::{program}", "promisor": "true", "uploadpack": program},
        "extensions": {"partialClone": "origin"},
    }
    with config.open("a", encoding="utf-8") as file:
        for section, values in keys.items():
            file.write(f"[{section}]\n" + "".join(f"\t{name} = {value}\n" for name, value in values.items()))
    (reviewed.spec_folder / ".gitattributes").write_text("* filter=x diff=x\n", encoding="utf-8")
    assert "upgraded" in changes(reviewed, "HEAD")
    # An object that is not there is not fetched either.
    blob = git(reviewed.spec_folder, "rev-parse", "HEAD:demo.lock")
    (reviewed.spec_folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    ran = reviewed.run("diff", "HEAD")
    assert ran.code == 2
    assert "the repository lacks objects of the commit" in ran.stderr
    assert not mark.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_repository_of_another_user_is_read(reviewed: Project) -> None:
    """As in a container of a CI job, where the checkout belongs to somebody else."""
    upgrade(reviewed)
    for path in (reviewed.spec_folder, reviewed.spec_folder / ".git", reviewed.spec_folder / ".git" / "HEAD"):
        os.chown(path, NOBODY, NOBODY)
    assert "upgraded" in changes(reviewed)


def test_review_loads_nothing_that_resolves_fetches_or_judges(reviewed: Project) -> None:
    heavy = {"httpx", "rich", "tomlkit", "asyncio", "ssl", "builder.resolve", "builder.fetch", "envspec.checks"}
    ran = reviewed.run("diff", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "envspec.diff.review" in imported
    assert imported & heavy == set()
