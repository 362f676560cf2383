"""How old glibc and libstdc++ of a host may be, by what the binaries need, against the target and against what the wheels' tags promise.

floors = measured_floors(closure)
floors.glibc.version, floors.glibc.path     # "2.34", "sglang/srt/grpc/_core.cpython-312-x86_64-linux-gnu.so"
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.checks.registry import check
from envspec.checks.waivers import findings_of_paths
from envspec.checks.wording import counted, examples, joined
from envspec.facts import Finding, Severity
from envspec.layout import split_wheel_name
from envspec.tags import LEGACY_MANYLINUX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envspec.binaries import Binary
    from envspec.checks.closure import Closure, ClosureWheel

Version = tuple[int, ...]


LIBSTDCXX_BESIDE: tuple[tuple[Version, Version, Version], ...] = (
    ((2, 5), (3, 4, 8), (1, 3, 1)),
    ((2, 12), (3, 4, 13), (1, 3, 3)),
    ((2, 17), (3, 4, 19), (1, 3, 7)),
    ((2, 24), (3, 4, 22), (1, 3, 10)),
    ((2, 27), (3, 4, 24), (1, 3, 11)),
    ((2, 31), (3, 4, 28), (1, 3, 12)),
    ((2, 34), (3, 4, 29), (1, 3, 13)),
    ((2, 35), (3, 4, 30), (1, 3, 13)),
    ((2, 39), (3, 4, 33), (1, 3, 15)),
)
"""glibc, then GLIBCXX and CXXABI of the libstdc++ that every distribution with it has at least; between two rows the lower one holds.

