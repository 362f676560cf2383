"""`path-escape`, `symlink-member`, `duplicate-member` and `archive-damaged`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envspec.checks import run_checks
from envspec.checks.archive import JUDGED_ELSEWHERE
from tests.support.facts import Row, fails, make_closure, make_facts, make_spec, passes, waiver

if TYPE_CHECKING:
    from envspec.checks import Closure

SOUND = make_closure([make_facts("demo")])


def _with(*anomalies: tuple[str, str, str]) -> Closure:
    return make_closure([make_facts("evil", anomalies=anomalies)])


ROWS = (
    passes("path-escape", "a sound wheel", SOUND),
    fails(
        "path-escape",
        "a member above the root, and one at it",
        _with(("path-escape", "../../../x", "leads out"), ("path-escape", "/etc/x", "leads out")),
        "error",
        "evil 1.0 has 2 members that lead out of the environment: `../../../x` and `/etc/x`",
    ),
    passes("symlink-member", "a sound wheel", SOUND),
    fails(
        "symlink-member",
        "a link in place of a library",
        _with(("symlink-member", "evil/libx.so", "a link to `libx.so.1`")),
        "error",
        "evil 1.0 has 1 member that is a symbolic link: `evil/libx.so`",
    ),
    passes("duplicate-member", "a sound wheel", SOUND),
    fails(
        "duplicate-member",
        "a name that the archive lists twice",
        _with(("duplicate-member", "evil/__init__.py", "twice")),
        "error",
        "evil 1.0 has 1 member that has the place of another: `evil/__init__.py`",
    ),
    passes("archive-damaged", "a sound wheel", SOUND),
    passes(
        "archive-damaged",
        "anomalies that have a check of their own",
        _with(*((kind, f"evil/{kind}", "odd") for kind in sorted(JUDGED_ELSEWHERE))),
    ),
    fails(
        "archive-damaged",
        "two things wrong with one member, one with another, one with the whole",
        _with(
            ("size-lie", "evil/a.bin", "states 3 bytes, has 5"),
            ("bad-crc", "evil/a.bin", "states 1, has 2"),
            ("encrypted-member", "evil/b.bin", "is encrypted"),
            ("bad-metadata", "", "no METADATA"),
        ),
        "error",
        "evil 1.0 has 3 damaged places: `evil-1.0-py3-none-any.whl`, `evil/a.bin` and `evil/b.bin`",
    ),
    *(
        fails(
            "archive-damaged",
            f"an anomaly of kind {kind}",
            _with((kind, "evil/x", "odd")),
            "error",
            "evil 1.0 has 1 damaged place: `evil/x`",
        )
        for kind in (
            "encrypted-member",
            "size-lie",
            "bad-crc",
            "bad-metadata",
            "dist-info",
            "bad-name",
            "yet-to-be-invented",
        )
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_evidence_has_what_was_measured() -> None:
    closure = _with(("size-lie", "evil/a.bin", "states 3 bytes, has 5"), ("bad-crc", "evil/a.bin", "states 1, has 2"))
    (finding,) = fails("archive-damaged", "", closure, "error").findings()
    assert finding.evidence == ("evil/a.bin: size-lie: states 3 bytes, has 5; bad-crc: states 1, has 2",)


def test_waiver_of_one_member_leaves_the_others_a_finding() -> None:
    wheel = make_facts("links", anomalies=[("symlink-member", f"links/{name}", "a link") for name in "abc"])
    spec = make_spec(waivers=[waiver("symlink-member", "links", path="links/b")])
    verdict = run_checks(make_closure([wheel], spec))
    assert [finding.message for finding in verdict.findings] == [
        "links 1.0 has 2 members that are symbolic links: `links/a` and `links/c`"
    ]
    assert [finding.path for finding, _ in verdict.waived] == ["links/b"]
