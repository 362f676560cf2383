"""Broken venvs: is the cause that was written down beforehand the first one that `envspec diagnose` names?

Recipes by default; with the marker `real` those of real wheels that are small, and venvs of popular stacks. The whole table, with what other
tools say, and the case that the project began with: `python -m benchmarks.diagnose`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from benchmarks.diagnose import fifth, fourth, further, listed, more, third, third_gpu, third_wheels, wheels
from benchmarks.diagnose.__main__ import make_maker
from benchmarks.diagnose.running import run_case
from envspec.checks import registered_checks
from envspec.diagnosis import rules
from envspec.diagnosis.registry import registered_rules
from envspec.errors import EnvspecError
from tests.support.tiny_elf import RUNS_HERE

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.diagnose.case import Case
    from benchmarks.diagnose.making import Maker

pytestmark = pytest.mark.skipif(
    not RUNS_HERE or os.uname().machine != "x86_64", reason="the wheels are for x86_64 and glibc"
)

LATER = [*third.CASES, *third_gpu.CASES, *fourth.CASES, *fifth.CASES]
CHOSEN = {
    *(
        "N42",
        "N43",
        "N44",
        "N49",
        "N51",
        "N53",
        "N54",
        "N55",
        "N56",
        "N57",
        "N58",
        "N62",
        "N63",
        "N66",
        "N70",
        "N74",
        "N75",
    ),
    *("N87", "N90", "N98", "N99", "N102", "N107", "N108", "H7", "H26", "H27", "H28", "H31", "H38"),
}
"""Of the later recipes: one of each kind. The benchmark runs all of them."""

RECIPES = [*listed.CASES, *further.CASES, *more.CASES, *(each for each in LATER if each.id in CHOSEN)]
REAL = [*wheels.CASES, *third_wheels.CASES, *(each for each in LATER if each.kind == "wheels")]
SMALL = {
    "C08w",
    "C24w",
    "C39w",
    "W01",
    "W05",
    "W06",
    "W07",
    "W08",
    "W09",
    "W10",
    "W11",
    "W12",
    "W13",
    "W17",
    "W24",
    "W27",
    "W30",
    "H2",
    "H6",
}


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    try:
        return make_maker(tmp_path_factory.mktemp("diagnose"), donor=None, wheelhouse=None)
    except EnvspecError as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("case", [pytest.param(each, id=each.id) for each in RECIPES])
def test_cause_of_a_recipe_is_named_first(maker: Maker, tmp_path: Path, case: Case) -> None:
    scored = run_case(maker, case, tmp_path / "case", peers=False)
    assert scored.problems == (), scored.first


@pytest.mark.real
@pytest.mark.parametrize("case", [pytest.param(each, id=each.id) for each in REAL if each.id in SMALL])
def test_cause_with_real_wheels_is_named_first(maker: Maker, tmp_path: Path, case: Case) -> None:
    scored = run_case(maker, case, tmp_path / "case", peers=False)
    assert scored.problems == (), scored.first


def test_ids_of_cases_are_unique_and_name_checks_that_there_are() -> None:
    cases = [*listed.CASES, *further.CASES, *more.CASES, *LATER, *wheels.CASES, *third_wheels.CASES]
    assert len({each.id for each in cases}) == len(cases)
    known = {each.id for each in registered_checks()} | {each.id for each in registered_rules()}
    assert rules.FAMILIES  # importing them registers them
    assert {check for each in cases for check in each.checks} - known == set()
    assert {each.id for each in RECIPES} >= CHOSEN
    assert {each.id for each in REAL} >= SMALL
