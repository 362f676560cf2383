"""Public reports of broken environments (`C06` and so on are their numbers), each through the command line.

A row is: the wheels and the spec that show the case, and what `envspec lock` says of it. What is refused leaves no lock.
"""

from __future__ import annotations

import hashlib
import shutil
from platform import python_version
from typing import TYPE_CHECKING

import pytest

from tests.support.local_index import LocalIndex
from tests.support.projects import PYTHON_MINOR, SITE_PACKAGES, Project, base_python
from tests.support.wheels import make_wheel, record_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def refused(project: Project, check: str, *said: str) -> str:
    """See that `lock` refuses a project for a check, says so, and writes nothing; gives what it said."""
    ran = project.run("lock")
    assert ran.code == 1, ran.text
    assert check in ran.stderr
    for words in said:
        assert words in ran.stderr
    assert not project.lock_path.exists()
    assert project.leftovers() == []
    return ran.stderr


def locked_with(project: Project, check: str, *said: str) -> str:
    """See that `lock` writes a lock that has a finding of a check; gives the lock."""
    ran = project.good("lock")
    text = project.lock_text()
    assert f'[[finding]]\ncheck = "{check}"' in text
    for words in said:
        assert words in text or words in ran.stderr
    return text


def one(project: Project, files: dict[str, bytes | str] | None = None, **more: object) -> None:
    """One package `beta` that the spec asks for."""
    project.wheel("beta", "1.0", files, **more)
    project.write_spec({"beta": "==1.0"})


# C06, C07, C08: two wheels own a path.


def colliding(project: Project, *, equal: bool = False, more: str = "") -> None:
    for name in ("libs-base", "libs-cu13"):
        text = "same\n" if equal else f"from {name}\n"
        project.wheel(name, "1.0", {"dsl/rt.py": text, f"{name.replace('-', '_')}/__init__.py": ""})
    project.write_spec({"libs-base": "==1.0", "libs-cu13": "==1.0"}, more=more)


def owned_by(owner: str) -> str:
    return (
        f'[[waivers]]\ncheck = "file-collision"\npackage = "libs-base"\npath = "dsl/rt.py"\nowner = "{owner}"\n'
        'reason = "looked at both"\n'
    )


def test_c06_two_wheels_with_the_same_path_are_refused(project: Project) -> None:
    colliding(project)
    refused(project, "file-collision", "libs-base", "libs-cu13", "dsl/rt.py")


@pytest.mark.parametrize("owner", ["libs-base", "libs-cu13"])
def test_c06_declared_owner_decides_in_every_build(project: Project, owner: str) -> None:
    colliding(project, more=owned_by(owner))
    project.good("lock")
    sites = set()
    for number in range(2):
        store = project.folder / f"store-{number}"
        built = project.good("build", "--json", "--store", store).host()
        sites.add(built["site"])
        assert (store / "profiles" / "demo" / SITE_PACKAGES / "dsl" / "rt.py").read_text() == f"from {owner}\n"
        record = f"{owner.replace('-', '_')}-1.0.dist-info/RECORD"
        assert "dsl/rt.py" in (store / "profiles" / "demo" / SITE_PACKAGES / record).read_text()
    assert len(sites) == 1
    assert sites.pop() in project.lock_text()


def test_c06_owner_is_part_of_the_env_id(project: Project) -> None:
    found = set()
    for owner in ("libs-base", "libs-cu13"):
        colliding(project, more=owned_by(owner))
        found.add(project.good("lock", "--json").json()["env"])
    assert len(found) == 2


def test_c06_owner_that_is_no_party_is_refused(project: Project) -> None:
    colliding(project, more=owned_by("somebody"))
    refused(project, "file-collision", "libs-base")


def test_c06_identical_files_are_only_noted(project: Project) -> None:
    colliding(project, equal=True)
    project.good("lock")
    project.good("build")
    assert project.site("dsl/rt.py").read_text() == "same\n"


def test_c07_package_and_its_successor_are_refused(project: Project) -> None:
    project.wheel("sgl-kernel", "0.3.21", {"sgl_kernel/__init__.py": "v = 1\n", "sgl_kernel/a.py": "a\n"})
    project.wheel("sglang-kernel", "0.4.10", {"sgl_kernel/__init__.py": "v = 2\n", "sgl_kernel/a.py": "b\n"})
    project.write_spec({"sgl-kernel": "==0.3.21", "sglang-kernel": "==0.4.10"})
    refused(project, "file-collision", "sgl-kernel", "sglang-kernel", "sgl_kernel/__init__.py")


