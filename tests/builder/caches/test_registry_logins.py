"""Logins of registries: where they are found, and that a token server gets them only as it may."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import httpx
import pytest

from builder.caches.docker_login import find_login
from builder.caches.registry_keys import RegistryKeys

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = "registry.example:5000"


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{home}:/usr/bin:/bin", **more}


def write(path: Path, config: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))


def found(home: Path, **more: str) -> tuple[str, str, str] | None:
    login = find_login(REGISTRY, environ(home, **more))
    return None if login is None else (login.user, login.password, login.identity_token)


@pytest.mark.parametrize("key", [REGISTRY, f"https://{REGISTRY}", f"https://{REGISTRY}/v1/"])
def test_a_login_of_docker_is_found(tmp_path: Path, key: str) -> None:
    write(tmp_path / ".docker" / "config.json", {"auths": {key: {"auth": basic("jane", "a:b")}}})
    assert found(tmp_path) == ("jane", "a:b", "")


def test_the_first_file_that_has_one_counts(tmp_path: Path) -> None:
    write(tmp_path / "d" / "config.json", {"auths": {REGISTRY: {"auth": basic("docker", "x")}}})
    more = {"DOCKER_CONFIG": str(tmp_path / "d"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert found(tmp_path, **more) == ("docker", "x", "")
    write(tmp_path / "run" / "containers" / "auth.json", {"auths": {REGISTRY: {"auth": basic("podman", "y")}}})
    assert found(tmp_path, **more) == ("podman", "y", "")
    write(tmp_path / "auth.json", {"auths": {REGISTRY: {"identitytoken": "z"}}})
    assert found(tmp_path, REGISTRY_AUTH_FILE=str(tmp_path / "auth.json"), **more) == ("", "", "z")


@pytest.mark.parametrize("config", [{"credHelpers": {REGISTRY: "vault"}}, {"credsStore": "vault"}])
@pytest.mark.parametrize(("name", "expected"), [("jane", ("jane", "s", "")), ("<token>", ("", "", "s"))])
def test_a_helper_is_asked_over_its_stdin(
    tmp_path: Path, config: dict[str, Any], name: str, expected: tuple[str, str, str]
) -> None:
    write(tmp_path / ".docker" / "config.json", config)
    helper = tmp_path / "docker-credential-vault"
    answer = json.dumps({"Username": name, "Secret": "s"})
    helper.write_text(
        f'#!/bin/sh\n[ "$*" = get ] && read -r asked; echo "$asked" >> {tmp_path}/asked; echo \'{answer}\'\n'
    )
    helper.chmod(0o755)
    assert found(tmp_path) == expected
    assert (tmp_path / "asked").read_text() == f"{REGISTRY}\n"


@pytest.mark.parametrize(
    "config",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        {"auths": []},
        {"auths": {REGISTRY: 3}},
        {"auths": {REGISTRY: {"auth": "!!"}}},
        {"credHelpers": {REGISTRY: "../../bin/sh"}},
        {"credHelpers": {REGISTRY: "is-not-installed"}},
        {"credsStore": "-x"},
    ],
)
def test_what_is_no_login_is_none(tmp_path: Path, config: Any) -> None:
    write(tmp_path / ".docker" / "config.json", config)
    assert found(tmp_path) is None


def refusal(challenge: str, url: str = f"https://{REGISTRY}/v2/x/blobs/y") -> httpx.Response:
    return httpx.Response(401, headers={"WWW-Authenticate": challenge}, request=httpx.Request("GET", url))


class TokenServer:
    def __init__(self, status: int = 200, body: Any = None) -> None:
        self.status, self.body = status, {"token": "t0k3n"} if body is None else body
        self.requests: list[httpx.Request] = []

    def send(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(self.status, json=self.body, request=request)


BEARER = 'Bearer realm="https://auth.example/token",service="registry",scope="repository:x:pull,push"'


def test_a_token_is_fetched_for_the_asked_scope_without_a_login(tmp_path: Path) -> None:
    keys, server = RegistryKeys(REGISTRY, environ(tmp_path), plain=False), TokenServer()
    assert keys.header("") is None
    assert keys.answer(refusal(BEARER), server.send)
    assert keys.header("") == "Bearer t0k3n"
    (request,) = server.requests
    assert dict(request.url.params) == {"service": "registry", "scope": "repository:x:pull,push"}
    assert "Authorization" not in request.headers


def test_a_login_is_given_to_the_token_server(tmp_path: Path) -> None:
    write(tmp_path / ".docker" / "config.json", {"auths": {REGISTRY: {"auth": basic("jane", "pw")}}})
    keys, server = RegistryKeys(REGISTRY, environ(tmp_path), plain=False), TokenServer(body={"access_token": "a"})
    assert keys.answer(refusal(BEARER), server.send)
    assert keys.header("") == "Bearer a"
    assert server.requests[0].headers["Authorization"] == f"Basic {basic('jane', 'pw')}"


def test_an_identity_token_is_exchanged(tmp_path: Path) -> None:
    write(tmp_path / ".docker" / "config.json", {"auths": {REGISTRY: {"identitytoken": "id"}}})
    keys, server = RegistryKeys(REGISTRY, environ(tmp_path), plain=False), TokenServer()
    assert keys.answer(refusal(BEARER), server.send)
    (request,) = server.requests
    assert request.method == "POST"
    assert parse_qs(request.content.decode())["refresh_token"] == ["id"]


@pytest.mark.parametrize(
    ("challenge", "server"),
    [
        (BEARER, TokenServer(status=401)),
        (BEARER, TokenServer(body={"token": "a\nb"})),
        (BEARER, TokenServer(body=[])),
        (BEARER.replace("https://auth", "http://auth"), TokenServer()),
        ('Bearer realm="file:///etc/passwd"', TokenServer()),
        ("Basic", TokenServer()),
        ("Negotiate", TokenServer()),
        ("", TokenServer()),
    ],
)
def test_a_challenge_that_cannot_be_met_is_a_refusal(tmp_path: Path, challenge: str, server: TokenServer) -> None:
    keys = RegistryKeys(REGISTRY, environ(tmp_path), plain=False)
    assert not keys.answer(refusal(challenge), server.send)
    assert keys.header("") is None


def test_a_password_that_was_refused_is_not_sent_again(tmp_path: Path) -> None:
    write(tmp_path / ".docker" / "config.json", {"auths": {REGISTRY: {"auth": basic("jane", "old")}}})
    keys = RegistryKeys(REGISTRY, environ(tmp_path), plain=False)
    assert keys.answer(refusal('Basic realm="x"'), TokenServer().send)
    header = keys.header("")
    assert header == f"Basic {basic('jane', 'old')}"
    again = refusal('Basic realm="x"')
    again.request.headers["Authorization"] = header
    assert not keys.answer(again, TokenServer().send)
    assert "old" not in repr(keys.__dict__["_login"])
