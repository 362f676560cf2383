"""What `envspec lock` will say of an adopted set, before a wheel is fetched: the same checks over what the venv shows of the pinned wheels.

Only files that are as published are looked at, since only those will be locked: a binary that somebody copied over another says nothing about
the wheel. What only the archives show (links in a wheel, a wrong RECORD) is left to the lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.adoption.values import Refusal
from envspec.binaries import BinaryFacts
from envspec.checks import Closure, ClosureWheel, run_checks
from envspec.facts import InstalledFile, WheelFacts
from envspec.host import DESKTOP_LIBRARIES, is_interpreter
from envspec.tags import target_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.adoption.values import Attribution, Fate, PublishedWheel
    from envspec.binaries import Binary
    from envspec.facts import Finding
    from envspec.observed import Observation, ObservedDistribution
    from envspec.spec import Spec

_ONLY_WHOLE = frozenset({"missing-library", "undefined-symbol", "no-fitting-variant"})
"""Checks that would miss what a file brings that is not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the lock will say."""

    libraries: tuple[str, ...]
    """Sonames that only hosts can offer, and that binaries cannot be loaded without; sorted."""

    refusals: tuple[Refusal, ...]
    """Errors beside those that naming the libraries mends."""


def predict(
    spec: Spec,
    observation: Observation,
    attributions: Sequence[Attribution],
    wheels: Mapping[str, PublishedWheel],
    fates: Iterable[Fate],
    yanked: Mapping[str, str],
) -> Prediction:
    """What the lock will say of a set.

    Args:
        spec: Of the set, without libraries in [target].
        observation: Of the venv.
        attributions: Of its distributions.
        wheels: Name -> the wheel that the spec pins.
        fates: Of its paths.
        yanked: Name -> reason of each wheel that its index withdrew.
    """
    same = {fate.path for fate in fates if fate.kind == "same"}
    distributions = {each.distribution.name: each.distribution for each in attributions if each.wheel is not None}
    binaries = _binaries(observation, same)
    seen = {binary.path for binary in binaries}
    looked_at = all(
        file.path in seen or file.path in same or not _may_be_library(file.path)
        for wheel in wheels.values()
        for file in wheel.files
    )
    closure = Closure(
        spec=spec,
        wheels=tuple(
            ClosureWheel(
                facts=_facts(wheel, distributions.get(name), binaries, same, spec.python.version),
                index=wheel.index,
                yanked=yanked.get(name, ""),
            )
            for name, wheel in sorted(wheels.items())
        ),
        accepted_tags=tuple(
            map(
                str,
                target_tags(python=spec.python.version, platform=spec.target.platform, glibc=spec.target.glibc),
            )
        ),
    )
    libraries = tuple(
        sorted(
            {
                soname
                for soname, _ in closure.causes.host
                if soname not in DESKTOP_LIBRARIES and not is_interpreter(soname)
            }
        )
    )
    verdict = run_checks(closure)
    return Prediction(
        libraries=libraries,
        refusals=tuple(
            Refusal(check=finding.check, message=finding.message, fix=finding.hint)
            for finding in verdict.findings
            if _refuses(finding, looked_at=looked_at)
        ),
    )


def _refuses(finding: Finding, *, looked_at: bool) -> bool:
    if finding.severity != "error" or finding.check == "host-library":
        return False
    if finding.check == "requires-dist" and "cannot be read" not in finding.message:
        return False  # overridden, or the lock adds what is missing
    return looked_at or finding.check not in _ONLY_WHOLE


def _binaries(observation: Observation, same: set[str]) -> tuple[Binary, ...]:
    """Every binary of the venv that is as published, by path."""
    found: dict[str, Binary] = {}
    for facts in (*(each.binaries for each in observation.distributions), observation.stray_binaries):
        found |= {binary.path: binary for binary in facts.binaries if binary.path in same}
    return tuple(binary for _, binary in sorted(found.items()))


def _facts(
    wheel: PublishedWheel,
    distribution: ObservedDistribution | None,
    binaries: Sequence[Binary],
    same: set[str],
    python: str,
) -> WheelFacts:
    """A wheel as the lock would measure it, as far as the venv shows it."""
    paths = {file.path for file in wheel.files}
    seen = distribution.binaries if distribution is not None else BinaryFacts()
    site = f"lib/python{python}/site-packages/"
    return WheelFacts(
        filename=wheel.file,
        sha256=wheel.sha256,
        size=wheel.size,
        python=python,
        name=wheel.name,
        version=wheel.version,
        requires_python=wheel.requires_python,
        requires_dist=wheel.requires_dist,
        provides_extra=wheel.provides_extra,
        wheel_tags=distribution.wheel_tags if distribution is not None else (),
        scripts=tuple(path.removeprefix("bin/") for path, _ in wheel.scripts),
        hooks=distribution.hooks if distribution is not None else (),
        files=tuple(
            InstalledFile(path=file.path, sha256=file.sha256, size=file.size, executable=file.executable)
            for file in wheel.files
        )
        + tuple(InstalledFile(path=path, sha256=digest, size=0, executable=True) for path, digest in wheel.scripts),
        anomalies=(),
        tree="",
        binaries=BinaryFacts(
            binaries=tuple(binary for binary in binaries if binary.path in paths),
            cubins=seen.cubins,
            releases=seen.releases,
            assemblers=tuple(each for each in seen.assemblers if each.path in same),
            labels=tuple(label for label in seen.labels if f"{site}{label.path}" in same),
            driver_functions=seen.driver_functions,
        ),
    )


def _may_be_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name