def test_c08_two_builds_of_one_module_are_refused(project: Project) -> None:
    for name in ("opencv-python", "opencv-python-headless"):
        project.wheel(name, "4.12.0.88", {"cv2/__init__.py": "", "cv2/version.py": f"headless = {name!r}\n"})
    project.write_spec({"opencv-python": "*", "opencv-python-headless": "*"})
    refused(project, "file-collision", "opencv-python", "opencv-python-headless", "cv2/version.py")


# C15: no wheel.


def test_c15_package_without_a_wheel_is_refused_with_who_asks_for_it(project: Project) -> None:
    project.wheel("alpha", "1.0", requires=["flash"])
    (project.wheels / "flash-2.0.tar.gz").write_bytes(b"no archive at all")
    project.write_spec({"alpha": "==1.0"})
    refused(project, "sdist-only", "flash", "the spec -> alpha -> flash")


# C16: tags.


def test_c16_tags_in_wheel_that_differ_from_the_file_name_are_told(project: Project) -> None:
    one(project, wheel_tags=["cp39-cp39-manylinux_2_28_aarch64"])
    locked_with(project, "tag-mismatch", "aarch64")


def test_c16_wheel_of_another_machine_is_refused(project: Project) -> None:
    one(project, tag="cp39-abi3-manylinux_2_17_sparc64")
    ran = project.run("lock")
    assert ran.code == 1
    assert not project.lock_path.exists()


# C17: other bytes below the same name.


def test_c17_build_of_a_file_that_was_replaced_names_both_digests(locked: Project) -> None:
    before = sha256_in(locked.lock_text(), "beta")
    shutil.rmtree(locked.store)
    replaced = locked.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 66\n"})
    ran = locked.run("build")
    assert ran.code == 1
    for said in ("hash-changed", replaced.name, before, hashlib.sha256(replaced.read_bytes()).hexdigest()):
        assert said in ran.stderr
    assert locked.active() is None
    assert locked.environments() == []


def test_c17_build_from_the_wheelhouse_does_not_mind(locked: Project) -> None:
    locked.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 66\n"})
    locked.good("build")
    assert locked.site("beta/__init__.py").read_text() == "VALUE = 2\n"


def test_c17_lock_reports_a_file_that_was_replaced(project: Project) -> None:
    one(project)
    project.good("lock")
    before = project.lock_text()
    project.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 66\n"})
    project.write_spec({"beta": ">=1"})
    ran = project.run("lock")
    assert ran.code == 1
    assert "hash-changed" in ran.stderr
    assert sha256_in(before, "beta") in ran.stderr
    assert project.lock_text() == before


def sha256_in(lock: str, package: str) -> str:
    return lock.split(f'name = "{package}"')[1].split('sha256 = "')[1][:64]


# C20: a package from the wrong index.


def test_c20_index_serves_only_the_packages_that_it_is_named_for(project: Project, tmp_path: Path) -> None:
    extra_wheels = tmp_path / "extra"
    project.wheel("requests", "2.28.1")
    project.wheel("torch", "1.0", requires=["requests"])
    make_wheel(extra_wheels, "requests", "9.0", {"requests/__init__.py": "evil\n"})
    make_wheel(extra_wheels, "torch", "2.0", requires=["requests"])
    with LocalIndex(extra_wheels) as extra:
        project.write_spec({"torch": "*"}, more=f'[indexes.cuda]\nurl = "{extra.url}"\npackages = ["torch"]')
        project.good("lock")
    text = project.lock_text()
    assert 'name = "requests"\nversion = "2.28.1"\nindex = "default"' in text
    assert 'name = "torch"\nversion = "2.0"\nindex = "cuda"' in text


def test_c20_index_that_only_the_machine_knows_is_refused(project: Project, tmp_path: Path) -> None:
    extra_wheels = tmp_path / "extra"
    one(project)
    make_wheel(extra_wheels, "beta", "1.0", {"beta/__init__.py": "evil\n"})
    with LocalIndex(extra_wheels) as extra:
        ran = project.run("lock", UV_INDEX=extra.url)
        assert f"127.0.0.1:{extra.port}" not in ran.text
    assert ran.code == 1
    assert "index-not-allowed" in ran.stderr
    assert not project.lock_path.exists()


# C21: yanked files.