These are the versions that the manylinux policies allow (auditwheel 6.8.2, `manylinux-policy.json`, read 2026-11-30), which were collected from
the distributions: 2.17 CentOS 7, 2.24 Debian 9, 2.28 RHEL 8, 2.31 Debian 11 and Ubuntu 20.04, 2.34 RHEL 9, 2.35 Ubuntu 22.04, 2.39 Ubuntu 24.04.
Which GCC brought which version: https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html."""

LIBSTDCXX = "libstdc++.so.6"
GLIBC, GLIBCXX, CXXABI = "GLIBC", "GLIBCXX", "CXXABI"

_NAMED_VERSIONS = {"GLIBC_ABI_DT_RELR": (2, 36)}
"""Marks that stand for the release of glibc which was the first to have them."""

_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})", re.ASCII)
_MANYLINUX = re.compile(r"manylinux_([0-9]{1,3})_([0-9]{1,3})_\w+", re.ASCII)
_LEGACY = {name: (2, minor) for minor, name in LEGACY_MANYLINUX.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The highest version of a library's symbols that something needs."""

    version: str
    """`2.34`, `3.4.22`."""

    label: str
    """Of the package that needs it, for a person."""

    package: str
    path: str
    """Of the binary, as findings show it: the first one that needs this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """What an environment needs of the libraries of a host; None where it needs nothing."""

    glibc: Floor | None = None
    glibcxx: Floor | None = None
    cxxabi: Floor | None = None


def measured_floors(closure: Closure) -> Floors:
    """What the binaries of an environment need of glibc and libstdc++, with the binary that needs most."""
    return Floors(glibc=_floor(closure, GLIBC), glibcxx=_floor(closure, GLIBCXX), cxxabi=_floor(closure, CXXABI))


@check("glibc-too-old")
def glibc_too_old(closure: Closure) -> Iterable[Finding]:
    """No binary needs a newer glibc than the target has.

    What counts is what the binaries need, not what the wheel's tag says.

    Severity: error.

    Why: a wheel whose tag promises too much is installed and fails when it is imported: ``version `GLIBC_2.38' not found``.

    Example:
        error: demo 1.0 has 1 binary that needs GLIBC_2.38, the target has glibc 2.35: `demo/_core.abi3.so`

    How to mend: choose a release of the package that is built for older systems; or raise `glibc` in [target] if every host
    has the newer one.
    """
    glibc = closure.spec.target.glibc
    target = "this machine" if closure.is_installed else "the target"
    for wheel in closure.wheels:
        hint = f"choose a release of {wheel.facts.name} for older systems, or raise `glibc` in [target] if every host has it"
        finding = _finding("glibc-too-old", "error", wheel, hint)
        yield from _exceeding(closure, wheel, {GLIBC: _parsed(glibc)}, finding, after=f", {target} has glibc {glibc}")


@check("libstdcxx-too-old")
def libstdcxx_too_old(closure: Closure) -> Iterable[Finding]:
    """No binary needs a newer libstdc++ than systems with the target's glibc have.

    The spec states no libstdc++, so that of the distributions with this glibc is taken: GLIBCXX_3.4.30 for 2.35. A wheel that
    brings its own libstdc++ is not judged.

    Severity: warning, as a host may have a newer one: it comes with the compiler, not with glibc.

    Why: it fails when it is imported: ``version `GLIBCXX_3.4.32' not found``.

    Example:
        warning: demo 1.0 has 1 binary that needs GLIBCXX_3.4.32, systems with glibc 2.35 have GLIBCXX_3.4.30 and
        CXXABI_1.3.13: `demo/_C.so`

    How to mend: choose a release of the package that is built for older systems. If every host has the newer libstdc++, waive
    it.
    """
    glibc = closure.spec.target.glibc
    offered = _libstdcxx_beside(_parsed(glibc))
    if offered is None:
        return
    has = joined([_named(family, version) for family, version in offered.items()])
    for wheel in closure.wheels:
        hint = f"choose a release of {wheel.facts.name} for older systems, or waive it if every host has the newer libstdc++"
        finding = _finding("libstdcxx-too-old", "warning", wheel, hint)
        yield from _exceeding(closure, wheel, offered, finding, after=f", systems with glibc {glibc} have {has}")


@check("tag-understates")
def tag_understates(closure: Closure) -> Iterable[Finding]:
    """No binary needs more of the host than the platform tag of its wheel promises.

    A tag `manylinux_2_17` (or `manylinux2014`) promises that the wheel runs on every system with glibc 2.17; of several tags
    the oldest one counts. For libstdc++ the policy of the tag is taken, which is what such systems have.

    Severity: warning. Whether the target is new enough is another matter: `glibc-too-old`, `libstdcxx-too-old`.

    Why: on an older host that the tag allows, the wheel is installed and fails when it is imported. A lock for such hosts
    must not rely on the tag; that this one does not, `glibc` in [target] shows.

    Example:
        warning: nvidia-cusparselt-cu13 0.8.0 is tagged for glibc 2.17 and has 1 binary that needs GLIBC_2.27:
        `nvidia/cusparselt/lib/libcusparseLt.so.0`

    How to mend: nothing for this target; report it to the package. Waive it once it is known.
    """
    for wheel in closure.wheels:
        promised = promised_glibc(wheel.facts.filename)
        if promised is None:
            continue
        limits = {GLIBC: _allowed_glibc(wheel, promised), **(_libstdcxx_beside(promised) or {})}
        hint = f"nothing to do where the target (glibc {closure.spec.target.glibc}) has it; report it to the package"
        finding = _finding("tag-understates", "warning", wheel, hint)
        tagged = f" is tagged for glibc {_text(promised)} and"
        yield from _exceeding(closure, wheel, limits, finding, before=tagged)


def promised_glibc(filename: str) -> Version | None:
    """The oldest glibc that a wheel's tags promise to run with, such as (2, 17); None if they promise none."""
    stated = split_wheel_name(filename)
    if stated is None:
        return None
    promises: list[Version] = []
    for tag in stated[3].rpartition("-")[2].split("."):
        legacy = tag.partition("_")[0]
        if found := _MANYLINUX.fullmatch(tag):
            promises.append((int(found[1]), int(found[2])))
        elif legacy in _LEGACY:
            promises.append(_LEGACY[legacy])
    return min(promises, default=None)


