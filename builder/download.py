"""One file over HTTP or from a folder, into a partial file that any later attempt goes on with.

The digest decides what is right, so neither ETags nor dates are asked for: a partial file is hashed again from its first byte and what is
missing is fetched behind it. The other side may be hostile: a body that is longer than it may be is cut off at once, a redirect leads only
to HTTP, and a credential is sent to its own origin only and never after a redirect elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import ssl
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

from builder.credentials import origin_of
from builder.uv import without_userinfo
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from builder.credentials import Credentials

BLOCK = 1 << 20
MOST_TRIES = 7  # without a new byte; with the pauses between them half a minute
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0  # that a server may ask for
MOST_REDIRECTS = 5
MOST_BYTES = 8 << 30  # of a file whose size nobody stated; the biggest wheels have 3 GB


class UnlikeError(Exception):
    """What arrived cannot be the file that is wanted.

    Attributes:
        got: What it is instead, for a person.
    """

    def __init__(self, got: str) -> None:
        super().__init__(got)
        self.got = got


class _LostError(Exception):
    """The connection broke or the server is busy; another try may do.

    Attributes:
        reason: For a person.
        pause_s: How long the server asks to wait; None if it does not.
    """

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_s = pause_s


class _CannotResumeError(Exception):
    """The server does not give the rest of the file; the whole of it may do."""


class Partial:
    """An open file that grows, and the digest of what it holds."""

    def __init__(self, descriptor: int, *, needed_bytes: int | None) -> None:
        """Take what is there already.

        Args:
            descriptor: Of a file open for reading and writing, locked by the caller.
            needed_bytes: What it is to become; None if nobody knows. More than that is thrown away.
        """
        self.descriptor = descriptor
        self.length = 0
        self.needed_bytes = needed_bytes
        self._digest = hashlib.sha256()
        if needed_bytes is not None and os.fstat(descriptor).st_size > needed_bytes:
            self.restart()
        while block := os.pread(descriptor, BLOCK, self.length):
            self._digest.update(block)
            self.length += len(block)

    def restart(self) -> None:
        """Throw all of it away."""
        os.ftruncate(self.descriptor, 0)
        self.length = 0
        self._digest = hashlib.sha256()

    def append(self, block: bytes) -> None:
        """Add a block.

        Raises:
            EnvspecError: The disk is full.
            OSError: It cannot be written for another reason.
        """
        view = memoryview(block)
        while view:
            try:
                count = os.pwrite(self.descriptor, view, self.length)
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                    raise
                raise self._disk_full() from error
            self._digest.update(view[:count])
            self.length += count
            view = view[count:]

    def sha256(self) -> str:
        """Of what it holds."""
        return self._digest.hexdigest()

    def _disk_full(self) -> EnvspecError:
        disk = os.fstatvfs(self.descriptor)
        needed = (
            "more bytes are" if self.needed_bytes is None else f"{self.needed_bytes - self.length:,} more bytes are"
        )
        return EnvspecError(
            f"the disk of the store is full: {needed} needed for one wheel, {disk.f_bavail * disk.f_frsize:,} are free",
            hint="make room, for instance with `envspec gc`, and run the command again: it goes on where it stopped",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """The answer to a request for the bytes of a file from some offset on."""

    start: int
    """Offset of its first byte: the one that was asked for, or 0."""

    total: int | None
    """Size of the whole file, as the server says; None if it does not."""

    blocks: Iterator[bytes]
    partial: bool = False
    """Whether the server gives what was asked for, and not the whole."""


class Downloader:
    """Downloads files with one client; may be used from several threads at once."""

    def __init__(
        self, client: Callable[[], httpx.Client], credentials: Credentials, *, pause: Callable[[float], None]
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            client: Gives the client, which does not follow redirects; called for the first HTTP request and not before.
            credentials: To be sent where they belong.
            pause: Waits so many seconds; may raise to give up.
        """
        self._client = client
        self._credentials = credentials
        self._pause = pause

    def download(self, url: str, partial: Partial, *, file: str, on_progress: Callable[[int], None]) -> None:
        """Complete a partial file.

        Args:
            url: Where the file is.
            partial: What is there of it.
            file: Its name, for errors.
            on_progress: Told the length after each block; may raise to give up.

        Raises:
            EnvspecError: The server cannot be reached, refuses, or does not have the file; or the disk is full.
            UnlikeError: The server gives another file.
        """
        tries = 0
        furthest = partial.length
        while True:
            try:
                with self._open(url, partial.length, file) as body:
                    if body.start != partial.length:
                        partial.restart()
                    for length in _receive(body, partial):
                        on_progress(length)
            except _CannotResumeError:
                partial.restart()  # and the next request is for the whole
            except _LostError as lost:
                tries = 0 if partial.length > furthest else tries + 1
                furthest = max(furthest, partial.length)
                if tries >= MOST_TRIES:
                    raise EnvspecError(
                        f"`{file}` cannot be fetched: {lost.reason}; gave up after {MOST_TRIES} tries without a new byte",
                        hint="look at the network, and run the command again: it goes on where it stopped",
                    ) from lost
                pause_s = FIRST_PAUSE_S * 2 ** max(tries - 1, 0) if lost.pause_s is None else lost.pause_s
                self._pause(min(pause_s, LONGEST_PAUSE_S))
            else:
                return

    def read_range(self, url: str, first: int, last: int, *, file: str) -> tuple[bytes, int] | None:
        """Some bytes of a file, without the rest of it.

        Args:
            url: Where the file is.
            first: Offset of the first byte.
            last: Offset of the last byte; more than the file has is no error.
            file: Its name, for errors.

        Returns:
            The bytes, and the size of the whole file; None if the server gives no ranges.

        Raises:
            EnvspecError: As `download`.
        """
        tries = 0
        while True:
            try:
                return self._range(url, first, last, file)
            except _CannotResumeError:
                return None
            except _LostError as lost:
                tries += 1
                if tries >= MOST_TRIES:
                    raise EnvspecError(
                        f"`{file}` cannot be read: {lost.reason}; gave up after {MOST_TRIES} tries",
                        hint="look at the network, and run the command again",
                    ) from lost
                pause_s = FIRST_PAUSE_S * 2 ** (tries - 1) if lost.pause_s is None else lost.pause_s
                self._pause(min(pause_s, LONGEST_PAUSE_S))

    def _range(self, url: str, first: int, last: int, file: str) -> tuple[bytes, int] | None:
        with self._open(url, first, file, last=last) as body:
            if body.total is None or body.start != first or not body.partial:
                return None
            wanted = min(last + 1, body.total) - first
            content = bytearray()
            for block in body.blocks:
                content += block
                if len(content) >= wanted:
                    break
            if len(content) < wanted:
                raise _LostError("the connection ended early")
            return bytes(content[:wanted]), body.total

    @contextmanager
    def _open(self, url: str, offset: int, file: str, *, last: int | None = None) -> Iterator[_Body]:
        if urlsplit(url).scheme.lower() == "file":
            with _open_file(url, offset, file) as body:
                yield body
            return
        import httpx  # noqa: PLC0415 - a tenth of a second, only where something is fetched

        try:
            with self._respond(url, offset, file, last) as response:
                yield _body_of(response, offset, file, is_part=last is not None)
        except httpx.UnsupportedProtocol as error:
            raise EnvspecError(f"`{file}` is neither on an HTTP server nor in a folder") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise _translated(error, file) from error

    @contextmanager
    def _respond(self, url: str, offset: int, file: str, last: int | None) -> Iterator[httpx.Response]:
        """The answer after all redirects."""
        client = self._client()
        first_origin = origin_of(url)
        at_home = True  # a credential is sent until a redirect has led elsewhere, and not after, even back at home
        for _ in range(MOST_REDIRECTS + 1):
            headers = {"Accept-Encoding": "identity"}
            if offset or last is not None:
                headers["Range"] = f"bytes={offset}-{'' if last is None else last}"
            credential = self._credentials.for_url(url) if at_home else None
            if credential is not None:
                headers["Authorization"] = credential.header()
            request = client.build_request("GET", without_userinfo(url), headers=headers)
            response = client.send(request, stream=True, follow_redirects=False)
            try:
                location = response.headers.get("Location", "")
                if response.status_code not in {301, 302, 303, 307, 308} or not location:
                    yield response
                    return
            finally:
                response.close()
            try:
                url = urljoin(url, location)
            except ValueError:  # no URL at all
                break
            at_home = at_home and origin_of(url) == first_origin
            if (origin_of(url) or ("", "", 0))[0] not in {"http", "https"}:
                break
        raise EnvspecError(
            f"`{file}` cannot be fetched: the server redirects in circles, or to something other than HTTP"
        )


