"""Files of a store, one at a time: written read-only, hashed, listed.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from envspec.tree import parent_dirs

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from pathlib import Path

CHUNK_BYTES = 1 << 18  # a larger buffer is returned to the kernel after each use, and costs its page faults again
FILE_MODE = 0o444
EXECUTABLE_MODE = 0o555


def write_file(path: str, content: bytes, *, executable: bool) -> None:
    """Write a new read-only file."""
    mode = EXECUTABLE_MODE if executable else FILE_MODE
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
    finally:
        os.close(fd)


def hash_file(path: str) -> str:
    """The sha256 of a file's content, in hex.

    Raises:
        OSError: It cannot be read, or is a symbolic link.
    """
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        while length := os.readv(fd, [buffer]):
            digest.update(buffer[:length])
    finally:
        os.close(fd)
    return digest.hexdigest()


def walk_paths(root: Path) -> tuple[set[str], set[str]]:
    """Every file (and link) and every folder below a root, relative to it."""
    files: set[str] = set()
    folders: set[str] = set()
    pending = [""]
    base = os.fspath(root)
    while pending:
        folder = pending.pop()
        with os.scandir(f"{base}/{folder}") as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.add(path)
                    pending.append(path)
                else:
                    files.add(path)
    return files, folders


@dataclass(frozen=True)
class Listing:
    """What there is below a folder, by one look at each name."""

    files: dict[str, tuple[int, int, int]]
    """Path relative to the folder -> mode, size and change time (ns) of all that is no folder; links are not followed."""

    folders: set[str]
    holding: set[str]
    """Folders with a file in them or below them."""


def list_tree(root: Path) -> Listing:
    """Every file, with its status, and every folder below a root.

    Names are looked up in their folder, held open: that takes the kernel a quarter less than whole paths.

    Raises:
        OSError: A folder cannot be read.
    """
    files: dict[str, tuple[int, int, int]] = {}
    folders: set[str] = set()
    filled: set[str] = set()
    pending = [""]
    base = os.fspath(root)
    while pending:
        folder = pending.pop()
        before = len(files)
        prefix = f"{folder}/" if folder else ""
        fd = os.open(f"{base}/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.add(path)
                        pending.append(path)
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # it went away just now
                        continue
                    files[path] = (status.st_mode, status.st_size, status.st_ctime_ns)
        finally:
            os.close(fd)
        if len(files) > before and folder:
            filled.add(folder)
    return Listing(files=files, folders=folders, holding=filled | parent_dirs(filled))
