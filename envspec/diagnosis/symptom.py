"""One thing that is wrong with a venv, with what ties it to a failure: a finding and its clues."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from envspec.facts import Finding
from envspec.wording import evidence as shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.facts import Severity


class Stage(IntEnum):
    """How early something fails because of a symptom."""

    INTERPRETER = 0
    """Nothing starts."""

    START = 1
    """Every start of Python is concerned."""

    IMPORT = 2
    """A module cannot be imported, or is another one."""

    USE = 3
    """What was imported fails when it is used."""

    NEVER = 4
    """Nothing fails by it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A finding with its clues; what a failing run says is compared with these."""

    finding: Finding
    stage: Stage
    paths: frozenset[str] = frozenset()
    """Files concerned, relative to the prefix of the venv; a path with `/` at the end stands for all below it."""

    modules: frozenset[str] = frozenset()
    """Modules that cannot be imported, or are not what they should be: `pybase64`, `sglang.srt.utils`."""

    sonames: frozenset[str] = frozenset()
    symbols: frozenset[str] = frozenset()
    """Mangled, as the linker says them."""

    @property
    def check(self) -> str:
        """Id of the check or rule."""
        return self.finding.check

    @property
    def package(self) -> str:
        """The one to mend; empty if it is none."""
        return self.finding.packages[0] if self.finding.packages else ""


def symptom(
    check: str,
    severity: Severity,
    message: str,
    *,
    packages: Iterable[str] = (),
    stage: Stage,
    evidence: Iterable[str] = (),
    hint: str = "",
    path: str = "",
    paths: Iterable[str] = (),
    modules: Iterable[str] = (),
    sonames: Iterable[str] = (),
    symbols: Iterable[str] = (),
) -> Symptom:
    """A symptom and its finding in one; arguments as those of the two."""
    named = tuple(dict.fromkeys(packages))
    return Symptom(
        finding=Finding(
            check=check,
            severity=severity,
            subject=named[0] if named else "the venv",
            message=message,
            evidence=shortened(list(evidence)),
            hint=hint,
            packages=named,
            path=path,
        ),
        stage=stage,
        paths=frozenset(paths),
        modules=frozenset(modules),
        sonames=frozenset(sonames),
        symbols=frozenset(symbols),
    )
