"""The verdict on an environment: what all checks found, less what a person has accepted."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envspec.checks.registry import documented, registered_checks
from envspec.checks.waivers import covers, resolving, shortcoming
from envspec.checks.wording import joined, printable
from envspec.facts import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from envspec.checks.closure import Closure
    from envspec.spec import Waiver

_RANK = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found."""

    findings: tuple[Finding, ...]
    """Those that no waiver resolves, by severity, check and subject."""

    waived: tuple[tuple[Finding, Waiver], ...] = ()
    """Those that a waiver resolves, with it, in the same order."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings for which a lock is refused."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def run_checks(closure: Closure) -> Verdict:
    """Run every registered check, and apply the waivers of the spec.

    All checks always run, and the verdict is the same for any order of the wheels.
    """
    ordered = closure.in_order()
    found = [finding for check in registered_checks() if check.judge is not None for finding in check.judge(ordered)]
    names = {wheel.facts.name for wheel in closure.wheels}
    return apply_waivers(found, closure.spec.waivers, packages=names)


def apply_waivers(
    findings: Iterable[Finding], waivers: Sequence[Waiver], *, packages: Collection[str] | None = None
) -> Verdict:
    """The verdict on findings.

    Args:
        findings: Of checks that ran.
        waivers: Of the spec.
        packages: Names of all packages of the environment, to tell why a waiver is of no use; None if not known.
    """
    remaining: list[Finding] = []
    waived: list[tuple[Finding, Waiver]] = []
    used: set[int] = set()
    lacks: dict[int, str] = {}
    for finding in findings:
        numbers = resolving(waivers, finding)
        used.update(numbers)
        if numbers:
            waived.append((_safe(finding), waivers[numbers[0]]))
            continue
        remaining.append(_safe(finding))
        for number, waiver in enumerate(waivers):
            if covers(waiver, finding.check, finding.packages, finding.path):
                lacks.setdefault(number, shortcoming(waiver, finding))
    idle = [(waiver, lacks.get(number, "")) for number, waiver in enumerate(waivers) if number not in used]
    known = [check.id for check in registered_checks()]
    remaining.extend(_safe(finding) for finding in unused_waivers(idle, known_checks=known, packages=packages))
    remaining.sort(key=_order)
    waived.sort(key=lambda pair: _order(pair[0]))
    return Verdict(findings=tuple(remaining), waived=tuple(waived))


@documented("unused-waiver")
def unused_waivers(
    idle: Iterable[tuple[Waiver, str]], *, known_checks: Collection[str], packages: Collection[str] | None
) -> Iterable[Finding]:
    """Every waiver resolves a finding.

    Severity: warning.

    Why: a waiver outlives its reason. The next release mends what was waived, the waiver stays, and one day it hides
    something else. A waiver that is misspelt, or that lacks what it needs, resolves nothing and its author should know.
    A collision of differing files is resolved only by a waiver with a `path` and an `owner` that is one of the packages,
    since one of the files has to win on every host.

    Example:
        warning: waiver of `file-collision` for flashinfer-python at `build_backend.py` has no effect: it matches no finding

    How to mend: remove the waiver from the spec, or correct the check, package, path or owner that it names.
    """
    for waiver, lack in idle:
        place = f" at `{waiver.path}`" if waiver.path else ""
        reason = "it matches no finding"
        hint = "remove it from [[waivers]]"
        if lack:
            reason, hint = lack, "see the finding that it was meant for"
        elif waiver.check not in known_checks:
            near = difflib.get_close_matches(waiver.check, known_checks, n=1)
            reason = f"there is no check `{waiver.check}`"
            hint = f"did you mean `{near[0]}`?" if near else f"checks are {joined(sorted(known_checks))}"
        elif packages is not None and waiver.package not in packages:
            reason = f"the environment has no package {waiver.package}"
        yield Finding(
            check="unused-waiver",
            severity="warning",
            subject=waiver.package,
            message=f"waiver of `{waiver.check}` for {waiver.package}{place} has no effect: {reason}",
            hint=hint,
            packages=(waiver.package,),
            path=waiver.path,
        )


def _order(finding: Finding) -> tuple[int, str, str, str, str]:
    return (_RANK[finding.severity], finding.check, finding.subject, finding.path, finding.message)


def _safe(finding: Finding) -> Finding:
    """The finding with everything that came out of a wheel made safe to show."""
    return replace(
        finding,
        subject=printable(finding.subject),
        message=printable(finding.message),
        evidence=tuple(printable(line) for line in finding.evidence),
        hint=printable(finding.hint),
        packages=tuple(printable(package) for package in finding.packages),
        path=printable(finding.path),
    )
