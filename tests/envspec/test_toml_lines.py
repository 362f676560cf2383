from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from envspec.lock_toml import dump_lock
from envspec.toml_lines import line_of, locate
from tests.support.strategies import locks, spec_texts, specs, toml_string

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envspec.lock import Lock

    Path = tuple[str | int, ...]

TEXT = r"""# a comment with [a.table] and "a string
name = "x" # another = 1
a.b . "c.d" = 1
'quo"ted' = [ # in an array
  1, { x = 1, y = [
    2 ] }, # ]
]
text = '''
[not.a.table]
'''
basic = QQQ\"
]"" # not a comment QQQ
more = "a \" # not a comment"
multi = '''''a'''''
[ table . "sub" ] # here
key = 2026-05-20 00:00:00Z
[[array]]
k = {}
[[array]]
[array.child]
k = 1
[[array.inner]]
k = 1
[[array.inner]]
k = "\u0041"
[[array]]
[[array.inner]]
"\u0041" = 1
""".replace("QQQ", '"""')

EXPECTED: dict[Path, int] = {
    ("name",): 2,
    ("a",): 3,
    ("a", "b"): 3,
    ("a", "b", "c.d"): 3,
    ('quo"ted',): 4,
    ('quo"ted', 0): 5,
    ('quo"ted', 1): 5,
    ('quo"ted', 1, "x"): 5,
    ('quo"ted', 1, "y"): 5,
    ('quo"ted', 1, "y", 0): 6,
    ("text",): 8,
    ("basic",): 11,
    ("more",): 13,
    ("multi",): 14,
    ("table",): 15,
    ("table", "sub"): 15,
    ("table", "sub", "key"): 16,
    ("array",): 17,
    ("array", 0): 17,
    ("array", 0, "k"): 18,
    ("array", 1): 19,
    ("array", 1, "child"): 20,
    ("array", 1, "child", "k"): 21,
    ("array", 1, "inner"): 22,
    ("array", 1, "inner", 0): 22,
    ("array", 1, "inner", 0, "k"): 23,
    ("array", 1, "inner", 1): 24,
    ("array", 1, "inner", 1, "k"): 25,
    ("array", 2): 26,
    ("array", 2, "inner"): 27,
    ("array", 2, "inner", 0): 27,
    ("array", 2, "inner", 0, "A"): 28,
}


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    children: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in children:
        yield from _paths(inner, (*path, key))


def test_every_kind_of_key_is_on_its_line() -> None:
    assert locate(TEXT) == EXPECTED
    assert set(_paths(tomllib.loads(TEXT))) == set(EXPECTED)


@given(st.data())
def test_every_key_of_a_spec_is_found_on_a_line_that_has_it(data: st.DataObject) -> None:
    text = data.draw(spec_texts(data.draw(specs())))
    lines = locate(text)
    assert set(lines) == set(_paths(tomllib.loads(text)))
    rows = text.split("\n")
    for path, line in lines.items():
        if isinstance(path[-1], str):
            assert path[-1] in rows[line - 1] or toml_string(path[-1]) in rows[line - 1]


@given(locks())
def test_every_key_of_a_lock_is_found(lock: Lock) -> None:
    text = dump_lock(lock)
    assert set(locate(text)) == set(_paths(tomllib.loads(text)))


@given(st.text(alphabet="ab\"'[]{}=.,#\\\n 1"))
def test_text_that_is_no_toml_gives_some_lines_and_no_error(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in locate(text).values())


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "{a=" * 100_000, "a = " + '"""' + '"\\' * 50_000])
def test_text_that_is_nested_too_deeply_gives_the_lines_above(text: str) -> None:
    assert locate(f"b = 1\n{text}")[("a",)] == 2


@pytest.mark.parametrize("text", ["a = ]", "a", "[a", "[[a]", "a = {b", "a = [1 2]", '"a', "a = '"])
def test_text_that_ends_unexpectedly_keeps_what_was_found(text: str) -> None:
    assert locate(f"b = 1\n{text}")[("b",)] == 1


def test_the_line_of_an_absent_key_is_that_of_its_table() -> None:
    lines = locate("[a]\n[b]\nc = 1\n")
    assert line_of(lines, ("b", "d", "e")) == 2
    assert line_of(lines, ("x",)) == 1
