"""Verbs as an engine runs them on a node: one line, a receipt in a shared folder, and what `status` makes of those."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.agent.store import read_json
from envspec.receipt import encode_receipt

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.projects import Project


def leave(built: Project, folder: Path, node: str) -> Path:
    """Let this machine be a node; its receipt."""
    built.good("build", "--receipts", folder, "--line", ENVSPEC_NODE=node)
    (path,) = folder.glob(f"*/demo@{node}.build.json")
    return path


def test_line_begins_with_the_nodes_name(built: Project) -> None:
    for verb, words in (("build", "as it was"), ("verify", "none failed"), ("status", "drift none")):
        ran = built.good(verb, "--line", ENVSPEC_NODE="n/1")
        (line,) = ran.stdout.splitlines()
        assert line.startswith("n-1  ")
        assert words in line
        (compact,) = built.good(verb, "--line", "--json", SLURMD_NODENAME="n2").stdout.splitlines()
        assert json.loads(compact)["hosts"][0]["host"] == "n2"


def test_error_has_the_nodes_name_on_every_line(built: Project) -> None:
    ran = built.run("build", "--line", "--json", "--spec", "none.toml", ENVSPEC_NODE="n7")
    assert ran.code == 2
    assert all(line.startswith("n7: ") for line in ran.stderr.splitlines())
    (line,) = ran.stdout.splitlines()
    assert json.loads(line)["host"] == "n7"
    assert built.run("build", "--line", "--inventory", "/none", ENVSPEC_NODE="n7").stderr.startswith("n7: error: ")
    assert built.run("frob", "--line", ENVSPEC_NODE="n7").stderr.startswith("n7: error: ")


def test_status_shows_what_nodes_left_side_by_side(built: Project, tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        leave(built, tmp_path, node)
    ran = built.good("status", "--receipts", tmp_path)
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert [row[0] for row in rows] == ["host", "n1", "n2"]
    assert rows[1][1:] == rows[2][1:] or rows[1][5] != rows[2][5]
    assert "unknown" in rows[1]
    record = built.good("status", "--receipts", tmp_path, "--json").json()["hosts"][0]
    assert (record["host"], record["generation"], record["drift"], record["kind"]) == ("n1", 1, None, "build")
    built.good("verify", "--receipts", tmp_path, ENVSPEC_NODE="n1")
    assert built.good("status", "--receipts", tmp_path, "--json").json()["hosts"][0]["kind"] == "verify"


def test_node_that_is_expected_and_left_nothing_is_missing(built: Project, tmp_path: Path) -> None:
    leave(built, tmp_path, "n1")
    ran = built.run("status", "--receipts", tmp_path, "--inventory", "slurm:n[1-2]")
    assert ran.code == 1
    assert "n2    no receipt" in ran.stdout


def test_node_with_another_environment_than_the_lock_is_named(built: Project, tmp_path: Path) -> None:
    leave(built, tmp_path, "n1")
    path = leave(built, tmp_path, "n2")
    fields = read_json(path)
    assert fields is not None
    fields["env"] = "a" * 32
    fields["site"] = "0" * 64
    other = tmp_path / ("a" * 32) / path.name
    other.parent.mkdir()
    path.unlink()
    other.write_bytes(encode_receipt(fields))
    ran = built.run("status", "--receipts", tmp_path)
    assert ran.code == 1
    assert "env differs:" in ran.stdout
    assert f"  {'a' * 32}: n2" in ran.stdout


@pytest.mark.parametrize("damage", ["edited", "renamed", "no node", "link"])
def test_receipt_that_is_not_what_its_name_says_is_refused(built: Project, tmp_path: Path, damage: str) -> None:
    path = leave(built, tmp_path, "n1")
    if damage == "edited":
        path.write_bytes(path.read_bytes().replace(b'"verified": true', b'"verified":  true'))
    elif damage == "renamed":
        path.rename(path.with_name("demo@n2.build.json"))
    elif damage == "no node":
        fields = read_json(path)
        assert fields is not None
        fields["seen"] = "x"
        path.write_bytes(encode_receipt(fields))
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    ran = built.run("status", "--receipts", tmp_path)
    assert ran.code == 1
    assert "no node left a receipt" in ran.stdout
    assert "error: `" in ran.stderr


def test_failed_build_leaves_no_receipt(locked: Project, tmp_path: Path) -> None:
    folder = tmp_path / "receipts"
    ran = locked.run(
        "build", "--receipts", folder, UV_DEFAULT_INDEX="http://127.0.0.1:1/simple", ENVSPEC_STORE=str(tmp_path / "s")
    )
    assert ran.code != 0
    assert not folder.exists()


def test_options_of_nodes_and_of_hosts_exclude_each_other(built: Project, tmp_path: Path) -> None:
    for verb in ("build", "verify"):
        ran = built.run(verb, "--line", "--inventory", "slurm:n1")
        assert ran.code == 2
        assert "for a node that" in ran.stderr
    ran = built.run("status", "--receipts", tmp_path / "none")
    assert ran.code == 2
    assert "there is no folder" in ran.stderr


def test_option_after_inventory_is_no_inventory(built: Project) -> None:
    ran = built.run("status", "--inventory", "--json")
    assert ran.code == 2
    assert "`--inventory` needs an argument" in ran.stderr
