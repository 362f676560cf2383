"""A venv on a real host over ssh: seen as it is there, by root and by an ordinary user, and nothing is left behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.bundle import make_bundle
from builder.hosts import Target, on_hosts
from builder.observing import observation_of, observe
from builder.progress import SilentFleet
from builder.transports.ssh import SshTransport
from envspec.errors import EnvspecError
from envspec.spec import HostSpec
from tests.support.tiny_elf import tiny_library
from tests.support.venvs import SITE, install, make_venv

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet, FleetHost


def target(fleet: Fleet, name: str) -> Target:
    environ = {**os.environ, "ENVSPEC_SSH_CONFIG": os.fspath(fleet.ssh_config)}
    return Target(spec=HostSpec(name=name, ssh=name), transport=SshTransport(host=name, alias=name, environ=environ))


def all_of(host: FleetHost) -> list[tuple[str, int, int]]:
    """Every path of the host's own disk, with its size and change time."""
    found = []
    for folder in (host.opt, host.home):
        for path in sorted(folder.rglob("*")):
            if "pyenv" not in path.parts and ".pyenv" not in path.parts:
                status = path.lstat()
                found.append((os.fspath(path), status.st_size, status.st_ctime_ns))
    return found


@pytest.fixture
def venv(fleet: Fleet) -> Path:
    """On the first host: its path here."""
    made = make_venv(fleet.hosts[0].opt / "envspec/by-hand/venv")
    install(made, "demo", "1.0", {"demo/__init__.py": "x\n", "demo/a.so": tiny_library(soname="a"), "demo/gone.py": ""})
    (made / SITE / "demo/__init__.py").write_text("edited\n")
    (made / SITE / "demo/gone.py").unlink()
    (made / SITE / "stray.py").write_text("")
    return made


@pytest.mark.parametrize("user", ["", "-worker"])
def test_venv_is_seen_as_it_is_there_and_nothing_is_left(fleet: Fleet, venv: Path, user: str) -> None:
    host = fleet.hosts[0]
    if user:
        host.ssh("chmod -R o+rX /opt/envspec")
    before = all_of(host)
    seen = observe("/opt/envspec/by-hand/venv/bin/python", host=target(fleet, f"h0{user}"))
    assert all_of(host) == before
    assert seen.prefix == "/opt/envspec/by-hand/venv"
    assert seen.host["hostname"] == "h0"
    here = observe(os.fspath(venv), remember=False)
    assert seen.distributions == here.distributions
    assert [file.path for file in seen.distributions[0].files if file.is_edited] == [f"{SITE}/demo/__init__.py"]
    assert [file.path for file in seen.strays] == [f"{SITE}/stray.py"]


def test_several_hosts_are_asked_side_by_side_and_one_failure_stops_no_other(fleet: Fleet, venv: Path) -> None:
    targets = [target(fleet, "h0"), target(fleet, "h1")]
    first, second = on_hosts(
        targets, observation_of("/opt/envspec/by-hand/venv"), bundle=make_bundle(), jobs=2, reporter=SilentFleet()
    )
    assert first.value is not None
    assert first.value.distributions[0].name == "demo"
    assert second.error is not None
    assert second.error.message == "`/opt/envspec/by-hand/venv` is not there"
    assert venv.is_dir()


def test_what_a_user_may_not_read_is_named(fleet: Fleet, venv: Path) -> None:
    fleet.hosts[0].ssh(
        "chmod -R o+rX /opt/envspec && chmod 600 /opt/envspec/by-hand/venv/lib/python3.12/site-packages/stray.py"
    )
    seen = observe("/opt/envspec/by-hand/venv", host=target(fleet, "h0-worker"))
    assert [(file.path, file.kind) for file in seen.strays] == [(f"{SITE}/stray.py", "unreadable")]
    assert seen.notes == (f"`{SITE}/stray.py`: Permission denied",)
    assert venv.is_dir()


def test_host_that_is_switched_off_is_named(fleet: Fleet, venv: Path) -> None:
    fleet.hang_up()
    fleet.hosts[0].power_off()
    with pytest.raises(EnvspecError, match="h0"):
        observe(os.fspath(venv), host=target(fleet, "h0"))
