"""Manifests and their digests, against published vectors and a second implementation that is as naive as can be."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.tree import (
    HEADER,
    SAFE_BYTES,
    Entry,
    decode_path,
    encode_path,
    entry_line,
    is_host_path,
    join_lines,
    manifest,
    manifest_lines,
    parent_dirs,
    parse_line,
    path_of_line,
    tree_digest,
)
from tests.conftest import DATA
from tests.support.strategies import digests, paths, sizes, texts

MANIFESTS = json.loads((DATA / "canonical" / "manifests.json").read_text(encoding="utf-8"))

raw_paths = st.binary(min_size=1, max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
"""What Linux allows in a name, and more: any bytes."""

entries = st.one_of(
    st.builds(Entry, path=paths, kind=st.just("file"), sha256=digests, size=sizes, executable=st.booleans()),
    st.builds(Entry, path=paths, kind=st.just("dir")),
    st.builds(Entry, path=paths, kind=st.just("link"), target=texts),
)


def naive_path(path: str) -> str:
    """vis(3) in its octal style, one byte after the other."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!$%&'()+,-./:;<=>@^_`{|}~"
    out = ""
    for byte in path.encode("utf-8", "surrogateescape"):
        if byte in plain:
            out += chr(byte)
        else:
            out += "\\" + str(byte // 64) + str(byte // 8 % 8) + str(byte % 8)
    return out


def naive_manifest(rows: list[dict[str, Any]]) -> str:
    """A manifest of rows with path, type and what belongs to the type."""
    lines = set()
    for row in rows:
        line = "./" + naive_path(row["path"])
        if row["type"] == "file":
            line += " mode=" + ("0555" if row["executable"] else "0444")
            line += " sha256=" + row["sha256"] + " size=" + str(row["size"])
        elif row["type"] == "link":
            line += " link=" + naive_path(row["target"])
        lines.add(line + " type=" + row["type"])
        parts = row["path"].split("/")
        for length in range(1, len(parts)):
            lines.add("./" + naive_path("/".join(parts[:length])) + " type=dir")
    return "#mtree\n. type=dir\n" + "".join(line + "\n" for line in sorted(lines, key=str.encode))


def entry_of(row: dict[str, Any]) -> Entry:
    return Entry(
        path=row["path"],
        kind=row["type"],
        sha256=row.get("sha256", ""),
        size=row.get("size", 0),
        executable=row.get("executable", False),
        target=row.get("target", ""),
    )


def row_of(entry: Entry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "type": entry.kind,
        "sha256": entry.sha256,
        "size": entry.size,
        "executable": entry.executable,
        "target": entry.target,
    }


@pytest.mark.parametrize("vector", MANIFESTS, ids=lambda vector: vector["says"])
def test_a_tree_has_the_published_manifest_and_digest(vector: dict[str, Any]) -> None:
    text = manifest(entry_of(row) for row in vector["entries"])
    assert text == vector["manifest"]
    assert naive_manifest(vector["entries"]) == vector["manifest"]
    assert tree_digest(text) == vector["sha256"] == hashlib.sha256(vector["manifest"].encode()).hexdigest()


@given(st.lists(entries, max_size=6))
def test_both_implementations_give_every_tree_the_same_manifest(found: list[Entry]) -> None:
    assert manifest(found) == naive_manifest([row_of(entry) for entry in found])


@given(st.lists(entries, max_size=6), st.randoms(use_true_random=False))
def test_a_manifest_does_not_depend_on_the_order_of_entries(found: list[Entry], random: Any) -> None:
    turned = list(found)
    random.shuffle(turned)
    assert manifest(turned) == manifest(found)


@given(st.one_of(raw_paths, texts))
def test_every_path_comes_back_from_its_encoding(path: str) -> None:
    encoded = encode_path(path)
    assert decode_path(encoded) == path
    assert encoded == naive_path(path)
    assert set(encoded.encode("ascii")) <= SAFE_BYTES | {ord("\\")}


@given(entries)
def test_every_entry_comes_back_from_its_line(entry: Entry) -> None:
    line = entry_line(entry)
    assert parse_line(line) == entry
    assert path_of_line(line) == entry.path
    assert "\n" not in line


@given(st.lists(entries, unique_by=lambda entry: entry.path))
def test_sorted_lines_are_sorted_by_path(found: list[Entry]) -> None:
    lines = sorted(entry_line(entry) for entry in found)
    assert [path_of_line(line) for line in lines] == sorted((entry.path for entry in found), key=encode_path)


def test_the_space_after_a_path_sorts_before_every_byte_of_a_path() -> None:
    assert ord(" ") < min(SAFE_BYTES | {ord("\\")})
    assert not SAFE_BYTES & set(b' #*?[\\]"\n\t')


@given(st.lists(entries, max_size=4), st.lists(entries, max_size=4))
def test_the_manifest_of_two_trees_is_the_sorted_union_of_their_lines(one: list[Entry], other: list[Entry]) -> None:
    union = join_lines([*manifest_lines(manifest(one)), *manifest_lines(manifest(other))])
    assert union == manifest([*one, *other])


@given(entries, entries)
def test_entries_that_differ_in_what_counts_have_different_digests(one: Entry, other: Entry) -> None:
    assert (tree_digest(manifest([one])) == tree_digest(manifest([other]))) == (one == other)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "./a",
        "./a type=device",
        "./a type=dir extra=1",
        "a type=dir",
        "./a  type=dir",
        "./a type=dir ",
        "./a mode=0644 sha256= size=0 type=file",
        "./a size=0 mode=0444 sha256= type=file",
        "./a mode=0444 sha256=00 size=+1 type=file",
        "./a mode=0444 sha256=00 size=1_0 type=file",
        "./a mode=0444 sha256=00 size=x type=file",
        "./a mode=0444 sha256=00 size=\u0663 type=file",
        "./a\\141 type=dir",
        "./a\\777 type=dir",
        "./\u00fc type=dir",
        "./\U0001f600 type=dir",
        "./a link=b c type=link",
    ],
)
def test_a_line_that_is_not_written_so_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - many kinds, of which the caller makes one
        parse_line(line)


