"""From the anomalies of a wheel to a finding: one for each wheel and check, with all paths as its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from envspec.checks.waivers import findings_of_paths
from envspec.checks.wording import counted, examples
from envspec.facts import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envspec.checks.closure import Closure, ClosureWheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How the findings of a check are worded: `demo 1.0 has 2 rows of RECORD without a file: ...`."""

    check: str
    severity: Severity
    one: str
    """What a wheel has one of: `row of RECORD without a file`."""

    many: str
    """What it has several of: `rows of RECORD without a file`."""

    hint: str


def findings_of_kind(closure: Closure, kind: str, wording: Wording) -> Iterator[Finding]:
    """The findings of all wheels that have anomalies of one kind."""
    for wheel in closure.wheels:
        details = {anomaly.path: anomaly.detail for anomaly in wheel.facts.anomalies if anomaly.kind == kind}
        yield from findings_of_wheel(closure, wheel, details, wording)


def findings_of_wheel(
    closure: Closure, wheel: ClosureWheel, details: Mapping[str, str], wording: Wording
) -> Iterator[Finding]:
    """The findings of one wheel.

    Args:
        closure: The environment, for its waivers.
        wheel: What the findings are about.
        details: Path -> what is found there; nothing is found if it is empty.
        wording: Of the check.
    """
    finding = Finding(
        check=wording.check,
        severity=wording.severity,
        subject=wheel.label,
        message="",
        hint=wording.hint,
        packages=(wheel.facts.name,),
    )
    yield from findings_of_paths(closure.spec.waivers, finding, details, partial(_message, wheel.label, wording))


def _message(label: str, wording: Wording, paths: Sequence[str]) -> str:
    return f"{label} has {counted(len(paths), wording.one, wording.many)}: {examples(paths)}"
