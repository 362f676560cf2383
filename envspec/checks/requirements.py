"""What wheels require of each other and of the interpreter.

A resolver has checked these already, unless an override, a copied file or a mirror came between; and none checks the patch level of the
interpreter. `packaging` decides what a specifier and a marker mean.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.checks.registry import check
from envspec.checks.wording import joined
from envspec.facts import Finding, Severity
from envspec.layout import normalise_name, split_wheel_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.facts import WheelFacts

PATCH_LEVELS = 64
"""Patch levels of a minor version that are tried; no CPython has had more than 21."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A requirement of a wheel that applies on the target."""

    wheel: ClosureWheel
    line: str
    requirement: Requirement
    extra: str

    @property
    def name(self) -> str:
        return normalise_name(self.requirement.name)


@check("requires-dist")
def requires_dist(closure: Closure) -> Iterable[Finding]:
    """Every requirement of every wheel holds inside the set.

    Extras and markers are followed for the target exactly as a resolver does. A package that the spec overrides is judged
    against the override alone.

    Severity: error. A requirement that cannot be read is a warning where it belongs to an extra.

    Why: a requirement is the one statement that a wheel makes about the others. Overrides, wheels of several indexes and
    files copied over an environment all get round the resolver, and what fails then is an import far away: torchvision built
    for another torch shows as `operator torchvision::nms does not exist`.

    Example:
        error: torchvision 0.24.1 requires `torch==2.9.1`, the lock has torch 2.11.0

    How to mend: choose versions that fit each other in [packages]. If the requirement is known to be wrong, replace it in
    [overrides], where every review shows it.
    """
    wheels: dict[str, list[ClosureWheel]] = defaultdict(list)
    for wheel in closure.wheels:
        wheels[wheel.facts.name].append(wheel)
    overrides = {override.name: override for override in closure.spec.overrides}
    requests, unreadable = _active_requests(closure)

    for wheel, line, reason in unreadable:
        rest = line.partition(";")[2]
        yield Finding(
            check="requires-dist",
            severity="warning" if "extra" in rest else "error",
            subject=wheel.label,
            message=f"{wheel.label} has a requirement that cannot be read: `{line}`",
            evidence=(reason,),
            hint="report it to the package; waive it if the requirement does not matter",
            packages=(wheel.facts.name,),
        )

    wanted = {request.name for request in requests} | {root.name for root in closure.spec.packages}
    for override in overrides.values():
        if override.name in wanted:
            yield from _judge(
                subject=f"override of {override.name}",
                place=closure.place,
                asks=f"the override asks for `{override.name}{override.specifier}`",
                specifier=override.specifier,
                name=override.name,
                candidates=wheels[override.name],
                packages=(override.name,),
                evidence=(f"{closure.spec.name} [overrides]",),
            )
    for root in closure.spec.packages:
        if root.name not in overrides:
            yield from _judge(
                subject=root.name,
                place=closure.place,
                asks=f"the spec asks for `{_shown(root.name, root.extras, root.specifier)}`",
                specifier=root.specifier,
                name=root.name,
                candidates=wheels[root.name],
                packages=(root.name,),
                evidence=(f"{closure.spec.name} [packages]",),
            )
    for request in requests:
        if request.name in overrides:
            continue
        requirement = request.requirement
        # A requirement by URL names a file, not a version: that the package is there is all that can be asked.
        specifier = "" if requirement.url else str(requirement.specifier)
        through = f" (extra `{request.extra}`)" if request.extra else ""
        yield from _judge(
            subject=request.wheel.label,
            place=closure.place,
            asks=f"{request.wheel.label} requires `{_shown(requirement.name, requirement.extras, specifier)}`",
            specifier=specifier,
            name=request.name,
            candidates=wheels[request.name],
            packages=tuple(dict.fromkeys((request.wheel.facts.name, request.name))),
            evidence=(f"{request.wheel.facts.filename} METADATA: Requires-Dist: {request.line}{through}",),
        )


