"""What was measured in the binaries of a wheel: what the dynamic linker would read from them, and the GPU code that they carry.

A binary is a file that is ELF by its first bytes, whatever its name. Raw cubins (`EM_CUDA`) are data for the driver, thousands in one wheel, and
are only counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Reference(NamedTuple):
    """A symbol that a binary needs from another one."""

    name: str
    """Mangled, as the file has it."""

    weak: bool
    """A weak one may stay without a definition."""

    version: str
    """`GLIBC_2.34`; empty if any version will do."""

    library: str
    """The NEEDED entry that the version is expected from; empty without a version."""


class VersionNeed(NamedTuple):
    """The symbol versions that a binary asks of one library, those left out whose absence `ld.so` only warns of."""

    library: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCode:
    """The GPU code of one library."""

    fatbins: tuple[tuple[tuple[str, ...], int], ...]
    """Sets of codes (`sm_90a`, `compute_120`), sorted, each with the number of fatbins that have exactly this set."""

    releases: tuple[str, ...] = ()
    """CUDA releases that made its cubins, as their notes say, sorted: `13.0.88`."""


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One ELF file of a wheel."""

    path: str
    """In the environment: `lib/python3.12/site-packages/torch/lib/libtorch.so`."""

    machine: str
    """`x86_64`, `aarch64`, ... as `builder.elf.MACHINES` names them."""

    kind: str
    """`shared`, `executable`, `relocatable`, ..."""

    damage: str = ""
    """Why it could not be read; empty if it could."""

    program: bool = False
    executable_stack: bool = False
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str | None = None
    runpath: str | None = None
    version_needs: tuple[VersionNeed, ...] = ()
    version_definitions: tuple[str, ...] = ()
    undefined: tuple[Reference, ...] = ()
    """Sorted by weakness, version, library and name; no name has a line break."""

    exports: str = ""
    """Names that others may bind to, sorted, one a line: there are 500,000 of them in an environment, and most are never looked at."""

    gpu: GpuCode | None = None

    @cached_property
    def exported(self) -> frozenset[str]:
        """The names of `exports`."""
        return frozenset(self.exports.split("\n")) if self.exports else frozenset()

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder in the environment; empty for its root."""
        return self.path.rpartition("/")[0]

    @property
    def is_loadable(self) -> bool:
        """Whether `dlopen` may take it: a library may be a program too (libQt5Core, libc), but then it has a soname."""
        return self.kind == "shared" and (not self.program or bool(self.soname))


class CubinCount(NamedTuple):
    """Raw cubins of one GPU target in a wheel."""

    code: str
    """`sm_100f`; the suffix is known from the file's name alone."""

    number: int


class Assembler(NamedTuple):
    """A `ptxas` that a wheel brings along: what it can assemble for decides where a JIT compiler can run."""

    path: str
    release: str
    """CUDA release, `12.8.93`; empty if it does not say."""

    codes: tuple[str, ...]
    """`sm_90`, `sm_120a`, ..., sorted."""


class Label(NamedTuple):
    """What a module that states versions says: an assignment of a text in `version.py` or `_version.py`."""

    path: str
    """Within site-packages."""

    key: str
    """`__version__`, `cuda`, `git_version`, ..."""

    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryFacts:
    """All that was measured in the binaries of a wheel."""

    binaries: tuple[Binary, ...] = ()
    """Sorted by path."""

    cubins: tuple[CubinCount, ...] = ()
    """Sorted by code."""

    releases: tuple[str, ...] = ()
    """CUDA releases that made the raw cubins, sorted."""

    assemblers: tuple[Assembler, ...] = ()
    labels: tuple[Label, ...] = ()
    driver_functions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """From `cudaTypedefs.h`: function of the driver's library, with the driver versions (12040 for 12.4) in which it was added or changed."""


def binary_facts_to_json(facts: BinaryFacts) -> dict[str, Any]:
    """The facts as JSON, for the cache; what is empty is left out."""
    return {
        "binaries": [_binary_to_json(binary) for binary in facts.binaries],
        "cubins": [list(cubin) for cubin in facts.cubins],
        "releases": list(facts.releases),
        "assemblers": [[each.path, each.release, list(each.codes)] for each in facts.assemblers],
        "labels": [list(label) for label in facts.labels],
        "driver_functions": [[name, list(versions)] for name, versions in facts.driver_functions],
    }


