"""Packages of two locks side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envspec.diff.sides import Side
    from envspec.lock import LockedPackage

_CUDA_SUFFIX = re.compile(r"-cu[0-9]{2,3}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A package of the old lock and what stands for it in the new one."""

    old: LockedPackage | None
    new: LockedPackage | None

    @property
    def names(self) -> tuple[str, ...]:
        """Of both; one if they are the same."""
        return tuple(dict.fromkeys(package.name for package in (self.old, self.new) if package))

    @property
    def name(self) -> str:
        """The newer one."""
        return self.names[-1]


def changed_pairs(old: Side, new: Side) -> tuple[Pair, ...]:
    """The packages that are not the same on both sides, sorted by name.

    A package that is gone and one that is new are one pair if their names differ in the CUDA major only: `nvidia-cublas-cu12` and
    `nvidia-cublas`, or `-cu13`.
    """
    pairs = [
        Pair(old=before, new=new.packages[name])
        for name, before in old.packages.items()
        if name in new.packages and before != new.packages[name]
    ]
    removed = {name: package for name, package in old.packages.items() if name not in new.packages}
    added = {name: package for name, package in new.packages.items() if name not in old.packages}
    gone, come = _by_stem(removed), _by_stem(added)
    for name, package in added.items():
        rivals = gone.get(stem_of(name), [])
        if len(rivals) == 1 and len(come[stem_of(name)]) == 1:
            pairs.append(Pair(old=removed.pop(rivals[0]), new=package))
        else:
            pairs.append(Pair(old=None, new=package))
    pairs += [Pair(old=package, new=None) for package in removed.values()]
    return tuple(sorted(pairs, key=lambda pair: pair.name))


def stem_of(name: str) -> str:
    """A name without the CUDA major at its end.

    Example:
        >>> stem_of("nvidia-cudnn-cu13")
        'nvidia-cudnn'
    """
    return _CUDA_SUFFIX.sub("", name)


def heads_of(name: str, side: Side) -> tuple[str, ...]:
    """The nearest packages above one that the spec asks for; the package itself if it does.

    Without a spec those count that no other package needs.
    """
    seen, level = {name}, [name]
    while level:
        heads = sorted(each for each in level if _is_head(each, side))
        if heads:
            return tuple(heads)
        above = {asker for each in level for asker in side.requesters.get(each, ())} - seen
        seen |= above
        level = sorted(above)
    return ()


def _is_head(name: str, side: Side) -> bool:
    return name in side.wanted if side.spec else not side.requesters.get(name)


def _by_stem(packages: dict[str, LockedPackage]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in packages:
        found.setdefault(stem_of(name), []).append(name)
    return found
