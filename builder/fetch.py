"""Wheels -> the wheelhouse, by sha256 and by nothing else.

A wheel is at `<wheels>/<sha256>/<file>` whole and right, or not at all. It grows in `<wheels>/.partial/<sha256>` under a lock of its own, so
two processes that want the same wheel fetch it once, and whatever ends a fetch, the next one goes on where it stopped. Invariants:

- a partial file is hashed from its first byte to its last before it is renamed; a wrong one is thrown away and fetched once more;
- a wheel is synced to disk before its name is there, and read-only from then on;
- nothing is connected, and httpx not even imported, where every wheel is there.

How a single file comes over the wire is in `builder.download`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.agent.store import is_shared, make_folder
from builder.credentials import NO_CREDENTIALS
from builder.download import Downloader, Partial, UnlikeError
from builder.uv_output import is_plain_file_name
from envspec.errors import FOUND_WRONG, EnvspecError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import httpx

    from builder.credentials import Credentials
    from builder.progress import Advance, Reporter

LOCK_POLL_S = 0.1
GRACE_S = 5.0  # for the other threads once one has failed; one that waits for a dead server is left to itself


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedWheel:
    """A wheel that is to be in the wheelhouse."""

    file: str
    sha256: str
    size: int | None
    """In bytes; None if nobody knows."""

    url: str = field(repr=False)
    """`http`, `https` or `file`; without credentials, but never to be shown."""


Bring = Callable[[WantedWheel, Partial, Callable[[int], None], Callable[[float], None]], bool]
"""Completes a partial file, which the caller has locked: the wheel, what there is of it, whom to tell its length, how to wait for some seconds.
False if it cannot be had, and what there is may be its beginning."""


class _Stopped(Exception):  # noqa: N818 - not an error: another thread has the error
    """Another thread failed, or the user wants to stop."""


def fetch_wheels(
    wanted: Sequence[WantedWheel],
    *,
    wheels_dir: Path,
    credentials: Credentials,
    reporter: Reporter,
    connections: int = 8,
    on_arrived: Callable[[WantedWheel, Path], None] | None = None,
    client_factory: Callable[[], httpx.Client] | None = None,
    pause: Callable[[float], None] | None = None,
    free_bytes: Callable[[Path], int] | None = None,
) -> None:
    """Bring wheels into the wheelhouse, the biggest first.

    Args:
        wanted: Which, in any order.
        wheels_dir: The wheelhouse, `<store>/wheels`; made if it is missing.
        credentials: Sent to the origins that they belong to.
        reporter: Gets one stage, `fetching`, in bytes, if anything is to be fetched.
        connections: Wheels at a time.
        on_arrived: Called for each wheel with its path as soon as it is in place: first in the caller's thread for those that are there
            already, then in the fetching threads, never twice at once. While it runs, no other wheel can be handed over; what it raises ends
            the fetch.
        client_factory: Makes the HTTP client, once, if there is anything to fetch by HTTP; None for one that verifies certificates and
            follows the proxies of the environment.
        pause: Waits so many seconds before another try; None to wait, and to stop waiting where another wheel failed.
        free_bytes: Free bytes of the disk that a path is on; None to ask the system.

    Raises:
        EnvspecError: A wheel cannot be fetched or is not the wanted one, or the disk is too small. The first error stops the other threads;
            what arrived so far is kept and gone on with next time.
    """
    missing = _missing(wanted, wheels_dir, on_arrived, free_bytes)
    if not missing:
        return
    total = sum(wheel.size or 0 for wheel in missing)
    with reporter.stage("fetching", total=total, unit="bytes") as advance, contextlib.ExitStack() as closing:
        fetching = _Fetching(
            wheels_dir=wheels_dir,
            credentials=credentials,
            advance=advance,
            on_arrived=on_arrived,
            client_factory=client_factory or (lambda: make_client(connections)),
            pause=pause,
            closing=closing,
        )
        fetching.run(missing, connections)


def fetch_from(
    bring: Bring,
    wanted: Sequence[WantedWheel],
    *,
    wheels_dir: Path,
    reporter: Reporter,
    connections: int = 8,
    on_arrived: Callable[[WantedWheel, Path], None] | None = None,
    pause: Callable[[float], None] | None = None,
) -> tuple[WantedWheel, ...]:
    """Bring wheels into the wheelhouse from elsewhere than their URLs, as `fetch_wheels` does, which then goes on with what this one left.

    Args:
        bring: Completes one; in any thread.
        wanted: Which; their sizes are known, their URLs play no part.
        wheels_dir: As there.
        reporter: Gets one stage, `fetching`; what could not be had is taken back.
        connections: Wheels at a time.
        on_arrived: As there.
        pause: As there.

    Returns:
        Those that were not to be had.

    Raises:
        EnvspecError: The disk is too small, or a wheel cannot be written.
    """
    missing = _missing(wanted, wheels_dir, on_arrived, None)
    if not missing:
        return ()
    total = sum(wheel.size or 0 for wheel in missing)
    with reporter.stage("fetching", total=total, unit="bytes") as advance, contextlib.ExitStack() as closing:
        fetching = _Fetching(
            wheels_dir=wheels_dir,
            credentials=NO_CREDENTIALS,
            advance=advance,
            on_arrived=on_arrived,
            client_factory=lambda: make_client(connections),
            pause=pause,
            closing=closing,
            bring=bring,
        )
        fetching.run(missing, connections)
        return tuple(fetching.left)


def _missing(
    wanted: Sequence[WantedWheel],
    wheels_dir: Path,
    on_arrived: Callable[[WantedWheel, Path], None] | None,
    free_bytes: Callable[[Path], int] | None,
) -> list[WantedWheel]:
    """Those that are not there; the others are handed over."""
    _check(wanted)
    present: list[WantedWheel] = []
    missing: list[WantedWheel] = []
    for wheel in dict.fromkeys(wanted):
        with _store_errors(wheel.file):
            (present if _is_there(_place_of(wheels_dir, wheel), wheel.size) else missing).append(wheel)
    if on_arrived:
        for wheel in present:
            on_arrived(wheel, _place_of(wheels_dir, wheel))
    if missing:
        with _store_errors(missing[0].file):
            partials = _partials_of(wheels_dir)
            partials.mkdir(parents=True, exist_ok=True)
            _check_room(missing, partials, (free_bytes or _free_bytes)(partials))
    return missing


def _partials_of(wheels_dir: Path) -> Path:
    """Where this user's partial files lie: in a wheelhouse that a group shares, those of another user are his to write."""
    return wheels_dir / (f".partial-{os.geteuid()}" if is_shared(wheels_dir) else ".partial")


