"""What is seen of a venv: RECORD against the disk, strays, hooks, metadata, and nothing that was not looked at."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest

from builder.observing import observe
from envspec.errors import EnvspecError
from envspec.observed import observation_from_json, observation_to_json
from tests.support.venvs import SITE, install, make_venv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from envspec.observed import Observation, ObservedDistribution, ObservedFile


def seen(venv: Path) -> Observation:
    return observe(os.fspath(venv), remember=False)


def only(observation: Observation) -> ObservedDistribution:
    (distribution,) = observation.distributions
    return distribution


def files_of(distribution: ObservedDistribution) -> Mapping[str, ObservedFile]:
    return {file.path.removeprefix(f"{SITE}/"): file for file in distribution.files}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encoded(algorithm: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode()
    return f"{algorithm}={digest}"


# -- files ----------------------------------------------------------------------------------------------------------------------------


def test_whole_distribution_has_every_file_as_recorded_and_nothing_is_stray(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "Demo.Pkg", "1.0", {"demo/__init__.py": "x = 1\n", "demo.py": "", "../../../bin/demo": "#!/bin/sh\n"})
    observation = seen(venv)
    distribution = only(observation)
    assert (distribution.name, distribution.version, distribution.folder_version) == ("demo-pkg", "1.0", "1.0")
    assert distribution.folder == f"{SITE}/Demo.Pkg-1.0.dist-info"
    assert distribution.installer == "pip"
    assert distribution.top_level == ("demo",)
    assert distribution.problems == ()
    files = files_of(distribution)
    assert set(files) == {
        "demo/__init__.py",
        "demo.py",
        "bin/demo",
        *(f"Demo.Pkg-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "INSTALLER", "RECORD")),
    }
    assert {file.kind for file in files.values()} == {"file"}
    assert not any(file.is_edited for file in files.values())
    assert files["demo/__init__.py"].sha256 == files["demo/__init__.py"].recorded == sha256(b"x = 1\n")
    assert files["Demo.Pkg-1.0.dist-info/RECORD"].recorded == ""
    assert observation.strays == ()
    assert observation.notes == ()
    assert observation.sites == (SITE,)


def test_edited_missing_and_stray_files_are_told_apart(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {f"demo/{name}.py": f"{name}\n" for name in ("kept", "edited", "missing", "folder")})
    site = venv / SITE
    (site / "demo/edited.py").write_text("other\n")
    (site / "demo/missing.py").unlink()
    (site / "demo/folder.py").unlink()
    (site / "demo/folder.py").mkdir()
    (site / "demo/stray.py").write_text("stray\n")
    (site / "lone.py").write_text("lone\n")
    (site / "demo/__pycache__").mkdir()
    (site / "demo/__pycache__/kept.cpython-312.pyc").write_bytes(b"bytecode")
    observation = seen(venv)
    files = files_of(only(observation))
    assert [path for path, file in files.items() if file.is_edited] == ["demo/edited.py"]
    assert files["demo/edited.py"].sha256 == sha256(b"other\n")
    assert files["demo/edited.py"].recorded == sha256(b"edited\n")
    assert (files["demo/missing.py"].kind, files["demo/missing.py"].size) == ("missing", -1)
    assert files["demo/missing.py"].recorded == sha256(b"missing\n")
    assert files["demo/folder.py"].kind == "other"
    assert [(file.path, file.sha256) for file in observation.strays] == [
        (f"{SITE}/demo/stray.py", sha256(b"stray\n")),
        (f"{SITE}/lone.py", sha256(b"lone\n")),
    ]


def test_file_that_two_distributions_own_is_seen_with_both(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "one", "1", {"shared/__init__.py": "one\n"})
    install(venv, "two", "1", {"shared/__init__.py": "two\n"})
    first, second = (files_of(each)["shared/__init__.py"] for each in seen(venv).distributions)
    assert first.sha256 == second.sha256 == sha256(b"two\n")
    assert (first.is_edited, second.is_edited) == (True, False)


def test_hard_links_and_executables_show(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {"demo/tool": "x"})
    (venv / SITE / "demo/tool").chmod(0o755)
    os.link(venv / SITE / "demo/tool", tmp_path / "other")
    file = files_of(only(seen(venv)))["demo/tool"]
    assert (file.executable, file.links, file.mtime_ns) == (True, 2, (tmp_path / "other").stat().st_mtime_ns)


ABC = sha256(b"abc")

# -- RECORD ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "path", "recorded", "size", "problem"),
    [
        ('"demo/a,b.py",{sha256},3', "demo/a,b.py", ABC, 3, ""),
        ("demo/./a.py,{sha256},3", "demo/a.py", ABC, 3, ""),
        ("demo/x/../a.py,{sha256},3", "demo/a.py", ABC, 3, ""),
        ("demo/a.py,,", "demo/a.py", "", -1, ""),
        ("demo/a.py", "demo/a.py", "", -1, ""),
        ("demo/a.py,{sha256},x", "demo/a.py", ABC, -1, ""),
        ("demo/a.py,{sha512},3", "demo/a.py", "", 3, "RECORD has sha512 for 1 files, which is not compared"),
        (
            "demo/a.py,sha256=short,3",
            "demo/a.py",
            "",
            3,
            f"RECORD has no digest for `{SITE}/demo/a.py`: `sha256=short`",
        ),
        (f"demo/a.py,sha256={ABC},3", "demo/a.py", ABC, 3, ""),
        ("demo/a.py,{sha256}==,3", "demo/a.py", ABC, 3, ""),
        ("demo/ü.py,{sha256},3", "demo/ü.py", ABC, 3, ""),
    ],
)
def test_rows_of_record_are_read_as_installers_write_them(
    tmp_path: Path, row: str, path: str, recorded: str, size: int, problem: str
) -> None:
    venv = make_venv(tmp_path / "venv")
    text = row.format(sha256=encoded("sha256", b"abc"), sha512=encoded("sha512", b"abc"))
    install(venv, "demo", "1.0", {}, rows=[text])
    distribution = only(seen(venv))
    file = files_of(distribution)[path]
    assert (file.recorded, file.recorded_size) == (recorded, size)
    assert distribution.problems == ((problem,) if problem else ())


def test_absolute_row_within_the_venv_is_relative_and_one_out_of_it_is_not_read(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    outside = tmp_path / "secret"
    outside.write_text("secret\n")
    rows = [f"{venv}/share/x.txt,,", f"{outside},{encoded('sha256', b'other')},6", "../../../../secret2,,"]
    install(venv, "demo", "1.0", {"../../../share/x.txt": "x"}, rows=rows)
    files = {file.path: file for file in only(seen(venv)).files}
    assert files["share/x.txt"].kind == "file"
    assert (files[str(outside)].kind, files[str(outside)].sha256, files[str(outside)].size) == ("file", "", 7)
    assert not files[str(outside)].is_edited
    assert files[str(tmp_path / "secret2")].kind == "missing"


def test_damaged_record_is_a_problem_and_what_stands_before_is_kept(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    record = f"demo/a.py,{encoded('sha256', b'a')},1\n{'x' * 200_000},,\ndemo/b.py,,\n"
    install(venv, "demo", "1.0", {"demo/a.py": "a"}, metadata={"RECORD": record})
    distribution = only(seen(venv))
    assert distribution.problems == ("RECORD cannot be read beyond 1 rows: field larger than field limit (131072)",)
    assert [file.path for file in distribution.files] == [f"{SITE}/demo/a.py"]


def test_distribution_without_record_owns_its_metadata_and_its_modules_are_stray(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", without=["RECORD"])
    observation = seen(venv)
    distribution = only(observation)
    assert distribution.problems == ("RECORD is missing",)
    assert [file.path.rpartition("/")[2] for file in distribution.files] == ["INSTALLER", "METADATA", "WHEEL"]
    assert [file.path for file in observation.strays] == [f"{SITE}/demo/__init__.py"]


# -- metadata -------------------------------------------------------------------------------------------------------------------------


def test_headers_are_read_up_to_the_description(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    metadata = (
        "Metadata-Version: 2.1\nName: Demo\nVersion: 2.0+cu130\nRequires-Python: >=3.10\n"
        "Requires-Dist: numpy>=2\nLicense: a\n        \n        Version: 9\nRequires-Dist: torch==2.11.0 ;\n extra == 'x'\nProvides-Extra: x\n"
        "\nRequires-Dist: not-a-header\n"
    )
    wheel = "Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\nBuild: 1\n"
    files = {"METADATA": metadata, "WHEEL": wheel, "entry_points.txt": "[console_scripts]\ndemo = demo.cli:main\n"}
    install(venv, "demo", "1.0", metadata=files)
    distribution = only(seen(venv))
    assert (distribution.version, distribution.folder_version, distribution.build) == ("2.0+cu130", "1.0", "1")
    assert distribution.requires_dist == ("numpy>=2", "torch==2.11.0 ; extra == 'x'")
    assert distribution.requires_python == ">=3.10"
    assert distribution.provides_extra == ("x",)
    assert distribution.wheel_tags == ("cp312-cp312-linux_x86_64",)
    assert distribution.scripts == (("demo", "demo.cli:main"),)


@pytest.mark.parametrize(
    ("metadata", "name", "version", "problems"),
    [
        ("Name: demo\n", "demo", "", ("METADATA has no Version",)),
        ("", "demo", "", ("METADATA has no Name", "METADATA has no Version")),
        ("\0\xff\n: x\n", "demo", "", ("METADATA has no Name", "METADATA has no Version")),
        ("X: " + "y" * (1 << 21), "demo", "", ("METADATA has headers of more than 1048576 bytes",) * 1),
    ],
)
def test_bad_metadata_is_a_problem(
    tmp_path: Path, metadata: str, name: str, version: str, problems: tuple[str, ...]
) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", metadata={"METADATA": metadata})
    distribution = only(seen(venv))
    assert (distribution.name, distribution.version) == (name, version)
    assert distribution.problems[: len(problems)] == problems


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        ({"url": "file:///src/demo", "dir_info": {"editable": True}}, "editable file:///src/demo"),
        (
            {"url": "https://user:secret@files.example/x.whl?token=1#y", "archive_info": {}},
            "https://files.example/x.whl",
        ),
        (
            {"url": "ssh://git@code.example/x", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+ssh://code.example/x@abc",
        ),
    ],
)
def test_origin_is_told_without_credentials(tmp_path: Path, record: dict[str, object], shown: str) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", metadata={"direct_url.json": json.dumps(record), "REQUESTED": ""})
    distribution = only(seen(venv))
    assert (distribution.direct_url, distribution.requested) == (shown, True)


def test_egg_info_is_a_distribution_too(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    site = venv / SITE
    egg = site / "old_thing-0.3-py3.12.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 1.1\nName: Old_Thing\nVersion: 0.3\n")
    (egg / "requires.txt").write_text("six\n\n[test:python_version<'3']\npytest\n")
    (egg / "installed-files.txt").write_text("../old_thing/__init__.py\nPKG-INFO\n")
    (site / "old_thing").mkdir()
    (site / "old_thing/__init__.py").write_text("")
    (site / "single-1.0.egg-info").write_text("Name: single\nVersion: 1.0\n")
    observation = seen(venv)
    assert [(each.name, each.version, each.folder_version) for each in observation.distributions] == [
        ("old-thing", "0.3", "0.3"),
        ("single", "1.0", "1.0"),
    ]
    old = observation.distributions[0]
    assert old.requires_dist == ("six", "pytest; (python_version<'3') and extra == \"test\"")
    assert old.top_level == ("old_thing",)
    assert observation.strays == ()


# -- hooks ----------------------------------------------------------------------------------------------------------------------------


def test_hooks_belong_to_whoever_brought_them(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {"demo.pth": "import demo_hook\nsome/folder\n", "demo/inner.pth": "import no\n"})
    (venv / SITE / "sitecustomize.py").write_text("raise SystemExit\n")
    (venv / SITE / "zz.pth").write_text("# comment\n/somewhere\n")
    observation = seen(venv)
    assert [(hook.path, hook.code) for hook in only(observation).hooks] == [("demo.pth", ("import demo_hook",))]
    assert [(hook.path, hook.code) for hook in observation.stray_hooks] == [
        ("sitecustomize.py", ("the module sitecustomize",)),
        ("zz.pth", ()),
    ]
    assert observation.stray_hooks[0].sha256 == sha256(b"raise SystemExit\n")


def test_files_of_the_venv_that_a_record_names_are_read_like_others(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    rows = [f"../../../bin/activate,{encoded('sha256', b'mine')},4", f"../../../pyvenv.cfg,{encoded('sha256', b'x')},1"]
    install(venv, "demo", "1.0", rows=rows)
    (venv / "bin/activate").write_text("mine")
    files = files_of(only(seen(venv)))
    assert (files["bin/activate"].kind, files["bin/activate"].is_edited) == ("file", False)
    assert files["pyvenv.cfg"].is_edited


def test_hook_that_is_a_link_is_named(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    (venv / SITE / "x.pth").symlink_to("/elsewhere/x.pth")
    (venv / SITE / "sitecustomize.py").symlink_to("/elsewhere/s.py")
    observation = seen(venv)
    assert {hook.path: hook.code for hook in observation.stray_hooks} == {
        "x.pth": (),
        "sitecustomize.py": ("the module sitecustomize",),
    }
    assert len([note for note in observation.notes if "which Python follows at every start" in note]) == 2


# -- as JSON, and what is none --------------------------------------------------------------------------------------------------------


def test_observation_survives_json_whatever_names_are_like(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0")
    for name in (b"not-\xff-utf8.py", b"tab\there.py", b"esc\x1b[2J.py", b"line\nbreak.py", "ü.py".encode()):
        (venv / SITE / os.fsdecode(name)).write_bytes(b"x")
    observation = seen(venv)
    again = observation_from_json(json.loads(json.dumps(observation_to_json(observation))))
    assert again == observation
    assert {os.fsencode(file.path).rpartition(b"/")[2] for file in again.strays} == {
        b"not-\xff-utf8.py",
        b"tab\there.py",
        b"esc\x1b[2J.py",
        b"line\nbreak.py",
        "ü.py".encode(),
    }


@pytest.mark.parametrize(
    ("made", "message"), [("", "is not there"), ("file", "is no Python environment"), ("folder", "has neither")]
)
def test_what_is_no_environment_is_refused(tmp_path: Path, made: str, message: str) -> None:
    place = tmp_path / "x"
    if made == "file":
        place.write_text("")
    elif made == "folder":
        place.mkdir()
    with pytest.raises(EnvspecError, match=message):
        seen(place)


def test_nothing_is_written_and_nothing_of_the_venv_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    venv = make_venv(tmp_path / "venv")
    (venv / "bin/python").unlink()
    for name in ("python", "nvidia-smi", "ldconfig", "python3.12"):
        (venv / "bin" / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (venv / "bin" / name).chmod(0o755)
    (venv / SITE / "evil.pth").write_text(f"import os; os.system('touch {marker}')\n")
    (venv / SITE / "sitecustomize.py").write_text(f"open({str(marker)!r}, 'w')\n")
    install(venv, "demo", "1.0")
    before = sorted((path, path.lstat().st_mtime_ns) for path in venv.rglob("*"))
    environ = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{venv}/lib"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", environ)
        observe(os.fspath(venv), remember=False)
    assert not marker.exists()
    assert sorted((path, path.lstat().st_mtime_ns) for path in venv.rglob("*")) == before
