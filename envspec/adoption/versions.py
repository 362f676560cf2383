"""Versions as anybody may have written them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.version import Version

LONGEST = 200
"""Characters of a version; the longest that are published have some 40."""


def parsed_version(text: str) -> Version | None:
    """A version of PEP 440; None if it is none, or too long to be one."""
    from packaging.version import Version  # noqa: PLC0415 - too slow to import for every start

    if len(text) > LONGEST:
        return None
    try:
        return Version(text)
    except ValueError:  # besides InvalidVersion: a number of more digits than Python converts
        return None


def same_version(left: str, right: str) -> bool:
    """Whether two versions are the same but for their local parts.

    Example:
        >>> same_version("2.11.0", "2.11.0+cu130"), same_version("1.0", "1.0.0"), same_version("1.0", "1.1")
        (True, True, False)
    """
    left, right = left.partition("+")[0], right.partition("+")[0]
    one, other = parsed_version(left), parsed_version(right)
    return left == right if one is None or other is None else one == other


def ordered_versions(versions: Iterable[str]) -> list[str]:
    """Versions, the oldest first; what is none comes last."""
    from packaging.version import Version  # noqa: PLC0415 - as above

    def key(text: str) -> tuple[bool, Version, str]:
        version = parsed_version(text)
        return version is None, version or Version("0"), text

    return sorted(versions, key=key)
