"""`envspec overlay edit`, `save` and `rebase`, as a user runs them: with a lock, a store and an index."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.overlay import read_series
from tests.support.projects import CREDENTIALS, Project, remove_tree, snapshot_of

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = int(os.environ.get("ENVSPEC_KILL_ROUNDS", "40")) // 20
SEED = 20261130
BETA = {"beta/__init__.py": "VALUE = 1\n", "beta/more.py": "MORE = 'x' * 10\n"}


def git(project: Project, *arguments: str) -> str:
    done = subprocess.run(
        ["/usr/bin/env", "git", *arguments],
        cwd=tree(project),
        env=project.environ(),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tree(project: Project) -> Path:
    """The work tree of beta in its default place."""
    return project.spec_folder / ".overlay" / "beta"


def series(project: Project) -> dict[str, tuple[int, bytes]]:
    return snapshot_of(project.spec_folder / "overlays")


def commit(project: Project, path: str, text: str, message: str) -> None:
    (tree(project) / path).write_text(text)
    git(project, "add", "-A")
    git(project, "commit", "-qm", message)


def test_patch_is_made_saved_locked_built_and_used(locked: Project) -> None:
    ran = locked.good("overlay", "edit", "beta")
    assert f"path      {tree(locked)}  made\n" in ran.stdout
    assert "base      beta 1.0  beta-1.0-py3-none-any.whl\n" in ran.stdout
    assert "patches   1\n  0001-change.patch\n" in ran.stdout
    assert "envspec overlay save beta" in ran.stderr
    commit(locked, "beta/__init__.py", "VALUE = 2\nOTHER = 5\n", "beta: have another value\n\nPurpose: to be seen\n")
    ran = locked.good("overlay", "save", "beta")
    assert "unchanged  0001-change.patch\nnew        0002-beta-have-another-value.patch\n" in ran.stdout
    assert "next: `envspec lock`" in ran.stderr
    assert "patches of `beta` changed: 0002-beta" in locked.run("lock", "--check").stderr
    locked.good("lock")
    assert 'path = "beta/__init__.py"' in locked.lock_text()
    ran = locked.good("overlay", "save", "beta")
    assert "series     " in ran.stdout
    assert "  unchanged\n" in ran.stdout
    assert ran.stderr == ""
    locked.good("build")
    assert locked.site("beta/__init__.py").read_text() == "VALUE = 2\nOTHER = 5\n"


def test_series_is_begun_with_the_lock_from_before(locked: Project) -> None:
    locked.spec_path.write_text(locked.spec_path.read_text() + '[overlays.alpha]\nseries = "overlays/alpha/series"\n')
    assert "patches   0\n" in locked.good("overlay", "edit", "alpha", "--dir", "tree").stdout
    work = locked.spec_folder / "tree"
    (work / "alpha/data.txt").write_text("more\n")
    subprocess.run(["/usr/bin/env", "git", "commit", "-qam", "more data"], cwd=work, env=locked.environ(), check=True)
    assert "new        0001-more-data.patch\n" in locked.good("overlay", "save", "alpha", "--dir", "tree").stdout
    locked.good("lock")
    assert 'version = "1.0+alpha.' in locked.lock_text()


def test_work_tree_is_not_seen_by_the_version_control_of_the_project(locked: Project) -> None:
    subprocess.run(["/usr/bin/env", "git", "init", "-q"], cwd=locked.spec_folder, env=locked.environ(), check=True)
    before = git_status(locked)
    locked.good("overlay", "edit", "beta")
    assert git_status(locked) == before


def git_status(project: Project) -> str:
    done = subprocess.run(
        ["/usr/bin/env", "git", "status", "--porcelain", "-uall"],
        cwd=project.spec_folder,
        env=project.environ(),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def test_json_of_the_three_verbs(locked: Project) -> None:
    wheel = next(locked.store.glob("wheels/*/beta-1.0-*.whl"))
    edited = locked.good("overlay", "edit", "beta", "--json", "--dir", "../work").json()
    work = locked.folder / "work"
    base = edited["base"]
    assert (base["version"], base["file"], base["sha256"]) == ("1.0", wheel.name, wheel.parent.name)
    assert {**edited, "base": None} == {
        "version": 1,
        "package": "beta",
        "path": str(work),
        "made": True,
        "base": None,
        "patches": ["0001-change.patch"],
        "left_out": [],
    }
    assert locked.good("overlay", "edit", "beta", "--json", "--dir", work).json()["made"] is False
    assert locked.good("overlay", "save", "beta", "--json", "--dir", work).json() == {
        "version": 1,
        "package": "beta",
        "path": str(work),
        "series": str(locked.spec_folder / "overlays/series"),
        "base": base,
        "written": False,
        "patches": [{"name": "0001-change.patch", "status": "unchanged", "old_name": "0001-change.patch"}],
        "next": [],
    }
    locked.wheel("beta", "1.1", {**BETA, "beta/__init__.py": "VALUE = 9\n"})
    ran = locked.run("overlay", "rebase", "beta", "--to", "1.1", "--json", "--dir", work)
    assert ran.code == 1
    assert "conflict: 0001-change.patch does not merge with beta 1.1" in ran.stderr
    rebased = ran.json()
    assert (rebased["from"]["version"], rebased["to"]["version"], rebased["moved"], rebased["conflicts"]) == (
        "1.0",
        "1.1",
        True,
        True,
    )
    assert rebased["patches"] == [
        {"name": "0001-change.patch", "subject": "Change a line", "result": "conflict", "files": ["beta/__init__.py"]}
    ]
    error = locked.run("overlay", "save", "beta", "--json", "--dir", work)
    assert error.code == 1
    assert "a rebase is under way" in error.json()["error"]["message"]


def test_rebase_carries_the_series_and_says_what_the_spec_needs(locked: Project) -> None:
    before = series(locked)
    locked.wheel("beta", "1.1", {**BETA, "beta/other.py": "OTHER = 1\n"})
    ran = locked.good("overlay", "rebase", "beta", "--to", "1.1")
    assert (
        "from      beta 1.0  beta-1.0-py3-none-any.whl\nto        beta 1.1  beta-1.1-py3-none-any.whl\n" in ran.stdout
    )
    assert "carried   0001-change.patch\n" in ran.stdout
    assert CREDENTIALS[1] not in ran.text
    assert "http" not in ran.text
    assert series(locked) == before
    ran = locked.good("overlay", "save", "beta")
    assert "unchanged  0001-change.patch\n" in ran.stdout
    assert 'next: `beta = "==1.1"` in [packages] of demo.toml' in ran.stderr
    spec = locked.spec_path.read_text().replace("[packages]\n", '[packages]\nbeta = "==1.1"\n')
    locked.spec_path.write_text(spec)
    locked.good("lock")
    assert 'version = "1.1+overlays.' in locked.lock_text()
    ran = locked.good("overlay", "save", "beta")
    assert ran.stderr == ""
    assert "the series stands on it already" in locked.good("overlay", "rebase", "beta", "--to", "1.1").stdout


def test_patch_that_the_new_version_has_is_said(locked: Project) -> None:
    locked.wheel("beta", "1.1", {**BETA, "beta/__init__.py": "VALUE = 2\n"})
    ran = locked.good("overlay", "rebase", "beta", "--to", "1.1")
    assert "upstream  0001-change.patch  beta 1.1 has it: dropped\n" in ran.stdout
    ran = locked.run("overlay", "save", "beta")
    assert ran.code == 1
    assert "take [overlays.beta] out of the spec" in ran.stderr


def test_version_after_the_snapshot_is_found_and_said(locked: Project) -> None:
    assert locked.index is not None
    wheel = locked.wheel("beta", "1.1", {**BETA, "beta/new.py": "\n"})
    locked.index.upload_times[wheel.name] = "2024-01-01T00:00:00Z"
    locked.spec_path.write_text("snapshot = 2022-01-01T00:00:00Z\n" + locked.spec_path.read_text())
    ran = locked.good("overlay", "rebase", "beta", "--to", "1.1")
    assert "beta 1.1 was published after `snapshot` of demo.toml" in ran.stderr


def test_base_wheel_that_is_not_in_the_store_is_fetched_by_its_sha256(locked: Project) -> None:
    locked.good("overlay", "edit", "beta", "--store", locked.folder / "other")
    assert len(list((locked.folder / "other").glob("wheels/*/beta-1.0-*.whl"))) == 1
    remove_tree(tree(locked))
    locked.wheel("beta", "1.0", {**BETA, "beta/more.py": "swapped\n"})
    ran = locked.run("overlay", "edit", "beta", "--store", locked.folder / "third")
    assert ran.code == 1
    assert "[hash-changed]" in ran.stderr
    assert not tree(locked).exists()


def test_base_wheel_that_was_edited_in_the_store_is_not_taken(locked: Project) -> None:
    wheel = next(locked.store.glob("wheels/*/beta-1.0-*.whl"))
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.chmod(0o644)
    wheel.write_bytes(content)
    ran = locked.run("overlay", "edit", "beta")
    assert ran.code == 1
    assert f"it is to have {wheel.parent.name}" in ran.stderr
    assert not tree(locked).exists()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["edit", "alpha"], 2, ["the spec has no overlay for `alpha`", "it has one for `beta`"]),
        (["save", "beta"], 2, ["there is no work tree of `beta`", "envspec overlay edit beta"]),
        (
            ["rebase", "beta", "--to", "9.9"],
            1,
            ["the index `default` has no wheel of `beta` 9.9", "name a version that is there"],
        ),
        (["rebase", "beta", "--to", "newest"], 2, ["`newest` is not a version"]),
        (["rebase", "beta", "--to", "1.0; x"], 2, ["is not a version"]),
        (["rebase", "beta"], 2, ["--to"]),
        (["mend", "beta"], 2, ["mend"]),
        (["edit", "beta", "--dir", "."], 2, ["is there and no work tree of envspec", "--dir DIR"]),
    ],
)
def test_what_cannot_be_done_is_said_with_what_can(
    locked: Project, arguments: list[str], code: int, told: list[str]
) -> None:
    before = series(locked)
    ran = locked.run("overlay", *arguments)
    assert ran.code == code, ran.text
    for text in told:
        assert text in ran.stderr
    assert series(locked) == before


def test_machine_without_git_is_told_what_to_install(locked: Project) -> None:
    ran = locked.run("overlay", "edit", "beta", PATH=str(locked.folder / "bin"))
    assert ran.code == 2
    assert "error: git was not found, or does not start" in ran.stderr
    assert "hint: install git" in ran.stderr


def test_git_configuration_of_the_user_changes_nothing(locked: Project) -> None:
    (locked.home / ".gitconfig").write_text(
        "[core]\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n[init]\n\ttemplateDir = /nonexistent\n"
    )
    before = series(locked)
    locked.good(
        "overlay", "edit", "beta", GIT_DIR="/nonexistent", GIT_AUTHOR_DATE="nonsense", GIT_CONFIG_PARAMETERS="'x"
    )
    locked.good("overlay", "save", "beta", GIT_DIR="/nonexistent")
    assert series(locked) == before


@pytest.mark.parametrize("verb", ["edit", "save", "rebase"])
def test_kill_leaves_the_old_series_or_the_new_one_and_work_that_goes_on(locked: Project, verb: str) -> None:
    instants = random.Random(f"{SEED}{verb}")  # noqa: S311 - no secret
    overlays = locked.spec_folder / "overlays"
    digests = {read_series(overlays / "series").digest}
    locked.wheel("beta", "1.1", {**BETA, "beta/other.py": "OTHER = 1\n"})
    if verb != "edit":
        locked.good("overlay", "edit", "beta")
        commit(locked, "beta/more.py", "MORE = 2\n", "more")
    original, saved = series(locked), tree(locked).parent
    kept = locked.folder / "kept"
    if verb != "edit":
        subprocess.run(["/usr/bin/env", "cp", "-a", saved, kept], check=True)
    arguments = ("overlay", verb, "beta", *(["--to", "1.1"] if verb == "rebase" else []))
    for number in range(ROUNDS):
        instant = instants.uniform(0.15, 1.2 if verb == "rebase" else 0.6)
        process = locked.start(*arguments)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(instant)
        process.kill()
        _, errors = process.communicate()
        assert "Traceback" not in errors
        what = f"round {number}, killed after {instant:.3f} s"
        if verb == "save":
            locked.good("overlay", "save", "beta")
            digests.add(read_series(overlays / "series").digest)
            assert sorted(series(locked)) == ["0001-change.patch", "0002-more.patch", "series"], what
        else:
            assert series(locked) == original, what
            if verb == "rebase" and (tree(locked) / ".git" / "rebase-merge").exists():
                git(locked, "rebase", "--abort")
            locked.good(*arguments)
        assert [path.name for path in tree(locked).parent.iterdir() if path.name not in {".gitignore", "beta"}] == [], (
            what
        )
        remove_tree(saved)
        if verb != "edit":
            subprocess.run(["/usr/bin/env", "cp", "-a", kept, saved], check=True)
        for name in series(locked).keys() - original.keys():
            (overlays / name).unlink()
        for name, (_, content) in original.items():
            (overlays / name).write_bytes(content)
    assert len(digests) == (2 if verb == "save" else 1)
