"""One lock gives one tree: whatever the path, umask, time zone, language, home, user and neighbours of a store are."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.projects import Project, base_python, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOBODY = 65534
STRANGE = "strange störe 'é' \"$HOME\" %2e"


def with_umask(mask: str) -> Sequence[str]:
    return ["sh", "-c", 'umask "$1" && shift && exec "$@"', "sh", mask]


def as_nobody() -> Sequence[str]:
    """Another user without any right of root's, but that of reading where the tests' own Python and folders lie."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    before = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=-all,+dac_read_search",
        "--bounding-set=-all,+dac_read_search",
    ]
    if subprocess.run([*before, base_python(), "-c", ""], capture_output=True, check=False).returncode != 0:
        pytest.skip("another user cannot run the Python of the tests here")
    return before


def own(folder: Path) -> Path:
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY, NOBODY)
    return folder


def contents(environment: Path) -> dict[str, tuple[int, bytes]]:
    """What the site digest covers, and bytecode: all but what belongs to the host."""
    hosts = ("bin/python", "bin/activate", "pyvenv.cfg")
    return {path: seen for path, seen in snapshot_of(environment).items() if not path.startswith(hosts)}


def built_in(project: Project, store: Path, *, before: Sequence[str] = (), **changes: str | None) -> dict[str, str]:
    host = project.good("build", "--json", "--store", store, before=before, **changes).host()
    assert f'site = "{host["site"]}"' in project.lock_text()
    checked = project.good("verify", "--deep", "--json", "--store", store, before=before, **changes).host()
    assert checked["site"] == host["site"]
    return host


def test_stores_of_different_make_have_one_tree(locked: Project) -> None:
    plain = locked.folder / "plain"
    strange = locked.folder / STRANGE
    built_in(locked, plain, before=with_umask("022"))
    built_in(
        locked,
        strange,
        before=with_umask("077"),
        TZ="Pacific/Kiritimati",
        LANG="tr_TR.UTF-8",
        LC_ALL="C",
        HOME=str(locked.folder / "other home"),
        PYTHONHASHSEED="7",
        SOURCE_DATE_EPOCH="1",
    )
    first, second = (contents((store / "profiles" / "demo").resolve()) for store in (plain, strange))
    assert first == second
    assert first


def test_another_user_builds_the_same_tree(locked: Project) -> None:
    before = as_nobody()
    mine, theirs = locked.folder / "mine", own(locked.folder / "theirs")
    home = own(locked.folder / "their home")
    built_in(locked, mine)
    built_in(locked, theirs, before=before, HOME=str(home))
    first, second = (contents((store / "profiles" / "demo").resolve()) for store in (mine, theirs))
    assert first == second
    assert {path.stat().st_uid for path in theirs.rglob("*.py")} == {NOBODY}
    ran = locked.good("run", "--store", theirs, "--", "alpha", before=before, HOME=str(home))
    assert ran.stdout == "alpha 2\n"


def test_another_user_looks_at_and_runs_from_the_store_of_root(built: Project) -> None:
    before = as_nobody()
    home = own(built.folder / "their home")
    for verb in ("status", "generations", "build"):
        built.good(verb, before=before, HOME=str(home))
    assert built.good("run", "--", "alpha", before=before, HOME=str(home)).stdout == "alpha 2\n"


def test_store_of_a_user_with_a_strict_umask_can_be_read_by_everybody(locked: Project) -> None:
    """A service that runs as another user than the one who builds has to get at it."""
    store = locked.folder / "strict"
    locked.good("build", "--store", store, before=with_umask("077"))
    kinds = ("envs", "receipts", "profiles", "generations")
    for path in [store, *(path for kind in kinds for path in (store / kind, *(store / kind).rglob("*")))]:
        if not path.is_symlink():
            wanted = 0o005 if path.is_dir() else 0o004
            assert path.stat().st_mode & wanted == wanted, path


def test_store_of_root_cannot_be_written_by_another_and_says_so(built: Project) -> None:
    before = as_nobody()
    home = own(built.folder / "their home")
    built.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    ran = built.run("lock", before=before, HOME=str(home))
    assert ran.code == 2
    assert "Permission denied" in ran.stderr
    assert "--store" in ran.stderr
    for verb in (("gc",), ("rollback",), ("verify",)):
        ran = built.run(*verb, before=before, HOME=str(home))
        assert ran.code == 2, verb
        assert "hint: " in ran.stderr, verb


def test_commands_of_a_strange_store_run(locked: Project) -> None:
    """Console scripts find their interpreter below a path that no `#!` line can hold."""
    store = locked.folder / STRANGE
    locked.good("build", "--store", store)
    assert locked.good("run", "--store", store, "--", "alpha", "x").stdout == "alpha 2 x\n"
    done = subprocess.run(
        [store / "profiles" / "demo" / "bin" / "alpha"], env={}, capture_output=True, check=True, encoding="utf-8"
    )
    assert done.stdout == "alpha 2\n"
    done = subprocess.run(
        ["/bin/sh", "-c", '. "$1" && alpha', "sh", store / "profiles" / "demo" / "bin" / "activate"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    assert done.stdout == "alpha 2\n"


def test_store_behind_a_link_is_the_same_store(built: Project) -> None:
    link = built.folder / "link"
    link.symlink_to(built.store)
    assert "as it was" in built.good("build", "--store", link).stdout
    assert built.good("run", "--store", link, "--", "alpha").stdout == "alpha 2\n"
    built.good("status", "--store", link)
    built.good("verify", "--deep", "--store", link)


def test_relative_store_means_the_current_folder(locked: Project) -> None:
    locked.good("build", "--store", "here")
    assert (locked.spec_folder / "here" / "profiles" / "demo").is_dir()
    assert locked.good("run", "--store", locked.spec_folder / "here", "--", "alpha").stdout == "alpha 2\n"


def test_ordinary_user_has_a_store_of_their_own(locked: Project) -> None:
    before = as_nobody()
    home = own(locked.folder / "their home")
    locked.good("build", before=before, HOME=str(home), ENVSPEC_STORE=None)
    assert (home / ".local" / "share" / "envspec" / "profiles" / "demo").is_dir()


def test_mtree_verifies_the_trees_of_two_stores(locked: Project) -> None:
    """Another program, from NetBSD, agrees with the manifest: about what is there, and about every byte of it."""
    mtree = shutil.which("mtree")
    if mtree is None:
        pytest.skip("mtree is not installed")
    for store in (locked.folder / "plain", locked.folder / STRANGE):
        host = built_in(locked, store)
        manifest = store / "receipts" / host["env"] / "site.mtree"
        command = [mtree, "-e", "-f", str(manifest), "-p", host["path"]]
        done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
        victim = next(path for path in (store / "profiles" / "demo").resolve().rglob("data.txt"))
        victim.chmod(0o644)
        victim.write_text("atad\n")
        victim.chmod(0o444)
        done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
        assert done.returncode != 0
        assert "alpha/data.txt" in done.stdout
