"""Hosts that fetch from caches by themselves, and stores of hosts as caches, with real servers."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.test_cli_cache import declare, empty_store, wheels_in
from tests.support.cache_servers import DockerRegistry, MotoS3, Nginx
from tests.support.faulty_cache import FaultyCache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fleet import Fleet
    from tests.support.projects import Project

ALPHA = "/opt/envspec/profiles/demo/bin/alpha"


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    with Nginx(tmp_path / "nginx") as server:
        yield server


def push_and_forget(project: Project, url: str, **keys: Any) -> None:
    """Fill a cache, and empty this machine's store; what is declared after are the hosts and this cache."""
    declare(project, ("lab", url), **keys)
    project.good("cache", "push")
    empty_store(project)


def test_hosts_fetch_everything_from_a_folder_and_this_machine_sends_no_wheel(
    hosted: Project, fleet: Fleet, nginx: Nginx
) -> None:
    push_and_forget(hosted, nginx.url)
    hosted.good("build", "--host", "h0", "--host", "h1", "--json")
    assert fleet.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"
    assert fleet.hosts[1].ssh(ALPHA).stdout == "alpha 2\n"
    got = [line for line in nginx.requests() if line.startswith("GET")]
    assert len(got) == 4  # alpha and the patched beta, by each host; the base wheel by nobody
    assert wheels_in(hosted.store / "wheels") == {}


def test_hosts_fetch_from_a_registry_without_a_login(hosted: Project, fleet: Fleet, tmp_path: Path) -> None:
    with DockerRegistry(tmp_path / "registry") as registry:
        push_and_forget(hosted, registry.url)
        hosted.good("build", "--host", "h0")
    assert fleet.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"
    assert wheels_in(hosted.store / "wheels") == {}


def test_hosts_fetch_from_a_bucket_by_signed_addresses(hosted: Project, fleet: Fleet, tmp_path: Path) -> None:
    with MotoS3(tmp_path / "moto") as moto:
        moto.make_bucket("wheels")
        hosted.environment.update(moto.environ)
        push_and_forget(hosted, "s3://wheels/demo", endpoint=moto.endpoint)
        ran = hosted.good("build", "--host", "h0")
    assert fleet.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"
    assert wheels_in(hosted.store / "wheels") == {}
    assert "Signature" not in ran.text


def test_a_cache_that_hosts_are_not_told_of_is_used_here(hosted: Project, fleet: Fleet, nginx: Nginx) -> None:
    push_and_forget(hosted, nginx.url, to_hosts=False)
    hosted.good("build", "--host", "h0")
    assert fleet.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"
    assert len(wheels_in(hosted.store / "wheels")) == 3


def test_a_credential_for_a_cache_never_reaches_a_host(hosted: Project, fleet: Fleet, nginx: Nginx) -> None:
    push_and_forget(hosted, nginx.url)
    (hosted.home / ".netrc").write_text("machine 127.0.0.1 login jane password s3cr3t-of-jane\n")
    hosted.good("build", "--host", "h0")
    assert fleet.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"
    assert len(wheels_in(hosted.store / "wheels")) == 3


@pytest.mark.parametrize("fault", ["absent", "refuses", "corrupt", "goes-away"])
def test_hosts_get_the_same_whatever_the_first_cache_does(
    hosted: Project, fleet: Fleet, nginx: Nginx, fault: str
) -> None:
    push_and_forget(hosted, nginx.url)
    with FaultyCache(wheels_in(nginx.root)) as faulty:
        faulty.fault = fault  # type: ignore[assignment]
        declare(hosted, ("bad", faulty.url), ("lab", nginx.url))
        hosted.good("build", "--host", "h0")
        assert faulty.requests
    assert fleet.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"
    assert wheels_in(hosted.store / "wheels") == {}
    assert not (fleet.hosts[0].store / "wheels" / ".incoming").exists()


