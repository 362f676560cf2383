"""A lock that was edited by hand: whatever single field was changed or taken out, `lock --check` says so and names it.

`tests/real/test_real_tampering.py` does the same with every leaf of the committed lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.mutations import mutations
from tests.support.projects import REPOSITORY
from tests.support.tampering import Judge

if TYPE_CHECKING:
    from tests.support.projects import Project


def test_every_edit_of_a_single_field_is_caught_and_the_field_is_named(locked: Project) -> None:
    judge = Judge(locked.spec_path, locked.lock_path, locked.store / "facts")
    assert judge.verdict(locked.lock_text()).caught_by == ""
    tried = list(mutations(locked.lock_text()))
    verdicts = [(mutation, judge.verdict(mutation.text)) for mutation in tried]
    assert len(tried) > 60
    assert [each.path for each, verdict in verdicts if not verdict.caught_by] == []
    assert [(each.path, verdict.said) for each, verdict in verdicts if each.key not in verdict.said] == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('requires = ["beta"]\n', "", "`package[alpha].requires`: the lock has nothing, its wheels have [`beta`]"),
        ('glibc = "2.17"', 'glibc = "2.16"', "`target.glibc`: the lock has `2.16`, the spec has `2.17`"),
        (
            'index = "default"',
            'index = "other"',
            "`package[alpha].index`: the lock has `other`, the spec has `default`",
        ),
    ],
)
def test_edited_field_is_shown_with_both_values(locked: Project, old: str, new: str, said: str) -> None:
    text = locked.lock_text()
    assert old in text
    locked.lock_path.write_text(text.replace(old, new, 1))
    ran = locked.run("lock", "--check")
    assert ran.code == 1
    assert said in ran.stderr
    as_json = locked.run("lock", "--check", "--json").json()
    assert as_json["current"] is False
    assert said in as_json["reasons"]


def test_edited_sha256_is_named_where_this_machine_has_the_wheel(locked: Project) -> None:
    text = locked.lock_text()
    honest = text.partition('\nsha256 = "')[2][:64]
    other = ("0" if honest[0] != "0" else "1") + honest[1:]
    locked.lock_path.write_text(text.replace(honest, other))
    ran = locked.run("lock", "--check")
    assert ran.code == 2
    assert "its content gives" in ran.stderr
    assert f"package[0].sha256: the lock has `{other}`" in ran.stderr
    assert "package[1].sha256" not in ran.stderr


def test_lock_whose_wheels_were_never_measured_here_is_current_with_a_note(locked: Project) -> None:
    ran = locked.good("lock", "--check", "--store", locked.folder / "none")
    assert "2 of 2 packages were never measured here" in ran.stderr
    assert locked.good("lock", "--check", "--json", "--store", locked.folder / "none").json()["unmeasured"] == [
        "alpha",
        "beta",
    ]
    assert locked.good("lock", "--check", "--json").json()["unmeasured"] == []


def test_renew_judges_the_locked_wheels_anew_and_mends_what_was_edited(locked: Project) -> None:
    honest = locked.lock_text()
    locked.lock_path.write_text(honest.replace('requires = ["beta"]\n', "", 1))
    assert "unchanged" in locked.good("lock").stdout
    locked.good("lock", "--renew")
    assert locked.lock_text() == honest
    assert "unchanged" in locked.good("lock", "--renew").stdout


def test_renew_and_check_are_not_given_together(locked: Project) -> None:
    ran = locked.run("lock", "--check", "--renew")
    assert ran.code == 2
    assert "`--check` changes nothing, `--renew` does" in ran.stderr


# What follows from wheels alone: without facts of them only its form can be judged.
MEASURED = {"size", "tree", "requires", "requires_python", "cuda", "gpu_code", "file", "site", "version", "hook"}
MEASURED |= {"needs", "finding", "change"}


def test_edits_of_the_committed_lock_are_caught_where_no_wheel_is_needed() -> None:
    lock_path = REPOSITORY / "ddtree.lock"
    judge = Judge(REPOSITORY / "ddtree.toml", lock_path, REPOSITORY / "no-facts")
    tried = [
        mutation
        for mutation in mutations(lock_path.read_text(encoding="utf-8"), step=13, first=2)
        if not MEASURED & set(map(str, mutation.path))
    ]
    verdicts = [(mutation, judge.verdict(mutation.text, measured=False)) for mutation in tried]
    assert len(tried) > 80
    assert [each.path for each, verdict in verdicts if not verdict.caught_by] == []
    assert [(each.path, verdict.said) for each, verdict in verdicts if each.key not in verdict.said] == []
