"""Caches of wheels: what a spec or a person's configuration says of them. `docs/caches.md` is the reference of every key.

Nothing here reads a file. Messages never repeat a URL, since it may hold a credential.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.forms import NAME, Form
from envspec.spec import CacheSpec
from envspec.toml_reading import read_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.toml_reading import Table

CONFIGURATION_KIND = "configuration"

_URL = Form(r"(?s).+", "a URL such as `https://cache.example.org/wheels`")
_HOST = Form(r"[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a host of the spec")
_REGION = Form(r"[a-z0-9][a-z0-9-]{0,62}", "a region such as `eu-central-1`")
_CONFLICT_HINT = "resolve the conflict by hand"

_AUTHORITY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{0,4})?"
_PATH = r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=@%-]+)*"
_BUCKET = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,220}[A-Za-z0-9])?"
_REPOSITORY = r"(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)+"
_FORMS = {
    "http": rf"http://{_AUTHORITY}{_PATH}/?",
    "https": rf"https://{_AUTHORITY}{_PATH}/?",
    "oci": rf"oci://{_AUTHORITY}{_REPOSITORY}",
    "s3": rf"s3://{_BUCKET}{_PATH}/?",
    "gs": rf"gs://{_BUCKET}{_PATH}/?",
    "az": rf"az://{_BUCKET}{_PATH}/?",
    "ssh": rf"ssh://[A-Za-z0-9_][A-Za-z0-9._-]*{_PATH}/?",
}
_SCHEMES = "`http`, `https`, `oci`, `s3`, `gs`, `az` or `ssh`"
_SHAPES = {
    "oci": "write `oci://registry.example.org/repository`, in lower-case letters",
    "s3": "write `s3://bucket/prefix`",
    "gs": "write `gs://bucket/prefix`",
    "az": "write `az://container/prefix`",
    "ssh": "write `ssh://NAME`, NAME a `Host` of ssh_config, where user, port and jump host belong; a path after it is that of the store",
}
_SECRETS_HINT = (
    "credentials belong to netrc, docker's configuration or the variables of the bucket's vendor: see `docs/caches.md`"
)


def read_caches(tables: Iterable[Table], *, hosts: frozenset[str] | None = None) -> tuple[CacheSpec, ...]:
    """The caches of a document, in their order; problems are noted.

    Args:
        tables: Of `[[caches]]`.
        hosts: Names of the spec's hosts; None in a document that has no hosts.
    """
    found: list[CacheSpec] = []
    for table in tables:
        cache = _read_cache(table, hosts)
        if cache.name and any(cache.name == other.name for other in found):
            table.note("name", f"`{cache.name}` is the name of another cache already")
        found.append(cache)
    return tuple(found)


def parse_configuration(text: str, *, input_name: str) -> tuple[CacheSpec, ...]:
    """The caches of a person's own configuration.

    Args:
        text: TOML.
        input_name: For errors.

    Raises:
        EnvspecError: It is not TOML, or breaks rules; `problems` has each one.
    """
    document = read_document(text, input_name=input_name, kind=CONFIGURATION_KIND, conflict_hint=_CONFLICT_HINT)
    caches = read_caches(document.root.tables("caches"))
    document.root.close()
    document.raise_problems()
    return caches


def in_order(own: tuple[CacheSpec, ...], of_spec: tuple[CacheSpec, ...]) -> tuple[CacheSpec, ...]:
    """The caches as they are asked: a person's own first, since he knows what is near; they replace those of the spec with the same name.

    Example:
        >>> mine, theirs = CacheSpec(name="lab", url="http://a"), CacheSpec(name="lab", url="http://b")
        >>> [cache.url for cache in in_order((mine,), (theirs,))]
        ['http://a']
    """
    names = {cache.name for cache in own}
    return own + tuple(cache for cache in of_spec if cache.name not in names)


def _read_cache(table: Table, hosts: frozenset[str] | None) -> CacheSpec:
    has_url, has_host = table.get("url") is not None, hosts is not None and table.get("host") is not None
    has_endpoint = table.get("endpoint") is not None
    cache = CacheSpec(
        name=table.string("name", NAME),
        url=_read_url(table, "url") if has_url else "",
        host=table.string("host", _HOST, default="") if hosts is not None else "",
        endpoint=_read_url(table, "endpoint", only=("http", "https")) if has_endpoint else "",
        region=table.string("region", _REGION, default=""),
        plain_http=table.boolean("plain-http", default=False),
        to_hosts=table.boolean("to-hosts", default=True),
    )
    if has_url and has_host:
        table.note("host", "a cache is a URL or a host, and this one has both")
    elif not has_url and not has_host:
        table.note("url", f"is missing; expected a URL with {_SCHEMES}" + (", or `host`" if hosts is not None else ""))
    elif cache.host and hosts is not None and cache.host not in hosts:
        listed = ", ".join(f"`{host}`" for host in sorted(hosts)) or "none"
        table.note("host", f"the spec declares no host `{cache.host}`", f"it declares {listed}")
    if cache.url or cache.host:
        for key, given, kind in (
            ("endpoint", cache.endpoint, "bucket"),
            ("region", cache.region, "bucket"),
            ("plain-http", cache.plain_http, "oci"),
        ):
            if given and cache.kind != kind:
                word = "a bucket" if kind == "bucket" else "an OCI registry"
                table.note(key, f"is for {word}, which this cache is not")
    table.close()
    return cache


def _read_url(table: Table, key: str, *, only: tuple[str, ...] = tuple(_FORMS)) -> str:
    url = table.string(key, _URL)
    if not url:
        return ""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority or "?" in url or "#" in url:
        table.note(key, "carries a user, or a query that may hold a credential", _SECRETS_HINT)
    elif scheme not in only or not re.fullmatch(_FORMS[scheme], url):
        schemes = _SCHEMES if len(only) > 2 else "`http` or `https`"
        table.note(key, f"expected a URL with {schemes}", _SHAPES.get(scheme, "") if scheme in only else "")
    else:
        return url.rstrip("/")
    return ""
