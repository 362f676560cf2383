"""`record-hash`, `record-ghost`, `record-path` and `unrecorded-file`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envspec.checks import run_checks
from tests.support.facts import Row, fails, make_closure, make_facts, passes

if TYPE_CHECKING:
    from envspec.checks import Closure

SOUND = make_closure([make_facts("demo")])


def _with(kind: str, *paths: str) -> Closure:
    return make_closure([make_facts("sly", anomalies=[(kind, path, "odd") for path in paths])])


CODE = (
    "sly/a.py",
    "zz.pth",
    "sly/a.pyc",
    "sly/_c.cpython-312-x86_64-linux-gnu.so",
    "sly/lib/liba.so.13.0.2",
    "sly/UPPER.PY",
    "sly-1.0.data/scripts/tool",
    "sly-1.0.data/purelib/sly/b.py",
)
NO_CODE = ("sly/data.json", "sly/README", "sly/notes.so.txt", "sly-1.0.data/data/share/x", "sly/stubs.pyi")

ROWS = (
    passes("record-hash", "a sound wheel", SOUND),
    fails(
        "record-hash",
        "four files that differ",
        _with("record-hash", "sly/d.py", "sly/c.py", "sly/b.py", "sly/a.py"),
        "error",
        "sly 1.0 has 4 files that differ from their RECORD: `sly/a.py`, `sly/b.py`, `sly/c.py` and 1 more",
    ),
    passes("record-ghost", "a sound wheel", SOUND),
    fails(
        "record-ghost",
        "a row without a file",
        _with("record-ghost", "sly/lost.py"),
        "warning",
        "sly 1.0 has 1 row of RECORD without a file: `sly/lost.py`",
    ),
    passes("record-path", "a sound wheel", SOUND),
    fails(
        "record-path",
        "every row begins with a slash, as in selenium 4.1.0",
        _with("record-path", *(f"/selenium/{number:03}.py" for number in range(298))),
        "warning",
        "sly 1.0 has 298 rows of RECORD with an odd path: `/selenium/000.py`, `/selenium/001.py`, `/selenium/002.py`"
        " and 295 more",
    ),
    passes("unrecorded-file", "a sound wheel", SOUND),
    *(
        fails(
            "unrecorded-file",
            f"code: {path}",
            _with("unrecorded", path),
            "error",
            f"sly 1.0 has 1 file with code that RECORD does not list: `{path}`",
        )
        for path in CODE
    ),
    *(
        fails(
            "unrecorded-file",
            f"no code: {path}",
            _with("unrecorded", path),
            "warning",
            f"sly 1.0 has 1 file that RECORD does not list: `{path}`",
        )
        for path in NO_CODE
    ),
    fails(
        "unrecorded-file",
        "an executable",
        make_closure(
            [
                make_facts(
                    "sly",
                    files={"sly/ptxas": "x"},
                    executable=["sly/ptxas"],
                    anomalies=[("unrecorded", "sly/ptxas", "")],
                )
            ]
        ),
        "error",
    ),
    fails(
        "unrecorded-file",
        "an executable of .data/data",
        make_closure(
            [
                make_facts(
                    "sly",
                    environment_files={"libexec/run": "x"},
                    executable=["libexec/run"],
                    anomalies=[("unrecorded", "sly-1.0.data/data/libexec/run", "")],
                )
            ]
        ),
        "error",
    ),
    fails(
        "unrecorded-file",
        "an executable of .data/platlib",
        make_closure(
            [
                make_facts(
                    "sly",
                    files={"sly/run": "x"},
                    executable=["sly/run"],
                    anomalies=[("unrecorded", "sly-1.0.data/platlib/sly/run", "")],
                )
            ]
        ),
        "error",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_unrecorded_code_and_data_are_two_findings() -> None:
    verdict = run_checks(_with("unrecorded", *CODE, *NO_CODE))
    assert [(finding.severity, finding.message.split(":")[0]) for finding in verdict.findings] == [
        ("error", f"sly 1.0 has {len(CODE)} files with code that RECORD does not list"),
        ("warning", f"sly 1.0 has {len(NO_CODE)} files that RECORD does not list"),
    ]
