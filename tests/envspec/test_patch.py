from __future__ import annotations

import difflib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder import process
from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError
from envspec.patch import (
    MAX_PATCH_BYTES,
    SHOWN_PROBLEMS,
    FileChange,
    Patch,
    apply_patch,
    apply_patches,
    parse_patch,
    parse_series,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GIT = shutil.which("git")
MODIFY = b"""\
A free text, with a line --- in it.
---
 x.py | 2 +-

diff --git a/pkg/x.py b/pkg/x.py
index 1234567..89abcde 100644
--- a/pkg/x.py
+++ b/pkg/x.py
@@ -1,3 +1,3 @@ def f():
 one
-two
+2
 three
-- \n2.39.5

"""
BEFORE = b"one\ntwo\nthree\n"
AFTER = b"one\n2\nthree\n"
NO_FILES: dict[str, bytes] = {}


def parsed(content: bytes) -> Patch:
    return parse_patch(content, input_name="p.patch")


def refusal(content: bytes) -> str:
    with pytest.raises(EnvspecError) as caught:
        parsed(content)
    assert caught.value.exit_code == COULD_NOT_LOOK
    return str(caught.value)


def misfit(content: bytes, files: dict[str, bytes]) -> str:
    with pytest.raises(EnvspecError) as caught:
        apply_patch(parsed(content), files.get)
    assert caught.value.exit_code == FOUND_WRONG
    return str(caught.value)


def change(hunks: bytes, *, path: bytes = b"x", old: bytes = b"", new: bytes = b"") -> bytes:
    return b"--- %s\n+++ %s\n%s" % (old or b"a/" + path, new or b"b/" + path, hunks)


# --- series ---------------------------------------------------------------------------------------------------------


def test_series_gives_the_names_in_order_without_comments_and_blank_lines() -> None:
    text = "# all of them\n\n0002-b.patch\n  0001-a.diff -p1   # why\r\nc@1+2.patch\n"
    assert parse_series(text, input_name="series") == ("0002-b.patch", "0001-a.diff", "c@1+2.patch")


def test_series_without_a_patch_is_empty() -> None:
    assert parse_series("# nothing yet\n", input_name="series") == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../x.patch", "`../x.patch` is not the plain name of a file beside the series"),
        ("sub/x.patch", "is not the plain name"),
        ("/x.patch", "is not the plain name"),
        ("..", "is not the plain name"),
        (".hidden.patch", "is not the plain name"),
        ("-R", "is not the plain name"),
        ("a\\b.patch", "is not the plain name"),
        ("a\x00.patch", "`a\\x00.patch` is not the plain name"),
        ("ü.patch", "is not the plain name"),
        ("x.patch -p0", "`x.patch` has the option `-p0`; paths are always read with `-p1`"),
        ("x.patch -p1 -R", "has the option `-R`"),
        ("x.patch -p2", "has the option `-p2`"),
        ("x.patch y.patch", "has the option `y.patch`"),
        ("first.patch", "`first.patch` is listed twice, first in line 1"),
    ],
)
def test_series_line_is_refused_with_its_number(line: str, message: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        parse_series(f"first.patch\n{line}\n", input_name="overlays/demo/series")
    assert message in str(caught.value)
    assert caught.value.problems[0].where == "line 2"
    assert caught.value.input_name == "overlays/demo/series"


def test_series_tells_every_bad_line_at_once() -> None:
    with pytest.raises(EnvspecError) as caught:
        parse_series("../a\n/b\nc -p3\n", input_name="series")
    assert [problem.where for problem in caught.value.problems] == ["line 1", "line 2", "line 3"]


# --- what can be read -----------------------------------------------------------------------------------------------


def test_git_patch_with_free_text_and_closing_lines_changes_the_file() -> None:
    assert apply_patch(parsed(MODIFY), {"pkg/x.py": BEFORE}.get) == {"pkg/x.py": AFTER}


def test_plain_diff_with_timestamps_and_index_lines_changes_the_files() -> None:
    content = (
        b"Index: demo/x\n=====\n--- demo.orig/x y\t2026-01-01 00:00:00\n+++ demo/x y\t2026-01-01 00:00:01\n@@ -1 +1 @@\n-a\n+b\n"
        b"diff -u -r demo.orig/z demo/z\n--- demo.orig/z\n+++ demo/z\n@@ -0,0 +1 @@\n+z\n\n"
    )
    assert apply_patch(parsed(content), {"x y": b"a\n", "z": b""}.get) == {"x y": b"b\n", "z": b"z\n"}


@pytest.mark.parametrize(("mode", "executable"), [(b"100644", False), (b"100755", True)])
def test_added_file_has_the_mode_of_the_patch(mode: bytes, executable: bool) -> None:  # noqa: FBT001
    content = (
        b"diff --git a/n b/n\nnew file mode %s\nindex 0000000..1234567\n--- /dev/null\n+++ b/n\n@@ -0,0 +1,2 @@\n+a\n+b\n"
        % mode
    )
    patch = parsed(content)
    assert (patch.files[0].kind, patch.files[0].executable) == ("add", executable)
    assert apply_patch(patch, NO_FILES.get) == {"n": b"a\nb\n"}


def test_empty_file_is_added_and_deleted_without_a_hunk() -> None:
    content = (
        b"diff --git a/new b/new\nnew file mode 100644\nindex 0000000..e69de29\n"
        b"diff --git a/old b/old\ndeleted file mode 100644\nindex e69de29..0000000\n"
    )
    assert apply_patch(parsed(content), {"old": b""}.get) == {"new": b"", "old": None}


def test_deleted_file_is_none_afterwards() -> None:
    content = (
        b"diff --git a/d b/d\ndeleted file mode 100755\nindex 1..0\n--- a/d\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"
    )
    content = content.replace(b"index 1..0\n", b"")
    assert apply_patch(parsed(content), {"d": b"a\nb\n"}.get) == {"d": None}


@pytest.mark.parametrize(
    ("before", "hunks", "after"),
    [
        pytest.param(
            b"a\nb", b"@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n", b"a\nb\n", id="newline is added"
        ),
        pytest.param(
            b"a\nb\n", b"@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n", b"a\nb", id="newline is removed"
        ),
        pytest.param(
            b"a\nb", b"@@ -1,2 +1,2 @@\n-a\n+A\n b\n\\ No newline at end of file\n", b"A\nb", id="both lack it"
        ),
        pytest.param(
            b"a",
            b"@@ -1 +1,2 @@\n-a\n\\ Kein Zeilenumbruch am Dateiende.\n+a\n+b\n\\ anything\n",
            b"a\nb",
            id="in any language",
        ),
        pytest.param(b"a\r\nb\r\n", b"@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n", b"a\r\nc\r\n", id="CRLF"),
        pytest.param(b"a\r\n", b"@@ -1 +1 @@\n-a\r\n+a\n", b"a\n", id="CRLF to LF"),
        pytest.param(b"a\x0cb\x85\x1c\n", b"@@ -1 +1 @@\n-a\x0cb\x85\x1c\n+\xff\x00\n", b"\xff\x00\n", id="odd bytes"),
        pytest.param(b"a\rb\n", b"@@ -1 +1 @@\n-a\rb\n+c\n", b"c\n", id="a lone CR ends no line"),
        pytest.param(
            b"a\n\nb\n", b"@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", b"a\n\nc\n", id="empty context line without its space"
        ),
        pytest.param(b"a\nb\n", b"@@ -1,0 +2 @@\n+x\n", b"a\nx\nb\n", id="insertion without context"),
        pytest.param(b"", b"@@ -0,0 +1 @@\n+x\n", b"x\n", id="into an empty file"),
        pytest.param(b"a\nb\nc\n", b"@@ -2 +1,0 @@\n-b\n", b"a\nc\n", id="deletion without context"),
        pytest.param(b"a\nb\n", b"@@ -1,2 +0,0 @@\n-a\n-b\n", b"", id="emptied, not deleted"),
        pytest.param(b"-- x\n", b"@@ -1 +1 @@\n--- x\n+++ y\n", b"++ y\n", id="lines that look like file names"),
        pytest.param(
            b"a\nb\nc\n", b"@@ -1 +1,2 @@\n-a\n+1\n+1\n@@ -3 +4 @@\n-c\n+3\n", b"1\n1\nb\n3\n", id="two hunks"
        ),
        pytest.param(b"a\nb\n", b"@@ -1 +1 @@\n-a\n+1\n@@ -2 +2 @@\n-b\n+2\n", b"1\n2\n", id="hunks that touch"),
    ],
)
def test_content_is_kept_to_the_byte(before: bytes, hunks: bytes, after: bytes) -> None:
    assert apply_patch(parsed(change(hunks)), {"x": before}.get) == {"x": after}


# --- what is refused ------------------------------------------------------------------------------------------------

GIT_HEAD = b"diff --git a/x b/x\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it changes no file"),
        (b"just words\n", "it changes no file"),
        (b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", "the two paths are not one path"),
        (GIT_HEAD + b"similarity index 90%\n", "it renames or copies a file: `x`"),
        (GIT_HEAD + b"rename from x\nrename to y\n", "it renames a file: `x`"),
        (GIT_HEAD + b"copy from x\ncopy to y\n", "it copies a file: `x`"),
        (GIT_HEAD + b"dissimilarity index 90%\n", "it rewrites a file"),
        (GIT_HEAD + b"index 1234567..89abcde 100644\nGIT binary patch\nliteral 3\nKcmZ\n", "it is a binary patch: `x`"),
        (GIT_HEAD + b"index 1234567..89abcde 100644\nBinary files a/x and b/x differ\n", "it is a binary patch: `x`"),
        (b"Binary files a/y and b/y differ\n" + MODIFY, "line 1: it is a binary patch"),
        (MODIFY + b"Binary files a/y and b/y differ\ndiff --git", "is cut off"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n") + b"Binary files a/y and b/y differ\n", "line 6: it is a binary patch"),
        (
            b"words\n@@ -1 +1 @@\n-a\n+b\n" + MODIFY,
            "line 2: `@@ -1 +1 @@` begins a hunk, and no line says of which file",
        ),
        (GIT_HEAD + b"old mode 100644\nnew mode 100755\n", "it changes the mode of `x`"),
        (GIT_HEAD + b"new file mode 120000\n", "`x` has the mode 120000: a symbolic link"),
        (GIT_HEAD + b"index 1234567..89abcde 120000\n", "a symbolic link"),
        (GIT_HEAD + b"new file mode 160000\n", "a git submodule"),
        (GIT_HEAD + b"deleted file mode 100600\n", "`x` has the mode 100600: neither 100644 nor 100755"),
        (b"diff --cc x\nindex 1,2..3\n", "it is a combined diff"),
        (b"diff --combined x\n", "it is a combined diff"),
        (change(b"@@@ -1 -1 +1 @@@\n"), "it is a combined diff"),
        (GIT_HEAD + b"index 1234567..89abcde 100644\n", "it changes nothing in `x`"),
        (GIT_HEAD + b"mystery line\n", "it changes nothing in `x`: `mystery line` follows"),
        (b"diff --git x x\n", "the paths have no prefixes: `x x`"),
        (b"diff --git pkg/x pkg/x\n", "the paths have no prefixes"),
        (
            GIT_HEAD + change(b"@@ -1 +1 @@\n-a\n+b\n", path=b"y"),
            "its lines disagree: modify `x` by `diff --git`, modify `y`",
        ),
        (GIT_HEAD + b"new file mode 100644\n" + change(b"@@ -1 +1 @@\n-a\n+b\n"), "its lines disagree: add `x`"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n", new=b"b/y"), "it renames `x` to `y`"),
        (b"--- /dev/null\n+++ /dev/null\n", "both files are `/dev/null`"),
        (b"--- a/x\n@@ -1 +1 @@\n", "in place of a line `+++ `: it is not a unified diff"),
        (b"*** a/x\n--- b/x\n***************\n*** 1 ****\n", "it is not a unified diff"),
        (change(b""), "`x` has no hunk"),
        (change(b"@@ -1 +1\n-a\n+b\n"), "the first line of a hunk cannot be read: `@@ -1 +1`"),
        (change(b"@@ -9999999999 +1 @@\n-a\n+b\n"), "the first line of a hunk cannot be read"),
        (change(b"@@ -0 +1 @@\n-a\n+b\n"), "names a line 0"),
        (change(b"@@ -1,2 +1 @@\n-a\n+b\n"), "the hunk is cut off"),
        (change(b"@@ -1,2 +1 @@\n-a\n+b\n@@ -9 +9 @@\n-a\n+b\n"), "`@@ -9 +9 @@` is no line of a hunk"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n+c\n"), "`+c` belongs to no hunk"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n c\n"), "` c` belongs to no hunk"),
        (change(b"@@ -1 +2 @@\n-a\n-b\n+c\n"), "the hunk has more lines than `@@ -1 +2 @@` says"),
        (change(b"@@ -1 +1 @@\n a\n"), "the hunk changes nothing"),
        (change(b"@@ -1 +1 @@\n-a\n+b"), "the last line has no newline: the patch is cut off"),
        (change(b"@@ -1 +1 @@\n\\ No newline at end of file\n-a\n+b\n"), "where there is no line before it"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n\\ No newline\n\\ No newline\n"), "where there is no line before it"),
        (change(b"@@ -1 +1 @@\n-a\n+\n\\ No newline\n"), "an empty line without a newline is no line"),
        (change(b"@@ -1,2 +1 @@\n-a\n\\ No newline\n-b\n+c\n"), "a line without a newline is not the last one"),
        (change(b"@@ -1 +1,2 @@\n a\n\\ No newline\n+b\n"), "a line without a newline is not the last one"),
        (
            change(b"@@ -1 +1 @@\n-a\n+b\n\\ No newline\n@@ -3 +3 @@\n-a\n+b\n"),
            "a hunk follows the one that holds the end",
        ),
        (
            change(b"@@ -3 +3 @@\n-a\n+b\n@@ -1 +1 @@\n-a\n+b\n"),
            "the hunk at line 1 overlaps the one before it, or comes too late",
        ),
        (change(b"@@ -1,2 +1,2 @@\n a\n-b\n+c\n@@ -2 +2 @@\n-c\n+d\n"), "the hunk at line 2 overlaps"),
        (
            change(b"@@ -1 +1,2 @@\n-a\n+b\n+c\n@@ -3 +3 @@\n-a\n+b\n"),
            "begin at index 2 where the hunks before it give 3",
        ),
        (change(b"@@ -5 +6 @@\n-a\n+b\n"), "begin at index 5 where the hunks before it give 4"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n", old=b"/dev/null"), "`x` is to be added, but a hunk says otherwise"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n", new=b"/dev/null"), "`x` is to be deleted, but a hunk says otherwise"),
        (MODIFY + b"trailing words\n@@ -9 +9 @@\n", "after the closing line `-- ` comes another patch"),
        (MODIFY + MODIFY, "after the closing line `-- ` comes another patch"),
        (MODIFY.replace(b"-- \n", b"words\n"), "`words` belongs to no hunk"),
        (change(b"@@ -1 +1 @@\n-a\n+b\n") * 2, "`x` is changed twice"),
        (b"x" * (MAX_PATCH_BYTES + 1), "more than the"),
    ],
)
def test_what_does_not_say_in_the_open_how_a_file_ends_up_is_refused_by_name(content: bytes, message: str) -> None:
    assert message in refusal(content)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (b"a/../x", "leaves the wheel"),
        (b"a/pkg/../../x", "leaves the wheel"),
        (b"a/./x", "leaves the wheel"),
        (b"a//x", "leaves the wheel"),
        (b"a/pkg/", "leaves the wheel"),
        (b"../x", "leaves the wheel"),
        (b"a/C:/x", "leaves the wheel"),
        (b"/etc/passwd", "is absolute"),
        (b"x", "has no first component to take off"),
        (b"a/", "leaves the wheel"),
        (b"a/pkg\\x", "has a backslash or a control character"),
        (b"a/x\x00y", "has a backslash or a control character"),
        (b"a/x\r", "has a backslash or a control character"),
        (b"a/x\x1b[2J", "has a backslash or a control character"),
        (b"a/\xff", "is not UTF-8"),
        (b'"a/\\303\\274"', "is quoted"),
        (b"a/demo-1.0.dist-info/METADATA", "is in a `.dist-info` or `.data` folder"),
        (b"a/Demo-1.0.DIST-INFO/METADATA", "is in a `.dist-info` or `.data` folder"),
        (b"a/pkg/vendored-1.0.dist-info/RECORD", "is in a `.dist-info` or `.data` folder"),
        (b"a/demo-1.0.data/scripts/x", "is in a `.dist-info` or `.data` folder"),
        (b"a/pkg/__pycache__/x.py", "is in `__pycache__`, which no digest covers"),
        (b"a/" + b"x" * 5000, "a path has 5002 bytes"),
    ],
)
def test_path_that_a_patch_may_not_change_is_refused(path: bytes, message: str) -> None:
    hunk = b"@@ -1 +1 @@\n-a\n+b\n"
    assert message in refusal(change(hunk, old=path, new=path))
    other = b"b" + path[1:] if path.startswith(b"a/") else path
    assert message in refusal(b"diff --git %s %s\n" % (path, other)) or not path.startswith(b"a/")