def required_names(closure: Closure) -> dict[str, tuple[str, ...]]:
    """Name of each package -> names of the packages of the closure that it needs on the target, extras followed, sorted."""
    names = {wheel.facts.name for wheel in closure.wheels}
    found: dict[str, set[str]] = defaultdict(set)
    for request in _active_requests(closure)[0]:
        found[request.wheel.facts.name].add(request.name)
    return {name: tuple(sorted((found[name] & names) - {name})) for name in found}


@check("requires-python")
def requires_python(closure: Closure) -> Iterable[Finding]:
    """Every wheel accepts the interpreter of the environment, down to its patch level.

    Severity: error if no interpreter of the spec is accepted; warning if some patch levels are not, and for a
    `Requires-Python` that cannot be read.

    Why: installers compare only what they were told of the interpreter, and none refuses `!=3.14.1` when the lock was made
    for `3.14`. Such an exclusion always has a reason: that patch level breaks the package.

    Example:
        error: torchvision 0.29.1 requires Python `!=3.14.1,>=3.10`, the spec has 3.14.1

    How to mend: set another `exact` in [python], or leave it out; `build` then refuses a host whose patch level is excluded.
    """
    python = closure.spec.python
    excluded_by_text: dict[str, tuple[int, ...] | None] = {}
    for wheel in closure.wheels:
        text = wheel.facts.requires_python
        if not text.strip():
            continue
        if text not in excluded_by_text:
            excluded_by_text[text] = _excluded_patch_levels(text, python.version, python.exact)
        excluded = excluded_by_text[text]
        if excluded == ():
            continue
        severity: Severity = "error"
        hint = "choose another version of the package or of Python"
        if excluded is None:
            severity = "warning"
            message = f"{wheel.label} has a `Requires-Python` that cannot be read: `{text}`"
            hint = "report it to the package; waive it if the package runs"
        elif python.exact or len(excluded) == PATCH_LEVELS:
            message = f"{wheel.label} requires Python `{text}`, {closure.asked_by} has {python.exact or python.version}"
        else:
            severity = "warning"
            message = f"{wheel.label} excludes Python {_shown_patch_levels(python.version, excluded)}"
            hint = "`build` refuses a host with such a Python; `exact` in [python] settles it for all hosts"
        yield Finding(
            check="requires-python",
            severity=severity,
            subject=wheel.label,
            message=message,
            evidence=(f"{wheel.facts.filename} METADATA: Requires-Python: {text}",),
            hint=hint,
            packages=(wheel.facts.name,),
        )


def _judge(
    *,
    subject: str,
    place: str,
    asks: str,
    specifier: str,
    name: str,
    candidates: Sequence[ClosureWheel],
    packages: tuple[str, ...],
    evidence: tuple[str, ...],
) -> Iterator[Finding]:
    """The finding of one requirement, if it does not hold."""
    if not candidates:
        has, hint = f"{place} has no {name}", "run `envspec lock`; an override or an edited file may have removed it"
    else:
        unfit = [wheel for wheel in candidates if not _fits(specifier, wheel.facts)]
        if not unfit:
            return
        has = f"{place} has {joined([wheel.label for wheel in unfit])}"
        hint = "choose versions that fit each other in [packages], or replace the requirement in [overrides]"
    yield Finding(
        check="requires-dist",
        severity="error",
        subject=subject,
        message=f"{asks}, {has}",
        evidence=evidence,
        hint=hint,
        packages=packages,
    )


