"""The pages of checks: written from docstrings, and never behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.checks import registered_checks
from envspec.checks.documentation import PARTS, render_index, render_page, render_pages
from envspec.diagnosis.rules import registered_rules

DOCS = Path(__file__).parents[3] / "docs" / "checks"

DOCSTRING = """Everything is in order.

It stays so.

Severity: error, or
warning.

Why: disorder grows.

Example:
    error: demo 1.0 is not in
    order

How to mend: put it in order:

    [[waivers]]
    check = "order"

That is all."""


def test_docstring_becomes_a_page() -> None:
    assert (
        render_page("order", DOCSTRING)
        == """# `order`

Everything is in order.

It stays so.

**Severity:** error, or
warning.

## Why

Disorder grows.

## Example

```text
error: demo 1.0 is not in order
```

## How to mend

Put it in order:

```toml
[[waivers]]
check = "order"
```

That is all.
"""
    )


def test_index_has_one_row_for_each_check() -> None:
    text = render_index({"order": DOCSTRING})
    assert "| [`order`](order.md) | Everything is in order. | error, or warning. |\n" in text


@pytest.mark.parametrize("part", PARTS)
def test_docstring_without_a_part_is_refused(part: str) -> None:
    lacking = DOCSTRING.replace(f"{part}:", "Something else:")
    with pytest.raises(ValueError, match="the docstring of `order` needs a first line and the parts"):
        render_page("order", lacking)


def test_docs_are_what_the_docstrings_say(request: pytest.FixtureRequest) -> None:
    pages = render_pages(registered_checks(), registered_rules())
    if request.config.getoption("--accept", default=False):
        DOCS.mkdir(parents=True, exist_ok=True)
        for stale in {path.name for path in DOCS.glob("*.md")} - pages.keys():
            (DOCS / stale).unlink()
        for name, text in pages.items():
            (DOCS / name).write_text(text, encoding="utf-8")
    assert {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))} == pages, (
        "docs/checks is behind the docstrings: run `pytest --accept`"
    )
