"""The text of a diff: what is read back from it is what was written, and git and a person read it too."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.patch import apply_patch, parse_patch
from envspec.patch_writing import FileEdit, render_diff

if TYPE_CHECKING:
    from pathlib import Path

LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"\n", b"    c = 1\n", b"class D:\n", b"\r\n", b"-- x\n", b"e\r\n", b"\xff\n"]),
    max_size=30,
)
CONTENTS = st.builds(lambda lines, end: b"".join(lines) + end, LINES, st.sampled_from([b"", b"no newline", b"\\ x"]))
PATHS = st.sampled_from(["x.py", "demo/a b.py", "demo/\u00fc.txt", "a/b/c/d.h", "-x", "demo/--- a"])


def edit(
    path: str = "demo/x.py", before: bytes | None = b"", after: bytes | None = b"", *, executable: bool = False
) -> FileEdit:
    return FileEdit(path=path, before=before, after=after, executable=executable)


@given(st.dictionaries(PATHS, st.tuples(st.none() | CONTENTS, st.none() | CONTENTS, st.booleans()), min_size=1))
def test_what_is_written_is_read_back_and_does_the_same(
    files: dict[str, tuple[bytes | None, bytes | None, bool]],
) -> None:
    edits = [edit(path, old, new, executable=run) for path, (old, new, run) in files.items() if old != new]
    if not edits:
        return
    patch = parse_patch(render_diff(edits), input_name="it")
    before = {one.path: one.before for one in edits}
    assert apply_patch(patch, before.get) == {one.path: one.after for one in sorted(edits, key=lambda one: one.path)}
    added = {one.path: one.executable for one in edits if one.before is None}
    assert {file.path: file.executable for file in patch.files if file.kind == "add"} == added
    assert render_diff(reversed(edits)) == render_diff(edits)


@given(CONTENTS, CONTENTS)
def test_diff_has_no_more_context_than_it_needs(before: bytes, after: bytes) -> None:
    if before == after:
        return
    for file in parse_patch(render_diff([edit(before=before, after=after)]), input_name="it").files:
        for hunk in file.hunks:
            same_start = next(
                i
                for i, (left, right) in enumerate(zip([*hunk.old, None], [*hunk.new, None], strict=False))
                if left != right
            )
            assert same_start <= 3 or hunk.old[:same_start] != hunk.new[:same_start]


@pytest.mark.parametrize(
    ("before", "after", "hunks"),
    [
        (b"a = 1\n", b"a = 2\n", "@@ -1 +1 @@\n-a = 1\n+a = 2\n"),
        (b"", b"a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"),
        (b"a\n", b"", "@@ -1 +0,0 @@\n-a\n"),
        (b"a", b"a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"),
        (b"a\nb", b"x\nb", "@@ -1,2 +1,2 @@\n-a\n+x\n b\n\\ No newline at end of file\n"),
        (
            b"class A:\n    1\n    2\n    3\n    4\n    5\n",
            b"class A:\n    1\n    2\n    3\n    4\n    6\n",
            "@@ -3,4 +3,4 @@ class A:\n     2\n     3\n     4\n-    5\n+    6\n",
        ),
        (
            b"1\n2\n3\n4\n5\n6\n7\n8\n",
            b"x\n2\n3\n4\n5\n6\n7\ny\n",
            "@@ -1,8 +1,8 @@\n-1\n+x\n 2\n 3\n 4\n 5\n 6\n 7\n-8\n+y\n",
        ),
        (
            b"1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            b"x\n2\n3\n4\n5\n6\n7\n8\ny\n",
            "@@ -1,4 +1,4 @@\n-1\n+x\n 2\n 3\n 4\n@@ -6,4 +6,4 @@\n 6\n 7\n 8\n-9\n+y\n",
        ),
    ],
)
def test_hunks_are_as_git_writes_them(before: bytes, after: bytes, hunks: str) -> None:
    assert render_diff([edit(before=before, after=after)]).decode().split("+++ b/demo/x.py\n")[1] == hunks


def test_added_and_removed_files_say_their_mode() -> None:
    diff = render_diff(
        [edit("new.sh", None, b"x\n", executable=True), edit("empty", None, b""), edit("old", b"y\n", None)]
    )
    assert diff.decode() == (
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 000000000000..e69de29bb2d1\n"
        "diff --git a/new.sh b/new.sh\nnew file mode 100755\nindex 000000000000..587be6b4c3f9\n"
        "--- /dev/null\n+++ b/new.sh\n@@ -0,0 +1 @@\n+x\n"
        "diff --git a/old b/old\ndeleted file mode 100644\nindex 975fbec8256d..000000000000\n"
        "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-y\n"
    )


def test_title_of_a_hunk_shows_no_control_character_and_is_cut_between_characters() -> None:
    lines = [b"def \x1b[31m" + "\u00fc".encode() * 60 + b"\n", *(b" %d\n" % number for number in range(9))]
    diff = render_diff([edit(before=b"".join(lines), after=b"".join(lines[:-1]))])
    (title,) = (line for line in diff.split(b"\n") if line.startswith(b"@@"))
    assert b"\x1b" not in title
    assert title.decode().endswith("\u00fc")
    assert len(title.split(b"@@ ")[1]) <= 80


def test_git_applies_what_is_written(tmp_path: Path) -> None:
    before = {"demo/one.py": b"def a():\n    return 1\n\n\ndef c():\n    return 3\n", "gone": b"x", "a b": b"q\r\n"}
    after = {
        "demo/one.py": before["demo/one.py"].replace(b"1\n", b"1\n\n\ndef b():\n    return 2\n"),
        "a b": b"r\r\n",
        "new": b"z",
    }
    for path, content in before.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    diff = render_diff(edit(path, before.get(path), after.get(path)) for path in {*before, *after})
    done = subprocess.run(
        ["/usr/bin/env", "git", "apply", "-p1", "-"], cwd=tmp_path, input=diff, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == after