def test_c21_yanked_file_is_refused_with_the_reason(project: Project) -> None:
    assert project.index is not None
    one(project)
    project.index.yanked["beta-1.0-py3-none-any.whl"] = "corrupted wheel got uploaded"
    refused(project, "yanked", "beta 1.0", "corrupted wheel got uploaded")


def test_c21_yanked_file_may_be_waived(project: Project) -> None:
    assert project.index is not None
    one(project)
    project.index.yanked["beta-1.0-py3-none-any.whl"] = "corrupted wheel got uploaded"
    project.write_spec(
        {"beta": "==1.0"}, more='[[waivers]]\ncheck = "yanked"\npackage = "beta"\nreason = "we have looked at it"'
    )
    locked_with(project, "yanked", "we have looked at it")


def test_c21_file_that_is_yanked_later_still_builds(locked: Project) -> None:
    assert locked.index is not None
    locked.index.yanked["beta-1.0-py3-none-any.whl"] = "oops"
    shutil.rmtree(locked.store)
    locked.good("lock", "--check")
    locked.good("build")


# C22: a release that is there in part.


def test_c22_release_that_lacks_a_part_names_the_newest_that_does_not(project: Project) -> None:
    for version in ("1.5.1", "1.5.2"):
        project.wheel("nixl", version, requires=[f"nixl-cu13=={version}"])
    project.wheel("nixl-cu13", "1.5.1")
    project.write_spec({"nixl": "==1.5.2"})
    refused(project, "unsatisfiable", "nixl", "1.5.1")


# C23: the patch level of Python.


def test_c23_exact_python_that_requires_python_excludes_is_refused(project: Project) -> None:
    one(project, requires_python=f">=3.9,!={PYTHON_MINOR}.1")
    project.write_spec({"beta": "==1.0"}, python=f'exact = "{PYTHON_MINOR}.1"')
    refused(project, "requires-python", f"{PYTHON_MINOR}.1", "beta")


def test_c23_exact_python_that_is_allowed_is_locked(project: Project) -> None:
    one(project, requires_python=f">=3.9,!={PYTHON_MINOR}.1")
    project.write_spec({"beta": "==1.0"}, python=f'exact = "{PYTHON_MINOR}.2"')
    project.good("lock")
    assert f'exact = "{PYTHON_MINOR}.2"' in project.lock_text()


def test_c23_machine_with_another_patch_level_does_not_build(project: Project) -> None:
    one(project)
    project.write_spec({"beta": "==1.0"}, python=f'exact = "{PYTHON_MINOR}.99"')
    project.good("lock")
    ran = project.run("build")
    assert ran.code != 0
    assert f"{PYTHON_MINOR}.99" in ran.stderr
    assert python_version() in ran.stderr
    assert project.environments() == []


def test_c23_machine_with_the_exact_patch_level_builds(project: Project) -> None:
    one(project)
    project.write_spec({"beta": "==1.0"}, python=f'exact = "{python_version()}"')
    project.good("lock")
    project.good("build")


def test_c23_patch_level_that_a_wheel_excludes_does_not_build(project: Project) -> None:
    excluded = ",".join(f"!={PYTHON_MINOR}.{patch}" for patch in range(1, 60))
    one(project, requires_python=f">=3.9,{excluded}")
    project.good("lock")
    ran = project.run("build")
    assert ran.code == 1
    assert "beta" in ran.stderr
    assert f"Python {PYTHON_MINOR}." in ran.stderr
    assert project.environments() == []


# C24: RECORD.


def test_c24_wrong_hash_in_record_is_refused(project: Project) -> None:
    one(
        project,
        {"beta/__init__.py": "x = 1\n"},
        record={"beta/__init__.py": record_row("beta/__init__.py", b"x = 2\n")},
    )
    refused(project, "record-hash", "beta/__init__.py")


@pytest.mark.parametrize("path", ["zz.pth", "beta/hidden.py", "beta/_x.so"])
def test_c24_code_that_record_does_not_list_is_refused(project: Project, path: str) -> None:
    one(project, {"beta/__init__.py": "", path: "x\n"}, record={path: None})
    refused(project, "unrecorded-file", path)


def test_c24_row_without_a_file_is_told(project: Project) -> None:
    one(project, record_extra=[record_row("beta/ghost.py", b"")])
    locked_with(project, "record-ghost", "beta/ghost.py")


