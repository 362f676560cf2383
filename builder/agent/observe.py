"""Looks at an environment: has it drifted from what was built?

By default a look at each file's status: size, mode, and a change time not later than its object's stamp. Only what changed since is hashed.
Deep, every byte is read and the manifest of the tree is made from the disk alone.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.link import file_rows
from builder.agent.realise import walk_paths
from builder.agent.store import Store, StoreObject, read_json
from builder.agent.unpack import hash_file
from envspec.errors import EnvspecError
from envspec.tree import Entry, entry_line, is_host_path, join_lines, manifest_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.agent.pool import WorkerPool

BATCH_BYTES = 64 << 20
BATCH_FILES = 1000


@dataclass(frozen=True)
class Drift:
    """One path that is not what was built."""

    path: str
    """In the environment."""

    kind: str
    """`modified`, `missing` or `extra`."""

    detail: str = ""


@dataclass(frozen=True)
class EnvRecord:
    """What the store knows of an environment (`receipts/<env id>/env.json`)."""

    env: str
    name: str
    site: str
    path: Path
    fields: dict[str, Any]


def read_env_record(store: Store, env: str) -> EnvRecord:
    """The record of an environment.

    Raises:
        EnvspecError: There is none, or it cannot be read.
    """
    fields = read_json(store.receipts(env) / "env.json") or {}
    try:
        return EnvRecord(
            env=env, name=fields["name"], site=fields["site"], path=store.env(env, fields["name"]), fields=fields
        )
    except (KeyError, TypeError) as error:
        raise EnvspecError(
            f"the store `{store.root}` has no readable record of the environment `{env}`",
            hint="build it again: `envspec build`",
        ) from error


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
    skipped: dict[str, list[str]] = record.fields["skipped"]
    for part in record.fields["parts"]:
        skip = frozenset(skipped.get(part["package"], ()))
        for source in (store.tree(part["tree"]), store.bytecode(part["tree"], record.fields["bytecode_tag"])):
            _object_drift(source, base, skip, expected, found)
    for path, sha256 in own.items():
        expected.add(path)
        try:
            if hash_file(base + path) != sha256:
                found.append(Drift(path, "modified", "its content"))
        except OSError:
            found.append(Drift(path, "modified" if os.path.lexists(base + path) else "missing"))
    for path, target in record.fields["host_links"].items():
        expected.add(path)
        try:
            if os.readlink(base + path) != target:  # noqa: PTH115 - text
                found.append(Drift(path, "modified", f"links to something else than `{target}`"))
        except OSError:
            found.append(Drift(path, "modified" if os.path.lexists(base + path) else "missing"))
    files, _ = walk_paths(record.path)
    found.extend(Drift(path, "extra") for path in files - expected)
    return tuple(sorted(found, key=lambda drift: drift.path))


def _object_drift(source: StoreObject, base: str, skip: frozenset[str], expected: set[str], found: list[Drift]) -> None:
    proven_ns = source.proven_ns()
    try:
        text = source.manifest_path.read_text(encoding="ascii")
        rows = list(file_rows(text))
    except (OSError, ValueError):
        found.append(Drift("", "missing", f"the store has lost the manifest of {source.path.name}"))
        return
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
        elif status.st_ctime_ns > proven_ns and hash_file(base + path) != sha256:
            found.append(Drift(path, "modified", "its content"))


def measure_site(root: Path, pool: WorkerPool, advance: Callable[[int], None]) -> str:
    """The manifest of an environment from the disk alone: every byte is read, nothing is believed.

    Args:
        root: The environment.
        pool: Workers that read and hash.
        advance: Told the bytes as they are hashed.
    """
    files, folders = walk_paths(root)
    entries: list[Entry] = []
    sized: list[tuple[int, str, bool]] = []
    for path in files:
        if is_host_path(path):
            continue
        status = os.lstat(f"{root}/{path}")
        if stat.S_ISLNK(status.st_mode):
            entries.append(Entry(path, "link", target=os.readlink(f"{root}/{path}")))  # noqa: PTH115 - text
        else:
            sized.append((status.st_size, path, bool(status.st_mode & 0o100)))
    sized.sort(reverse=True)
    futures = []
    batch: list[tuple[int, str, bool]] = []
    weight = 0
    for row in sized:
        batch.append(row)
        weight += row[0]
        if weight >= BATCH_BYTES or len(batch) >= BATCH_FILES:
            futures.append(
                (batch, pool.submit({"task": "hash", "root": os.fspath(root), "paths": [path for _, path, _ in batch]}))
            )
            batch, weight = [], 0
    futures.append(
        (batch, pool.submit({"task": "hash", "root": os.fspath(root), "paths": [path for _, path, _ in batch]}))
    )
    for rows, future in futures:
        for (size, path, executable), sha256 in zip(rows, future.result()["digests"], strict=True):
            entries.append(Entry(path, "file", sha256 or "unreadable", size, executable))
            advance(size)
    lines = [entry_line(entry) for entry in entries]
    lines += [entry_line(Entry(path, "dir")) for path in folders if not _is_host_folder(path, root)]
    return join_lines(lines)


def _is_host_folder(path: str, root: Path) -> bool:
    """Whether a folder is only there for what belongs to the host: `__pycache__`, and `bin` without a script of a wheel."""
    if path == "bin":
        return all(is_host_path(f"bin/{name}") for name in os.listdir(f"{root}/bin"))  # noqa: PTH208 - text
    return "__pycache__" in path.split("/")


def compare_manifests(expected: str, found: str) -> tuple[Drift, ...]:
    """How a tree differs from what it should be, by their manifests."""
    wanted = {line[: line.index(" ")]: line for line in manifest_lines(expected)}
    there = {line[: line.index(" ")]: line for line in manifest_lines(found)}
    drifts = [Drift(path[2:], "missing") for path in wanted.keys() - there.keys()]
    drifts += [Drift(path[2:], "extra") for path in there.keys() - wanted.keys()]
    drifts += [
        Drift(path[2:], "modified", f"expected{wanted[path][len(path) :]}, found{there[path][len(path) :]}")
        for path in wanted.keys() & there.keys()
        if wanted[path] != there[path]
    ]
    return tuple(sorted(drifts, key=lambda drift: drift.path))


def bytecode_drift(store: Store, record: EnvRecord) -> tuple[Drift, ...]:
    """Every byte of the bytecode against its manifests."""
    found: list[Drift] = []
    skipped = record.fields["skipped"]
    base = f"{os.fspath(record.path)}/"
    for part in record.fields["parts"]:
        skip = frozenset(skipped.get(part["package"], ()))
        source = store.bytecode(part["tree"], record.fields["bytecode_tag"])
        for path, _, sha256, _ in file_rows(source.manifest_path.read_text(encoding="ascii")):
            if path in skip:
                continue
            try:
                if hash_file(base + path) != sha256:
                    found.append(Drift(path, "modified", "its content"))
            except OSError:
                found.append(Drift(path, "missing"))
    return tuple(found)
