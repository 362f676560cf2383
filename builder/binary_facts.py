"""A file's bytes -> the facts of the binary that it is: what the linker, the driver and a JIT compiler would make of it.

Where the bytes come from makes no difference: a member of a wheel, without its GPU code (`builder.sparse`), and the same file on a disk give the
same facts. Nothing is executed and nothing is believed: what contradicts itself is reported as damaged.

Standard library only, CPython >= 3.10: the agent uses it on hosts, which is why a compressed cubin is inflated by whoever asks (`ReleaseOf`).
"""

from __future__ import annotations

import ast
import re
import struct
import warnings
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from builder.elf import read_elf, read_sections
from builder.elf_image import ElfDamaged, HoleRead
from builder.fatbin import CUBIN_LIMIT_BYTES, FatbinDamaged, FatbinEntry, read_fatbins, release_in
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from builder.elf import ElfFacts
    from builder.elf_image import Buffer

    ReleaseOf: TypeAlias = Callable[[bytes, int], str | None]
    """The CUDA release that made a cubin, of the bytes and flags of its entry, as `builder.cubin_notes.toolkit_release` says it."""

EM_CUDA = 190
LOADABLE_GPU_SECTION = ".nv_fatbin"
"""What the driver loads; `__nv_relfatbin` is only input of a device linker."""

HEAD_BYTES = 1 << 16
"""What is gathered of a file before it is judged by its beginning: however it is stored, the facts are the same."""

_MOST_CODES = 256
_MOST_SETS = 4096
"""Different codes in a library, and different sets of them in its fatbins: nvcc has some 60 targets."""

_LABEL_FILE = re.compile(r"[^/]+/(?:_version|version|__version__)\.py")
_LABEL_LIMIT_BYTES = 1 << 16
_MOST_LABELS = 500
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
_NOTHING = BinaryFacts()


class Image(Protocol):
    """A file in memory, or what was kept of it."""

    @property
    def buffer(self) -> Buffer:
        """Its bytes."""

    @property
    def holes(self) -> Sequence[tuple[int, int]]:
        """Beginnings and ends of what was left out, in bytes, sorted."""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file; raises `HoleRead`."""

    def let_go(self) -> None:
        """Told now and then that what was looked at so far is not needed any more."""


class WholeImage:
    """A file that is there from its first to its last byte."""

    holes: Sequence[tuple[int, int]] = ()

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    def let_go(self) -> None:
        """Nothing to let go of."""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file."""
        return bytes(self.buffer[offset : offset + size])


def read_binary(target: str, image: Image, release_of: ReleaseOf) -> BinaryFacts:
    """The facts of an ELF file that is no raw cubin.

    Args:
        target: Its path in the environment.
        image: Its bytes.
        release_of: Reads the notes of its cubins.

    Raises:
        HoleRead: What is needed was left out of the image.
    """
    try:
        facts = read_elf(image.buffer, symbols=True, holes=image.holes)
    except ElfDamaged as error:
        return damaged_binary(target, str(error))
    if facts is None:
        return _NOTHING
    gpu, damage = None, ""
    if facts.complete and facts.file_type in _LOADED_TYPES:
        try:
            gpu = _gpu_code(image, release_of)
        except (ElfDamaged, FatbinDamaged) as error:
            damage = f"its GPU code cannot be read: {error}"
    assemblers: tuple[Assembler, ...] = ()
    if facts.program and _ASSEMBLER.fullmatch(target.rpartition("/")[2]):
        assemblers = (_assembler(target, image),)
    return BinaryFacts(binaries=(_binary(target, facts, gpu, damage),), assemblers=assemblers)


def damaged_binary(target: str, damage: str) -> BinaryFacts:
    """The facts of a file that is ELF by its first bytes and cannot be read."""
    return BinaryFacts(binaries=(Binary(path=target, machine="", kind="", damage=damage),))


