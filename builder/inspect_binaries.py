"""What passes by when a wheel is measured -> the facts of its binaries.

A binary is found by its first bytes: names lie (`ptxas`, `.so.13`, no suffix at all). It is kept in memory for as long as it takes to read it,
without its GPU code (`builder.sparse`). Nothing is executed and nothing is believed: what contradicts itself is reported as damaged.
"""

from __future__ import annotations

import ast
import re
import struct
import warnings
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from builder.agent.archive import WheelArchive
from builder.elf import MAGIC, read_elf, read_sections
from builder.elf_image import ElfDamaged, HoleRead
from builder.fatbin import CUBIN_LIMIT_BYTES, FatbinDamaged, FatbinEntry, read_fatbins, toolkit_release
from builder.sparse import ImageTooLarge, SparseImage
from envspec.binaries import (
    Assembler,
    Binary,
    BinaryFacts,
    CubinCount,
    GpuCode,
    Label,
    Reference,
    VersionNeed,
    joined_names,
    sorted_references,
)
from envspec.layout import site_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.agent.archive import Member
    from builder.elf import ElfFacts

EM_CUDA = 190
LOADABLE_GPU_SECTION = ".nv_fatbin"
"""What the driver loads; `__nv_relfatbin` is only input of a device linker."""

_MOST_CODES = 256
_MOST_SETS = 4096
"""Different codes in a library, and different sets of them in its fatbins: nvcc has some 60 targets."""

_HEAD_BYTES = 1 << 16
"""What is gathered of a file before it is judged by its beginning: however the wheel is compressed, the facts are the same."""