def _receive(body: _Body, partial: Partial) -> Iterator[int]:
    """Append a body; the length after each block.

    Raises:
        UnlikeError: The file is longer or shorter than it may be.
        _LostError: It ended early.
    """
    wanted = partial.needed_bytes
    if wanted is not None and body.total is not None and body.total != wanted:
        raise UnlikeError(f"{body.total:,} bytes instead of {wanted:,}")
    expected = body.total if wanted is None else wanted
    limit = MOST_BYTES if expected is None else expected
    if wanted is None and limit > MOST_BYTES:
        raise UnlikeError(f"{limit:,} bytes, more than is taken without a size in the index")
    for block in body.blocks:
        if partial.length + len(block) > limit:
            raise UnlikeError(f"more than {limit:,} bytes")
        partial.append(block)
        yield partial.length
    if expected is not None and partial.length < expected:
        raise _LostError("the connection ended early")


def _body_of(response: httpx.Response, offset: int, file: str, *, is_part: bool = False) -> _Body:
    status = response.status_code
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise EnvspecError(
            f"`{file}` cannot be fetched: the server compresses it although it was told not to",
            hint="look at the proxy or mirror between here and the index",
        )
    length = response.headers.get("Content-Length", "")
    if status == 200:
        return _Body(
            start=0, total=int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None, blocks=response.iter_raw()
        )
    if status == 206:
        stated = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", response.headers.get("Content-Range", ""))
        if not offset and not is_part:
            raise _LostError("the server gives a part although it was asked for the whole")
        if stated is None or int(stated[1]) != offset:
            raise _CannotResumeError
        total = None if stated[2] == "*" else int(stated[2])
        return _Body(start=offset, total=total, blocks=response.iter_raw(), partial=True)
    if status == 416 and (offset or is_part):
        raise _CannotResumeError
    if status in {401, 403, 407}:
        raise EnvspecError(
            f"`{file}` cannot be fetched: the server refuses the credentials, or needs some (status {status})",
            hint="see `docs/indexes.md` for where credentials go",
        )
    if status in {404, 410}:
        raise EnvspecError(
            f"`{file}` cannot be fetched: the index names it, but the server does not have it (status {status})",
            hint="use another mirror, or wait until this one has it",
            exit_code=FOUND_WRONG,
        )
    if status in {408, 425, 429} or status >= 500:
        raise _LostError(f"the server answers with status {status}", _asked_pause(response))
    raise EnvspecError(f"`{file}` cannot be fetched: the server answers with status {status}")


