"""Which lines differ: right, the same every time, and readable."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.line_diff import Run, changed_runs

FEW = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"  d\n"]), max_size=24)
MANY = st.lists(st.integers(0, 60).map(lambda number: b"%d\n" % number), max_size=60)


def applied(runs: list[Run], old: list[bytes], new: list[bytes]) -> list[bytes]:
    result: list[bytes] = []
    at = 0
    for run in runs:
        result += old[at : run.old_start] + new[run.new_start : run.new_end]
        at = run.old_end
    return result + old[at:]


@given(st.tuples(FEW, FEW) | st.tuples(MANY, MANY))
def test_runs_give_the_new_text_are_in_order_and_do_not_touch(texts: tuple[list[bytes], list[bytes]]) -> None:
    old, new = texts
    runs = changed_runs(old, new)
    assert applied(runs, old, new) == new
    assert all(run.old_start < run.old_end or run.new_start < run.new_end for run in runs)
    for left, right in pairwise(runs):
        assert left.old_end < right.old_start
        assert left.old_end - left.new_end == right.old_start - right.new_start


@given(MANY)
def test_equal_texts_have_no_runs(text: list[bytes]) -> None:
    assert changed_runs(text, list(text)) == []


@given(MANY, st.integers(0, 59), st.lists(st.sampled_from([b"x\n", b"y\n"]), min_size=1, max_size=4))
def test_added_lines_are_all_that_is_told(text: list[bytes], place: int, added: list[bytes]) -> None:
    (run,) = changed_runs(text, [*text[:place], *added, *text[place:]])
    assert run.old_start == run.old_end
    assert run.new_end - run.new_start == len(added)


@pytest.mark.parametrize(
    ("old", "new", "runs"),
    [
        ("", "", []),
        ("", "a\n", [Run(0, 0, 0, 1)]),
        ("a\n", "", [Run(0, 1, 0, 0)]),
        ("a\nb\nc\n", "a\nx\nc\n", [Run(1, 2, 1, 2)]),
        # A function between two others stands whole, with the blank lines below it.
        (
            "def a():\n    1\n\n\ndef c():\n    1\n",
            "def a():\n    1\n\n\ndef b():\n    1\n\n\ndef c():\n    1\n",
            [Run(4, 4, 4, 8)],
        ),
        # So does one that goes, and a method.
        (
            "def a():\n    1\n\ndef b():\n    1\n\ndef c():\n    1\n",
            "def a():\n    1\n\ndef c():\n    1\n",
            [Run(3, 6, 3, 3)],
        ),
        # Blocks that changed places: the anchors are the longer of them.
        ("1\n2\n3\n4\n5\n", "4\n5\n1\n2\n3\n", [Run(0, 0, 0, 2), Run(3, 5, 5, 5)]),
        # A blank line alone parts no two regions that were replaced.
        ("a\nb\n\nc\nd\n", "a\nx\n\ny\nd\n", [Run(1, 4, 1, 4)]),
        ("a\n\nd\n", "a\nx\n\ny\nd\n", [Run(1, 1, 1, 2), Run(2, 2, 3, 4)]),
        # No line is there once: the shortest script is found.
        ("a\nb\na\nb\na\nb\n", "b\na\nb\na\nb\na\n", [Run(0, 1, 0, 0), Run(6, 6, 5, 6)]),
    ],
)
def test_runs_are_those_that_a_person_would_name(old: str, new: str, runs: list[Run]) -> None:
    assert changed_runs(old.encode().splitlines(keepends=True), new.encode().splitlines(keepends=True)) == runs


def test_region_that_is_too_different_counts_as_replaced() -> None:
    old, new = [b"a\n", b"a\n"] * 900, [b"b\n", b"b\n"] * 900
    assert changed_runs(old, new) == [Run(0, 1800, 0, 1800)]
