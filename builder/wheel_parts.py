"""Parts of a wheel without the rest of it: its directory, its metadata, single files; over HTTP by range, or from a file.

A wheel of 1 GB costs what its directory and RECORD weigh. What is read is bounded, whatever the archive says of itself, and nothing that it
contains comes out as anything but `EnvspecError`.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import WriteableBuffer

TAIL_BYTES = 1 << 16
"""Read first: it has the whole directory and RECORD of most wheels."""

STEP_BYTES = 1 << 15
"""The least that is asked for at a time."""

MOST_DIRECTORY_BYTES = 64 << 20
MOST_RECORD_BYTES = 64 << 20
MOST_METADATA_BYTES = 8 << 20

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    LookupError,
    OSError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelParts:
    """What of a wheel says what is in it."""

    members: Mapping[str, bool]
    """Name -> whether it is executable; in the archive's order, without folders."""

    record: bytes
    metadata: bytes
    entry_points: bytes


class RangedFile(io.RawIOBase):
    """A file of which only what is looked at is read.

    Example:
        zipfile.ZipFile(RangedFile(read_range, size))
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        """Read nothing yet but the tail, at the first need.

        Args:
            read_range: First and last offset -> the bytes.
            size: Of the whole file, in bytes.
        """
        self._read_range = read_range
        self._size = size
        self._position = 0
        self._pieces: list[tuple[int, bytes]] = []

    def seekable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError("a place before the beginning of the file")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read on."""
        view = memoryview(buffer).cast("B")
        content = self._bytes(self._position, len(view))
        view[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _bytes(self, start: int, length: int) -> bytes:
        length = max(0, min(length, self._size - start))
        if not length:
            return b""
        if length > MOST_DIRECTORY_BYTES:
            raise ValueError(f"more than {MOST_DIRECTORY_BYTES} bytes at once")
        for first, piece in self._pieces:
            if first <= start and start + length <= first + len(piece):
                return piece[start - first : start - first + length]
        begin = start
        end = start + length
        if not self._pieces and end > self._size - TAIL_BYTES:
            begin = max(0, min(start, self._size - TAIL_BYTES))
            end = self._size
        end = min(self._size, max(end, begin + STEP_BYTES))
        content = self._read_range(begin, end - 1)
        if len(content) != end - begin:
            raise ValueError("a part of another length than was asked for")
        self._pieces.append((begin, content))
        return content[start - begin : start - begin + length]


@contextmanager
def open_archive(stream: io.RawIOBase | io.BufferedIOBase, file: str) -> Iterator[zipfile.ZipFile]:
    """The archive of a wheel.

    Args:
        stream: The wheel.
        file: Its name, for errors.

    Raises:
        EnvspecError: It is damaged; also if what is read of it in the context is.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            yield archive
    except EnvspecError:
        raise
    except _DAMAGE as error:
        raise EnvspecError(
            f"the wheel cannot be read: {type(error).__name__}: {str(error)[:200]!a}", input_name=file
        ) from error


def read_parts(archive: zipfile.ZipFile, file: str) -> WheelParts:
    """The directory and the metadata of a wheel.

    Args:
        archive: The wheel.
        file: Its name, for errors.

    Raises:
        EnvspecError: It has no RECORD or METADATA that can be read.
    """
    infos = [info for info in archive.infolist() if not info.orig_filename.endswith("/")]
    folders = {name.partition("/")[0] for info in infos if "/" in (name := info.orig_filename) and _is_record(name)}
    if len(folders) != 1:
        raise EnvspecError(f"the wheel has {len(folders)} RECORDs", input_name=file)
    dist_info = folders.pop()
    by_name = {info.orig_filename: info for info in infos}
    metadata = by_name.get(f"{dist_info}/METADATA")
    entry_points = by_name.get(f"{dist_info}/entry_points.txt")
    return WheelParts(
        members={info.orig_filename: _is_executable(info) for info in infos},
        record=read_member(archive, by_name[f"{dist_info}/RECORD"], MOST_RECORD_BYTES, file),
        metadata=b"" if metadata is None else read_member(archive, metadata, MOST_METADATA_BYTES, file),
        entry_points=b"" if entry_points is None else read_member(archive, entry_points, MOST_METADATA_BYTES, file),
    )


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int, file: str) -> bytes:
    """The content of a member.

    Args:
        archive: The wheel.
        info: The member.
        limit: Bytes beyond which it is refused.
        file: Name of the wheel, for errors.

    Raises:
        EnvspecError: It is larger.
    """
    with archive.open(info) as member:
        content = member.read(limit + 1)
    if len(content) > limit:
        raise EnvspecError(f"`{info.orig_filename[:200]!a}` has more than {limit} bytes", input_name=file)
    return content


def _is_record(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return rest == "RECORD" and folder.endswith(".dist-info")


def _is_executable(info: zipfile.ZipInfo) -> bool:
    return info.create_system == 3 and bool((info.external_attr >> 16) & 0o111)  # 3: made by Unix
