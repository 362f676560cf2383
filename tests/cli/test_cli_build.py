"""`envspec build`: what becomes active, what does not, and what it takes."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.projects import PYTHON_MINOR, Project, snapshot_of

if TYPE_CHECKING:
    from pathlib import Path

DEAD = "http://127.0.0.1:9/simple/"


def requests(project: Project) -> list[str]:
    assert project.index is not None
    return [request.path for request in project.index.requests]


def change_patch(project: Project, value: str) -> None:
    """Another patch, and so another environment."""
    project.write_patch("beta/__init__.py", "VALUE = 1", f"VALUE = {value}")
    project.good("lock")


def test_build_activates_what_was_locked(locked: Project) -> None:
    ran = locked.good("build")
    assert locked.active() is not None
    for line in (f"path     {locked.active()}", "profile  generation 1\n", "imports  pass"):
        assert line in ran.stdout
    for label in ("env", "site"):
        value = next(line.split()[1] for line in ran.stdout.splitlines() if line.startswith(f"{label} "))
        assert f'{label} = "{value}"' in locked.lock_text()
    assert locked.leftovers() == []
    assert locked.good("run", "--", "alpha", "x y", "").stdout == "alpha 2 x y \n"


def test_second_build_does_nothing_at_all(built: Project) -> None:
    before = snapshot_of(built.store)
    ran = built.good("build", watch=True, UV=None)
    assert ran.events == ()
    assert "generation 1, as it was" in ran.stdout
    assert requests(built) == []
    assert snapshot_of(built.store) == before


def test_spec_is_built_from_any_folder(locked: Project) -> None:
    """Paths of patches are relative to the spec, not to where the command is run."""
    for spec in (locked.spec_path, "../spec/demo.toml"):
        for _ in range(2):
            locked.good("build", "--spec", spec, cwd=locked.home)
    assert locked.good("run", "--spec", locked.spec_path, "--", "alpha", cwd=locked.home).stdout == "alpha 2\n"
    assert len(locked.environments()) == 1


def test_build_after_a_change_of_comments_makes_no_new_generation(built: Project) -> None:
    built.spec_path.write_text("# why\n" + built.spec_path.read_text())
    ran = built.good("build", "--json").host()
    assert (ran["built"], ran["generation"]) == (False, 1)
    assert "as it was" in built.good("build", watch=True).stdout


def test_build_with_a_complete_wheelhouse_asks_nobody(locked: Project) -> None:
    change_patch(locked, "7")
    locked.good("build", UV_DEFAULT_INDEX=DEAD)
    assert requests(locked) == []
    assert locked.good("run", "--", "alpha").stdout == "alpha 7\n"


def test_further_environment_needs_neither_index_nor_uv(built: Project) -> None:
    change_patch(built, "7")
    built.good("build", UV_DEFAULT_INDEX=DEAD, UV="/nonexistent")
    assert requests(built) == []
    assert built.good("run", "--", "alpha").stdout == "alpha 7\n"
    assert len(built.environments()) == 2


def test_further_environment_shares_the_files_of_the_first(built: Project) -> None:
    first = built.active()
    change_patch(built, "7")
    built.good("build")
    second = built.active()
    assert first is not None
    assert second is not None
    for path in ("alpha/__init__.py", "beta/more.py", f"beta/__pycache__/more.{sys.implementation.cache_tag}.pyc"):
        inodes = {
            (environment / built.site("").relative_to(second) / path).stat().st_ino for environment in (first, second)
        }
        assert len(inodes) == 1, path


def test_wheel_that_is_missing_in_the_wheelhouse_is_fetched(locked: Project) -> None:
    for wheel in locked.store.glob("wheels/*/alpha-1.0-*.whl"):
        shutil.rmtree(wheel.parent)
    locked.good("build")
    assert [path.rpartition("/")[2] for path in requests(locked) if path.endswith(".whl")] == [
        "alpha-1.0-py3-none-any.whl"
    ]


def test_build_in_an_empty_store_fetches_everything_and_gives_the_locked_tree(locked: Project) -> None:
    shutil.rmtree(locked.store)
    host = locked.good("build", "--json").host()
    assert f'site = "{host["site"]}"' in locked.lock_text()
    assert host["built"] is True


# Imports.


BROKEN = (
    "try:\n"
    "    import vision\n"
    "except Exception as error:\n"
    "    raise ModuleNotFoundError('please install pybase64') from error\n"
)


def break_import(project: Project) -> None:
    """A set that resolves, and whose import fails for another reason than what is raised last."""
    project.wheel("vision", "1.0", {"vision/__init__.py": "raise RuntimeError('built for CUDA 12.8')\n"})
    project.wheel("alpha", "2.0", {"alpha/__init__.py": BROKEN}, requires=["vision"])
    project.spec_path.write_text(
        project.spec_path.read_text().replace('alpha = "==1.0"', 'alpha = "==2.0"\nbeta = "*"')
    )
    project.good("lock")


def test_failing_import_shows_the_whole_chain_and_activates_nothing(built: Project) -> None:
    former = built.active()
    break_import(built)
    ran = built.run("build")
    assert ran.code == 1
    first_line = ran.stderr.splitlines()[0]
    assert "`alpha`" in first_line
    assert "built for CUDA 12.8" in first_line
    assert "please install pybase64" in ran.stderr
    assert "vision/__init__.py" in ran.stderr
    assert built.active() == former
    assert built.good("run", "--", "alpha").stdout == "alpha 2\n"
    assert "generation" not in ran.stdout
    assert [line[0] for line in built.good("generations").stdout.splitlines()] == ["*"]


def test_failing_import_in_json_is_one_object_and_names_the_cause(locked: Project) -> None:
    break_import(locked)
    ran = locked.run("build", "--json")
    assert ran.code == 1
    error = ran.json()["error"]
    assert "built for CUDA 12.8" in error["message"]
    assert locked.active() is None


def test_failing_import_leaves_a_receipt(locked: Project) -> None:
    break_import(locked)
    locked.run("build")
    receipts = [path.read_text() for path in locked.store.glob("receipts/*/*-build.json")]
    assert len(receipts) == 1
    assert "please install pybase64" in receipts[0]


def test_build_after_a_failing_import_fails_again(locked: Project) -> None:
    break_import(locked)
    assert locked.run("build").code == 1
    assert locked.run("build").code == 1
    assert locked.active() is None


def test_build_after_the_cause_is_gone_activates(locked: Project) -> None:
    break_import(locked)
    assert locked.run("build").code == 1
    locked.spec_path.write_text(locked.spec_path.read_text().replace('alpha = "==2.0"', 'alpha = "==1.0"'))
    locked.good("lock")
    locked.good("build")
    assert locked.good("run", "--", "alpha").stdout == "alpha 2\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os._exit(0)", "exit"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import sys; sys.exit('no licence')", "no licence"),
        ("x = (", "SyntaxError"),
    ],
    ids=["leaves", "crashes", "exits", "no Python"],
)
def test_module_that_ends_the_process_fails_the_build(project: Project, code: str, said: str) -> None:
    project.wheel("beta", "1.0", {"beta/__init__.py": f"{code}\n"})
    project.write_spec({"beta": "*"}, imports=["beta"])
    project.good("lock")
    ran = project.run("build")
    assert ran.code == 1
    assert "beta" in ran.stderr
    assert said in ran.stderr
    assert project.active() is None


def test_imports_see_nothing_of_the_machine(project: Project) -> None:
    """Neither PYTHONPATH nor the working folder nor a variable with a secret is theirs."""
    stranger = project.folder / "stranger"
    stranger.mkdir()
    (stranger / "helper.py").write_text("")
    project.wheel("beta", "1.0", {"beta/__init__.py": "import os\nassert 'TOKEN' not in os.environ\nimport helper\n"})
    project.write_spec({"beta": "*"}, imports=["beta"])
    project.good("lock")
    (project.spec_folder / "helper.py").write_text("")
    path = f"{project.environ()['PYTHONPATH']}:{stranger}"
    ran = project.run("build", PYTHONPATH=path, TOKEN="t0p")
    assert ran.code == 1
    assert "No module named 'helper'" in ran.stderr


def test_import_may_write_wherever_home_is_and_leaves_nothing(project: Project) -> None:
    code = (
        "import pathlib\nfor place in (pathlib.Path.home(), pathlib.Path('.')):\n    (place / 'mess').write_text('x')\n"
    )
    project.wheel("beta", "1.0", {"beta/__init__.py": code})
    project.write_spec({"beta": "*"}, imports=["beta"])
    project.good("lock")
    project.good("build")
    assert not (project.home / "mess").exists()
    assert not (project.spec_folder / "mess").exists()
    assert project.leftovers() == []


def test_environment_without_imports_is_built(project: Project) -> None:
    project.wheel("beta", "1.0")
    project.write_spec({"beta": "*"})
    project.good("lock")
    assert project.good("build", "--json").host()["probes"] == []


# What a build refuses.


def test_stale_lock_is_refused(built: Project) -> None:
    former = built.active()
    built.spec_path.write_text(built.spec_path.read_text().replace("==1.0", ">=1"))
    ran = built.run("build")
    assert ran.code == 1
    assert "does not describe the spec any more" in ran.stderr
    assert "envspec lock" in ran.stderr
    assert built.active() == former


def test_patch_that_is_not_the_locked_one_is_refused(locked: Project) -> None:
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 666")
    ran = locked.run("build")
    assert ran.code == 1
    assert "0001-change.patch" in ran.stderr
    assert locked.environments() == []


def test_patch_that_changed_after_the_build_is_seen(built: Project) -> None:
    """The quick path looks at the spec and the lock; a patch that was edited and not locked must not pass for what is active."""
    built.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 666")
    ran = built.run("build")
    assert ran.code == 1
    assert "0001-change.patch" in ran.stderr


def test_failed_build_does_not_stand_for_the_good_one_before_it(built: Project) -> None:
    """The quick path shows the evidence of the build that made the environment active, not of a later one that failed."""
    good = built.spec_path.read_text()
    built.spec_path.write_text(good.replace('imports = ["alpha", "beta"]', 'imports = ["alpha", "nothing"]'))
    built.good("lock", "--check")
    assert built.run("build").code == 1
    built.spec_path.write_text(good)
    assert "imports  pass" in built.good("build").stdout
    assert "imports  pass" in built.good("build").stdout


def test_missing_lock_says_how_to_make_one(project: Project) -> None:
    project.write_spec({"beta": "*"})
    ran = project.run("build")
    assert ran.code == 2
    assert "there is no lock beside `demo.toml`" in ran.stderr
    assert "envspec lock" in ran.stderr
    assert not (project.store / "envs").exists()


def test_lock_for_a_newer_glibc_is_refused(project: Project) -> None:
    project.wheel("beta", "1.0")
    project.write_spec({"beta": "*"}, glibc="2.99")
    project.good("lock")
    ran = project.run("build")
    assert ran.code == 1
    assert "2.99" in ran.stderr
    assert project.environments() == []


def test_machine_without_the_python_lists_what_was_looked_at(locked: Project, tmp_path: Path) -> None:
    text = locked.spec_path.read_text()
    locked.spec_path.write_text(text.replace(f'version = "{PYTHON_MINOR}"', 'version = "3.99"'))
    ran = locked.run("lock", PATH=str(tmp_path))
    if ran.code == 0:
        ran = locked.run("build", PATH=str(tmp_path))
    assert ran.code != 0
    assert "3.99" in ran.stderr
    assert locked.environments() == []


@pytest.mark.parametrize("pattern", ["beta-1.0+*.whl", "alpha-1.0-*.whl"], ids=["patched", "of an index"])
def test_wheel_that_changed_in_the_wheelhouse_is_hashed_before_use_and_brought_again(
    locked: Project, pattern: str
) -> None:
    (wheel,) = locked.store.glob(f"wheels/*/{pattern}")
    content = wheel.read_bytes()
    wheel.chmod(0o644)
    wheel.write_bytes(content[:100] + b"XXXX" + content[104:])
    locked.good("build")
    assert wheel.read_bytes() == content
    locked.good("verify", "--deep")


def test_wheel_that_changed_and_cannot_be_brought_again_ends_the_build(locked: Project) -> None:
    (wheel,) = locked.store.glob("wheels/*/alpha-1.0-*.whl")
    content = wheel.read_bytes()
    wheel.chmod(0o644)
    wheel.write_bytes(content[:100] + b"XXXX" + content[104:])
    ran = locked.run("build", UV_DEFAULT_INDEX=DEAD, UV_HTTP_RETRIES="0")
    assert ran.code == 2
    assert locked.active() is None
    assert locked.environments() == []
    assert locked.leftovers() == []
