"""uv: where it is, which indexes its user configured for it, and how it is run.

uv is run so that its answer depends on what we ask and on nothing else:

- without any configuration file (`--no-config`): a `uv.toml` of the user may set `resolution` or constraints, and uv would apply them in
  silence;
- with an environment from which every `UV_*` and `PIP_*` variable is taken that is not in `KEPT_VARIABLES`;
- with a cache of its own (`--cache-dir`), and without ever fetching a Python.

What a user's configuration may rightly decide, namely where the indexes are and how they are reached, is read by `read_index_settings`
from the same places as uv reads it and given to uv by environment variables. `docs/indexes.md` is the page for users.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import tomllib

from builder import process
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LEAST_UV = (0, 13, 0)
"""The oldest uv that all tests pass with: it tells which files have no upload time, and hashes wheels whose index states no digest."""

KEPT_VARIABLES = frozenset(
    {
        # Where the indexes are.
        "UV_DEFAULT_INDEX",
        "UV_INDEX_URL",
        "UV_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        # How they are reached.
        "UV_KEYRING_PROVIDER",
        "UV_CREDENTIALS_DIR",
        "UV_NATIVE_TLS",
        "UV_SYSTEM_CERTS",
        "UV_INSECURE_HOST",
        "UV_HTTP_TIMEOUT",
        "UV_HTTP_CONNECT_TIMEOUT",
        "UV_REQUEST_TIMEOUT",
        "UV_HTTP_RETRIES",
        "UV_OFFLINE",
        # How much it does at a time.
        "UV_CONCURRENT_DOWNLOADS",
        "UV_CONCURRENT_BUILDS",
        "UV_CONCURRENT_INSTALLS",
    }
)
"""Variables of uv that say where indexes are and how they are reached; every other one is kept from it."""

_PLACES_OF_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")

INDEX_CREDENTIAL = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")

REACHING = {
    "system-certs": "UV_SYSTEM_CERTS",
    "native-tls": "UV_NATIVE_TLS",
    "keyring-provider": "UV_KEYRING_PROVIDER",
    "allow-insecure-host": "UV_INSECURE_HOST",
}
"""Keys of uv.toml that say how an index is reached, and the variables that say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """A uv that can be used."""

    path: Path
    version: tuple[int, int, int]

    def run(
        self,
        args: Sequence[str],
        *,
        cache_dir: Path,
        environ: Mapping[str, str],
        offline: bool = False,
        cwd: Path | None = None,
        timeout_s: float | None = None,
    ) -> process.Completed:
        """Run it to its end.

        Args:
            args: The command and its arguments, without secrets: everyone on the machine can read them.
            cache_dir: uv's cache; each store has its own.
            environ: The environment, from which variables that would change the result are taken; see the module's docstring.
            offline: Whether uv may use nothing but its cache.
            cwd: Where it runs; None for the current directory.
            timeout_s: Seconds until it is killed; None for no limit.
        """
        options = ["--no-config", "--no-python-downloads", "--no-progress", "--color=never", f"--cache-dir={cache_dir}"]
        if offline:
            options.append("--offline")
        return process.run([str(self.path), *args, *options], env=quiet_environ(environ), cwd=cwd, timeout_s=timeout_s)


def find_uv(environ: Mapping[str, str], *, least: tuple[int, int, int] = LEAST_UV) -> Uv:
    """The uv to use: the one that `UV` names (`uv run` sets it), else the first in PATH that starts and is recent enough.

    Args:
        environ: Gives `UV` and `PATH`.
        least: The oldest version that will do.

    Raises:
        EnvspecError: There is none.
    """
    too_old: list[str] = []
    for candidate in _candidates(environ):
        version = _version_of(candidate, environ)
        if version is None:  # a shim of a version manager that has no uv to start, or no uv at all
            continue
        if version >= least:
            return Uv(path=candidate, version=version)
        too_old.append(f"`{candidate}` is {_dotted(version)}")
    found = f": {', '.join(too_old)}" if too_old else "" if environ.get("PATH") else ": PATH is empty"
    raise EnvspecError(
        f"no uv {_dotted(least)} or later was found{found}",
        hint=f"install uv {_dotted(least)} or later so that it is in PATH, or name it in the environment variable `UV`",
    )


def quiet_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that would change what uv answers."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(("UV_", "PIP_")) or name in KEPT_VARIABLES or INDEX_CREDENTIAL.fullmatch(name)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredIndex:
    """An index that a user configured for uv."""

    name: str
    """Empty if it has none."""

    url: str
    """With the credentials in it, if there are any: never to be shown."""

    def __repr__(self) -> str:
        return f"ConfiguredIndex(name={self.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Where a user's environment and uv.toml say that packages come from."""

    default: ConfiguredIndex | None
    """A mirror in place of uv's default index; None if uv's own is meant."""

    extra: tuple[ConfiguredIndex, ...]
    """Indexes that uv would ask first, for any package."""

    explicit: tuple[ConfiguredIndex, ...]
    """Indexes that uv would ask only for packages that name them."""

    find_links: tuple[str, ...]
    """Folders and pages of wheels that uv would take any package from, without a name."""

    reaching: tuple[tuple[str, str], ...]
    """Environment variables that stand for what uv.toml says of certificates, keyrings and insecure hosts."""

    def __repr__(self) -> str:
        return f"IndexSettings(default={self.default!r}, extra={self.extra!r}, explicit={self.explicit!r})"

    def every_index(self) -> tuple[ConfiguredIndex, ...]:
        """All of them, the default first."""
        return (*((self.default,) if self.default else ()), *self.extra, *self.explicit)

    def named(self, name: str) -> ConfiguredIndex | None:
        """The index that the user gave this name: their mirror of the spec's index of the same name."""
        return next((index for index in (*self.extra, *self.explicit) if index.name == name), None)


