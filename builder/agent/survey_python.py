"""The Python of a venv by its files: where its prefix and its packages are, which interpreter runs it, and what `sys.path` will be.

Nothing is run, the interpreter neither.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from builder.agent.survey_tree import read_small, within
from builder.startup_hooks import folders_of_pth
from envspec.errors import EnvspecError
from envspec.layout import normalise_name
from envspec.observed import ObservedPython, PathEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SMALL_LIMIT_BYTES = 1 << 20
PTH_LIMIT_BYTES = 1 << 16
MOST_PTH = 1000
MOST_ENTRIES = 2000
MOST_NAMES = 20_000
"""Of one folder of `sys.path`."""

_LIB_FOLDERS = ("lib", "lib64", "local/lib")
_PACKAGES = ("site-packages", "dist-packages")
_PYTHON_FOLDER = re.compile(r"python(3\.\d+)t?")
_PROGRAM = re.compile(r"python(\d+(\.\d+)?)?t?")
_VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)?")
_PATCHLEVEL = re.compile(rb'^#define\s+PY_VERSION\s+"([^"\n]{1,20})"', re.MULTILINE)
_MOST_LINKS = 40


class Place(NamedTuple):
    """Where a Python and its packages are."""

    prefix: str
    """Absolute, without links."""

    sites: tuple[str, ...]
    """Folders of packages, relative to the prefix; the empty one for a folder that is nothing but packages."""

    minor: str
    config: Mapping[str, str] | None
    """Of `pyvenv.cfg`; None if there is none."""

    problems: tuple[str, ...]

    @property
    def is_venv(self) -> bool:
        """Whether it is no Python of its own."""
        return self.config is not None


def find_place(path: str) -> Place:
    """The venv (or other Python) that a path means: its prefix, its `bin`, its interpreter, or a folder of packages.

    Raises:
        EnvspecError: It is none.
    """
    path = os.path.abspath(os.path.expanduser(path))  # a host's `~` is not this machine's
    folder, name = os.path.split(path)
    if _PROGRAM.fullmatch(name) and os.path.basename(folder) == "bin" and os.path.lexists(path):
        return _place(os.path.realpath(os.path.dirname(folder)))
    if not os.path.isdir(path):
        raise EnvspecError(
            f"`{path}` is not there" if not os.path.lexists(path) else f"`{path}` is no Python environment",
            hint="name the folder of a venv, its interpreter (`bin/python`), or a folder of packages",
        )
    real = os.path.realpath(path)
    parts = real.split("/")
    if parts[-1] in _PACKAGES and len(parts) > 3 and (parts[-2] == "python3" or _PYTHON_FOLDER.fullmatch(parts[-2])):
        up = -4 if parts[-4:-2] == ["local", "lib"] else -3
        return _place("/".join(parts[:up]) or "/")
    if parts[-1] == "bin" and not _is_prefix(real):
        real = os.path.dirname(real)
    if _is_prefix(real):
        return _place(real)
    if _is_prefix(f"{real}/.venv"):
        return _place(os.path.realpath(f"{real}/.venv"))
    if any(entry.endswith((".dist-info", ".egg-info")) for entry in _names(real)):
        return Place(
            prefix=real, sites=("",), minor="", config=None, problems=("it is a folder of packages without a Python",)
        )
    raise EnvspecError(
        f"`{path}` is no Python environment: it has neither `pyvenv.cfg` nor packages",
        hint="name the folder of a venv, its interpreter (`bin/python`), or a folder of packages",
    )


def _is_prefix(path: str) -> bool:
    return os.path.isfile(f"{path}/pyvenv.cfg") or bool(_python_folders(path))


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _python_folders(prefix: str) -> dict[str, list[str]]:
    """Minor version -> its folders, relative to the prefix."""
    found: dict[str, list[str]] = {}
    for lib in _LIB_FOLDERS:
        if os.path.islink(f"{prefix}/{lib}"):
            continue
        for name in _names(f"{prefix}/{lib}"):
            match = _PYTHON_FOLDER.fullmatch(name)
            if match and os.path.isdir(f"{prefix}/{lib}/{name}"):
                found.setdefault(match[1], []).append(f"{lib}/{name}")
    return found


def _place(prefix: str) -> Place:
    config = read_config(f"{prefix}/pyvenv.cfg")
    folders = _python_folders(prefix)
    problems: list[str] = []
    stated = minor_of(_stated_version(config or {}))
    sites_of = {
        minor: [
            f"{folder}/{name}"
            for folder in paths
            for name in _PACKAGES
            if os.path.isdir(f"{prefix}/{folder}/{name}") and not os.path.islink(f"{prefix}/{folder}/{name}")
        ]
        for minor, paths in folders.items()
    }
    with_packages = {minor: sites for minor, sites in sites_of.items() if sites}
    candidates = with_packages or sites_of
    linked = minor_of(os.path.basename(os.path.realpath(f"{prefix}/bin/python3")).removeprefix("python"))
    wanted = stated or linked
    if wanted in candidates:
        minor = wanted
    else:
        minor = max(
            candidates,
            key=lambda each: sum(len(_names(f"{prefix}/{site}")) for site in candidates[each]),
            default=wanted,
        )
        if wanted and candidates:
            problems.append(
                f"`pyvenv.cfg` says Python {wanted}, the packages lie under `python{minor}`"
                if stated
                else f"`bin/python3` is Python {wanted}, the packages lie under `python{minor}`"
            )
    sites = sites_of.get(minor, [])
    if config is None and os.path.isdir(f"{prefix}/lib/python3/dist-packages"):
        sites = [*sites, "lib/python3/dist-packages"]
    if not sites:
        problems.append("it has no site-packages")
    others = sorted(set(with_packages) - {minor})
    if config is not None and others:
        problems.append(f"it has packages for Python {', '.join(others)} too, which Python {minor} does not see")
    return Place(prefix=prefix, sites=tuple(sites), minor=minor, config=config, problems=tuple(problems))


def read_config(path: str) -> dict[str, str] | None:
    """The settings of a `pyvenv.cfg`, keys in lower case; None if there is none."""
    raw = read_small(path, SMALL_LIMIT_BYTES)
    if raw is None:
        return None
    found: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key.strip().lower(), value.strip())
    return found


def minor_of(version: str) -> str:
    """`3.12` of `3.12.3`; empty if it is no version."""
    match = _VERSION.match(version)
    return f"{match[1]}.{match[2]}" if match else ""


def _stated_version(config: Mapping[str, str]) -> str:
    match = _VERSION.match(config.get("version") or config.get("version_info", ""))
    return match[0] if match else ""


def look_at_python(place: Place) -> ObservedPython:
    """The interpreter of a place, as its files say."""
    problems = list(place.problems)
    config = place.config or {}
    link, executable = _follow(f"{place.prefix}/bin", problems) if "" not in place.sites else ("", "")
    version = _stated_version(config)
    base = _base(place, executable)
    measured = _headers_version(base, place.minor)
    if not version:
        version = measured or place.minor
    elif measured and measured != version:
        problems.append(
            f"`pyvenv.cfg` says Python {version}, the interpreter's headers say {measured}: it was replaced since"
        )
    named = minor_of(os.path.basename(executable).removeprefix("python"))
    if named and place.minor and named != place.minor:
        problems.append(
            f"`bin/python` is Python {named} (`{executable}`), the packages lie under `python{place.minor}`"
        )
    home = config.get("home", "")
    if home and not os.path.isdir(home):
        problems.append(f"`home` of `pyvenv.cfg` is `{home}`, which is not there")
    elif home and executable and place.is_venv and not _same_place(home, executable):
        problems.append(f"`home` of `pyvenv.cfg` is `{home}`, `bin/python` leads to `{executable}`")
    if place.is_venv and not home:
        problems.append("`pyvenv.cfg` has no `home`")
    return ObservedPython(
        executable=executable,
        link=link,
        version=version,
        minor=place.minor,
        home=home,
        system_site_packages=config.get("include-system-site-packages", "").lower() == "true",
        problems=tuple(problems),
    )


def _follow(folder: str, problems: list[str]) -> tuple[str, str]:
    """The last target on the way from `bin/python`, and the file that it leads to."""
    names = [name for name in ("python", "python3") if os.path.lexists(f"{folder}/{name}")]
    if not names:
        problems.append("`bin/python` is missing")
        return "", ""
    path, target = f"{folder}/{names[0]}", ""
    for _ in range(_MOST_LINKS):
        try:
            target = os.readlink(path)
        except OSError:
            break
        path = posixpath.join(posixpath.dirname(path), target)
    else:
        problems.append(f"`bin/{names[0]}` is a link that leads to itself")
        return target, ""
    if not os.path.isfile(path):
        problems.append(f"`bin/{names[0]}` leads to `{posixpath.normpath(path)}`, which is not there")
        return path if target else "", ""
    if not os.access(path, os.X_OK):
        problems.append(f"`{path}` cannot be executed")
    return (path if target else ""), os.path.realpath(path)


def _same_place(home: str, executable: str) -> bool:
    """Whether the interpreter lies in the folder that `home` names, or shares its prefix."""
    real = os.path.realpath(home)
    return os.path.dirname(executable) == real or any(
        os.path.realpath(f"{home}/{name}") == executable for name in ("python3", "python", os.path.basename(executable))
    )


def _base(place: Place, executable: str) -> str:
    """The prefix of the Python that a place runs on; the place's own if it is no venv; empty if unknown."""
    if not place.is_venv:
        return place.prefix
    home = (place.config or {}).get("home", "")
    if home and os.path.isdir(home):
        return os.path.dirname(os.path.realpath(home))
    return os.path.dirname(os.path.dirname(executable)) if executable else ""