@pytest.mark.parametrize("fault", ["html-of-the-size", "cut"])
def test_what_no_cache_gives_a_host_is_sent_from_here(hosted: Project, fleet: Fleet, fault: str) -> None:
    hosted.good("build")
    with FaultyCache(wheels_in(hosted.store / "wheels")) as faulty:
        faulty.fault = fault  # type: ignore[assignment]
        declare(hosted, ("bad", faulty.url))
        hosted.good("build", "--host", "h0")
        assert faulty.requests
    assert fleet.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"


def test_the_store_of_a_host_is_a_cache(hosted: Project, fleet: Fleet) -> None:
    text = hosted.spec_path.read_text()
    hosted.spec_path.write_text(text + '\n[[caches]]\nname = "first"\nhost = "h0"\n')
    pushed = hosted.good("cache", "push", "--json").json()["caches"][0]
    assert (pushed["kind"], len(pushed["sent"])) == ("store of a host", 3)
    there = wheels_in(fleet.hosts[0].store / "wheels")
    assert there.keys() == {wheel["sha256"] for wheel in pushed["sent"]}
    assert hosted.good("cache", "push", "--json").json()["caches"][0]["sent"] == []
    hosted.good("cache", "check", "--deep")

    empty_store(hosted)
    shutil.rmtree(hosted.wheels)
    pulled = hosted.good("cache", "pull", "--json").json()
    assert (len(pulled["pulled"]), pulled["missing"]) == (3, [])
    assert wheels_in(hosted.store / "wheels") == there
    empty_store(hosted)
    hosted.good("build", "--host", "h1")
    assert fleet.hosts[1].ssh(ALPHA).stdout == "alpha 2\n"
    refused = hosted.run("cache", "gc")
    assert (refused.code, "`envspec gc --host NAME`" in refused.stderr) == (2, True)


def test_a_host_that_lends_damaged_wheels_is_passed_over(hosted: Project, fleet: Fleet) -> None:
    hosted.spec_path.write_text(hosted.spec_path.read_text() + '\n[[caches]]\nname = "first"\nurl = "ssh://h0"\n')
    hosted.good("cache", "push")
    for path in (fleet.hosts[0].store / "wheels").glob("*/*.whl"):
        path.chmod(0o644)
        path.write_bytes(bytes(reversed(path.read_bytes())))
    empty_store(hosted)
    checked = hosted.run("cache", "check", "--deep", "--json")
    assert (checked.code, len(checked.json()["caches"][0]["damaged"])) == (1, 3)
    ran = hosted.good("build")
    assert "warning: cache `first`: what it gives is not `" in ran.stderr
    assert hosted.site("beta/__init__.py").read_text() == "VALUE = 2\n"


def test_a_host_that_is_switched_off_is_passed_over(hosted: Project, fleet: Fleet) -> None:
    hosted.spec_path.write_text(hosted.spec_path.read_text() + '\n[[caches]]\nname = "first"\nhost = "h0"\n')
    fleet.hosts[0].power_off()
    empty_store(hosted)
    ran = hosted.good("build")
    assert "warning: cache `first`: " in ran.stderr
    assert json.loads(hosted.good("status", "--json").stdout)["hosts"][0]["drift"] == []


def test_a_host_that_lacks_wheels_gives_those_that_it_has_and_nothing_is_said(hosted: Project, fleet: Fleet) -> None:
    hosted.spec_path.write_text(hosted.spec_path.read_text() + '\n[[caches]]\nname = "first"\nhost = "h0"\n')
    assert hosted.good("cache", "push").stderr == ""
    there = sorted((fleet.hosts[0].store / "wheels").glob("*/*.whl"), key=lambda path: path.stat().st_size)
    for path in there[1:]:  # the smallest stays: it is asked for last
        path.unlink()
    empty_store(hosted)
    ran = hosted.run("cache", "pull", "--json")
    pulled = ran.json()
    assert (ran.code, ran.stderr, len(pulled["missing"])) == (1, "", 2)
    assert [wheel["sha256"] for wheel in pulled["pulled"]] == [there[0].parent.name]
    checked = hosted.run("cache", "check", "--deep", "--json")
    assert (checked.code, len(checked.json()["caches"][0]["missing"])) == (1, 2)