def test_c24_paths_with_a_leading_slash_are_told_and_built(project: Project) -> None:
    row = record_row("beta/__init__.py", b"")
    one(project, record={"beta/__init__.py": f"/{row}"})
    locked_with(project, "record-path")
    project.good("build")
    record = project.site("beta-1.0.dist-info/RECORD").read_text()
    assert row in record
    assert f"/{row}" not in record.replace(f"\n{row}", "")


# C25, C26: where a wheel may not write.


@pytest.mark.parametrize("path", ["data/bin/activate", "data/bin/python3", "data/pyvenv.cfg", "scripts/python"])
def test_c25_file_that_belongs_to_the_host_is_refused(project: Project, path: str) -> None:
    one(project, data={path: "evil\n"})
    refused(project, "reserved-path", path.rpartition("/")[2])


def test_c25_data_files_of_good_wheels_are_built(project: Project) -> None:
    one(
        project,
        data={"data/bin/z3": "#!/bin/sh\necho z3\n", "data/share/man/man1/z3.1": "man\n"},
        executable=["data/bin/z3"],
    )
    project.good("lock")
    project.good("build")
    assert project.run("run", "--", "z3").stdout == "z3\n"


@pytest.mark.parametrize("member", ["../../../../../x", "/etc/x", "beta/../../../../../../x"])
def test_c26_member_that_leaves_the_environment_is_refused(project: Project, member: str) -> None:
    one(project, raw_members=[(member, b"evil")])
    refused(project, "path-escape", "beta")


def test_c26_symlink_member_is_refused(project: Project) -> None:
    one(project, {"beta/__init__.py": ""}, symlinks={"beta/libx.so": "/etc/passwd"})
    refused(project, "symlink-member", "beta/libx.so", "/etc/passwd")


def test_c26_member_that_is_there_twice_is_refused(project: Project) -> None:
    one(project, {"beta/__init__.py": ""}, raw_members=[("beta/__init__.py", b"evil")])
    refused(project, "duplicate-member", "beta/__init__.py")


@pytest.mark.parametrize("module", ["sitecustomize.py", "usercustomize.py"])
def test_c26_module_that_runs_at_every_start_is_refused(project: Project, module: str) -> None:
    one(project, {"beta/__init__.py": "", module: "print('hi')\n"})
    refused(project, "startup-hook", module)


# C27: console scripts.


def test_c27_two_scripts_of_one_name_are_refused(project: Project) -> None:
    for name in ("alpha", "beta"):
        project.wheel(name, "1.0", entry_points=f"[console_scripts]\nserve = {name}:main\n")
    project.write_spec({"alpha": "*", "beta": "*"})
    refused(project, "script-collision", "serve", "alpha", "beta")


@pytest.mark.parametrize("owner", ["alpha", "beta"])
def test_c27_owner_of_a_script_may_be_declared(project: Project, owner: str) -> None:
    for name in ("alpha", "beta"):
        project.wheel(
            name,
            "1.0",
            {f"{name}/__init__.py": f"def main(): print({name!r})\n"},
            entry_points=f"[console_scripts]\nserve = {name}:main\n",
        )
    project.write_spec(
        {"alpha": "*", "beta": "*"},
        more=f'[[waivers]]\ncheck = "script-collision"\npackage = "alpha"\npath = "bin/serve"\nowner = "{owner}"\nreason = "x"',
    )
    project.good("lock")
    project.good("build")
    assert project.run("run", "--", "serve").stdout == f"{owner}\n"


@pytest.mark.parametrize("script", ["python3", "python", "activate"])
def test_c27_script_that_replaces_the_interpreter_is_refused(project: Project, script: str) -> None:
    one(project, entry_points=f"[console_scripts]\n{script} = beta:main\n")
    refused(project, "reserved-path", script)


# C28: start-up hooks.


PTH = "import os; os.environ['BETA'] = '1'\n"


def test_c28_pth_with_code_is_told_and_its_code_is_in_the_lock(project: Project) -> None:
    one(project, {"beta/__init__.py": "", "beta.pth": PTH})
    text = locked_with(project, "startup-hook", "beta.pth")
    assert "[[package.hook]]" in text
    assert "os.environ['BETA']" in text


