"""The list of all rules about venvs.

A rule is one function in `envspec/diagnosis/rules/<family>.py`:

    @rule("missing-file")
    def missing_file(scene: Scene) -> Iterable[Symptom]:
        \"\"\"Docstring: the rule's page in docs/checks.\"\"\"

It is to a venv what a check is to a lock, and its id is subject to the same law: words, for ever, and no check has it. What checks can judge
is left to them (`envspec.diagnosis.installed` makes their closure of a venv).
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.checks import registered_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom

    Judge = Callable[[Scene], Iterable[Symptom]]

RETIRED_IDS: frozenset[str] = frozenset()

_ID = re.compile(r"[a-z]+(-[a-z]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule with its id and its documentation."""

    id: str
    judge: Judge
    documentation: str
    """The docstring, without its indentation."""


_registry: dict[str, Rule] = {}


def rule(rule_id: str) -> Callable[[Judge], Judge]:
    """Register the decorated function as the rule of this id.

    Raises:
        ValueError: The id is taken, retired, or not made of words: an error of whoever writes the rule.
    """

    def register(judge: Judge) -> Judge:
        taken = rule_id in _registry or any(check.id == rule_id for check in registered_checks())
        if taken or rule_id in RETIRED_IDS:
            raise ValueError(f"the id of a rule is for ever: `{rule_id}` is taken")
        if _ID.fullmatch(rule_id) is None:
            raise ValueError(f"the id of a rule is words with dashes between: `{rule_id}`")
        _registry[rule_id] = Rule(id=rule_id, judge=judge, documentation=inspect.cleandoc(judge.__doc__ or ""))
        return judge

    return register


def registered_rules() -> tuple[Rule, ...]:
    """All rules, sorted by id."""
    return tuple(_registry[rule_id] for rule_id in sorted(_registry))