@given(st.text(alphabet="./a\\0123 =typedirfilnkmos", max_size=40))
def test_a_line_is_refused_or_is_the_one_that_is_written(line: str) -> None:
    try:
        entry = parse_line(line)
    except ValueError:
        return
    assert entry_line(entry) == line


def test_an_entry_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of entry 'fifo'"):
        entry_line(Entry(path="a", kind="fifo"))


@pytest.mark.parametrize("text", ["", "./a type=dir\n", HEADER + "./a type=dir", HEADER[:-1]])
def test_a_manifest_without_its_header_or_its_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a manifest"):
        manifest_lines(text)


def test_an_empty_tree_has_the_header_alone() -> None:
    assert manifest([]) == HEADER
    assert manifest_lines(HEADER) == []


@given(st.lists(paths, max_size=5))
def test_every_directory_above_a_path_is_listed(found: list[str]) -> None:
    expected = {"/".join(path.split("/")[:length]) for path in found for length in range(1, path.count("/") + 1)}
    assert parent_dirs(found) == expected


SITE = "lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("path", "is_host"),
    [
        ("pyvenv.cfg", True),
        ("lib64", True),
        ("bin/python", True),
        ("bin/python3.12", True),
        ("bin/Python3", True),
        ("bin/activate", True),
        ("bin/activate.fish", True),
        ("bin/Activate.ps1", True),
        ("bin/deactivate.bat", True),
        (f"{SITE}/a/__pycache__/b.cpython-312.pyc", True),
        (f"{SITE}/__pycache__", True),
        ("bin/pip", False),
        ("bin/torchrun", False),
        ("bin/pythonic/tool", False),
        ("bin/ipython", False),
        ("sbin/python", False),
        ("lib64/a.so", False),
        (f"{SITE}/pyvenv.cfg", False),
        (f"{SITE}/a/b.pyc", False),
        (f"{SITE}/a/__pycache__x/b.py", False),
        (f"{SITE}/bin/activate", False),
    ],
)
def test_what_belongs_to_the_host_counts_for_no_digest(path: str, is_host: bool) -> None:  # noqa: FBT001 - a table's column
    assert is_host_path(path) is is_host
