"""The role of the examples, run by the real ansible-playbook over real sshd; and `--inventory` on the same hosts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cache_servers import Nginx
from tests.support.engine_hosts import engine_hosts, installed, name_cache
from tests.support.projects import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet
    from tests.support.projects import Project

pytestmark = pytest.mark.real

EXAMPLES = REPOSITORY / "examples" / "ansible"
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[Fleet]:
    if shutil.which("ansible-playbook") is None:
        pytest.skip("ansible-playbook is not here: install ansible-core")
    with engine_hosts(2) as running:
        yield running


@pytest.fixture
def inventory(locked: Project, hosts: Fleet) -> Path:
    """Addresses, users, ports and keys of the hosts, as an inventory has them; none of it is in the spec."""
    for host in hosts.hosts:
        host.wipe()
    lines = [
        "[gpu]",
        *(f"node{host.number} ansible_host={host.address}" for host in hosts.hosts),
        "[gpu:vars]",
        "ansible_port=2222",
        "ansible_user=root",
        f"ansible_ssh_private_key_file={hosts.base}/id",
        "ansible_python_interpreter=/usr/bin/python3",
    ]
    path = locked.folder / "hosts.ini"
    path.write_text("\n".join(lines) + "\n")
    # What is left to ssh_config is what no inventory may say: whose keys are believed.
    (locked.folder / "ssh_config").write_text(
        f"Host *\n  UserKnownHostsFile {hosts.base}/known_hosts\n  GlobalKnownHostsFile /dev/null\n  IdentitiesOnly yes\n"
        f"  ControlMaster auto\n  ControlPath {hosts.base}/ac-%C\n  ControlPersist 20\n"
    )
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(locked.folder / "ssh_config")}
    return path


def play(project: Project, inventory: Path, *arguments: str, **variables: object) -> dict[str, dict[str, int]]:
    """Run the playbook of the examples; host -> what the recap counts."""
    done = subprocess.run(
        [
            "/usr/bin/env",
            "ansible-playbook",
            "-i",
            inventory,
            EXAMPLES / "site.yml",
            "-e",
            json.dumps(variables),
            *arguments,
        ],
        cwd=project.spec_folder,
        env={
            **project.environ(),
            "ANSIBLE_SSH_ARGS": f"-F {project.folder / 'ssh_config'}",
            "ANSIBLE_LOCAL_TEMP": str(project.folder / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_TRANSFER_METHOD": "piped",  # the hosts' sshd has no sftp
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\S+)\s+: (ok=.*)$", done.stdout, re.MULTILINE)
    return {name: {key: int(count) for key, count in re.findall(r"(\w+)=(\d+)", row)} for name, row in rows}


def changed(counts: dict[str, dict[str, int]]) -> dict[str, int]:
    assert all(row["failed"] == row["unreachable"] == 0 for row in counts.values())
    return {name: row["changed"] for name, row in counts.items()}


def test_role_builds_from_the_controller_and_changes_once(locked: Project, hosts: Fleet, inventory: Path) -> None:
    program = [str(installed(locked))]
    values = {"envspec_spec": str(locked.spec_path), "envspec_command": program}
    assert changed(play(locked, inventory, "--check", **values)) == {"node0": 1, "node1": 1}
    assert not any((host.store / "profiles").exists() for host in hosts.hosts)
    assert changed(play(locked, inventory, **values)) == {"node0": 1, "node1": 1}
    assert all((host.store / "profiles" / "demo").is_symlink() for host in hosts.hosts)
    assert changed(play(locked, inventory, **values)) == {"node0": 0, "node1": 0}


def test_role_builds_on_the_nodes_and_leaves_receipts(
    locked: Project, hosts: Fleet, inventory: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "receipts"
    values = {
        "envspec_spec": str(locked.spec_path),
        "envspec_command": [str(installed(locked))],
        "envspec_build_on": "node",
        "envspec_store": "/opt/data store",
        "envspec_receipts": str(shared),
    }
    with Nginx(tmp_path / "nginx", root=locked.store / "wheels", takes_uploads=False) as nginx:
        name_cache(locked, nginx.url)
        assert changed(play(locked, inventory, **values)) == {"node0": 1, "node1": 1}
    assert all((host.opt / "data store" / "profiles" / "demo").is_symlink() for host in hosts.hosts)
    assert changed(play(locked, inventory, "--check", **values)) == {"node0": 0, "node1": 0}
    found = locked.good("status", "--receipts", shared, "--inventory", f"{inventory}:gpu", "--json").json()["hosts"]
    assert [(host["host"], host["verified"]) for host in found] == [("node0", True), ("node1", True)]


def test_inventory_is_a_host_list(locked: Project, inventory: Path) -> None:
    """INI through the real ansible-inventory, the JSON that it prints on stdin, and verbs other than build."""
    environ = {"PATH": f"{locked.environ()['PATH']}:{Path(str(shutil.which('ansible-inventory'))).parent}"}
    built = locked.good("build", "--inventory", f"{inventory}:gpu", "--json", **environ).json()["hosts"]
    assert [(host["host"], host["built"]) for host in built] == [("node0", True), ("node1", True)]
    status = locked.good("status", "--inventory", inventory, "--json", **environ).json()["hosts"]
    assert {host["site"] for host in status} == {built[0]["site"]}
    assert "1 " in locked.good("generations", "--inventory", inventory, **environ).stdout
    locked.good("verify", "--inventory", f"{inventory}:gpu", **environ)
    locked.good("gc", "--dry-run", "--inventory", f"{inventory}:gpu", **environ)
