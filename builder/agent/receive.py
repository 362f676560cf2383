"""Takes wheels from the controller: one stream, each file hashed as it arrives, gone on with where an earlier try was cut off.

What is not complete lies in `<store>/wheels/.incoming/<sha256>`; whoever holds `locks/incoming` may write there. A wheel gets its name in the
wheelhouse only with the sha256 that it is named by.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.agent.places import Places, open_url, steadily
from builder.agent.store import make_folder, sync_folder
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from builder.agent.store import Store

TRIES = 2
"""How often a wheel is asked for before one that arrives damaged is an error."""


@dataclass(frozen=True)
class Wanted:
    """A wheel that is to come."""

    sha256: str
    file: str
    size: int
    """Bytes."""


@dataclass
class _State:
    wanted: dict[str, Wanted]
    offsets: dict[str, int] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    error: BaseException | None = None


class Receiver:
    """Receives the wheels of one build. The reading thread calls `take` and `refuse`, the building one `receive`."""

    def __init__(self, store: Store, ask: Callable[[list[dict[str, Any]]], None]) -> None:
        """Prepare.

        Args:
            store: The store.
            ask: Tells the controller what to send: sha256, offset, and whether it arrived damaged before.
        """
        self._store = store
        self._ask = ask
        self._changed = threading.Condition()
        self._state = _State(wanted={})
        self._on_arrived: Callable[[str, Path], None] = lambda _sha256, _path: None
        self._fetches = Places()

    def receive(self, wanted: Iterable[Wanted], on_arrived: Callable[[str, Path], None]) -> None:
        """Ask for wheels and wait until all are in the wheelhouse. The caller holds `locks/incoming`.

        Args:
            wanted: Which.
            on_arrived: Told the sha256 and the path of each as it is in place, from the reading thread.

        Raises:
            EnvspecError: One cannot be had.
            OSError: One cannot be written.
        """
        with self._changed:
            self._state = _State(wanted={each.sha256: each for each in wanted})
            self._on_arrived = on_arrived
            state = self._state
            rows = [self._row(each, damaged=False) for each in state.wanted.values()]
        if rows:
            make_folder(incoming(self._store))
            self._ask(rows)
        with self._changed:
            while state.wanted and state.error is None:
                self._changed.wait()
            error, state.wanted = state.error, {}
        if error is not None:
            raise error

    def take(self, sha256: str, size: int, chunks: Iterator[bytes]) -> None:
        """Write a wheel that comes in: the raw bytes are taken from the pipe in any case.

        Args:
            sha256: As the controller names it.
            size: Bytes that come.
            chunks: They.
        """
        try:
            again = self._write(sha256, size, chunks)
        except BaseException as error:
            for _ in chunks:  # what follows on the pipe is the next message
                pass
            self.fail(error)
            if not isinstance(error, (OSError, EnvspecError)):
                raise
            return
        if again is not None:
            self._ask([again])

    def fetch(self, sha256: str, urls: Iterable[str]) -> None:
        """Fetch a wheel from where it may be; what cannot be had is asked of the controller.

        Args:
            sha256: Of a wheel that is waited for.
            urls: Places in the order in which they are tried, as the controller says; not to be shown.
        """
        with self._changed:
            wanted = self._state.wanted.get(sha256)
        if wanted is None:
            return
        for url in urls:
            if not self._fetches.may_ask(url):
                continue
            try:
                if self._fetch_from(url, wanted):
                    return
            except (OSError, ValueError, http.client.HTTPException, EnvspecError) as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                    self.fail(error)
                    return
                self._fetches.failed(url, error)
        with self._changed:
            if self._state.wanted.get(sha256) is None:
                return
            self._state.tries[sha256] = 0  # the controller has not tried yet
            again = self._row(wanted, damaged=False)
        self._ask([{**again, "send": True}])

    def _fetch_from(self, url: str, wanted: Wanted) -> bool:
        """Whether the wheel came. One that begins with what others gave and turns out wrong is fetched once more from its beginning."""
        while True:
            with self._changed:
                self._state.tries[wanted.sha256] = 0
                offset = self._row(wanted, damaged=False)["offset"]
            left = wanted.size - offset
            with open_url(url, offset, left) as response:
                if self._write(wanted.sha256, left, steadily(response, left)) is None:
                    return True
            if offset == 0:
                self._fetches.lied(url)
                return False

    def fail(self, error: BaseException) -> None:
        """End `receive` with an error."""
        with self._changed:
            self._state.error = self._state.error or error
            self._changed.notify_all()

    def _row(self, wanted: Wanted, *, damaged: bool) -> dict[str, Any]:
        state = self._state
        partial = self._partial(wanted.sha256)
        size = 0
        if partial.is_symlink() or partial.is_file():
            status = partial.lstat()
            size = status.st_size
            if partial.is_symlink() or size >= wanted.size or status.st_uid != os.geteuid():
                partial.unlink()  # the halves of another user are his to write
                size = 0
        state.offsets[wanted.sha256] = size
        state.tries[wanted.sha256] = state.tries.get(wanted.sha256, 0) + 1
        return {"sha256": wanted.sha256, "offset": size, "damaged": damaged}

    def _partial(self, sha256: str) -> Path:
        return incoming(self._store) / sha256

    def _write(self, sha256: str, size: int, chunks: Iterator[bytes]) -> dict[str, Any] | None:
        with self._changed:
            state = self._state
            wanted, offset = state.wanted.get(sha256), state.offsets.get(sha256, 0)
            if wanted is None or state.error is not None:
                raise EnvspecError(f"a wheel came that nobody waits for: {sha256}")
        if size != wanted.size - offset:
            raise EnvspecError(f"{wanted.file}: {size} bytes are announced, {wanted.size - offset} are missing")
        partial = self._partial(sha256)
        digest = hashlib.sha256()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(partial, flags, 0o644)
        try:
            with open(fd, "r+b", closefd=False, buffering=0) as file:
                while (place := file.tell()) < offset:
                    digest.update(file.read(min(1 << 20, offset - place)))
                    if file.tell() == place:  # it was cut off meanwhile: its digest will be another
                        break
                for chunk in chunks:
                    digest.update(chunk)
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(fd, view) :]
            found = digest.hexdigest()
            if found == sha256:
                os.fchmod(fd, 0o444)
                os.fsync(fd)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # half a wheel must not keep the disk full
                partial.unlink(missing_ok=True)
            raise OSError(error.errno, f"{os.strerror(error.errno or 0)} while {wanted.file} came in") from error
        finally:
            os.close(fd)
        if found != sha256:
            partial.unlink(missing_ok=True)
            with self._changed:
                if state.tries[sha256] < TRIES:
                    return self._row(wanted, damaged=True)
            raise EnvspecError(
                f"{wanted.file} arrived with sha256 {found}, the lock has {sha256}",
                hint="is the file in the wheelhouse of the controller damaged? `envspec build` there finds out",
                exit_code=FOUND_WRONG,
            )
        target = self._store.wheel(sha256, wanted.file)
        make_folder(target.parent)
        partial.replace(target)
        sync_folder(target.parent)
        self._on_arrived(sha256, target)
        with self._changed:
            state.wanted.pop(sha256, None)
            self._changed.notify_all()
        return None


def incoming(store: Store) -> Path:
    """Where wheels lie that are not complete: on the file system of the wheelhouse."""
    return store.wheels / ".incoming"


def sweep_incoming(store: Store) -> None:
    """Remove halves of wheels that nobody waits for any more. The caller holds `locks/incoming`."""
    folder = incoming(store)
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
