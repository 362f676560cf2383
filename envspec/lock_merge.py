"""Three versions of a lock -> the wheels that both sides agree on, and those that they do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.errors import Problem
from envspec.forms import quoted

if TYPE_CHECKING:
    from envspec.lock import Lock, LockedPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The wheels of two sides put together."""

    agreed: tuple[LockedPackage, ...]
    """Sorted by name: what both have, what one of them moved or added, and what only one of them still has."""

    disputed: tuple[Problem, ...]
    """Packages that both moved to different wheels."""


def merge_pins(base: Lock, ours: Lock, theirs: Lock) -> Pins:
    """Put the wheels of two locks together, three-way.

    Args:
        base: The lock that both come from.
        ours: One side.
        theirs: The other side.
    """
    before, one, other = ({each.name: each for each in lock.packages} for lock in (base, ours, theirs))
    agreed: list[LockedPackage] = []
    disputed: list[Problem] = []
    for name in sorted(one.keys() | other.keys()):
        old, left, right = before.get(name), one.get(name), other.get(name)
        if left is None or right is None:
            # One side has no need of it (any more). Whether the environment has is the resolver's to say: if so, then this wheel.
            kept = left or right
            if kept is not None:
                agreed.append(kept)
        elif _wheel(left) == _wheel(right) or (old is not None and _wheel(right) == _wheel(old)):
            agreed.append(left)
        elif old is not None and _wheel(left) == _wheel(old):
            agreed.append(right)
        else:
            disputed.append(
                Problem(
                    f"ours has {_shown(left, right)}, theirs {_shown(right, left)}, "
                    + (f"before it was {_shown(old, left)}" if old else "before there was none"),
                    where=name,
                )
            )
    return Pins(agreed=tuple(agreed), disputed=tuple(disputed))


def moved_pins(pins: Pins, merged: Lock) -> tuple[Problem, ...]:
    """The wheels of a merged lock that are others than those that were agreed on.

    Args:
        pins: What the sides agree on.
        merged: The lock that was made of it.
    """
    agreed = {each.name: each for each in pins.agreed}
    return tuple(
        Problem(
            f"the sides agree on {_shown(known, each)}, the merged spec leads to {_shown(each, known)}", where=each.name
        )
        for each in merged.packages
        if (known := agreed.get(each.name)) is not None and _wheel(known) != _wheel(each)
    )


def _wheel(package: LockedPackage) -> tuple[str, str, str]:
    return package.file, package.sha256, package.index


def _shown(package: LockedPackage, other: LockedPackage) -> str:
    """A wheel as a person tells it from another one."""
    if package.version != other.version:
        return quoted(package.version)
    if package.file != other.file:
        return quoted(package.file)
    if package.sha256 != other.sha256:
        return f"`{package.version}` with sha256 `{package.sha256[:12]}…`"
    return f"`{package.version}` from the index `{package.index}`"
