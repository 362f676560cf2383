"""The wheels of a lock into a cache, and from caches into the wheelhouse: only what is missing, and nothing whose sha256 was not looked at."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.files import hash_file
from builder.caches.protocol import CachedWheel, CacheError
from builder.caches.sources import CacheSources
from builder.caches.together import apart, together
from builder.fetch import WantedWheel, fetch_from
from builder.progress import remark
from builder.provision import is_there
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from builder.building import BuildRequest
    from builder.caches.protocol import Cache, LockFile
    from builder.progress import Advance, Reporter
    from builder.supplying import HostSupply
    from envspec.spec import CacheSpec

UPLOADS_AT_ONCE = 4
_AGAIN = "push again: what has arrived is not sent twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push did."""

    cache: str
    kind: str
    wheels: tuple[CachedWheel, ...]
    """Of the lock."""

    sent: tuple[CachedWheel, ...]
    """Those that were missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What a pull did."""

    wheels: tuple[CachedWheel, ...]
    """Of the lock."""

    got: tuple[CachedWheel, ...]
    missing: tuple[CachedWheel, ...]
    """Those that no cache gave."""


def push(cache: Cache, lock: LockFile, supply: HostSupply, reporter: Reporter) -> Pushed:
    """Give a cache what it lacks of a lock. Wheels that this machine lacks are fetched or patched first.

    Args:
        cache: Which.
        lock: The lock.
        supply: Brings its wheels about.
        reporter: Where progress goes.

    Raises:
        CacheError: The cache does not take them; what it has, it has whole.
        EnvspecError: A wheel cannot be had here.
    """
    if cache.locks_first:
        apart(lambda: cache.store_lock(lock))
        sent = _push_missing(cache, lock, supply, reporter)
    else:
        sent = _push_missing(cache, lock, supply, reporter)
        try:
            apart(lambda: cache.store_lock(lock))
        except CacheError as error:
            if error.kind != "lost":
                raise
            sent += _push_missing(cache, lock, supply, reporter)  # somebody cleaned up meanwhile
            apart(lambda: cache.store_lock(lock))
    return Pushed(cache=cache.name, kind=cache.kind, wheels=lock.wheels, sent=tuple(dict.fromkeys(sent)))


def _push_missing(cache: Cache, lock: LockFile, supply: HostSupply, reporter: Reporter) -> tuple[CachedWheel, ...]:
    there = cache.has(lock.wheels)
    missing = sorted(
        (wheel for wheel in lock.wheels if wheel.sha256 not in there), key=lambda wheel: (-wheel.size, wheel.file)
    )
    if missing:
        total = sum(wheel.size for wheel in missing)
        with (
            reporter.stage(f"pushing to {cache.name}", total=total, unit="bytes") as advance,
            reporter.stage("done", total=len(missing), unit="wheels") as count,
        ):
            _upload(cache, missing, supply, advance, count, reporter)
    return tuple(missing)


def _upload(
    cache: Cache,
    missing: Sequence[CachedWheel],
    supply: HostSupply,
    advance: Advance,
    count: Advance,
    reporter: Reporter,
) -> None:
    futures = supply.ask([wheel.sha256 for wheel in missing])
    stop = threading.Event()

    def upload(wheel: CachedWheel) -> None:
        path = _right_wheel(wheel, futures[wheel.sha256], supply, reporter)
        cache.store(wheel, path, _stoppable(advance, stop))
        count(1)

    try:
        together(upload, missing, most=UPLOADS_AT_ONCE)
    except CacheError as error:
        if error.kind in {"lost", "slow"}:
            error.hint = _AGAIN
        raise
    finally:
        stop.set()


class _StoppedError(Exception):
    """Another upload failed, or the user wants to stop."""


def _stoppable(advance: Advance, stop: threading.Event) -> Callable[[int], None]:
    def tell(units: int) -> None:
        if stop.is_set():
            raise _StoppedError
        advance(units)

    return tell


def _right_wheel(wheel: CachedWheel, future: Future[Path], supply: HostSupply, reporter: Reporter) -> Path:
    """The path of a wheel whose bytes are the locked ones; one that was damaged here is got anew."""
    path = future.result()
    if hash_file(os.fspath(path)) != wheel.sha256:
        remark(reporter, f"{wheel.file} is damaged in the store: getting it again")
        supply.forget_damaged(wheel.sha256, path)
        path = supply.ask([wheel.sha256])[wheel.sha256].result()
        if (found := hash_file(os.fspath(path))) != wheel.sha256:
            raise EnvspecError(
                f"`{wheel.file}` in the store has sha256 {found}, the lock has {wheel.sha256}",
                input_name=os.fspath(path),
                hint="remove the file: it is fetched anew",
                exit_code=FOUND_WRONG,
            )
    return path


def pull(
    caches: Sequence[CacheSpec], wheels: tuple[CachedWheel, ...], request: BuildRequest, reporter: Reporter
) -> Pulled:
    """Bring what the wheelhouse lacks of a lock from caches, and from nowhere else.

    Args:
        caches: In the order in which they are asked.
        wheels: Of the lock.
        request: Whose store.
        reporter: Where progress goes.

    Raises:
        EnvspecError: A wheel cannot be written.
    """
    store = request.store
    store.ensure()
    missing = [wheel for wheel in wheels if not is_there(store.wheel(wheel.sha256, wheel.file), wheel.size)]
    wanted = [WantedWheel(file=wheel.file, sha256=wheel.sha256, size=wheel.size, url="") for wheel in missing]
    with (
        store.lock("gc", shared=True, waiting=reporter.note),
        CacheSources(caches, request.spec, request.environ, lambda text: remark(reporter, text)) as sources,
    ):
        left = {wheel.sha256 for wheel in fetch_from(sources.bring, wanted, wheels_dir=store.wheels, reporter=reporter)}
    return Pulled(
        wheels=wheels,
        got=tuple(wheel for wheel in missing if wheel.sha256 not in left),
        missing=tuple(wheel for wheel in missing if wheel.sha256 in left),
    )
