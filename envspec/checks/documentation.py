"""The docstring of a check -> its page in `docs/checks`. Pure text.

A docstring has a first line that states the rule as a fact, optional paragraphs, and then four parts in the order of `PARTS`: when a finding
is an error, a warning, or only recorded; what goes wrong without the check; a finding, indented, wrapped as need be; and what to do about it,
in which indented lines are TOML. A part begins with its name and a colon at the start of a line; `envspec/checks/startup.py` has an example.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Documented(Protocol):
    """A check of locks, or a rule about venvs."""

    @property
    def id(self) -> str:
        """Words with dashes between."""

    @property
    def documentation(self) -> str:
        """Its docstring, without indentation."""


PARTS = ("Severity", "Why", "Example", "How to mend")

_PART = re.compile(rf"^({'|'.join(PARTS)}):", re.MULTILINE)


def page_name(check_id: str) -> str:
    """The file in `docs/checks` that documents a check."""
    return f"{check_id}.md"


def render_pages(checks: Iterable[Documented], rules: Iterable[Documented] = ()) -> dict[str, str]:
    """All pages of `docs/checks`: file name -> text. `README.md` lists the others.

    Args:
        checks: Of locks.
        rules: Of `envspec diagnose`, about venvs.

    Raises:
        ValueError: A docstring lacks a part.
    """
    listed = sorted(checks, key=lambda check: check.id)
    of_venvs = sorted(rules, key=lambda rule: rule.id)
    pages = {page_name(each.id): render_page(each.id, each.documentation) for each in (*listed, *of_venvs)}
    pages["README.md"] = render_index(
        {check.id: check.documentation for check in listed}, {rule.id: rule.documentation for rule in of_venvs}
    )
    return pages


def render_page(check_id: str, documentation: str) -> str:
    """One check's page in Markdown.

    Args:
        check_id: Id of the check.
        documentation: Its docstring without indentation.

    Raises:
        ValueError: The docstring lacks a part.
    """
    introduction, parts = _split(check_id, documentation)
    return (
        "\n\n".join(
            (
                f"# `{check_id}`",
                introduction,
                f"**Severity:** {parts['Severity']}",
                f"## Why\n\n{_sentence(parts['Why'])}",
                f"## Example\n\n```text\n{' '.join(parts['Example'].split())}\n```",
                f"## How to mend\n\n{_sentence(_fence_toml(parts['How to mend']))}",
            )
        ).rstrip()
        + "\n"
    )


def render_index(documentation: Mapping[str, str], rules: Mapping[str, str] | None = None) -> str:
    """The page that lists all checks.

    Args:
        documentation: Id -> docstring, in the order of the list.
        rules: The same of rules about venvs.

    Raises:
        ValueError: A docstring lacks a part.
    """
    of_venvs = []
    if rules:
        of_venvs = [
            "",
            "## Of venvs",
            "",
            "What `envspec diagnose` asks of a venv, whoever made it, beside those of the checks that make sense for it. Nothing is locked by",
            "them, and nothing is waived: an error is a cause, a warning is worth a look, an info is a remark.",
            "",
            "| rule | what it asks | severity |",
            "|---|---|---|",
            *_rows(rules),
        ]
    return "\n".join(
        [
            "# Checks",
            "",
            "What `envspec lock` and `envspec check` ask of an environment. An error means that no lock is written, a warning is",
            "shown and kept in the lock, an info is kept in the lock. A waiver in the spec names a check by its id:",
            "",
            "```toml",
            "[[waivers]]",
            'check = "startup-hook"',
            'package = "setuptools"',
            'path = "distutils-precedence.pth"',
            'reason = "only prepares an import hook for distutils"',
            "```",
            "",
            "`path` is a pattern (`*`, `?`, `[...]`) of a path within site-packages, or within the environment for what lies",
            "elsewhere (`bin/serve`); without it the waiver is for all paths of the package.",
            "",
            "| check | rule | severity |",
            "|---|---|---|",
            *_rows(documentation),
            *of_venvs,
            "",
            "These pages are written from the docstrings in `envspec/checks` and `envspec/diagnosis/rules` by `pytest --accept`.",
            "",
        ]
    )


def _rows(documentation: Mapping[str, str]) -> list[str]:
    """A line of the table for each."""
    rows = []
    for check_id, text in documentation.items():
        introduction, parts = _split(check_id, text)
        severity = " ".join(parts["Severity"].split())
        rows.append(f"| [`{check_id}`]({page_name(check_id)}) | {introduction.splitlines()[0]} | {severity} |")
    return rows


def _split(check_id: str, documentation: str) -> tuple[str, dict[str, str]]:
    """The introduction and the parts of a docstring, each without surrounding space."""
    pieces = _PART.split(documentation)
    names, texts = pieces[1::2], pieces[2::2]
    if tuple(names) != PARTS or not pieces[0].strip() or not all(text.strip() for text in texts):
        raise ValueError(
            f"the docstring of `{check_id}` needs a first line and the parts {', '.join(PARTS)}, in this order"
        )
    return pieces[0].strip(), {
        name: textwrap.dedent(text).strip() if name == "Example" else text.strip()
        for name, text in zip(names, texts, strict=True)
    }


def _sentence(text: str) -> str:
    """Text with its first letter in upper case, as after a heading."""
    return text[:1].upper() + text[1:]


def _fence_toml(text: str) -> str:
    """Text whose indented lines are fenced as TOML."""
    return re.sub(
        r"(?m)(?:^    .*\n?)+",
        lambda match: f"```toml\n{textwrap.dedent(match[0]).rstrip()}\n```\n",
        text,
    )