def _active_requests(
    closure: Closure,
) -> tuple[list[_Request], list[tuple[ClosureWheel, str, str]]]:
    """The requirements of all wheels that apply on the target, and those that cannot be read.

    An extra that is asked for brings requirements, which may ask for extras: the queue runs until none is new.
    """
    environment = closure.markers
    overrides = {override.name: override for override in closure.spec.overrides}
    parsed: dict[str, list[tuple[ClosureWheel, str, Requirement]]] = defaultdict(list)
    unreadable: dict[tuple[int, str], tuple[ClosureWheel, str, str]] = {}
    for wheel in closure.wheels:
        for line in dict.fromkeys(wheel.facts.requires_dist):
            try:
                parsed[wheel.facts.name].append((wheel, line, Requirement(line)))
            except (InvalidRequirement, RecursionError) as error:
                unreadable[id(wheel), line] = (wheel, line, str(error).partition("\n")[0])

    queue = deque((name, "") for name in parsed)
    roots = [*overrides.values(), *(root for root in closure.spec.packages if root.name not in overrides)]
    queue.extend((root.name, extra) for root in roots for extra in root.extras)
    visited = set(queue)
    active: dict[tuple[int, str], _Request] = {}
    while queue:
        name, extra = queue.popleft()
        for wheel, line, requirement in parsed.get(name, ()):
            key = (id(wheel), line)
            if key in active or (extra and requirement.marker is None):
                continue
            applies = _applies(requirement, environment, extra)
            if applies is None:
                unreadable[key] = (wheel, line, "its marker cannot be judged")
            if not applies:
                continue
            active[key] = _Request(wheel, line, requirement, extra)
            target = normalise_name(requirement.name)
            extras = overrides[target].extras if target in overrides else requirement.extras
            for wanted in sorted(normalise_name(wanted) for wanted in extras):
                if (target, wanted) not in visited:
                    visited.add((target, wanted))
                    queue.append((target, wanted))
    return list(active.values()), list(unreadable.values())


def _applies(requirement: Requirement, environment: Mapping[str, str], extra: str) -> bool | None:
    """Whether a requirement applies where an extra is asked for; None if its marker cannot be judged."""
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({**environment, "extra": extra})
    except (ValueError, RecursionError):  # every error of packaging's is a ValueError
        return None


def _shown(name: str, extras: Iterable[str], specifier: str) -> str:
    """A requirement without its marker: `uvicorn[standard]>=0.30`."""
    wanted = ",".join(sorted(extras))
    return f"{name}[{wanted}]{specifier}" if wanted else f"{name}{specifier}"


def _fits(specifier: str, facts: WheelFacts) -> bool:
    """Whether the version of a wheel lies in a specifier; one that cannot be read is left to `version-mismatch`."""
    stated = split_wheel_name(facts.filename)
    version = _version(facts.version) or (_version(stated[1]) if stated else None)
    if version is None:
        return True
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except ValueError:
        return False


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except ValueError:  # besides InvalidVersion: a number of more digits than Python converts
        return None


def _excluded_patch_levels(text: str, minor: str, exact: str) -> tuple[int, ...] | None:
    """The patch levels that a `Requires-Python` excludes, of the exact Python or of all of a minor version; None if unreadable."""
    candidates = [exact] if exact else [f"{minor}.{patch}" for patch in range(PATCH_LEVELS)]
    try:
        accepted = SpecifierSet(text)
        return tuple(
            number
            for number, candidate in enumerate(candidates)
            if not accepted.contains(Version(candidate), prereleases=True)
        )
    except ValueError:
        return None


def _shown_patch_levels(minor: str, patches: Sequence[int]) -> str:
    """Patch levels as a person says them.

    Example:
        `3.12.0 to 3.12.3 and 3.12.9 and later`
    """
    runs: list[list[int]] = []
    for patch in patches:
        if runs and runs[-1][1] == patch - 1:
            runs[-1][1] = patch
        else:
            runs.append([patch, patch])
    words = []
    for first, last in runs:
        if last == PATCH_LEVELS - 1:
            words.append(f"{minor}.{first} and later")
        elif first == last:
            words.append(f"{minor}.{first}")
        else:
            words.append(f"{minor}.{first} to {minor}.{last}")
    return joined(words)
