"""Places on the network from which a host fetches wheels for itself: caches and indexes, none of which is trusted or waited for for long.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import threading
import time
import urllib.error
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import http.client
    from collections.abc import Callable, Iterator

TIMEOUT_S = 10.0
"""How long nothing may come."""

WINDOW_S = 20.0
WINDOW_BYTES = 1 << 20
"""That have to come within a window: 50 kB/s."""

MOST_FAILURES = 2
MOST_LIES = 3
BLOCK_BYTES = 1 << 18
FINAL = frozenset({401, 403, 407})


class TooSlow(ValueError):  # noqa: N818 - it says what is the matter
    """Fewer bytes came than are waited for."""


class Places:
    """Which servers are still worth asking; for any number of threads."""

    def __init__(self) -> None:
        """All are."""
        self._guard = threading.Lock()
        self._failures: dict[str, int] = {}
        self._lies: dict[str, int] = {}

    def may_ask(self, url: str) -> bool:
        """Whether the server of a URL has not failed too often."""
        place = _server(url)
        return self._failures.get(place, 0) < MOST_FAILURES and self._lies.get(place, 0) < MOST_LIES

    def failed(self, url: str, error: BaseException) -> None:
        """Count a failure; that it does not have a file is none."""
        with self._guard:
            place = _server(url)
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code not in FINAL and error.code < 500:
                    return
                if error.code in FINAL:
                    self._failures[place] = MOST_FAILURES
                    return
            self._failures[place] = self._failures.get(place, 0) + 1

    def lied(self, url: str) -> None:
        """Count a file that was not the one that was asked for."""
        with self._guard:
            place = _server(url)
            self._lies[place] = self._lies.get(place, 0) + 1


def _server(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def open_url(url: str, offset: int, size: int) -> http.client.HTTPResponse:
    """A file from a byte on.

    Args:
        url: Where; not to be shown.
        offset: Of the first byte.
        size: How many bytes there are from it on.

    Raises:
        OSError: It cannot be reached.
        ValueError: The server does not go on at that byte, or has another file there.
    """
    import urllib.request  # noqa: PLC0415 - only where a host fetches for itself

    if not url.startswith(("http://", "https://")):
        raise ValueError("not a URL of an index")
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was looked at
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
    if response.status != (206 if offset else 200):
        response.close()
        raise ValueError(f"the server answers {response.status}")
    if response.length not in (None, size):
        response.close()
        raise ValueError(f"the server has {response.length} bytes there, not {size}")
    return response


def steadily(
    response: http.client.HTTPResponse, size: int, clock_s: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    """So many bytes of an answer, as long as they keep coming.

    Raises:
        ValueError: There are fewer, or they come too slowly.
    """
    since_s, seen = clock_s(), 0
    while size > 0:
        chunk = response.read1(min(size, BLOCK_BYTES))
        if not chunk:
            raise ValueError("the answer is cut off")
        size -= len(chunk)
        seen += len(chunk)
        yield chunk
        now_s = clock_s()
        if now_s - since_s >= WINDOW_S:
            if seen < WINDOW_BYTES and size > 0:
                raise TooSlow(f"{seen} bytes in {now_s - since_s:.0f} s")
            since_s, seen = now_s, 0
