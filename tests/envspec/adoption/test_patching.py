"""Edits of any text become patches that give the edited bytes, read and applied by the code that `envspec lock` uses."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from envspec.adoption.patching import TextEdit, make_overlay
from envspec.adoption.values import Edit, PublishedWheel
from envspec.patch import apply_patch, parse_patch

WHEEL = PublishedWheel(
    name="demo",
    version="1.0",
    index="default",
    file="demo-1.0-py3-none-any.whl",
    sha256="0" * 64,
    size=1,
    dist_info="lib/python3.12/site-packages/demo-1.0.dist-info",
    files=(),
)

LINES = st.sampled_from(
    [
        b"",
        b"a",
        b"b\r",
        b"\r",
        b"--- a/x",
        b"+++ b/x",
        b"@@ -1 +1 @@",
        b"diff --git a/x b/x",
        b"\xff\xfe",
        b"\\ No newline at end of file",
        b"-- ",
        b"\x0c",
        "é".encode(),
    ]
)
TEXTS = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(LINES, max_size=12), st.sampled_from([b"", b"\n", b"\r\n"])
)
ANY_TEXT = st.one_of(TEXTS, st.binary(max_size=60).filter(lambda content: b"\0" not in content))
CONTENT = st.one_of(st.none(), ANY_TEXT)
NAMES = st.lists(st.sampled_from(["a", "b c", "é", "d.py", "x'y", "-", "a b/c", "z.data"]), min_size=1, max_size=3).map(
    "/".join
)


def edit_of(member: str, before: bytes | None, after: bytes | None, *, executable: bool = False) -> TextEdit:
    return TextEdit(
        edit=Edit(
            package="demo",
            path=f"lib/python3.12/site-packages/{member}",
            member=member,
            base_sha256=hashlib.sha256(before).hexdigest() if before is not None else "",
            base_size=len(before or b""),
            sha256=hashlib.sha256(after).hexdigest() if after is not None else "",
            size=len(after or b""),
            executable=executable,
        ),
        before=before,
        after=after,
    )


@given(
    st.dictionaries(NAMES, st.tuples(CONTENT, CONTENT).filter(lambda pair: pair[0] != pair[1]), min_size=1, max_size=4)
)
def test_patch_gives_the_edited_bytes_of_every_file_that_is_not_named_as_left_out(
    files: dict[str, tuple[bytes | None, bytes | None]],
) -> None:
    overlay, left_out = make_overlay(WHEEL, [edit_of(member, *pair) for member, pair in files.items()])
    patched = {
        member: pair for member, pair in files.items() if f"lib/python3.12/site-packages/{member}" not in left_out
    }
    if overlay is None:
        assert patched == {}
        return
    after = apply_patch(
        parse_patch(overlay.patch, input_name="x"), {member: pair[0] for member, pair in files.items()}.get
    )
    assert after == {member: pair[1] for member, pair in patched.items()}
    assert sorted(member for member, _ in overlay.files) == sorted(patched)


@given(ANY_TEXT, ANY_TEXT)
def test_no_text_at_a_plain_path_is_left_out(before: bytes, after: bytes) -> None:
    if before == after:
        return
    overlay, left_out = make_overlay(WHEEL, [edit_of("demo/x.py", before, after)])
    assert left_out == {}
    assert overlay is not None


def test_binary_content_is_left_out_and_named() -> None:
    good, bad = edit_of("demo/x.py", b"a\n", b"b\n"), edit_of("demo/y.py", b"a\0", b"b\n")
    overlay, left_out = make_overlay(WHEEL, [bad, good])
    assert overlay is not None
    assert overlay.files == (("demo/x.py", "changed"),)
    assert left_out == {"lib/python3.12/site-packages/demo/y.py": "binary files are not patched"}


def test_content_that_is_not_what_was_observed_never_gets_into_a_patch() -> None:
    edit = edit_of("demo/x.py", b"a\n", b"b\n")
    lied = TextEdit(edit=edit.edit, before=edit.before, after=b"c\n")
    overlay, left_out = make_overlay(WHEEL, [lied])
    assert overlay is None
    assert list(left_out) == ["lib/python3.12/site-packages/demo/x.py"]


def test_executable_bit_of_a_new_file_stands_in_the_patch() -> None:
    overlay, _ = make_overlay(WHEEL, [edit_of("demo/run.sh", None, b"#!/bin/sh\n", executable=True)])
    assert overlay is not None
    assert b"new file mode 100755\n" in overlay.patch


def test_patch_does_not_depend_on_the_order_of_its_files() -> None:
    edits = [edit_of(f"demo/{name}.py", b"a\n", name.encode() + b"\n") for name in "zxy"]
    first, _ = make_overlay(WHEEL, edits)
    second, _ = make_overlay(WHEEL, edits[::-1])
    assert first == second


def test_patch_too_large_to_be_read_leaves_out_what_does_not_fit() -> None:
    large = edit_of("demo/large.txt", None, b"x" * 15_999_999 + b"\n")
    small = edit_of("demo/small.txt", None, b"x\n")
    overlay, left_out = make_overlay(WHEEL, [large, small])
    assert overlay is not None
    assert overlay.files == (("demo/small.txt", "added"),)
    assert "would have more than" in left_out["lib/python3.12/site-packages/demo/large.txt"]