@pytest.mark.parametrize("path", ["x y/z.py", "ü/é.txt", "pkg/demo.data", "a b c"])
def test_unusual_but_plain_path_is_taken(path: str) -> None:
    raw = path.encode()
    content = b"diff --git a/%s b/%s\nindex 1234..5678 100644\n--- a/%s\t\n+++ b/%s\t\n@@ -1 +1 @@\n-a\n+b\n" % (
        raw,
        raw,
        raw,
        raw,
    )
    assert [file.path for file in parsed(content).files] == [path]


def test_every_refused_file_is_told_with_its_line_and_a_hint() -> None:
    content = (
        GIT_HEAD
        + b"old mode 100644\nnew mode 100755\n"
        + b"diff --git a/y b/y\nrename from y\nrename to z\n"
        + MODIFY[58:]
    )
    with pytest.raises(EnvspecError) as caught:
        parsed(content)
    assert [(problem.where, problem.message) for problem in caught.value.problems] == [
        ("line 2", "it changes the mode of `x`"),
        ("line 5", "it renames a file: `y`"),
    ]
    assert all(problem.hint for problem in caught.value.problems)


def test_long_list_of_problems_is_cut() -> None:
    content = b"".join(b"diff --git a/%d b/%d\nold mode 100644\n" % (n, n) for n in range(1000))
    with pytest.raises(EnvspecError) as caught:
        parsed(content)
    assert len(caught.value.problems) == SHOWN_PROBLEMS + 1
    assert caught.value.problems[-1].message == f"and {1000 - SHOWN_PROBLEMS} more"


