"""What takes the space of an environment: per package, per kind of file, and GPU code per architecture."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

KINDS = ("libraries", "raw GPU code", "programs", "Python", "bytecode", "headers and archives", "data")
"""Every kind, in the order in which they are shown."""

_LIBRARY = re.compile(r"\.so(\.[0-9]+)*$")
_SUFFIXES = {
    "raw GPU code": (".cubin", ".fatbin", ".ptx", ".bc"),
    "Python": (".py", ".pyi", ".pyx", ".pxd"),
    "bytecode": (".pyc", ".pyo"),
    "headers and archives": (".h", ".hpp", ".hxx", ".cuh", ".inl", ".cu", ".a", ".o"),
}
_BY_SUFFIX = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}
_CODE_IN_NAME = re.compile(r"(?i)sm_?([1-9][0-9]{1,2}[af]?)(?![0-9a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSize:
    """What one package takes."""

    name: str
    version: str
    """Of the wheel that is installed: the patched one where there is an overlay."""

    wheel: int
    """Bytes of the wheel: what is sent to a host."""

    kinds: Mapping[str, int] | None
    """Kind -> bytes in an environment; None if the wheel was neither measured nor unpacked here."""

    gpu_code: Mapping[str, int]
    """Code (`sm_90a`) -> bytes of it inside of libraries and in raw files; empty if it has none or it is not known."""

    @property
    def installed(self) -> int | None:
        """Bytes in an environment; None if they are not known."""
        return None if self.kinds is None else sum(self.kinds.values())


def kind_of(path: str, binaries: Collection[str]) -> str:
    """The kind of a file.

    Args:
        path: In an environment.
        binaries: Paths that are ELF files by their content, as far as it is known.
    """
    name = path.rpartition("/")[2]
    kind = _BY_SUFFIX.get("." + name.rpartition(".")[2].lower()) if "." in name else None
    if kind is not None:
        return kind
    if _LIBRARY.search(name):
        return "libraries"
    return "programs" if path in binaries else "data"


def sizes_by_kind(files: Iterable[tuple[str, int]], binaries: Collection[str]) -> dict[str, int]:
    """Kind -> bytes.

    Args:
        files: Path and bytes of each.
        binaries: As for `kind_of`.
    """
    found: Counter[str] = Counter()
    for path, size in files:
        found[kind_of(path, binaries)] += size
    return dict(found)


def raw_gpu_code(files: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Code -> bytes of raw cubins, whose name says what they are for; `raw` for the others.

    Args:
        files: Path and bytes of each.
    """
    found: Counter[str] = Counter()
    for path, size in files:
        if path.endswith(".cubin"):
            named = _CODE_IN_NAME.search(path.rpartition("/")[2]) or _CODE_IN_NAME.search(path)
            found[f"sm_{named[1].lower()}" if named else "raw"] += size
    return dict(found)


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several counts."""
    found: Counter[str] = Counter()
    for each in counts:
        found.update(each)
    return dict(found)


def shown_bytes(number: int) -> str:
    """Bytes for a person, in units of a thousand.

    Example:
        >>> shown_bytes(999), shown_bytes(1500), shown_bytes(8_123_000_000)
        ('999 B', '1.5 kB', '8.1 GB')
    """
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"
