"""Which version goes with others: the port through which fixes ask an index, and what a venv itself says of its packages.

`builder.offering` asks uv, tests answer from a table.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from packaging.requirements import InvalidRequirement, Requirement

from envspec.diagnosis.installed import parsed_version
from envspec.diagnosis.modules import is_known, projects_of
from envspec.forms import normalise_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diagnosis.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A version that an index has."""

    version: str
    proof: str
    """How it was checked: `uv resolves it together with torch 2.11.0`."""


class Index(Protocol):
    """Where versions are looked up; it may be asked several times for one diagnosis, and may take seconds for each."""

    def best(self, name: str, requirements: Sequence[str], constraints: Sequence[str] = ()) -> Offer | None:
        """The newest version of a package that goes with some requirements; None if there is none, or nobody can be asked.

        Args:
            name: Normalised.
            requirements: PEP 508, those on the package itself included: `torchvision`, `torch==2.11.0`.
            constraints: Versions that other packages must have, if the package needs them at all.
        """


class NoIndex:
    """Nobody is asked."""

    def best(self, name: str, requirements: Sequence[str], constraints: Sequence[str] = ()) -> Offer | None:  # noqa: ARG002 - the port's
        """None."""
        return None


def fitting(index: Index, name: str, requirements: Sequence[str], scene: Scene) -> Offer | None:
    """A version that leaves everything else in the venv as it is; where there is none, one that goes with the requirements alone."""
    others = tuple(
        f"{other}=={public(scene.true_version(other))}"
        for other in scene.chosen
        if other != name and parsed_version(scene.true_version(other)) is not None
    )
    return index.best(name, requirements, others) or index.best(name, requirements)


def asked_of(scene: Scene, wanted: str) -> list[str]:
    """What the packages of the venv require of one, without markers and extras, each once, sorted."""
    found: set[str] = set()
    for wheel in scene.closure.wheels:
        for line in wheel.facts.requires_dist:
            try:
                requirement = Requirement(line)
                applies = requirement.marker is None or requirement.marker.evaluate(
                    {**scene.closure.markers, "extra": ""}
                )
            except (InvalidRequirement, ValueError, RecursionError):
                continue
            if normalise_name(requirement.name) == wanted and applies and requirement.url is None:
                found.add(f"{wanted}{requirement.specifier}")
    return sorted(found)


def may_name(scene: Scene, module: str, project: str) -> bool:
    """Whether a project may be named for a module: it is known to publish it, or a package of the venv asks for it, if only by an extra.

    That a project has the name of a module says nothing: anyone can have published it.
    """
    if is_known(module) or project not in projects_of(module):
        return True
    lines = (line for wheel in scene.closure.wheels for line in wheel.facts.requires_dist)
    return any(name_of_requirement(line) == project for line in lines)


def name_of_requirement(line: str) -> str:
    """The project that a requirement names, normalised; empty if it cannot be read."""
    try:
        return normalise_name(Requirement(line).name)
    except (InvalidRequirement, RecursionError):
        return ""


def pins_of(scene: Scene, wanted: str) -> list[str]:
    """Torch as it is, where the package may need it: a version that would bring another one is no fix."""
    torch = scene.true_version("torch") if wanted != "torch" else ""
    return [f"torch=={public(torch)}"] if parsed_version(torch) and wanted in BUILT_ON_TORCH else []


BUILT_ON_TORCH = frozenset(
    {
        "torchvision",
        "torchaudio",
        "torchcodec",
        "xformers",
        "flash-attn",
        "sgl-kernel",
        "sglang-kernel",
        "vllm",
        "torchao",
    }
)
"""Packages whose releases are made for one torch each."""


def is_pin_on(line: str, name: str) -> bool:
    """Whether a requirement names exactly one version of a package."""
    try:
        requirement = Requirement(line)
    except (InvalidRequirement, RecursionError):
        return False
    return normalise_name(requirement.name) == name and any(
        each.operator in ("==", "===") for each in requirement.specifier
    )


def allows(requirement: str, version: str) -> bool:
    """Whether a requirement accepts a version; not if one of the two cannot be read."""
    try:
        return Requirement(requirement).specifier.contains(version, prereleases=True)
    except (InvalidRequirement, ValueError, RecursionError):
        return False


def public(version: str) -> str:
    """A version without its local part; as it is if it cannot be read."""
    found = parsed_version(version)
    return found.public if found else version


def install_command(scene: Scene, specs: Sequence[str], *options: str) -> str:
    """What installs some versions into the venv."""
    return " ".join(["uv pip install --python", python_of(scene), *options, *map(shlex.quote, specs)])


def python_of(scene: Scene) -> str:
    """The venv's interpreter, as a shell takes it."""
    return shlex.quote(f"{scene.observation.prefix.rstrip('/')}/bin/python")