# --- what does not fit ----------------------------------------------------------------------------------------------


def test_patch_with_shifted_context_is_refused_and_names_where_the_text_stands() -> None:
    assert misfit(MODIFY, {"pkg/x.py": b"zero\n" + BEFORE}) == (
        "1 file does not fit; nothing was written\n"
        "  input: p.patch\n"
        "  - p.patch: pkg/x.py: hunk 1 of 1: line 1: expected `one`, found `zero`; the same text stands at line 2\n"
        "hint: the files are not those that the patch was made for: base it on this version of the package"
    )


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (b"one\nTWO\nthree\n", "hunk 1 of 1: line 2: expected `two`, found `TWO`\n"),
        (b"one\ntwo\r\nthree\n", "line 2: expected `two`, found `two\\r`\n"),
        (b"one\ntwo\nthree", "line 3: expected `three`, found `three` without a newline\n"),
        (b"one\ntwo\n", "line 3: expected `three`, found the end of the file\n"),
        (b"", "line 1: expected `one`, found the end of the file\n"),
        (AFTER, "line 2: expected `two`, found `2`; the hunk seems to be applied already\n"),
        (b"zero\n" + AFTER, "line 1: expected `one`, found `zero`; the hunk seems to be applied already\n"),
        (b"one\ntw\x1b\xff" + b"o" * 300 + b"\nthree\n", "found `tw\\x1b\\xff" + "o" * 113 + "...`\n"),
    ],
)
def test_misfit_says_what_was_expected_and_found(before: bytes, message: str) -> None:
    assert message in misfit(MODIFY, {"pkg/x.py": before})


