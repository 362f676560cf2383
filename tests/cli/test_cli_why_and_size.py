"""`why`, `tree` and `size` on a project of two packages, one of them patched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.projects import Project


def test_why_shows_who_asks_and_with_which_words(locked: Project) -> None:
    ran = locked.good("why", "Beta")
    assert ran.stdout.splitlines() == [
        "beta 1.0",
        "  alpha 1.0 asks for `beta>=1`",
        "1 chain from the spec",
        "  alpha > beta",
    ]


def test_why_of_a_package_of_the_spec_says_so(locked: Project) -> None:
    shown = locked.good("why", "alpha").stdout
    assert "the spec asks for `alpha==1.0` in [packages]" in shown
    assert shown.endswith("1 chain from the spec\n  alpha\n")


def test_why_as_json(locked: Project) -> None:
    record = locked.good("why", "beta", "--json").json()
    assert record["chains"] == [["alpha", "beta"]]
    assert (record["chain_count"], record["chain_count_is_exact"]) == (1, True)
    assert record["requesters"] == [{"package": "alpha", "locked": "1.0", "requirements": ["beta>=1"]}]


def test_why_without_facts_still_shows_the_chains(locked: Project) -> None:
    ran = locked.good("why", "beta", "--store", locked.folder / "none")
    assert "not measured here" in ran.stdout
    assert "  alpha > beta" in ran.stdout


def test_why_shows_extras_and_markers_that_apply(project: Project) -> None:
    project.wheel("plugin", "1.0", {"plugin.py": ""})
    project.wheel(
        "host",
        "1.0",
        {"host.py": ""},
        requires=[
            'plugin>=1; extra == "more"',
            'plugin>=9; sys_platform == "win32"',
        ],
        extras=["more"],
    )
    project.write_spec({}, more="")
    project.spec_path.write_text(
        project.spec_path.read_text().replace(
            "[packages]\n", '[packages]\nhost = { version = "==1.0", extras = ["more"] }\n'
        )
    )
    project.good("lock")
    shown = project.good("why", "plugin").stdout
    assert 'host 1.0 asks for `plugin>=1; extra == "more"`' in shown
    assert "win32" not in shown
    assert "the spec asks for `host[more]==1.0` in [packages]" in project.good("why", "host").stdout


def test_why_of_a_package_that_is_not_locked_names_the_nearest(locked: Project) -> None:
    ran = locked.run("why", "bta")
    assert ran.code == 1
    assert "there is no package `bta` in the lock" in ran.stderr
    assert "did you mean `beta`?" in ran.stderr


def test_tree_goes_from_the_spec_down(locked: Project) -> None:
    lines = locked.good("tree").stdout.splitlines()
    assert lines[0] == "demo: 1 package in the spec, 2 locked"
    assert lines[1] == "└── alpha 1.0"
    assert lines[2].startswith("    └── beta 1.0+overlays.")
    assert locked.good("tree", "--depth", "0").stdout.splitlines() == lines[:2]
    (alpha, beta) = locked.good("tree", "--json").json()["packages"]
    assert alpha["requires"] == ["beta"]
    assert beta["required_by"] == ["alpha"]


def test_size_of_a_lock_that_was_never_built_comes_from_its_facts(locked: Project) -> None:
    record = locked.good("size", "--json").json()
    alpha = next(each for each in record["packages"] if each["package"] == "alpha")
    assert alpha["installed"] == sum(alpha["kinds"].values()) > 0
    assert record["installed"] == sum(each["installed"] for each in record["packages"])
    assert "bytecode" not in record["kinds"]


def test_size_of_a_built_environment_counts_bytecode_and_is_that_of_the_disk(built: Project) -> None:
    record = built.good("size", "--json").json()
    active = built.active()
    assert active is not None
    on_disk = sum(
        path.stat().st_size
        for folder in ("lib", "bin")
        for path in (active / folder).rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.startswith(("activate", "python", "deactivate"))
    )
    assert record["kinds"]["bytecode"] > 0
    assert record["installed"] == on_disk


def test_size_where_nothing_is_known_shows_the_wheels_and_says_so(locked: Project) -> None:
    ran = locked.good("size", "--store", locked.folder / "none")
    assert "unknown" in ran.stdout
    assert "2 of 2 packages were neither measured nor built here" in ran.stderr
