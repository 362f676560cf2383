"""`lock-step`; the public report C14."""

from __future__ import annotations

import pytest

from envspec.checks import run_checks
from tests.support.facts import Row, fails, make_closure, make_facts, passes

PYTHON = make_facts("flashinfer-python", "0.6.13")
CUBIN = make_facts("flashinfer-cubin", "0.6.12")
CACHE = make_facts("flashinfer-jit-cache", "0.6.13+cu130")

ROWS = (
    passes("lock-step", "one version", make_closure([PYTHON, make_facts("flashinfer-cubin", "0.6.13"), CACHE])),
    passes("lock-step", "one package of the family", make_closure([CUBIN])),
    passes("lock-step", "another local part", make_closure([PYTHON, CACHE])),
    passes(
        "lock-step",
        "one version, written otherwise",
        make_closure([make_facts("flashinfer-python", "0.6.8.post1"), make_facts("flashinfer-cubin", "0.6.8-1")]),
    ),
    passes("lock-step", "packages of no family", make_closure([make_facts("a", "1"), make_facts("b", "2")])),
    fails(
        "lock-step",
        "two versions",
        make_closure([PYTHON, CUBIN]),
        "error",
        "flashinfer-python 0.6.13 and flashinfer-cubin 0.6.12 must be of one version",
    ),
    fails(
        "lock-step",
        "three packages of two versions",
        make_closure([CACHE, PYTHON, CUBIN]),
        "error",
        "flashinfer-python 0.6.13, flashinfer-cubin 0.6.12 and flashinfer-jit-cache 0.6.13+cu130 must be of one version",
    ),
    fails(
        "lock-step",
        "a version that cannot be read",
        make_closure([PYTHON, make_facts("flashinfer-cubin", "a.b", filename="flashinfer_cubin-1-py3-none-any.whl")]),
        "error",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_c14_hint_names_the_version_to_pin() -> None:
    findings = run_checks(make_closure([PYTHON, CUBIN, CACHE])).findings
    [finding] = [each for each in findings if each.check == "lock-step"]
    assert finding.hint == (
        'set `flashinfer-cubin = "==0.6.13"` in [packages], or `flashinfer-python = "==0.6.12"` if there is no such release'
    )
    assert finding.packages == ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")


def test_c14_mixture_that_a_resolver_gives_is_refused() -> None:
    """The index stops at cubin 0.6.13 while flashinfer-python goes on."""
    mixture = [make_facts("flashinfer-python", "0.7.4"), make_facts("flashinfer-cubin", "0.6.13")]
    [error] = run_checks(make_closure(mixture)).errors
    assert error.check == "lock-step"
