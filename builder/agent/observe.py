"""Looks at an environment: has it drifted from what was built?

By default a look at each file's status: size, mode, and a change time not later than that up to which this environment was proven. If it is
later, the file may have been linked into another environment since: then it must be the inode of its object, not changed since the object's own
stamp. All else is hashed. Deep, every byte is read and the manifest of the tree is made from the disk alone.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.link import file_rows
from builder.agent.realise import env_record_path, walk_paths
from builder.agent.store import Store, StoreObject, read_json
from builder.agent.unpack import hash_file
from envspec.errors import EnvspecError
from envspec.tree import Entry, decode_path, entry_line, is_host_path, join_lines, manifest_lines, parent_dirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from builder.agent.pool import WorkerPool

BATCH_BYTES = 64 << 20
BATCH_FILES = 1000
_RECORD_KEYS = frozenset(
    {"site", "generated", "host_files", "host_links", "skipped", "parts", "proven", "bytecode_tag", "bytecode_sha256"}
)


@dataclass(frozen=True)
class Drift:
    """One path that is not what was built."""

    path: str
    """In the environment."""

    kind: str
    """`modified`, `missing` or `extra`."""

    detail: str = ""
    owner: str = ""
    """The package that the path belongs to; empty if none does."""


@dataclass(frozen=True)
class EnvRecord:
    """What the store knows of an environment (`receipts/<env id>/env-<name>.json`)."""

    env: str
    name: str
    site: str
    path: Path
    fields: dict[str, Any]


def read_env_record(store: Store, env: str, name: str) -> EnvRecord:
    """The record of an environment.

    Args:
        store: The store.
        env: The env id.
        name: Of the environment: the env id does not cover it.

    Raises:
        EnvspecError: There is none, or it cannot be read.
    """
    fields = read_json(env_record_path(store, env, name)) or {}
    if not fields.keys() >= _RECORD_KEYS:
        raise EnvspecError(
            f"the store `{store.root}` has no readable record of the environment `{env}` of `{name}`",
            hint="build it again: `envspec build --repair`",
        )
    return EnvRecord(env=env, name=name, site=fields["site"], path=store.env(env, name), fields=fields)


def find_drift(store: Store, record: EnvRecord) -> tuple[Drift, ...]:
    """Compare an environment with what was built, by status first.

    Args:
        store: The store.
        record: Which environment.

    Returns:
        Every difference, sorted by path; empty if there is none.
    """
    base = f"{os.fspath(record.path)}/"
    found: list[Drift] = []
    if not record.path.is_dir():
        return (Drift("", "missing", "the whole environment is gone"),)
    expected: set[str] = set()
    own: dict[str, str] = {**record.fields["generated"], **record.fields["host_files"]}
    for source, skip, proven_ns in _objects(store, record):
        try:
            rows = list(file_rows(source.manifest_path.read_text(encoding="ascii")))
        except (OSError, ValueError, KeyError):
            return (_lost_manifest(source),)
        _object_drift(source, rows, base, skip, proven_ns, expected, found)
    for path, sha256 in own.items():
        expected.add(path)
        if _sha256_of(base + path) != sha256:
            found.append(
                Drift(path, "modified", "its content") if os.path.lexists(base + path) else Drift(path, "missing")
            )
    for path, target in record.fields["host_links"].items():
        expected.add(path)
        try:
            if os.readlink(base + path) != target:  # noqa: PTH115 - text
                found.append(Drift(path, "modified", f"links to something else than `{target}`"))
            elif os.path.isabs(target) and not os.path.exists(target):  # noqa: PTH110, PTH117 - text
                found.append(Drift(path, "modified", f"`{target}` is gone: the interpreter was removed"))
        except OSError:
            found.append(Drift(path, "modified" if os.path.lexists(base + path) else "missing"))
    files, folders = walk_paths(record.path)
    found.extend(Drift(path, "extra") for path in files - expected)
    found.extend(Drift(path, "extra", "a folder") for path in folders - parent_dirs(expected | files) - expected)
    return tuple(sorted(found, key=lambda drift: drift.path))


def _objects(store: Store, record: EnvRecord) -> Iterator[tuple[StoreObject, frozenset[str], int]]:
    """Each object of an environment, the paths that do not come from it, and the ctime (ns) up to which the others are proven."""
    proven: dict[str, int] = record.fields["proven"]
    for part in record.fields["parts"]:
        skip = frozenset(record.fields["skipped"].get(part["package"], ()))
        for source in (store.tree(part["tree"]), store.bytecode(part["tree"], record.fields["bytecode_tag"])):
            yield source, skip, proven.get(f"{source.path.parent.name}/{source.path.name}", 0)


def _lost_manifest(source: StoreObject) -> Drift:
    return Drift("", "missing", f"the store has lost the manifest of {source.path.parent.name}/{source.path.name}")


def _object_drift(
    source: StoreObject,
    rows: Iterable[tuple[str, int, str, int]],
    base: str,
    skip: frozenset[str],
    proven_ns: int,
    expected: set[str],
    found: list[Drift],
) -> None:
    origin = f"{os.fspath(source.path)}/"
    object_proven_ns = source.proven_ns()
    for path, mode, sha256, size in rows:
        if path in skip:
            continue
        expected.add(path)
        try:
            status = os.lstat(base + path)
        except OSError:
            found.append(Drift(path, "missing"))
            continue
        if not stat.S_ISREG(status.st_mode):
            found.append(Drift(path, "modified", "is no ordinary file any more"))
        elif status.st_size != size:
            found.append(Drift(path, "modified", f"{status.st_size} bytes instead of {size}"))
        elif bool(status.st_mode & 0o111) != bool(mode & 0o111):
            found.append(Drift(path, "modified", "its executable bit"))
        elif (
            status.st_ctime_ns > proven_ns
            and not (status.st_ctime_ns <= object_proven_ns and _is_same_inode(origin + path, status))
            and _sha256_of(base + path) != sha256
        ):
            found.append(Drift(path, "modified", "its content"))


def _is_same_inode(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        return False


def _sha256_of(path: str) -> str:
    """The sha256 of an ordinary file; empty if it is none or cannot be read."""
    try:
        return hash_file(path) if stat.S_ISREG(os.lstat(path).st_mode) else ""
    except OSError:
        return ""


class SiteMeasurement:
    """The manifest of an environment from the disk alone: every byte is read, nothing is believed.

    The workers begin when it is created; this process can do something else until it asks for the result.
    """

    def __init__(self, root: Path, pool: WorkerPool) -> None:
        """Walk the environment and let the workers begin.

        Args:
            root: The environment.
            pool: Workers that read and hash.
        """
        self._root = root
        files, self._folders = walk_paths(root)
        self._entries: list[Entry] = []
        sized: list[tuple[int, str, bool]] = []
        for path in files:
            if is_host_path(path):
                continue
            status = os.lstat(f"{root}/{path}")
            if stat.S_ISLNK(status.st_mode):
                self._entries.append(Entry(path, "link", target=os.readlink(f"{root}/{path}")))  # noqa: PTH115 - text
            elif not stat.S_ISREG(status.st_mode):  # a pipe or a device, which must not be opened
                self._entries.append(Entry(path, "file", "unreadable"))
            else:
                sized.append((status.st_size, path, bool(status.st_mode & 0o100)))
        self._batches = [
            (batch, pool.submit({"task": "hash", "root": os.fspath(root), "paths": [path for _, path, _ in batch]}))
            for batch in _batches(sorted(sized, reverse=True))
        ]

    def finish(self, advance: Callable[[int], None]) -> str:
        """Wait for the workers.

        Args:
            advance: Told the bytes as they are hashed.

        Returns:
            The manifest.
        """
        for rows, future in self._batches:
            for (size, path, executable), sha256 in zip(rows, future.result()["digests"], strict=True):
                self._entries.append(Entry(path, "file", sha256 or "unreadable", size, executable))
                advance(size)
        lines = [entry_line(entry) for entry in self._entries]
        lines += [entry_line(Entry(path, "dir")) for path in self._folders if not _is_host_folder(path, self._root)]
        return join_lines(lines)


def measure_site(root: Path, pool: WorkerPool, advance: Callable[[int], None]) -> str:
    """The manifest of an environment from the disk alone, for who has nothing else to do meanwhile: see `SiteMeasurement`."""
    return SiteMeasurement(root, pool).finish(advance)


def _batches(sized: list[tuple[int, str, bool]]) -> Iterator[list[tuple[int, str, bool]]]:
    """Files in the order given, so many at a time that a task is neither tiny nor long."""
    batch: list[tuple[int, str, bool]] = []
    weight = 0
    for row in sized:
        batch.append(row)
        weight += row[0]
        if weight >= BATCH_BYTES or len(batch) >= BATCH_FILES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _is_host_folder(path: str, root: Path) -> bool:
    """Whether a folder is only there for what belongs to the host: `__pycache__`, and `bin` without a script of a wheel."""
    if path == "bin":
        return all(is_host_path(f"bin/{name}") for name in os.listdir(f"{root}/bin"))  # noqa: PTH208 - text
    return "__pycache__" in path.split("/")


def compare_manifests(expected: str, found: str) -> tuple[Drift, ...]:
    """How a tree differs from what it should be, by their manifests. A missing folder shows in the files that it had."""
    wanted = {line[: line.index(" ")]: line for line in manifest_lines(expected)}
    there = {line[: line.index(" ")]: line for line in manifest_lines(found)}
    drifts = [
        Drift(decode_path(path[2:]), "missing")
        for path in wanted.keys() - there.keys()
        if not wanted[path].endswith(" type=dir")
    ]
    drifts += [Drift(decode_path(path[2:]), "extra") for path in there.keys() - wanted.keys()]
    drifts += [
        Drift(
            decode_path(path[2:]), "modified", f"expected{wanted[path][len(path) :]}, found{there[path][len(path) :]}"
        )
        for path in wanted.keys() & there.keys()
        if wanted[path] != there[path]
    ]
    return tuple(sorted(drifts, key=lambda drift: drift.path))


def bytecode_drift(store: Store, record: EnvRecord) -> tuple[Drift, ...]:
    """Every byte of the bytecode against its manifests."""
    found: list[Drift] = []
    base = f"{os.fspath(record.path)}/"
    for source, skip, _ in _objects(store, record):
        if source.path.parent.name != "bytecode":
            continue
        try:
            rows = list(file_rows(source.manifest_path.read_text(encoding="ascii")))
        except (OSError, ValueError, KeyError):
            found.append(_lost_manifest(source))
            continue
        for path, _, sha256, _ in rows:
            if path not in skip and _sha256_of(base + path) != sha256:
                found.append(
                    Drift(path, "modified", "its content") if os.path.lexists(base + path) else Drift(path, "missing")
                )
    return tuple(found)