@pytest.mark.parametrize(
    ("content", "files", "message"),
    [
        (MODIFY, {}, "pkg/x.py: the file is to be changed, and is not there\n"),
        (change(b"@@ -0,0 +1 @@\n+a\n", old=b"/dev/null"), {"x": b"b\n"}, "the file is to be added, and is there\n"),
        (
            change(b"@@ -0,0 +1 @@\n+a\n", old=b"/dev/null"),
            {"x": b"a\n"},
            "the file is to be added, and is there, with the same content: the patch seems to be applied already\n",
        ),
        (
            change(b"@@ -1 +0,0 @@\n-a\n", new=b"/dev/null"),
            {},
            "the file is to be removed, and is not there: the patch seems to be applied already\n",
        ),
        (
            change(b"@@ -1 +0,0 @@\n-a\n", new=b"/dev/null"),
            {"x": b"a\nb\nc\n"},
            "the file is to be removed, but the patch leaves 2 of its 3 lines\n",
        ),
        (
            GIT_HEAD + b"deleted file mode 100644\nindex e69de29..0000000\n",
            {"x": b"a\n"},
            "the file is to be removed, but the patch leaves 1 of its 1 lines\n",
        ),
        (change(b"@@ -7,0 +8 @@\n+a\n"), {"x": b"a\n"}, "lines are to be put in after line 7, but the file has 1"),
        (
            change(b"@@ -1,0 +2 @@\n+b\n"),
            {"x": b"a"},
            "line 1 would have no newline and yet not be the last one of the file\n",
        ),
        (
            change(b"@@ -1 +1 @@\n-a\n+b\n\\ No newline\n"),
            {"x": b"a\nc\n"},
            "line 1 would have no newline and yet not be the last one of the file\n",
        ),
    ],
)
def test_change_of_another_file_than_the_patch_was_made_for_is_refused(
    content: bytes, files: dict[str, bytes], message: str
) -> None:
    assert message in misfit(content, files)


