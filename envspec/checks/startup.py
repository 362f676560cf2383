"""What runs at every start of Python, before any program does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.checks.registry import check
from envspec.checks.wording import counted, evidence
from envspec.facts import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.facts import StartupHook
    from envspec.lock import LockedHook, LockedPackage

_CUSTOMIZE_MODULES = frozenset({"sitecustomize", "usercustomize"})


@check("startup-hook")
def startup_hook(closure: Closure) -> Iterable[Finding]:
    """Nothing runs at every start of Python without being known.

    The message says which hook is new or has changed since the last lock.

    Severity: error for `sitecustomize` and `usercustomize`, warning for a `.pth` with code, info for a `.pth` that only adds
    paths.

    Why: Python runs every line of a `.pth` that begins with `import`, and imports `sitecustomize`, in every process, the
    build's included. That is how stolen releases of packages stole credentials. Some honest packages do it too, so what
    counts is that a person has seen the lines.

    Example:
        warning: setuptools 80.9.0: `distutils-precedence.pth` runs 1 line of code at every start of Python

    How to mend: read the lines in the evidence. If they are as they should be, waive the check for the package and the path;
    the lock keeps the sha256, and a change shows in every review.
    """
    before = {package.name: package for package in closure.previous}
    for wheel in closure.wheels:
        for hook in wheel.facts.hooks:
            yield _of_hook(wheel, hook, before)


def _of_hook(wheel: ClosureWheel, hook: StartupHook, before: Mapping[str, LockedPackage]) -> Finding:
    severity: Severity
    if hook.path.split("/", 1)[0].split(".", 1)[0] in _CUSTOMIZE_MODULES:
        severity, does, hint = "error", "runs at every start of Python", "do not use the wheel, or waive it by its path"
    elif hook.code:
        severity, does = "warning", f"runs {counted(len(hook.code), 'line')} of code at every start of Python"
        hint = "read the lines, then waive it by its path"
    else:
        severity, does, hint = "info", "adds to the import path at every start of Python", ""
    known = _known_hook(wheel, hook, before)
    change = ""
    lines = [f"sha256 {hook.sha256}", *(f"runs: {line}" for line in hook.code)]
    if before and known is None:
        change = ", and is new since the last lock"
    elif known is not None and known.sha256 != hook.sha256:
        change = ", and has changed since the last lock"
        lines += [f"sha256 in the last lock {known.sha256}", *(f"ran: {line}" for line in known.code)]
    return Finding(
        check="startup-hook",
        severity=severity,
        subject=wheel.label,
        message=f"{wheel.label}: `{hook.path}` {does}{change}",
        evidence=evidence(lines),
        hint=hint,
        packages=(wheel.facts.name,),
        path=hook.path,
    )


def _known_hook(wheel: ClosureWheel, hook: StartupHook, before: Mapping[str, LockedPackage]) -> LockedHook | None:
    package = before.get(wheel.facts.name)
    return next((known for known in package.hooks if known.path == hook.path), None) if package else None
