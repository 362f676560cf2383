"""What a cache has of a lock, and what of it can go: looked at, and only then removed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.caches.protocol import CachedLock, CachedWheel, CacheError
from builder.caches.together import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.caches.protocol import Cache
    from builder.progress import Reporter

READS_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A wheel that a cache has, and should not have as it is."""

    wheel: CachedWheel
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a cache has of a lock."""

    cache: str
    kind: str
    there: tuple[CachedWheel, ...]
    missing: tuple[CachedWheel, ...]
    damaged: tuple[Damaged, ...]
    deep: bool
    """Whether every byte was read."""


def check(cache: Cache, wheels: tuple[CachedWheel, ...], *, deep: bool, reporter: Reporter) -> Checked:
    """Look what a cache has.

    Args:
        cache: Which.
        wheels: Of the lock.
        deep: Whether to read every byte; else what it says of names and sizes counts.
        reporter: Where progress goes.

    Raises:
        CacheError: It cannot be asked.
    """
    damaged: tuple[Damaged, ...] = ()
    there = cache.has(wheels)
    if deep:
        total = sum(wheel.size for wheel in wheels)
        with reporter.stage(f"reading {cache.name}", total=total, unit="bytes") as advance:
            reasons = together(lambda wheel: _read(cache, wheel, advance), wheels, most=READS_AT_ONCE)
        there = frozenset(wheel.sha256 for wheel, reason in zip(wheels, reasons, strict=True) if reason == "")
        damaged = tuple(
            Damaged(wheel=wheel, reason=reason) for wheel, reason in zip(wheels, reasons, strict=True) if reason
        )
    hurt = {each.wheel.sha256 for each in damaged}
    return Checked(
        cache=cache.name,
        kind=cache.kind,
        there=tuple(wheel for wheel in wheels if wheel.sha256 in there),
        missing=tuple(wheel for wheel in wheels if wheel.sha256 not in there and wheel.sha256 not in hurt),
        damaged=damaged,
        deep=deep,
    )


def _read(cache: Cache, wheel: CachedWheel, advance: Callable[[int], None]) -> str | None:
    """What is wrong with a wheel: nothing, or why it is damaged; None if it is not there."""
    digest, length = hashlib.sha256(), 0
    try:
        with cache.fetch(wheel, 0) as body:
            for block in body.blocks:
                digest.update(block)
                length += len(block)
                advance(len(block))
                if length > wheel.size:
                    return f"it has more than {wheel.size:,} bytes"
    except CacheError as error:
        if error.kind == "absent":
            return None
        if error.kind == "unlike":
            return error.message
        raise
    if length != wheel.size:
        return f"it has {length:,} bytes, not {wheel.size:,}"
    found = digest.hexdigest()
    return "" if found == wheel.sha256 else f"its sha256 is {found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGarbage:
    """What can go from a cache."""

    wheels: tuple[CachedWheel, ...]
    locks: tuple[CachedLock, ...]
    """That are forgotten."""

    kept_wheels: int
    kept_locks: int

    @property
    def freed_bytes(self) -> int:
        """Of the wheels, as far as the cache says their sizes."""
        return sum(wheel.size for wheel in self.wheels)


def find_cache_garbage(cache: Cache, needed: frozenset[str], name: str, keep: int | None) -> CacheGarbage:
    """Look what nothing needs: wheels that neither a lock in the cache names nor the caller needs.

    Args:
        cache: Which.
        needed: sha256 of wheels that stay in any case.
        name: Of the environment whose locks may be forgotten.
        keep: How many of its locks stay, the newest; None if all do. Locks of other environments always stay.

    Raises:
        CacheError: It cannot say, or has a lock that cannot be read.
    """
    locks = cache.locks()
    mine = sorted((lock for lock in locks if lock.name == name), key=lambda lock: (-lock.stored_s, lock.id))
    forgotten = tuple(mine[keep:]) if keep is not None else ()
    gone = {lock.id for lock in forgotten}
    kept = [lock for lock in locks if lock.id not in gone]
    named = needed.union(*(lock.wheels for lock in kept))
    every = cache.all_wheels()
    wheels = cache.details([wheel for wheel in every if wheel.sha256 not in named])
    return CacheGarbage(wheels=wheels, locks=forgotten, kept_wheels=len(every) - len(wheels), kept_locks=len(kept))
