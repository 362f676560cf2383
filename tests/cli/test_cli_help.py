"""The help texts, as a person sees them: `tests/data/cli/*.txt`, rewritten by `pytest --accept`."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

import pytest

from envspec.cli.app import GROUPS, VERBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.projects import Project


def shown(text: str) -> str:
    """The text without spaces at the ends of lines."""
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("verb", ["", *GROUPS, *VERBS])
def test_help_is_as_reviewed(project: Project, golden: Callable[[str, str], None], verb: str) -> None:
    ran = project.good(*verb.split(), "--help")
    assert ran.stderr == ""
    golden(f"cli/{verb.replace(' ', '-') or 'envspec'}.txt", shown(ran.stdout))


def test_no_arguments_give_the_same_as_help(project: Project) -> None:
    assert project.good().stdout == project.good("--help").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_summary_of_a_verb_begins_its_help(verb: str) -> None:
    place, summary = VERBS[verb]
    module, _, function = place.partition(":")
    docstring = getattr(importlib.import_module(f"envspec.cli.{module}"), function).__doc__
    assert docstring.startswith(summary.rstrip("."))


def test_build_of_what_is_there_imports_nothing_heavy(built: Project) -> None:
    """It costs little more than the interpreter: no HTTP, no TOML, no display, none of what resolves, fetches or patches."""
    heavy = ("httpx", "rich.progress", "tomlkit", "tomllib", "packaging", "subprocess", "asyncio", "ssl")
    ours = (
        "builder.building",
        "builder.resolve",
        "builder.fetch",
        "builder.overlay",
        "envspec.spec_toml",
        "envspec.lock_toml",
    )
    ran = built.run("build", PYTHONPROFILEIMPORTTIME="1")
    assert "as it was" in ran.stdout
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "builder.outcome" in imported
    assert imported & {*heavy, *ours} == set()