def _exceeding(
    closure: Closure,
    wheel: ClosureWheel,
    limits: Mapping[str, Version],
    finding: Finding,
    *,
    before: str = "",
    after: str = "",
) -> Iterator[Finding]:
    """The findings of a wheel whose binaries need more than some versions.

    Args:
        closure: The environment.
        wheel: Of it.
        limits: Family of versions -> the highest one that is there.
        finding: Without message and evidence.
        before: What the message says after the package's name.
        after: What the message says after the versions that are needed.
    """
    above = {
        path: kept
        for path, needs in _needs(closure, wheel)
        if (kept := {family: version for family, version in needs.items() if version > limits.get(family, version)})
    }
    details = {path: f"needs {_shown(needs)}" for path, needs in above.items()}

    def message(paths: Sequence[str]) -> str:
        worst: dict[str, Version] = {}
        for path in paths:
            for family, version in above[path].items():
                worst[family] = max(worst.get(family, ()), version)
        binaries = f"{counted(len(paths), 'binary', 'binaries')} that {'needs' if len(paths) == 1 else 'need'}"
        # The one that needs most comes first: it is what has to be mended.
        by_need = sorted(paths, key=lambda path: sorted(above[path].items()) == sorted(worst.items()), reverse=True)
        return f"{wheel.label}{before} has {binaries} {_shown(worst)}{after}: {examples(by_need)}"

    yield from findings_of_paths(closure.spec.waivers, finding, details, message)


def _finding(check_id: str, severity: Severity, wheel: ClosureWheel, hint: str) -> Finding:
    return Finding(
        check=check_id, severity=severity, subject=wheel.label, message="", hint=hint, packages=(wheel.facts.name,)
    )


def _floor(closure: Closure, family: str) -> Floor | None:
    found = [
        (version, wheel, path)
        for wheel in closure.wheels
        for path, needs in _needs(closure, wheel)
        if (version := needs.get(family, ()))
    ]
    if not found:
        return None
    highest = max(version for version, _, _ in found)
    _, wheel, path = min((each for each in found if each[0] == highest), key=lambda each: (each[1].facts.name, each[2]))
    return Floor(version=_text(highest), label=wheel.label, package=wheel.facts.name, path=path)


def _needs(closure: Closure, wheel: ClosureWheel) -> Iterator[tuple[str, dict[str, Version]]]:
    """For each binary that may run on the target, the highest version of each family that it needs."""
    machine = closure.spec.target.platform.partition("-")[2]
    binaries = wheel.facts.binaries.binaries
    brings_libstdcxx = any(LIBSTDCXX in (binary.soname, binary.name) for binary in binaries)
    for binary in binaries:
        if binary.machine == machine and binary.version_needs:
            yield wheel.shown_path(binary.path), _highest(binary, brings_libstdcxx=brings_libstdcxx)


def _highest(binary: Binary, *, brings_libstdcxx: bool) -> dict[str, Version]:
    highest: dict[str, Version] = {}
    for library, versions in binary.version_needs:
        for name in versions:
            found = _VERSION.fullmatch(name)
            family = found[1] if found else GLIBC
            version = _parsed(found[2]) if found else _NAMED_VERSIONS.get(name, ())
            # A libstdc++ under another name, or of the wheel's own, is not the host's.
            if version and (family == GLIBC or (library == LIBSTDCXX and not brings_libstdcxx)):
                highest[family] = max(highest.get(family, ()), version)
    return highest


def _libstdcxx_beside(glibc: Version) -> dict[str, Version] | None:
    """The highest versions of libstdc++ on systems with a glibc; None if it is older than the table."""
    row = bisect_right([known for known, _, _ in LIBSTDCXX_BESIDE], glibc) - 1
    if row < 0:
        return None
    _, glibcxx, cxxabi = LIBSTDCXX_BESIDE[row]
    return {GLIBCXX: glibcxx, CXXABI: cxxabi}


def _allowed_glibc(wheel: ClosureWheel, promised: Version) -> Version:
    """The highest version of glibc's symbols that a promise allows: CentOS 7 for aarch64 had one of 2.18 in its 2.17."""
    return (2, 18) if promised == (2, 17) and wheel.facts.filename.endswith("_aarch64.whl") else promised


def _shown(needs: Mapping[str, Version]) -> str:
    """`GLIBC_2.27, GLIBCXX_3.4.22 and CXXABI_1.3.11`."""
    return joined([_named(family, needs[family]) for family in (GLIBC, GLIBCXX, CXXABI) if family in needs])


def _named(family: str, version: Version) -> str:
    return f"{family}_{_text(version)}"


def _parsed(version: str) -> Version:
    return tuple(int(part) for part in version.split("."))


def _text(version: Version) -> str:
    return ".".join(map(str, version))
