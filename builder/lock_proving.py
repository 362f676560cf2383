"""A lock against what was measured of its wheels on this machine: which fields say something else than the wheels?

Nothing is fetched and nothing is measured: what was never measured here is counted and left to `build`, which proves sizes, digests and trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import tomllib

from builder.deciding import accepted_tags, manifest_of
from builder.locking import judged, site_of
from builder.measure import read_facts
from envspec.checks import Closure, ClosureWheel
from envspec.errors import EnvspecError, Problem
from envspec.lock import parts
from envspec.lock_proof import Judgement, differences, judge, judged_lock, measured_packages

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.facts import WheelFacts
    from envspec.lock import Lock
    from envspec.spec import Spec

SOURCE = "its wheels have"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the wheels say of a lock."""

    problems: tuple[Problem, ...]
    """Each field that differs."""

    unmeasured: tuple[str, ...]
    """Packages with a wheel that was never measured here; where there is one, what all wheels say together is not known either."""


class LockProver:
    """Proves locks of one spec; what was read and judged once is kept, so that a thousand spoilt copies of a lock can be proven."""

    def __init__(self, spec: Spec, facts_dir: Path) -> None:
        """Begin.

        Args:
            spec: The spec.
            facts_dir: Of the store.
        """
        self._spec = spec
        self._facts_dir = facts_dir
        self._facts: dict[tuple[str, str], WheelFacts | None] = {}
        self._judgements: dict[object, Judgement] = {}

    def prove(self, lock: Lock) -> Proof:
        """Compare a lock with its wheels, as far as they were measured here.

        Args:
            lock: One that is current with the spec.
        """
        wanted = {package.name: [package.sha256] for package in lock.packages}
        for overlay in lock.overlays:
            wanted[overlay.package].append(overlay.sha256)
        facts = {
            sha256: found
            for digests in wanted.values()
            for sha256 in digests
            if (found := self._read(sha256, lock.python)) is not None
        }
        unmeasured = tuple(name for name, digests in wanted.items() if not facts.keys() >= set(digests))
        problems = differences(lock, measured_packages(lock, facts), source=SOURCE)
        if not problems and not unmeasured:
            problems = differences(lock, self._judge(lock, facts), source=SOURCE)
        return Proof(problems=problems, unmeasured=unmeasured)

    def _read(self, sha256: str, python: str) -> WheelFacts | None:
        key = (sha256, python)
        if key not in self._facts:
            self._facts[key] = read_facts(self._facts_dir, sha256, python)
        return self._facts[key]

    def _judge(self, lock: Lock, facts: dict[str, WheelFacts]) -> Lock:
        bases = {package.name: package for package in lock.packages}
        patched = {overlay.package for overlay in lock.overlays}
        wheels = tuple(
            ClosureWheel(
                facts=facts[part.sha256],
                index=bases[part.package].index,
                base_file=bases[part.package].file if part.package in patched else "",
                base_sha256=bases[part.package].sha256 if part.package in patched else "",
            )
            for part in parts(lock)
        )
        key = tuple((wheel.facts.sha256, wheel.facts.python, wheel.index, wheel.base_file) for wheel in wheels)
        if key not in self._judgements:
            closure = Closure(spec=self._spec, wheels=wheels, accepted_tags=accepted_tags(self._spec))
            self._judgements[key] = judge(closure, judged(closure, strict=False), _site_of(wheels, lock))
        return judged_lock(lock, self._judgements[key])


def _site_of(wheels: tuple[ClosureWheel, ...], lock: Lock) -> str:
    try:
        return site_of([(wheel.facts.name, manifest_of(wheel.facts)) for wheel in wheels], lock.waivers)
    except EnvspecError as error:  # two wheels contend for a path, which the checks report too
        return error.message


def known_otherwise(text: str, wheels_dir: Path) -> tuple[Problem, ...]:
    """The sha256 of a lock under which this machine has no wheel, while it has one of the same file name under another sha256.

    Says which of a hundred digests was edited where a lock's env id is not that of its content.

    Args:
        text: Of the lock; it is TOML.
        wheels_dir: Of the store.
    """
    values = tomllib.loads(text)
    there: dict[str, list[str]] = {}
    for wheel in wheels_dir.glob("*/*.whl"):
        there.setdefault(wheel.name, []).append(wheel.parent.name)
    found: list[Problem] = []
    for kind in ("package", "overlay"):
        for number, table in enumerate(values[kind] if isinstance(values.get(kind), list) else []):
            file, sha256 = str(table.get("file")), str(table.get("sha256"))
            others = there.get(file, [])
            if others and sha256 not in others:
                found.append(
                    Problem(
                        f"the lock has `{sha256}`, the {file} on this machine has `{others[0]}`",
                        where=f"{kind}[{number}].sha256",
                    )
                )
    return tuple(found)
