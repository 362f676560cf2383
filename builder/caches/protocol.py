"""What a cache is: a place that has wheels by their sha256, wherever it lies.

Nothing that a cache says is believed. What comes from it is hashed as it arrives, by whoever takes it; its lists and sizes only save work. So a
cache needs no trust, and the worst that one can do is to waste time, for which there are limits.

No message of a cache has its URL: that may say more than a log should hold. The name in the spec or the configuration stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from envspec.errors import COULD_NOT_LOOK, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

CONNECTIONS = 8
"""At a time, to one cache."""

BLOCK_BYTES = 1 << 20
LOCK_LIMIT_BYTES = 32 << 20
"""Of a lock that a cache keeps."""

MOST_LOCKS = 10_000
MOST_WHEELS = 1_000_000
MOST_TALK_BYTES = 64 << 20
"""Of any answer that is not a wheel."""

Kind = Literal["absent", "lost", "refused", "unlike", "slow", "unusable"]


class CacheError(EnvspecError):
    """A cache does not do what is asked of it.

    Attributes:
        kind: `absent`: it does not have the wheel. `lost`: it cannot be reached, or broke off. `refused`: it wants other credentials than it
            got. `unlike`: what it gives is not the wheel. `slow`: fewer bytes than are waited for. `unusable`: it cannot do that at all.
    """

    def __init__(self, cache: str, reason: str, *, kind: Kind, hint: str = "") -> None:
        super().__init__(f"cache `{cache}`: {reason}", hint=hint, exit_code=COULD_NOT_LOOK)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedWheel:
    """A wheel that may lie in caches."""

    sha256: str
    file: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLock:
    """A lock whose wheels a cache keeps."""

    id: str
    """What the cache calls it."""

    name: str
    """Of the environment."""

    wheels: frozenset[str]
    """sha256 of every wheel that it names."""

    stored_s: float = 0.0
    """When it came there, in seconds since 1970, by the clock of the cache; 0 if the cache does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Bytes of a wheel from some byte on."""

    start: int
    """Of the first byte: the one that was asked for, or 0."""

    blocks: Iterator[bytes]
    total: int | None = None
    """Size of the whole wheel, as the cache says; None if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """A lock as it is given to a cache."""

    file: str
    """Name of its file."""

    content: bytes
    name: str
    env: str
    site: str
    wheels: tuple[CachedWheel, ...]
    """Every wheel that it names, base wheels of overlays included."""


def too_many_locks(cache: str) -> CacheError:
    """Of a cache that has more locks than are read: what the others need is not known, so nothing may be removed."""
    return CacheError(
        cache,
        f"it has more than {MOST_LOCKS:,} locks",
        kind="unusable",
        hint="nothing was deleted: remove locks there by hand that nobody wants",
    )


class Cache(Protocol):
    """A place with wheels. All methods but `close` raise `CacheError`; any thread may call them."""

    name: str
    """As the spec or the configuration calls it."""

    kind: str
    """What it is, for a person: `HTTP folder`."""

    locks_first: bool
    """Whether a lock is given before its wheels, so that nobody cleans up what it needs while they come; else it needs them to be there."""

    def has(self, wheels: Sequence[CachedWheel]) -> frozenset[str]:
        """sha256 of those that it says to have, whole."""

    def fetch(self, wheel: CachedWheel, offset: int) -> AbstractContextManager[Body]:
        """The bytes of a wheel, from some byte on where the cache can do that."""

    def store(self, wheel: CachedWheel, path: Path, advance: Callable[[int], None]) -> None:
        """Take a wheel, whose bytes the caller has hashed: it is there whole afterwards, or not at all."""

    def store_lock(self, lock: LockFile) -> None:
        """Remember which wheels a lock names, so that they are kept."""

    def locks(self) -> tuple[CachedLock, ...]:
        """Every lock that it remembers."""

    def all_wheels(self) -> tuple[CachedWheel, ...]:
        """Every wheel that it has; `file` is empty and `size` 0 where it does not say."""

    def details(self, wheels: Sequence[CachedWheel]) -> tuple[CachedWheel, ...]:
        """The same wheels with their names and sizes, as far as it says them."""

    def delete(self, wheels: Sequence[CachedWheel], locks: Sequence[CachedLock]) -> None:
        """Remove wheels, and locks before them."""

    def public_urls(self, wheels: Sequence[CachedWheel]) -> dict[str, str]:
        """sha256 -> where anybody who reaches the cache can fetch it without credentials, for a while at least; never to be shown."""

    def close(self) -> None:
        """Let go of what is open."""
