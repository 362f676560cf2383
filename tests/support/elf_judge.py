"""What pyelftools reads from an ELF file: the judge of `builder.elf`.

It goes through the section headers, where `builder.elf` goes through the program headers: two ways to the same facts. 25 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

if TYPE_CHECKING:
    from typing import BinaryIO

    from builder.elf import ElfFacts

_WEAK_VERSION = 2
_BASE_VERSION = 1
_HIDDEN = 0x8000


@dataclass(frozen=True)
class Judged:
    """Facts in a form that two readers can be compared by."""

    machine: int
    soname: str | None
    needed: list[str]
    rpath: str | None
    runpath: str | None
    program: bool
    version_needs: list[tuple[str, list[str], list[str]]]
    """Library, versions, those among them that are weak."""

    version_definitions: list[str]
    undefined: list[tuple[str, bool, str, str]]
    """Name, weak, version, library; sorted."""

    exported: set[str]


def judged(file: BinaryIO) -> Judged:
    """What pyelftools reads from a 64-bit ELF file with section headers."""
    elf = ELFFile(file)
    tags: dict[str, list[Any]] = {}
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                tags.setdefault(tag.entry.d_tag, []).append(tag)
    version_of: dict[int, tuple[str, str]] = {}
    needs: list[tuple[str, list[str], list[str]]] = []
    definitions: list[str] = []
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for need, versions in section.iter_versions():
                needs.append((str(need.name), [], []))
                for version in versions:
                    needs[-1][1].append(version.name)
                    if version["vna_flags"] & _WEAK_VERSION:
                        needs[-1][2].append(version.name)
                    version_of[version["vna_other"]] = (str(version.name), str(need.name))
        elif isinstance(section, GNUVerDefSection):
            for definition, names in section.iter_versions():
                if not definition["vd_flags"] & _BASE_VERSION:
                    definitions.append(next(iter(names)).name)
    undefined, exported = _symbols(elf, version_of)
    flags = [tag["d_val"] for tag in tags.get("DT_FLAGS_1", [])]
    return Judged(
        machine=_number_of_machine(file),
        soname=_only([tag.soname for tag in tags.get("DT_SONAME", [])]),
        needed=[tag.needed for tag in tags.get("DT_NEEDED", [])],
        rpath=_only([tag.rpath for tag in tags.get("DT_RPATH", [])]),
        runpath=_only([tag.runpath for tag in tags.get("DT_RUNPATH", [])]),
        program=any(segment["p_type"] == "PT_INTERP" for segment in elf.iter_segments())
        or any(value & 0x08000000 for value in flags),
        version_needs=needs,
        version_definitions=definitions,
        undefined=undefined,
        exported=exported,
    )


def as_judged(facts: ElfFacts) -> Judged:
    """The facts of `builder.elf`, read with symbols, in the same form."""
    assert facts.symbols is not None or not facts.dynamic
    symbols = facts.symbols
    return Judged(
        machine=facts.machine_number,
        soname=facts.soname,
        needed=list(facts.needed),
        rpath=facts.rpath,
        runpath=facts.runpath,
        program=facts.program,
        version_needs=[(need.library, list(need.versions), list(need.weak)) for need in facts.version_needs],
        version_definitions=list(facts.version_definitions),
        undefined=[] if symbols is None else sorted((*symbol,) for symbol in symbols.undefined),
        exported=set() if symbols is None else set(symbols.exported),
    )


def _symbols(elf: ELFFile, version_of: dict[int, tuple[str, str]]) -> tuple[list[tuple[str, bool, str, str]], set[str]]:
    table: Any = next(
        (s for s in elf.iter_sections() if isinstance(s, SymbolTableSection) and s.name == ".dynsym"), None
    )
    indexes: Any = next((s for s in elf.iter_sections() if isinstance(s, GNUVerSymSection)), None)
    undefined: list[tuple[str, bool, str, str]] = []
    exported: set[str] = set()
    for number in range(0 if table is None else table.num_symbols()):
        symbol = table.get_symbol(number)
        binding = symbol["st_info"]["bind"]
        if not symbol.name or binding == "STB_LOCAL":
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            if symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED"):
                exported.add(symbol.name)
            continue
        index = 0 if indexes is None else indexes.get_symbol(number)["ndx"]
        version, library = version_of.get(index & ~_HIDDEN, ("", "")) if isinstance(index, int) else ("", "")
        undefined.append((symbol.name, binding == "STB_WEAK", version, library))
    return sorted(undefined), exported


def _only(values: list[str]) -> str | None:
    return values[-1] if values else None


def _number_of_machine(file: BinaryIO) -> int:
    file.seek(18)
    return int.from_bytes(file.read(2), "little")
