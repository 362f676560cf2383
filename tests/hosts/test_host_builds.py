"""`envspec build` on hosts: the same tree on each, with what each lacks, over real ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.fleet import Fleet
    from tests.support.projects import Project


def test_all_hosts_get_the_locked_environment(hosted: Project, fleet: Fleet) -> None:
    ran = hosted.good("build", "--all", "--json")
    hosts = ran.json()["hosts"]
    assert [host["host"] for host in hosts] == [host.name for host in fleet.hosts]
    (site,) = {host["site"] for host in hosts}
    assert f'site = "{site}"' in hosted.lock_text()
    for host in fleet.hosts:
        assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
