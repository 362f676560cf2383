"""What a locked package says of another one in its METADATA, from the facts of its wheel."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from builder.facts_cache import facts_path
from envspec.forms import normalise_name
from envspec.lock import parts

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.lock import Lock

HEAD_BYTES = 1 << 20
"""Facts begin with what METADATA says; the symbols of binaries, of which torch has 13 MB, come later and are not read."""

_KEY = b'"requires_dist":'
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def lines_about(lock: Lock, requester: str, package: str, store: Path) -> tuple[str, ...] | None:
    """The requirements of a package that name another one, verbatim: those that apply on the target, or else with one of its extras.

    Args:
        lock: The lock.
        requester: Name of the package that asks.
        package: Name of the package that is asked for.
        store: The store.

    Returns:
        The lines; None if the wheel was never measured here.
    """
    part = next(each for each in parts(lock) if each.package == requester)
    lines = read_requirements(facts_path(store / "facts", part.sha256, lock.python))
    if lines is None:
        return None
    named = [line for line in lines if (found := _NAME.match(line)) and normalise_name(found[1]) == package]
    if len(named) <= 1:
        return tuple(named)
    without_extra = tuple(line for line in named if _applies(line, lock, extras=False))
    return without_extra or tuple(line for line in named if _applies(line, lock, extras=True)) or tuple(named)


def read_requirements(path: Path) -> tuple[str, ...] | None:
    """`requires_dist` of cached facts, without reading all of them; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        start = head.index(_KEY) + len(
            _KEY
        )  # inside of a JSON string its quotes are escaped, so that it is found nowhere else
        value, _ = json.JSONDecoder().raw_decode(head[start:].decode("utf-8", "ignore"))
    except (OSError, ValueError, RecursionError):
        return None
    return tuple(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def _applies(line: str, lock: Lock, *, extras: bool) -> bool:
    """Whether a requirement applies on the target: without an extra, or with one that it names."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - only for several lines

    try:
        marker = Requirement(line).marker
        if marker is None:
            return True
        named = re.findall(r"extra\s*==\s*['\"]([^'\"]+)", line) if extras else [""]
        return any(marker.evaluate({**_target(lock), "extra": extra}) for extra in named)
    except (InvalidRequirement, ValueError, RecursionError):
        return True


def _target(lock: Lock) -> dict[str, str]:
    full = lock.python_exact or f"{lock.python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": lock.platform.partition("-")[2],
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": full,
        "python_version": lock.python,
        "sys_platform": "linux",
    }
