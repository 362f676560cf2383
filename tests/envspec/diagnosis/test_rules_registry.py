"""What every rule about venvs owes: an id for ever, a page, and a case in which it finds something."""

from __future__ import annotations

import pytest

from envspec.checks import registered_checks
from envspec.checks.documentation import render_page
from envspec.diagnosis.grouping import ORDER
from envspec.diagnosis.installed import LEFT_OUT
from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules import registered_rules


def _finds_nothing(_scene: object) -> tuple[()]:
    return ()


@pytest.mark.parametrize("known", registered_rules(), ids=lambda known: known.id)
def test_rule_has_a_page(known: object) -> None:
    assert render_page(known.id, known.documentation)  # type: ignore[attr-defined]


@pytest.mark.parametrize("taken", ["edited-file", "requires-dist"])
def test_id_that_a_rule_or_a_check_has_is_refused(taken: str) -> None:
    with pytest.raises(ValueError, match=f"^the id of a rule is for ever: `{taken}` is taken$"):
        rule(taken)(_finds_nothing)


@pytest.mark.parametrize("odd", ["", "E501", "edited file", "-file"])
def test_id_that_is_not_words_is_refused(odd: str) -> None:
    with pytest.raises(ValueError, match=r"^the id of a rule is words with dashes between: "):
        rule(odd)(_finds_nothing)


def test_checks_that_are_left_out_exist_and_have_a_reason() -> None:
    assert LEFT_OUT.keys() <= {check.id for check in registered_checks()}
    assert all(LEFT_OUT.values())


def test_every_check_and_rule_has_its_place_in_the_order_or_explains_nothing() -> None:
    known = {check.id for check in registered_checks()} | {known.id for known in registered_rules()}
    assert set(ORDER) <= known
    assert {known.id for known in registered_rules()} <= set(ORDER)
    assert len(set(ORDER)) == len(ORDER)
