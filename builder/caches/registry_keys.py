"""What opens a registry: nothing, a user and password, or a token that its token server gives for them."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from builder.caches.docker_login import find_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

    from builder.caches.docker_login import Login

TIMEOUT_S = 15.0


class RegistryKeys:
    """The keys of one registry; a login is looked for only where the registry asks for one."""

    def __init__(self, registry: str, environ: Mapping[str, str], *, plain: bool) -> None:
        """Prepare.

        Args:
            registry: Host and port.
            environ: Where logins are looked for.
            plain: Whether the registry is spoken to without TLS; then its token server may be too.
        """
        self._registry = registry
        self._environ = environ
        self._plain = plain
        self._header: str | None = None
        self._guard = threading.Lock()
        self._login: Login | None = None
        self._looked = False

    @property
    def known(self) -> bool:
        """Whether the user has a login there."""
        return self._find() is not None

    def header(self, _url: str) -> str | None:
        """The Authorization that did last time; whoever asks sends it to the registry only."""
        return self._header

    def answer(self, response: httpx.Response, send: Callable[[httpx.Request], httpx.Response]) -> bool:
        """Take the registry's challenge: get a token, or give user and password."""
        challenge = response.headers.get("WWW-Authenticate", "")
        scheme, _, rest = challenge.partition(" ")
        refused = response.request.headers.get("Authorization")
        with self._guard:
            if self._header is not None and self._header != refused:
                return True  # another thread got it meanwhile
            if scheme.lower() == "basic":
                login = self._find()
                self._header = login.basic() if login is not None and login.user else None
                return self._header is not None and self._header != refused
            if scheme.lower() == "bearer":
                token = self._token(dict(re.findall(r'([a-z]+)="([^"]*)"', rest)), send)
                self._header = f"Bearer {token}" if token else None
                return bool(token)
        return False

    def _find(self) -> Login | None:
        if not self._looked:
            self._login, self._looked = find_login(self._registry, self._environ), True
        return self._login

    def _token(self, said: dict[str, str], send: Callable[[httpx.Request], httpx.Response]) -> str:
        import httpx  # noqa: PLC0415 - only where a registry is asked

        realm = said.get("realm", "")
        if not realm.startswith(("https://", "http://") if self._plain else "https://"):
            return ""  # a login goes over TLS, or where the user has said that there is none
        asked = {key: said[key] for key in ("service", "scope") if said.get(key)}
        limits = {"timeout": httpx.Timeout(TIMEOUT_S).as_dict()}
        login = self._find()
        if login is not None and login.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": "envspec",
                **asked,
            }
            request = httpx.Request("POST", realm, data=form, extensions=limits)
        else:
            headers = {"Authorization": login.basic()} if login is not None else {}
            request = httpx.Request("GET", realm, params=asked, headers=headers, extensions=limits)
        answer = send(request)
        if answer.status_code != 200:
            return ""
        try:
            fields = answer.json()
            token = str(fields.get("token") or fields.get("access_token") or "")
        except (ValueError, AttributeError, RecursionError):
            return ""
        return token if re.fullmatch(r"[!-~]+", token) else ""
