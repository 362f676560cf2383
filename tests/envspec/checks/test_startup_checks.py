"""`startup-hook`."""

from __future__ import annotations

import pytest

from envspec.checks import run_checks
from tests.support.facts import Row, fails, locked, make_closure, make_facts, make_spec, passes, sha256_of, waiver

PRECEDENCE = "import os; os.environ.get('SETUPTOOLS_USE_DISTUTILS')"
SETUPTOOLS = make_facts("setuptools", "80.9.0", hooks={"distutils-precedence.pth": [PRECEDENCE]})
CHANGED = make_facts("setuptools", "80.9.0", hooks={"distutils-precedence.pth": ["import evil"]})
WITHOUT = make_facts("setuptools", "80.8.0")

ROWS = (
    passes("startup-hook", "a wheel without hooks", make_closure([WITHOUT])),
    fails(
        "startup-hook",
        "a .pth with code",
        make_closure([SETUPTOOLS]),
        "warning",
        "setuptools 80.9.0: `distutils-precedence.pth` runs 1 line of code at every start of Python",
    ),
    fails(
        "startup-hook",
        "a .pth with paths only",
        make_closure([make_facts("dsl", hooks={"nvidia_cutlass_dsl.pth": []})]),
        "info",
        "dsl 1.0: `nvidia_cutlass_dsl.pth` adds to the import path at every start of Python",
    ),
    *(
        fails(
            "startup-hook",
            f"the module {path}",
            make_closure([make_facts("evil", hooks={path: ["the module"]})]),
            "error",
            f"evil 1.0: `{path}` runs at every start of Python",
        )
        for path in ("sitecustomize.py", "usercustomize/__init__.py", "sitecustomize.cpython-312-x86_64-linux-gnu.so")
    ),
    fails(
        "startup-hook",
        "a hook that the last lock has too",
        make_closure([SETUPTOOLS], previous=[locked(SETUPTOOLS)]),
        "warning",
        "setuptools 80.9.0: `distutils-precedence.pth` runs 1 line of code at every start of Python",
    ),
    fails(
        "startup-hook",
        "a hook that is new in its package",
        make_closure([SETUPTOOLS], previous=[locked(WITHOUT)]),
        "warning",
        "setuptools 80.9.0: `distutils-precedence.pth` runs 1 line of code at every start of Python, and is new since the"
        " last lock",
    ),
    fails(
        "startup-hook",
        "a hook of a package that is new",
        make_closure([SETUPTOOLS], previous=[locked(make_facts("torch"))]),
        "warning",
        "setuptools 80.9.0: `distutils-precedence.pth` runs 1 line of code at every start of Python, and is new since the"
        " last lock",
    ),
    fails(
        "startup-hook",
        "a hook that has changed",
        make_closure([CHANGED], previous=[locked(SETUPTOOLS, sha256=CHANGED.sha256)]),
        "warning",
        "setuptools 80.9.0: `distutils-precedence.pth` runs 1 line of code at every start of Python, and has changed since"
        " the last lock",
    ),
    passes(
        "startup-hook",
        "a waiver for the package and the path",
        make_closure(
            [SETUPTOOLS],
            make_spec(waivers=[waiver("startup-hook", "setuptools", path="distutils-precedence.pth")]),
        ),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_evidence_of_a_changed_hook_has_the_old_lines_and_the_new() -> None:
    closure = make_closure([CHANGED], previous=[locked(SETUPTOOLS, sha256=CHANGED.sha256)])
    assert run_checks(closure).findings[0].evidence == (
        f"sha256 {sha256_of('import evil')}",
        "runs: import evil",
        f"sha256 in the last lock {sha256_of(PRECEDENCE)}",
        f"ran: {PRECEDENCE}",
    )
