"""Brings wheels for hosts into this machine's wheelhouse: each once, however many hosts ask, and as soon as the first one does.

What is there is used, what is not is fetched, a patched wheel is made from its base wheel. Whether the bytes are right is seen where they
arrive.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from builder.caches.opening import configured_caches
from builder.progress import remark
from builder.provision import ensure_patched, is_there
from builder.supply import Supply
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.lock import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.building import BuildRequest
    from builder.overlay import Series
    from builder.progress import Reporter
    from envspec.lock import LockedOverlay, LockedPackage, Part

CHUNK_BYTES = 1 << 20


class HostSupply:
    """The wheels of a lock as paths that come true; for any number of threads."""

    def __init__(
        self,
        request: BuildRequest,
        series: Mapping[str, Series],
        reporter: Reporter,
        *,
        bring: Callable[[Part], Path | None] = lambda _part: None,
    ) -> None:
        """Prepare; nothing is fetched before somebody asks.

        Args:
            request: Whose lock.
            series: Package -> patches, checked against the lock.
            reporter: Where the progress of fetching goes.
            bring: Another source that is asked before the index: puts a wheel into the wheelhouse, or says None.
        """
        self._request = request
        self._series = series
        self._reporter = reporter
        self._bring = bring
        self._parts = {part.sha256: part for part in parts(request.lock)}
        self._guard = threading.Lock()
        self._futures: dict[str, Future[Path]] = {}
        self._overlays: dict[str, LockedOverlay] = {each.sha256: each for each in request.lock.overlays}
        self._packages: dict[str, LockedPackage] = {each.sha256: each for each in request.lock.packages}
        self._keep = contextlib.ExitStack()
        self._ready = False
        self._urls: dict[str, str] = {}
        self._places: dict[str, tuple[str, ...]] | None = None

    def __enter__(self) -> HostSupply:  # noqa: PYI034 - as everywhere here
        return self

    def __exit__(self, *_: object) -> None:
        self._keep.close()

    def ask(self, sha256s: Iterable[str]) -> dict[str, Future[Path]]:
        """Bring wheels about.

        Args:
            sha256s: Of wheels of the lock, patched ones included.

        Returns:
            A future for each: its path in the wheelhouse, or the error of fetching it.

        Raises:
            EnvspecError: The store of this machine cannot be used.
        """
        with self._guard:
            self._prepare()
            missing: list[LockedPackage] = []
            answers = {sha256: self._future(sha256, missing) for sha256 in sha256s}
        if missing:
            threading.Thread(target=self._fetch, args=(missing,), daemon=True).start()
        return answers

    def public_urls(self, sha256s: Iterable[str], *, index: bool) -> dict[str, tuple[str, ...]]:
        """Where wheels can be fetched without credentials, by anybody who reaches the caches and the index.

        Args:
            sha256s: Of wheels of the lock.
            index: Whether the index is among the places; patched wheels are in caches only.

        Returns:
            sha256 -> URLs in the order in which they are to be tried, of those that are anywhere; never to be shown. None where everything is
            here, and nobody is to be asked: a bundle's spec is somebody else's, and its hosts may have no network.
        """
        if self._request.offline:
            return {}
        asked = [sha256 for sha256 in sha256s if sha256 in self._parts or sha256 in self._packages]
        places = self._cache_urls()
        found = {sha256: places[sha256] for sha256 in asked if sha256 in places}
        for sha256, url in self._index_urls(asked).items() if index else ():
            found[sha256] = (*found.get(sha256, ()), url)
        return found

    def _cache_urls(self) -> dict[str, tuple[str, ...]]:
        """Where caches have each wheel of the lock, if they do; worked out once, however many hosts ask."""
        with self._guard:
            if self._places is None:
                self._places = self._find_places()
            return self._places

    def _find_places(self) -> dict[str, tuple[str, ...]]:
        request = self._request
        caches = configured_caches(request.spec, request.environ)
        if not caches:
            return {}
        from builder.caches.protocol import CachedWheel  # noqa: PLC0415 - only where there are caches
        from builder.caches.sources import CacheSources  # noqa: PLC0415

        wheels = [CachedWheel(sha256=each.sha256, file=each.file, size=each.size) for each in self._packages.values()]
        wheels += [CachedWheel(sha256=each.sha256, file=each.file, size=each.size) for each in self._overlays.values()]
        with CacheSources(caches, request.spec, request.environ, lambda text: remark(self._reporter, text)) as opened:
            return opened.public_urls(wheels)

    def _index_urls(self, sha256s: Iterable[str]) -> dict[str, str]:
        wanted = [self._packages[sha256] for sha256 in sha256s if sha256 in self._packages]
        with self._guard:
            missing = [package for package in wanted if package.sha256 not in self._urls]
            if missing:
                self._prepare()
                request = self._request
                supply = Supply.of(request.spec, request.lock, request.store, request.environ)
                for sha256, url in supply.locate(missing).items():
                    public = url.startswith(("http://", "https://")) and supply.credentials.for_url(url) is None
                    self._urls[sha256] = url if public else ""
            return {package.sha256: url for package in wanted if (url := self._urls.get(package.sha256, ""))}

    def forget_damaged(self, sha256: str, path: Path) -> bool:
        """Look at a wheel that arrived damaged somewhere: if it is damaged here it goes, and the next `ask` brings it anew.

        Returns:
            Whether it was damaged here.
        """
        from builder.agent.files import hash_file  # noqa: PLC0415 - rare

        with self._guard:
            if path.is_file() and hash_file(os.fspath(path)) == sha256:
                return False
            path.unlink(missing_ok=True)
            self._futures.pop(sha256, None)
            return True

    def _prepare(self) -> None:
        if not self._ready:
            store = self._request.store
            store.ensure()
            self._keep.enter_context(store.lock("gc", shared=True))  # nothing is collected that is being sent
            self._ready = True

    def _future(self, sha256: str, missing: list[LockedPackage]) -> Future[Path]:
        """The future of a wheel; the caller holds the guard, and fetches what is added to `missing`."""
        if sha256 in self._futures:
            return self._futures[sha256]
        future: Future[Path] = Future()
        self._futures[sha256] = future
        overlay, store = self._overlays.get(sha256), self._request.store
        source = overlay or self._packages[sha256]
        path = store.wheel(sha256, source.file)
        if is_there(path, source.size):
            future.set_result(path)
        elif sha256 in self._parts and (brought := self._bring(self._parts[sha256])) is not None:
            future.set_result(brought)
        elif overlay is not None:
            base = self._future(overlay.base_sha256, missing)
            base.add_done_callback(lambda done: self._patch(overlay, done, future))
        else:
            missing.append(self._packages[sha256])
        return future

    def _patch(self, overlay: LockedOverlay, base: Future[Path], future: Future[Path]) -> None:
        def work() -> None:
            try:
                series = self._series[overlay.package]
                future.set_result(ensure_patched(self._request.store, base.result(), overlay, series))
            except BaseException as error:  # noqa: BLE001 - carried to whoever waits
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()  # whoever made the base wheel known has other things to do

    def _fetch(self, missing: list[LockedPackage]) -> None:
        futures = {package.sha256: self._futures[package.sha256] for package in missing}

        def arrived(sha256: str, path: Path) -> None:
            futures[sha256].set_result(path)

        error: BaseException = EnvspecError("the wheel did not come", exit_code=FOUND_WRONG)
        try:
            request = self._request
            supply = Supply.of(request.spec, request.lock, request.store, request.environ)
            supply.fetch(missing, self._reporter, arrived)
        except BaseException as failure:  # noqa: BLE001 - carried to whoever waits
            error = failure
        for sha256, future in futures.items():
            if not future.done():
                with self._guard:
                    self._futures.pop(sha256, None)  # a later host may have more luck
                future.set_exception(error)


def read_from(path: Path, offset: int) -> Iterator[bytes]:
    """A file from a byte on.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