def test_every_hunk_of_every_file_that_does_not_fit_is_told_at_once() -> None:
    two = change(b"@@ -1 +1 @@\n-a\n+b\n@@ -3 +3 @@\n-c\n+d\n@@ -5 +5 @@\n-e\n+f\n")
    other = change(b"@@ -1 +1 @@\n-a\n+b\n", path=b"y")
    good = change(b"@@ -1 +1 @@\n-a\n+b\n", path=b"z")
    with pytest.raises(EnvspecError) as caught:
        apply_patch(parsed(two + other + good), {"x": b"A\nb\nc\nd\nE\n", "y": b"", "z": b"a\n"}.get)
    assert caught.value.message == "2 files do not fit; nothing was written"
    assert [problem.where for problem in caught.value.problems] == [
        "p.patch: x: hunk 1 of 3",
        "p.patch: x: hunk 3 of 3",
        "p.patch: y: hunk 1 of 1",
    ]


def test_patches_of_a_series_are_applied_on_top_of_each_other() -> None:
    contents = [
        change(b"@@ -1 +1 @@\n-a\n+b\n"),
        change(b"@@ -1 +1 @@\n-b\n+c\n") + change(b"@@ -0,0 +1 @@\n+n\n", path=b"n", old=b"/dev/null"),
        change(b"@@ -1 +0,0 @@\n-n\n", path=b"n", new=b"/dev/null")
        + change(b"@@ -0,0 +1 @@\n+m\n", path=b"m", old=b"/dev/null"),
    ]
    patches = [parse_patch(content, input_name=str(number)) for number, content in enumerate(contents)]
    assert apply_patches(patches, {"x": b"a\n"}.get, input_name="series") == {"m": b"m\n", "n": None, "x": b"c\n"}


