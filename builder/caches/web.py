"""Requests to a cache over HTTP: credentials to their own origin only, few redirects, time limits, and errors without URLs."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urljoin

from builder.caches.protocol import CONNECTIONS, MOST_TALK_BYTES, Body, CacheError
from builder.credentials import origin_of
from builder.download import MOST_REDIRECTS, UNTRUSTED_HINT, is_untrusted, why_lost
from builder.uv import without_userinfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import httpx

CONNECT_TIMEOUT_S = 5.0
SILENCE_S = 15.0
"""How long nothing may come."""

UPLOAD_SILENCE_S = 300.0
"""How long a server may take to look at what it was given."""

CREDENTIALS_HINT = "see `docs/caches.md` for where credentials go; those of a session may have expired"
BUSY = frozenset({408, 425, 429})
TOKEN_LIMIT_BYTES = 1 << 20
AGAIN_AFTER_S = (0.2, 1.0)


class Keys(Protocol):
    """What opens a server."""

    def header(self, url: str) -> str | None:
        """The Authorization for a request; None if there is none."""

    def answer(self, response: httpx.Response, send: Callable[[httpx.Request], httpx.Response]) -> bool:
        """Look at a refusal; whether the request is worth another try, with another header."""


class Web:
    """A client of one server, for any number of threads."""

    def __init__(self, cache: str, url: str, keys: Keys) -> None:
        """Prepare; nothing is connected yet.

        Args:
            cache: Its name, for errors.
            url: Of the server: keys go there, and nowhere else.
            keys: What opens it.
        """
        self._cache = cache
        self._home = origin_of(url)
        self._keys = keys
        self._client: httpx.Client | None = None
        self._guard = threading.Lock()

    def close(self) -> None:
        """Close its connections."""
        with self._guard:
            if self._client is not None:
                self._client.close()
                self._client = None

    def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | Callable[[], Iterator[bytes]] = b"",
        limit_bytes: int = MOST_TALK_BYTES,
    ) -> httpx.Response:
        """The whole answer to a request, of any status but those that refuse it or mean that the server is out of order.

        A server that is out of order is asked again, unless with a body that is a function.

        Args:
            method: `GET`.
            url: Where.
            headers: Of the request. With `content` as a function, `Content-Length` has to be among them.
            content: The body, or what gives its blocks from the beginning.
            limit_bytes: Of the answer's body.

        Raises:
            CacheError: There is none, or it is a refusal.
        """
        for pause_s in (*AGAIN_AFTER_S, None):
            try:
                with self.answer(method, url, headers=headers, content=content) as response:
                    return self._read(response, limit_bytes)
            except CacheError as error:
                if pause_s is None or error.kind != "lost" or callable(content):
                    raise
                threading.Event().wait(pause_s)
        raise AssertionError("the last try returns or raises")

    @contextlib.contextmanager
    def answer(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | Callable[[], Iterator[bytes]] = b"",
    ) -> Iterator[httpx.Response]:
        """An answer whose body has not been read (as `ask`)."""
        import httpx  # noqa: PLC0415 - a tenth of a second, only where a cache is asked

        try:
            response = self._respond(method, url, dict(headers or {}), content)
            try:
                self._judge(response)
                yield response
            finally:
                response.close()
        except (httpx.TransportError, httpx.InvalidURL, httpx.DecodingError) as error:
            raise self._lost(error) from error

    @contextlib.contextmanager
    def body(self, url: str, offset: int, file: str) -> Iterator[Body]:
        """A file from a byte on.

        Raises:
            CacheError: It cannot be had.
        """
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={offset}-"} if offset else {})}
        with self.answer("GET", url, headers=headers) as response:
            if response.status_code in {404, 410}:
                raise self.error(f"it does not have `{file}`", "absent")
            if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
                raise self.error("it compresses what it was told not to", "unlike")
            start, total = 0, response.headers.get("Content-Length", "")
            if response.status_code == 206:
                stated = re.fullmatch(
                    r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", response.headers.get("Content-Range", "")
                )
                if stated is None or int(stated[1]) != offset:
                    raise self.error("it gives another part of the file than was asked for", "unlike")
                start, total = offset, stated[2]
            elif response.status_code != 200:
                raise self.error(f"it answers with status {response.status_code}", "unlike")
            known = int(total) if re.fullmatch(r"\d{1,18}", total) else None
            yield Body(start=start, blocks=response.iter_raw(), total=known)

    def join(self, response: httpx.Response, reference: str) -> str:
        """A URL that an answer names, from where it came.

        Raises:
            CacheError: It is none.
        """
        try:
            return urljoin(str(response.url), reference)
        except ValueError:
            raise self.error("it names a place that is no URL", "unlike") from None

    def error(self, reason: str, kind: str, hint: str = "") -> CacheError:
        """An error of this cache."""
        return CacheError(self._cache, reason, kind=kind, hint=hint)  # type: ignore[arg-type]

    def _respond(
        self, method: str, url: str, headers: dict[str, str], content: bytes | Callable[[], Iterator[bytes]]
    ) -> httpx.Response:
        """The answer after all redirects; the credential goes to the cache's own origin, until a redirect leads elsewhere.

        A registry may want an upload at another one: that one gets it without a credential.
        """
        client = self._open()
        at_home, tried_again = origin_of(url) == self._home, False
        for _ in range(MOST_REDIRECTS + 1):
            mine = dict(headers)
            if at_home and (credential := self._keys.header(url)) is not None:
                mine["Authorization"] = credential
            body = content() if callable(content) else content
            timeout = {"timeout": self._upload_timeout()} if callable(content) or method in {"PUT", "DELETE"} else {}
            request = client.build_request(method, without_userinfo(url), headers=mine, content=body or None, **timeout)  # type: ignore[arg-type]
            response = client.send(request, stream=True, follow_redirects=False)
            if response.status_code == 401 and at_home and not tried_again:
                tried_again = True
                try:
                    retry = self._keys.answer(response, self._send_small)
                except BaseException:
                    response.close()
                    raise
                if retry:
                    response.close()
                    continue
            location = response.headers.get("Location", "")
            if response.status_code not in {301, 302, 303, 307, 308} or not location:
                return response
            response.close()
            try:
                url = urljoin(url, location)
            except ValueError:
                break
            at_home = at_home and origin_of(url) == self._home
            if (origin_of(url) or ("", "", 0))[0] not in {"http", "https"}:
                break
        raise self.error("it redirects in circles, or to something other than HTTP", "lost")

    def _send_small(self, request: httpx.Request) -> httpx.Response:
        response = self._open().send(request, stream=True, follow_redirects=False)
        try:
            return self._read(response, TOKEN_LIMIT_BYTES)
        finally:
            response.close()

    def _read(self, response: httpx.Response, limit_bytes: int) -> httpx.Response:
        """The same answer with its body, which has a limit."""
        body = bytearray()
        for block in response.iter_bytes():
            body += block
            if len(body) > limit_bytes:
                raise self.error("it answers with more than was asked for", "unlike")
        response._content = bytes(body)  # noqa: SLF001 - as httpx does itself, without a limit
        return response

    def _open(self) -> httpx.Client:
        import httpx  # noqa: PLC0415 - as above

        with self._guard:
            if self._client is None:
                self._client = httpx.Client(
                    timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S, pool=None),
                    limits=httpx.Limits(max_connections=CONNECTIONS * 2, max_keepalive_connections=CONNECTIONS * 2),
                    headers={"User-Agent": "envspec"},
                )
            return self._client

    @staticmethod
    def _upload_timeout() -> httpx.Timeout:
        import httpx  # noqa: PLC0415 - as above

        return httpx.Timeout(UPLOAD_SILENCE_S, connect=CONNECT_TIMEOUT_S, pool=None)

    def _judge(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in {401, 403, 407}:
            raise self.error(
                f"it refuses the credentials, or needs some (status {status})", "refused", CREDENTIALS_HINT
            )
        if status in BUSY or (status >= 500 and status != 501):
            raise self.error(f"it answers with status {status}", "lost")

    def _lost(self, error: Exception) -> CacheError:
        import httpx  # noqa: PLC0415 - as above

        if is_untrusted(error):
            return self.error("the certificate of the server is not trusted", "refused", UNTRUSTED_HINT)
        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
            return self.error("its URL is not valid", "unusable")
        kind = "slow" if isinstance(error, httpx.TimeoutException) else "lost"
        return self.error(why_lost(error), kind, "look at the network, and at the server")


def read_blocks(path: str, offset: int, advance: Callable[[int], None], block_bytes: int = 1 << 18) -> Iterator[bytes]:
    """The blocks of a file from a byte on, told of as they go."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as text
        file.seek(offset)
        while block := file.read(block_bytes):
            yield block
            advance(len(block))
