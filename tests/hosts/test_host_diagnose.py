"""`envspec diagnose --host`: a venv of a host is judged as one of this machine, and nothing is left there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.handmade import install_venv, site_of
from tests.support.projects import snapshot_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet
    from tests.support.projects import Project


def test_venv_of_a_host_is_judged_as_one_of_this_machine(locked: Project, fleet: Fleet, tmp_path: Path) -> None:
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
    host = fleet.hosts[0]
    venv = install_venv(tmp_path / "venv", locked, ["alpha==1.0"])
    (site_of(venv) / "beta/__init__.py").unlink()
    shutil.copytree(venv, host.opt / "venv", symlinks=True)
    before = snapshot_of(host.opt)
    here = locked.run("diagnose", venv, "--json", "--offline").json()
    ran = locked.run("diagnose", "/opt/venv", "--host", "h0", "--json", "--offline")
    assert ran.code == 1, ran.stderr
    there = ran.json()
    assert there["host"] == "h0"
    assert there["path"] == "/opt/venv"

    def causes(told: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
        return [(each["check"], each["message"]) for each in told["causes"] if each["check"] != "moved-venv"]

    assert causes(there) == causes(here) != []
    assert snapshot_of(host.opt) == before


def test_host_without_the_venv_is_an_error(locked: Project, fleet: Fleet) -> None:
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
    ran = locked.run("diagnose", "/opt/nowhere", "--host", "h0")
    assert ran.code == 2
    assert "/opt/nowhere" in ran.stderr
