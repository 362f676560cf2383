"""However hostile a lock is, what is shown of it is text: in a terminal, in a comment, on a page, and in JSON by its schema."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from envspec.diff.changes import KINDS
from envspec.diff.review import Review, make_review
from envspec.diff.sides import Side
from envspec.lock import Lock, LockedFinding, LockedHook
from envspec.render.markdown import MOST_CHARACTERS, code, prose, review_markdown
from envspec.render.page import review_page
from envspec.render.record import review_record
from envspec.render.terminal import review_lines
from envspec.render.words import pieces
from tests.support.hostile_reviews import HOSTILE, hostile_review
from tests.support.reviews import altered, digest_of, make_package, patched, real_side
from tests.support.strategies import locks

ROOT = Path(__file__).resolve().parents[3]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs/schemas/review.schema.json").read_text(encoding="utf-8"))
TAGS = frozenset(
    {"html", "meta", "title", "style", "h1", "h2", "p", "table", "tr", "th", "td", "ul", "li", "span", "div"}
    | {"details", "summary", "pre", "code", "strong", "svg", "text", "rect"}
)
TAGS_OF_COMMENT = frozenset(
    {"h3", "h4", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "strong", "code", "pre"}
    | {"details", "summary"}
)

VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def huge_review(count: int, length: int) -> Review:
    base = real_side("2.13.0", label="HEAD")
    assert base.lock is not None
    text = "x `y` @z " * (length // 9)
    packages = {f"p{number:05}": {"version": f"1.{number}"} for number in range(count)}
    findings = tuple(
        LockedFinding(check="a-check", severity="warning", subject=f"p{number} 1", message=text, waived=text)
        for number in range(count)
    )
    hook = LockedHook(
        path="x.pth", sha256=digest_of("x"), code=tuple(f"import a{number} # {text}" for number in range(count))
    )
    hooks = {"p00000": (hook,)}
    made = tuple(
        make_package(name, version=str(fields["version"]), hooks=hooks.get(name, ()))
        for name, fields in packages.items()
    )
    lock = replace(base.lock, packages=(*base.lock.packages, *made), findings=findings)
    return make_review(base, Side(label="new", lock=lock), lock_name="demo.lock")


class Reader(HTMLParser):
    """What a browser would see: tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ends: list[str] = []
        self.attributes: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        self.ends.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def outside_of_code(markdown: str) -> str:
    """Markdown without fenced blocks and code spans, as CommonMark tells them."""
    text = re.sub(r"(?ms)^(`{3,})[^`\n]*\n.*?^\1`*$", "", markdown)
    return re.sub(r"(?s)(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", text)


def test_hostile_text_does_nothing_in_a_comment() -> None:
    text = review_markdown(hostile_review())
    plain = outside_of_code(text)
    for mark in ("@", "://", "www.", "](", "\x1b", "\u202e", "\u2028"):
        assert mark not in plain, mark
    assert "\x1b" not in text
    assert "\u202e" not in text
    tags = set(re.findall(r"(?<!\\)<(/?[a-z]+|!--)", plain))
    assert tags <= {"details", "/details", "summary", "/summary", "code", "/code", "!--"}
    reader = Reader()
    reader.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
    assert set(reader.tags) <= TAGS_OF_COMMENT
    assert reader.attributes <= {"class"}
    assert "<script>alert(1)</script>" in "".join(reader.words)
    assert reader.tags.count("details") == reader.ends.count("details") > 0


def test_hostile_text_does_nothing_on_a_page() -> None:
    page = review_page(hostile_review())
    reader = Reader()
    reader.feed(page)
    assert set(reader.tags) <= TAGS
    assert not any(name.startswith("on") or name in ("href", "src", "style") for name in reader.attributes)
    assert "<script>alert(1)</script>" in "".join(reader.words)
    assert "\x1b" not in page
    assert "default-src 'none'" in page
    assert re.search(r"url\(|@import|https?://(?!127\.0\.0\.1|example)", page) is None


def test_hostile_text_does_nothing_in_a_terminal() -> None:
    for line in review_lines(hostile_review(), width=80, excerpts=True):
        for span in line:
            assert span.text.isprintable() or not span.text


def test_hostile_text_is_whole_in_json_and_its_schema_holds() -> None:
    record = {"version": 1, **review_record(hostile_review())}
    VALIDATOR.validate(record)
    assert json.loads(json.dumps(record)) == record


@settings(max_examples=30)
@given(locks(), locks())
def test_every_review_is_as_its_schema_says(one: Lock, other: Lock) -> None:
    review = make_review(Side(label="a", lock=one), Side(label="b", lock=other), lock_name="demo.lock")
    VALIDATOR.validate({"version": 1, **review_record(review)})
    assert len(review_markdown(review)) < MOST_CHARACTERS
    assert review_page(review).endswith("</html>\n")
    assert all(span.text.isprintable() for line in review_lines(review, width=100) for span in line if span.text)


def test_schema_knows_every_kind() -> None:
    change = SCHEMA["properties"]["changes"]["items"]["properties"]
    assert change["kind"]["enum"] == list(KINDS)


@pytest.mark.parametrize(("count", "length"), [(40, 4000), (3000, 10), (3000, 900), (1, 2_000_000)])
def test_a_comment_is_never_too_long_and_says_what_it_leaves_out(count: int, length: int) -> None:
    review = huge_review(count, length)
    text = review_markdown(review)
    assert len(text.encode("utf-16-le")) // 2 < MOST_CHARACTERS
    assert text.count("<details>") == text.count("</details>")
    if count > 1:
        assert "left out here" in text.splitlines()[-1]
        assert "**stop**" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_code_span_closes_where_it_should(text: str) -> None:
    span = code(text)
    fence = re.match("`+", span)
    assert fence is not None
    inside = span[len(fence[0]) : -len(fence[0])]
    assert re.search(f"(?<!`)`{{{len(fence[0])}}}(?!`)", inside) is None
    assert "\n" not in span


@given(st.text())
def test_pieces_say_all_of_the_text(text: str) -> None:
    found = pieces(text)
    assert "".join(piece.text for piece in found).replace("`", "") == text.replace("`", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words, 1.0", "plain words, 1.0"),
        ("a_b *c* _d_", r"a_b \*c\* \_d\_"),
        ("say `x|y` now", "say `x|y` now"),
        ("mail me@here", "`mail me@here`"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("# title", r"\# title"),
        ("<b>", r"\<b\>"),
    ],
)
def test_words_are_only_words(text: str, shown: str) -> None:
    assert prose(text) == shown


def test_a_side_that_was_patched_shows_the_diff_in_every_form() -> None:
    base = real_side("2.13.0", label="HEAD")
    old = patched(base, "numpy", {"0001-a.patch": b"x\n"}, {"numpy/a.py": (b"a\n", b"b\n")})
    new = patched(base, "numpy", {"0001-a.patch": b"y\n"}, {"numpy/a.py": (b"a\n", b"c\n")})
    review = make_review(old, new, lock_name="demo.lock")
    assert "-b\n+c" in review_markdown(review)
    assert '<span class="plus">+c</span>' in review_page(review)
    lines = ["".join(span.text for span in line) for line in review_lines(review, width=80, excerpts=True)]
    assert any(line.strip() == "+c" for line in lines)
    short = ["".join(span.text for span in line) for line in review_lines(review, width=80)]
    assert not any(line.strip() == "+c" for line in short)
    assert any("--patches" in line for line in short)


def test_altered_sides_are_locks_that_a_file_can_hold() -> None:
    base = real_side("2.13.0", label="HEAD")
    assert altered(base).lock == base.lock
