"""A package index on 127.0.0.1 for tests: a real HTTP server over a folder of wheels, honest or faulty.

    make_wheel(folder, "demo", "1.0")
    with LocalIndex(folder) as index:
        environ = {"UV_DEFAULT_INDEX": index.url}
        ...
    assert index.requests == []

It lists what lies in the folder when a request comes, so a test adds, swaps or removes a file at any time. The attributes may be changed
at any time too; the ones that say how it serves are the constructor's arguments:

- `layout`: `"beside"` links files relatively, below the project's page; `"hashed"` has another root and links files
  absolutely, by digest. Two indexes with the same folder are thus two mirrors of one index.
- `form`: `"json"` (PEP 691, with sizes and upload times) or `"html"` (PEP 503, with neither).
- `credentials`: basic auth for everything, 401 without it. `url` never has them, `url_with_credentials` does.
- `upload_time` and `upload_times`: of every file, and of single ones; None leaves the key out.
- `yanked`: file name -> reason. `requires_python`: file name -> specifier.
- `metadata`: serve PEP 658 metadata of wheels. `ranges`: honour Range requests. `sizes` and `hashes`: tell them.
- `headers`: further headers of every answer, such as `Cache-Control`.

`faults` maps the last part of a path (a file name, or a project's name for its page) to what goes wrong there; a fault with `times` is
used up. `requests` is the log of all requests, with their outcome.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import re
import socket
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

ROOTS = {"beside": "/simple/", "hashed": "/mirror/+simple/"}
FILES_BY_DIGEST = "/mirror/+f/"
ENDLESS_LIMIT = 64 << 20  # an endless body ends here all the same, so that a bug of ours cannot fill a disk
JSON_TYPE = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True)
class Request:
    """One request that the index got, and how it was answered."""

    method: str
    path: str
    status: int
    range: str = ""
    """The Range header; empty if there was none."""

    authorization: str = ""
    """The user that the Authorization header names; empty if there was none."""


@dataclass
class Fault:
    """Something that goes wrong.

    - `cut`: the connection ends after `after` bytes of the body.
    - `corrupt`: the first byte of the body is another one.
    - `status`: this `status` with `headers` and no body.
    - `endless`: a body of zeros without Content-Length that does not end.
    - `redirect`: to the URL `target`.
    - `wrong-range`: a partial answer that begins at another byte than was asked for, and says so.
    - `encoded`: a body that claims to be compressed.
    """

    kind: Literal["cut", "corrupt", "status", "endless", "redirect", "wrong-range", "encoded"]
    times: int | None = None
    """How often; None for always."""

    after: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


class LocalIndex:
    """An index over a folder; use it as a context manager. See the module's docstring."""

    def __init__(
        self,
        folder: Path,
        *,
        layout: Literal["beside", "hashed"] = "beside",
        form: Literal["json", "html"] = "json",
        credentials: tuple[str, str] | None = None,
        upload_time: str | None = "2020-01-01T00:00:00Z",
        metadata: bool = True,
        ranges: bool = True,
        sizes: bool = True,
        hashes: bool = True,
    ) -> None:
        self.folder = folder
        self.layout = layout
        self.form = form
        self.credentials = credentials
        self.upload_time = upload_time
        self.upload_times: dict[str, str | None] = {}
        self.yanked: dict[str, str] = {}
        self.requires_python: dict[str, str] = {}
        self.metadata = metadata
        self.ranges = ranges
        self.sizes = sizes
        self.hashes = hashes
        self.headers: dict[str, str] = {}
        self.faults: dict[str, Fault] = {}
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start to serve on a free port."""
        self._server = _Server(("127.0.0.1", 0), _Handler, self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, and close every connection."""
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._thread.join()
        self._server.close_connections()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.server_address[1])

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The index's URL without credentials."""
        return self.origin + ROOTS[self.layout]

    @property
    def url_with_credentials(self) -> str:
        """The index's URL as a person writes it into UV_DEFAULT_INDEX."""
        assert self.credentials is not None
        user, password = (quote(part, safe="") for part in self.credentials)
        return f"http://{user}:{password}@127.0.0.1:{self.port}{ROOTS[self.layout]}"

    def file_url(self, file: str) -> str:
        """Where the index says that a file is, without credentials."""
        return self.origin + self._file_path(file)

    def files(self) -> list[str]:
        """Names of the wheels and source archives in the folder."""
        return sorted(path.name for path in self.folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))

    def paths_requested(self, ending: str = ".whl") -> list[str]:
        """The paths of all requests so far that end so."""
        return [request.path for request in self.requests if request.path.endswith(ending)]

    def log(self, request: Request) -> None:
        """Add a request to the log."""
        with self._lock:
            self.requests.append(request)

    def take_fault(self, key: str) -> Fault | None:
        """The fault that strikes now, one time less for the next request."""
        with self._lock:
            fault = self.faults.get(key)
            if fault is not None and fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    del self.faults[key]
            return fault

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Content type and body of a path; None if there is nothing."""
        root = ROOTS[self.layout]
        if path == root:
            return self._page("", sorted({_project(file) for file in self.files()}))
        if path.startswith(root) and path.endswith("/") and path.count("/") == root.count("/") + 1:
            project = path.removeprefix(root).rstrip("/")
            files = [file for file in self.files() if _project(file) == project]
            return self._page(project, files) if files else None
        file = unquote(path.rpartition("/")[2])
        wheel = file.removesuffix(".metadata")
        if wheel not in self.files() or path.removesuffix(".metadata") != self._file_path(wheel):
            return None
        if file == wheel:
            return "application/octet-stream", (self.folder / wheel).read_bytes()
        return ("text/plain", self._metadata_of(wheel)) if self.metadata else None

    def _file_path(self, file: str) -> str:
        if self.layout == "beside":
            return f"{ROOTS['beside']}{_project(file)}/{quote(file)}"
        digest = _sha256((self.folder / file).read_bytes())
        return f"{FILES_BY_DIGEST}{digest[:3]}/{digest[3:]}/{quote(file)}"

    def _page(self, project: str, entries: list[str]) -> tuple[str, bytes]:
        if not project:
            links = [f'<a href="{name}/">{name}</a>' for name in entries]
            return "text/html", "\n".join(["<!DOCTYPE html>", *links]).encode()
        if self.form == "json":
            page: dict[str, Any] = {
                "meta": {"api-version": "1.1"},
                "name": project,
                "files": [self._json_entry(file) for file in entries],
            }
            return JSON_TYPE, json.dumps(page).encode()
        return "text/html", "\n".join(["<!DOCTYPE html>", *(self._html_entry(file) for file in entries)]).encode()

    def _link(self, file: str) -> str:
        return quote(file) if self.layout == "beside" else self.file_url(file)

    def _json_entry(self, file: str) -> dict[str, Any]:
        content = (self.folder / file).read_bytes()
        hashes = {"sha256": _sha256(content)} if self.hashes else {}
        entry: dict[str, Any] = {"filename": file, "url": self._link(file), "hashes": hashes}
        if self.sizes:
            entry["size"] = len(content)
        upload_time = self.upload_times.get(file, self.upload_time)
        if upload_time is not None:
            entry["upload-time"] = upload_time
        if file in self.yanked:
            entry["yanked"] = self.yanked[file] or True
        if file in self.requires_python:
            entry["requires-python"] = self.requires_python[file]
        if self.metadata and file.endswith(".whl"):
            entry["core-metadata"] = {"sha256": _sha256(self._metadata_of(file))}
        return entry

    def _html_entry(self, file: str) -> str:
        content = (self.folder / file).read_bytes()
        fragment = f"#sha256={_sha256(content)}" if self.hashes else ""
        attributes = [f'href="{self._link(file)}{fragment}"']
        if file in self.yanked:
            attributes.append(f'data-yanked="{html.escape(self.yanked[file])}"')
        if file in self.requires_python:
            attributes.append(f'data-requires-python="{html.escape(self.requires_python[file])}"')
        if self.metadata and file.endswith(".whl"):
            attributes.append(f'data-core-metadata="sha256={_sha256(self._metadata_of(file))}"')
        return f"<a {' '.join(attributes)}>{file}</a>"

    def _metadata_of(self, wheel: str) -> bytes:
        with zipfile.ZipFile(self.folder / wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return archive.read(member)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[_Handler], index: LocalIndex) -> None:
        super().__init__(address, handler)
        self.index = index
        self._open: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        index = self.server.index
        path = urlsplit(self.path).path
        if index.credentials is not None and self._login() != index.credentials:
            self._send(401, {"WWW-Authenticate": 'Basic realm="index"'})
            return
        fault = index.take_fault(unquote(path.rstrip("/").rpartition("/")[2])) if with_body else None
        if fault is not None and fault.kind == "status":
            self._send(fault.status, fault.headers)
            return
        if fault is not None and fault.kind == "redirect":
            self._send(302, {"Location": fault.target})
            return
        found = index.answer(path)
        if found is None:
            self._send(404)
            return
        content_type, body = found
        if fault is not None and fault.kind == "endless":
            self._send_endless(content_type)
            return
        if fault is not None and fault.kind == "corrupt":
            body = bytes([body[0] ^ 0xFF]) + body[1:]
        headers = {"Content-Type": content_type}
        if fault is not None and fault.kind == "encoded":
            headers["Content-Encoding"] = "gzip"
        status, body = self._ranged(body, headers, shift=1 if fault is not None and fault.kind == "wrong-range" else 0)
        cut = fault.after if fault is not None and fault.kind == "cut" else None
        self._send(status, headers, body if with_body else b"", length=len(body), cut=cut)

    def _login(self) -> tuple[str, str] | None:
        scheme, _, text = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        user, _, password = base64.b64decode(text).decode().partition(":")
        return user, password

    def _ranged(self, body: bytes, headers: dict[str, str], *, shift: int) -> tuple[int, bytes]:
        if not self.server.index.ranges:
            return 200, body
        headers["Accept-Ranges"] = "bytes"
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, body
        first = int(wanted[1]) + shift
        last = min(int(wanted[2] or len(body) - 1), len(body) - 1)
        if first > last:
            headers["Content-Range"] = f"bytes */{len(body)}"
            return 416, b""
        headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
        return 206, body[first : last + 1]

    def _send(
        self,
        status: int,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        length: int | None = None,
        cut: int | None = None,
    ) -> None:
        self._log(status)
        self.send_response(status)
        for name, value in {**self.server.index.headers, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def _send_endless(self, content_type: str) -> None:
        self._log(200)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        block = bytes(1 << 16)
        for _ in range(ENDLESS_LIMIT // len(block)):
            self.wfile.write(block)

    def _log(self, status: int) -> None:
        login = self._login()
        self.server.index.log(
            Request(
                method=self.command,
                path=urlsplit(self.path).path,
                status=status,
                range=self.headers.get("Range", ""),
                authorization=login[0] if login else "",
            )
        )


def _project(file: str) -> str:
    stem = file.partition("-")[0] if file.endswith(".whl") else file.removesuffix(".tar.gz").rpartition("-")[0]
    return re.sub(r"[-_.]+", "-", stem).lower()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
