"""Whatever changes in an environment after it was proven is found, named and mended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.projects import PYTHON_MINOR, SITE_PACKAGES, Project, remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TAG = sys.implementation.cache_tag


def edit(path: Path) -> None:
    """Change a file where it lies, and leave its size."""
    content = path.read_bytes()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(bytes([content[0] ^ 1]))
    path.chmod(0o444)


def append(path: Path) -> None:
    path.chmod(0o644)
    with path.open("a") as file:
        file.write("# mine\n")


def replace(path: Path) -> None:
    """What editors do: another file of that name."""
    path.parent.chmod(0o755)
    beside = path.with_name("new")
    beside.write_bytes(path.read_bytes().replace(b"x", b"y"))
    beside.replace(path)


def remove(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()


def add(path: Path) -> None:
    path.parent.chmod(0o755)
    path.write_text("print('hello')\n")


def link(path: Path) -> None:
    remove(path)
    path.symlink_to("/etc/passwd")


def run_it(path: Path) -> None:
    path.chmod(0o555)


DRIFTS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "edited in place": (f"{SITE_PACKAGES}/beta/more.py", edit, "modified"),
    "longer": (f"{SITE_PACKAGES}/beta/more.py", append, "modified"),
    "replaced": (f"{SITE_PACKAGES}/beta/more.py", replace, "modified"),
    "gone": (f"{SITE_PACKAGES}/alpha/data.txt", remove, "missing"),
    "added": (f"{SITE_PACKAGES}/sitecustomize.py", add, "extra"),
    "a link": (f"{SITE_PACKAGES}/alpha/data.txt", link, "modified"),
    "executable": (f"{SITE_PACKAGES}/alpha/data.txt", run_it, "modified"),
    "script": ("bin/alpha", append, "modified"),
    "bytecode": (f"{SITE_PACKAGES}/beta/__pycache__/more.{TAG}.pyc", edit, "modified"),
    "further bytecode": (f"{SITE_PACKAGES}/beta/__pycache__/more.{TAG}.opt-1.pyc", add, "extra"),
    "pyvenv.cfg": ("pyvenv.cfg", append, "modified"),
    "activate": ("bin/activate", append, "modified"),
    "interpreter": ("bin/python", link, "modified"),
    "interpreter is gone": (f"bin/python{PYTHON_MINOR}", remove, "missing"),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_drift_is_named_and_repaired(built: Project, drift: str) -> None:
    path, change, kind = DRIFTS[drift]
    active = built.active()
    assert active is not None
    change(active / path)

    ran = built.run("status")
    assert ran.code == 1
    assert "drift    1" in ran.stdout
    assert f"  {kind:8}  {path}" in ran.stdout

    deep = built.run("verify", "--deep", "--json")
    assert deep.code == 1
    assert [(each["path"], each["kind"]) for each in deep.host()["drift"]] == [(path, kind)]

    built.good("build", "--repair")
    assert built.good("verify", "--deep", "--json").host()["drift"] == []
    assert built.leftovers() == []


def test_drift_is_told_by_every_verb_that_looks(built: Project) -> None:
    path = f"{SITE_PACKAGES}/beta/more.py"
    edit(built.site("beta/more.py"))
    (seen,) = built.run("status", "--json").host()["drift"]
    assert (seen["path"], seen["kind"]) == (path, "modified")
    for verb in (("verify",), ("verify", "--deep")):
        ran = built.run(*verb)
        assert ran.code == 1
        assert f"modified  {path}" in ran.stderr
        assert "envspec build --repair" in ran.stderr
    built.good("build", "--repair")
    assert built.good("status", "--json").host()["drift"] == []
    assert built.good("run", "--", "alpha").stdout == "alpha 2\n"


def test_file_that_was_only_touched_is_no_drift(built: Project) -> None:
    path = built.site("beta/more.py")
    os.utime(path)
    path.chmod(0o644)
    path.chmod(0o444)
    built.good("status")
    built.good("verify", "--deep")


def test_file_with_its_old_times_is_found_all_the_same(built: Project) -> None:
    path = built.site("beta/more.py")
    status = path.stat()
    edit(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert built.run("status").code == 1


def look_closer(project: Project) -> None:
    """Change something that moves no environment, so that a build has to look."""
    project.spec_path.write_text("# why\n" + project.spec_path.read_text())


def test_build_of_a_drifted_environment_is_refused(built: Project) -> None:
    edit(built.site("beta/more.py"))
    look_closer(built)
    ran = built.run("build")
    assert ran.code == 1
    assert "has drifted: 1 path differ" in ran.stderr or "has drifted: 1 path differs" in ran.stderr
    assert f"modified  {SITE_PACKAGES}/beta/more.py" in ran.stderr
    assert "envspec build --repair" in ran.stderr


def another(project: Project) -> None:
    """A second generation that shares all files but the patched one."""
    project.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 7")
    project.good("lock")


def test_damaged_object_never_gets_into_another_environment(built: Project) -> None:
    """Inodes are shared: an edit in one environment damages the object that all others are made from."""
    edit(built.site("alpha/data.txt"))
    another(built)
    ran = built.run("build")
    assert ran.code == 1
    assert "alpha/data.txt" in ran.stderr
    assert "--repair" in ran.stderr
    assert len(built.environments()) == 1
    built.good("build", "--repair")
    assert built.site("alpha/data.txt").read_text() == "data\n"
    built.good("verify", "--deep")


def test_damaged_file_of_a_base_wheel_never_gets_into_a_patched_one(built: Project) -> None:
    edit(built.site("beta/more.py"))
    another(built)
    built.good("build")
    assert built.site("beta/more.py").read_text() == "MORE = 'x' * 10\n"
    built.good("verify", "--deep")


def test_repair_mends_the_store_and_the_other_generation_is_reported_and_mended(built: Project) -> None:
    lock, patch = built.lock_text(), (built.spec_folder / "overlays" / "0001-change.patch").read_text()
    another(built)
    built.good("build")
    edit(built.site("beta/more.py"))
    built.good("build", "--repair")
    built.good("verify", "--deep")
    # The first generation still has the damaged inode.
    built.good("rollback")
    ran = built.run("status")
    assert ran.code == 1
    assert f"modified  {SITE_PACKAGES}/beta/more.py" in ran.stdout
    built.lock_path.write_text(lock)
    (built.spec_folder / "overlays" / "0001-change.patch").write_text(patch)
    built.good("build", "--repair")
    built.good("status")
    built.good("verify", "--deep")
    assert built.good("run", "--", "alpha").stdout == "alpha 2\n"


def test_patching_never_changes_the_base_wheel_or_its_tree(built: Project) -> None:
    """Case C29: after a patched build, the pristine file is still the pristine file."""
    lines = built.spec_path.read_text().split("[overlays.beta]")[0]
    built.spec_path.write_text(lines)
    built.good("lock")
    built.good("build")
    assert built.site("beta/__init__.py").read_text() == "VALUE = 1\n"
    assert built.good("run", "--", "alpha").stdout == "alpha 1\n"


def test_whole_environment_that_is_gone_is_told_and_made_anew(built: Project) -> None:
    active = built.active()
    assert active is not None
    remove_tree(active)
    assert built.run("status").code == 1
    assert built.run("verify").code in {1, 2}
    built.good("build")
    built.good("verify", "--deep")


def test_lost_record_is_told_and_made_anew(built: Project) -> None:
    shutil.rmtree(built.store / "receipts")
    (built.store / "receipts").mkdir()
    assert built.run("status").code in {1, 2}
    assert built.run("verify", "--deep").code in {1, 2}
    ran = built.run("build")
    assert ran.code == 1
    assert "--repair" in ran.stderr
    built.good("build", "--repair")
    built.good("verify", "--deep")


@pytest.mark.parametrize("kind", ["trees", "bytecode"])
def test_lost_objects_are_told_and_made_anew(built: Project, kind: str) -> None:
    remove_tree(built.store / kind)
    (built.store / kind).mkdir()
    assert built.run("status").code == 1
    assert built.run("verify", "--deep").code == 1
    built.good("build", "--repair")
    built.good("status")
    built.good("verify", "--deep")


@pytest.mark.parametrize("damage", [b"", b"#mtree\n", b"\xff\xfe", None], ids=["empty", "other", "binary", "gone"])
def test_damaged_manifest_of_the_store_is_told(built: Project, damage: bytes | None) -> None:
    (manifest,) = built.store.glob("receipts/*/site.mtree")
    if damage is None:
        manifest.unlink()
    else:
        manifest.write_bytes(damage)
    ran = built.run("verify", "--deep")
    assert ran.code == 1
    assert "--repair" in ran.stderr
    built.good("build", "--repair")
    built.good("verify", "--deep")


def test_verify_leaves_a_receipt_of_what_it_found(built: Project) -> None:
    edit(built.site("beta/more.py"))
    built.run("verify", "--deep")
    (receipt,) = built.store.glob("receipts/*/*-verify.json")
    assert "beta/more.py" in receipt.read_text()


def test_verify_imports_again(built: Project) -> None:
    ran = built.good("verify", "--json").host()
    assert [(probe["id"], probe["result"]) for probe in ran["probes"]] == [("tree", "pass"), ("imports", "pass")]


def test_running_program_does_not_disturb_a_repair(built: Project) -> None:
    process = subprocess.Popen(
        [
            built.store / "profiles" / "demo" / "bin" / "python",
            "-c",
            "import alpha; print('ready', flush=True); input(); alpha.main()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    edit(built.site("beta/more.py"))
    built.good("build", "--repair")
    out, _ = process.communicate("\n")
    assert out == "alpha 2\n"
    assert process.returncode == 0


def test_interpreter_that_was_removed_is_named_by_every_verb_and_repair_finds_another(built: Project) -> None:
    active = built.active()
    assert active is not None
    gone = "/nonexistent/python"
    (record,) = built.store.glob("receipts/*/env-*.json")
    (active / "bin").chmod(0o755)
    (active / "bin" / "python").unlink()
    (active / "bin" / "python").symlink_to(gone)
    fields = json.loads(record.read_text())
    fields["host_links"]["bin/python"] = gone  # as if the environment had been built with it
    record.write_text(json.dumps(fields))
    for verb in (("status",), ("build",), ("run", "--", "python", "-V")):
        ran = built.run(*verb)
        assert ran.code != 0, verb
        assert "gone" in ran.text, verb
    built.good("build", "--repair")
    built.good("status")
    built.good("run", "--", "python", "-c", "import alpha")
