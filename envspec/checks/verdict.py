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
    from envspec.facts import Severity
    from envspec.spec import PolicyRule, Waiver

_RANK = {"error": 0, "warning": 1, "info": 2}

_EXPLAINED = {
    "cuda-major-mismatch": frozenset({"requires-dist"}),
    "dual-cuda-runtime": frozenset({"requires-dist"}),
    "torch-abi-mismatch": frozenset({"requires-dist"}),
}
"""Check -> checks whose findings about the same packages are evidence of its own: a pin on torch that does not hold is the same mistake."""

_POLICY: dict[tuple[str, str], Severity] = {
    ("warning", "error"): "error",
    ("error", "warning"): "warning",
    ("warning", "info"): "info",
}
"""Severity of a finding and of the rule for its check -> what it is then; every other pair changes nothing."""

_FIRST = ("cuda-major-mismatch", "dual-cuda-runtime", "cuda-toolkit-mismatch", "torch-abi-mismatch")
"""Checks whose findings explain most, in the order in which a person should read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found."""

    findings: tuple[Finding, ...]
    """Those that no waiver resolves, by severity; what explains most first, then by check and subject."""

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
    return apply_waivers(found, closure.spec.waivers, packages=names, policy=closure.spec.policy)


def strictly(verdict: Verdict) -> Verdict:
    """The same verdict with every warning an error."""
    return replace(
        verdict,
        findings=tuple(
            replace(finding, severity="error") if finding.severity == "warning" else finding
            for finding in verdict.findings
        ),
    )


def apply_waivers(
    findings: Iterable[Finding],
    waivers: Sequence[Waiver],
    *,
    packages: Collection[str] | None = None,
    policy: Sequence[PolicyRule] = (),
) -> Verdict:
    """The verdict on findings.

    Args:
        findings: Of checks that ran.
        waivers: Of the spec.
        packages: Names of all packages of the environment, to tell why a waiver is of no use; None if not known.
        policy: Of the spec.
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
    remaining.extend(_safe(finding) for finding in unknown_policy(policy, known_checks=known))
    remaining = [_under(policy, finding) for finding in _explained(remaining)]
    remaining.sort(key=_order)
    waived.sort(key=lambda pair: _order(pair[0]))
    return Verdict(findings=tuple(remaining), waived=tuple(waived))


@documented("unknown-policy")
def unknown_policy(policy: Iterable[PolicyRule], *, known_checks: Collection[str]) -> Iterable[Finding]:
    """Every check that [policy] names exists.

    Severity: warning.

    Why: a rule for a check that is misspelt changes nothing, and its author believes that it does.

    Example:
        warning: [policy] names `gpu-code-mising`, which is no check

    How to mend: correct the id, or remove the line.
    """
    for rule in policy:
        if rule.check not in known_checks:
            near = difflib.get_close_matches(rule.check, known_checks, n=1)
            yield Finding(
                check="unknown-policy",
                severity="warning",
                subject=rule.check,
                message=f"[policy] names `{rule.check}`, which is no check",
                hint=f"did you mean `{near[0]}`?" if near else "remove the line",
            )


def _explained(findings: Sequence[Finding]) -> list[Finding]:
    """The findings without those that another one explains, which become its evidence."""
    kept: list[Finding] = []
    taken: set[int] = set()
    for primary in findings:
        follows = _EXPLAINED.get(primary.check)
        if follows is None:
            continue
        for number, finding in enumerate(findings):
            if finding.check in follows and _is_between(finding, primary):
                taken.add(number)
    explained = [findings[number] for number in sorted(taken)]
    for number, finding in enumerate(findings):
        if number in taken:
            continue
        follows = _EXPLAINED.get(finding.check)
        if follows is None:
            kept.append(finding)
            continue
        more = [other.message for other in explained if other.check in follows and _is_between(other, finding)]
        kept.append(replace(finding, evidence=(*finding.evidence, *more)) if more else finding)
    return kept


def _is_between(finding: Finding, primary: Finding) -> bool:
    """Whether a finding is about one of the packages of a mismatch and about what it does not match, which is the last one."""
    return (
        len(finding.packages) > 1
        and primary.packages[-1] in finding.packages
        and set(finding.packages) <= set(primary.packages)
    )


def _under(policy: Iterable[PolicyRule], finding: Finding) -> Finding:
    """The finding as severe as the policy has it."""
    for rule in policy:
        if rule.check == finding.check and (finding.severity, rule.severity) in _POLICY:
            return replace(finding, severity=_POLICY[finding.severity, rule.severity])
    return finding


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


def _order(finding: Finding) -> tuple[int, int, str, str, str, str]:
    first = _FIRST.index(finding.check) if finding.check in _FIRST else len(_FIRST)
    return (_RANK[finding.severity], first, finding.check, finding.subject, finding.path, finding.message)


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
