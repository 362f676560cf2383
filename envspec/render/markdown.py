"""A review as Markdown for a pull request: consequences in the open, the rest folded, and never longer than a comment may be.

Code hosts take comments of 65,536 characters. What does not fit is left out block by block, the least important first, and the last line says
how much that was.

Nothing of a lock, wheel, patch or spec acts as Markdown or HTML: literals stand in code spans with a fence that is longer than any in them,
words have every character escaped that Markdown knows, and what a code host would turn into a link or a mention stands in a code span as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
    pieces,
    sections,
    verdict_words,
)
from envspec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envspec.diff.changes import Change, Excerpt
    from envspec.diff.review import Review

MOST_CHARACTERS = 65_000
"""Below the limit of a comment."""

MARK = "<!-- envspec review -->"
"""The first line: a job finds its own comment by it and edits that one, in place of writing another."""

_RESERVED = 400
"""Characters for the last line."""

_SMALLEST = 120
"""Characters that the shortest change takes, about."""

_LONGEST_TEXT = 1500
_LONGEST_EXCERPT = 6000
_SHOWN_CONSEQUENCES = 12
_END = "</details>"
MOST_OPEN_NOTES = 3
"""Of a section, that are not folded."""

_LINKS = re.compile(r"@|://|www\.|\bGH-[0-9]|[#!~%&$^][A-Za-z0-9\"{]|:[a-z0-9_+-]+:", re.IGNORECASE)
"""What a code host turns into a mention, a link, a reference or a picture, even where Markdown's own characters are escaped."""

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&$])")
_IN_A_WORD = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")
_LIST = re.compile(r"^(\s*[0-9]*)([-+.)])(?=\s|$)")


def review_markdown(review: Review) -> str:
    """The review, shorter than `MOST_CHARACTERS`.

    Args:
        review: What is to be shown.
    """
    comment = _Comment()
    comment.add("\n".join(_head(review)))
    for section, changes in sections(review):
        if section is Section.CONSEQUENCE:
            _add_section(comment, section, changes)
    if hosts_matter(review):
        comment.add("\n".join(_hosts(review)))
    _add_packages(comment, review)
    for section, changes in sections(review):
        if section is not Section.CONSEQUENCE:
            _add_section(comment, section, changes)
    return comment.text()


class _Comment:
    """Blocks of Markdown, as many as fit."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._room = MOST_CHARACTERS - _RESERVED
        self._left_out = 0

    @property
    def is_full(self) -> bool:
        """Whether hardly anything fits any more, so that making more of it is in vain."""
        return self._room < _SMALLEST

    def add(self, block: str, *, things: int = 1, closing: str = "", tight: bool = False) -> bool:
        """Add a block if it fits.

        Args:
            block: Whole lines, without an empty one after them.
            things: How many changes it shows.
            closing: What has to fit after it.
            tight: Whether it goes on with the list before it, without an empty line.
        """
        length = _length(block) + 2
        if length + _length(closing) > self._room:
            self._left_out += things
            return False
        self._text += ["\n" if tight else "\n\n" if self._text else "", block]
        self._room -= length
        return True

    def leave_out(self, things: int) -> None:
        """Count changes that were not even tried."""
        self._left_out += things

    def text(self) -> str:
        """All of it."""
        last = ""
        if self._left_out:
            last = (
                f"\n\n**{counted(self._left_out, 'more change')} left out here**, since a comment may not be longer; "
                "`envspec diff` and `envspec diff --html` show all."
            )
        return f"{''.join(self._text)}{last}\n"


def code(text: str, *, in_table: bool = False) -> str:
    r"""A code span with exactly this text, whatever is in it.

    Args:
        text: May be hostile.
        in_table: Whether it stands in a table, where `|` would end the cell.

    Example:
        >>> code("a`b"), code("x|y", in_table=True)
        ('`` a`b ``', '`x\\|y`')
    """
    shown = escaped(text)
    if in_table:
        shown = shown.replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest or not shown.strip() else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def prose(text: str, *, in_table: bool = False) -> str:
    r"""A text with its literals in code spans and nothing else of it acting as Markdown.

    Args:
        text: May be hostile.
        in_table: Whether it stands in a table.

    Example:
        >>> prose("a *b* `c`"), prose("ask @someone")
        ('a \\*b\\* `c`', '`ask @someone`')
    """
    cut = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    shown = "".join(
        code(piece.text, in_table=in_table) if piece.is_literal else _words(piece.text, in_table=in_table)
        for piece in pieces(cut)
    )
    return _LIST.sub(r"\1\\\2", shown)


def _words(text: str, *, in_table: bool) -> str:
    shown = escaped(text)
    if _LINKS.search(shown):
        inner = shown.strip()
        start = shown[: len(shown) - len(shown.lstrip())]
        return f"{start}{code(inner, in_table=in_table)}{shown[len(start) + len(inner) :]}"
    return _IN_A_WORD.sub("_", _SPECIAL.sub(r"\\\1", shown))


def _length(text: str) -> int:
    """Characters as code hosts count them: in UTF-16."""
    return len(text) + sum(char > "\uffff" for char in text)


def _head(review: Review) -> list[str]:
    lines = [MARK, f"### {code(review.lock_name)}: {prose(verdict_words(review))}", ""]
    lines += [f"{code(review.old_label)} → {code(review.new_label)}", ""]
    lines += ["| | before | now |", "|---|---|---|"]
    for name, before, now in identity_rows(review):
        shown = "as before" if before == now else code(now)
        lines.append(f"| {name} | {code(before) if before else 'none'} | {shown} |")
    lines += ["", f"**Cost:** {prose(cost_words(review))}."]
    if review.new.overrides:
        shown = ", ".join(code(override) for override in review.new.overrides[:20])
        more = len(review.new.overrides) - 20
        lines += ["", f"**Overrides** of what packages ask for: {shown}{f' and {more} more' if more > 0 else ''}"]
    return lines


def _add_section(comment: _Comment, section: Section, changes: Sequence[Change]) -> None:
    """Add a section: what a person should see in the open, many notes folded."""
    notes = [change for change in changes if change.level == "note"]
    if len(notes) <= MOST_OPEN_NOTES:
        notes = []
    shown = [change for change in changes if not notes or change.level != "note"]
    if shown:
        if not comment.add(f"#### {section.value}", things=len(changes)):
            return
        _add_changes(comment, shown, "")
    if notes:
        words = f"{section.value}: {counted(len(notes), 'note')}" if not shown else counted(len(notes), "note")
        if comment.add(f"<details><summary>{words}</summary>", things=len(notes), closing=_END):
            _add_changes(comment, notes, _END)
            comment.add(_END)


def _add_changes(comment: _Comment, changes: Sequence[Change], end: str) -> None:
    """Add a list of changes, each with its excerpts, as many as fit."""
    follows = False
    for number, change in enumerate(changes):
        if comment.is_full:
            comment.leave_out(len(changes) - number)
            return
        if not comment.add("\n".join(_change(change)), closing=end, tight=follows):
            continue
        follows = True
        for excerpt in change.excerpts:
            follows = not comment.add("\n".join(_excerpt(excerpt)), things=0, closing=end) and follows


def _change(change: Change) -> Iterator[str]:
    yield f"- **{change.level}**: {prose(change.text)}"
    for consequence in change.consequences[:_SHOWN_CONSEQUENCES]:
        yield f"  - {prose(consequence)}"
    more = len(change.consequences) - _SHOWN_CONSEQUENCES
    if more > 0:
        yield f"  - and {more} more"


def _excerpt(excerpt: Excerpt) -> Iterator[str]:
    text = excerpt.text[:_LONGEST_EXCERPT]
    lines = [escaped(line.expandtabs(4)) for line in text.splitlines()]
    if len(excerpt.text) > _LONGEST_EXCERPT:
        lines = [*lines[:-1], f"(cut off: {len(excerpt.text)} characters)"]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    # A summary is HTML, in which Markdown is not read.
    yield f"<details><summary><code>{_html(excerpt.title)}</code></summary>"
    yield ""
    yield f"{fence}{excerpt.language}"
    yield from lines
    yield fence
    yield ""
    yield "</details>"


def _hosts(review: Review) -> Iterator[str]:
    yield "#### Hosts"
    yield ""
    yield "| host | | why |"
    yield "|---|---|---|"
    for host in review.hosts:
        words = host_line(host, review).replace("->", "→")
        shown = f"**{words}**" if host.new == "no" else words
        yield f"| {code(host.name, in_table=True)} | {shown} | {'; '.join(prose(reason, in_table=True) for reason in host.reasons)} |"


def _add_packages(comment: _Comment, review: Review) -> None:
    changes = package_changes(review)
    if not changes:
        return
    loud = [change for change in changes if change.level != "note"]
    title = f"#### {Section.PACKAGE.value}: {package_summary(changes)}"
    if not comment.add(title, things=len(changes)):
        return
    _add_changes(comment, loud, "")
    head = "<details><summary>All of them, by what they are there for</summary>"
    end = "</details>"
    if not comment.add(head, things=len(changes) - len(loud), closing=end):
        return
    for heading, rows in package_groups(review):
        table = ["| | package | before | now | |", "|---|---|---|---|---|"]
        lines = [
            f"| {'**' + row.word + '**' if row.is_loud else row.word} | {_name(row.name)} | {_version(row.old)} | "
            f"{_version(row.new)} | {prose(row.note, in_table=True)} |"
            for row in rows
        ]
        _add_table(comment, [f"{prose(heading[:1].upper() + heading[1:])}:", "", *table], lines, end)
    comment.add(end)


def _add_table(comment: _Comment, head: list[str], lines: list[str], end: str) -> None:
    """Add a table, or its first lines."""
    while lines and not comment.add("\n".join([*head, *lines]), things=0, closing=end):
        kept = len(lines) // 2
        comment.leave_out(len(lines) - kept)
        lines = lines[:kept]


def _name(name: str) -> str:
    return " → ".join(code(part, in_table=True) for part in name.split(" -> "))


def _version(version: str) -> str:
    return code(version, in_table=True) if version else ""


def _html(text: str) -> str:
    shown = escaped(text[:200])
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("@", "&#64;"), ("`", "&#96;")):
        shown = shown.replace(char, entity)
    return shown
