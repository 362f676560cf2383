"""The caches of a spec and of a person's own configuration, and how each kind is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envspec.caches import in_order, parse_configuration
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.caches.protocol import Cache
    from envspec.spec import CacheSpec, Spec

CONFIGURATION = "envspec/config.toml"
MOST_BYTES = 4 << 20


def configured_caches(spec: Spec, environ: Mapping[str, str]) -> tuple[CacheSpec, ...]:
    """The caches that are asked, in their order: those of the person's configuration, then those of the spec.

    Args:
        spec: The spec.
        environ: Says where the configuration is: `$XDG_CONFIG_HOME/envspec/config.toml`, `~/.config/envspec/config.toml`.

    Raises:
        EnvspecError: The configuration cannot be read, or breaks rules.
    """
    return in_order(read_configuration(environ), spec.caches)


def read_configuration(environ: Mapping[str, str]) -> tuple[CacheSpec, ...]:
    """The caches of the person's configuration; none if there is no such file.

    Raises:
        EnvspecError: It cannot be read, or breaks rules.
    """
    path = _configuration_path(environ)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise EnvspecError(f"the configuration cannot be read: {error.strerror}", input_name=str(path)) from error
    if len(content) > MOST_BYTES:
        raise EnvspecError(f"the configuration has more than {MOST_BYTES:,} bytes", input_name=str(path))
    return parse_configuration(content.decode("utf-8", "surrogateescape"), input_name=str(path))


def _configuration_path(environ: Mapping[str, str]) -> Path:
    if environ.get("XDG_CONFIG_HOME"):
        return Path(environ["XDG_CONFIG_HOME"]) / CONFIGURATION
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return home / ".config" / CONFIGURATION


def open_cache(cache: CacheSpec, spec: Spec, environ: Mapping[str, str]) -> Cache:
    """A cache; nothing is connected yet.

    Args:
        cache: As it is declared.
        spec: Whose hosts it may name.
        environ: Where credentials are looked for.

    Raises:
        CacheError: What it needs is not installed, or does not take the configuration.
    """
    if cache.kind == "http":
        from builder.caches.folder import HttpFolder  # noqa: PLC0415 - each kind loads what it needs

        return HttpFolder(cache, environ)
    if cache.kind == "oci":
        from builder.caches.registry import Registry  # noqa: PLC0415

        return Registry(cache, environ)
    if cache.kind == "bucket":
        from builder.caches.bucket import Bucket  # noqa: PLC0415

        return Bucket(cache, environ)
    from builder.caches.host_store import HostStore  # noqa: PLC0415

    host = next((each for each in spec.hosts if each.name == cache.host), None)
    return HostStore(cache, environ, host)
