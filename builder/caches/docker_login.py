"""Credentials for registries where other tools keep them: docker's config.json, its helpers, and the auth.json of podman and skopeo.

The first that has one for the registry counts: `REGISTRY_AUTH_FILE`, `$XDG_RUNTIME_DIR/containers/auth.json`, `$DOCKER_CONFIG/config.json`,
`~/.docker/config.json`. A helper is asked over its stdin, and no secret is in an argv.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HELPER_TIMEOUT_S = 30.0
CONFIG_LIMIT_BYTES = 4 << 20
TOKEN_USER = "<token>"  # noqa: S105 - what a helper says in place of a name
DOCKER_HUB = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user of a registry."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)
    """Takes the place of user and password where there is one."""

    def basic(self) -> str:
        """The value of an Authorization header."""
        both = f"{self.user}:{self.password}".encode("utf-8", "surrogatepass")  # of a file that somebody damaged
        return "Basic " + base64.b64encode(both).decode("ascii")


def find_login(registry: str, environ: Mapping[str, str]) -> Login | None:
    """The user's login at a registry.

    Args:
        registry: Host and port: `registry.example.org:5000`.
        environ: Says where configuration lies, and PATH for helpers.
    """
    for path in _places(environ):
        config = _read(path)
        for key in _keys(registry):
            found = _login_of(config, key, environ)
            if found is not None:
                return found
    return None


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"], "containers", "auth.json")
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _keys(registry: str) -> Iterator[str]:
    """What a registry is called there."""
    yield registry
    yield f"https://{registry}"
    yield f"https://{registry}/v1/"
    if registry in {"docker.io", "index.docker.io", "registry-1.docker.io"}:
        yield DOCKER_HUB


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(CONFIG_LIMIT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _login_of(config: Mapping[str, Any], key: str, environ: Mapping[str, str]) -> Login | None:
    helper = _table(config, "credHelpers").get(key)
    if isinstance(helper, str):
        return _ask(helper, key, environ)
    entry = _table(config, "auths").get(key)
    if isinstance(entry, dict):
        token = str(entry.get("identitytoken") or "")
        user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
        if entry.get("auth"):
            with contextlib.suppress(ValueError):
                user, _, password = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
        if user or token:
            return Login(user=user, password=password.rstrip("\0"), identity_token=token)
    store = config.get("credsStore")
    return _ask(store, key, environ) if isinstance(store, str) and store else None


def _ask(helper: str, key: str, environ: Mapping[str, str]) -> Login | None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", helper):  # it becomes the name of a program
        return None
    done = process.run([f"docker-credential-{helper}", "get"], env=environ, input_text=key, timeout_s=HELPER_TIMEOUT_S)
    if done.returncode != 0:
        return None
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if user == TOKEN_USER:
        return Login(user="", password="", identity_token=secret)
    return Login(user=user, password=secret) if user else None
