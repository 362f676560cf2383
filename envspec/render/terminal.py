"""A review for a terminal: lines of coloured spans. What a colour says, a word says too."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Literal, NamedTuple

from envspec.diff.changes import Section
from envspec.render.words import (
    cost_words,
    escaped,
    host_line,
    hosts_matter,
    identity_rows,
    package_changes,
    package_groups,
    package_summary,
    sections,
    verdict_words,
)
from envspec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envspec.diff.changes import Change, Excerpt
    from envspec.diff.review import Review
    from envspec.render.words import Row

Style = Literal["plain", "title", "stop", "look", "note", "dim", "plus", "minus"]

SHOWN_EXCERPT_LINES = 40
_LEVEL_WIDTH = 6


class Span(NamedTuple):
    """A piece of a line in one style."""

    style: Style
    text: str


def review_lines(review: Review, *, width: int, excerpts: bool = False) -> Iterator[list[Span]]:
    """The lines of a review.

    Args:
        review: What is to be shown.
        width: Of the terminal, in columns; longer sentences are wrapped.
        excerpts: Whether to show the diffs of patches and files in full.
    """
    for line in _lines(review, width, excerpts=excerpts):
        yield [Span(span.style, escaped(span.text)) for span in line]


def _lines(review: Review, width: int, *, excerpts: bool) -> Iterator[list[Span]]:
    yield [Span("title", f"{review.lock_name}: {review.old_label} -> {review.new_label}")]
    yield [Span("title", verdict_words(review))]
    yield []
    for name, before, now in identity_rows(review):
        yield [Span("plain", f"{name:<10}{_move(before, now)}")]
    yield from _wrapped("plain", f"{'cost':<10}{cost_words(review)}", width, indent=10)
    if review.new.overrides:
        yield from _wrapped("look", f"{'overrides':<10}{', '.join(review.new.overrides)}", width, indent=10)
    for section, changes in sections(review):
        if section is not Section.CONSEQUENCE:
            continue
        yield from _section(section.value, changes, width, excerpts=excerpts)
    if hosts_matter(review):
        yield from _hosts(review, width)
    if package_changes(review):
        yield []
        yield [Span("title", f"{Section.PACKAGE.value}: {package_summary(package_changes(review))}")]
        for heading, rows in package_groups(review):
            yield [Span("dim", f"{' ' * _LEVEL_WIDTH}{heading}")]
            yield from _rows(rows)
    for section, changes in sections(review):
        if section is not Section.CONSEQUENCE:
            yield from _section(section.value, changes, width, excerpts=excerpts)


def _move(before: str, now: str) -> str:
    if before == now:
        return f"{now}  as before"
    return f"{before} -> {now}" if before else now


def _section(title: str, changes: list[Change], width: int, *, excerpts: bool) -> Iterator[list[Span]]:
    yield []
    yield [Span("title", title)]
    for change in changes:
        first = True
        for line in _wrap(change.text, width - _LEVEL_WIDTH):
            yield [Span(change.level, f"{change.level if first else '':<{_LEVEL_WIDTH}}"), Span("plain", line)]
            first = False
        for consequence in change.consequences:
            yield from _wrapped("dim", " " * (_LEVEL_WIDTH + 2) + consequence, width, indent=_LEVEL_WIDTH + 2)
        for excerpt in change.excerpts:
            yield from _excerpt(excerpt, change.subject, in_full=excerpts)


def _excerpt(excerpt: Excerpt, subject: str, *, in_full: bool) -> Iterator[list[Span]]:
    margin = " " * (_LEVEL_WIDTH + 2)
    lines = excerpt.text.splitlines()
    if not in_full:
        title = excerpt.title.removeprefix(subject).removeprefix(", ")
        what = f"{title}: {counted(len(lines), 'line')}" if title else counted(len(lines), "line")
        yield [Span("dim", f"{margin}{what}, which `--patches` shows")]
        return
    yield [Span("dim", f"{margin}{excerpt.title}")]
    for line in lines:
        style: Style = "plus" if line.startswith("+") else "minus" if line.startswith("-") else "plain"
        yield [Span(style if excerpt.language == "diff" else "plain", f"{margin}{line.expandtabs(4)}")]


def _hosts(review: Review, width: int) -> Iterator[list[Span]]:
    yield []
    yield [Span("title", "Hosts")]
    longest = max(len(host.name) for host in review.hosts)
    for host in review.hosts:
        style: Style = "stop" if host.new == "no" else "look" if host.new == "unsure" else "plain"
        yield [Span("plain", f"  {host.name:<{longest}}  "), Span(style, host_line(host, review))]
        for reason in host.reasons:
            yield from _wrapped("dim", " " * (longest + 4) + reason, width, indent=longest + 4)


def _rows(rows: list[Row]) -> Iterator[list[Span]]:
    word = max(len(row.word) for row in rows)
    name = max(len(row.name) for row in rows)
    for row in rows:
        move = f"{row.old} -> {row.new}" if row.old and row.new else row.new or row.old
        level = Span("look", f"{'look' if row.is_loud else '':<{_LEVEL_WIDTH}}")
        text = f"  {row.word:<{word}}  {row.name:<{name}}  {move}".rstrip()
        yield [level, Span("plain", text), Span("dim", f"  {row.note.replace('`', '')}" if row.note else "")]


def _wrapped(style: Style, text: str, width: int, *, indent: int) -> Iterator[list[Span]]:
    for line in _wrap(text, width, indent=indent):
        yield [Span(style, line)]


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 40),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        expand_tabs=False,
        replace_whitespace=False,
    ) or [""]
