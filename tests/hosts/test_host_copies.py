"""`envspec copy`: wheels from one host to others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.hosts.test_host_builds import hosts_of

if TYPE_CHECKING:
    from tests.support.fleet import Fleet
    from tests.support.projects import Project


def without_wheels(project: Project) -> None:
    """Neither the wheelhouse of this machine nor the index has a wheel any more."""
    shutil.rmtree(project.store / "wheels")
    shutil.rmtree(project.wheels)


def test_wheels_go_from_one_host_to_others(hosted: Project, fleet: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    without_wheels(hosted)
    copied = hosts_of(hosted.good("copy", "--from", "h0", "--to", "h1", "--to", "h2", "--json"))
    assert {host["wheels"] for host in copied.values()} == {2}
    assert not (fleet.hosts[1].store / "profiles" / "demo").exists()
    again = hosts_of(hosted.good("copy", "--from", "h0", "--to", "h1", "--json"))
    assert again["h1"]["wheels"] == 0
    hosted.good("build", "--host", "h1", "--host", "h2")
    assert fleet.hosts[2].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_wheel_that_was_edited_at_the_source_goes_nowhere(hosted: Project, fleet: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    without_wheels(hosted)
    wheel = next((fleet.hosts[0].store / "wheels").glob("*/alpha-*.whl"))
    wheel.chmod(0o644)
    wheel.write_bytes(bytes(reversed(wheel.read_bytes())))
    ran = hosted.run("copy", "--from", "h0", "--to", "h1")
    assert ran.code == 1
    assert "`h0` gave alpha-1.0-py3-none-any.whl with sha256" in ran.stderr
    assert list((fleet.hosts[1].store / "wheels").glob("*/alpha-*")) == []
    assert list((hosted.store / "wheels").glob("*/alpha-*")) == []
    assert hosted.leftovers() == []
