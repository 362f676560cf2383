"""Inventories as they are given: what is read, and that nothing of them is run."""

from __future__ import annotations

import io
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from builder.inventory import read_inventory
from builder.transports.ssh import SshTransport
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = {"gpu": {"hosts": ["a", "b"]}, "web": ["c"]}
needs_ansible = pytest.mark.skipif(shutil.which("ansible-inventory") is None, reason="ansible-core is not installed")


def names(given: str, *, stdin: bytes = b"", **environ: str) -> list[str]:
    hosts, _ = read_inventory(given, {**os.environ, **environ}, io.BytesIO(stdin))
    return [host.name for host in hosts]


def test_json_is_read_from_stdin_and_from_a_file(tmp_path: Path) -> None:
    raw = json.dumps(HOSTS).encode()
    assert names("-", stdin=raw) == ["a", "b", "c"]
    assert names("-:gpu", stdin=raw) == ["a", "b"]
    (tmp_path / "hosts.json").write_bytes(raw)
    assert names(f"{tmp_path}/hosts.json:web") == ["c"]
    (tmp_path / "odd:name.json").write_bytes(raw)
    assert names(f"{tmp_path}/odd:name.json") == ["a", "b", "c"]


def test_slurm_names_nodes_in_their_order() -> None:
    assert names("slurm:n[10,2-3]") == ["n10", "n2", "n3"]
    assert names("slurm:", SLURM_JOB_NODELIST="n[1-2]") == ["n1", "n2"]


@pytest.mark.parametrize(
    ("given", "stdin", "said"),
    [
        ("-", b"{", "is no JSON: line 1"),
        ("-", b"[" * 100_000, "is no JSON"),
        ("-", b"\xff", "is no JSON"),
        ("-:none", b'{"g": ["a"]}', "has no group `none`"),
        ("/none/hosts.ini", b"", "cannot be read: No such file"),
        ("slurm:n[1", b"", "is no list of hosts"),
        ("slurm:-oProxyCommand=x", b"", "expected the name of a host"),
        ("/dev/zero", b"", "is no ordinary file"),
    ],
)
def test_what_cannot_be_read_is_said(given: str, stdin: bytes, said: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        names(given, stdin=stdin, SLURM_JOB_NODELIST="")
    assert said in str(caught.value)


def test_programs_and_python_are_not_run(tmp_path: Path) -> None:
    program = tmp_path / "inventory"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho '{{}}'\n")
    program.chmod(0o755)
    with pytest.raises(EnvspecError, match="an inventory is read, not run") as caught:
        names(str(program))
    assert f"{program} --list | envspec" in caught.value.hint
    script = tmp_path / "inventory.py"
    script.write_text(f"open('{tmp_path}/ran', 'w')\ngpu = ['a']\n")
    assert names(f"{script}:gpu") == ["a"]
    assert not (tmp_path / "ran").exists()


@needs_ansible
def test_ini_and_yaml_mean_what_ansible_says_and_templates_stay_text(tmp_path: Path) -> None:
    ini = tmp_path / "hosts.ini"
    ini.write_text("[gpu]\nnode[01:03] ansible_user=worker\n[gpu:vars]\nansible_port=2222\n")
    hosts, _ = read_inventory(f"{ini}:gpu", os.environ, io.BytesIO())
    assert [(host.name, host.user, host.port) for host in hosts] == [(f"node0{n}", "worker", 2222) for n in (1, 2, 3)]
    folder = tmp_path / "inventory"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text("gpu:\n  hosts:\n    n1:\n")
    (folder / "group_vars" / "gpu.yml").write_text("ansible_user: of-group\n")
    assert read_inventory(str(folder), os.environ, io.BytesIO())[0][0].user == "of-group"
    ini.write_text(f"evil ansible_host=\"{{{{ lookup('pipe', 'touch {tmp_path}/ran') }}}}\"\n")
    with pytest.raises(EnvspecError, match="cannot be taken from it"):
        names(str(ini))
    program = folder / "dynamic"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho '{{}}'\n")
    program.chmod(0o755)
    with pytest.raises(EnvspecError, match="ansible-inventory"):
        names(str(folder))
    assert not (tmp_path / "ran").exists()


def test_without_ansible_its_files_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\n")
    with pytest.raises(EnvspecError, match="`ansible-inventory` is not here") as caught:
        names(f"{tmp_path}/hosts", PATH=str(tmp_path))
    assert "--inventory hosts.json" in caught.value.hint


def test_way_of_an_inventory_is_words_of_their_own_before_the_host() -> None:
    transport = SshTransport(host="n", alias="10.0.0.7", user="worker", port=2222, key="~/k", environ={})
    assert transport._way() == ["-l", "worker", "-p", "2222", "-i", "~/k"]
    assert SshTransport(host="n", alias="n", environ={})._way() == []
