"""What a change costs: bytes to download, bytes for each host, and what is used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diff.pairs import Pair
    from envspec.diff.sides import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Sizes in bytes, of wheel files."""

    download_wheels: int
    """Wheels of the new lock that the old one does not have, as an index offers them."""

    download_bytes: int
    host_wheels: int
    """Wheels that a host with the old environment lacks, patched ones as they are sent."""

    host_bytes: int
    reused_wheels: int
    reused_bytes: int
    old_bytes: int
    """Of all wheels that make up the environment."""

    new_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSize:
    """A package that is installed on one side or both."""

    name: str
    old_bytes: int
    """0 if it is not there."""

    new_bytes: int


def cost_of(old: Side, new: Side) -> Cost:
    """What a change costs somebody who has the old environment.

    Args:
        old: The old side.
        new: The new side.
    """
    had = {package.sha256 for package in old.packages.values()}
    download = [package.size for package in new.packages.values() if package.sha256 not in had]
    there = {part.sha256 for part in old.parts.values()}
    lacked = [part.size for part in new.parts.values() if part.sha256 not in there]
    kept = [part.size for part in new.parts.values() if part.sha256 in there]
    return Cost(
        download_wheels=len(download),
        download_bytes=sum(download),
        host_wheels=len(lacked),
        host_bytes=sum(lacked),
        reused_wheels=len(kept),
        reused_bytes=sum(kept),
        old_bytes=sum(part.size for part in old.parts.values()),
        new_bytes=sum(part.size for part in new.parts.values()),
    )


def sizes_of(pairs: Iterable[Pair], old: Side, new: Side) -> tuple[PackageSize, ...]:
    """Every package with its sizes, the largest first; one that takes another's place is compared with that.

    Args:
        pairs: The packages that changed.
        old: The old side.
        new: The new side.
    """
    successors = {pair.names[0]: pair.name for pair in pairs}
    before = {successors.get(name, name): part.size for name, part in old.parts.items()}
    after = {name: part.size for name, part in new.parts.items()}
    sizes = [
        PackageSize(name=name, old_bytes=before.get(name, 0), new_bytes=after.get(name, 0))
        for name in before.keys() | after.keys()
    ]
    return tuple(sorted(sizes, key=lambda each: (-max(each.old_bytes, each.new_bytes), each.name)))
