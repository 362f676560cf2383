"""Which venv a path means, what its interpreter is by its files, and what `sys.path` will be, compared with Python's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv as standard_venv
from typing import TYPE_CHECKING

import pytest

from builder.agent.survey_host import VARIABLES, linked_libraries, watched_variables
from builder.agent.survey_python import find_place, look_at_path, look_at_python
from builder.agent.survey_tree import Notes
from builder.observing import observe
from tests.support.tiny_elf import tiny_library
from tests.support.venvs import SITE, install, make_venv

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.observed import ObservedPython

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def python_of(venv: Path) -> ObservedPython:
    return look_at_python(find_place(os.fspath(venv)))


def path_of(venv: Path, **environ: str) -> list[tuple[str, str, bool, bool]]:
    place = find_place(os.fspath(venv))
    entries = look_at_path(place, look_at_python(place), environ)
    return [(each.path, each.source, each.exists, each.inside) for each in entries]


# -- which venv -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "bin", "bin/python", "bin/python3", SITE, "link", "project"])
def test_every_way_to_name_a_venv_finds_its_prefix(tmp_path: Path, path: str) -> None:
    venv = make_venv(tmp_path / "project/.venv")
    (tmp_path / "link").symlink_to(venv)
    place = tmp_path / path if path in ("link", "project") else venv / path
    found = find_place(os.fspath(place))
    assert (found.prefix, found.sites, found.minor) == (os.fspath(venv), (SITE,), "3.12")


def test_interpreter_whose_link_leads_nowhere_still_names_its_venv(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", python="/nowhere/bin/python3.12", config={"home": "/nowhere/bin"})
    found = find_place(os.fspath(venv / "bin/python3"))
    assert found.prefix == os.fspath(venv)
    python = look_at_python(found)
    assert (python.executable, python.link) == ("", "/nowhere/bin/python3.12")
    assert python.problems == (
        "`bin/python` leads to `/nowhere/bin/python3.12`, which is not there",
        "`home` of `pyvenv.cfg` is `/nowhere/bin`, which is not there",
    )


def test_folder_of_packages_alone_can_be_looked_at(tmp_path: Path) -> None:
    install(tmp_path, "demo", "1.0", site="target")
    observation = observe(os.fspath(tmp_path / "target"), remember=False)
    assert observation.sites == ("",)
    assert [file.path for file in observation.distributions[0].files if file.path.startswith("demo/")] == [
        "demo/__init__.py"
    ]
    assert [entry.source for entry in observation.path if entry.inside] == ["venv"]


@pytest.mark.parametrize(
    "site", ["lib/python3.11/dist-packages", "local/lib/python3.11/dist-packages", "lib/python3/dist-packages"]
)
def test_folders_of_a_distribution_are_known(tmp_path: Path, site: str) -> None:
    install(tmp_path, "demo", "1.0", site=site)
    (tmp_path / "lib/python3.11").mkdir(parents=True, exist_ok=True)
    (tmp_path / "lib/python3.11/os.py").write_text("")
    for path in (tmp_path, tmp_path / site):
        observation = observe(os.fspath(path), remember=False)
        assert (observation.prefix, observation.sites, observation.python.minor) == (
            os.fspath(tmp_path),
            (site,),
            "3.11",
        )
        assert [each.name for each in observation.distributions] == ["demo"]
        assert observation.strays == ()  # the standard library is none


def test_second_library_folder_counts_if_it_is_another(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", site=f"{SITE.replace('lib', 'lib64', 1)}")
    observation = observe(os.fspath(venv), remember=False)
    assert observation.sites == (SITE, SITE.replace("lib", "lib64", 1))
    assert [each.name for each in observation.distributions] == ["demo"]
    shutil.rmtree(venv / "lib64")
    (venv / "lib64").symlink_to("lib")
    observation = observe(os.fspath(venv), remember=False)
    assert (observation.sites, observation.strays) == ((SITE,), ())


# -- the interpreter ------------------------------------------------------------------------------------------------------------------


def base_of(folder: Path, version: str, headers: str = "") -> Path:
    """A Python of files alone."""
    minor = ".".join(version.split(".")[:2])
    (folder / "bin").mkdir(parents=True)
    program = folder / f"bin/python{minor}"
    program.write_text("")
    program.chmod(0o755)
    if headers:
        (folder / f"include/python{minor}").mkdir(parents=True)
        (folder / f"include/python{minor}/patchlevel.h").write_text(f'#define PY_VERSION              "{headers}"\n')
    return program


@pytest.mark.parametrize(
    ("link", "config", "version", "problem"),
    [
        ("3.12.1", {"version": "3.12.1"}, "3.12.1", ""),
        ("3.12.1", {"version_info": "3.12.1", "version": ""}, "3.12.1", ""),
        ("3.12.1", {"version": ""}, "3.12.1", ""),
        ("3.12.4", {"version": "3.12.1"}, "3.12.1", "the interpreter's headers say 3.12.4: it was replaced since"),
        ("3.11.7", {"version": "3.12.1"}, "3.12.1", "is Python 3.11 ("),
        (
            "3.11.7",
            {"version": "3.11.7"},
            "3.11.7",
            "`pyvenv.cfg` says Python 3.11, the packages lie under `python3.12`",
        ),
    ],
)
def test_versions_that_differ_are_named(
    tmp_path: Path, link: str, config: dict[str, str], version: str, problem: str
) -> None:
    program = base_of(tmp_path / "base", link, link)
    python = python_of(make_venv(tmp_path / "venv", python=os.fspath(program), config=config))
    assert (python.version, python.minor) == (version, "3.12")
    assert (python.executable, python.link) == (os.fspath(program), os.fspath(program))
    if problem:
        assert any(problem in each for each in python.problems), python.problems
    else:
        assert python.problems == ()


def test_links_that_lead_to_each_other_are_named(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to("python3")
    assert "`bin/python` is a link that leads to itself" in python_of(venv).problems


def test_home_that_is_another_python_is_named(tmp_path: Path) -> None:
    program = base_of(tmp_path / "base", "3.12.1")
    other = base_of(tmp_path / "other", "3.12.9")
    venv = make_venv(tmp_path / "venv", python=os.fspath(program), config={"home": os.fspath(other.parent)})
    assert python_of(venv).problems == (
        f"`home` of `pyvenv.cfg` is `{other.parent}`, `bin/python` leads to `{program}`",
    )


def test_packages_for_another_python_are_named(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", python=os.fspath(base_of(tmp_path / "base", "3.12.1")))
    install(venv, "demo", "1.0", site="lib/python3.11/site-packages")
    assert python_of(venv).problems == ("it has packages for Python 3.11 too, which Python 3.12 does not see",)


# -- sys.path -------------------------------------------------------------------------------------------------------------------------


def test_path_files_add_folders_in_the_order_of_their_names(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", python=os.fspath(base_of(tmp_path / "base", "3.12.1")))
    site = venv / SITE
    (site / "inner").mkdir()
    (site / "b.pth").write_text(f"{tmp_path}/outside\ninner\n")
    (site / "a.pth").write_text("# comment\n\nimport os\ninner\n../other\n")
    base = tmp_path / "base"
    assert path_of(venv, PYTHONPATH=f"{tmp_path}:{tmp_path}") == [
        (os.fspath(tmp_path), "PYTHONPATH", True, False),
        (f"{base}/lib/python312.zip", "standard library", False, False),
        (f"{base}/lib/python3.12", "standard library", False, False),
        (f"{base}/lib/python3.12/lib-dynload", "standard library", False, False),
        (os.fspath(site), "venv", True, True),
        (f"{site}/inner", "pth a.pth", True, True),
        (os.fspath(site.parent / "other"), "pth a.pth", False, True),
        (f"{tmp_path}/outside", "pth b.pth", False, False),
    ]


@pytest.mark.parametrize("system", [False, True])
def test_path_is_what_python_itself_makes_of_it(tmp_path: Path, system: bool) -> None:  # noqa: FBT001
    """The only venv here whose interpreter runs, by the test and not by what is tested."""
    made = tmp_path / "venv"
    standard_venv.create(made, system_site_packages=system, with_pip=False, symlinks=True)
    site = made / f"lib/python{HERE}/site-packages"
    (site / "extra").mkdir()
    (site / "x.pth").write_text("extra\nextra\nabsent\n")
    (tmp_path / "more").mkdir()
    (tmp_path / f".local/lib/python{HERE}/site-packages").mkdir(
        parents=True
    )  # of the user: after the venv's own, if at all
    environ = {"PYTHONPATH": f"{tmp_path}/more:{tmp_path}/none", "HOME": os.fspath(tmp_path), "PATH": os.defpath}
    code = "import json, sys; print(json.dumps(sys.path[1:]))"
    ran = subprocess.run([made / "bin/python", "-c", code], env=environ, capture_output=True, text=True, check=True)
    place = find_place(os.fspath(made))
    entries = look_at_path(place, look_at_python(place), environ)
    mine = [each.path for each in entries if each.exists or each.source in ("PYTHONPATH", "standard library")]
    assert mine == json.loads(ran.stdout)


# -- what a process would inherit -----------------------------------------------------------------------------------------------------


def test_only_variables_that_decide_what_is_loaded_are_told() -> None:
    environ = {"LD_LIBRARY_PATH": "/x", "AWS_SECRET_ACCESS_KEY": "secret", "PYTHONPATH": "/y", "PYTHONSTARTUP": "z"}
    assert watched_variables(environ) == {"LD_LIBRARY_PATH": "/x", "PYTHONPATH": "/y"}
    assert not any("TOKEN" in name or "KEY" in name for name in VARIABLES)


def test_libraries_of_the_environment_come_before_the_hosts_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libc.so.6").write_text("")
    (tmp_path / "b/libown.so.1").write_text("")
    notes = Notes()
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/a:{tmp_path}/none:{tmp_path}/b/"}
    found = linked_libraries(environ, {"PATH": os.defpath}, notes)
    assert found["libc.so.6"] == f"{tmp_path}/a/libc.so.6"
    assert found["libown.so.1"] == f"{tmp_path}/b/libown.so.1"
    assert notes.all() == (f"`{tmp_path}/none` of LD_LIBRARY_PATH cannot be listed: No such file or directory",)


def test_environment_of_a_store_is_known_and_a_copy_of_it_is_none(tmp_path: Path) -> None:
    config = {"envspec-env": "e" * 32, "envspec-site": "5" * 64, "prompt": "demo"}
    built = make_venv(tmp_path / f"store/envs/{'e' * 32}-demo", config=config)
    (tmp_path / "store/store.json").write_text("{}")
    observation = observe(os.fspath(built), remember=False)
    assert observation.locked == {"env": "e" * 32, "site": "5" * 64, "name": "demo", "store": f"{tmp_path}/store"}
    copy = make_venv(tmp_path / "copy", config=config)
    observation = observe(os.fspath(copy), remember=False)
    assert observation.locked == {}
    assert any("it is a copy" in note for note in observation.notes)


def test_texts_tell_where_a_venv_was_made_and_which_libraries_are_none(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", config={"command": "/usr/bin/python3 -m venv /srv/old"})
    (venv / "bin/activate").write_text("# sh\nVIRTUAL_ENV='/srv/old'\nexport VIRTUAL_ENV\nPS1=x\n")
    install(
        venv,
        "demo",
        "1.0",
        {
            "../../../bin/tool": "#!/srv/old/bin/python\nimport demo\n",
            "../../../bin/program": b"\x7fELF",
            "demo/libx.so.1": "libx.so.1.2\x1b[2J",
            "demo/libtiny.so": tiny_library(),
            "demo/x.so.py": "x",
        },
    )
    texts = observe(os.fspath(venv), remember=False).texts
    assert set(texts) == {"pyvenv.cfg", "bin/activate", "bin/tool", f"{SITE}/demo/libx.so.1"}
    assert "command = /usr/bin/python3 -m venv /srv/old" in texts["pyvenv.cfg"]
    assert texts["bin/activate"] == "VIRTUAL_ENV='/srv/old'\nexport VIRTUAL_ENV"
    assert texts["bin/tool"].startswith("#!/srv/old/bin/python\n")
    assert texts[f"{SITE}/demo/libx.so.1"] == "libx.so.1.2\\x1b[2J"


def test_modules_of_folders_outside_are_named(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", python=os.fspath(base_of(tmp_path / "base", "3.12.1")))
    work = tmp_path / "work"
    for name in (
        "package/__init__.py",
        "space/x.py",
        "module.py",
        "native.cpython-312-x86_64-linux-gnu.so",
        "no-module.py",
        "data.txt",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("")
    place = find_place(os.fspath(venv))
    entries = look_at_path(place, look_at_python(place), {"PYTHONPATH": os.fspath(work)})
    assert {each.path: each.modules for each in entries if each.modules} == {
        os.fspath(work): ("module", "native", "package")
    }


def test_packages_of_folders_outside_are_named(tmp_path: Path) -> None:
    """With the system's packages a requirement may be met there."""
    base = base_of(tmp_path / "base", "3.12.1")
    config = {"include-system-site-packages": "true"}
    venv = make_venv(tmp_path / "venv", python=os.fspath(base), config=config)
    install(tmp_path / "base", "Some.Thing", "2.1")
    (tmp_path / "base" / SITE / "old_thing-0.3-py3.12.egg-info").mkdir()
    (tmp_path / "base" / SITE / "~ome_thing-2.0.dist-info").mkdir()
    place = find_place(os.fspath(venv))
    entries = look_at_path(place, look_at_python(place), {})
    assert {each.source: each.distributions for each in entries if each.distributions} == {
        "system": (("old-thing", "0.3"), ("some-thing", "2.1"))
    }


def test_home_of_whoever_looks_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = make_venv(tmp_path / "home/venv")
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    assert find_place("~/venv").prefix == os.fspath(venv)