def read_index_settings(environ: Mapping[str, str]) -> IndexSettings:
    """The indexes of a user: those of the environment variables, then those of uv.toml, as uv orders them.

    Raises:
        EnvspecError: A uv.toml cannot be read, or what stands for an index is no URL.
    """
    files = [_read_uv_toml(path) for path in _uv_toml_paths(environ)]
    tables = [value for file in files if isinstance(value := file.get("index"), list)]
    indexes = [entry for table in tables for entry in table if isinstance(entry, dict)]
    listed = [(entry, ConfiguredIndex(name=_text(entry, "name"), url=_text(entry, "url"))) for entry in indexes]
    listed = [(entry, index) for entry, index in listed if index.url]

    defaults = [*_from_variable(environ, "UV_DEFAULT_INDEX"), *_from_variable(environ, "UV_INDEX_URL")]
    defaults += [index for entry, index in listed if entry.get("default") is True]
    defaults += [ConfiguredIndex(name="", url=url) for url in _gather(files, "index-url")]
    extra = [*_from_variable(environ, "UV_INDEX"), *_from_variable(environ, "UV_EXTRA_INDEX_URL")]
    extra += [index for entry, index in listed if not entry.get("default") and not entry.get("explicit")]
    extra += [ConfiguredIndex(name="", url=url) for url in _gather(files, "extra-index-url")]
    explicit = [index for entry, index in listed if entry.get("explicit") and not entry.get("default")]

    settings = IndexSettings(
        default=defaults[0] if defaults else None,
        extra=tuple(dict.fromkeys(extra)),
        explicit=tuple(dict.fromkeys(explicit)),
        find_links=(
            *(part for part in environ.get("UV_FIND_LINKS", "").split(",") if part),
            *_gather(files, "find-links"),
        ),
        reaching=tuple(
            (variable, " ".join(values) if key == "allow-insecure-host" else values[0])
            for key, variable in REACHING.items()
            if variable not in environ and (values := _gather(files, key))
        ),
    )
    if any(split_url(index.url) is None for index in settings.every_index()):
        raise EnvspecError(
            "an index that uv is configured with has no valid URL",
            hint=f"look at {', '.join(f'`{name}`' for name in _PLACES_OF_INDEXES)} and at uv.toml",
        )
    return settings


def split_url(url: str) -> SplitResult | None:
    """The parts of a URL; None if it is broken, so that asking for its port or host would fail."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # a broken IPv6 address, or a port that is no number
        return None
    return parts


def without_userinfo(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def same_index(url: str, other: str) -> bool:
    """Whether two URLs name the same index: userinfo, the last slash and the case of the host do not count."""
    return _comparable(url) == _comparable(other)


URL = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s`'\"<>]*[^\s`'\"<>.,:;)]")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with every URL, and every given secret, replaced by `<url>` and `<hidden>`: fit to be shown.

    A whole URL goes, for a path can hold a token as well.
    """
    text = URL.sub("<url>", text)
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "<hidden>")
    return text


def _comparable(url: str) -> tuple[str, str, str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/"), parts.query


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("UV"):
        yield Path(environ["UV"])
    for folder in environ.get("PATH", "").split(os.pathsep):
        path = Path(folder) / "uv"
        if folder and os.access(path, os.X_OK) and path.is_file():
            yield path


def _version_of(path: Path, environ: Mapping[str, str]) -> tuple[int, int, int] | None:
    ended = process.run([str(path), "--version"], env=quiet_environ(environ), timeout_s=30)
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", ended.stdout)
    if ended.returncode != 0 or found is None:
        return None
    return int(found[1]), int(found[2]), int(found[3])


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def _uv_toml_paths(environ: Mapping[str, str]) -> list[Path]:
    """The configuration files that uv would read, the strongest first."""
    if environ.get("UV_NO_CONFIG", "").lower() in {"1", "true", "yes", "on"}:
        return []
    if environ.get("UV_CONFIG_FILE"):
        return [Path(environ["UV_CONFIG_FILE"])]
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(folder) for folder in environ.get("XDG_CONFIG_DIRS", "").split(os.pathsep) if folder] or [
        Path("/etc/xdg")
    ]
    # The system's file is the first that exists.
    in_system = [
        path for path in (*(folder / "uv/uv.toml" for folder in system), Path("/etc/uv/uv.toml")) if path.is_file()
    ]
    return [path for path in (user / "uv/uv.toml", *in_system[:1]) if path.is_file()]


def _read_uv_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EnvspecError(
            f"the configuration of uv cannot be read: {redact(str(reason))}",
            input_name=str(path),
            hint="mend the file, or set `UV_NO_CONFIG=1` to leave it out",
        ) from error


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key, "")
    return value if isinstance(value, str) else ""


def _gather(files: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """All values of a key in the files, in order; those of `[pip]` first, since uv's pip commands prefer them."""
    values: list[str] = []
    for file in files:
        pip = file.get("pip")
        for table in (pip if isinstance(pip, dict) else {}, file):
            value = table.get(key)
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, bool):
                    values.append("true" if one else "false")
                elif isinstance(one, str):
                    values.append(one)
    return values


def _from_variable(environ: Mapping[str, str], variable: str) -> list[ConfiguredIndex]:
    """The indexes of a variable: URLs between spaces, each with `name=` before it if it has one."""
    found = []
    for word in environ.get(variable, "").split():
        name, equals, url = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z0-9._-]+", name):
            found.append(ConfiguredIndex(name=name, url=url))
        else:
            found.append(ConfiguredIndex(name="", url=word))
    return found
