"""Registries that answer as none should: no key goes to anybody else, nothing breaks, and what is not known is not removed."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from builder.caches import folder, registry, web
from builder.caches.checking import find_cache_garbage
from builder.caches.folder import HttpFolder
from builder.caches.protocol import CachedWheel, CacheError
from builder.caches.registry import ARTIFACT_TYPE, CREATED, NAME, TITLE, WHEEL_TYPE, Registry
from envspec.spec import CacheSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PASSWORD = "s3cr3t-of-jane"
CONTENT = b"the bytes of a wheel"
WHEEL = CachedWheel(file="w-1-py3-none-any.whl", sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT))
TAG = f"demo-{'a' * 32}-{'0' * 16}"
BASIC = {"WWW-Authenticate": 'Basic realm="x"'}

Answer = tuple[int, dict[str, str], bytes]


class Server:
    """Answers whatever a test wants, and remembers what came."""

    def __init__(self) -> None:
        self.answer: Callable[[BaseHTTPRequestHandler], Answer] = lambda _request: (404, {}, b"")
        self.authorizations: list[str] = []
        mine = self

        class Handler(BaseHTTPRequestHandler):
            def answer_it(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                mine.authorizations.append(self.headers.get("Authorization", ""))
                status, headers, body = mine.answer(self)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        for verb in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{verb}", Handler.answer_it)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.authority = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    monkeypatch.setattr(web, "AGAIN_AFTER_S", ())
    pair = Server(), Server()
    yield pair
    for each in pair:
        each.close()


def opened(server: Server, folder: Path, *, login: Any = None) -> Registry:
    (folder / "config.json").write_text(json.dumps({"auths": {server.authority: login or {}}}))
    environ = {"HOME": str(folder), "DOCKER_CONFIG": str(folder)}
    return Registry(CacheSpec(name="lab", url=f"oci://{server.authority}/x"), environ, pause=lambda _seconds: None)


def basic(user: str = "jane") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()}


def uploads_go_to(location: str) -> Callable[[BaseHTTPRequestHandler], Answer]:
    def answer(request: BaseHTTPRequestHandler) -> Answer:
        if not request.headers.get("Authorization"):
            return 401, BASIC, b""
        return (202, {"Location": location}, b"") if request.command == "POST" else (404, {}, b"")

    return answer


def has_lock(
    manifest: Any, tags: bytes = json.dumps({"tags": [TAG]}).encode(), **headers: str
) -> Callable[..., Answer]:
    def answer(request: BaseHTTPRequestHandler) -> Answer:
        if "/tags/list" in request.path:
            return 200, headers, tags
        return (200, {}, json.dumps(manifest).encode()) if "/manifests/" in request.path else (404, {}, b"")

    return answer


def lock(*layers: Any, **annotations: Any) -> dict[str, Any]:
    return {"artifactType": ARTIFACT_TYPE, "layers": list(layers), "annotations": {NAME: "demo", **annotations}}


def layer(**changes: Any) -> dict[str, Any]:
    row = {"mediaType": WHEEL_TYPE, "digest": f"sha256:{'b' * 64}", "size": 5, "annotations": {TITLE: WHEEL.file}}
    return {**row, **changes}


def test_a_password_goes_to_its_registry_and_not_where_that_sends_an_upload(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    home, other = servers
    home.answer = uploads_go_to(f"http://{other.authority}/upload")
    other.answer = lambda _request: (401, {"WWW-Authenticate": 'Basic realm="mine"'}, b"")
    (tmp_path / "wheel").write_bytes(CONTENT)
    cache = opened(home, tmp_path, login=basic())
    with pytest.raises(CacheError, match="refuses the credentials") as error:
        cache.store(WHEEL, tmp_path / "wheel", lambda _units: None)
    cache.close()
    assert error.value.kind == "refused"
    assert any(home.authorizations)
    assert other.authorizations
    assert not any(other.authorizations)


@pytest.mark.parametrize(
    "location", ["http://[", "//[::1", "ftp://x/", "file:///etc/passwd", "http://h:99999999/", "/a\x0bb"]
)
def test_an_upload_to_no_place_is_an_error_of_that_cache(
    servers: tuple[Server, Server], tmp_path: Path, location: str
) -> None:
    home, _ = servers
    home.answer = uploads_go_to(location)
    (tmp_path / "wheel").write_bytes(CONTENT)
    cache = opened(home, tmp_path, login=basic())
    with pytest.raises(CacheError, match="cache `lab`"):
        cache.store(WHEEL, tmp_path / "wheel", lambda _units: None)
    cache.close()


@pytest.mark.parametrize(
    "token", [b"[" * 100_000, b"[]", b'{"token": 5, "x": {}}', b'{"token": "a\\nb"}', b"x" * (2 << 20)]
)
def test_a_token_server_that_gives_none_is_a_refusal(
    servers: tuple[Server, Server], tmp_path: Path, token: bytes
) -> None:
    home, _ = servers
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{home.authority}/token",service="s",scope="x"'}
    home.answer = lambda request: (200, {}, token) if request.path.startswith("/token") else (401, challenge, b"")
    cache = opened(home, tmp_path)
    with pytest.raises(CacheError) as error:
        cache.has([WHEEL])
    cache.close()
    assert error.value.kind in {"refused", "unlike"}


def test_a_login_that_is_not_unicode_is_refused_by_the_registry_and_breaks_nothing(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    home, _ = servers
    home.answer = lambda _request: (401, BASIC, b"")
    cache = opened(home, tmp_path, login={"username": "\ud800", "password": PASSWORD})
    with pytest.raises(CacheError, match="refuses the credentials"):
        cache.has([WHEEL])
    cache.close()


@pytest.mark.parametrize(
    ("tags", "headers"),
    [
        (b'{"tags":' + b"[" * 200_000, {}),
        (b'{"tags": 5}', {}),
        (b"[]", {}),
        (b'{"tags": []}', {"Link": '<http://[>; rel="next"'}),
        (b'{"tags": []}', {"Link": '<ftp://x/>; rel="next"'}),
    ],
)
def test_tags_that_cannot_be_read_are_an_error_of_that_cache(
    servers: tuple[Server, Server], tmp_path: Path, tags: bytes, headers: Mapping[str, str]
) -> None:
    home, _ = servers
    home.answer = has_lock(lock(), tags, **headers)
    cache = opened(home, tmp_path)
    with pytest.raises(CacheError, match="cache `lab`"):
        find_cache_garbage(cache, frozenset(), "demo", None)
    cache.close()


@pytest.mark.parametrize("title", ["a\x1b[31m.whl", "\ud800.whl", "../x.whl", "", 5, None])
def test_names_of_a_registry_are_file_names_or_none(servers: tuple[Server, Server], tmp_path: Path, title: Any) -> None:
    home, _ = servers
    home.answer = has_lock(lock(layer(annotations={TITLE: title}, size=-5), 5, None, {"digest": []}, layer(size="x")))
    cache = opened(home, tmp_path)
    garbage = find_cache_garbage(cache, frozenset(), "demo", 0)
    cache.close()
    ((file, freed),) = [(wheel.file, wheel.size) for wheel in garbage.wheels]
    assert (file, freed >= 0) == ("", True)


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "x", 5, None])
def test_a_lock_of_any_date_is_one(servers: tuple[Server, Server], tmp_path: Path, created: Any) -> None:
    home, _ = servers
    home.answer = has_lock(lock(layer(), **{CREATED: created}))
    cache = opened(home, tmp_path)
    assert [each.id for each in cache.locks()] == [TAG]
    cache.close()


def test_where_there_are_more_locks_than_are_read_nothing_may_be_removed(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = servers
    names = [f"{number:064x}" for number in range(3)]
    monkeypatch.setattr(registry, "MOST_LOCKS", 2)
    monkeypatch.setattr(folder, "MOST_LOCKS", 2)
    home.answer = has_lock(lock(), json.dumps({"tags": [f"demo-{'a' * 32}-{each[-16:]}" for each in names]}).encode())
    cache = opened(home, tmp_path)
    with pytest.raises(CacheError, match=r"more than .* locks"):
        cache.locks()
    cache.close()
    page = "".join(f'<a href="{each}.lock">' for each in names).encode()
    home.answer = lambda _request: (200, {}, page)
    plain = HttpFolder(CacheSpec(name="lab", url=f"http://{home.authority}/x"), {"HOME": str(tmp_path)})
    with pytest.raises(CacheError, match=r"more than .* locks"):
        plain.locks()
    plain.close()


def test_an_endless_list_of_tags_has_an_end(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = servers
    monkeypatch.setattr(registry, "MOST_TAGS", 10)
    home.answer = has_lock(lock(), b'{"tags": ["x"]}', Link='</v2/x/tags/list?last=x>; rel="next"')
    cache = opened(home, tmp_path)
    with pytest.raises(CacheError, match="more than 10 tags"):
        cache.locks()
    cache.close()