_LABEL_FILE = re.compile(r"[^/]+/(?:_version|version|__version__)\.py")
_LABEL_LIMIT_BYTES = 1 << 16
_LOADED_TYPES = ("shared", "executable")
_TYPEDEFS = "cudaTypedefs.h"
_TYPEDEFS_LIMIT_BYTES = 8 << 20
_FUNCTION = re.compile(rb"\bPFN_(cu[A-Z]\w{0,80}?)_v(\d{4,6})\b")
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
ELF_HEADER_BYTES = _ELF_HEADER.size
"""The first bytes of a raw cubin, which say what it is for."""
_ASSEMBLER = re.compile(r"ptxas(?:-[a-z]+)?")
# Every target stands there as `compute_90` or `lto_90`, whole. Of the `sm_` names some are only the end of another string, and others are of
# targets that it dropped; with these two the list is that of `ptxas --help` (releases 12.8, 12.9, 13.0).
_TARGET = re.compile(rb"\0(?:compute|lto)_([0-9]{2,3}[af]?)(?=\0)")


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
        self._binaries: list[Binary] = []
        self._again: list[tuple[Member, str]] = []
        self._cubins: Counter[str] = Counter()
        self._releases: set[str] = set()
        self._assemblers: list[Assembler] = []
        self._labels: list[Label] = []
        self._functions: dict[str, set[int]] = {}

    def watch(self, member: Member, target: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Pass a member's content on, and look at it if it is something to look at."""
        path = target.removeprefix(self._site)
        if _LABEL_FILE.fullmatch(path) and member.size <= _LABEL_LIMIT_BYTES:
            chunks = _gathered(chunks, lambda content: self._labels.extend(_labels(path, content)))
        elif target.endswith("/" + _TYPEDEFS) and member.size <= _TYPEDEFS_LIMIT_BYTES:
            chunks = _gathered(chunks, self._read_typedefs)
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
        return BinaryFacts(
            binaries=tuple(sorted(self._binaries, key=lambda binary: binary.path)),
            cubins=tuple(CubinCount(code, count) for code, count in sorted(self._cubins.items())),
            releases=tuple(sorted(self._releases)),
            assemblers=tuple(sorted(self._assemblers)),
            labels=tuple(sorted(self._labels)),
            driver_functions=tuple((name, tuple(sorted(since))) for name, since in sorted(self._functions.items())),
        )

    def _looked_at(self, member: Member, target: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        head = next(chunks, b"")
        while len(head) < _HEAD_BYTES:
            more = next(chunks, None)
            if more is None:
                break
            head += more
        if head[: len(MAGIC)] != MAGIC:
            yield head
            yield from chunks
        elif _is_cubin(head):
            self._cubins[cubin_code(head, target)] += 1
            release = toolkit_release(head[:_HEAD_BYTES])
            if release is not None:
                self._releases.add(release)
            yield head
            yield from chunks
        else:
            yield from self._imaged(member, target, chain((head,), chunks), keep_all=False)

    def _imaged(self, member: Member, target: str, chunks: Iterator[bytes], *, keep_all: bool) -> Iterator[bytes]:
        try:
            image = SparseImage(member.size, keep_all=keep_all)
        except ImageTooLarge as error:
            self._binaries.append(Binary(path=target, machine="", kind="", damage=str(error)))
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
                self._binaries.append(Binary(path=target, machine="", kind="", damage=too_large))
                return
            image.finish()
            try:
                self._read(target, image)
            except HoleRead:
                self._again.append((member, target))

    def _read(self, target: str, image: SparseImage) -> None:
        try:
            facts = read_elf(image.buffer, symbols=True, holes=image.holes)
        except ElfDamaged as error:
            self._binaries.append(Binary(path=target, machine="", kind="", damage=str(error)))
            return
        if facts is None:
            return
        gpu, damage = None, ""
        if facts.complete and facts.file_type in _LOADED_TYPES:
            try:
                gpu = _gpu_code(image)
            except (ElfDamaged, FatbinDamaged) as error:
                damage = f"its GPU code cannot be read: {error}"
        if facts.program and _ASSEMBLER.fullmatch(target.rpartition("/")[2]):
            self._assemblers.append(_assembler(target, image))
        self._binaries.append(_binary(target, facts, gpu, damage))

    def _read_typedefs(self, content: bytes) -> None:
        for name, version in _FUNCTION.findall(content):
            self._functions.setdefault(name.decode("ascii"), set()).add(int(version))


def _gathered(chunks: Iterator[bytes], use: Callable[[bytes], None]) -> Iterator[bytes]:
    pieces = []
    for chunk in chunks:
        pieces.append(chunk)
        yield chunk
    use(b"".join(pieces))


def _binary(target: str, facts: ElfFacts, gpu: GpuCode | None, damage: str) -> Binary:
    symbols = facts.symbols
    return Binary(
        path=target,
        machine=facts.machine,
        kind=facts.file_type,
        damage=damage,
        program=facts.program,
        executable_stack=facts.executable_stack,
        soname=facts.soname or "",
        needed=facts.needed,
        rpath=facts.rpath,
        runpath=facts.runpath,
        version_needs=tuple(
            VersionNeed(need.library, tuple(version for version in need.versions if version not in need.weak))
            for need in facts.version_needs
        ),
        version_definitions=facts.version_definitions,
        undefined=() if symbols is None else sorted_references(Reference(*symbol) for symbol in symbols.undefined),
        exports="" if symbols is None else joined_names(symbols.exported),
        gpu=gpu,
    )


def _gpu_code(image: SparseImage) -> GpuCode | None:
    """The GPU code that the driver may load from a file."""
    fatbins: Counter[tuple[str, ...]] = Counter()
    smallest: dict[str, FatbinEntry] = {}
    codes: set[str] = set()
    for name, offset, size in read_sections(image.buffer, holes=image.holes):
        if name != LOADABLE_GPU_SECTION:
            continue
        for entries in read_fatbins(image.buffer, offset, size, holes=image.holes):
            fatbins[_sorted({entry.code for entry in entries})] += 1
            codes.update(entry.code for entry in entries)
            if len(codes) > _MOST_CODES or len(fatbins) > _MOST_SETS:
                raise FatbinDamaged(f"code for {len(codes)} targets in {len(fatbins)} different sets")
            for entry in entries:
                if entry.is_cubin and entry.payload_size < smallest.get(entry.code, _LARGEST).payload_size:
                    smallest[entry.code] = entry
    if not fatbins:
        return None
    releases = set()
    for entry in smallest.values():
        payload = image.read(entry.payload_offset, min(entry.payload_size, CUBIN_LIMIT_BYTES))
        releases.add(toolkit_release(payload, entry.flags))
    return GpuCode(
        fatbins=tuple(sorted(fatbins.items())), releases=tuple(sorted(each for each in releases if each is not None))
    )


_LARGEST = FatbinEntry("", 0, 1 << 63, 0)


def _assembler(target: str, image: SparseImage) -> Assembler:
    if image.holes:  # what is asked for may stand anywhere
        raise HoleRead
    codes = {f"sm_{found[1].decode('ascii')}" for found in _TARGET.finditer(image.buffer)}
    return Assembler(target, toolkit_release(image.buffer) or "", _sorted(codes))


def _is_cubin(head: bytes) -> bool:
    if len(head) < _ELF_HEADER.size or head[:6] != b"\x7fELF\2\1":  # 64 bits, little-endian
        return False
    return int(_ELF_HEADER.unpack_from(head)[2]) == EM_CUDA


def cubin_code(head: bytes, target: str) -> str:
    """The GPU target of a raw cubin; whether it is for a family or for one GPU alone stands in its name at most.

    Args:
        head: Its first bytes.
        target: Its path.

    Raises:
        ValueError: The bytes are no cubin's.
    """
    if not _is_cubin(head):
        raise ValueError(f"not a cubin: {target}")
    flags = _ELF_HEADER.unpack_from(head)[7]
    number = (flags >> 8) & 0xFF if head[8] >= _ABI_OF_CUDA_13 else flags & 0xFF
    suffix = re.search(rf"(?i:sm_?){number}([af])(?![0-9a-z])", target)
    return f"sm_{number}{suffix[1] if suffix else ''}"


_ABI_OF_CUDA_13 = 8


def _sorted(codes: set[str]) -> tuple[str, ...]:
    """Codes by kind, then number, then suffix."""
    return tuple(sorted(codes, key=lambda code: (code.partition("_")[0], len(code.rstrip("af")), code)))


def _labels(path: str, content: bytes) -> Iterator[Label]:
    """The texts that a module assigns to names, read without running it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        value = statement.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            # Whatever a text holds, it can be printed and written as UTF-8.
            text = value.value.encode("utf-8", "backslashreplace").decode("utf-8")
            yield from (Label(path, target.id, text) for target in targets if isinstance(target, ast.Name))
