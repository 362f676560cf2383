"""A cache that is a folder over HTTP: `<url>/<sha256>/<file>`, which is how a store keeps its wheels, so that a server on that folder is one.

Wheels are put there with PUT, locks under `locks/<sha256>.lock`, and listed by what the server shows of a folder (nginx's autoindex, in JSON or
HTML, or any page of links).
"""

from __future__ import annotations

import contextlib
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from builder.caches.kept_locks import lock_wheels
from builder.caches.protocol import (
    CONNECTIONS,
    LOCK_LIMIT_BYTES,
    MOST_LOCKS,
    CachedLock,
    CachedWheel,
    CacheError,
    too_many_locks,
)
from builder.caches.together import together
from builder.caches.web import Web, read_blocks
from builder.credentials import read_netrc_for
from builder.uv_output import is_plain_file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import httpx

    from builder.caches.protocol import Body, LockFile
    from envspec.spec import CacheSpec

LOCKS = "locks"
_PUSH_HINT = (
    "allow PUT and DELETE there (`docs/caches.md` has an nginx that does), or copy `wheels/` of a store into its folder"
)
_LIST_HINT = "let it show folders (nginx: `autoindex on`), or remove what is not needed in its folder by hand"


class NetrcKeys:
    """The credential that netrc has for a server."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self._credentials = read_netrc_for(url, environ)

    @property
    def known(self) -> bool:
        """Whether there is one."""
        return bool(self._credentials.known)

    def header(self, url: str) -> str | None:
        """Basic, for its own origin."""
        credential = self._credentials.for_url(url)
        return None if credential is None else credential.header()

    def answer(self, _response: httpx.Response, _send: object) -> bool:
        """Nothing more can be said than the first time."""
        return False


class HttpFolder:
    """See the module's docstring; methods are those of `builder.caches.protocol.Cache`."""

    kind = "HTTP folder"
    locks_first = True

    def __init__(self, spec: CacheSpec, environ: Mapping[str, str]) -> None:
        self.name = spec.name
        self._url = spec.url.rstrip("/")
        self._keys = NetrcKeys(spec.url, environ)
        self._web = Web(spec.name, self._url, self._keys)
        self._to_hosts = spec.to_hosts

    def has(self, wheels: Sequence[CachedWheel]) -> frozenset[str]:
        """Those for which the server states the right size."""
        there = together(self._has, wheels, most=CONNECTIONS)
        return frozenset(wheel.sha256 for wheel, is_there in zip(wheels, there, strict=True) if is_there)

    def fetch(self, wheel: CachedWheel, offset: int) -> AbstractContextManager[Body]:
        """As `Cache`."""
        return self._web.body(self._place(wheel), offset, wheel.file)

    def store(self, wheel: CachedWheel, path: Path, advance: Callable[[int], None]) -> None:
        """Put it; what the server then states for it is its size, or it did not take it."""
        headers = {"Content-Length": str(wheel.size), "Content-Type": "application/zip"}
        self._put(self._place(wheel), headers, lambda: read_blocks(str(path), 0, advance))
        if not self._has(wheel):
            raise self._web.error(f"it took `{wheel.file}`, and does not have it whole", "lost", "push again")

    def store_lock(self, lock: LockFile) -> None:
        """As `Cache`."""
        import hashlib  # noqa: PLC0415 - beside its only use

        place = f"{self._url}/{LOCKS}/{hashlib.sha256(lock.content).hexdigest()}.lock"
        if self._web.ask("HEAD", place).status_code != 200:
            self._put(place, {"Content-Type": "application/toml"}, lock.content)

    def locks(self) -> tuple[CachedLock, ...]:
        """As `Cache`."""
        response = self._web.ask("GET", f"{self._url}/{LOCKS}/")
        if response.status_code == 404:
            return ()
        names = sorted(set(re.findall(r"""["'](?:\./)?([0-9a-f]{64}\.lock)["']""", self._listing(response))))
        if len(names) > MOST_LOCKS:
            raise too_many_locks(self.name)
        return tuple(self._read_lock(name) for name in names)

    def all_wheels(self) -> tuple[CachedWheel, ...]:
        """The folders that are named by a digest; what is in them is looked at only before it is deleted."""
        response = self._web.ask("GET", f"{self._url}/")
        found = re.findall(r"""["'](?:\./)?([0-9a-f]{64})/?["']""", self._listing(response))
        return tuple(CachedWheel(sha256=sha256, file="", size=0) for sha256 in sorted(set(found)))

    def delete(self, wheels: Sequence[CachedWheel], locks: Sequence[CachedLock]) -> None:
        """As `Cache`."""
        for lock in locks:
            self._delete(f"{self._url}/{LOCKS}/{lock.id}")
        for wheel in wheels:
            self._delete(f"{self._url}/{wheel.sha256}/")

    def details(self, wheels: Sequence[CachedWheel]) -> tuple[CachedWheel, ...]:
        """The same wheels with their names and sizes, as far as the server shows them."""
        return tuple(together(self._detail, wheels, most=CONNECTIONS))

    def public_urls(self, wheels: Sequence[CachedWheel]) -> dict[str, str]:
        """As `Cache`: none where it needs a credential."""
        if self._keys.known or not self._to_hosts:
            return {}
        return {wheel.sha256: self._place(wheel) for wheel in wheels}

    def close(self) -> None:
        """As `Cache`."""
        self._web.close()

    def _place(self, wheel: CachedWheel) -> str:
        return f"{self._url}/{wheel.sha256}/{quote(wheel.file)}"

    def _has(self, wheel: CachedWheel) -> bool:
        response = self._web.ask("HEAD", self._place(wheel), headers={"Accept-Encoding": "identity"})
        return response.status_code == 200 and response.headers.get("Content-Length", "") == str(wheel.size)

    def _put(self, place: str, headers: Mapping[str, str], content: bytes | Callable[[], object]) -> None:
        response = self._web.ask("PUT", place, headers=headers, content=content)  # type: ignore[arg-type]
        if response.status_code not in {200, 201, 204}:
            raise self._web.error(f"it takes no uploads (status {response.status_code})", "unusable", _PUSH_HINT)

    def _delete(self, place: str) -> None:
        response = self._web.ask("DELETE", place, headers={"Depth": "infinity"})
        if response.status_code not in {200, 202, 204, 404, 410}:
            raise self._web.error(f"it deletes nothing (status {response.status_code})", "unusable", _PUSH_HINT)

    def _listing(self, response: httpx.Response) -> str:
        if response.status_code != 200:
            raise self._web.error(
                f"it does not show what is in it (status {response.status_code})", "unusable", _LIST_HINT
            )
        return response.content.decode("utf-8", "replace")

    def _read_lock(self, name: str) -> CachedLock:
        response = self._web.ask("GET", f"{self._url}/{LOCKS}/{name}", limit_bytes=LOCK_LIMIT_BYTES)
        stored = 0.0
        with contextlib.suppress(ValueError, TypeError):  # it does not say
            stored = parsedate_to_datetime(response.headers.get("Last-Modified", "")).timestamp()
        return lock_wheels(self.name, name, response.content, stored)

    def _detail(self, wheel: CachedWheel) -> CachedWheel:
        try:
            page = self._web.ask("GET", f"{self._url}/{wheel.sha256}/").content.decode("utf-8", "replace")
        except CacheError:
            return wheel
        for name in map(unquote, re.findall(r"""["'](?:\./)?([^"'/?]+\.whl)["']""", page)):
            if is_plain_file_name(name):
                named = CachedWheel(sha256=wheel.sha256, file=name, size=0)
                stated = self._web.ask("HEAD", self._place(named)).headers.get("Content-Length", "")
                return CachedWheel(sha256=wheel.sha256, file=name, size=int(stated) if stated.isdecimal() else 0)
        return wheel
