"""Locks that caches keep, so that whoever cleans one up knows what is needed: read with the distrust that is due to what others wrote."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from builder.caches.protocol import CachedLock, CachedWheel, CacheError, LockFile
from envspec.errors import EnvspecError
from envspec.lock_toml import parse_lock

if TYPE_CHECKING:
    from envspec.lock import Lock


def wheels_of(lock: Lock) -> tuple[CachedWheel, ...]:
    """Every wheel that a lock names: those of the index, the base wheels of overlays among them, and the patched ones. Sorted by name."""
    rows = [(each.file, each.sha256, each.size) for each in lock.packages]
    rows += [(each.file, each.sha256, each.size) for each in lock.overlays]
    return tuple(CachedWheel(sha256=sha256, file=file, size=size) for file, sha256, size in sorted(set(rows)))


def lock_file(lock: Lock, file: str, content: bytes) -> LockFile:
    """A lock as a cache takes it.

    Args:
        lock: The lock.
        file: Name of its file.
        content: Its bytes.
    """
    return LockFile(file=file, content=content, name=lock.name, env=lock.env, site=lock.site, wheels=wheels_of(lock))


def unreadable_lock(cache: str, identity: str, problem: str = "cannot be read") -> CacheError:
    """Of a lock in a cache of which nobody knows what it needs.

    Args:
        cache: Name of the cache.
        identity: `<sha256>.lock`.
        problem: What is the matter with it.
    """
    hint = "nothing was deleted: it may need any wheel; remove that lock there by hand if nobody wants it"
    return CacheError(cache, f"its lock `{identity[:16]}…` {problem}", kind="unlike", hint=hint)


def lock_wheels(cache: str, identity: str, content: bytes, stored_s: float) -> CachedLock:
    """What a lock that lies in a cache keeps there.

    Args:
        cache: Name of the cache, for errors.
        identity: `<sha256>.lock`.
        content: Its bytes.
        stored_s: When it came there.

    Raises:
        CacheError: It is not the lock that it is called by, or none that this version can read: then nobody knows what it needs.
    """
    if hashlib.sha256(content).hexdigest() != identity.partition(".")[0]:
        raise unreadable_lock(cache, identity, "is damaged")
    try:
        lock = parse_lock(content.decode("utf-8"), input_name=identity)
    except (EnvspecError, UnicodeDecodeError):
        raise unreadable_lock(cache, identity) from None
    return CachedLock(
        id=identity,
        name=lock.name,
        wheels=frozenset(wheel.sha256 for wheel in wheels_of(lock)),
        stored_s=stored_s,
    )