class _Fetching:
    """The threads of one fetch and what they share."""

    def __init__(
        self,
        *,
        wheels_dir: Path,
        credentials: Credentials,
        advance: Advance,
        on_arrived: Callable[[WantedWheel, Path], None] | None,
        client_factory: Callable[[], httpx.Client],
        pause: Callable[[float], None] | None,
        closing: contextlib.ExitStack,
        bring: Bring | None = None,
    ) -> None:
        self._wheels_dir = wheels_dir
        self._advance = advance
        self._on_arrived = on_arrived
        self._client_factory = client_factory
        self._own_pause = pause
        self._closing = closing
        self._bring = bring
        self.left: deque[WantedWheel] = deque()
        self._client: httpx.Client | None = None
        self._client_lock = threading.Lock()
        self._arrival_lock = threading.Lock()
        self._stop = threading.Event()
        self._errors: deque[BaseException] = deque()
        self._downloader = Downloader(self._shared_client, credentials, pause=self._pause)

    def run(self, wheels: Iterable[WantedWheel], connections: int) -> None:
        """Fetch all, and raise the first error."""
        queue = deque(sorted(wheels, key=lambda wheel: (-(wheel.size or 0), wheel.file)))
        threads = [
            threading.Thread(target=self._work, args=(queue,), name=f"fetch-{number}", daemon=True)
            for number in range(min(connections, len(queue)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._stop.is_set():
                    thread.join(timeout=0.5)
        finally:  # also where the user interrupts
            self._stop.set()
            deadline = time.monotonic() + GRACE_S
            for thread in threads:
                if thread.ident is not None:
                    thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if self._errors:
            raise self._errors[0]

    def _work(self, queue: deque[WantedWheel]) -> None:
        while not self._stop.is_set():
            try:
                wheel = queue.popleft()
            except IndexError:
                return
            try:
                self._fetch(wheel)
            except _Stopped:
                return
            except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self._stop.set()

    def _fetch(self, wheel: WantedWheel) -> None:
        place = _place_of(self._wheels_dir, wheel)
        partial_path = _partials_of(self._wheels_dir) / wheel.sha256
        counted = 0

        def count(length: int) -> None:
            nonlocal counted
            if self._stop.is_set():
                raise _Stopped
            if length > counted:  # not the bytes that come a second time
                self._advance(length - counted)
                counted = length

        with _store_errors(wheel.file), _locked(partial_path, wait=self._wait_for_lock) as descriptor:
            if _is_there(place, wheel.size):  # another process fetched it while we waited
                partial_path.unlink(missing_ok=True)
            else:
                partial = Partial(descriptor, needed_bytes=wheel.size)
                count(partial.length)
                if self._bring is None:
                    self._complete(wheel, partial, count)
                elif not self._bring(wheel, partial, count, self._pause):
                    self._advance(-counted)
                    self.left.append(wheel)
                    return
                _put_in_place(descriptor, partial_path, place)
        count(wheel.size or counted)
        if self._on_arrived:
            with self._arrival_lock:
                self._on_arrived(wheel, place)

    def _complete(self, wheel: WantedWheel, partial: Partial, count: Callable[[int], None]) -> None:
        """Fetch what is missing of a partial file; once more from the beginning if it turns out wrong."""
        wrong: list[str] = []
        while len(wrong) < 2:
            try:
                if partial.length != wheel.size or wheel.size == 0:
                    self._downloader.download(wheel.url, partial, file=wheel.file, on_progress=count)
                if partial.sha256() == wheel.sha256:
                    return
                wrong.append(f"sha256 {partial.sha256()}")
            except UnlikeError as error:
                wrong.append(error.got)
            partial.restart()
        raise EnvspecError(
            f"`{wheel.file}` has not the bytes that are wanted [hash-mismatch]",
            detail=f"wanted: sha256 {wheel.sha256}\ngot:    {wrong[-1]}",
            hint="someone replaced the file on the index, or a proxy changes it: find out who and why before you run `envspec lock`",
            exit_code=FOUND_WRONG,
        )

    def _shared_client(self) -> httpx.Client:
        with self._client_lock:
            if self._client is None:
                self._client = self._client_factory()
                self._closing.callback(self._client.close)
            return self._client

    def _pause(self, seconds: float) -> None:
        if self._own_pause is not None:
            self._own_pause(seconds)
        if self._stop.wait(0 if self._own_pause else seconds):
            raise _Stopped

    def _wait_for_lock(self) -> None:
        if self._stop.wait(LOCK_POLL_S):
            raise _Stopped


def _check(wanted: Iterable[WantedWheel]) -> None:
    """Refuse names that are no names: they become paths."""
    problems = [
        Problem(f"`{wheel.file[:100]!a}` with sha256 `{wheel.sha256[:100]!a}`")
        for wheel in wanted
        if not is_plain_file_name(wheel.file) or not re.fullmatch(r"[0-9a-f]{64}", wheel.sha256)
    ]
    if problems:
        raise EnvspecError("what is to be fetched has no valid file name or sha256", problems=tuple(problems))


def _check_room(missing: Iterable[WantedWheel], partials: Path, free: int) -> None:
    needed = 0
    for wheel in missing:
        try:
            there = (partials / wheel.sha256).stat().st_size
        except FileNotFoundError:
            there = 0
        needed += max(0, (wheel.size or 0) - there)
    if needed > free:
        raise EnvspecError(
            f"the wheels need {needed:,} more bytes in the store, its disk has {free:,} free",
            input_name=str(partials.parent),
            hint="make room, for instance with `envspec gc`, or take another store with `--store`",
        )


def _free_bytes(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _place_of(wheels_dir: Path, wheel: WantedWheel) -> Path:
    return wheels_dir / wheel.sha256 / wheel.file


def _is_there(path: Path, size: int | None) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return size is None or status.st_size == size


@contextlib.contextmanager
def _store_errors(file: str) -> Iterator[None]:
    """What the file system refuses, as an error that names the wheel."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise EnvspecError(
            f"`{file}` cannot be written into the store: {reason}", hint="look at the store's owner and mode"
        ) from error


@contextlib.contextmanager
def _locked(path: Path, *, wait: Callable[[], None]) -> Iterator[int]:
    """Open a partial file and lock it; wait as long as another holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            while not _try_lock(descriptor):
                wait()
            if _is_open_at(descriptor, path):
                yield descriptor
                return
        finally:  # closing unlocks
            os.close(descriptor)
        # The holder renamed the file into place meanwhile: what is locked now is no partial file any more.


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_open_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _put_in_place(descriptor: int, partial: Path, place: Path) -> None:
    os.fchmod(descriptor, 0o444)
    os.fsync(descriptor)
    make_folder(place.parent)
    partial.rename(place)
    for folder in (place.parent, place.parent.parent):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def make_client(connections: int) -> httpx.Client:
    """A client that follows no redirects by itself.

    Args:
        connections: At a time.
    """
    import httpx  # noqa: PLC0415 - a tenth of a second, only where something is fetched

    return httpx.Client(
        timeout=httpx.Timeout(30.0, pool=None),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": "envspec"},
    )
