"""The content of files of a venv: sha256, and what is in their binaries; each file is read once, by as many processes as there are cores.

A file may change, or be cut off, while it is read: a worker that dies of that (SIGBUS of a mapped file) takes nobody with it.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import base64
import hashlib
import mmap
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.agent.pool import WorkerPool, own_interpreter
from builder.binary_facts import (
    HEAD_BYTES,
    WholeImage,
    damaged_binary,
    is_cubin,
    read_binary,
    read_raw_cubin,
    text_reader,
)
from builder.elf import MAGIC
from builder.fatbin import ZSTD_FLAG, release_in
from envspec.binaries import BinaryFacts, binary_facts_to_json
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from builder.binary_facts import ReleaseOf

LARGEST_FILE_BYTES = 16 << 30
"""Of a file that is read; the largest that was seen has 1.1 GB."""

MOST_BYTES = 128 << 30
"""That are read in all."""

MEMORY_BYTES = 1 << 30
"""Of a process that reads files, beside what it maps: tables of a hostile binary could be as large as itself."""

MAPPED_BYTES = 8 << 20
"""A larger binary is mapped, a smaller one is kept while it is read."""

LARGEST_BINARY_BYTES = 4 << 30
LONGEST_PACKED_CUBIN_BYTES = 4 << 20
"""Of a compressed cubin that is handed on to whoever can inflate it."""

BATCH_BYTES = 48 << 20
BATCH_FILES = 500
FEW_BYTES = 24 << 20
"""So much is read without other processes: starting them takes longer."""

FEW_FILES = 5000
MOST_TEXT_BYTES = 16 << 20
"""Of modules that state versions, and of `cudaTypedefs.h`, in all; a large real environment has 0.3 MB."""

MOST_DEATHS = 20
CHUNK_BYTES = 1 << 18
_NO_FACTS = BinaryFacts()


class Look(NamedTuple):
    """What was found in one file."""

    sha256: str
    """Empty if it could not be read."""

    problem: str
    """Why it could not be read, or what happened meanwhile; empty if all went well."""

    stamp: tuple[int, ...]
    """`stamp_of` its status; empty if it was not opened, or if something happened to it while it was read."""

    facts: dict[str, Any] | None
    """As JSON; None where there is nothing to say."""

    packed: list[list[Any]]
    """Compressed cubins whose release is still to be found: flags, and the cubin in base 64."""


def stamp_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """What tells that a file is still the same: size, mtime, ctime (ns), inode, device."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def look_at_file(root: str, path: str, sites: Sequence[str], *, labels: bool = True) -> Look:
    """Read a file to its end.

    Args:
        root: The prefix of the venv.
        path: Of the file, relative to it.
        sites: Folders of packages, relative to the prefix.
        labels: Whether to look for what a text says.
    """
    try:
        fd = os.open(f"{root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Look("", error.strerror or "cannot be opened", (), None, [])
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return Look("", "is no ordinary file any more", (), None, [])
        read = text_reader(within_site(path, sites), path, status.st_size) if labels else None
        packed: list[list[Any]] = []
        sha256, length, kept = _hash(fd, status.st_size, keep_all=read is not None)
        if read is not None:
            facts = read(kept)
        elif kept[: len(MAGIC)] != MAGIC:
            facts = _NO_FACTS
        elif is_cubin(kept):
            facts = read_raw_cubin(path, kept[:HEAD_BYTES])
        else:
            facts = _read_elf(fd, path, length, kept, _packing(packed))
        stamp, after = stamp_of(status), stamp_of(os.fstat(fd))
        changed = length != status.st_size or stamp[:2] != after[:2]
        return Look(
            sha256,
            "changed while it was read" if changed else "",
            stamp if stamp == after else (),  # a new link moves a ctime too
            None if facts == _NO_FACTS else binary_facts_to_json(facts),
            packed,
        )
    except OSError as error:
        return Look("", error.strerror or "cannot be read", (), None, [])
    finally:
        os.close(fd)


def within_site(path: str, sites: Sequence[str]) -> str:
    """A path within the folder of packages that it lies in; the path itself if it lies in none."""
    for site in sites:
        if site and path.startswith(f"{site}/"):
            return path[len(site) + 1 :]
    return path


def _hash(fd: int, size: int, *, keep_all: bool) -> tuple[str, int, bytes]:
    """The sha256 and length of a file, and its beginning: all of it if that is wanted, or if it is a small binary."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK_BYTES, size + 1)))
    pieces: list[bytes] = []
    length = kept = 0
    limit = HEAD_BYTES
    while count := os.readv(fd, [buffer]):
        chunk = buffer[:count]
        digest.update(chunk)
        if not length and (keep_all or (chunk[: len(MAGIC)] == MAGIC and size <= MAPPED_BYTES)):
            limit = MAPPED_BYTES
        if kept < limit:
            piece = bytes(chunk)
            pieces.append(piece)
            kept += len(piece)
        length += count
        if length > LARGEST_FILE_BYTES:
            raise OSError(27, "File too large")
    return digest.hexdigest(), length, b"".join(pieces)


def _read_elf(fd: int, path: str, length: int, kept: bytes, release_of: ReleaseOf) -> BinaryFacts:
    if length > LARGEST_BINARY_BYTES:
        return damaged_binary(path, f"has {length} bytes, at most {LARGEST_BINARY_BYTES} are looked at")
    try:
        if len(kept) == length:
            return read_binary(path, WholeImage(kept), release_of)
        with mmap.mmap(fd, length, access=mmap.ACCESS_READ) as mapped:
            return read_binary(path, _MappedImage(mapped), release_of)
    except MemoryError:
        return damaged_binary(path, "its tables take more memory than is given to them")


class _MappedImage(WholeImage):
    """A mapped file, which takes no more memory than what is looked at between two calls of `let_go`.

    Around each page that is read the kernel maps those that it has at hand, and the process counts them: 0.3 GB were seen of one library.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        super().__init__(mapped)
        self._mapped = mapped

    def let_go(self) -> None:
        """Unmap its pages; they are mapped again where they are read again."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


def _packing(packed: list[list[Any]]) -> ReleaseOf:
    def release_of(payload: bytes, flags: int) -> str | None:
        if not flags & ZSTD_FLAG:
            return release_in(payload)
        if len(payload) <= LONGEST_PACKED_CUBIN_BYTES:
            packed.append([flags, base64.b64encode(payload).decode("ascii")])
        return None

    return release_of


def with_releases(facts: dict[str, Any], packed: dict[str, list[list[Any]]], release_of: ReleaseOf) -> None:
    """Put the releases that compressed cubins say into facts.

    Args:
        facts: As JSON.
        packed: Path of a binary -> cubins, as `Look.packed` has them.
        release_of: Reads the note of a cubin.

    Raises:
        ValueError: What is packed is not base 64.
    """
    for binary in facts["binaries"]:
        cubins = packed.get(binary["path"])
        if cubins and binary.get("gpu"):
            found = {release_of(base64.b64decode(payload, validate=True), int(flags)) for flags, payload in cubins}
            binary["gpu"]["releases"] = sorted({*binary["gpu"]["releases"], *(each for each in found if each)})


def look_at_files(
    root: str,
    sites: Sequence[str],
    files: Iterable[tuple[str, int]],
    *,
    store_root: Path,
    advance: Callable[[int], None],
) -> Iterator[tuple[str, Look]]:
    """Read files, the largest first.

    Args:
        root: The prefix of the venv.
        sites: Folders of packages, relative to it.
        files: Paths relative to it, and sizes in bytes.
        store_root: Of the store that the workers are told of; nothing is written there.
        advance: Told the bytes as they are read.
    """
    ordered = sorted(files, key=lambda file: (-file[1], file[0]))
    plain = _too_many_texts(sites, ordered)
    few = sum(size for _, size in ordered) <= FEW_BYTES and len(ordered) <= FEW_FILES
    if few and all(size <= MAPPED_BYTES for _, size in ordered[:1]):  # what is mapped may end who reads it
        for path, size in ordered:
            yield path, look_at_file(root, path, sites, labels=path not in plain)
            advance(size)
        return
    lost: list[tuple[str, int]] = []
    with WorkerPool(own_interpreter(), store_root) as pool:
        futures = [(batch, pool.submit(_task(root, sites, batch, plain))) for batch in _batches(ordered)]
        for batch, future in futures:
            try:
                looks = future.result()["looks"]
            except EnvspecError:  # a worker died: of one of these files, or before it came to them
                lost.extend(batch)
                continue
            for (path, size), row in zip(batch, looks, strict=True):
                yield path, _look(row)
                advance(size)
    yield from _one_by_one(root, sites, lost, store_root, advance)


def _one_by_one(
    root: str, sites: Sequence[str], lost: list[tuple[str, int]], store_root: Path, advance: Callable[[int], None]
) -> Iterator[tuple[str, Look]]:
    """Files of which one at least ends a process that reads it."""
    deaths = 0
    while lost:
        with WorkerPool(own_interpreter(), store_root, size=1) as pool:
            while lost:
                path, size = lost.pop()
                advance(size)
                if deaths >= MOST_DEATHS:
                    yield path, Look("", "was not read: too many others could not be", (), None, [])
                    continue
                try:
                    (row,) = pool.submit(_task(root, sites, [(path, size)])).result()["looks"]
                except EnvspecError:
                    deaths += 1
                    yield path, Look("", "cannot be read: a process that reads it dies", (), None, [])
                    break
                yield path, _look(row)


def _too_many_texts(sites: Sequence[str], files: Iterable[tuple[str, int]]) -> frozenset[str]:
    """Texts that are only hashed, since reading them would take minutes: parsing is slow."""
    plain: set[str] = set()
    total = 0
    for path, size in files:
        if text_reader(within_site(path, sites), path, size) is not None:
            total += size
            if total > MOST_TEXT_BYTES:
                plain.add(path)
    return frozenset(plain)


def _task(
    root: str, sites: Sequence[str], batch: Iterable[tuple[str, int]], plain: frozenset[str] = frozenset()
) -> dict[str, Any]:
    paths = [path for path, _ in batch]
    return {
        "task": "look",
        "root": root,
        "sites": list(sites),
        "paths": paths,
        "plain": [path for path in paths if path in plain],
    }


def _look(row: list[Any]) -> Look:
    sha256, problem, stamp, facts, packed = row
    return Look(sha256, problem, tuple(stamp), facts, packed)


def _batches(ordered: list[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    batch: list[tuple[str, int]] = []
    weight = 0
    for file in ordered:
        batch.append(file)
        weight += file[1]
        if weight >= BATCH_BYTES or len(batch) >= BATCH_FILES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch
