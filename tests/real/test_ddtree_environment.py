"""The committed environment, on the real stack: some minutes, 4 GB of downloads, 12 GB of disk.

`ENVSPEC_REAL_STORE=/some/folder uv run pytest -m real` runs them; without the variable they are skipped. What is in that store already is used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envspec.lock_toml import parse_lock

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
NOBODY = 65534
STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
LOCK = parse_lock((ROOT / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")

if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)


def envspec(*arguments: str, folder: Path = ROOT, prefix: tuple[str, ...] = (), **variables: str) -> dict[str, Any]:
    """What a command printed with `--json`."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "envspec", *arguments, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stderr}\n{done.stdout}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    """The outcome of building the committed lock in the store."""
    host: dict[str, Any] = envspec("build", "--store", STORE)["hosts"][0]
    return host


def test_the_build_has_the_site_digest_of_the_lock_and_its_imports_work(built: dict[str, Any]) -> None:
    assert built["env"] == LOCK.env
    assert built["site"] == LOCK.site
    imports = next(probe for probe in built["probes"] if probe["id"] == "imports")
    assert imports["result"] == "pass", imports


def test_building_again_does_nothing(built: dict[str, Any]) -> None:
    again = envspec("build", "--store", STORE)["hosts"][0]
    assert again["built"] is False
    assert (again["env"], again["generation"]) == (built["env"], built["generation"])


def test_every_byte_on_the_disk_gives_the_site_digest(built: dict[str, Any]) -> None:  # noqa: ARG001 - must come first
    verified = envspec("verify", "--deep", "--store", STORE)["hosts"][0]
    assert verified["drift"] == []
    assert verified["site"] == LOCK.site


def test_the_tree_satisfies_mtree(built: dict[str, Any]) -> None:
    mtree = shutil.which("mtree")
    if mtree is None:
        pytest.skip("mtree (Debian: mtree-netbsd) is not installed")
    manifest = Path(STORE) / "receipts" / LOCK.env / "site.mtree"
    # -e: bytecode and what belongs to the host lie in the tree too, and stand in no manifest.
    done = subprocess.run(
        [mtree, "-e", "-f", manifest, "-p", built["path"]], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_running_the_environment_as_root_writes_nothing_into_it(built: dict[str, Any]) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [f"{built['path']}/bin/python", "-c", "import numpy, transformers, xml.dom"], env=variables, cwd="/", check=True
    )
    status = envspec("status", "--store", STORE)["hosts"][0]
    assert status["drift"] == []


def test_locking_from_nothing_gives_the_committed_lock_byte_for_byte(built: dict[str, Any], tmp_path: Path) -> None:  # noqa: ARG001 - its wheels
    shutil.copy(ROOT / "ddtree.toml", tmp_path)
    shutil.copytree(ROOT / "overlays", tmp_path / "overlays")
    envspec("lock", "--store", STORE, folder=tmp_path)
    assert (tmp_path / "ddtree.lock").read_bytes() == (ROOT / "ddtree.lock").read_bytes()


def as_another_user(*folders: Path) -> tuple[str, ...]:
    """The start of a command line that runs the rest as `nobody`, with a umask of 077; those folders are given to that user.

    Reading everywhere is kept: the interpreter may lie below a home that only its owner may enter.
    """
    with_umask = ("/bin/sh", "-c", 'umask 077; exec "$@"', "sh")
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        return with_umask
    for folder in folders:
        for parent, _, _ in os.walk(folder):
            os.chown(parent, NOBODY, NOBODY)
    capability = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *capability, *with_umask)


def test_another_store_with_other_user_umask_zone_and_language_gives_the_same_site(
    built: dict[str, Any], tmp_path: Path
) -> None:
    other = Path(STORE).parent / "another störe"
    shutil.rmtree(other, ignore_errors=True)
    # The same wheels without another download: links, as all in the wheelhouse is read-only.
    shutil.copytree(f"{STORE}/wheels", other / "wheels", copy_function=os.link)
    home = tmp_path / "home"
    home.mkdir()
    for above in tmp_path.parents[:3]:
        above.chmod(0o755)
    try:
        host = envspec(
            "build",
            "--store",
            os.fspath(other),
            prefix=as_another_user(other, home),
            TZ="Pacific/Kiritimati",
            LANG="C",
            LC_ALL="C",
            HOME=os.fspath(home),
        )["hosts"][0]
        assert host["site"] == built["site"] == LOCK.site
        assert host["path"] != built["path"]
    finally:
        for parent, _, _ in os.walk(other):
            os.chmod(parent, 0o700)  # noqa: PTH101 - quicker on many folders
        shutil.rmtree(other)
