"""What every check owes: an id for ever, a page, and a table with a failing and a passing row."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envspec.checks import registered_checks
from envspec.checks.documentation import render_page
from envspec.checks.registry import check, documented
from tests.support.facts import Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks import Check, Closure
    from envspec.facts import Finding

CHECK_IDS = tuple(known.id for known in registered_checks())


def _all_rows() -> tuple[Row, ...]:
    """The rows of every table beside this module."""
    rows: list[Row] = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.name == Path(__file__).name:
            continue
        specification = importlib.util.spec_from_file_location(f"rows_of_{path.stem}", path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        rows.extend(row for row in getattr(module, "ROWS", ()) if isinstance(row, Row))
    return tuple(rows)


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return _all_rows()


@pytest.mark.parametrize("check_id", CHECK_IDS)
def test_check_has_a_failing_and_a_passing_row(check_id: str, rows: tuple[Row, ...]) -> None:
    of_check = [row for row in rows if row.check == check_id]
    assert any(row.severity is not None for row in of_check), "no failing row"
    assert any(row.severity is None for row in of_check), "no passing row"


@pytest.mark.parametrize("check_id", CHECK_IDS)
def test_check_has_its_message_asserted_in_full(check_id: str, rows: tuple[Row, ...]) -> None:
    assert any(row.message for row in rows if row.check == check_id)


@pytest.mark.parametrize("known", registered_checks(), ids=lambda known: known.id)
def test_check_has_a_page(known: Check) -> None:
    assert render_page(known.id, known.documentation)


def test_rows_name_checks_that_exist(rows: tuple[Row, ...]) -> None:
    assert {row.check for row in rows} <= set(CHECK_IDS)


def test_rows_have_different_names(rows: tuple[Row, ...]) -> None:
    names = [str(row) for row in rows]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("taken", ["file-collision", "unused-waiver"])
def test_id_that_is_taken_is_refused(taken: str) -> None:
    with pytest.raises(ValueError, match=f"^the id of a check is for ever: `{taken}` is taken$"):
        check(taken)(_finds_nothing)


@pytest.mark.parametrize("odd", ["", "E501", "file collision", "file--collision", "-file"])
def test_id_that_is_not_words_is_refused(odd: str) -> None:
    with pytest.raises(ValueError, match=r"^the id of a check is words with dashes between: "):
        documented(odd)(_finds_nothing)


def test_checks_are_listed_by_id() -> None:
    assert list(CHECK_IDS) == sorted(CHECK_IDS)


def _finds_nothing(_closure: Closure) -> Iterable[Finding]:
    return ()
