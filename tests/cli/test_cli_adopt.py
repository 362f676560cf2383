"""`envspec adopt`: hand-made venvs become folders whose lock and build have the same bytes, but for what the report lists."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from envspec.patch import parse_patch
from tests.support.handmade import differences, install_venv, site_of
from tests.support.projects import PYTHON_MINOR, SITE_PACKAGES, snapshot_of

if TYPE_CHECKING:
    from tests.support.projects import Project

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/adopt.schema.json").read_text(encoding="utf-8"))
BINARY = b"\x7fELF\0\1\2\3" + bytes(range(256))


@pytest.fixture
def stocked(project: Project) -> Project:
    """A project whose index has three packages, one of them in two versions."""
    project.wheel(
        "alpha",
        "1.0",
        {
            "alpha/__init__.py": "import beta\n\n\ndef main():\n    print(beta.VALUE)\n",
            "alpha/crlf.txt": b"one\r\ntwo\r\nthree\r\n",
            "alpha/latin.txt": "na\xefve\n".encode("latin-1"),
            "alpha/gone.py": "GONE = 1\n",
            "alpha/kept.py": "KEPT = 1\n",
        },
        requires=["beta>=1"],
        entry_points="[console_scripts]\nalpha = alpha:main\n",
    )
    for version in ("1.0", "1.1", "1.2"):
        project.wheel(
            "beta",
            version,
            {
                "beta/__init__.py": f"VALUE = {version!r}\n",
                "beta/native.so": BINARY + version.encode(),
                "beta/data.bin": b"\0same",
                "beta/version.py": f"__version__ = {version!r}\n",
            },
        )
    project.wheel("gamma", "3.0", {"gamma.py": "GAMMA = 3\n"})
    return project


def adopt(project: Project, venv: Path, *more: str | Path, **environ: str) -> dict[str, Any]:
    """Adopt a venv into `spec/out`; the JSON object."""
    out: list[str | Path] = [] if "--out" in more else ["--out", project.spec_folder / "out"]
    report = project.good("adopt", venv, *out, "--name", "demo", "--json", *more, **environ).json()
    Draft202012Validator(SCHEMA).validate(report)
    return report


def build(project: Project) -> Path:
    """Lock and build what was written; the environment."""
    for verb in ("lock", "build"):
        project.good(verb, "--quiet", cwd=project.spec_folder / "out")
    active = project.active()
    assert active is not None
    return active


def kinds(report: dict[str, Any]) -> dict[str, str]:
    """Path below site-packages, or below the prefix -> kind, of what is not simply the same."""
    return {
        each["path"].removeprefix(f"{SITE_PACKAGES}/"): each["kind"]
        for each in report["paths"]
        if each["kind"] != "made"
    }


def spec_of(project: Project) -> str:
    return (project.spec_folder / "out/demo.toml").read_text(encoding="utf-8")


def test_untouched_venv_is_explained_whole_and_built_the_same(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0", "beta==1.1", "gamma"])
    report = adopt(stocked, venv)
    assert kinds(report) == {}
    assert report["explained"]["files_percent"] == report["explained"]["bytes_percent"] == "100"
    assert differences(venv, build(stocked), report) == []


def test_edits_new_files_and_deletions_come_out_as_patches_that_build_the_same_bytes(
    stocked: Project, tmp_path: Path
) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0", "beta==1.1"])
    site = site_of(venv)
    (site / "alpha/__init__.py").write_text("import beta\n\n\ndef main():\n    print('edited', beta.VALUE)")
    (site / "alpha/crlf.txt").write_bytes(b"one\r\nTWO\r\nthree\r\n")
    (site / "alpha/latin.txt").write_bytes("na\xefve \xe9\n".encode("latin-1"))
    (site / "alpha/gone.py").unlink()
    (site / "alpha/deep/er").mkdir(parents=True)
    (site / "alpha/deep/er/new.py").write_text("NEW = 1\n")
    (site / "alpha/deep/__init__.py").write_text("")
    (site / "beta/__init__.py").write_text("VALUE = 'mine'\n")
    report = adopt(stocked, venv)
    assert kinds(report) == {
        "alpha/__init__.py": "patched",
        "alpha/crlf.txt": "patched",
        "alpha/latin.txt": "patched",
        "alpha/gone.py": "deleted",
        "alpha/deep/er/new.py": "patched",
        "alpha/deep/__init__.py": "patched",
        "beta/__init__.py": "patched",
    }
    assert report["explained"]["files_percent"] == "100"
    assert [each["package"] for each in report["overlays"]] == ["alpha", "beta"]
    patch = (stocked.spec_folder / "out/overlays/alpha/0001-adopted-from-a-venv.patch").read_bytes()
    assert {file.path: file.kind for file in parse_patch(patch, input_name="x").files} == {
        "alpha/__init__.py": "modify",
        "alpha/crlf.txt": "modify",
        "alpha/deep/__init__.py": "add",
        "alpha/deep/er/new.py": "add",
        "alpha/gone.py": "delete",
        "alpha/latin.txt": "modify",
    }
    assert b"Written by `envspec adopt`" in patch
    assert differences(venv, build(stocked), report) == []


def test_foreign_binary_is_named_with_its_wheel_and_the_rest_is_built(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["beta==1.1", "gamma"])
    (site_of(venv) / "beta/native.so").write_bytes(BINARY + b"1.0")
    (site_of(venv) / "beta/data.bin").write_bytes(b"\0nobody's")
    report = adopt(stocked, venv)
    assert kinds(report) == {"beta/native.so": "foreign", "beta/data.bin": "unexplained"}
    (native,) = [each for each in report["paths"] if each["path"].endswith("native.so")]
    assert native["wheel"] == "beta-1.0-py3-none-any.whl"
    assert "pin beta to 1.0" in native["advice"]
    assert differences(venv, build(stocked), report) == []


def test_files_of_another_version_under_an_old_dist_info_are_that_version(stocked: Project, tmp_path: Path) -> None:
    """As where a folder was copied over: what counts is what is imported, not what the metadata says."""
    venv = install_venv(tmp_path / "venv", stocked, ["beta==1.2"])
    other = install_venv(tmp_path / "other", stocked, ["beta==1.0"])
    for file in (path for path in (site_of(other) / "beta").iterdir() if path.is_file()):
        (site_of(venv) / "beta" / file.name).write_bytes(file.read_bytes())
    report = adopt(stocked, venv)
    (beta,) = report["packages"]
    assert (beta["stated"], beta["version"]) == ("1.2", "1.0")
    assert beta["reason"] == "the dist-info says 1.2, the files are those of 1.0"
    assert 'beta = "==1.0"' in spec_of(stocked)
    assert {kind for path, kind in kinds(report).items() if path.startswith("beta/")} == set()
    assert differences(venv, build(stocked), report) == []


def test_wheel_that_no_index_has_comes_along_and_is_built(stocked: Project, tmp_path: Path) -> None:
    local = stocked.folder / "local"
    stocked.wheels, kept = local, stocked.wheels
    wheel = stocked.wheel("delta", "0.1", {"delta/__init__.py": "D = 1\n"})
    stocked.wheels = kept
    venv = install_venv(tmp_path / "venv", stocked, ["gamma"], wheels=[wheel])
    report = adopt(stocked, venv)
    assert report["local_wheels"] == ["delta-0.1-py3-none-any.whl"]
    assert kinds(report) == {}
    built = build(stocked)
    assert differences(venv, built, report) == []
    # The folder is all that it takes.
    wheel.unlink()
    assert (built / SITE_PACKAGES / "delta/__init__.py").exists()


def test_wheel_of_a_wheelhouse_explains_what_the_index_does_not(stocked: Project, tmp_path: Path) -> None:
    local = tmp_path / "wheelhouse"
    stocked.wheels, kept = local, stocked.wheels
    stocked.wheel("gamma", "3.0", {"gamma.py": "GAMMA = 'rebuilt'\n", "gamma_more.py": "x\n"}, build="1")
    stocked.wheels = kept
    venv = install_venv(tmp_path / "venv", stocked, wheels=[next(local.iterdir())])
    direct = next(site_of(venv).glob("gamma-*.dist-info/direct_url.json"))
    direct.unlink()
    without = adopt(stocked, venv, "--out", tmp_path / "without")
    assert without["explained"]["files_percent"] != "100"
    report = adopt(stocked, venv, "--wheelhouse", local)
    assert kinds(report) == {}
    assert differences(venv, build(stocked), report) == []


def test_strays_hooks_and_changed_scripts_are_listed_with_what_to_do(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0", "beta==1.1"])
    site = site_of(venv)
    (site / "stray.py").write_text("x = 1\n")
    (site / "zz.pth").write_text("/srv/code\n")
    (venv / "bin/alpha").write_text("#!/bin/sh\nexec rm -rf /\n")
    (venv / "bin/tool").write_text("#!/bin/sh\n")
    (site / "alpha/link.py").symlink_to("/etc/passwd")
    (site / "alpha/lost.py").symlink_to("nowhere.py")
    (site / "loop.py").symlink_to("loop.py")
    report = adopt(stocked, venv)
    assert kinds(report) == {
        "stray.py": "unexplained",
        "zz.pth": "unexplained",
        "bin/alpha": "unexplained",
        "bin/tool": "unexplained",
        "alpha/link.py": "unexplained",
        "alpha/lost.py": "unexplained",
        "loop.py": "unexplained",
    }
    assert all(each["advice"] for each in report["paths"] if each["kind"] == "unexplained")
    text = (stocked.spec_folder / "out/adopt-report.md").read_text(encoding="utf-8")
    assert "`bin/tool`" in text
    assert "/etc/passwd" not in text or "root:" not in text
    assert differences(venv, build(stocked), report) == []


def test_editable_install_is_listed_and_others_are_adopted(stocked: Project, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "epsilon").mkdir(parents=True)
    (source / "epsilon/__init__.py").write_text("E = 1\n")
    venv = install_venv(tmp_path / "venv", stocked, ["gamma"])
    info = site_of(venv) / "epsilon-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: epsilon\nVersion: 0.1\n")
    (info / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))
    (info / "RECORD").write_text(
        "epsilon-0.1.dist-info/METADATA,,\n__editable__.epsilon.pth,,\nepsilon-0.1.dist-info/RECORD,,\n"
    )
    (site_of(venv) / "__editable__.epsilon.pth").write_text(f"{source}\n")
    report = adopt(stocked, venv)
    epsilon = next(each for each in report["packages"] if each["package"] == "epsilon")
    assert epsilon["version"] is None
    assert "an editable install of" in epsilon["reason"]
    assert "epsilon" not in spec_of(stocked)
    assert differences(venv, build(stocked), report) == []


def test_requirement_that_the_venv_does_not_keep_is_overridden_and_named(stocked: Project, tmp_path: Path) -> None:
    stocked.wheel("needy", "1.0", {"needy.py": "x\n"}, requires=["beta==1.2", "gamma>=4"])
    venv = install_venv(tmp_path / "venv", stocked, ["beta==1.0"])
    install_venv(venv, stocked, ["--no-deps", "needy", "gamma==3.0"])
    report = adopt(stocked, venv)
    assert [(each["requester"], each["requirement"], each["version"]) for each in report["conflicts"]] == [
        ("needy 1.0", "beta==1.2", "1.0"),
        ("needy 1.0", "gamma>=4", "3.0"),
    ]
    text = spec_of(stocked)
    assert '[overrides]\n# needy 1.0 asks for `beta==1.2`\nbeta = "==1.0"' in text
    assert differences(venv, build(stocked), report) == []


def test_requested_packages_come_first_and_all_are_pinned(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha"])
    adopt(stocked, venv)
    text = spec_of(stocked)
    assert text.index('alpha = "==1.0"') < text.index("# Needed by the packages above") < text.index('beta = "==1.2"')


def test_file_that_two_packages_have_gets_the_owner_whose_bytes_are_there(stocked: Project, tmp_path: Path) -> None:
    stocked.wheel("left", "1", {"shared.py": "LEFT = 1\n", "left.py": ""})
    stocked.wheel("right", "1", {"shared.py": "RIGHT = 1\n", "right.py": ""})
    venv = install_venv(tmp_path / "venv", stocked, ["right"])
    install_venv(venv, stocked, ["left"])
    report = adopt(stocked, venv)
    (collision,) = report["collisions"]
    assert (collision["path"], collision["owner"]) == ("shared.py", "left")
    assert kinds(report) == {}
    assert differences(venv, build(stocked), report) == []


def test_module_copied_without_metadata_is_pinned_to_the_version_that_has_it(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["gamma"])
    other = install_venv(tmp_path / "other", stocked, ["beta==1.1"])
    (site_of(other) / "beta").rename(site_of(venv) / "beta")
    report = adopt(stocked, venv)
    beta = next(each for each in report["packages"] if each["package"] == "beta")
    assert (beta["version"], beta["reason"]) == ("1.1", "copied here without its metadata")
    assert differences(venv, build(stocked), report) == []


def test_environment_that_envspec_built_is_explained_by_base_and_patches(built: Project) -> None:
    active = built.active()
    assert active is not None
    report = adopt(built, active)
    assert report["explained"]["files_percent"] == "100"
    assert [(each["package"], [file["path"] for file in each["files"]]) for each in report["overlays"]] == [
        ("beta", ["beta/__init__.py"])
    ]


def test_local_version_label_that_the_index_does_not_know_is_left_out(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["beta==1.1"])
    site = site_of(venv)
    (site / "beta-1.1.dist-info").rename(site / "beta-1.1+cu130.dist-info")
    record = site / "beta-1.1+cu130.dist-info/RECORD"
    record.write_text(record.read_text().replace("beta-1.1.dist-info", "beta-1.1+cu130.dist-info"))
    report = adopt(stocked, venv)
    (beta,) = report["packages"]
    assert beta["version"] == "1.1"
    assert kinds(report) == {}


def test_text_that_is_another_versions_file_is_a_patch_that_says_so(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["beta==1.1"])
    (site_of(venv) / "beta/__init__.py").write_text("VALUE = '1.2'\n")
    report = adopt(stocked, venv)
    assert kinds(report) == {"beta/__init__.py": "patched"}
    (row,) = [each for each in report["paths"] if each["kind"] == "patched"]
    assert "byte for byte `beta/__init__.py` of beta 1.2" in row["reason"]


def test_package_stripped_of_many_files_is_not_patched_but_named(stocked: Project, tmp_path: Path) -> None:
    stocked.wheel("many", "1", {f"many/m{number}.py": f"x = {number}\n" for number in range(500)})
    venv = install_venv(tmp_path / "venv", stocked, ["many"])
    for number in range(250, 500):
        (site_of(venv) / f"many/m{number}.py").unlink()
    report = adopt(stocked, venv)
    assert set(kinds(report).values()) == {"restored"}
    assert report["overlays"] == []


@pytest.mark.parametrize("what", ["a file", "a folder with a file", "a link"])
def test_nothing_is_written_over(stocked: Project, tmp_path: Path, what: str) -> None:
    out = stocked.spec_folder / "out"
    if what == "a file":
        out.write_text("mine")
    elif what == "a link":
        out.symlink_to(tmp_path)
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    before = snapshot_of(stocked.spec_folder)
    ran = stocked.run("adopt", tmp_path / "venv", "--out", out, "--name", "demo")
    assert ran.code == 1
    said = "is there already and is not empty" if what != "a file" else "is there already"
    assert f"{said}; nothing is written over" in ran.stderr
    assert snapshot_of(stocked.spec_folder) == before


def test_venv_is_left_as_it_was_and_only_the_folder_is_written(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"])
    (site_of(venv) / "alpha/kept.py").write_text("KEPT = 2\n")
    before = snapshot_of(venv)
    adopt(stocked, venv)
    assert snapshot_of(venv) == before
    assert sorted(path.name for path in stocked.spec_folder.iterdir()) == ["out"]
    assert sorted(path.name for path in (stocked.spec_folder / "out").iterdir()) == [
        "adopt-report.md",
        "demo.toml",
        "overlays",
    ]


def test_same_venv_gives_the_same_bytes_twice(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"])
    (site_of(venv) / "alpha/kept.py").write_text("KEPT = 2\n")
    adopt(stocked, venv)
    first = snapshot_of(stocked.spec_folder / "out")
    adopt(stocked, venv, "--out", stocked.spec_folder / "again")
    assert snapshot_of(stocked.spec_folder / "again") == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "No Name"], "the name of the environment"),
        (["--index", "https://packages.example.org/"], "expected NAME=URL"),
        (["--index", "default=https://packages.example.org/"], "expected NAME=URL"),
        (["--index", "cu=https://user:pass@packages.example.org/"], "carries credentials"),
        (["--wheelhouse", "/nowhere/at/all"], "the folder of wheels cannot be read"),
        (["--wheelhouse", "/etc/passwd"], "`passwd` is no wheel, and no folder of wheels"),
        (["--out", "/proc/nowhere/out"], "`/proc/nowhere/out` cannot be written"),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(
    stocked: Project, tmp_path: Path, arguments: list[str], said: str
) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["gamma"])
    ran = stocked.run("adopt", venv, *arguments)
    assert ran.code == 2
    assert said in ran.stderr
    assert "pass@" not in ran.text
    assert list(stocked.spec_folder.iterdir()) == []


def test_folder_that_is_no_venv_is_an_error_that_names_it(stocked: Project, tmp_path: Path) -> None:
    ran = stocked.run("adopt", tmp_path / "nothing")
    assert ran.code == 2
    assert "nothing" in ran.stderr


def test_venv_without_published_packages_is_refused_with_what_to_do(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked)
    (site_of(venv) / "own.py").write_text("x = 1\n")
    ran = stocked.run("adopt", venv, "--name", "demo")
    assert ran.code == 1
    assert "no package of" in ran.stderr
    assert "--wheelhouse" in ran.stderr


def test_venv_of_links_into_a_cache_is_refused_with_the_reason(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"], link_mode="symlink")
    ran = stocked.run("adopt", venv, "--name", "demo")
    assert ran.code == 1
    assert "--link-mode copy" in ran.stderr


def test_what_is_imported_from_outside_is_noted(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["gamma"])
    config = venv / "pyvenv.cfg"
    config.write_text(
        config.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    )
    (tmp_path / "elsewhere").mkdir()
    (site_of(venv) / "zz.pth").write_text(f"{tmp_path / 'elsewhere'}\n")
    notes = "\n".join(adopt(stocked, venv)["notes"])
    assert "include-system-site-packages" in notes
    assert f"`{tmp_path / 'elsewhere'}` is on Python's path by `pth zz.pth`" in notes


def test_further_index_is_asked_and_named_in_the_spec(stocked: Project, tmp_path: Path) -> None:
    from tests.support.local_index import LocalIndex  # noqa: PLC0415

    stocked.wheels, kept = tmp_path / "cu", stocked.wheels
    stocked.wheel(
        "zeta", "2.0+cu130", {"zeta/__init__.py": "Z = 1\n", "zeta/version.py": "__version__ = '2.0+cu130'\n"}
    )
    stocked.wheels = kept
    with LocalIndex(tmp_path / "cu") as other:
        venv = install_venv(tmp_path / "venv", stocked, ["gamma"], wheels=[next((tmp_path / "cu").iterdir())])
        next((tmp_path / "venv").rglob("direct_url.json")).unlink()
        report = adopt(stocked, venv, "--index", f"cu130={other.url}")
        assert kinds(report) == {}
        text = spec_of(stocked)
        assert 'zeta = "==2.0+cu130"' in text
        assert "[indexes.cu130]" in text
        assert differences(venv, build(stocked), report) == []


def test_older_build_of_a_version_comes_along_since_a_lock_would_take_the_newer(
    stocked: Project, tmp_path: Path
) -> None:
    stocked.wheel("eta", "1.0", {"eta.py": "BUILD = 1\n"}, build="1")
    venv = install_venv(tmp_path / "venv", stocked, ["eta"])
    stocked.wheel("eta", "1.0", {"eta.py": "BUILD = 2\n"}, build="2")
    report = adopt(stocked, venv)
    assert report["local_wheels"] == ["eta-1.0-1-py3-none-any.whl"]
    assert kinds(report) == {}
    assert differences(venv, build(stocked), report) == []


def test_scripts_of_wheels_are_known_whatever_interpreter_they_name(stocked: Project, tmp_path: Path) -> None:
    stocked.wheel(
        "theta",
        "1.0",
        {"theta.py": ""},
        data={
            "scripts/run-it": "#!python\nprint('run')\n",
            "scripts/other": "#!python -s\nprint('other')\n",
            "data/share/x": "x\n",
        },
    )
    venv = install_venv(tmp_path / "venv", stocked, ["theta"])
    (venv / "bin/other").write_text((venv / "bin/other").read_text() + "print('more')\n")
    report = adopt(stocked, venv)
    assert kinds(report) == {"bin/other": "unexplained"}
    assert differences(venv, build(stocked), report) == []


def test_command_that_two_packages_have_gets_the_owner_whose_script_is_there(stocked: Project, tmp_path: Path) -> None:
    for name in ("iota", "kappa"):
        script = f"[console_scripts]\nserve = {name}:main\n"
        stocked.wheel(name, "1", {f"{name}.py": "def main(): pass\n"}, entry_points=script)
    venv = install_venv(tmp_path / "venv", stocked, ["kappa"])
    install_venv(venv, stocked, ["iota"])
    report = adopt(stocked, venv)
    assert [(each["path"], each["owner"]) for each in report["collisions"]] == [("bin/serve", "iota")]
    built = build(stocked)
    assert differences(venv, built, report) == []
    assert b"from iota import main" in (built / "bin/serve").read_bytes()


def test_edit_of_a_file_that_two_packages_have_alike_is_one_packages_patch(stocked: Project, tmp_path: Path) -> None:
    for name in ("left", "right"):
        stocked.wheel(name, "1", {"space/__init__.py": "SHARED = 1\n", f"space/{name}.py": f"{name!r}\n"})
    venv = install_venv(tmp_path / "venv", stocked, ["left", "right"])
    (site_of(venv) / "space/__init__.py").write_text("SHARED = 2\n")
    report = adopt(stocked, venv)
    assert kinds(report) == {"space/__init__.py": "patched"}
    assert differences(venv, build(stocked), report) == []


def test_script_that_was_removed_is_named_as_restored(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"])
    (venv / "bin/alpha").unlink()
    assert kinds(adopt(stocked, venv)) == {"bin/alpha": "restored"}


def test_what_the_lock_will_refuse_is_said_before(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["gamma"])
    assert stocked.index is not None
    stocked.index.yanked["gamma-3.0-py3-none-any.whl"] = "broken"
    report = adopt(stocked, venv)
    assert [each["check"] for each in report["refusals"]] == ["yanked"]
    ran = stocked.run("lock", cwd=stocked.spec_folder / "out")
    assert ran.code == 1
    assert "[yanked]" in ran.stderr


def test_package_that_was_built_on_the_machine_and_is_needed_is_said_to_keep_the_lock_from_being_made(
    stocked: Project, tmp_path: Path
) -> None:
    stocked.wheel("needy", "1.0", {"needy.py": "x\n"}, requires=["homemade"])
    stocked.wheels, kept = tmp_path / "own", stocked.wheels
    own = stocked.wheel("homemade", "0.3", {"homemade.py": "HOMEMADE = 1\n"})
    stocked.wheels = kept
    venv = install_venv(tmp_path / "venv", stocked, ["--no-deps", "needy"], wheels=[own])
    next(site_of(venv).glob("homemade-*.dist-info/direct_url.json")).unlink()
    report = adopt(stocked, venv, "--out", tmp_path / "without")
    assert [(each["check"], each["message"]) for each in report["refusals"]] == [
        ("sdist-only", "needy 1.0 asks for `homemade`, and the index has no wheel of homemade for this target")
    ]
    assert kinds(report)["homemade.py"] == "unexplained"
    # With the wheel all is explained, and the folder has it.
    report = adopt(stocked, venv, "--wheelhouse", own.parent)
    assert (kinds(report), report["refusals"]) == ({}, [])
    assert differences(venv, build(stocked), report) == []


@pytest.mark.parametrize("host", ["user@machine", "-oProxyCommand=x", "a b"])
def test_host_is_a_name_of_ssh_config(stocked: Project, host: str) -> None:
    ran = stocked.run("adopt", "/venv", "--name", "demo", f"--host={host}")
    assert ran.code == 2
    assert "`Host` of ssh_config" in ran.stderr


def test_index_without_ranges_gives_the_same_folder(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"])
    (site_of(venv) / "alpha/kept.py").write_text("KEPT = 2\n")
    assert stocked.index is not None
    stocked.index.ranges = False
    report = adopt(stocked, venv)
    assert kinds(report) == {"alpha/kept.py": "patched"}
    first = snapshot_of(stocked.spec_folder / "out")
    stocked.index.ranges = True
    adopt(stocked, venv, "--out", stocked.spec_folder / "again", "--store", tmp_path / "other-store")
    assert snapshot_of(stocked.spec_folder / "again") == first


def test_second_look_reads_no_wheel_again(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"])
    assert stocked.index is not None
    adopt(stocked, venv)
    stocked.index.requests.clear()
    adopt(stocked, venv, "--out", stocked.spec_folder / "again")
    assert stocked.index.paths_requested(".whl") == []


def test_member_that_a_record_does_not_list_is_read_and_known(stocked: Project, tmp_path: Path) -> None:
    stocked.wheel("lambda-x", "1", {"lam/__init__.py": "1\n", "lam/data.txt": "data\n"}, record={"lam/data.txt": None})
    venv = install_venv(tmp_path / "venv", stocked, ["lambda-x"])
    report = adopt(stocked, venv)
    assert kinds(report) == {}
    assert differences(venv, build(stocked), report) == []


def test_edit_in_a_package_of_a_local_wheel_is_a_patch_on_that_wheel(stocked: Project, tmp_path: Path) -> None:
    stocked.wheels, kept = tmp_path / "own", stocked.wheels
    own = stocked.wheel("own", "1.0", {"own/__init__.py": "A = 1\n", "own/more.py": "B = 1\n"})
    stocked.wheels = kept
    venv = install_venv(tmp_path / "venv", stocked, wheels=[own])
    (site_of(venv) / "own/__init__.py").write_text("A = 2\n")
    report = adopt(stocked, venv)
    assert (kinds(report), report["local_wheels"]) == ({"own/__init__.py": "patched"}, [own.name])
    assert differences(venv, build(stocked), report) == []


HOSTILE_NAMES = ["../../escape", "a\x1b[2Jb", "x'; rm -rf /;'", "evil`code`", "<script>", "*", "\u202ereversed"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_and_paths_stay_text(stocked: Project, tmp_path: Path, name: str) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"])
    site = site_of(venv)
    info = site / "evil-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0; touch /tmp/x\nRequires-Dist: {name}\n")
    (info / "RECORD").write_text(
        f"../../../../../../etc/passwd,,\n/etc/shadow,,\n{name}/x.py,sha256=zz,9\nevil-1.dist-info/METADATA,,\n"
    )
    odd = site / "alpha" / (name.replace("/", "_") + "\n# [overrides]\n.py")
    odd.write_text("x = 1\n")
    report = adopt(stocked, venv)
    folder = stocked.spec_folder / "out"
    assert sorted(path.name for path in stocked.spec_folder.iterdir()) == ["out"]
    text = spec_of(stocked)
    assert "\n# [overrides]" not in text
    assert "\x1b" not in text + (folder / "adopt-report.md").read_text(encoding="utf-8") + json.dumps(
        report, ensure_ascii=False
    )
    if name == HOSTILE_NAMES[0]:  # the spec of all of them is the same
        assert differences(venv, build(stocked), report) == []


def test_member_that_a_record_names_outside_of_the_venv_is_never_read(stocked: Project, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("SECRET\n")
    venv = install_venv(tmp_path / "venv", stocked, ["alpha==1.0"])
    site = site_of(venv)
    (site / "alpha/kept.py").unlink()
    (site / "alpha/kept.py").symlink_to(secret)
    record = next(site.glob("alpha-*.dist-info/RECORD"))
    record.write_text(record.read_text() + f"{os.path.relpath(secret, site)},,\n")
    adopt(stocked, venv)
    for path in (stocked.spec_folder / "out").rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes()


def test_index_that_cannot_be_asked_is_an_error_and_nothing_is_written(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "venv", stocked, ["gamma"])
    ran = stocked.run(
        "adopt", venv, "--name", "demo", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple/", UV_HTTP_RETRIES="0"
    )
    assert ran.code == 2
    assert not list(stocked.spec_folder.iterdir())


def test_name_comes_from_the_folder_around_a_dot_venv(stocked: Project, tmp_path: Path) -> None:
    venv = install_venv(tmp_path / "My Project" / ".venv", stocked, ["gamma"])
    ran = stocked.good("adopt", venv, "--json")
    assert ran.json()["spec"] == "my-project.toml"
    assert f"python = {PYTHON_MINOR}" not in ran.stdout
