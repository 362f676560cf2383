"""Any venv, here or on a host -> what was seen of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.cubin_notes import toolkit_release
from builder.progress import SilentReporter

if TYPE_CHECKING:
    from builder.progress import Reporter
    from envspec.observed import Observation


def observe(path: str, *, reporter: Reporter | None = None) -> Observation:
    """Observe a venv of this machine.

    Args:
        path: Its folder, its interpreter, or its folder of packages.
        reporter: Where progress goes.

    Raises:
        EnvspecError: There is no Python environment.
    """
    from builder.agent.survey import look_at_venv  # noqa: PLC0415

    return look_at_venv(path, os.environ, reporter or SilentReporter(), release_of=toolkit_release).observation