def _headers_version(base: str, minor: str) -> str:
    raw = read_small(f"{base}/include/python{minor}/patchlevel.h", SMALL_LIMIT_BYTES) if base else None
    match = _PATCHLEVEL.search(raw or b"")
    return match[1].decode("ascii", "replace").rstrip("+") if match else ""


class _SysPath:
    """What `sys.path` will be, as `site` makes it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: set[str] = set()
        self.entries: list[PathEntry] = []

    def add(self, path: str, source: str) -> None:
        path = posixpath.normpath(path)
        if path in self._seen or len(self.entries) >= MOST_ENTRIES:
            return
        self._seen.add(path)
        try:
            exists, real = os.path.exists(path), os.path.realpath(path)
        except (OSError, ValueError):
            exists, real = False, path
        inside = real == self._prefix or real.startswith(f"{self._prefix}/")
        foreign = exists and not inside and source != "standard library"
        self.entries.append(
            PathEntry(
                path=path,
                source=source,
                exists=exists,
                inside=inside,
                modules=modules_at(path) if foreign else (),
                distributions=distributions_at(path) if foreign else (),
            )
        )

    def add_site(self, folder: str, source: str) -> None:
        """A folder of packages, and what its `.pth` files add."""
        self.add(folder, source)
        names = [name for name in _names(folder) if name.endswith(".pth")]
        for name in names[:MOST_PTH]:
            raw = read_small(f"{folder}/{name}", PTH_LIMIT_BYTES)
            for line in folders_of_pth(raw or b"")[:MOST_PTH]:
                self.add(posixpath.join(folder, line), f"pth {name}")


def modules_at(folder: str) -> tuple[str, ...]:
    """Modules and packages at the root of a folder; a folder without `__init__` hides nothing, and is none."""
    found: set[str] = set()
    for name in _names(folder)[:MOST_NAMES]:
        stem, dot, suffix = name.partition(".")
        if not stem.isidentifier():
            continue
        if not dot and any(os.path.isfile(f"{folder}/{name}/__init__.{end}") for end in ("py", "pyc")):
            found.add(name)
        elif suffix.rpartition(".")[2] in ("py", "pyc", "so"):
            found.add(stem)
    return tuple(sorted(found))


def distributions_at(folder: str) -> tuple[tuple[str, str], ...]:
    """Names and versions of what is installed in a folder, as the names of its metadata folders say."""
    found: set[tuple[str, str]] = set()
    for entry in _names(folder)[:MOST_NAMES]:
        stem, dot, suffix = entry.rpartition(".")
        if dot and suffix in ("dist-info", "egg-info") and not stem.startswith("~"):
            name, _, version = stem.partition("-")
            found.add((normalise_name(name), version.partition("-")[0]))  # an `.egg-info` names its Python too
    return tuple(sorted(found))


def look_at_path(place: Place, python: ObservedPython, environ: Mapping[str, str]) -> tuple[PathEntry, ...]:
    """What `sys.path` will be, in its order, without the script's own folder.

    Args:
        place: Of the venv.
        python: Its interpreter.
        environ: Of the process that would be started.
    """
    found = _SysPath(place.prefix)
    for folder in environ.get("PYTHONPATH", "").split(os.pathsep):
        if folder:
            found.add(os.path.abspath(folder), "PYTHONPATH")
    base = environ.get("PYTHONHOME", "").split(os.pathsep)[0] or _base(place, python.executable)
    if base and place.minor:
        found.add(f"{base}/lib/python{place.minor.replace('.', '')}.zip", "standard library")
        found.add(f"{base}/lib/python{place.minor}", "standard library")
        found.add(f"{base}/lib/python{place.minor}/lib-dynload", "standard library")
    for folder, source in _sites(place, python, base, environ):
        found.add_site(folder, source)
    return tuple(found.entries)


def _sites(place: Place, python: ObservedPython, base: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    own = "venv" if place.is_venv or "" in place.sites else "system"
    sees_system = not place.is_venv or python.system_site_packages
    home = environ.get("HOME", "")
    ours = [(posixpath.join(place.prefix, site).rstrip("/"), own) for site in place.sites]
    users: list[tuple[str, str]] = []
    if sees_system and home and place.minor and not environ.get("PYTHONNOUSERSITE"):
        user = f"{environ.get('PYTHONUSERBASE') or f'{home}/.local'}/lib/python{place.minor}/site-packages"
        if os.path.isdir(user):
            users.append((user, "user"))
    # `site` adds a venv's own packages before the user's, and those of a Python of its own after them.
    yield from (*ours, *users) if place.is_venv else (*users, *ours)
    if place.is_venv and python.system_site_packages and base:
        usual = [f"{base}/{lib}/python{place.minor}/{name}" for lib in _LIB_FOLDERS for name in _PACKAGES]
        for folder in (*usual, f"{base}/lib/python3/dist-packages"):
            if os.path.isdir(folder) and not within(place.prefix, folder):
                yield folder, "system"
