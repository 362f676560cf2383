"""A fleet of real SSH hosts for a whole session, and projects that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import built, fill, locked, made, template
from tests.support.fleet import Fleet, need_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.projects import Project

__all__ = ["built", "fill", "fleet", "locked", "made", "session_fleet", "template"]


@pytest.fixture(scope="session")
def session_fleet() -> Iterator[Fleet]:
    """Four hosts on loopback addresses."""
    need_fleet()
    with Fleet(4) as running:
        yield running


@pytest.fixture
def fleet(session_fleet: Fleet) -> Fleet:
    """The same, all switched on and empty."""
    for host in session_fleet.hosts:
        host.wipe()
        if host.process is None:
            host.write_sshd_config()
            host.power_on()
    session_fleet.write_known_hosts()
    return session_fleet


@pytest.fixture
def hosted(locked: Project, fleet: Fleet) -> Project:
    """A project that is locked, not built, and names the hosts of the fleet."""
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
    locked.declare_hosts({host.name: {} for host in fleet.hosts})
    return locked
