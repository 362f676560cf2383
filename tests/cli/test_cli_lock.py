"""`envspec lock`: what is written, when, and what is left alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.projects import PYTHON_MINOR, Project, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable


def requests(project: Project) -> list[str]:
    assert project.index is not None
    return [request.path for request in project.index.requests]


def edited(pattern: str, replacement: str) -> Callable[[str], str]:
    """A change of the first match in a text."""

    def edit(text: str) -> str:
        changed, count = re.subn(pattern, replacement, text, count=1, flags=re.MULTILINE)
        assert count == 1, pattern
        return changed

    return edit


def conflict(text: str) -> str:
    return f"<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> branch\n"


def test_lock_writes_what_was_decided_and_says_so(project: Project) -> None:
    project.wheel("beta", "1.0")
    project.write_spec({"beta": ">=1"})
    ran = project.good("lock")
    assert "demo.lock  written: 1 packages" in ran.stdout or "demo.lock  written: 1 package" in ran.stdout
    assert 'name = "beta"\nversion = "1.0"\n' in project.lock_text()
    assert project.leftovers() == []


def test_second_lock_leaves_the_bytes_as_they_are_and_asks_nobody(locked: Project) -> None:
    before, moment = locked.lock_text(), locked.lock_path.stat().st_mtime_ns
    ran = locked.good("lock", watch=True)
    assert "unchanged" in ran.stdout
    assert (locked.lock_text(), locked.lock_path.stat().st_mtime_ns) == (before, moment)
    assert ran.events == ()
    assert requests(locked) == []


def test_lock_in_a_fresh_store_leaves_the_bytes_as_they_are(locked: Project) -> None:
    before = locked.lock_text()
    locked.good("lock", "--store", locked.folder / "other")
    assert locked.lock_text() == before


def test_same_spec_locked_anew_gives_the_same_bytes(locked: Project) -> None:
    before = locked.lock_text()
    locked.lock_path.unlink()
    locked.good("lock", "--store", locked.folder / "other")
    assert locked.lock_text() == before


def test_comment_in_the_spec_moves_nothing(locked: Project) -> None:
    before = locked.lock_text()
    locked.spec_path.write_text("# why\n" + locked.spec_path.read_text())
    locked.good("lock")
    assert locked.lock_text() == before
    assert requests(locked) == []


def test_check_of_a_current_lock_is_good_without_network_or_process(locked: Project) -> None:
    ran = locked.good("lock", "--check", watch=True, UV=None, UV_DEFAULT_INDEX=None)
    assert "current" in ran.stdout
    assert ran.events == ()


def test_check_does_not_need_a_store_that_can_be_written(locked: Project) -> None:
    locked.good("lock", "--check", "--store", "/proc/nowhere")


def test_check_after_a_change_of_the_spec_says_stale(locked: Project) -> None:
    before = snapshot_of(locked.spec_folder)
    locked.spec_path.write_text(locked.spec_path.read_text().replace("==1.0", ">=1"))
    ran = locked.run("lock", "--check")
    assert ran.code == 1
    assert "stale: the spec has digest" in ran.stderr
    assert "envspec lock" in ran.stderr
    assert snapshot_of(locked.spec_folder)["demo.lock"] == before["demo.lock"]
    assert requests(locked) == []


def test_check_after_a_change_of_a_patch_names_it(locked: Project) -> None:
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    ran = locked.run("lock", "--check")
    assert ran.code == 1
    assert "stale: patches of `beta` changed: 0001-change.patch" in ran.stderr


def test_check_after_a_new_patch_names_it(locked: Project) -> None:
    overlays = locked.spec_folder / "overlays"
    (overlays / "0002-more.patch").write_text(
        "--- a/beta/more.py\n+++ b/beta/more.py\n@@ -1 +1 @@\n-MORE = 'x' * 10\n+MORE = 1\n"
    )
    (overlays / "series").write_text("0001-change.patch\n0002-more.patch\n")
    ran = locked.run("lock", "--check")
    assert ran.code == 1
    assert "0002-more.patch" in ran.stderr


def test_check_with_a_patch_that_is_gone_names_it(locked: Project) -> None:
    (locked.spec_folder / "overlays" / "0001-change.patch").unlink()
    ran = locked.run("lock", "--check")
    assert ran.code != 0
    assert "0001-change.patch" in ran.stderr


def test_check_without_a_lock_says_how_to_make_one(project: Project) -> None:
    project.write_spec({"beta": ">=1"})
    ran = project.run("lock", "--check")
    assert ran.code == 2
    assert "there is no lock beside `demo.toml`" in ran.stderr
    assert not project.lock_path.exists()


def test_check_and_upgrade_contradict_each_other(locked: Project) -> None:
    ran = locked.run("lock", "--check", "--upgrade", "beta")
    assert ran.code == 2
    assert "--check" in ran.stderr


def test_patch_that_changed_is_locked_without_asking_an_index(locked: Project) -> None:
    before = locked.lock_text()
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    locked.good("lock")
    assert locked.lock_text() != before
    assert requests(locked) == []
    locked.good("lock", "--check")


def test_all_problems_of_a_spec_are_named_at_once(project: Project) -> None:
    project.write_spec(
        {"beta": "1.0", "gamma": "==2"},
        python='exact = "3.9.1"',
        more='[verfy]\nimports = ["beta"]\n[overlays.beta]\nseries = "../series"',
    )
    ran = project.run("lock")
    assert ran.code == 2
    for said in ("packages.beta", "==1.0", "python.exact", "verfy", "verify", "overlays.beta.series"):
        assert said in ran.stderr
    assert not project.lock_path.exists()
    assert not project.store.exists()


@pytest.mark.parametrize("verb", ["lock", "build", "status", "verify", "generations", "rollback"])
def test_spec_with_merge_conflict_is_refused(locked: Project, verb: str) -> None:
    locked.spec_path.write_text(conflict(locked.spec_path.read_text()))
    before = snapshot_of(locked.spec_folder)
    ran = locked.run(verb)
    assert ran.code == 2
    assert "merge" in ran.stderr
    assert snapshot_of(locked.spec_folder) == before
    assert locked.environments() == []


DAMAGES: dict[str, Callable[[str], str]] = {
    "conflict": conflict,
    "truncated": lambda text: text[: len(text) // 2],
    "truncated to a whole line": lambda text: text[: text.index("[[package]]")],
    "empty": lambda _: "",
    "env": edited(r'^env = ".', 'env = "7'),
    "sha256": edited(r'^sha256 = "..', 'sha256 = "00'),
    "tree": edited(r'^tree = "[0-9a-f]+"', 'tree = "xyz"'),
    "version": edited(r'^version = "1\.0"', 'version = "1.1"'),
    "comment": edited(r"^\[python\]", "# mine\n[python]"),
    "unknown key": edited(r"^\[python\]", 'colour = "red"\n\n[python]'),
    "format": edited(r"^lock = 1", "lock = 2"),
    "crlf": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize(
    ("verb", "damage"),
    [
        *((verb, damage) for verb in ("lock", "build") for damage in DAMAGES),
        ("lock --check", "truncated"),
        ("lock --upgrade beta", "truncated"),
    ],
)
def test_damaged_lock_is_refused_and_nothing_changes(locked: Project, verb: str, damage: str) -> None:
    locked.lock_path.write_bytes(DAMAGES[damage](locked.lock_text()).encode())
    before = snapshot_of(locked.spec_folder)
    ran = locked.run(*verb.split())
    assert ran.code in {1, 2}
    assert "demo.lock" in ran.stderr
    assert snapshot_of(locked.spec_folder) == before
    assert locked.environments() == []
    assert requests(locked) == []
    assert "hint: " in ran.stderr


@pytest.mark.parametrize("damage", ["conflict", "truncated", "comment"])
def test_hint_for_a_damaged_lock_leads_out(locked: Project, damage: str) -> None:
    good = locked.lock_text()
    locked.lock_path.write_bytes(DAMAGES[damage](good).encode())
    ran = locked.run("lock")
    assert "delete it" in ran.stderr
    locked.lock_path.unlink()
    locked.good("lock")
    assert locked.lock_text() == good


def test_lock_with_an_edited_spec_digest_is_stale_and_written_anew(locked: Project) -> None:
    good = locked.lock_text()
    locked.lock_path.write_text(edited(r'^spec = "....', 'spec = "0000')(good))
    assert locked.run("lock", "--check").code == 1
    refused = locked.run("build")
    assert refused.code == 1
    assert locked.environments() == []
    locked.good("lock")
    assert locked.lock_text() == good


def test_build_refuses_an_edited_site_digest(locked: Project) -> None:
    good = locked.lock_text()
    locked.lock_path.write_text(edited(r'^site = "....', 'site = "0000')(good))
    ran = locked.run("build")
    assert ran.code == 1
    assert "site digest" in ran.stderr
    assert locked.active() is None
    assert locked.environments() == []
    assert locked.leftovers() == []


def test_build_refuses_an_edited_tree_digest(locked: Project) -> None:
    locked.lock_path.write_text(edited(r'^tree = "....', 'tree = "0000')(locked.lock_text()))
    ran = locked.run("build")
    assert ran.code == 1
    assert locked.active() is None
    assert locked.leftovers() == []


def test_lock_never_writes_where_a_check_fails(project: Project) -> None:
    project.wheel("beta", "1.0", data={"data/pyvenv.cfg": "evil\n"})
    project.write_spec({"beta": "==1.0"})
    ran = project.run("lock")
    assert ran.code == 1
    assert "reserved-path" in ran.stderr
    assert not project.lock_path.exists()
    assert project.leftovers() == []


def test_failed_check_leaves_the_former_lock(locked: Project) -> None:
    before = locked.lock_text()
    locked.wheel("gamma", "1.0", data={"data/pyvenv.cfg": "evil\n"})
    locked.spec_path.write_text(locked.spec_path.read_text().replace("[verify]", 'gamma = "*"\n[verify]'))
    ran = locked.run("lock")
    assert ran.code == 1
    assert "reserved-path" in ran.stderr
    assert locked.lock_text() == before


def test_snapshot_hides_what_was_published_later(project: Project) -> None:
    assert project.index is not None
    project.wheel("beta", "1.0")
    project.wheel("beta", "2.0")
    project.index.upload_times["beta-2.0-py3-none-any.whl"] = "2026-06-01T00:00:00Z"
    project.write_spec({"beta": "*"}, top="snapshot = 2026-05-20T00:00:00Z")
    project.good("lock")
    assert versions(project) == {"beta": "1.0"}
    assert 'snapshot = "2026-05-20T00:00:00Z"' in project.lock_text()
    project.write_spec({"beta": "*"}, top="snapshot = 2026-06-02T00:00:00Z")
    project.good("lock", "--upgrade", "beta")
    assert versions(project) == {"beta": "2.0"}


def test_index_without_dates_cannot_be_held_to_a_snapshot(project: Project) -> None:
    assert project.index is not None
    project.index.upload_time = None
    project.wheel("beta", "1.0")
    project.write_spec({"beta": "*"}, top="snapshot = 2026-05-20T00:00:00Z")
    ran = project.run("lock")
    assert ran.code == 1
    assert "no-upload-time" in ran.stderr
    assert not project.lock_path.exists()


def test_spec_that_is_named_is_the_one_that_is_locked(project: Project) -> None:
    project.wheel("beta", "1.0")
    project.write_spec({"beta": "==1.0"})
    project.spec_path.rename(project.spec_folder / "other.toml")
    project.good("lock", "--spec", project.spec_folder / "other.toml", cwd=project.home)
    assert (project.spec_folder / "other.lock").exists()


def test_lock_beside_the_spec_is_never_the_spec_itself(project: Project) -> None:
    project.write_spec({"beta": "==1.0"})
    ran = project.run("lock", "--spec", "demo.lock")
    assert ran.code == 2


def test_several_specs_have_to_be_chosen_from(project: Project) -> None:
    project.write_spec({"beta": "==1.0"})
    (project.spec_folder / "b.toml").write_bytes(project.spec_path.read_bytes())
    ran = project.run("lock")
    assert ran.code == 2
    assert "`b.toml`, `demo.toml`" in ran.stderr
    assert "--spec" in ran.stderr


def test_folder_without_a_spec_says_so(project: Project) -> None:
    (project.spec_folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    ran = project.run("status")
    assert ran.code == 2
    assert "no spec here" in ran.stderr


# Upgrading.


def spec_with_comments(project: Project) -> str:
    text = (
        "# the demo\n"
        "envspec = 1\n"
        'name = "demo"   # its name\n\n'
        f'[python]\nversion = "{PYTHON_MINOR}"\n\n'
        '[target]\nplatform = "linux-x86_64"\nglibc = "2.17"\n\n'
        "[packages]\n"
        'beta = "==1.0"  # pinned: see ticket 7\n'
        "# delta is ours\n"
        'delta = ">=1"\n'
        'alpha = { version = "==1.0", extras = [] }\n'
    )
    project.spec_path.write_text(text)
    return text


def four_packages(project: Project) -> None:
    project.wheel("alpha", "1.0")
    project.wheel("beta", "1.0", requires=["gamma"])
    project.wheel("delta", "1.0")
    project.wheel("gamma", "1.0")


def newer_packages(project: Project) -> None:
    project.wheel("alpha", "2.0")
    project.wheel("beta", "1.5", requires=["gamma"])
    project.wheel("beta", "2.0", requires=["gamma"])
    project.wheel("beta", "3.0rc1", requires=["gamma"])
    project.wheel("delta", "2.0")
    project.wheel("gamma", "2.0")


def versions(project: Project) -> dict[str, str]:
    return dict(re.findall(r'^name = "(.+)"\nversion = "(.+)"$', project.lock_text(), re.MULTILINE))


OLD = {"alpha": "1.0", "beta": "1.0", "delta": "1.0", "gamma": "1.0"}


def test_upgrade_of_a_pinned_package_moves_its_pin_and_nothing_else(project: Project) -> None:
    four_packages(project)
    text = spec_with_comments(project)
    project.good("lock")
    newer_packages(project)
    project.good("lock", "--upgrade", "Beta")
    assert project.spec_path.read_text() == text.replace('beta = "==1.0"', 'beta = "==2.0"')
    assert versions(project) == {**OLD, "beta": "2.0"}
    project.good("lock", "--check")


def test_upgrade_of_a_package_in_a_range_leaves_the_spec(project: Project) -> None:
    four_packages(project)
    text = spec_with_comments(project)
    project.good("lock")
    newer_packages(project)
    project.good("lock", "--upgrade", "delta")
    assert project.spec_path.read_text() == text
    assert versions(project) == {**OLD, "delta": "2.0"}


def test_upgrade_of_a_transitive_package_moves_only_that(project: Project) -> None:
    four_packages(project)
    text = spec_with_comments(project)
    project.good("lock")
    newer_packages(project)
    project.good("lock", "--upgrade", "gamma")
    assert project.spec_path.read_text() == text
    assert versions(project) == {**OLD, "gamma": "2.0"}


def test_several_packages_are_upgraded_at_once(project: Project) -> None:
    four_packages(project)
    text = spec_with_comments(project)
    project.good("lock")
    newer_packages(project)
    project.good("lock", "--upgrade", "alpha", "--upgrade", "gamma")
    assert project.spec_path.read_text() == text.replace('{ version = "==1.0"', '{ version = "==2.0"')
    assert versions(project) == {**OLD, "alpha": "2.0", "gamma": "2.0"}


def test_upgrade_with_nothing_newer_changes_nothing(project: Project) -> None:
    four_packages(project)
    spec_with_comments(project)
    project.good("lock")
    before = snapshot_of(project.spec_folder)
    project.good("lock", "--upgrade", "beta")
    assert snapshot_of(project.spec_folder) == before


def test_without_upgrade_nothing_moves_even_where_the_spec_changes(project: Project) -> None:
    four_packages(project)
    spec_with_comments(project)
    project.good("lock")
    newer_packages(project)
    project.spec_path.write_text(project.spec_path.read_text().replace('delta = ">=1"', 'delta = ">=0.5"'))
    project.good("lock")
    assert versions(project) == OLD


def test_unknown_name_to_upgrade_suggests_the_nearest(locked: Project) -> None:
    before = snapshot_of(locked.spec_folder)
    ran = locked.run("lock", "--upgrade", "bata")
    assert ran.code == 2
    assert "there is no package `bata` to upgrade" in ran.stderr
    assert "did you mean `beta`" in ran.stderr
    assert snapshot_of(locked.spec_folder) == before
    assert requests(locked) == []


def test_unknown_name_before_the_first_lock_suggests_the_nearest(project: Project) -> None:
    project.write_spec({"beta": "==1.0"})
    ran = project.run("lock", "--upgrade", "bata")
    assert ran.code == 2
    assert "did you mean `beta`" in ran.stderr


def test_upgrade_that_fails_leaves_spec_and_lock(locked: Project) -> None:
    locked.spec_path.write_text(locked.spec_path.read_text().replace("[verify]", 'beta = "==1.0"\n[verify]'))
    locked.good("lock")
    locked.wheel("beta", "2.0", {"beta/__init__.py": "VALUE = 7\n"})
    before = snapshot_of(locked.spec_folder)
    ran = locked.run("lock", "--upgrade", "beta")
    assert ran.code == 1
    assert "0001-change.patch" in ran.stderr
    assert snapshot_of(locked.spec_folder) == before
    assert locked.leftovers() == []