def binary_facts_from_json(record: Mapping[str, Any]) -> BinaryFacts:
    """The inverse of `binary_facts_to_json`.

    Raises:
        KeyError, TypeError, ValueError: The record is not one that this version wrote.
    """
    return BinaryFacts(
        binaries=tuple(_binary_from_json(each) for each in record["binaries"]),
        cubins=tuple(CubinCount(code, count) for code, count in record["cubins"]),
        releases=tuple(record["releases"]),
        assemblers=tuple(Assembler(path, release, tuple(codes)) for path, release, codes in record["assemblers"]),
        labels=tuple(Label(path, key, value) for path, key, value in record["labels"]),
        driver_functions=tuple((name, tuple(versions)) for name, versions in record["driver_functions"]),
    )


def joined_names(names: frozenset[str]) -> str:
    """Names as `Binary.exports` has them; a name with a line break, which only a hostile file has, and an empty one are left out."""
    return "\n".join(sorted(name for name in names if _is_plain(name)))


def sorted_references(references: Iterable[Reference]) -> tuple[Reference, ...]:
    """References as `Binary.undefined` has them, each once; names are left out as in `joined_names`, since nobody offers them."""
    plain = {reference for reference in references if _is_plain(reference.name)}
    return tuple(sorted(plain, key=lambda reference: (*_group(reference), reference.name)))


def _is_plain(name: str) -> bool:
    return name != "" and "\n" not in name


def _group(reference: Reference) -> tuple[bool, str, str]:
    return (reference.weak, reference.version, reference.library)


_MAY_BE_EMPTY = ("rpath", "runpath")
"""Where an empty text and none differ: an empty RUNPATH still makes the linker ignore RPATH."""


def _binary_to_json(binary: Binary) -> dict[str, Any]:
    record: dict[str, Any] = {
        "path": binary.path,
        "machine": binary.machine,
        "kind": binary.kind,
        "damage": binary.damage,
        "program": binary.program,
        "executable_stack": binary.executable_stack,
        "soname": binary.soname,
        "needed": binary.needed,
        "rpath": binary.rpath,
        "runpath": binary.runpath,
        "version_needs": binary.version_needs,
        "version_definitions": binary.version_definitions,
        "undefined": [
            [*shared, "\n".join(reference.name for reference in references)]
            for shared, references in groupby(binary.undefined, key=_group)  # most share the first three
        ],
        "exports": binary.exports,
    }
    if binary.gpu is not None:
        record["gpu"] = {"fatbins": binary.gpu.fatbins, "releases": binary.gpu.releases}
    return {key: value for key, value in record.items() if value or (value == "" and key in _MAY_BE_EMPTY)}


def _binary_from_json(record: Mapping[str, Any]) -> Binary:
    gpu = record.get("gpu")
    return Binary(
        path=record["path"],
        machine=record.get("machine", ""),
        kind=record.get("kind", ""),
        damage=record.get("damage", ""),
        program=record.get("program", False),
        executable_stack=record.get("executable_stack", False),
        soname=record.get("soname", ""),
        needed=tuple(record.get("needed", ())),
        rpath=record.get("rpath"),
        runpath=record.get("runpath"),
        version_needs=tuple(
            VersionNeed(library, tuple(versions)) for library, versions in record.get("version_needs", ())
        ),
        version_definitions=tuple(record.get("version_definitions", ())),
        undefined=_undefined_from_json(record.get("undefined", ())),
        exports=record.get("exports", ""),
        gpu=None
        if gpu is None
        else GpuCode(
            fatbins=tuple((tuple(codes), count) for codes, count in gpu["fatbins"]), releases=tuple(gpu["releases"])
        ),
    )


def _undefined_from_json(groups: Any) -> tuple[Reference, ...]:  # noqa: ANN401 - JSON
    return tuple(
        Reference(name, bool(weak), version, library)
        for weak, version, library, names in groups
        for name in names.split("\n")
    )
