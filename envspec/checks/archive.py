"""What is wrong with the archive of a wheel, before anything is installed from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.checks.anomalies import Wording, findings_of_kind, findings_of_wheel
from envspec.checks.registry import check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks.closure import Closure
    from envspec.facts import Finding

JUDGED_ELSEWHERE = frozenset(
    {
        "path-escape",
        "symlink-member",
        "duplicate-member",
        "reserved-path",
        "record-hash",
        "record-ghost",
        "record-path",
        "unrecorded",
        "shipped-bytecode",
    }
)
"""Kinds of anomaly that have a check of their own; all others, also those that are yet to be invented, are `archive-damaged`."""


@check("path-escape")
def path_escape(closure: Closure) -> Iterable[Finding]:
    """No member of a wheel lies outside the environment.

    Severity: error.

    Why: a member named `../../../x` or `/x` is an attack, or a broken build tool. pip refuses it; uv installs the rest of the
    wheel and leaves the member out without a word.

    Example:
        error: evil 1.0 has 1 member that leads out of the environment: `../../../x`

    How to mend: do not use the wheel.
    """
    wording = Wording(
        check="path-escape",
        severity="error",
        one="member that leads out of the environment",
        many="members that lead out of the environment",
        hint="do not use the wheel",
    )
    return findings_of_kind(closure, "path-escape", wording)


@check("symlink-member")
def symlink_member(closure: Closure) -> Iterable[Finding]:
    """No member of a wheel is a symbolic link.

    Severity: error.

    Why: the wheel format has no links. pip and uv write a text file that holds the target, so that a `libX.so` of 13 bytes
    fails to load with `invalid ELF header`.

    Example:
        error: links 1.0 has 1 member that is a symbolic link: `links/libx.so`

    How to mend: ask for a wheel that holds the file itself, or add it with an overlay.
    """
    wording = Wording(
        check="symlink-member",
        severity="error",
        one="member that is a symbolic link",
        many="members that are symbolic links",
        hint="ask for a wheel that holds the file itself",
    )
    return findings_of_kind(closure, "symlink-member", wording)


@check("duplicate-member")
def duplicate_member(closure: Closure) -> Iterable[Finding]:
    """No two members of a wheel go to the same place.

    Severity: error.

    Why: an archive may list one name twice, and each reader picks its own: what was inspected need not be what is
    installed.

    Example:
        error: twice 1.0 has 1 member that has the place of another: `twice/__init__.py`

    How to mend: do not use the wheel.
    """
    wording = Wording(
        check="duplicate-member",
        severity="error",
        one="member that has the place of another",
        many="members that have the place of another",
        hint="do not use the wheel, or build it again",
    )
    return findings_of_kind(closure, "duplicate-member", wording)


@check("archive-damaged")
def archive_damaged(closure: Closure) -> Iterable[Finding]:
    """Every wheel can be read in full, and names itself.

    This gathers members that are encrypted, that state another size or checksum than they have, whose names cannot be file
    names, and metadata that is missing or cannot be read.

    Severity: error.

    Why: what cannot be read cannot be checked, and readers of damaged archives differ in what they make of them.

    Example:
        error: torn 1.0 has 1 damaged place: `torn/data.bin`

    How to mend: fetch the file again. If its sha256 is the one that the index states, the wheel itself is damaged: use
    another version.
    """
    wording = Wording(
        check="archive-damaged",
        severity="error",
        one="damaged place",
        many="damaged places",
        hint="use another version: a file with the sha256 that the index states is damaged there too",
    )
    for wheel in closure.wheels:
        details: dict[str, str] = {}
        for anomaly in wheel.facts.anomalies:
            if anomaly.kind not in JUDGED_ELSEWHERE:
                path = anomaly.path or wheel.facts.filename
                said = f"{anomaly.kind}: {anomaly.detail}"
                details[path] = f"{details[path]}; {said}" if path in details else said
        yield from findings_of_wheel(closure, wheel, details, wording)
