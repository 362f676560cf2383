"""What checks judge: every wheel of an environment, with the spec that asked for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envspec.checks.causes import Causes
    from envspec.facts import WheelFacts
    from envspec.links import Links
    from envspec.lock import LockedPackage
    from envspec.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureWheel:
    """One wheel of an environment, and how it came into it."""

    facts: WheelFacts
    """Of the wheel that is installed: the patched one where there is an overlay."""

    index: str = "default"
    """Name of the index that it came from; never a URL."""

    yanked: str = ""
    """Why the index withdrew the file; empty if it did not. A file that was withdrawn without a reason has `no reason given`."""

    required_by: tuple[str, ...] = ()
    """Normalised names of the packages that ask for it, sorted."""

    base_file: str = ""
    """File name of the wheel below the overlay; empty if there is no overlay."""

    base_sha256: str = ""
    """Of the wheel below the overlay; empty if there is no overlay."""

    @property
    def label(self) -> str:
        """Name and version for a person: `torch 2.11.0`."""
        return f"{self.facts.name} {self.facts.version}".strip()

    @property
    def site_packages(self) -> str:
        """The folder of the environment that Python imports from, with a slash at the end."""
        return f"lib/python{self.facts.python}/site-packages/"

    def shown_path(self, path: str) -> str:
        """A path of the environment as findings and waivers write it: relative to site-packages if it lies there.

        Example:
            `lib/python3.12/site-packages/torch/__init__.py` is shown as `torch/__init__.py`, `bin/torchrun` stays.
        """
        return path.removeprefix(self.site_packages)


@dataclass(frozen=True, kw_only=True)
class Closure:
    """An environment as it is about to be locked."""

    spec: Spec
    wheels: tuple[ClosureWheel, ...]
    accepted_tags: tuple[str, ...]
    """Every tag that the target installs, such as `cp312-abi3-manylinux_2_28_x86_64`."""

    previous: tuple[LockedPackage, ...] = ()
    """Packages of the lock before; empty if there is none."""

    place: str = "the lock"
    """What findings call the environment: `the lock`, or `the venv` of one that is installed."""

    offered: frozenset[str] | None = None
    """Sonames that the very machine offers, where that is known; None for the profile of a host and what the spec declares."""

    @cached_property
    def links(self) -> Links:
        """What loads in the environment and what does not."""
        from envspec.links import analyse  # noqa: PLC0415 - it takes a closure itself

        return analyse(self)

    @cached_property
    def causes(self) -> Causes:
        """Why binaries do not fit together."""
        from envspec.checks.causes import find_causes  # noqa: PLC0415 - it takes a closure itself

        return find_causes(self)

    @property
    def is_installed(self) -> bool:
        """Whether it was seen on a machine, and not decided for some."""
        return self.place != "the lock"

    @property
    def asked_by(self) -> str:
        """What findings call whatever says which Python it is: `the spec`, or the venv itself."""
        return self.place if self.is_installed else "the spec"

    @property
    def markers(self) -> dict[str, str]:
        """The environment of the target in which markers (PEP 508) are judged; `extra` is left to each requirement.

        Without an exact Python the patch level is 0. What the spec does not say, the kernel's release and version, is empty.
        """
        python = self.spec.python
        full_version = python.exact or f"{python.version}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full_version,
            "os_name": "posix",
            "platform_machine": self.spec.target.platform.partition("-")[2],
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full_version,
            "python_version": python.version,
            "sys_platform": "linux",
        }

    def in_order(self) -> Closure:
        """The same closure with its wheels sorted, so that findings do not depend on the order in which they were measured."""
        key = sorted(
            self.wheels,
            key=lambda wheel: (wheel.facts.name, wheel.facts.version, wheel.facts.filename, wheel.facts.sha256),
        )
        return replace(self, wheels=tuple(key))
