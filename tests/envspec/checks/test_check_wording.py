"""How findings are worded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.checks.wording import SHOWN_CHARACTERS, SHOWN_EVIDENCE, counted, evidence, examples, joined, printable


@pytest.mark.parametrize(
    ("words", "expected"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_joined_as_in_a_sentence(words: list[str], expected: str) -> None:
    assert joined(words) == expected


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a"], "`a`"),
        (["a", "b", "c"], "`a`, `b` and `c`"),
        (["a", "b", "c", "d"], "`a`, `b`, `c` and 1 more"),
    ],
)
def test_examples_are_three_and_the_number_of_the_others(paths: list[str], expected: str) -> None:
    assert examples(paths) == expected


def test_numbers_have_their_noun() -> None:
    assert [counted(1, "file"), counted(2, "file"), counted(0, "row of it", "rows of it")] == [
        "1 file",
        "2 files",
        "0 rows of it",
    ]


def test_evidence_is_cut_off_with_the_number_of_lines_left_out() -> None:
    lines = [str(number) for number in range(SHOWN_EVIDENCE + 5)]
    assert evidence(lines[:SHOWN_EVIDENCE]) == tuple(lines[:SHOWN_EVIDENCE])
    assert evidence(lines)[-2:] == (lines[SHOWN_EVIDENCE - 1], "and 5 more")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch 2.11.0 ü", "torch 2.11.0 ü"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        ("\udcff", "\\udcff"),
        ("a @ https://user:secret@host.invalid/a.whl", "a @ https://***@host.invalid/a.whl"),
        ("a @ git+ssh://token@host.invalid/a@v1", "a @ git+ssh://***@host.invalid/a@v1"),
        ("see https://host.invalid/a@b", "see https://host.invalid/a@b"),
    ],
)
def test_text_is_made_safe_to_show(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_password_at_the_cut_is_not_shown() -> None:
    text = "x" * (SHOWN_CHARACTERS - 20) + " https://user:secret@host.invalid/"
    assert "secret" not in printable(text)


@given(st.text(st.characters(), max_size=2 * SHOWN_CHARACTERS))
def test_any_text_becomes_one_short_line_of_utf8(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
    assert len(shown) <= SHOWN_CHARACTERS * 10 + 40  # a character may become an escape of ten
