"""Caches as sources of wheels: asked in their order, each bounded in time, and what it gives is judged by its sha256 alone.

A cache that fails is passed over: for one wheel where it does not have it or gives other bytes, for all that follow where it refuses, cannot be
reached, stalls or lies again. What an honest one has given before it broke off is gone on with, whoever comes next. Nothing that goes wrong here
is an error of a build: the next source takes over.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.caches.opening import open_cache
from builder.caches.protocol import CachedWheel, CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from builder.caches.protocol import Cache, Kind
    from builder.download import Partial
    from builder.fetch import WantedWheel
    from envspec.spec import CacheSpec, Spec

TRIES = 3
"""How often a wheel is begun at one cache without a new byte."""

MOST_ATTEMPTS = 30
PAUSE_S = 0.2
MOST_FAILURES: Mapping[Kind, int] = {"refused": 1, "unusable": 1, "lost": 2, "slow": 2, "unlike": 3}
"""After how many wheels a cache is given up. One that does not have a wheel has done nothing wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How slow a cache may be before the next source is asked."""

    window_s: float = 20.0
    least_bytes: int = 1 << 20
    """That have to come within a window: 50 kB/s."""


class Watch:
    """Sees that bytes keep coming."""

    def __init__(self, cache: str, patience: Patience, clock_s: Callable[[], float]) -> None:
        self._cache = cache
        self._patience = patience
        self._clock_s = clock_s
        self.begin()

    def begin(self) -> None:
        """Begin a window: from now on bytes may be expected."""
        self._since_s = self._clock_s()
        self._bytes = 0

    def saw(self, count: int) -> None:
        """Count bytes.

        Raises:
            CacheError: They come too slowly.
        """
        self._bytes += count
        now_s = self._clock_s()
        if now_s - self._since_s < self._patience.window_s:
            return
        if self._bytes < self._patience.least_bytes:
            raise CacheError(
                self._cache,
                f"it gave {self._bytes:,} bytes in {now_s - self._since_s:.0f} s",
                kind="slow",
                hint="the next source was asked instead",
            )
        self.begin()


class CacheSources:
    """The caches of one command; for any number of threads. Nothing is opened before it is asked."""

    def __init__(
        self,
        caches: Sequence[CacheSpec],
        spec: Spec,
        environ: Mapping[str, str],
        remark: Callable[[str], None],
        *,
        patience: Patience | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        opener: Callable[[CacheSpec, Spec, Mapping[str, str]], Cache] = open_cache,
    ) -> None:
        """Prepare.

        Args:
            caches: In their order.
            spec: Whose hosts they may name.
            environ: Where credentials are looked for.
            remark: Told what goes wrong, once for each cache and kind.
            patience: How slow a cache may be.
            clock_s: A clock that only goes forward.
            opener: Opens a cache.
        """
        self._specs = tuple(caches)
        self._spec = spec
        self._environ = environ
        self._remark = remark
        self._patience = patience or Patience()
        self._clock_s = clock_s
        self._opener = opener
        self._guard = threading.Lock()
        self._opened: dict[str, Cache | None] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._given_up: set[str] = set()

    def __enter__(self) -> CacheSources:  # noqa: PYI034 - as everywhere here
        return self

    def __exit__(self, *_: object) -> None:
        for cache in self._opened.values():
            if cache is not None:
                cache.close()

    @property
    def are_left(self) -> bool:
        """Whether any cache is worth asking."""
        return any(each.name not in self._given_up for each in self._specs)

    def bring(
        self, wanted: WantedWheel, partial: Partial, count: Callable[[int], None], pause: Callable[[float], None]
    ) -> bool:
        """Complete a wheel from the first cache that gives it.

        Args:
            wanted: Which; its size is known.
            partial: What is there of it.
            count: Told the length after each block; may raise to give up.
            pause: Waits so many seconds; may raise to give up.

        Returns:
            Whether it is complete and has its sha256. If not, what is there may still be its beginning.
        """
        wheel = CachedWheel(sha256=wanted.sha256, file=wanted.file, size=wanted.size or 0)
        if partial.length == wheel.size and partial.sha256() == wheel.sha256:
            return True
        for cache in self._each():
            try:
                self._complete(cache, wheel, partial, count, pause)
            except CacheError as error:
                self._note(cache.name, error)
            else:
                self._forgive(cache.name)
                return True
        return False

    def public_urls(self, wheels: Sequence[CachedWheel]) -> dict[str, tuple[str, ...]]:
        """Where hosts can fetch wheels themselves: sha256 -> addresses in the order of the caches, never to be shown.

        No cache is asked whether it has them: the host finds out.
        """
        found: dict[str, tuple[str, ...]] = {}
        for cache in self._each():
            try:
                urls = cache.public_urls(wheels)
            except CacheError as error:
                self._note(cache.name, error)
                continue
            for sha256, url in urls.items():
                found[sha256] = (*found.get(sha256, ()), url)
        return found

    def _each(self) -> Iterator[Cache]:
        for spec in self._specs:
            if spec.name not in self._given_up and (cache := self._open(spec)) is not None:
                yield cache

    def _open(self, spec: CacheSpec) -> Cache | None:
        with self._guard:
            if spec.name in self._opened:
                return self._opened[spec.name]
            try:
                cache = self._opener(spec, self._spec, self._environ)
            except CacheError as error:
                self._opened[spec.name] = None
                self._given_up.add(spec.name)
                self._remark(error.message)
                return None
            self._opened[spec.name] = cache
            return cache

    def _complete(
        self,
        cache: Cache,
        wheel: CachedWheel,
        partial: Partial,
        count: Callable[[int], None],
        pause: Callable[[float], None],
    ) -> None:
        """Complete a wheel from one cache; if what others gave was wrong, once more from the beginning."""
        while True:
            began = partial.length
            restarted = self._receive(cache, wheel, partial, count, pause)
            if partial.sha256() == wheel.sha256:
                return
            partial.restart()
            if not began or restarted:
                raise CacheError(cache.name, f"what it gives is not `{wheel.file}`", kind="unlike")

    def _receive(
        self,
        cache: Cache,
        wheel: CachedWheel,
        partial: Partial,
        count: Callable[[int], None],
        pause: Callable[[float], None],
    ) -> bool:
        """Fill a partial file up to the wheel's size; whether it was begun anew.

        Raises:
            CacheError: It cannot be.
        """
        tries, attempts, restarted = 0, 0, False
        watch = Watch(cache.name, self._patience, self._clock_s)
        while partial.length < wheel.size:
            before = partial.length
            try:
                restarted = self._receive_once(cache, wheel, partial, count, watch) or restarted
            except CacheError as error:
                if error.kind == "unlike" and partial.length != before:
                    partial.restart()
                attempts += 1
                tries = 1 if partial.length > before else tries + 1
                is_over = error.kind != "lost" or cache.name in self._given_up
                if is_over or tries >= TRIES or attempts >= MOST_ATTEMPTS:
                    raise
                pause(PAUSE_S * tries)
        return restarted

    @staticmethod
    def _receive_once(
        cache: Cache, wheel: CachedWheel, partial: Partial, count: Callable[[int], None], watch: Watch
    ) -> bool:
        with cache.fetch(wheel, partial.length) as body:
            if body.total is not None and body.total != wheel.size:
                reason = f"what it gives for `{wheel.file}` has {body.total:,} bytes, not {wheel.size:,}"
                raise CacheError(cache.name, reason, kind="unlike")
            restarts = body.start != partial.length
            if restarts:
                partial.restart()
            watch.begin()  # one connection may have had other wheels to give first
            for block in body.blocks:
                if partial.length + len(block) > wheel.size:
                    raise CacheError(cache.name, f"it gives more than `{wheel.file}` has", kind="unlike")
                partial.append(block)
                watch.saw(len(block))
                count(partial.length)
        if partial.length < wheel.size:
            raise CacheError(cache.name, "the connection ended early", kind="lost")
        return restarts

    def _note(self, name: str, error: CacheError) -> None:
        if error.kind == "absent":
            return
        with self._guard:
            count = self._failures[name, error.kind] = self._failures.get((name, error.kind), 0) + 1
            gives_up = count >= MOST_FAILURES[error.kind] and name not in self._given_up
            if gives_up:
                self._given_up.add(name)
        if gives_up:
            self._remark(f"{error.message}: it is not asked any more" + (f" ({error.hint})" if error.hint else ""))
        elif count == 1 and name not in self._given_up:
            self._remark(error.message)

    def _forgive(self, name: str) -> None:
        with self._guard:
            for kind in ("lost", "slow"):  # in a row
                self._failures.pop((name, kind), None)
