"""What the adopted wheels ask of each other, and what the venv does not keep of it.

Requirements are those of the published METADATA, which `envspec lock` resolves by, not those of the venv, which anybody may have edited.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envspec.adoption.values import Conflict, Pin
from envspec.adoption.versions import parsed_version
from envspec.spec_toml import DEFAULT_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envspec.adoption.values import Attribution, PublishedWheel


def target_markers(python: str, platform: str) -> dict[str, str]:
    """The environment that markers are evaluated in.

    Args:
        python: Full or minor version of CPython.
        platform: `linux-x86_64`.
    """
    full = python if python.count(".") > 1 else f"{python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": platform.partition("-")[2],
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": "linux",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the adopted packages ask for."""

    conflicts: tuple[Conflict, ...]
    """Requirements that the set does not keep, sorted by requester and line."""

    needed: frozenset[str]
    """Names that are asked for."""

    extras: Mapping[str, tuple[str, ...]]
    """Name -> extras of it that are asked for, sorted."""


def find_needs(wheels: Mapping[str, PublishedWheel], others: Mapping[str, str], markers: Mapping[str, str]) -> Needs:
    """What the set asks for, and what of it it does not keep; extras are followed.

    Args:
        wheels: Name -> the wheel that the spec pins.
        others: Name -> version of what the venv has beside them.
        markers: Of the target.
    """
    found: set[tuple[str, str, str]] = set()
    needed: set[str] = set()
    extras: dict[str, set[str]] = defaultdict(set)
    for requester, line, requirement in _requests(wheels, markers):
        name = canonicalize_name(requirement.name)
        needed.add(name)
        extras[name] |= {canonicalize_name(extra) for extra in requirement.extras}
        if name not in wheels or not (requirement.url or _fits(requirement, wheels[name].version)):
            found.add((requester.label, line, name))
    return Needs(
        conflicts=tuple(
            Conflict(
                requester=requester,
                line=line,
                name=name,
                version=wheels[name].version if name in wheels else "",
                there="" if name in wheels else others.get(name, ""),
            )
            for requester, line, name in sorted(found)
        ),
        needed=frozenset(needed),
        extras={name: tuple(sorted(asked)) for name, asked in extras.items() if asked},
    )


def make_pins(
    attributions: Sequence[Attribution],
    wheels: Mapping[str, PublishedWheel],
    needs: Needs,
    stand_ins: Mapping[str, str],
) -> tuple[Pin, ...]:
    """Every adopted package with its exact version, sorted by name.

    Args:
        attributions: Say what was asked for.
        wheels: Name -> the wheel that is pinned.
        needs: What they ask for.
        stand_ins: Name -> version that the index has of packages that the venv has with other bytes.
    """
    asked = {each.distribution.name for each in attributions if each.distribution.requested}
    if all(each.distribution.requested for each in attributions):
        asked = set()  # as uv leaves it: then it says nothing
    pins = [
        Pin(
            name=name,
            version=wheel.version,
            wanted=name in asked or name not in needs.needed,
            index="" if wheel.index == DEFAULT_INDEX else wheel.index,
        )
        for name, wheel in wheels.items()
    ]
    pins += [
        Pin(name=name, version=version, wanted=False, stands_in=True)
        for name, version in stand_ins.items()
        if name in needs.needed and name not in wheels
    ]
    return tuple(sorted(pins, key=lambda pin: pin.name))


def _requests(
    wheels: Mapping[str, PublishedWheel], markers: Mapping[str, str]
) -> Iterator[tuple[PublishedWheel, str, Requirement]]:
    """Every requirement that applies: that of a wheel itself, and those of its extras that others ask for."""
    pending = deque((name, "") for name in sorted(wheels))
    seen = set(pending)
    while pending:
        name, extra = pending.popleft()
        wheel = wheels[name]
        for line in wheel.requires_dist:
            requirement = _parsed(line)
            if requirement is None or not _applies(requirement, markers, extra):
                continue
            if extra and _applies(requirement, markers, ""):
                continue  # it was there without the extra
            yield wheel, line, requirement
            asked = canonicalize_name(requirement.name)
            for each in sorted(requirement.extras):
                step = (asked, canonicalize_name(each))
                if asked in wheels and step not in seen:
                    seen.add(step)
                    pending.append(step)


def _parsed(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except (ValueError, RecursionError):
        return None


def _applies(requirement: Requirement, markers: Mapping[str, str], extra: str) -> bool:
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({**markers, "extra": extra})
    except (ValueError, RecursionError, KeyError):
        return False


def _fits(requirement: Requirement, version: str) -> bool:
    parsed = parsed_version(version)
    try:
        return parsed is not None and requirement.specifier.contains(parsed, prereleases=True)
    except ValueError:
        return False
