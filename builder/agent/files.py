"""Files of a store, one at a time: written read-only, hashed, listed.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

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