def test_later_patches_of_a_file_that_did_not_fit_are_not_blamed() -> None:
    bad = parse_patch(change(b"@@ -1 +1 @@\n-a\n+b\n"), input_name="1.patch")
    later = parse_patch(
        change(b"@@ -1 +1 @@\n-b\n+c\n") + change(b"@@ -1 +1 @@\n-k\n+l\n", path=b"y"), input_name="2.patch"
    )
    with pytest.raises(EnvspecError) as caught:
        apply_patches([bad, later], {"x": b"z\n", "y": b"z\n"}.get, input_name="series")
    assert [problem.where for problem in caught.value.problems] == [
        "1.patch: x: hunk 1 of 1",
        "2.patch: y: hunk 1 of 1",
    ]


def test_ten_thousand_hunks_against_a_file_of_equal_lines_end_in_one_short_error() -> None:
    hunks = b"".join(b"@@ -%d +%d @@\n-b\n+c\n" % (n, n) for n in range(1, 20_000, 2))
    with pytest.raises(EnvspecError) as caught:
        apply_patch(parsed(change(hunks)), {"x": b"a\n" * 20_000}.get)
    assert len(caught.value.problems) == SHOWN_PROBLEMS + 1
    assert caught.value.problems[-1].message == f"{10_000 - SHOWN_PROBLEMS} more hunks do not fit"


def test_search_for_a_long_repetitive_hunk_in_a_long_repetitive_file_ends() -> None:
    count = 60_000
    hunk = b"@@ -1,%d +1,%d @@\n" % (count + 1, count + 2) + b" a\n" * count + b" b\n+c\n"
    assert "expected `b`, found `a`" in misfit(change(hunk), {"x": b"a\n" * (2 * count)})


# --- properties -----------------------------------------------------------------------------------------------------

SAMPLE_LINES = [
    *(b"a", b"b", b"c", b"", b" ", b"-", b"+", b"-- ", b"\r", b"a\r", "ü".encode()),
    *(b"--- a/x", b"+++ b/x", b"@@ -1 +1 @@", b"\\ No newline"),
]


def text_of(lines: list[bytes]) -> bytes:
    """The lines as a text, which ends without a newline after some last lines."""
    text = b"".join(line + b"\n" for line in lines)
    return text[:-1] if text.endswith((b"a\n", b"\r\n")) else text


TEXTS = st.lists(st.sampled_from(SAMPLE_LINES), max_size=12).map(text_of)


def lines_of(text: bytes) -> list[bytes]:
    return [line + b"\n" for line in text.split(b"\n")[:-1]] + (
        [text.split(b"\n")[-1]] if not text.endswith(b"\n") and text else []
    )


def diff_of(old: bytes, new: bytes, context: int) -> tuple[bytes, list[tuple[int, list[bytes], list[bytes]]]]:
    """A unified diff, and its hunks as (index of the first old line, old lines, new lines)."""
    a, b = lines_of(old), lines_of(new)
    groups = difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(context)
    text = b"--- a/x\n+++ b/x\n"
    hunks = []
    for group in groups:
        (i1, i2), (j1, j2) = (group[0][1], group[-1][2]), (group[0][3], group[-1][4])
        hunks.append((i1, a[i1:i2], b[j1:j2]))
        text += b"@@ -%d,%d +%d,%d @@\n" % (i1 + (i2 > i1), i2 - i1, j1 + (j2 > j1), j2 - j1)
        for tag, k1, k2, l1, l2 in group:
            rows = (
                [b" " + line for line in a[k1:k2]]
                if tag == "equal"
                else [b"-" + line for line in a[k1:k2]] + [b"+" + line for line in b[l1:l2]]
            )
            text += b"".join(row if row.endswith(b"\n") else row + b"\n\\ No newline at end of file\n" for row in rows)
    return text, hunks


def naively_applied(text: bytes, hunks: list[tuple[int, list[bytes], list[bytes]]]) -> bytes | None:
    """The text with the hunks in it, put in from the last to the first; None if one does not stand at its line."""
    lines = lines_of(text)
    for start, old, new in reversed(hunks):
        if start > len(lines) or lines[start : start + len(old)] != old:
            return None
        lines[start : start + len(old)] = new
    return None if any(not line.endswith(b"\n") for line in lines[:-1]) else b"".join(lines)


