"""A cache that is the store of a host, over ssh: its agent says which wheels are there, gives them, and takes what it lacks.

Needs what `builder.session` needs. What a store keeps is decided there, by its generations: it has no locks of ours, and nothing is deleted from
here.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import TYPE_CHECKING, Any

from builder.caches.protocol import BLOCK_BYTES, Body, CachedLock, CachedWheel, CacheError
from builder.caches.web import read_blocks
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.caches.protocol import LockFile
    from builder.session import Session
    from envspec.spec import CacheSpec, HostSpec

_GC_HINT = "`envspec gc --host NAME` removes what nothing uses there"


class HostStore:
    """See the module's docstring; methods are those of `builder.caches.protocol.Cache`."""

    kind = "store of a host"
    locks_first = True

    def __init__(self, spec: CacheSpec, environ: Mapping[str, str], host: HostSpec | None) -> None:
        """Prepare; nothing is connected yet.

        Args:
            spec: The cache.
            environ: For ssh.
            host: The host of the spec that is meant; None if the cache has a URL.
        """
        self.name = spec.name
        alias, _, path = spec.url.removeprefix("ssh://").partition("/")
        self._alias = host.ssh if host is not None else alias
        self._store = host.store if host is not None else f"/{path}" if path else ""
        self._environ = environ
        self._guard = threading.Lock()
        self._session: Session | None = None
        self._keep = contextlib.ExitStack()

    def has(self, wheels: Sequence[CachedWheel]) -> frozenset[str]:
        """As `Cache`."""
        with self._talking() as session:
            return self._there(session, wheels)

    @contextlib.contextmanager
    def fetch(self, wheel: CachedWheel, offset: int) -> Iterator[Body]:
        """As `Cache`; one wheel at a time comes over the one connection, and whoever asks for another one waits before it is given any."""
        blocks: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=8)
        begun, gone = threading.Event(), threading.Event()

        def take(size: int, chunks: Iterator[bytes]) -> None:
            begun.set()
            if size != wheel.size - offset:
                raise CacheError(self.name, f"`{wheel.file}` has another size there", kind="unlike")
            for chunk in chunks:
                if gone.is_set():
                    continue  # what was announced has to be read
                blocks.put(chunk)

        def work() -> None:
            try:
                with self._talking() as session:
                    self._need(session, wheel)
                    values = {"sha256": wheel.sha256, "file": wheel.file, "offset": offset}
                    session.call("give", values, on_raw=take)
                blocks.put(None)
            except BaseException as error:  # noqa: BLE001 - carried to whoever reads
                blocks.put(error)
            begun.set()

        def read() -> Iterator[bytes]:
            while (item := blocks.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            begun.wait()
            yield Body(start=offset, blocks=read())
        finally:
            gone.set()
            while thread.is_alive():
                with contextlib.suppress(queue.Empty):
                    blocks.get(timeout=0.1)
            thread.join()

    def store(self, wheel: CachedWheel, path: Path, advance: Callable[[int], None]) -> None:
        """As `Cache`: the agent hashes what comes, and gives it its name only then."""
        with self._talking() as session:
            asked: list[int] = []

            def on_event(event: dict[str, Any]) -> None:
                for row in event.get("need", ()):
                    offset = row["offset"]
                    asked.append(offset)
                    if row["sha256"] != wheel.sha256 or not 0 <= offset < wheel.size or len(asked) > 2:
                        raise ValueError("it asks for a wheel in an odd way")
                    chunks = read_blocks(str(path), offset, advance, BLOCK_BYTES)
                    session.send_wheel(wheel.sha256, wheel.size - offset, chunks)

            row = {"sha256": wheel.sha256, "file": wheel.file, "size": wheel.size}
            session.call("keep", {"wheels": [row]}, on_event)

    def store_lock(self, lock: LockFile) -> None:
        """Nothing: what a store keeps is decided there."""

    def locks(self) -> tuple[CachedLock, ...]:
        """None are kept."""
        raise CacheError(self.name, "the store of a host is not cleaned up from here", kind="unusable", hint=_GC_HINT)

    def all_wheels(self) -> tuple[CachedWheel, ...]:
        """Not told."""
        raise CacheError(self.name, "the store of a host is not cleaned up from here", kind="unusable", hint=_GC_HINT)

    def details(self, wheels: Sequence[CachedWheel]) -> tuple[CachedWheel, ...]:
        """They are what they are."""
        return tuple(wheels)

    def delete(self, wheels: Sequence[CachedWheel], locks: Sequence[CachedLock]) -> None:  # noqa: ARG002
        """Not from here."""
        raise CacheError(self.name, "the store of a host is not cleaned up from here", kind="unusable", hint=_GC_HINT)

    def public_urls(self, wheels: Sequence[CachedWheel]) -> dict[str, str]:  # noqa: ARG002
        """There are none: `envspec copy` brings wheels from host to host."""
        return {}

    def close(self) -> None:
        """As `Cache`."""
        with self._guard:
            self._keep.close()
            self._session = None

    def _there(self, session: Session, wheels: Sequence[CachedWheel]) -> frozenset[str]:
        rows = [{"sha256": wheel.sha256, "file": wheel.file, "size": wheel.size} for wheel in wheels]
        there = session.call("wheels", {"wheels": rows}).get("there")
        if not isinstance(there, list):
            raise CacheError(self.name, "it does not say which wheels it has", kind="unlike")
        return frozenset(wheel.sha256 for wheel in wheels if wheel.sha256 in there)

    def _need(self, session: Session, wheel: CachedWheel) -> None:
        if not self._there(session, [wheel]):
            raise CacheError(self.name, f"it does not have `{wheel.file}`", kind="absent")

    @contextlib.contextmanager
    def _talking(self) -> Iterator[Session]:
        """The session, for one call at a time; one that broke is made anew next time."""
        with self._guard:
            try:
                if self._session is None:
                    self._session = self._connect()
                yield self._session
            except CacheError as error:
                if error.kind != "absent":  # then all was said that there was to say
                    self._drop()
                raise
            except EnvspecError as error:
                self._drop()
                raise CacheError(self.name, error.message, kind="lost", hint=error.hint) from error
            except BaseException:
                self._drop()
                raise

    def _connect(self) -> Session:
        from builder.bundle import make_bundle  # noqa: PLC0415 - only where a host is asked
        from builder.session import Session  # noqa: PLC0415
        from builder.transports.ssh import SshTransport  # noqa: PLC0415

        transport = SshTransport(host=self.name, alias=self._alias, environ=dict(self._environ or os.environ))
        session = Session(transport, make_bundle(), store=self._store)
        self._keep.callback(session.close)
        self._keep.enter_context(session.kept_alive())
        return session

    def _drop(self) -> None:
        if self._session is not None:
            self._session.kill()
        self._keep.close()
        self._session = None
