"""Credentials for the files of indexes: uv strips them from the URLs that it reports, so we find them again where uv finds them.

The sources, the strongest first:

1. `UV_INDEX_<NAME>_USERNAME` and `UV_INDEX_<NAME>_PASSWORD`, for an index of that name;
2. the URLs in `UV_DEFAULT_INDEX`, `UV_INDEX_URL`, `UV_INDEX`, `UV_EXTRA_INDEX_URL`, and in uv.toml (`builder.uv.read_index_settings`);
3. netrc (`NETRC`, or `~/.netrc`), for hosts of indexes that are known from 1 and 2 or from the spec.

A credential is for one origin, scheme and host and port, and is given to no other. Nothing here shows one.
"""

from __future__ import annotations

import base64
import netrc
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from builder.uv import read_index_settings, split_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from urllib.parse import SplitResult

    from envspec.spec import IndexSpec

DEFAULT_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int]
"""Scheme, host, port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A user and a password for one index."""

    origin: Origin
    path: str
    """Of the index, so that of two on one host the nearer one is taken."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    def header(self) -> str:
        """The value of an Authorization header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """All that are known, the strongest first."""

    known: tuple[Credential, ...] = ()

    def for_url(self, url: str) -> Credential | None:
        """The one to send with a request for this URL; None if there is none for its origin.

        Of several for one origin it is the one whose index shares most of the path; among equals the strongest.
        """
        parts = split_url(url)
        if parts is None:
            return None
        origin = _origin(parts)
        same = [credential for credential in self.known if credential.origin == origin]
        return max(same, key=lambda credential: _shared_steps(credential.path, parts.path), default=None)

    def secrets(self) -> frozenset[str]:
        """The passwords, to be kept out of what is shown."""
        return frozenset(credential.password for credential in self.known)


NO_CREDENTIALS = Credentials()


def read_credentials(environ: Mapping[str, str], indexes: Sequence[IndexSpec] = ()) -> Credentials:
    """The credentials for the configured indexes and for the spec's.

    Args:
        environ: Says, with uv.toml, which indexes there are; gives `UV_INDEX_<NAME>_USERNAME`, `UV_INDEX_<NAME>_PASSWORD`, `NETRC`, `HOME`.
        indexes: The spec's indexes.

    Raises:
        EnvspecError: The user's configuration of uv cannot be read.
    """
    settings = read_index_settings(environ)
    configured = [(index.name, index.url) for index in settings.every_index()]
    links = [("", link) for link in settings.find_links if "://" in link]
    of_spec = [(index.name, index.url) for index in indexes]
    every = [(name, parts) for name, url in (*configured, *of_spec, *links) if (parts := split_url(url)) is not None]

    known: list[Credential] = []
    for name, parts in every:
        user = environ.get(credential_variable(name, "USERNAME"), "") if name else ""
        password = environ.get(credential_variable(name, "PASSWORD"), "") if name else ""
        if user or password:
            known.append(_credential(parts, user, password))
    for _, parts in every:
        if parts.username or parts.password:
            known.append(_credential(parts, unquote(parts.username or ""), unquote(parts.password or "")))
    entries = _read_netrc(environ)
    if entries is not None:
        for _, parts in every:
            # authenticators() falls back to the `default` entry, which names no host: that one is for nobody here.
            login = entries.hosts.get(parts.hostname or "")
            if login is not None:
                known.append(_credential(parts, login[0], login[2] or ""))
    return Credentials(known=tuple(dict.fromkeys(known)))


def read_netrc_for(url: str, environ: Mapping[str, str]) -> Credentials:
    """The credential that netrc has for the host of a URL, if any.

    Args:
        url: Of a server that a person has named.
        environ: Gives `NETRC`, `HOME`.
    """
    parts, entries = split_url(url), _read_netrc(environ)
    login = entries.hosts.get(parts.hostname or "") if parts is not None and entries is not None else None
    if parts is None or login is None:
        return NO_CREDENTIALS
    return Credentials(known=(_credential(parts, login[0], login[2] or ""),))


def credential_variable(index_name: str, kind: str) -> str:
    """The environment variable that holds the user or the password of an index, as uv forms it.

    Args:
        index_name: As in the spec: `pytorch-cu130`.
        kind: `USERNAME` or `PASSWORD`.

    Example:
        >>> credential_variable("pytorch-cu130", "USERNAME")
        'UV_INDEX_PYTORCH_CU130_USERNAME'
    """
    return f"UV_INDEX_{re.sub(r'[^A-Za-z0-9]', '_', index_name).upper()}_{kind}"


def origin_of(url: str) -> Origin | None:
    """Scheme, host and port of a URL, with the scheme's own port where the URL has none; None if it is no URL."""
    parts = split_url(url)
    return None if parts is None else _origin(parts)


def _origin(parts: SplitResult) -> Origin:
    scheme = parts.scheme.lower()
    return scheme, parts.hostname or "", DEFAULT_PORTS.get(scheme, 0) if parts.port is None else parts.port


def _credential(parts: SplitResult, user: str, password: str) -> Credential:
    return Credential(origin=_origin(parts), path=parts.path, user=user, password=password)


def _shared_steps(first: str, second: str) -> int:
    count = 0
    for one, other in zip(first.strip("/").split("/"), second.strip("/").split("/"), strict=False):
        if one != other:
            break
        count += 1
    return count


def _read_netrc(environ: Mapping[str, str]) -> netrc.netrc | None:
    """The netrc file; None if there is none that can be read, which uv passes over as well."""
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    path = Path(environ.get("NETRC") or home / ".netrc")
    try:
        return netrc.netrc(path)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
