"""The two sides of a review: a lock each, and what else is at hand to explain it.

Only the lock is needed. Without the spec nothing can be said about reasons and hosts; without the patches only that they changed; without facts
of a wheel nothing about its files. A review says which of these it lacked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.lock import Lock, LockedOverlay, LockedPackage, Part
    from envspec.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelContents:
    """What a wheel puts into an environment."""

    files: Mapping[str, tuple[str, int]]
    """Path in the environment -> sha256 and size in bytes."""

    scripts: tuple[str, ...]
    """Names in `bin/`."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two locks that are compared."""

    label: str
    """For a person: `HEAD (1a2b3c4d)`, `the working tree`, a file's name."""

    lock: Lock | None
    """None on the old side if there was no lock."""

    spec: Spec | None = None
    """The spec of the same revision; None if it is not at hand, or cannot be read."""

    spec_problem: str = ""
    """Why there is no spec."""

    patches: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    """Package and name of a patch -> its content, as far as it is at hand and has the locked sha256."""

    members: Mapping[tuple[str, str], bytes | None] = field(default_factory=dict)
    """Package and path -> a file as the patches leave it; None if they remove it. As far as the wheels are at hand."""

    contents: Mapping[str, WheelContents] = field(default_factory=dict)
    """sha256 of a wheel -> what is in it, as far as it was measured here."""

    @cached_property
    def packages(self) -> dict[str, LockedPackage]:
        """By name."""
        return {package.name: package for package in self.lock.packages} if self.lock else {}

    @cached_property
    def overlays(self) -> dict[str, LockedOverlay]:
        """By package."""
        return {overlay.package: overlay for overlay in self.lock.overlays} if self.lock else {}

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The wheels that are installed, by package."""
        from envspec.lock import parts  # noqa: PLC0415 - it hashes nothing, but its module does

        return {part.package: part for part in parts(self.lock)} if self.lock else {}

    @cached_property
    def requesters(self) -> dict[str, tuple[str, ...]]:
        """Package -> the packages that need it, sorted."""
        found: dict[str, list[str]] = {}
        for package in self.lock.packages if self.lock else ():
            for name in package.requires:
                found.setdefault(name, []).append(package.name)
        return {name: tuple(sorted(names)) for name, names in found.items()}

    @cached_property
    def wanted(self) -> frozenset[str]:
        """Names of the packages that the spec itself asks for; empty if it is not at hand."""
        return frozenset(requirement.name for requirement in self.spec.packages) if self.spec else frozenset()
