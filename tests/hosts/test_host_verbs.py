"""What one can ask of hosts: status, drift and its owners, repair, generations, rollback, gc, verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hosts.test_host_builds import change_patch, hosts_of
from tests.support.projects import SITE_PACKAGES
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, FleetHost
    from tests.support.projects import Project

ENV = f"/opt/envspec/profiles/demo/{SITE_PACKAGES}"


@pytest.fixture
def two(hosted: Project) -> Project:
    """Built on two hosts."""
    hosted.declare_hosts({"h0": {}, "h1": {}})
    hosted.good("build", "--all")
    return hosted


def install_by_hand(host: FleetHost, project: Project) -> None:
    """Put a distribution into the environment as pip does."""
    wheel = make_wheel(project.folder / "by-hand", "gamma", "3.1", {"gamma/__init__.py": "x = 1\n"})
    target = host.opt / wheel.name
    target.write_bytes(wheel.read_bytes())
    host.ssh(
        f"mkdir -p /opt/x && cd /opt/x && python3 -m zipfile -e /opt/{wheel.name} /opt/x && chmod u+w {ENV}/ && "
        f"cp -r /opt/x/* {ENV}/ && {ENV}/../../../bin/python -c 'import gamma'"
    )


def test_status_shows_every_host_in_one_table(two: Project) -> None:
    ran = two.good("status", "--all")
    lines = ran.stdout.splitlines()
    assert lines[0].split() == [
        "host",
        "env",
        "site",
        "generation",
        "drift",
        "python",
        "driver",
        "gpus",
        "differs",
        "in",
    ]
    assert [line.split()[0] for line in lines[1:3]] == ["h0", "h1"]
    assert lines[1].split()[1] == lines[2].split()[1]
    assert "differs" not in ran.stdout.partition("\n")[2]


def test_status_says_which_hosts_differ_from_which(two: Project) -> None:
    change_patch(two, 7)
    two.good("build", "--host", "h1")
    ran = two.run("status", "--all")
    assert ran.code == 1
    text = ran.stdout.partition("env differs:\n")[2]
    assert sorted(line.rpartition(": ")[2] for line in text.splitlines()) == ["h0", "h1"]
    assert next(line for line in text.splitlines() if "(the lock's)" in line).endswith(": h1")
    rows = {line.split()[0]: line.split()[-1] for line in ran.stdout.splitlines()[1:3]}
    assert rows == {"h0": "env", "h1": "none"}  # the last word of `h1` is that it has no GPUs
    assert "site" not in ran.stdout.partition("\n")[2]  # it differs as the env does


def test_host_that_is_not_reached_shows_what_is_known_of_it_here(two: Project, fleet: Fleet) -> None:
    change_patch(two, 7)
    two.good("build", "--host", "h1")
    before = hosts_of(two.run("status", "--all", "--json"))
    fleet.hosts[0].power_off()
    ran = two.run("status", "--all")
    assert ran.code == 1
    row = next(line for line in ran.stdout.splitlines() if line.startswith("h0 "))
    assert row.split()[1:3] == [before["h0"]["env"], before["h0"]["site"][:16]]
    assert "not reached" in row
    assert "h0  not reached: shown is what its build left on 20" in ran.stdout
    assert f"  {before['h0']['env']}: h0 (not reached)\n" in ran.stdout
    assert "h0`: it refuses connections" in ran.stderr
    hosts = hosts_of(two.run("status", "--all", "--json"))
    assert hosts["h0"]["last"]["env"] == before["h0"]["env"]
    assert hosts["h0"]["last"]["python"] == before["h0"]["python"]["version"]
    assert "env" not in hosts["h0"]
    assert "error" in hosts["h0"]
    assert hosts["h1"]["generation"] == 2
    fleet.hosts[0].power_on()
    two.good("verify", "--host", "h0")
    two.good("gc", "--keep", "0")  # of this machine
    fleet.hosts[0].power_off()
    assert "what its verification left" in two.run("status", "--host", "h0").stdout


def test_edited_deleted_and_installed_files_are_named_with_owners_and_mended(two: Project, fleet: Fleet) -> None:
    host = fleet.hosts[0]
    host.ssh(f"chmod -R u+w {ENV}/ && echo '# quick fix' >> {ENV}/beta/__init__.py && rm {ENV}/alpha/data.txt")
    install_by_hand(host, two)
    ran = two.run("status", "--all", "--json")
    assert ran.code == 1
    drift = {
        (each["kind"], each["path"].removeprefix(f"{SITE_PACKAGES}/"), each["owner"])
        for each in hosts_of(ran)["h0"]["drift"]
    }
    assert {
        ("modified", "beta/__init__.py", "beta"),
        ("missing", "alpha/data.txt", "alpha"),
        ("extra", "gamma/__init__.py", "gamma"),
    } <= drift
    assert {owner for kind, _, owner in drift if kind == "extra"} == {"gamma"}
    assert hosts_of(ran)["h1"]["drift"] == []
    text = two.run("status", "--host", "h0").stdout
    assert "gamma 3.1, which the lock has not" in text
    ran = two.run("build", "--all")
    # It is active already, and so left alone; whoever wants it mended says so.
    two.good("build", "--host", "h0", "--repair")
    two.good("status", "--all")
    assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_deep_status_finds_what_no_status_shows(two: Project, fleet: Fleet) -> None:
    host = fleet.hosts[1]
    path = host.store.parent / f"envspec/profiles/demo/{SITE_PACKAGES}/beta/more.py"
    tree_file = next(host.store.glob(f"trees/*/{SITE_PACKAGES}/beta/more.py"))
    status = tree_file.stat()
    tree_file.chmod(0o644)
    tree_file.write_bytes(b"MORE = 'y' * 10\n")
    tree_file.chmod(0o444)
    assert tree_file.stat().st_size == status.st_size
    assert path.name == "more.py"
    ran = two.run("status", "--all", "--deep", "--json")
    assert [each["owner"] for each in hosts_of(ran)["h1"]["drift"]] == ["beta"]
    assert hosts_of(ran)["h0"]["drift"] == []
    two.good("build", "--host", "h1", "--repair")
    two.good("status", "--all", "--deep")


def test_generations_and_rollback_on_hosts(two: Project, fleet: Fleet) -> None:
    change_patch(two, 7)
    two.good("build", "--all")
    listed = two.good("generations", "--all").stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [["h0", "1"], ["h0", "*"], ["h1", "1"], ["h1", "*"]]
    two.good("rollback", "--host", "h0")
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
    assert fleet.hosts[1].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 7\n"
    ran = two.run("rollback", "9", "--all")
    assert ran.code == 1
    assert ran.stderr.count("has no generation 9") == 2


def test_gc_on_hosts_keeps_what_is_active(two: Project, fleet: Fleet) -> None:
    change_patch(two, 7)
    two.good("build", "--all")
    would = hosts_of(two.good("gc", "--all", "--keep", "0", "--dry-run", "--json"))
    assert len(list((fleet.hosts[0].store / "envs").iterdir())) == 2
    did = hosts_of(two.good("gc", "--all", "--keep", "0", "--json"))
    assert [host["paths"] for host in would.values()] == [host["paths"] for host in did.values()]
    for host in fleet.hosts[:2]:
        assert len(list((host.store / "envs").iterdir())) == 1
        assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 7\n"
    two.good("status", "--all")


def test_verify_on_hosts_proves_tree_and_imports(two: Project, fleet: Fleet) -> None:
    hosts = hosts_of(two.good("verify", "--all", "--deep", "--json"))
    for host in hosts.values():
        assert [(probe["id"], probe["result"]) for probe in host["probes"]] == [("tree", "pass"), ("imports", "pass")]
    fleet.hosts[1].ssh(f"chmod u+w {ENV}/beta/ && rm {ENV}/beta/more.py")
    ran = two.run("verify", "--all")
    assert ran.code == 1
    assert "h1  missing " in ran.stdout


def test_host_where_nothing_was_built(hosted: Project) -> None:
    ran = hosted.run("status", "--host", "h3")
    assert ran.code == 1
    assert "nothing built" in ran.stdout
    assert hosted.good("generations", "--host", "h3").stdout == "h3  nothing built\n"
    assert hosted.good("gc", "--host", "h3").stdout.startswith("h3  freed 0.00 GB")