@given(old=TEXTS, new=TEXTS, other=TEXTS, context=st.integers(0, 3))
def test_diff_of_two_texts_gives_the_second_and_never_anything_else_on_a_third(
    old: bytes, new: bytes, other: bytes, context: int
) -> None:
    text, hunks = diff_of(old, new, context)
    if not hunks:
        return
    patch = parsed(text)
    assert apply_patch(patch, {"x": old}.get) == {"x": new}
    expected = naively_applied(other, hunks)
    if expected is None:
        with pytest.raises(EnvspecError) as caught:
            apply_patch(patch, {"x": other}.get)
        assert caught.value.exit_code == FOUND_WRONG
    else:
        assert apply_patch(patch, {"x": other}.get) == {"x": expected}


@pytest.mark.skipif(GIT is None, reason="git is not installed")
@given(old=st.none() | TEXTS, new=st.none() | TEXTS, context=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_diff_that_git_writes_gives_what_git_compared(old: bytes | None, new: bytes | None, context: int) -> None:
    if old == new:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = {"HOME": name, "GIT_CONFIG_NOSYSTEM": "1", "PATH": str(Path(GIT or "").parent)}

        def git(*words: str) -> None:
            done = process.run(["git", *words], cwd=folder, env=environ)
            assert done.returncode == 0, done.stderr

        git("init", "--quiet")
        if old is not None:
            (folder / "x").write_bytes(old)
            git("add", "x")
        (folder / "x").unlink(missing_ok=True)
        if new is not None:
            (folder / "x").write_bytes(new)
            git("add", "--intent-to-add", "x")
        # Into a file: reading it as text would translate CRLF.
        git("diff", "--text", f"-U{context}", "--output=out")
        content = (folder / "out").read_bytes()
    before: dict[str, bytes] = {} if old is None else {"x": old}
    assert apply_patch(parsed(content), before.get) == {"x": new}


SEEDS = [
    MODIFY,
    change(b"@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"),
    GIT_HEAD + b"new file mode 100755\nindex 0000000..1234567\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+a\n+b\n",
    GIT_HEAD + b"deleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n" + MODIFY,
]
TOKENS = [
    *SAMPLE_LINES,
    b"diff --git ",
    b"--- /dev/null\n",
    b"@@ -1,99 +1,1 @@\n",
    b"\\ No",
    b'"',
    b"\x00",
    b"\xff",
    b"rename from x\n",
    b"\n",
]


def mutated(seed: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """The seed with some of its bytes replaced: (where, how many, by what)."""
    content = bytearray(seed)
    for start, length, token in cuts:
        at = start % (len(content) + 1)
        content[at : at + length] = token
    return bytes(content)


CUTS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 12), st.sampled_from(TOKENS)), min_size=1, max_size=5)


def outcome(action: Callable[[], Iterable[str]]) -> tuple[list[str], str]:
    """What an action gives, and the text of the EnvspecError that it gives instead."""
    try:
        return list(action()), ""
    except EnvspecError as error:
        return [], str(error)


@given(content=st.builds(mutated, st.sampled_from(SEEDS), CUTS) | st.binary(max_size=200))
@settings(max_examples=300)
def test_hostile_patch_gives_a_patch_or_an_envspec_error_with_a_printable_message(content: bytes) -> None:
    files = {"pkg/x.py": BEFORE, "x": b"a\nb"}
    paths, message = outcome(lambda: apply_patch(parsed(content), files.get))
    assert all(char.isprintable() or char == "\n" for char in message)
    assert all(".." not in path.split("/") and not path.startswith("/") for path in paths)


@given(text=st.text(max_size=80))
def test_hostile_series_gives_plain_names_or_an_envspec_error(text: str) -> None:
    names, message = outcome(lambda: parse_series(text, input_name="series"))
    assert all(char.isprintable() or char == "\n" for char in message)
    assert all(Path(name).name == name and name not in ("", ".", "..") for name in names)
    assert len(set(names)) == len(names)


def test_values_are_frozen_and_comparable() -> None:
    assert parsed(MODIFY) == parsed(MODIFY)
    with pytest.raises(AttributeError):
        parsed(MODIFY).files[0].path = "y"  # type: ignore[misc]
    assert isinstance(parsed(MODIFY).files[0], FileChange)
