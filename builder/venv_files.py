"""Contents of files of a venv, of this machine or of a host, in calls that are each bounded."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from builder.agent.venv_files import MOST_BYTES, MOST_FILE_BYTES, read_venv_files
from builder.hosts import checked
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from builder.session import Session

    ReadFiles = Callable[[str, Sequence[tuple[str, str]]], Iterable[tuple[str, bytes, str]]]

MOST_FILES = 500
"""Of one call."""


def read_contents(
    prefix: str, wanted: Sequence[tuple[str, str, int]], read: ReadFiles
) -> tuple[dict[str, bytes], dict[str, str]]:
    """The contents of files, and why those that are missing are.

    Args:
        prefix: Of the venv.
        wanted: Path, sha256 and size of each.
        read: `read_venv_files`, or `host_reader(session)`.

    Returns:
        Path -> content; path -> reason.
    """
    contents: dict[str, bytes] = {}
    unread: dict[str, str] = {}
    digests = {path: sha256 for path, sha256, _ in wanted}
    for batch in _batches(wanted):
        for path, content, reason in read(prefix, batch):
            if path not in digests:
                continue
            if reason or hashlib.sha256(content).hexdigest() != digests[path]:
                unread[path] = reason or "it was changed after it was looked at"
            else:
                contents[path] = content
    return contents, unread | dict.fromkeys(digests.keys() - contents.keys() - unread.keys(), "it was not given")


def _batches(wanted: Sequence[tuple[str, str, int]]) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    weight = 0
    for path, sha256, stated in wanted:
        size = min(max(stated, 0), MOST_FILE_BYTES)
        if batch and (weight + size > MOST_BYTES or len(batch) >= MOST_FILES):
            yield batch
            batch, weight = [], 0
        batch.append((path, sha256))
        weight += size
    if batch:
        yield batch


def host_reader(session: Session) -> ReadFiles:
    """Reads files of a host through its agent.

    Args:
        session: Of the agent; open as long as it is read.
    """

    def read(prefix: str, wanted: Sequence[tuple[str, str]]) -> Iterable[tuple[str, bytes, str]]:
        received = bytearray()

        def take(size: int, chunks: Iterator[bytes]) -> None:
            if size > MOST_BYTES:
                raise EnvspecError(
                    f"`{session.host}` sends {size} bytes, more than the {MOST_BYTES} that were asked for"
                )
            for chunk in chunks:
                received.extend(chunk)

        found = session.call("read_files", {"prefix": prefix, "files": [list(each) for each in wanted]}, on_raw=take)
        return list(_parts(session.host, found, bytes(received)))

    return read


def _parts(host: str, found: dict[str, Any], received: bytes) -> Iterator[tuple[str, bytes, str]]:
    at = 0
    for path, size, reason in checked(host, "files", lambda: _rows(found, len(received))):
        yield path, received[at : at + size], reason
        at += size


def _rows(found: dict[str, Any], total: int) -> list[tuple[str, int, str]]:
    """Path, size and reason of each file.

    Raises:
        KeyError, TypeError, ValueError: The answer is none.
    """
    rows = [(str(path), int(size), str(reason)[:500]) for path, size, reason in found["files"]]
    if any(size < 0 for _, size, _ in rows) or sum(size for _, size, _ in rows) > total:
        raise ValueError("sizes that do not fit")
    return rows


__all__ = ["host_reader", "read_contents", "read_venv_files"]
