"""Hosts with a real subset of the stack: four sshd, one without network, one as an ordinary user with another store, umask and Python.

`ENVSPEC_TEST_WHEELHOUSE=<store>/wheels uv run pytest -m real tests/real/test_real_hosts.py`
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envspec.lock_toml import parse_lock
from tests.support.fleet import USER, Fleet, need_fleet, run
from tests.support.real_subset import PATCHED, PYTHON, real_interpreter, real_subset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.projects import Project

pytestmark = pytest.mark.real

WHEELHOUSE = os.environ.get("ENVSPEC_TEST_WHEELHOUSE", "")
if not WHEELHOUSE:
    pytest.skip("ENVSPEC_TEST_WHEELHOUSE names no wheelhouse", allow_module_level=True)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    need_fleet(network=True)
    python = real_interpreter()
    with Fleet(4, network=True, pythons=[python.path.parent.parent]) as running:
        yield running


@pytest.fixture(scope="module")
def project(fleet: Fleet) -> Iterator[Project]:
    folder = Path(WHEELHOUSE).parent / ".real-hosts"  # on the same file system: the wheels are linked
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with real_subset(folder, Path(WHEELHOUSE)) as made:
            made.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
            yield made
    finally:
        run("chmod", "-R", "u+w", folder, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def other_python() -> str:
    """Another patch level of the Python, if there is one in a place that an ordinary user can reach."""
    ours = real_interpreter()
    for candidate in (f"/usr/bin/python{PYTHON}", f"/usr/local/bin/python{PYTHON}"):
        if Path(candidate).exists() and Path(candidate).resolve() != ours.path:
            return candidate
    return os.fspath(ours.path)


def test_four_hosts_give_the_locked_tree(project: Project, fleet: Fleet) -> None:
    python = os.fspath(real_interpreter().path)
    user = fleet.hosts[3]
    (user.opt / "home" / USER / ".profile").write_text("umask 077\n")
    hosts: dict[str, dict[str, Any]] = {host.name: {"python": python} for host in fleet.hosts[:3]}
    hosts["h3"] = {"ssh": f"h3-{USER}", "store": f"/opt/home/{USER}/elsewhere", "python": other_python()}
    project.declare_hosts(hosts)
    ran = project.good("build", "--all", "--json")
    lock = parse_lock(project.lock_text(), input_name="demo.lock")
    assert len(lock.overlays) == 1
    for host in ran.json()["hosts"]:
        assert host["site"] == lock.site
        assert host["probes"] == [{"id": "imports", "result": "pass", "reason": ""}]
    assert (
        "Network is unreachable"
        in fleet.hosts[0]
        .ssh("python3 -c \"import socket; socket.create_connection(('192.0.2.1', 443))\"", check=False)
        .stderr
    )
    for place in ("/opt/envspec", f"/opt/home/{USER}/elsewhere"):
        host = user if "home" in place else fleet.hosts[0]
        head = host.ssh(f"head -1 {place}/profiles/demo/lib/python{PYTHON}/site-packages/{PATCHED}").stdout
        assert head.endswith("(ours)\n")
    deep = project.good("verify", "--all", "--deep", "--json").json()["hosts"]
    assert {host["site"] for host in deep} == {lock.site}
