"""The operation of the examples, run by the real pyinfra over real sshd."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.cache_servers import Nginx
from tests.support.engine_hosts import engine_hosts, installed, name_cache
from tests.support.projects import REPOSITORY, uv_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fleet import Fleet
    from tests.support.projects import Project

pytestmark = pytest.mark.real

EXAMPLES = REPOSITORY / "examples" / "pyinfra"
PYINFRA = "pyinfra==3.10"
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[Fleet]:
    with engine_hosts(2) as running:
        yield running


def deploy(inventory: Path, *arguments: str, **data: str) -> str:
    """Run the deploy of the examples; what pyinfra says of it."""
    words = [word for name, value in data.items() for word in ("--data", f"{name}={value}")]
    done = subprocess.run(
        [
            *(uv_program(), "tool", "run", "--quiet", "--from", PYINFRA, "pyinfra", "--yes"),
            *(*words, *arguments, str(inventory), str(EXAMPLES / "deploy.py")),
        ],
        cwd=EXAMPLES,  # where pyinfra looks for the operation
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=LIMIT_S,
    )
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert done.returncode == 0, said
    return said


def test_operation_builds_once_and_a_dry_run_builds_nothing(locked: Project, hosts: Fleet, tmp_path: Path) -> None:
    entries = [
        (host.name, {"ssh_hostname": host.address, "ssh_port": 2222, "ssh_user": "root", "ssh_key": f"{hosts.base}/id"})
        for host in hosts.hosts
    ]
    inventory = locked.folder / "inventory.py"
    inventory.write_text(f"gpu = {entries!r}\n")
    known = f'{{"ssh_known_hosts_file": "{hosts.base}/known_hosts", "ssh_strict_host_key_checking": "yes"}}'
    (locked.folder / "inventory_for_pyinfra.py").write_text(f"gpu = ({entries!r}, {known})\n")
    theirs = locked.folder / "inventory_for_pyinfra.py"
    data = {"spec": str(locked.spec_path), "envspec": str(installed(locked)), "store": "/opt/data store"}
    with Nginx(tmp_path / "nginx", root=locked.store / "wheels", takes_uploads=False) as nginx:
        name_cache(locked, nginx.url)
        deploy(theirs, "--dry", **data)
        assert not any((host.opt / "data store").exists() for host in hosts.hosts)
        deploy(theirs, **data)
    profiles = [host.opt / "data store" / "profiles" / "demo" for host in hosts.hosts]
    assert all(profile.is_symlink() for profile in profiles)
    assert "No changes" in deploy(theirs, **data)
    generations = [sorted((host.opt / "data store" / "generations" / "demo").glob("?")) for host in hosts.hosts]
    assert [len(each) for each in generations] == [1, 1]

    # The same hosts, read as text, are a host list of envspec.
    environ = {"ENVSPEC_SSH_CONFIG": str(locked.folder / "ssh_config")}
    (locked.folder / "ssh_config").write_text(f"Host *\n  UserKnownHostsFile {hosts.base}/known_hosts\n")
    built = locked.good("build", "--inventory", f"{inventory}:gpu", "--json", **environ).json()["hosts"]
    assert [host["host"] for host in built] == ["h0", "h1"]
