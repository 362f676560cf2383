"""A file as it streams by -> an image of it in memory, without the payloads of its fatbins.

The largest library of a real environment has 1.07 GB, of which all but 77 MB is GPU code that nobody needs to look at. What is left out is
remembered as a hole, and `builder.elf` refuses to read a hole: a file that pretends to have GPU code where the dynamic linker finds its tables
is read again without holes.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

from builder.elf_image import refuse_holes
from builder.fatbin import (
    ALIGNMENT,
    ENTRY_BYTES,
    HEADER_BYTES,
    LONGEST_ENTRY_HEADER_BYTES,
    MAGIC,
    FatbinDamaged,
    FatbinEntry,
    read_entry,
    read_header,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

MOST_BYTES = 1 << 30
"""What an image holds at most beside its holes, in whole pages; the largest that was seen is 0.5 GB."""

MOST_STEPS = 1 << 20
"""Fatbins and entries, real ones or not, after which the rest of a file is kept as it is: some seconds. The most that were seen are 9,000."""

_LEAST_HOLE_BYTES = 4096
_MAP_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # of a shared one, a page that is only read takes memory too


class ImageTooLarge(ValueError):  # noqa: N818 - it says what the file is
    """A file has more bytes outside of its GPU code than an image holds."""


class SparseImage:
    """The bytes of one file; feed it all of them, in order, then `finish`.

    Example:
        with SparseImage(size) as image:
            for chunk in chunks:
                image.feed(chunk)
            image.finish()
            facts = read_elf(image.buffer, holes=image.holes)
    """

    def __init__(self, size: int, *, keep_all: bool = False) -> None:
        """Begin an image.

        Args:
            size: Of the whole file, in bytes; not 0.
            keep_all: Whether to leave nothing out.

        Raises:
            ImageTooLarge: There is no room for a file of that size.
        """
        if keep_all and size > MOST_BYTES:
            raise ImageTooLarge(f"has {size} bytes, at most {MOST_BYTES} are looked at")
        try:
            self.buffer = mmap.mmap(-1, size, flags=_MAP_FLAGS)
        except (OSError, OverflowError, ValueError) as error:
            raise ImageTooLarge(f"has {size} bytes, for which there is no memory") from error
        if not keep_all:
            with contextlib.suppress(OSError):  # EINVAL of a kernel without huge pages, which would fill the holes
                self.buffer.madvise(mmap.MADV_NOHUGEPAGE)
        self.holes: list[tuple[int, int]] = []
        self._keep_all = keep_all
        self._pages = 0
        self._last_page = -1
        self._position = 0
        """Offset in the file of the first byte that was not dealt with."""

        self._carry = b""
        """What could not be told apart before more arrives; lies at `_position`."""

        self._body_end = 0
        """Where the fatbin ends in which the position lies; 0 outside of any."""

        self._steps = 0
        self._last_false = -1
        self._payload_end = 0
        self._keep_payload = False
        self._smallest: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.buffer.close()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the file.

        Raises:
            ImageTooLarge: The file has too much beside GPU code.
        """
        if self._keep_all:
            self._keep(chunk)
            return
        text = self._carry + chunk if self._carry else chunk
        data = memoryview(text)
        self._carry = b""
        at = 0
        while at < len(data):
            if self._position < self._payload_end:
                step = min(len(data) - at, self._payload_end - self._position)
                if self._keep_payload:
                    self._keep(data[at : at + step])
                else:
                    self._position += step
                at += step
                continue
            if self._steps > MOST_STEPS:
                self._keep(data[at:])
                return
            taken = self._inside(data, at) if self._body_end else self._outside(data, text, at)
            if taken < 0:
                self._carry = text[at:]
                return
            at += taken

    def finish(self) -> None:
        """Take what was held back, since nothing follows."""
        self._keep(self._carry)
        self._carry = b""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file.

        Raises:
            HoleRead: Some of them were left out.
        """
        refuse_holes(self.holes, offset, size)
        return self.buffer[offset : offset + size]

    def let_go(self) -> None:
        """Nothing to let go of: what was kept lies nowhere else."""

    def _keep(self, data: bytes | memoryview) -> None:
        size = len(data)
        if not size:
            return
        first, last = self._position // mmap.PAGESIZE, (self._position + size - 1) // mmap.PAGESIZE
        self._pages += last - max(first - 1, self._last_page)
        self._last_page = last
        if self._pages * mmap.PAGESIZE > MOST_BYTES:
            raise ImageTooLarge(f"has more than {MOST_BYTES} bytes beside GPU code")
        self.buffer[self._position : self._position + size] = data
        self._position += size

    def _outside(self, data: memoryview, text: bytes, at: int) -> int:
        """Keep bytes up to the next fatbin; how many were taken, negative if more has to arrive first."""
        search = at
        while True:
            found = text.find(MAGIC, search)
            if found < 0:
                # The end may be the beginning of a header.
                end = max(at, len(data) - HEADER_BYTES + 1)
                self._keep(data[at:end])
                return end - at or -1
            start = self._position + found - at
            if start % ALIGNMENT == 0:
                if len(data) - found < HEADER_BYTES:
                    self._keep(data[at:found])
                    return found - at or -1
                body = read_header(data, found)
                if body is not None and start + HEADER_BYTES + body <= len(self.buffer):
                    end = found + HEADER_BYTES
                    self._keep(data[at:end])
                    self._body_end = self._position + body
                    self._steps += 1
                    return end - at
            search = found + 1
            if start > self._last_false:  # the end of a piece is looked at twice
                self._last_false = start
                self._steps += 1
                if self._steps > MOST_STEPS:
                    self._keep(data[at:search])
                    return search - at

    def _inside(self, data: memoryview, at: int) -> int:
        """Keep the header of the next entry; how many bytes were taken, negative if more has to arrive first."""
        if self._body_end - self._position < ENTRY_BYTES:
            self._body_end = 0
            return 0
        if len(data) - at < min(LONGEST_ENTRY_HEADER_BYTES, self._body_end - self._position):
            return -1
        self._steps += 1
        try:
            entry, self._payload_end = read_entry(data, at, self._body_end, base=self._position - at)
        except FatbinDamaged:
            self._body_end = 0
            return 0
        size = entry.payload_offset - self._position
        self._keep(data[at : at + size])
        self._keep_payload = self._is_wanted(entry)
        if not self._keep_payload:
            self.holes.append((entry.payload_offset, self._payload_end))
        return size

    def _is_wanted(self, entry: FatbinEntry) -> bool:
        """Whether to keep a payload: tiny ones, and the smallest cubin of each kind, for its note."""
        if self._payload_end - entry.payload_offset < _LEAST_HOLE_BYTES:
            return True
        if not entry.is_cubin or entry.payload_size >= self._smallest.get(entry.code, self._body_end):
            return False
        self._smallest[entry.code] = entry.payload_size
        return True
