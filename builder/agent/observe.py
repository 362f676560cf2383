"""Looks at an environment: has it drifted from what was built?

By default a look at each file's status: size, mode, and a change time not later than that up to which this environment was proven. If it is
later, the file may have been linked into another environment since: then it must be the inode of its object, not changed since the object's own
stamp. All else is hashed. Deep, every byte is read and the manifest of the tree is made from the disk alone.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, replace

from builder.agent.files import hash_file, list_tree, walk_paths
from builder.agent.link import file_rows
from builder.agent.store import Store, StoreObject, believable, env_record_path, read_json
from envspec.errors import EnvspecError
from envspec.tree import Entry, decode_path, entry_line, is_host_path, join_lines, manifest_lines, parent_dirs

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from builder.agent.pool import WorkerPool

BATCH_BYTES = 64 << 20
BATCH_FILES = 1000
RECORD_LIMIT_CHARACTERS = 4 << 20
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

    def line(self) -> str:
        """The difference as a line for a person."""
        owner = f"[{self.owner}]" if self.owner else ""
        return "  ".join(filter(None, (f"{self.kind:8}", self.path, owner, self.detail)))

    def to_json(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        return {"path": self.path, "kind": self.kind, "detail": self.detail or None, "owner": self.owner or None}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Drift:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError: It is none.
        """
        return cls(str(fields["path"]), str(fields["kind"]), str(fields["detail"] or ""), str(fields["owner"] or ""))


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
    listing = list_tree(record.path)
    there, absent = listing.files, set[str]()  # what is expected is taken out of the one, or put into the other
    own: dict[str, str] = {**record.fields["generated"], **record.fields["host_files"]}
    for source, skip, proven_ns, owner in _objects(store, record):
        try:
            rows = list(file_rows(source.manifest_path.read_text(encoding="ascii")))
        except (OSError, ValueError, KeyError):
            return (_lost_manifest(source),)
        begin = len(found)
        _object_drift(source, rows, base, skip, proven_ns, there, absent, found)
        found[begin:] = [replace(each, owner=owner) for each in found[begin:]]
    for path, sha256 in own.items():
        if there.pop(path, None) is None:
            absent.add(path)
        if _sha256_of(base + path) != sha256:
            found.append(
                Drift(path, "modified", "its content") if os.path.lexists(base + path) else Drift(path, "missing")
            )
    for path, target in record.fields["host_links"].items():
        if there.pop(path, None) is None:
            absent.add(path)
        try:
            if os.readlink(base + path) != target:  # noqa: PTH115 - text
                found.append(Drift(path, "modified", f"links to something else than `{target}`"))
            elif os.path.isabs(target) and not os.path.exists(target):  # noqa: PTH110, PTH117 - text
                found.append(Drift(path, "modified", f"`{target}` is gone: the interpreter was removed"))
        except OSError:
            found.append(Drift(path, "modified" if os.path.lexists(base + path) else "missing"))
    extra = [Drift(path, "extra") for path in there]
    empty = listing.folders - listing.holding - parent_dirs(absent) - absent
    extra += [Drift(path, "extra", "a folder") for path in empty]
    if extra:
        found += with_owners(store, record, extra)
    return tuple(sorted(found, key=lambda drift: drift.path))


def _objects(store: Store, record: EnvRecord) -> Iterator[tuple[StoreObject, frozenset[str], int, str]]:
    """Each object of an environment, the paths that do not come from it, the ctime (ns) up to which the others are proven, and its package."""
    proven: dict[str, int] = record.fields["proven"]
    for part in record.fields["parts"]:
        skip = frozenset(record.fields["skipped"].get(part["package"], ()))
        for source in (store.tree(part["tree"]), store.bytecode(part["tree"], record.fields["bytecode_tag"])):
            moment = believable(proven.get(f"{source.path.parent.name}/{source.path.name}", 0))
            yield source, skip, moment, part["package"]


def _lost_manifest(source: StoreObject) -> Drift:
    return Drift("", "missing", f"the store has lost the manifest of {source.path.parent.name}/{source.path.name}")


