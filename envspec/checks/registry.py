"""The list of all checks.

A check is one function in `envspec/checks/<family>.py`:

    @check("file-collision")
    def file_collision(closure: Closure) -> Iterable[Finding]:
        \"\"\"Docstring: the check's page in docs/checks.\"\"\"

Its id is words and for ever the same: waivers, locks and scripts name it. An id that is no longer used moves to `RETIRED_IDS` and is never
given to another check. A check never raises for what a wheel contains, it reports; and it yields the same findings in any order of wheels.
A new family is imported by `envspec/checks/__init__.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from envspec.checks.closure import Closure
    from envspec.facts import Finding

    Judge = Callable[[Closure], Iterable[Finding]]

RETIRED_IDS: frozenset[str] = frozenset()

_ID = re.compile(r"[a-z]+(-[a-z]+)*")
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A rule with its id and its documentation."""

    id: str
    judge: Judge | None
    """None if only the verdict can judge it, because it needs the findings of all other checks."""

    documentation: str
    """The docstring, without its indentation."""


_registry: dict[str, Check] = {}


def check(check_id: str) -> Callable[[Judge], Judge]:
    """Register the decorated function as the check of this id.

    Raises:
        ValueError: The id is taken, retired, or not made of words: an error of whoever writes the check.
    """

    def register(judge: Judge) -> Judge:
        _add(check_id, judge, judge)
        return judge

    return register


def documented(check_id: str) -> Callable[[_Function], _Function]:
    """Register the decorated function's docstring for an id that the verdict itself judges.

    Raises:
        ValueError: As for `check`.
    """

    def register(function: _Function) -> _Function:
        _add(check_id, None, function)
        return function

    return register


def registered_checks() -> tuple[Check, ...]:
    """All checks, sorted by id."""
    return tuple(_registry[check_id] for check_id in sorted(_registry))


def _add(check_id: str, judge: Judge | None, function: Callable[..., Any]) -> None:
    if check_id in _registry or check_id in RETIRED_IDS:
        raise ValueError(f"the id of a check is for ever: `{check_id}` is taken")
    if _ID.fullmatch(check_id) is None:
        raise ValueError(f"the id of a check is words with dashes between: `{check_id}`")
    documentation = inspect.cleandoc(function.__doc__ or "")
    _registry[check_id] = Check(id=check_id, judge=judge, documentation=documentation)
