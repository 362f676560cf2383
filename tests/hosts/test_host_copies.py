"""`envspec copy`: wheels from one host to others, straight where they reach each other, else through this machine."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.hosts.test_host_builds import hosts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet, FleetHost
    from tests.support.projects import Project

ALPHA = "/opt/envspec/profiles/demo/bin/alpha"


def without_wheels(project: Project) -> None:
    """Neither the wheelhouse of this machine nor the index has a wheel any more."""
    shutil.rmtree(project.store / "wheels")
    shutil.rmtree(project.wheels)


def damage(wheel_of: FleetHost) -> None:
    """Turn a wheel of a host's wheelhouse around: its size stays."""
    wheel = next((wheel_of.store / "wheels").glob("*/alpha-*.whl"))
    wheel.chmod(0o644)
    wheel.write_bytes(bytes(reversed(wheel.read_bytes())))


@pytest.fixture
def acquainted(fleet: Fleet) -> Iterator[Fleet]:
    """The user on `h0` can reach `h1`, and what he calls `h2` is `h1` too; nobody else reaches anybody."""
    first, second = fleet.hosts[:2]
    folder = first.home / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "known_hosts").write_text(second.known_hosts())
    (folder / "config").write_text(
        f"Host h1 h2\n  HostName {second.address}\n  Port 2222\n  IdentityFile {fleet.base}/id\n"
    )
    yield fleet
    shutil.rmtree(folder)


def test_wheels_go_through_this_machine_where_hosts_do_not_reach_each_other(hosted: Project, fleet: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    without_wheels(hosted)
    copied = hosts_of(hosted.good("copy", "--from", "h0", "--to", "h1", "--to", "h2", "--json"))
    assert {(host["wheels"], host["straight"]) for host in copied.values()} == {(2, 0)}
    assert "`h1`: its name cannot be resolved" in copied["h1"]["not_straight"]
    assert not (fleet.hosts[1].store / "profiles" / "demo").exists()
    again = hosts_of(hosted.good("copy", "--from", "h0", "--to", "h1", "--json"))
    assert (again["h1"]["wheels"], again["h1"]["not_straight"]) == (0, None)
    hosted.good("build", "--host", "h1", "--host", "h2")
    assert fleet.hosts[2].ssh(ALPHA).stdout == "alpha 2\n"


def test_wheels_go_straight_where_hosts_reach_each_other(hosted: Project, acquainted: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    without_wheels(hosted)
    home = set(acquainted.hosts[0].home.rglob("*"))
    ran = hosted.good("copy", "--from", "h0", "--to", "h1", "--json")
    copied = hosts_of(ran)["h1"]
    assert (copied["wheels"], copied["straight"], copied["not_straight"]) == (2, 2, None)
    assert not (hosted.store / "wheels").exists() or not list((hosted.store / "wheels").glob("*/*.whl"))
    assert set(acquainted.hosts[0].home.rglob("*")) == home
    shutil.rmtree(acquainted.hosts[1].store / "wheels")
    ran = hosted.good("copy", "--from", "h0", "--to", "h1", "--through-here")
    assert "h1  not straight from h0: that was not to be tried" in ran.stdout
    hosted.good("build", "--host", "h1")
    assert acquainted.hosts[1].ssh(ALPHA).stdout == "alpha 2\n"


def test_name_that_means_another_host_there_gets_nothing(hosted: Project, acquainted: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    copied = hosts_of(hosted.good("copy", "--from", "h0", "--to", "h2", "--json"))["h2"]
    assert (copied["wheels"], copied["straight"]) == (2, 0)
    assert "what is called so there is another machine" in copied["not_straight"]
    assert not acquainted.hosts[1].store.exists()


def test_key_that_the_source_does_not_know_is_not_learnt(hosted: Project, acquainted: Fleet) -> None:
    (acquainted.hosts[0].home / ".ssh" / "known_hosts").write_text("")
    hosted.good("build", "--host", "h0")
    copied = hosts_of(hosted.good("copy", "--from", "h0", "--to", "h1", "--json"))["h1"]
    assert (copied["wheels"], copied["straight"]) == (2, 0)
    assert "its host key is not in known_hosts" in copied["not_straight"]
    assert (acquainted.hosts[0].home / ".ssh" / "known_hosts").read_text() == ""


def test_wheel_that_was_edited_at_the_source_goes_nowhere(hosted: Project, fleet: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    without_wheels(hosted)
    damage(fleet.hosts[0])
    ran = hosted.run("copy", "--from", "h0", "--to", "h1")
    assert ran.code == 1
    assert "`h0` gave alpha-1.0-py3-none-any.whl with sha256" in ran.stderr
    assert list((fleet.hosts[1].store / "wheels").glob("*/alpha-*")) == []
    assert list((hosted.store / "wheels").glob("*/alpha-*")) == []
    assert hosted.leftovers() == []


def test_wheel_that_was_edited_at_the_source_does_not_go_straight_either(hosted: Project, acquainted: Fleet) -> None:
    """The host that is to get it hashes it; the rest, and the right one, come through this machine."""
    hosted.good("build", "--host", "h0")
    damage(acquainted.hosts[0])
    copied = hosts_of(hosted.good("copy", "--from", "h0", "--to", "h1", "--json"))["h1"]
    assert copied["wheels"] == 2
    assert copied["straight"] < 2
    assert "is not the locked one there" in copied["not_straight"]
    shutil.rmtree(hosted.store / "wheels")
    hosted.good("build", "--host", "h1")
    assert acquainted.hosts[1].ssh(ALPHA).stdout == "alpha 2\n"