def test_c28_pth_runs_as_soon_as_the_environment_does(project: Project) -> None:
    one(project, {"beta/__init__.py": "", "beta.pth": PTH})
    project.write_spec(
        {"beta": "==1.0"},
        more='[[waivers]]\ncheck = "startup-hook"\npackage = "beta"\npath = "beta.pth"\nreason = "sets one variable"',
    )
    locked_with(project, "startup-hook", "sets one variable")
    project.good("build")
    ran = project.run("run", "--", "python", "-c", "import os; print(os.environ['BETA'])")
    assert ran.stdout == "1\n"


def test_c28_nothing_of_a_wheel_runs_while_it_is_locked(project: Project) -> None:
    mark = project.folder / "ran"
    code = f"open({str(mark)!r}, 'w')\n"
    one(project, {"beta/__init__.py": code, "setup.py": code, "beta.pth": f"import os; {code}", "conftest.py": code})
    project.run("lock")
    assert not mark.exists()


# C35: a local version only in the file name.


def test_c35_local_version_only_in_the_file_name_is_told(project: Project) -> None:
    project.wheel("beta", "1.0+cu130", metadata_version="1.0")
    project.write_spec({"beta": "*"})
    locked_with(project, "local-version-mismatch", "1.0+cu130")
    project.good("build")
    assert "as it was" in project.good("build").stdout


def test_c35_other_version_in_the_metadata_is_refused(project: Project) -> None:
    assert project.index is not None
    project.index.metadata = False
    project.wheel("beta", "2.0", metadata_version="1.0")
    project.write_spec({"beta": "*"})
    ran = project.run("lock")
    assert ran.code in {1, 2}
    assert "beta" in ran.stderr
    assert not project.lock_path.exists()


# C36: a patch that does not fit.


def shifted(text: str) -> str:
    return "# one line more\n" + text


CHANGES: dict[str, Callable[[str], str]] = {
    "other line": lambda _: "VALUE = 5\n",
    "shifted": shifted,
    "gone": lambda _: "",
}


@pytest.mark.parametrize("change", CHANGES)
def test_c36_patch_that_does_not_fit_is_refused_whole(project: Project, change: str) -> None:
    one(project, {"beta/__init__.py": CHANGES[change]("VALUE = 1\n"), "beta/good.py": "A = 1\n"})
    project.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 2")
    project.write_spec({"beta": "==1.0"}, more='[overlays.beta]\nseries = "overlays/series"')
    ran = project.run("lock")
    assert ran.code == 1
    assert "0001-change.patch" in ran.stderr
    assert "beta/__init__.py" in ran.stderr
    assert not project.lock_path.exists()
    assert project.leftovers() == []


def test_c36_patch_of_a_file_that_the_release_dropped_is_refused(project: Project) -> None:
    one(project, {"beta/other.py": ""})
    project.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 2")
    project.write_spec({"beta": "==1.0"}, more='[overlays.beta]\nseries = "overlays/series"')
    ran = project.run("lock")
    assert ran.code == 1
    assert "beta/__init__.py" in ran.stderr


def test_c36_overlay_for_a_package_that_is_not_there_is_refused(project: Project) -> None:
    one(project)
    project.write_patch("gamma/__init__.py", "VALUE = 1", "VALUE = 2")
    project.write_spec({"beta": "==1.0"}, more='[overlays.gamma]\nseries = "overlays/series"')
    ran = project.run("lock")
    assert ran.code in {1, 2}
    assert "gamma" in ran.stderr
    assert not project.lock_path.exists()


def test_c36_lock_has_the_digests_before_and_after(locked: Project) -> None:
    change = locked.lock_text().split("[[overlay.change]]")[1]
    before, after = (hashlib.sha256(text).hexdigest() for text in (b"VALUE = 1\n", b"VALUE = 2\n"))
    assert f'before = "{before}"\nafter = "{after}"\n' in change


def test_c36_patched_environment_is_clean_and_its_record_tells_the_patch(built: Project) -> None:
    assert built.good("verify", "--deep", "--json").host()["drift"] == []
    record = next(built.site("").glob("beta-1.0+*.dist-info/RECORD")).read_text()
    assert record_row("beta/__init__.py", b"VALUE = 2\n") in record
    assert built.run("run", "--", "alpha").stdout == "alpha 2\n"


def test_c29_files_of_the_environment_cannot_be_written(built: Project) -> None:
    active = built.active()
    assert active is not None
    for path in active.rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o222 == 0, path


def test_c18_lock_has_no_path_of_the_machine(locked: Project) -> None:
    text = locked.lock_text()
    assert str(locked.folder) not in text
    assert "://" not in text
    assert str(base_python()) not in text
