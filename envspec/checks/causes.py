"""Why binaries do not fit together: what the linker and the traces of CUDA say, sorted by cause.

A wheel that was built for another CUDA shows in a dozen places: libraries that are missing, symbols that torch does not export, notes in its GPU
code, the local part of a version. These are one cause. What remains once the causes that explain most are taken away is reported by itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from envspec.cuda import (
    CudaTrace,
    is_torch_library,
    is_torch_symbol,
    most_precise,
    trace_of_label,
    trace_of_version,
    traces_of_binary,
)
from envspec.layout import normalise_name, split_wheel_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.linker import Missing, MissingVersion, Unbound
    from envspec.links import Links


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What the others are measured by: torch, or the spec where there is no torch."""

    wheel: ClosureWheel | None
    label: str
    """`torch 2.11.0`, or `the spec`."""

    major: int
    release: str
    """`13.0`."""

    traces: tuple[CudaTrace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaConflict:
    """Wheels that are built for another CUDA than the anchor."""

    anchor: Anchor
    major: int
    members: tuple[tuple[ClosureWheel, tuple[CudaTrace, ...]], ...]
    """The wheels, sorted, each with the traces of that CUDA."""

    loads: bool
    """Whether all of them load nevertheless, with a second CUDA runtime beside the first."""


@dataclass(frozen=True, kw_only=True)
class Causes:
    """Everything that keeps an environment from loading, each trouble under one cause."""

    anchor: Anchor | None
    conflicts: tuple[CudaConflict, ...]
    torch_abi: tuple[tuple[ClosureWheel, tuple[Unbound, ...]], ...]
    """Wheels that need symbols which torch does not export."""

    missing: tuple[tuple[ClosureWheel, tuple[Missing, ...]], ...]
    """Libraries that some wheel should provide."""

    host: tuple[tuple[str, tuple[Missing, ...]], ...]
    """Sonames that the host would have to offer, with who needs them."""

    unbound: tuple[tuple[ClosureWheel, tuple[Unbound, ...]], ...]
    """Other symbols that nothing defines."""

    late: tuple[tuple[ClosureWheel, tuple[Unbound, ...]], ...]
    """Symbols that something loaded exports, but to those only that are linked against it."""

    versions: tuple[tuple[ClosureWheel, tuple[MissingVersion, ...]], ...]


def find_causes(closure: Closure) -> Causes:
    """Sort what `closure.links` found by cause."""
    links = closure.links
    wheels = {wheel.facts.name: wheel for wheel in closure.wheels}
    anchor = find_anchor(closure)
    conflicts = _conflicts(closure, anchor)
    explained = {wheel.facts.name for conflict in conflicts for wheel, _ in conflict.members}
    exported_by_loaded = [links.linker.objects[path].exported for path in links.world.paths]
    torch_abi: dict[str, list[Unbound]] = defaultdict(list)
    unbound: dict[str, list[Unbound]] = defaultdict(list)
    late: dict[str, list[Unbound]] = defaultdict(list)
    missing: dict[str, list[Missing]] = defaultdict(list)
    host: dict[str, list[Missing]] = defaultdict(list)
    versions: dict[str, tuple[MissingVersion, ...]] = {}
    for name, troubles in links.fatal.items():
        for absent in troubles.missing:
            if links.is_of_a_wheel(absent.soname):
                if name not in explained:
                    missing[name].append(absent)
            else:
                host[absent.soname].append(absent)
        if name in explained:
            continue
        if troubles.versions:
            versions[name] = troubles.versions
        for each in troubles.unbound:
            if any(each.reference.name in names for names in exported_by_loaded):
                late[name].append(each)
            elif "torch" in wheels and name != "torch" and is_torch_symbol(each.reference.name):
                torch_abi[name].append(each)
            else:
                unbound[name].append(each)
    return Causes(
        anchor=anchor,
        conflicts=conflicts,
        torch_abi=tuple((wheels[name], tuple(found)) for name, found in sorted(torch_abi.items())),
        missing=tuple((wheels[name], tuple(found)) for name, found in sorted(missing.items())),
        host=tuple((soname, tuple(found)) for soname, found in sorted(host.items())),
        unbound=tuple((wheels[name], tuple(found)) for name, found in sorted(unbound.items())),
        late=tuple((wheels[name], tuple(found)) for name, found in sorted(late.items())),
        versions=tuple((wheels[name], found) for name, found in sorted(versions.items())),
    )


def find_anchor(closure: Closure) -> Anchor | None:
    """What decides the CUDA of an environment; None if nothing does."""
    torch = next((wheel for wheel in closure.wheels if wheel.facts.name == "torch"), None)
    if torch is not None:
        traces = cuda_traces(torch, closure.links)
        stated = [trace for trace in traces if "version.py says `cuda" in trace.text] or list(traces)
        if stated:
            major = stated[0].major
            same = tuple(trace for trace in traces if trace.major == major)
            return Anchor(wheel=torch, label=torch.label, major=major, release=most_precise(stated[:1]), traces=same)
    if closure.spec.cuda is None:
        return None
    toolkit = closure.spec.cuda.toolkit
    text = f'the spec says `toolkit = "{toolkit}"`'
    major = int(toolkit.partition(".")[0])
    return Anchor(wheel=None, label="the spec", major=major, release=toolkit, traces=(CudaTrace(major, toolkit, text),))


def cuda_traces(wheel: ClosureWheel, links: Links) -> tuple[CudaTrace, ...]:
    """What says for which CUDA a wheel was built: its binaries that have to load, its labels, and its version.

    Plugins, dead extensions and variants say nothing: one of several may be for another CUDA.
    """
    facts = wheel.facts
    found: dict[CudaTrace, None] = {}
    for binary in facts.binaries.binaries:
        role = links.roles.get(binary.path)
        if role in ("extension", "torch", "dependency") and binary.path not in links.in_variants:
            found.update(dict.fromkeys(traces_of_binary(binary, wheel.shown_path(binary.path))))
    labels = [trace_of_label(*label) for label in facts.binaries.labels]
    labels.append(trace_of_version(facts.version, f"{facts.filename} METADATA"))
    stated = split_wheel_name(facts.filename)
    if stated and stated[1] != facts.version:
        labels.append(trace_of_version(stated[1], "the name of the file"))
    found.update(dict.fromkeys(label for label in labels if label is not None))
    return tuple(found)


def unmet_pins(wheel: ClosureWheel, on: ClosureWheel) -> tuple[str, ...]:
    """The requirements of a wheel on another one that do not hold, overridden or not."""
    found = []
    for line in wheel.facts.requires_dist:
        try:
            requirement = Requirement(line)
        except (InvalidRequirement, RecursionError):
            continue
        if normalise_name(requirement.name) != on.facts.name or requirement.marker is not None:
            continue
        try:
            if not requirement.specifier.contains(on.facts.version, prereleases=True):
                found.append(f"{wheel.facts.name} METADATA: Requires-Dist: {line}")
        except ValueError:
            continue
    return tuple(found)


def _conflicts(closure: Closure, anchor: Anchor | None) -> tuple[CudaConflict, ...]:
    if anchor is None:
        return ()
    links = closure.links
    by_major: dict[int, list[tuple[ClosureWheel, tuple[CudaTrace, ...]]]] = defaultdict(list)
    for wheel in closure.wheels:
        if wheel is anchor.wheel or _is_toolkit(wheel):
            continue
        traces = cuda_traces(wheel, links)
        majors = sorted({trace.major for trace in traces} - {anchor.major})
        if majors and _binds(wheel, majors, anchor.major, traces, links):
            other = tuple(trace for trace in traces if trace.major == majors[0])
            by_major[majors[0]].append((wheel, other))
    return tuple(
        CudaConflict(
            anchor=anchor,
            major=major,
            members=tuple(members),
            loads=not any(_is_broken(wheel.facts.name, links) for wheel, _ in members),
        )
        for major, members in sorted(by_major.items())
    )


def _is_broken(name: str, links: Links) -> bool:
    """Whether a package does not load, whatever libraries the host has."""
    troubles = links.fatal.get(name)
    if troubles is None:
        return False
    return bool(troubles.unbound or troubles.versions) or any(
        links.is_of_a_wheel(each.soname) for each in troubles.missing
    )


def _is_toolkit(wheel: ClosureWheel) -> bool:
    """Whether a wheel is a part of CUDA itself, which is for one CUDA by what it is."""
    return wheel.facts.name.startswith(("nvidia-", "cuda-"))


def _binds(
    wheel: ClosureWheel, majors: Sequence[int], anchor_major: int, traces: Iterable[CudaTrace], links: Links
) -> bool:
    """Whether traces of other CUDAs mean that the wheel does not fit.

    It does not if it needs a library of another CUDA. Code that carries its own CUDA runtime inside (statically linked) runs beside any other;
    but not if it is linked against torch as well, since then it hands objects of one runtime to the other.
    """
    shares_torch = False
    for binary in wheel.facts.binaries.binaries:
        if links.roles.get(binary.path) not in ("extension", "torch", "dependency") or binary.path in links.in_variants:
            continue
        shares_torch = shares_torch or any(is_torch_library(name) for name in binary.needed)
        for trace in traces_of_binary(binary, ""):
            if trace.major in majors and " needs " in trace.text:
                return True
    return shares_torch and not any(trace.major == anchor_major for trace in traces)
