"""What passes by when a wheel is measured -> the facts of its binaries.

A binary is found by its first bytes: names lie (`ptxas`, `.so.13`, no suffix at all). It is kept in memory for as long as it takes to read it,
without its GPU code (`builder.sparse`). Nothing is executed and nothing is believed: what contradicts itself is reported as damaged.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from builder.agent.archive import WheelArchive
from builder.binary_facts import (
    HEAD_BYTES,
    damaged_binary,
    is_cubin,
    merged_facts,
    read_binary,
    read_raw_cubin,
    text_reader,
)
from builder.cubin_notes import toolkit_release
from builder.elf import MAGIC
from builder.elf_image import HoleRead
from builder.sparse import ImageTooLarge, SparseImage
from envspec.layout import site_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.agent.archive import Member
    from envspec.binaries import BinaryFacts


class BinaryInspector:
    """Watches the members of one wheel.

    Example:
        inspector = BinaryInspector("3.12")
        read_wheel(wheel, filename, "3.12", watch=inspector.watch)
        facts = inspector.finish(wheel)
    """

    def __init__(self, python: str) -> None:
        """Begin.

        Args:
            python: Minor version of the environment's Python.
        """
        self._site = site_packages(python) + "/"
        self._found: list[BinaryFacts] = []
        self._again: list[tuple[Member, str]] = []

    def watch(self, member: Member, target: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Pass a member's content on, and look at it if it is something to look at."""
        read = text_reader(target.removeprefix(self._site), target, member.size)
        if read is not None:
            chunks = _gathered(chunks, lambda content: self._found.append(read(content)))
        return self._looked_at(member, target, chunks)

    def finish(self, wheel: Path) -> BinaryFacts:
        """The facts, after all members have passed.

        Args:
            wheel: The same file, for the binaries that have to be read once more.
        """
        if self._again:
            with WheelArchive(wheel) as archive:
                for member, target in self._again:
                    for _ in self._imaged(member, target, archive.chunks(member), keep_all=True):
                        pass
        return merged_facts(self._found)

    def _looked_at(self, member: Member, target: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        head = next(chunks, b"")
        while len(head) < HEAD_BYTES:
            more = next(chunks, None)
            if more is None:
                break
            head += more
        if head[: len(MAGIC)] != MAGIC:
            yield head
            yield from chunks
        elif is_cubin(head):
            self._found.append(read_raw_cubin(target, head))
            yield head
            yield from chunks
        else:
            yield from self._imaged(member, target, chain((head,), chunks), keep_all=False)

    def _imaged(self, member: Member, target: str, chunks: Iterator[bytes], *, keep_all: bool) -> Iterator[bytes]:
        try:
            image = SparseImage(member.size, keep_all=keep_all)
        except ImageTooLarge as error:
            self._found.append(damaged_binary(target, str(error)))
            yield from chunks
            return
        with image:
            too_large = ""
            for chunk in chunks:
                if not too_large:
                    try:
                        image.feed(chunk)
                    except ImageTooLarge as error:
                        too_large = str(error)
                yield chunk
            if too_large:
                self._found.append(damaged_binary(target, too_large))
                return
            image.finish()
            try:
                self._found.append(read_binary(target, image, toolkit_release))
            except HoleRead:
                self._again.append((member, target))


def _gathered(chunks: Iterator[bytes], use: Callable[[bytes], None]) -> Iterator[bytes]:
    pieces = []
    for chunk in chunks:
        pieces.append(chunk)
        yield chunk
    use(b"".join(pieces))
