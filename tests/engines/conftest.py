"""A real cluster, real hosts, and projects for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import built, locked, made, template
from tests.hosts.conftest import fleet, session_fleet
from tests.support.slurm import Slurm, need_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["built", "fleet", "locked", "made", "session_fleet", "template"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    """Four nodes, idle."""
    need_slurm()
    with Slurm(4) as running:
        yield running
