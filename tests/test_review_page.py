"""The page on reviews names every kind, and what it shows of a review is in the golden one."""

from __future__ import annotations

import re
from pathlib import Path

from envspec.diff.changes import KINDS, LEVELS, Section

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "review.md").read_text(encoding="utf-8")


def test_every_kind_is_explained_under_its_section() -> None:
    for section in Section:
        rows = PAGE.partition(f"**{section.value}**")[2].partition("\n\n**")[0].partition("\n## ")[0]
        expected = [f"| `{name}` | {kind.says} |" for name, kind in KINDS.items() if kind.section is section]
        assert [row for row in rows.splitlines() if row.startswith("| `")] == expected


def test_every_level_is_explained() -> None:
    assert re.findall(r"^\| `(\w+)` \| [A-Z]", PAGE, re.MULTILINE) == list(LEVELS)


def test_the_shown_review_is_the_golden_one() -> None:
    golden = (ROOT / "tests" / "data" / "review" / "torch.txt").read_text(encoding="utf-8")
    shown = PAGE.partition("$ envspec diff\nvision")[2].partition("```")[0]
    for part in f"vision{shown}".split("...\n"):
        assert part.strip() in golden


def test_kinds_that_the_examples_fail_on_exist() -> None:
    assert set(re.findall(r"--fail-on ([a-z-]+)", PAGE)) <= {*KINDS, *LEVELS}
