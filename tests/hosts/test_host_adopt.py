"""`envspec adopt --host`: a venv of a host becomes a folder here, and nothing is left there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.handmade import install_venv, site_of
from tests.support.projects import PYTHON_MINOR, snapshot_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet
    from tests.support.projects import Project


def test_venv_of_a_host_gives_the_same_folder_as_one_of_this_machine(
    locked: Project, fleet: Fleet, tmp_path: Path
) -> None:
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
    host = fleet.hosts[0]
    venv = install_venv(tmp_path / "venv", locked, ["alpha==1.0"])
    (site_of(venv) / "beta/__init__.py").write_text("VALUE = 'by hand'\n")
    (site_of(venv) / "stray.py").write_text("x = 1\n")
    shutil.copytree(venv, host.opt / "adopted", symlinks=True)
    before = snapshot_of(host.opt)
    here = locked.good("adopt", venv, "--out", locked.spec_folder / "here", "--name", "demo", "--json").json()
    there = locked.good(
        "adopt", "/opt/adopted", "--host", "h0", "--out", locked.spec_folder / "there", "--name", "demo", "--json"
    ).json()
    assert there["host"] == "h0"
    assert there["paths"] == here["paths"]
    assert there["explained"] == here["explained"]
    assert "patched" in {each["kind"] for each in there["paths"]}
    own = ("adopt-report.md", "demo.toml")  # they name the machine
    folders = [snapshot_of(locked.spec_folder / name) for name in ("here", "there")]
    assert {path: row for path, row in folders[0].items() if path not in own} == {
        path: row for path, row in folders[1].items() if path not in own
    }
    assert snapshot_of(host.opt) == before
    text = (locked.spec_folder / "there/demo.toml").read_text()
    assert f'version = "{PYTHON_MINOR}"' in text
    assert '[hosts.h0]\nreuse = ["/opt/adopted"]' in text
    assert "envspec build --host h0" in there["next"]


def test_host_without_the_venv_is_an_error_and_nothing_is_written(locked: Project, fleet: Fleet) -> None:
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
    ran = locked.run("adopt", "/opt/nowhere", "--host", "h0", "--name", "there")
    assert ran.code == 2
    assert "/opt/nowhere" in ran.stderr
    assert not (locked.spec_folder / "there").exists()
