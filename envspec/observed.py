"""What was seen of a venv, whoever made it: every distribution and file, what Python's path really is, and what the process would inherit.

An observation is measured by the agent beside the venv, without running or importing anything of it, and judged by `envspec.diagnosis`. It
judges nothing itself: a file that RECORD says otherwise of has both digests here, and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from envspec.binaries import BinaryFacts, binary_facts_from_json, binary_facts_to_json
from envspec.facts import StartupHook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OBSERVER = 1
"""Raised with every change of what is observed."""


class ObservedFile(NamedTuple):
    """One path of a venv, as it is and as RECORD says."""

    path: str
    """Relative to the venv's prefix; absolute if RECORD leads out of it."""

    kind: str
    """`file`, `link`, `missing`, `other` (a device, a pipe, a folder where a file should be), `unreadable`."""

    size: int
    """In bytes; -1 where there is none."""

    sha256: str
    """In hexadecimal; empty where it is no ordinary file that could be read."""

    executable: bool
    recorded: str
    """The sha256 that RECORD has, in hexadecimal; empty where RECORD names the file without one, or not at all."""

    recorded_size: int
    """-1 where RECORD does not say."""

    mtime_ns: int = 0
    links: int = 1
    """Names that the inode has: an edit in place would show under all of them."""

    target: str = ""
    """Of a symbolic link."""

    @property
    def is_edited(self) -> bool:
        """Whether RECORD has other bytes than the disk."""
        return self.kind == "file" and self.recorded != "" and self.sha256 not in ("", self.recorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDistribution:
    """A `.dist-info` (or `.egg-info`) of a venv and the files that its RECORD names."""

    name: str
    """Normalised (PEP 503), from METADATA, else from the folder's name."""

    version: str
    """Verbatim from METADATA; empty if METADATA cannot be read."""

    folder: str
    """Of its metadata, relative to the prefix: `lib/python3.12/site-packages/torch-2.11.0.dist-info`."""

    folder_version: str
    """In the folder's name; differs from `version` where one of the two was copied over the other."""

    installer: str = ""
    requested: bool = False
    """Whether somebody asked for it by name, as its installer noted."""

    direct_url: str = ""
    """Where it came from if not from an index, without credentials: `file:///src/x`, with `editable ` before it if it is."""

    requires_python: str = ""
    requires_dist: tuple[str, ...] = ()
    provides_extra: tuple[str, ...] = ()
    wheel_tags: tuple[str, ...] = ()
    build: str = ""
    """Build tag in WHEEL; empty if there is none."""

    scripts: tuple[tuple[str, str], ...] = ()
    """Console scripts that it declares: name and `module:function`."""

    top_level: tuple[str, ...] = ()
    """Modules and packages that it brings to the root of site-packages, by its RECORD, sorted."""

    problems: tuple[str, ...] = ()
    """What cannot be read of its metadata: `RECORD is missing`, `METADATA has no Version`."""

    files: tuple[ObservedFile, ...] = ()
    """Rows of its RECORD, sorted by path, without bytecode."""

    hooks: tuple[StartupHook, ...] = ()
    binaries: BinaryFacts = field(default_factory=BinaryFacts)
    """Of the files that are there, edited or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEntry:
    """One entry of what `sys.path` will be."""

    path: str
    """Absolute."""

    source: str
    """`venv`, `system` (include-system-site-packages), `pth FILE`, `PYTHONPATH`, `standard library`."""

    exists: bool
    inside: bool
    """Whether it lies in the venv."""

    modules: tuple[str, ...] = ()
    """Modules and packages at its root by their names, sorted, of an entry that lies outside of the venv and is no standard library."""

    distributions: tuple[tuple[str, str], ...] = ()
    """Names (normalised) and versions of what is installed there, by the names of the metadata folders, of the same entries; sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPython:
    """The interpreter of a venv, as its files say: it is not run."""

    executable: str
    """Absolute, links followed; empty if the link leads nowhere."""

    link: str
    """What `bin/python` points to at last before it leads nowhere or to the file."""

    version: str
    """`3.12.3` from `pyvenv.cfg`; `3.12` if only the folder's name says; empty if nothing does."""

    minor: str
    """`3.12`: of `lib/python3.12`."""

    home: str
    """`home` of `pyvenv.cfg`; empty for a Python that is no venv."""

    system_site_packages: bool
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that was seen of one venv."""

    prefix: str
    python: ObservedPython
    distributions: tuple[ObservedDistribution, ...]
    """Sorted by name and folder."""

    strays: tuple[ObservedFile, ...]
    """Files below the venv that no RECORD names, sorted by path: hand-copied modules and libraries; without bytecode, `pyvenv.cfg`,
    `bin/python*` and what activates."""

    stray_binaries: BinaryFacts
    """Of `strays`."""

    stray_hooks: tuple[StartupHook, ...]
    path: tuple[PathEntry, ...]
    """What `sys.path` will be, in its order."""

    environ: Mapping[str, str]
    """The variables that decide what is loaded, of the process that looked: `LD_LIBRARY_PATH`, `PYTHONPATH`, ... No others."""

    libraries: Mapping[str, str]
    """Soname -> path of each library that the host's linker finds by itself (`LD_LIBRARY_PATH` and the linker's cache)."""

    host: Mapping[str, Any]
    """`glibc`, `driver`, `cuda` (of the driver), `gpus` [{`name`, `compute`}], `system`, `hostname`; what is unknown is empty."""

    locked: Mapping[str, str]
    """Of an environment that envspec built: `env`, `site`, `name`, `store`; empty of any other."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """Path -> its beginning, for small files whose words tell what went wrong: `pyvenv.cfg`, `bin/activate` (the line that sets VIRTUAL_ENV),
    the first line of a script, a file that has the name of a shared library and is none."""

    notes: tuple[str, ...] = ()
    """What could not be looked at, with the reason."""

    bytes_read: int = 0
    files_seen: int = 0
    sites: tuple[str, ...] = ()
    """Its folders of packages, relative to the prefix; the empty one if the prefix is nothing but such a folder."""

    def site_packages(self) -> str:
        """Where Python has its packages, relative to the prefix, without a slash at the end."""
        return f"lib/python{self.python.minor}/site-packages"


def observation_to_json(observation: Observation) -> dict[str, Any]:
    """The observation as JSON; files are rows."""
    python = observation.python
    return {
        "observer": OBSERVER,
        "prefix": observation.prefix,
        "python": {name: getattr(python, name) for name in ObservedPython.__slots__},
        "distributions": [_distribution_to_json(each) for each in observation.distributions],
        "strays": [list(each) for each in observation.strays],
        "stray_binaries": binary_facts_to_json(observation.stray_binaries),
        "stray_hooks": [_hook_to_json(each) for each in observation.stray_hooks],
        "path": [
            [
                each.path,
                each.source,
                each.exists,
                each.inside,
                list(each.modules),
                [list(distribution) for distribution in each.distributions],
            ]
            for each in observation.path
        ],
        "environ": dict(observation.environ),
        "libraries": dict(observation.libraries),
        "host": dict(observation.host),
        "locked": dict(observation.locked),
        "texts": dict(observation.texts),
        "notes": list(observation.notes),
        "bytes_read": observation.bytes_read,
        "files_seen": observation.files_seen,
        "sites": list(observation.sites),
    }


def observation_from_json(record: Mapping[str, Any], distributions: Iterable[ObservedDistribution] = ()) -> Observation:
    """The inverse of `observation_to_json`.

    Args:
        record: As it makes it.
        distributions: Others beside those of the record.

    Raises:
        KeyError, TypeError, ValueError: The record is not one that this version wrote.
    """
    if record["observer"] != OBSERVER:
        raise ValueError(f"an observation of observer {record['observer']}, this is {OBSERVER}")
    python = {**record["python"], "problems": tuple(record["python"]["problems"])}
    return Observation(
        prefix=record["prefix"],
        python=ObservedPython(**python),
        distributions=(*map(distribution_from_json, record["distributions"]), *distributions),
        strays=tuple(ObservedFile(*each) for each in record["strays"]),
        stray_binaries=binary_facts_from_json(record["stray_binaries"]),
        stray_hooks=tuple(_hook_from_json(each) for each in record["stray_hooks"]),
        path=tuple(_path_entry_from_json(*row) for row in record["path"]),
        environ=_table(record["environ"]),
        libraries=_table(record["libraries"]),
        host=_table(record["host"]),
        locked=_table(record["locked"]),
        texts=_table(record.get("texts", {})),
        notes=_row(record["notes"]),
        bytes_read=record["bytes_read"],
        files_seen=record["files_seen"],
        sites=_row(record["sites"]),
    )


_PLAIN = (
    "name",
    "version",
    "folder",
    "folder_version",
    "installer",
    "requested",
    "direct_url",
    "requires_python",
    "build",
)
_LISTS = ("requires_dist", "provides_extra", "wheel_tags", "top_level", "problems")


def _distribution_to_json(each: ObservedDistribution) -> dict[str, Any]:
    return {
        **{name: getattr(each, name) for name in _PLAIN},
        **{name: list(getattr(each, name)) for name in _LISTS},
        "scripts": [list(script) for script in each.scripts],
        "files": [list(file) for file in each.files],
        "hooks": [_hook_to_json(hook) for hook in each.hooks],
        "binaries": binary_facts_to_json(each.binaries),
    }


def distribution_from_json(record: Mapping[str, Any]) -> ObservedDistribution:
    """A distribution of an observation's JSON.

    Raises:
        KeyError, TypeError, ValueError: The record is none.
    """
    plain: dict[str, Any] = {name: record[name] for name in _PLAIN}
    plain |= {name: _row(record[name]) for name in _LISTS}
    return ObservedDistribution(
        **plain,
        scripts=tuple((name, target) for name, target in record["scripts"]),
        files=tuple(ObservedFile(*file) for file in record["files"]),
        hooks=tuple(_hook_from_json(hook) for hook in record["hooks"]),
        binaries=binary_facts_from_json(record["binaries"]),
    )


def _path_entry_from_json(
    path: str,
    source: str,
    exists: bool,  # noqa: FBT001
    inside: bool,  # noqa: FBT001
    modules: list[str] | None = None,
    distributions: list[list[str]] | None = None,
) -> PathEntry:
    return PathEntry(
        path=path,
        source=source,
        exists=exists,
        inside=inside,
        modules=_row(modules or []),
        distributions=tuple((name, version) for name, version in distributions or ()),
    )


def _row(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
    if not isinstance(value, list):  # a text would be a row of characters
        raise TypeError(f"a {type(value).__name__} in place of a list")
    return tuple(value)


def _table(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} in place of a table")
    return dict(value)


def _hook_to_json(hook: StartupHook) -> list[Any]:
    return [hook.path, hook.sha256, list(hook.code)]


def _hook_from_json(row: list[Any]) -> StartupHook:
    path, sha256, code = row
    return StartupHook(path=path, sha256=sha256, code=_row(code))
