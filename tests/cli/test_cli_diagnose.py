"""`envspec diagnose`: real venvs, broken by hand, looked at and run by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.handmade import install_venv, site_of
from tests.support.projects import snapshot_of

if TYPE_CHECKING:
    from tests.support.projects import Project

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/diagnose.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def venv(project: Project) -> Path:
    """A venv with two packages, of which one requires the other."""
    project.wheel(
        "alpha",
        "1.0",
        {"alpha/__init__.py": "from alpha import core\n", "alpha/core.py": "import beta\n"},
        requires=["beta>=1"],
        entry_points="[console_scripts]\nalpha = alpha:main\n",
    )
    for version in ("1.0", "1.1"):
        project.wheel("beta", version, {"beta/__init__.py": f"VALUE = {version!r}\n"})
    return install_venv(project.folder / "venv", project, ["alpha"])


def diagnose(project: Project, code: int, *arguments: str | Path, **environ: Any) -> dict[str, Any]:
    """Diagnose; the JSON object, which fits its schema."""
    ran = project.run("diagnose", *arguments, "--json", **environ)
    assert ran.code == code, ran.stderr
    told = ran.json()
    Draft202012Validator(SCHEMA).validate(told)
    return told


def test_sound_venv_has_no_cause_and_its_run_ends_well(project: Project, venv: Path) -> None:
    told = diagnose(project, 0, venv, "--run", "alpha")
    assert told["healthy"]
    assert told["causes"] == []
    assert told["run"]["ending"] == "ok"
    assert {each["package"] for each in told["not_causes"]} == {"alpha", "beta"}


def test_deleted_file_is_the_cause_of_a_failed_import(project: Project, venv: Path) -> None:
    (site_of(venv) / "alpha/core.py").unlink()
    told = diagnose(project, 1, venv, "--run", "alpha")
    (cause,) = told["causes"]
    assert (cause["check"], cause["packages"], cause["explains"]) == ("missing-file", ["alpha"], "failure")
    assert any("cannot import name 'core'" in line for line in cause["follows"])
    assert cause["fix_proven_by"] == "the index has this version"


def test_missing_package_is_offered_in_the_version_that_the_index_has(project: Project, venv: Path) -> None:
    for path in (*site_of(venv).glob("beta-*"), site_of(venv) / "beta"):
        for each in sorted(path.rglob("*"), reverse=True):
            each.rmdir() if each.is_dir() else each.unlink()
        path.rmdir()
    told = diagnose(project, 1, venv, "--run", "alpha")
    (cause,) = told["causes"]
    assert (cause["check"], cause["packages"]) == ("requires-dist", ["beta", "alpha"])
    assert "beta==1.1" in cause["fix"]
    assert "beta>=1" in cause["fix_proven_by"]
    offline = diagnose(project, 1, venv, "--run", "alpha", "--offline")
    assert "==" not in offline["causes"][0]["fix"]
    assert offline["causes"][0]["fix_proven_by"] is None


def test_index_that_does_not_answer_is_a_note_and_no_error(project: Project, venv: Path) -> None:
    (site_of(venv) / "beta/__init__.py").unlink()
    told = diagnose(project, 1, venv, UV_DEFAULT_INDEX="http://127.0.0.1:9/simple", UV_CACHE_DIR="")
    assert told["causes"][0]["check"] == "lost-package"
    assert told["causes"][0]["fix_proven_by"] is None


def test_edit_that_breaks_nothing_is_a_remark(project: Project, venv: Path) -> None:
    path = site_of(venv) / "beta/__init__.py"
    text = path.read_text(encoding="utf-8")
    path.unlink()
    path.write_text(text + "# mine\n", encoding="utf-8")
    told = diagnose(project, 0, venv, "--run", "alpha")
    assert told["causes"] == []
    assert any("beta/__init__.py" in remark for remark in told["remarks"])


def test_nothing_of_the_venv_is_run_or_written_without_run(project: Project, venv: Path) -> None:
    mark = project.folder / "mark"
    (site_of(venv) / "sitecustomize.py").write_text(f"open({str(mark)!r}, 'w')\n", encoding="utf-8")
    (site_of(venv) / "zz.pth").write_text(f"import os; open({str(mark)!r}, 'w')\n", encoding="utf-8")
    before = snapshot_of(venv)
    told = diagnose(project, 1, venv)
    assert not mark.exists()
    assert snapshot_of(venv) == before
    assert {cause["check"] for cause in told["causes"]} == {"stray-code"}


def test_moved_venv_is_told_by_its_programs(project: Project, venv: Path) -> None:
    told = diagnose(project, 1, venv.rename(venv.parent / "elsewhere"))
    assert told["causes"][0]["check"] == "moved-venv"
    assert "bin/alpha" in told["causes"][0]["message"]


def test_module_beside_the_user_hides_that_of_the_venv(project: Project, venv: Path) -> None:
    (project.spec_folder / "beta.py").write_text("VALUE = undefined\n", encoding="utf-8")
    told = diagnose(project, 1, venv, "--run", "alpha")
    assert (told["causes"][0]["check"], told["causes"][0]["packages"]) == ("shadowed-module", ["beta"])


def test_text_begins_with_the_venv_and_the_first_cause(project: Project, venv: Path) -> None:
    (site_of(venv) / "alpha/core.py").unlink()
    ran = project.run("diagnose", venv, "--offline")
    lines = ran.stdout.splitlines()
    assert ran.code == 1
    assert lines[0].startswith(f"{venv}  Python 3.")
    assert lines[1].startswith("cause 1  alpha 1.0 lacks 1 file: `alpha/core.py`")


@pytest.mark.parametrize("by", ["VIRTUAL_ENV", ".venv"])
def test_venv_that_is_not_named_is_said(project: Project, venv: Path, by: str) -> None:
    if by == ".venv":
        (project.spec_folder / ".venv").symlink_to(venv)
    ran = project.run("diagnose", "--offline", VIRTUAL_ENV=str(venv) if by == "VIRTUAL_ENV" else "")
    assert ran.code == 0, ran.stderr
    assert by in ran.stderr


def test_no_venv_is_an_error_with_what_to_do(project: Project) -> None:
    ran = project.run("diagnose", VIRTUAL_ENV="")
    assert ran.code == 2
    assert "hint: give its path: `envspec diagnose PATH`" in ran.stderr
    ran = project.run("diagnose", project.folder / "nowhere")
    assert ran.code == 2
    assert "nowhere" in ran.stderr


def test_host_needs_a_path_and_a_name(project: Project) -> None:
    assert project.run("diagnose", "--host", "h0").code == 2
    ran = project.run("diagnose", "/x", "--host=-oProxyCommand=touch")
    assert ran.code == 2
    assert "is no name of a host" in ran.stderr


@pytest.mark.parametrize(
    "arguments", [("diagnose", "--run", ""), ("diagnose", "--host", ""), ("adopt", "--host", "")], ids=" ".join
)
def test_option_of_a_variable_that_is_not_set_means_nothing_else(
    project: Project, venv: Path, arguments: tuple[str, ...]
) -> None:
    """`--host "$NAME"` must not mean this machine, nor `--run "$MODULE"` that nothing is run."""
    ran = project.run(arguments[0], venv, *arguments[1:])
    assert ran.code == 2
    assert arguments[1] in ran.stderr
    assert ran.stdout == ""
