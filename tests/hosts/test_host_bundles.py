"""A bundle built on hosts that no index reaches: what they need comes from the bundle, by this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cli.test_cli_cache import declare
from tests.support.faulty_cache import FaultyCache
from tests.support.fleet import Fleet, need_fleet
from tests.support.projects import serve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.projects import Project

NOWHERE = "http://127.0.0.1:9/simple/"


def test_hosts_in_a_network_without_a_way_out_are_built_from_a_bundle(locked: Project, tmp_path: Path) -> None:
    need_fleet()
    with Fleet(2, network=True) as fleet, serve(tmp_path / "elsewhere") as other:
        locked.declare_hosts({host.name: {} for host in fleet.hosts})
        locked.good("export", "--format", "bundle", "--out", tmp_path / "b.tar")
        other.environment = {"UV_DEFAULT_INDEX": NOWHERE, "ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
        ran = other.good("build", "--from", tmp_path / "b.tar", "--all", "--json")
        sites = {host["site"] for host in ran.json()["hosts"]}
        assert [f'site = "{site}"' in locked.lock_text() for site in sites] == [True]
        for host in fleet.hosts:
            assert (
                "Network is unreachable"
                in host.ssh(
                    "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 5)' 2>&1 || true"
                ).stdout
            )
            assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_host_without_envspec_installs_a_bundle_by_itself(locked: Project, tmp_path: Path) -> None:
    need_fleet()
    locked.good("export", "--format", "bundle", "--out", tmp_path / "b.tar")
    with Fleet(1, network=True) as fleet:
        (host,) = fleet.hosts
        (host.home / "b.tar").write_bytes((tmp_path / "b.tar").read_bytes())
        said = host.ssh("mkdir b && tar -xf b.tar -C b && python3 b/install").stdout
        assert "profile  generation 1" in said
        assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_caches_that_a_bundles_spec_names_are_asked_by_nobody(hosted: Project, fleet: Fleet, tmp_path: Path) -> None:
    with FaultyCache({}) as cache:
        declare(hosted, ("spy", cache.url))
        hosted.good("export", "--format", "bundle", "--out", tmp_path / "b.tar")
        cache.requests.clear()
        hosted.good("build", "--from", tmp_path / "b.tar", "--host", "h0")
        assert cache.requests == []
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
