"""`uv pip compile` for one target: requirements in, what uv answered out.

Everything that uv is told travels in files of a temporary folder and in its environment, so that no URL stands in an argument of a process.
The folder's pyproject.toml carries the spec's indexes without credentials; those are in the environment only.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.agent.store import remove_dead_temporaries
from builder.credentials import credential_variable, read_credentials
from builder.uv import Uv, read_index_settings, same_index, without_userinfo
from builder.uv_output import ROOT
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.credentials import Credentials
    from builder.process import Completed
    from envspec.spec import IndexSpec

DEFAULT_INDEX = "default"
"""What the lock calls the index that uv asks by default, whichever mirror stands in for it."""

GLIBC_OF_UV = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
"""The glibc 2.N for which uv has a platform; for one between, the next lower is asked for."""

PYLOCK_OPTIONS = ("--format=pylock.toml", "--output-file=pylock.toml")
"""Let uv write the wheels of every package; a pylock.toml that is there already tells it which versions to prefer."""

PLACES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Asks uv about one target and one set of indexes."""

    uv: Uv
    cache_dir: Path
    environ: Mapping[str, str] = field(repr=False)
    """Of uv; says where the indexes are, with credentials."""

    python: str
    platform: str
    glibc: str
    indexes: tuple[IndexSpec, ...]
    """The spec's, each at the user's mirror of it if there is one."""

    default_url: str = field(repr=False)
    """The user's mirror of the default index; empty for uv's own."""

    stranger_urls: tuple[str, ...] = field(repr=False)
    """Indexes and folders that uv asks too, but that no package may come from."""

    credentials: Credentials

    def index_of(self, package: str) -> IndexSpec | None:
        """The index of the spec that names a package; None if it comes from the default index."""
        named = (index for index in self.indexes if any(fnmatch.fnmatchcase(package, name) for name in index.packages))
        return next(named, None)

    def name_of(self, index_url: str, package: str) -> str | None:
        """What the lock calls the index that a package came from; None if the package must not come from there."""
        named = self.index_of(package)
        if named is not None:
            return named.name if same_index(index_url, named.url) else None
        if not index_url:
            return None
        if self.default_url and same_index(index_url, self.default_url):
            return DEFAULT_INDEX
        return None if any(same_index(index_url, url) for url in self.stranger_urls) else DEFAULT_INDEX

    def compile(
        self,
        requirements: Iterable[str],
        options: Sequence[str] = (),
        *,
        files: Mapping[str, str] | None = None,
        offline: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[Completed, str]:
        """Run `uv pip compile`.

        Args:
            requirements: PEP 508, each without a URL. A package that an index of the spec names comes from there.
            options: Further options; they may name `files`.
            files: Name -> content of further files in the folder where uv runs.
            offline: Whether nothing but uv's cache may answer.
            timeout_s: Seconds until it is given up; None for no limit.

        Returns:
            How it ended, and the pylock.toml that it wrote, if it was told to; empty otherwise.
        """
        # In the store, not in the system's temporary folder: there the next run removes what a killed one left.
        place = self.cache_dir.parent
        place.mkdir(parents=True, exist_ok=True)
        remove_dead_temporaries(place)
        with tempfile.TemporaryDirectory(prefix=f".envspec-{os.getpid()}-", dir=place) as name:
            folder = Path(name)
            (folder / "pyproject.toml").write_text(self._project(tuple(requirements)), encoding="utf-8")
            for file, content in (files or {}).items():
                (folder / file).write_text(content, encoding="utf-8")
            ended = self.uv.run(
                [
                    "pip",
                    "compile",
                    "pyproject.toml",
                    f"--python-version={self.python}",
                    f"--python-platform={_platform_of_uv(self.platform, self.glibc)}",
                    "--only-binary=:all:",
                    "--index-strategy=first-index",
                    # Our own interpreter, so that uv neither looks for one of the target's version nor at broken shims in PATH. Nothing is
                    # built, so it serves for nothing else.
                    f"--python={sys.executable}",
                    *options,
                ],
                cache_dir=self.cache_dir,
                environ=self.environ,
                offline=offline,
                cwd=folder,
                timeout_s=timeout_s,
            )
            pylock = folder / "pylock.toml"
            return ended, pylock.read_text(encoding="utf-8") if ended.returncode == 0 and pylock.exists() else ""

    def opened(self) -> Asker:
        """One that takes any package from the spec's indexes, to find out which there are."""
        indexes = [f"{index.name}={index.url}" for index in self.indexes]
        open_ones = [*indexes, *filter(None, [self.environ.get("UV_INDEX", "")])]
        return replace(self, environ={**self.environ, "UV_INDEX": " ".join(open_ones)})

    def asked_for(self, name: str) -> Asker:
        """One that asks the spec's index `name` as if it were the default one, and no other.

        uv tells of refused credentials for its default index only.
        """
        index = next(index for index in self.indexes if index.name == name)
        environ = {key: value for key, value in self.environ.items() if key not in PLACES}
        environ["UV_DEFAULT_INDEX"] = f"{index.name}={index.url}"
        return replace(self, environ=environ, indexes=(), default_url=index.url, stranger_urls=())

    def _project(self, requirements: tuple[str, ...]) -> str:
        names = [_name_of_requirement(requirement) for requirement in requirements]
        sources = {name: index.name for name in names if (index := self.index_of(name)) is not None}
        lines = ["[project]", f"name = {_quoted(ROOT)}", 'version = "0"', "dependencies = ["]
        lines += [f"  {_quoted(requirement)}," for requirement in requirements]
        lines += ["]", "[tool.uv.sources]"]
        lines += [f"{_quoted(name)} = {{ index = {_quoted(index)} }}" for name, index in sources.items()]
        for index in self.indexes:
            lines += ["[[tool.uv.index]]", f"name = {_quoted(index.name)}", f"url = {_quoted(index.url)}"]
            lines += ["explicit = true"]
        return "\n".join([*lines, ""])


def make_asker(
    *,
    uv: Uv,
    environ: Mapping[str, str],
    cache_dir: Path,
    python: str,
    platform: str,
    glibc: str,
    indexes: Sequence[IndexSpec],
    strangers: bool,
) -> Asker:
    """An asker with the indexes of the spec and of the user.

    Args:
        uv: The uv to run.
        environ: The user's environment.
        cache_dir: uv's cache.
        python: Minor or full version.
        platform: `linux-x86_64` or `linux-aarch64`.
        glibc: Of the target.
        indexes: The spec's. An index of the same name in `UV_INDEX` or uv.toml is taken for a mirror of it.
        strangers: Whether uv asks the user's other indexes too, so that an error can name what it would take from them.

    Raises:
        EnvspecError: The user's configuration of uv cannot be read.
    """
    settings = read_index_settings(environ)
    here = tuple(
        replace(index, url=without_userinfo(_as_url(mirror.url))) if (mirror := settings.named(index.name)) else index
        for index in indexes
    )
    credentials = read_credentials(environ, here)
    names = {index.name for index in indexes}
    extra = (
        [(index.name, _as_url(index.url)) for index in settings.extra if index.name not in names] if strangers else []
    )
    links = [_as_url(link) for link in settings.find_links] if strangers else []

    for_uv = {key: value for key, value in environ.items() if key not in PLACES} | dict(settings.reaching)
    if settings.default:
        for_uv["UV_DEFAULT_INDEX"] = _named(settings.default.name, _as_url(settings.default.url))
    if extra:
        for_uv["UV_INDEX"] = " ".join(_named(name, url) for name, url in extra)
    if links:
        for_uv["UV_FIND_LINKS"] = ",".join(links)
    for index in here:
        credential = credentials.for_url(index.url)
        if credential is not None:
            for_uv.setdefault(credential_variable(index.name, "USERNAME"), credential.user)
            for_uv.setdefault(credential_variable(index.name, "PASSWORD"), credential.password)
    return Asker(
        uv=uv,
        cache_dir=cache_dir,
        environ=for_uv,
        python=python,
        platform=platform,
        glibc=glibc,
        indexes=here,
        default_url=_as_url(settings.default.url) if settings.default else "",
        stranger_urls=(*(url for _, url in extra), *links),
        credentials=credentials,
    )


def _platform_of_uv(platform: str, glibc: str) -> str:
    version = re.fullmatch(r"2\.(\d{1,4})(\.\d+)?", glibc)
    lower = [known for known in GLIBC_OF_UV if version and known <= int(version[1])]
    if not lower:
        raise EnvspecError(
            f"the target's glibc is {glibc}, and uv resolves for 2.{GLIBC_OF_UV[0]} or later",
            input_name="[target] glibc",
        )
    return f"{platform.removeprefix('linux-')}-manylinux_2_{lower[-1]}"


def _as_url(place: str) -> str:
    """A URL as it is; a path as a file URL, since uv runs in another folder."""
    return place if urlsplit(place).scheme else Path(place).absolute().as_uri()


def _named(name: str, url: str) -> str:
    return f"{name}={url}" if name else url


def _name_of_requirement(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _quoted(text: str) -> str:
    """A basic string of TOML; what JSON escapes, TOML escapes so too."""
    return json.dumps(text)
