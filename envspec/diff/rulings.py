"""Waivers and findings: what a person has let through, and what the checks say that they did not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.diff.changes import Change, literal
from envspec.diff.pairs import stem_of
from envspec.wording import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diff.pairs import Pair
    from envspec.lock import Lock, LockedFinding
    from envspec.spec import Waiver

_UNUSED = "unused-waiver"


def changes_of_rulings(old: Lock | None, new: Lock, pairs: Sequence[Pair]) -> list[Change]:
    """Waivers and findings that are new, gone, or say something else.

    Args:
        old: The old lock; None if there was none.
        new: The new lock.
        pairs: The packages that changed: a finding that differs in a version only is the same.
    """
    return [*_waivers(old, new), *_findings(old, new, pairs)]


def _waivers(old: Lock | None, new: Lock) -> list[Change]:
    was = {_key(waiver): waiver for waiver in (old.waivers if old else ())}
    now = {_key(waiver): waiver for waiver in new.waivers}
    found = []
    for key in sorted(was.keys() | now.keys()):
        before, after = was.get(key), now.get(key)
        if before == after:
            continue
        waiver = after or before
        if waiver is None:
            continue
        what = f"waiver of {literal(waiver.check)} for {waiver.package}{' at ' + literal(waiver.path) if waiver.path else ''}"
        lines = []
        if before is None:
            kind, says = "waiver-added", "is new"
            lines.append(f"reason: {_said(waiver.reason)}")
        elif after is None:
            kind, says = "waiver-removed", "is gone"
        else:
            kind, says = "waiver-changed", "says something else"
            if before.reason != after.reason:
                lines += [f"reason: {_said(after.reason)}", f"reason before: {_said(before.reason)}"]
            if before.owner != after.owner:
                lines.append(f"owner {after.owner or 'none'}, and {before.owner or 'none'} before")
        if after and before is None and after.owner:
            lines.append(f"the file of {after.owner} stays")
        found.append(
            Change(
                kind=kind,
                level="note" if kind == "waiver-removed" else "look",
                package=waiver.package,
                subject=waiver.check,
                old=before.reason if before else "",
                new=after.reason if after else "",
                text=f"{what} {says}",
                consequences=tuple(lines),
            )
        )
    return found


def _findings(old: Lock | None, new: Lock, pairs: Sequence[Pair]) -> list[Change]:
    renamed = {
        f"{pair.old.name} {pair.old.version}": f"{pair.new.name} {pair.new.version}"
        for pair in pairs
        if pair.old and pair.new
    }
    was: dict[tuple[str, str], list[LockedFinding]] = {}
    for finding in old.findings if old else ():
        was.setdefault((finding.check, _package(finding)), []).append(finding)
    found = []
    for finding in new.findings:
        rivals = was.get((finding.check, _package(finding)), [])
        same = next((each for each in rivals if _is_same(each, finding, renamed)), None)
        if same:
            rivals.remove(same)
            continue
        found.append(
            Change(
                kind="waiver-unused" if finding.check == _UNUSED else "finding-added",
                level="look",
                package=_package_name(finding),
                subject=finding.check,
                new=finding.severity,
                text=f"{finding.severity}{', waived' if finding.waived else ''}: {_said(finding.message)} [{finding.check}]",
                consequences=(f"waived: {_said(finding.waived)}",) if finding.waived else (),
            )
        )
    found += [
        Change(
            kind="finding-removed",
            level="note",
            package=_package_name(finding),
            subject=finding.check,
            old=finding.severity,
            text=f"no longer found: {_said(finding.message)} [{finding.check}]",
        )
        for rest in was.values()
        for finding in rest
        if finding.check != _UNUSED
    ]
    return found


def _is_same(before: LockedFinding, after: LockedFinding, renamed: dict[str, str]) -> bool:
    if (before.severity, bool(before.waived)) != (after.severity, bool(after.waived)):
        return False
    if before.message == after.message:
        return True
    message = before.message
    subject = renamed.get(before.subject)
    return subject is not None and message.replace(before.subject, subject) == after.message


def _package(finding: LockedFinding) -> str:
    return stem_of(_package_name(finding))


def _package_name(finding: LockedFinding) -> str:
    return printable(finding.subject).partition(" ")[0]


def _key(waiver: Waiver) -> tuple[str, str, str]:
    return (waiver.check, waiver.package, waiver.path)


def _said(text: str) -> str:
    """Words of a person or of a check: on one line, and with backticks only where they stand in pairs."""
    shown = printable(text)
    return shown if shown.count("`") % 2 == 0 else shown.replace("`", "'")