def _object_drift(
    source: StoreObject,
    rows: Iterable[tuple[str, int, str, int]],
    base: str,
    skip: frozenset[str],
    proven_ns: int,
    there: dict[str, tuple[int, int, int]],
    absent: set[str],
    found: list[Drift],
) -> None:
    origin = f"{os.fspath(source.path)}/"
    object_proven_ns = source.proven_ns()
    for path, mode, sha256, size in rows:
        if path in skip:
            continue
        status = there.pop(path, None)
        if status is None:
            absent.add(path)
            status = _status_of(base + path)  # a folder, or something below a link in the place of a folder
        if status is None:
            found.append(Drift(path, "missing"))
            continue
        found_mode, found_size, ctime_ns = status
        if not stat.S_ISREG(found_mode):
            found.append(Drift(path, "modified", "is no ordinary file any more"))
        elif found_size != size:
            found.append(Drift(path, "modified", f"{found_size} bytes instead of {size}"))
        elif bool(found_mode & 0o111) != bool(mode & 0o111):
            found.append(Drift(path, "modified", "its executable bit"))
        elif (
            ctime_ns > proven_ns
            and not (ctime_ns <= object_proven_ns and _is_inode_of(origin + path, base + path, object_proven_ns))
            and _sha256_of(base + path) != sha256
        ):
            found.append(Drift(path, "modified", "its content"))


def _status_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_mode, status.st_size, status.st_ctime_ns


def _is_inode_of(origin: str, path: str, proven_ns: int) -> bool:
    """Whether a file is its object's, and not changed since that was proven."""
    try:
        status = os.lstat(path)
        return status.st_ctime_ns <= proven_ns and os.path.samestat(os.lstat(origin), status)
    except OSError:
        return False


def _sha256_of(path: str) -> str:
    """The sha256 of an ordinary file; empty if it is none or cannot be read."""
    try:
        return hash_file(path) if stat.S_ISREG(os.lstat(path).st_mode) else ""
    except OSError:
        return ""


def with_owners(store: Store, record: EnvRecord, drifts: Iterable[Drift]) -> list[Drift]:
    """Say of drift whose it is.

    A path of the lock belongs to its package. An extra one belongs to the distribution that somebody installed by hand, as that one's RECORD
    says, else to the package whose folder it lies in.

    Args:
        store: The store.
        record: Of which environment.
        drifts: What differs; what has an owner keeps it.
    """
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for source, skip, _, owner in _objects(store, record):
        with contextlib.suppress(OSError, ValueError, KeyError):
            for path, _, _, _ in file_rows(source.manifest_path.read_text(encoding="ascii")):
                if path not in skip:
                    files[path] = owner
                    folders.setdefault(path.rpartition("/")[0], owner)
    drifts = list(drifts)
    strangers = _strangers(record.path, [each.path for each in drifts if each.kind == "extra"])
    owned: list[Drift] = []
    for each in drifts:
        if each.owner:
            owned.append(each)
        elif each.path in files:
            owned.append(replace(each, owner=files[each.path]))
        elif each.path in strangers:
            name, version = strangers[each.path]
            detail = f"of {name} {version}, which the lock has not"
            owned.append(replace(each, owner=name, detail=detail if not each.detail else f"{each.detail}, {detail}"))
        else:
            owned.append(replace(each, owner=_owner_of_folder(each.path, folders)))
    return owned


def _owner_of_folder(path: str, folders: dict[str, str]) -> str:
    folder = path.rpartition("/")[0]
    while folder and not folder.endswith(("/site-packages", "/bin")):
        if folder in folders:
            return folders[folder]
        folder = folder.rpartition("/")[0]
    return ""


def _strangers(root: Path, paths: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Path -> name and version of the distribution that put it there, by the dist-info folders among the paths."""
    found: dict[str, tuple[str, str]] = {}
    extra = set(paths)
    for info in sorted({path.rpartition("/")[0] for path in extra if path.endswith(".dist-info/RECORD")}):
        name, _, version = info.rpartition("/")[2].removesuffix(".dist-info").partition("-")
        stranger = (name.replace("_", "-").lower(), version)
        site = info.rpartition("/")[0]
        try:
            with open(root / info / "RECORD", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - text
                rows = file.read(RECORD_LIMIT_CHARACTERS).splitlines()
        except OSError:
            continue
        for row in rows:
            path = os.path.normpath(f"{site}/{row.split(',')[0]}")
            if path in extra:
                found[path] = stranger
        for path in extra:
            # Bytecode is listed only if it was there when it was installed.
            source = f"{path.rpartition('/__pycache__/')[0]}/{path.rpartition('/')[2].partition('.')[0]}.py"
            if path.startswith(f"{info}/") or ("/__pycache__/" in path and found.get(source) == stranger):
                found[path] = stranger
    return found


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
    for source, skip, _, owner in _objects(store, record):
        if source.path.parent.name != "bytecode":
            continue
        try:
            rows = list(file_rows(source.manifest_path.read_text(encoding="ascii")))
        except (OSError, ValueError, KeyError):
            found.append(_lost_manifest(source))
            continue
        for path, _, sha256, _ in rows:
            if path not in skip and _sha256_of(base + path) != sha256:
                there = os.path.lexists(base + path)
                found.append(
                    Drift(path, "modified", "its content", owner) if there else Drift(path, "missing", owner=owner)
                )
    return tuple(found)
