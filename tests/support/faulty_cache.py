"""A cache in this process that lies, is slow, breaks off, answers nonsense or goes away: an HTTP folder whose every answer a test decides.

with FaultyCache({wheel.sha256: content}) as cache:
    cache.fault = "cut"
    ...
assert cache.requests == ["GET /<sha256>/x.whl"]
"""

from __future__ import annotations

import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

Fault = Literal[
    "",  # honest
    "absent",  # 404 for everything
    "busy",  # 503
    "refuses",  # 403
    "html",  # a page with status 200, as captive portals give
    "html-of-the-size",  # a page that is as long as the wheel
    "corrupt",  # the first byte is another one
    "corrupt-end",  # the last byte is another one
    "short",  # says that the wheel is shorter, and gives that
    "long",  # more than there is, without a length
    "cut",  # half of what is asked for, then the connection ends
    "goes-away",  # half of the first wheel, and nobody listens any more
    "trickle",  # a few bytes, and then one by one for as long as somebody reads
    "no-ranges",  # the whole, whatever is asked for
    "other-range",  # a part that begins elsewhere
    "compressed",  # claims to be compressed
    "redirects-in-circles",
    "redirects-to-a-file",
    "endless-header",
]

_STATUSES: dict[str, int] = {"absent": 404, "busy": 503, "refuses": 403}


class FaultyCache:
    """See the module's docstring."""

    def __init__(self, wheels: dict[str, bytes]) -> None:
        """Prepare.

        Args:
            wheels: sha256 -> content.
        """
        self.wheels = wheels
        self.fault: Fault = ""
        self.requests: list[str] = []
        self.ranges: list[str] = []
        self.authorizations: list[str] = []
        self.stopping = threading.Event()
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.cache = self
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.go_away()

    @property
    def url(self) -> str:
        """Of the folder."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}/wheels"

    def go_away(self) -> None:
        """Close the port and every connection."""
        self.stopping.set()
        assert self._server is not None
        threading.Thread(target=self._server.shutdown, daemon=True).start()
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    cache: FaultyCache

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""

    def do_HEAD(self) -> None:
        content = self._content()
        found = 200 if content is not None else 404
        self.send_response(_STATUSES.get(self.server.cache.fault, found))
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()

    def do_GET(self) -> None:
        cache = self.server.cache
        cache.requests.append(f"GET {self.path}")
        cache.ranges.append(self.headers.get("Range", ""))
        cache.authorizations.append(self.headers.get("Authorization", ""))
        content, fault = self._content(), cache.fault
        if content is None or fault in _STATUSES:
            self._send(_STATUSES.get(fault, 404))
        elif fault in {"redirects-in-circles", "redirects-to-a-file"}:
            target = self.path if fault == "redirects-in-circles" else "file:///etc/passwd"
            self._send(302, {"Location": target})
        elif fault == "html":
            self._send(200, {"Content-Type": "text/html"}, b"<html>log in first</html>")
        elif fault == "html-of-the-size":
            self._send(200, {"Content-Type": "text/html"}, b"<html>".ljust(len(content)))
        elif fault == "compressed":
            self._send(200, {"Content-Encoding": "gzip"}, content)
        elif fault == "short":
            self._send(200, {}, content[: len(content) // 3])
        elif fault == "endless-header":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 10_000_000)
            self._hang_up()
        else:
            self._send_bytes(content, fault)

    def _content(self) -> bytes | None:
        found = re.fullmatch(r"/wheels/([0-9a-f]{64})/[^/]+", self.path)
        return self.server.cache.wheels.get(found[1]) if found else None

    def _send_bytes(self, content: bytes, fault: Fault) -> None:
        if fault == "corrupt":
            content = bytes([content[0] ^ 1]) + content[1:]
        if fault == "corrupt-end":
            content = content[:-1] + bytes([content[-1] ^ 1])
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        offset = int(asked[1]) if asked and fault != "no-ranges" else 0
        if fault == "other-range" and asked:
            offset += 1
        body = content[offset:]
        if fault == "long":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content + b"more" * 1000)
            self._hang_up()
            return
        self.send_response(206 if offset else 200)
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault in {"cut", "goes-away"}:
            self.wfile.write(body[: (len(body) + 1) // 2])
            self.wfile.flush()
            if fault == "goes-away":
                self.server.cache.go_away()
            self._hang_up()
        elif fault == "trickle":
            for byte in body:
                if self.server.cache.stopping.is_set():
                    break
                self.wfile.write(bytes([byte]))
            self._hang_up()
        else:
            self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
