"""What a person accepted of an environment: the waivers of its lock, where the lock can be found.

The store keeps no locks, so it is the one beside the spec: of this folder, or that `--spec` names. It counts only for the environment that it is
the lock of.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from envspec.cli.options import read_inputs
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.cli.options import Inputs
    from envspec.spec import Waiver


def lock_digest(spec: Path | None) -> str:
    """The sha256 of the lock that would be asked, in hexadecimal; empty if there is none."""
    inputs = _inputs(spec)
    return "" if inputs is None or inputs.lock_bytes is None else hashlib.sha256(inputs.lock_bytes).hexdigest()


def accepted_in(env: str, spec: Path | None) -> tuple[Waiver, ...]:
    """The waivers of the lock of an environment; none if its lock is not found.

    Args:
        env: Its id.
        spec: As given by `--spec`; None to look in the current folder.
    """
    inputs = _inputs(spec)
    if not env or inputs is None or inputs.lock_bytes is None:
        return ()
    try:
        lock = inputs.parse_lock()
    except EnvspecError:
        return ()  # whoever wants to know asks `envspec check`
    return lock.waivers if lock.env == env else ()


def _inputs(spec: Path | None) -> Inputs | None:
    try:
        return read_inputs(spec)
    except (EnvspecError, OSError):
        return None