def _asked_pause(response: httpx.Response) -> float | None:
    """The seconds of Retry-After; its date is counted from the server's own, so that no clock of ours plays a part."""
    text = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(response.headers["Date"])).total_seconds())
    except (KeyError, ValueError, TypeError):  # there is none, or it is no date, or only one has a time zone
        return None


@contextmanager
def _open_file(url: str, offset: int, file: str) -> Iterator[_Body]:
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its writer.
        descriptor = os.open(url2pathname(urlsplit(url).path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "its path is not valid"
        raise EnvspecError(f"`{file}` of a local index cannot be read: {reason}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise EnvspecError(f"`{file}` of a local index is not a regular file")
        yield _Body(start=offset, total=status.st_size, blocks=_blocks_of(descriptor, offset), partial=True)
    finally:
        os.close(descriptor)


def _blocks_of(descriptor: int, offset: int) -> Iterator[bytes]:
    while block := os.pread(descriptor, BLOCK, offset):
        yield block
        offset += len(block)


def _translated(error: Exception, file: str) -> Exception:
    """A failure of the connection in words without the server's name."""
    import httpx  # noqa: PLC0415 - as above

    if is_untrusted(error):
        return EnvspecError(
            f"`{file}` cannot be fetched: the certificate of the server is not trusted", hint=UNTRUSTED_HINT
        )
    if isinstance(error, httpx.InvalidURL):
        return EnvspecError(f"`{file}` cannot be fetched: its URL is not valid")
    return _LostError(why_lost(error))


UNTRUSTED_HINT = "if your network has a certificate authority of its own, set `SSL_CERT_FILE` to its certificates"


def is_untrusted(error: Exception) -> bool:
    """Whether a connection failed because the certificate of the server is not trusted."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error))


def why_lost(error: Exception) -> str:
    """Why a connection failed, in words without the server's name."""
    import httpx  # noqa: PLC0415 - as above

    if isinstance(error, httpx.TimeoutException):
        return "the server does not answer in time"
    code = next(
        (cause.errno for cause in _causes(error) if isinstance(cause, OSError) and cause.errno and cause.errno > 0),
        None,
    )
    if code is not None:
        return os.strerror(code)
    if isinstance(error, httpx.ConnectError):
        return "the server cannot be found or reached"
    if isinstance(error, httpx.RemoteProtocolError):
        return "the connection ended early"
    return f"the connection broke ({type(error).__name__})"


def _causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    return causes