def read_raw_cubin(target: str, head: bytes) -> BinaryFacts:
    """The facts of a raw cubin, of its first `HEAD_BYTES` bytes.

    Raises:
        ValueError: The bytes are no cubin's.
    """
    release = release_in(head[:HEAD_BYTES])
    return BinaryFacts(
        cubins=(CubinCount(cubin_code(head, target), 1),), releases=() if release is None else (release,)
    )


def text_reader(path: str, target: str, size: int) -> Callable[[bytes], BinaryFacts] | None:
    """How to read a file that is no binary and says something about binaries; None of any other file.

    Args:
        path: Its path within site-packages.
        target: Its path in the environment.
        size: In bytes.
    """
    if _LABEL_FILE.fullmatch(path) and size <= _LABEL_LIMIT_BYTES:
        return lambda content: BinaryFacts(labels=tuple(islice(_labels(path, content), _MOST_LABELS)))
    if target.endswith("/" + _TYPEDEFS) and size <= _TYPEDEFS_LIMIT_BYTES:
        return _typedefs
    return None


def merged_facts(several: Iterable[BinaryFacts]) -> BinaryFacts:
    """The facts of many files as those of one wheel or distribution."""
    binaries: list[Binary] = []
    cubins: Counter[str] = Counter()
    releases: set[str] = set()
    assemblers: list[Assembler] = []
    labels: list[Label] = []
    functions: dict[str, set[int]] = {}
    for each in several:
        binaries.extend(each.binaries)
        releases.update(each.releases)
        assemblers.extend(each.assemblers)
        labels.extend(each.labels)
        for code, number in each.cubins:
            cubins[code] += number
        for name, since in each.driver_functions:
            functions.setdefault(name, set()).update(since)
    return BinaryFacts(
        binaries=tuple(sorted(binaries, key=lambda binary: binary.path)),
        cubins=tuple(CubinCount(code, count) for code, count in sorted(cubins.items())),
        releases=tuple(sorted(releases)),
        assemblers=tuple(sorted(assemblers)),
        labels=tuple(sorted(labels)),
        driver_functions=tuple((name, tuple(sorted(since))) for name, since in sorted(functions.items())),
    )


def _typedefs(content: bytes) -> BinaryFacts:
    functions: dict[str, set[int]] = {}
    for name, version in _FUNCTION.findall(content):
        functions.setdefault(name.decode("ascii"), set()).add(int(version))
    return BinaryFacts(
        driver_functions=tuple((name, tuple(sorted(since))) for name, since in sorted(functions.items()))
    )


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


def _gpu_code(image: Image, release_of: ReleaseOf) -> GpuCode | None:
    """The GPU code that the driver may load from a file."""
    fatbins: Counter[tuple[str, ...]] = Counter()
    smallest: dict[str, FatbinEntry] = {}
    codes: set[str] = set()
    for name, offset, size in read_sections(image.buffer, holes=image.holes):
        if name != LOADABLE_GPU_SECTION:
            continue
        image.let_go()
        for number, entries in enumerate(read_fatbins(image.buffer, offset, size, holes=image.holes)):
            if number % _FATBINS_HELD == 0:
                image.let_go()
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
        releases.add(release_of(payload, entry.flags))
    return GpuCode(
        fatbins=tuple(sorted(fatbins.items())), releases=tuple(sorted(each for each in releases if each is not None))
    )


_LARGEST = FatbinEntry("", 0, 1 << 63, 0)
_FATBINS_HELD = 64


def _assembler(target: str, image: Image) -> Assembler:
    if image.holes:  # what is asked for may stand anywhere
        raise HoleRead
    codes = {f"sm_{found[1].decode('ascii')}" for found in _TARGET.finditer(image.buffer)}
    return Assembler(target, release_in(image.buffer) or "", _sorted(codes))


def is_cubin(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a raw cubin."""
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
    if not is_cubin(head):
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
