"""The contents of some files of a venv, each only if it has the digest that it was observed with. No link is followed, and nothing else is read.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_FILE_BYTES = 4 << 20
MOST_BYTES = 32 << 20
"""Of all contents of one call together."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_venv_files(prefix: str, wanted: Sequence[tuple[str, str]]) -> Iterator[tuple[str, bytes, str]]:
    """Read files of a venv.

    Args:
        prefix: Of the venv; it may be a link itself.
        wanted: Path relative to the prefix, and sha256 in hexadecimal.

    Yields:
        Path, content, and why there is none: empty if there is one. In the order of `wanted`.
    """
    left = MOST_BYTES
    for path, sha256 in wanted:
        try:
            content = _read(prefix, path, min(MOST_FILE_BYTES, left))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            yield path, b"", f"it cannot be read: {reason}"
            continue
        if hashlib.sha256(content).hexdigest() != sha256:
            yield path, b"", "it was changed after it was looked at"
            continue
        left -= len(content)
        yield path, content, ""


def _read(prefix: str, path: str, limit: int) -> bytes:
    """An ordinary file of at most so many bytes; every folder on the way is one, and no link."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError("its path leads out of the venv")
    folder = os.open(prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no ordinary file")
        if status.st_size > limit:
            raise ValueError(f"it has {status.st_size} bytes, at most {limit} are read")
        content = bytearray()
        while len(content) <= limit and (piece := file.read(limit + 1 - len(content))):
            content += piece
    if len(content) > limit:
        raise ValueError(f"it has more than {limit} bytes")
    return bytes(content)
