"""Commits -> series: what keeps its bytes, what is written anew, what it is called, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import EnvspecError
from envspec.patch_writing import FileEdit, render_diff
from envspec.series_plan import Change, OldPatch, message_of, plan_series, plan_series_text, subject_of

STATES = [b"x = 0\n", b"x = 1\n", b"x = 1\ny = 2\n", b"x = 1\ny = 3\n", b"y = 3\n", b"y = 4\n"]


def step(number: int, *, path: str = "x.py") -> FileEdit:
    """The change from one state of a file to the next."""
    return FileEdit(path=path, before=STATES[number], after=STATES[number + 1], executable=False)


def change(message: str, *edits: FileEdit) -> Change:
    return Change(where="0123abc", message=message.encode(), edits=edits)


def old(name: str, header: str, *edits: FileEdit) -> OldPatch:
    return OldPatch(name=name, content=header.encode() + render_diff(edits))


def planned(olds: list[OldPatch], *changes: Change) -> list[tuple[str, str, str]]:
    return [(patch.name, patch.status, patch.old_name) for patch in plan_series(olds, changes)]


def refusal(*changes: Change) -> str:
    with pytest.raises(EnvspecError) as caught:
        plan_series([], changes)
    assert caught.value.exit_code == 1
    return str(caught.value)


HEADERS = [
    "",
    "\n",
    "one\n\n",
    "one\n\nPurpose: none\n\n\n",
    "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: [PATCH] x\n\nbody\n---\n x.py | 2 +-\n\n",
    "# not a comment\n\n  indented  \n",
    "Subject: one\r\n\r\nCRLF\r\n",
    "\xfc\n\n",
    "two\n\nIndex: x.py\n=====\n",
]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("tail", ["", "-- \n2.39.5\n\n"])
def test_commits_of_an_unchanged_series_give_its_bytes(header: str, tail: str) -> None:
    first = OldPatch(name="b.patch", content=header.encode("latin-1") + render_diff([step(0)]) + tail.encode())
    second = OldPatch(name="a.patch", content=b"--- a/x.py\n+++ b/x.py\n@@ -1,0 +2 @@\n+y = 2\n")
    changes = [
        Change(where="1", message=message_of(first), edits=(step(0),)),
        Change(where="2", message=message_of(second), edits=(step(1),)),
    ]
    assert [(patch.name, patch.content, patch.status) for patch in plan_series([first, second], changes)] == [
        ("b.patch", first.content, "unchanged"),
        ("a.patch", second.content, "unchanged"),
    ]


@given(st.permutations(range(5)), st.integers(0, 5))
def test_any_commits_of_a_series_in_any_order_keep_their_bytes(order: list[int], count: int) -> None:
    """The patches touch different files here, so that each stands alone."""
    edits = [step(number, path=f"{number}.py") for number in range(5)]
    olds = [old(f"{number:04d}-x.patch", f"patch {number}\n\nWhy: so\n\n", edits[number]) for number in range(5)]
    changes = [
        Change(where=str(number), message=message_of(olds[number]), edits=(edits[number],)) for number in order[:count]
    ]
    result = plan_series(olds, changes)
    assert [patch.content for patch in result] == [olds[number].content for number in order[:count]]
    assert len({patch.name for patch in result}) == count
    numbers = [int(patch.name[:4]) for patch in result]
    assert numbers == sorted(numbers)


def test_git_may_have_taken_blanks_off_a_message() -> None:
    patch = old("0001-a.patch", "\none  \n\n\n\ntwo\t\n\n", step(0))
    assert plan_series([patch], [change("one\n\ntwo\n", step(0))])[0].content == patch.content


def test_changed_effect_keeps_the_header_and_changed_message_keeps_the_diff() -> None:
    diff = "diff -u x.py x.py\n--- a/x.py\t2020-01-01\n+++ b/x.py\n@@ -1 +1 @@\n-x = 0\n+x = 1\n"
    patch = OldPatch(name="0001-a.patch", content=b"one  \n\nmore\n\n\n" + diff.encode())
    amended = FileEdit(path="x.py", before=b"x = 0\n", after=b"x = 9\n", executable=False)
    (result,) = plan_series([patch], [change("one\n\nmore\n", amended)])
    assert (result.name, result.status) == ("0001-a.patch", "changed")
    assert result.content == b"one  \n\nmore\n\n\n" + render_diff([amended])
    (result,) = plan_series([patch], [change("one, better said\n", step(0))])
    assert (result.name, result.status) == ("0001-a.patch", "changed")
    assert result.content == b"one, better said\n\n" + diff.encode()


@pytest.mark.parametrize(
    ("names", "changes", "expected"),
    [
        ([], [("a: be one", 0)], [("0001-a-be-one.patch", "new", "")]),
        ([], [("Füür & flamme!", 0)], [("0001-f-r-flamme.patch", "new", "")]),
        ([], [("-- // --", 0)], [("0001-patch.patch", "new", "")]),
        ([], [("../../etc/passwd", 0)], [("0001-etc-passwd.patch", "new", "")]),
        ([], [("same", 0), ("same", 1)], [("0001-same.patch", "new", ""), ("0002-same.patch", "new", "")]),
        # A number between two is not there: all numbers move.
        (
            ["0001-p0.patch", "0002-p1.patch"],
            [("p0", 0), ("new", 2), ("p1", 1)],
            [
                ("0001-p0.patch", "unchanged", "0001-p0.patch"),
                ("0002-new.patch", "new", ""),
                ("0003-p1.patch", "unchanged", "0002-p1.patch"),
            ],
        ),
        # It is there: the others stay.
        (
            ["0010-p0.patch", "0020-p1.patch"],
            [("p0", 0), ("new", 2), ("p1", 1)],
            [
                ("0010-p0.patch", "unchanged", "0010-p0.patch"),
                ("0011-new.patch", "new", ""),
                ("0020-p1.patch", "unchanged", "0020-p1.patch"),
            ],
        ),
        # What goes leaves a gap.
        (["0001-p0.patch", "0002-p1.patch"], [("p1", 1)], [("0002-p1.patch", "unchanged", "0002-p1.patch")]),
        # Numbers that never ascended are left alone as long as the order is.
        (
            ["0002-p0.patch", "0001-p1.patch"],
            [("p0", 0), ("p1", 1)],
            [("0002-p0.patch", "unchanged", "0002-p0.patch"), ("0001-p1.patch", "unchanged", "0001-p1.patch")],
        ),
        (
            ["0001-p0.patch", "0002-p1.patch"],
            [("p1", 1), ("p0", 0)],
            [("0001-p1.patch", "unchanged", "0002-p1.patch"), ("0002-p0.patch", "unchanged", "0001-p0.patch")],
        ),
        # Names without numbers.
        (
            ["fix.patch", "more.diff"],
            [("new", 2), ("p1", 1), ("fix", 3), ("p0", 0)],
            [
                ("new.patch", "new", ""),
                ("more.diff", "unchanged", "more.diff"),
                ("fix-2.patch", "new", ""),
                ("fix.patch", "unchanged", "fix.patch"),
            ],
        ),
    ],
)
def test_names(names: list[str], changes: list[tuple[str, int]], expected: list[tuple[str, str, str]]) -> None:
    olds = [old(name, f"p{number}\n\n", step(number, path=f"{number}.py")) for number, name in enumerate(names)]
    assert (
        planned(olds, *(change(message, step(number, path=f"{number}.py")) for message, number in changes)) == expected
    )


def test_patch_is_recognised_by_message_then_by_effect_then_by_first_line() -> None:
    olds = [
        old("0001-a.patch", "a\n\n", step(0)),
        old("0002-b.patch", "b\n\n", step(1)),
        old("0003-c.patch", "c\n\nlong\n", step(2)),
    ]
    result = planned(
        olds, change("new words", step(0)), change("b", step(1, path="y.py")), change("c\n\nshort", step(3))
    )
    assert [source for _, _, source in result] == ["0001-a.patch", "0002-b.patch", "0003-c.patch"]


def test_two_patches_of_one_message_are_told_apart_by_what_they_do() -> None:
    olds = [old("0001-a.patch", "same\n\n", step(0)), old("0002-b.patch", "same\n\n", step(1, path="y.py"))]
    assert planned(olds, change("same", step(1, path="y.py"))) == [("0002-b.patch", "unchanged", "0002-b.patch")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([change("a")], ["0123abc `a`: it changes nothing", "git rebase -i"]),
        ([change("", step(0))], ["it has no message", "git commit --amend"]),
        ([change("fixup! a", step(0))], ["it is meant for another commit", "--autosquash"]),
        ([change("a\n\n--- a/x.py\n", step(0))], ["a line of its message begins as a diff does", "reword"]),
        ([change("a\n\ndiff --git a/x b/x\n", step(0))], ["a line of its message begins as a diff does"]),
        ([change("a\n\n@@ -1 +1 @@\n", step(0))], ["no line says of which file"]),
        ([change("a", FileEdit(path="x", before=None, after=b"\0", executable=False))], ["`x` is binary"]),
        ([change("a", FileEdit(path="x", before=b"\0", after=None, executable=False))], ["`x` is binary"]),
        ([change("a", FileEdit(path='"x', before=None, after=b"x\n", executable=False))], ["is quoted"]),
        ([change("a", FileEdit(path="../x", before=None, after=b"x\n", executable=False))], ["leaves the wheel"]),
        (
            [
                change(
                    "a",
                    FileEdit(
                        path="x", before=b"a\n", after=b"<<<<<<< HEAD\na\n=======\nb\n>>>>>>> x\n", executable=False
                    ),
                )
            ],
            ["`x` has the marks of a conflict"],
        ),
        ([change("one"), change("two")], ["`one`: it changes nothing", "`two`: it changes nothing"]),
    ],
)
def test_what_no_patch_can_say_is_refused(changes: list[Change], told: list[str]) -> None:
    message = refusal(*changes)
    assert "nothing was written" in message
    for text in told:
        assert text in message


def test_text_of_a_binary_patch_that_is_in_the_series_already_is_kept() -> None:
    edit = FileEdit(path="x", before=b"\0a\n", after=b"\0b\n", executable=False)
    patch = old("0001-a.patch", "a\n\n", edit)
    assert plan_series([patch], [change("a", edit)])[0].content == patch.content


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", b"name\n"),
        ("\n\n", b"name\n"),
        ("a\n\nb\n\n", b"a\n\nb\n"),
        ("\n a\n", b" a\n"),
        ("a\n\nIndex: x.py\n===\n", b"a\n"),
    ],
)
def test_message_is_what_stands_above_the_diff_or_the_name(header: str, message: bytes) -> None:
    assert message_of(old("name.patch", header, step(0))) == message


def test_number_is_no_part_of_the_message_of_a_patch_without_a_header() -> None:
    assert message_of(old("0007-be-one.patch", "", step(0))) == b"be-one\n"


def test_subject_is_the_first_line_that_says_something() -> None:
    assert (subject_of(b"\n\n a \nb"), subject_of(b""), subject_of(b"\xff\n")) == ("a", "", "\ufffd")


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("", [("", "a")], "a\n"),
        ("# why\n", [("", "a")], "# why\na\n"),
        ("a\nb\n", [("a", "a"), ("b", "b")], "a\nb\n"),
        ("a -p1  # x\n\n\n#y\nb", [("a", "a"), ("b", "b")], "a -p1  # x\n\n\n#y\nb"),  # not a byte, if the names stay
        (
            "# top\n\na -p1 # x\n# about b\nb\n# end\n",
            [("b", "c"), ("", "n"), ("a", "a")],
            "# top\n\n# about b\nc\nn\na -p1 # x\n# end\n",
        ),
        ("# top\na\n# about b\nb\n", [("a", "a")], "# top\na\n"),
        ("a\n", [("a", "0001-a")], "0001-a\n"),
    ],
)
def test_comments_of_the_series_stay_with_their_patches(text: str, names: list[tuple[str, str]], expected: str) -> None:
    assert plan_series_text(text, names) == expected
