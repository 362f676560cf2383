"""A review as one page of HTML: nothing outside of it is loaded, nothing in it runs, and every text is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from envspec.diff.changes import Section, size_text
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
    from collections.abc import Iterator

    from envspec.diff.changes import Change
    from envspec.diff.cost import PackageSize
    from envspec.diff.review import Review
    from envspec.render.words import Row

SHOWN_BARS = 24
"""Packages in the chart: the largest ones."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2328; --soft: #5b6670; --line: #d5dbe0; --fill: #f4f6f8;
  --stop: #b3261e; --look: #8a5a00; --old: #9aa6b1; --new: #1f6feb; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e4e8ec; --soft: #98a3ad; --line: #333b43;
  --fill: #1c2228; --stop: #ff8a80; --look: #f0b95c; --old: #5d6973; --new: #6ea8fe; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); }
.move { color: var(--soft); margin: .2rem 0 1rem; } .verdict { font-weight: 600; margin: 0 0 1rem; }
code, pre { font: .86em/1.45 ui-monospace, monospace; } code { background: var(--fill); padding: .05em .3em; border-radius: 3px; }
pre { background: var(--fill); padding: .7rem; overflow-x: auto; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid var(--line); } th { color: var(--soft); font-weight: 500; }
ul.changes { list-style: none; padding: 0; margin: 0; } ul.changes > li { display: grid; grid-template-columns: 4.2rem 1fr;
  padding: .35rem 0; border-bottom: 1px solid var(--line); }
.level { font-weight: 700; } .stop .level { color: var(--stop); } .look .level { color: var(--look); }
.note .level { color: var(--soft); font-weight: 400; } .because { color: var(--soft); margin: .1rem 0 0; padding-left: 1rem; }
.chart { width: 100%; height: auto; } .chart text { fill: var(--ink); font: 13px system-ui, sans-serif; }
.chart .size { fill: var(--soft); } .old { fill: var(--old); } .new { fill: var(--new); }
summary { cursor: pointer; color: var(--soft); } .plus { color: #1a7f37; } .minus { color: #cf222e; }
th { overflow-wrap: normal; white-space: nowrap; } th[colspan] { white-space: normal; }
.loud td { font-weight: 600; } .key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.key.was { background: var(--old); } .key.now { background: var(--new); }
@media (max-width: 40rem) { ul.changes > li { grid-template-columns: 1fr; } }
"""


def review_page(review: Review) -> str:
    """The page.

    Args:
        review: What is to be shown.
    """
    title = f"{review.lock_name}: {review.old_label} to {review.new_label}"
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_safe(title)}</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>{_safe(review.lock_name)}</h1>",
        f'<p class="move">{_safe(review.old_label)} → {_safe(review.new_label)}</p>',
        f'<p class="verdict">{_safe(verdict_words(review))}</p>',
        *_identity(review),
    ]
    for section, changes in sections(review):
        if section is Section.CONSEQUENCE:
            lines += _section(section.value, changes)
    if hosts_matter(review):
        lines += _hosts(review)
    lines += _chart(review)
    if package_changes(review):
        lines += _packages(review)
    for section, changes in sections(review):
        if section is not Section.CONSEQUENCE:
            lines += _section(section.value, changes)
    return "\n".join(lines) + "\n</html>\n"


def _identity(review: Review) -> Iterator[str]:
    yield '<table class="identity"><tr><th></th><th>before</th><th>now</th></tr>'
    for name, before, now in identity_rows(review):
        shown = "as before" if before == now else f"<code>{_safe(now)}</code>"
        yield f"<tr><th>{name}</th><td><code>{_safe(before or 'none')}</code></td><td>{shown}</td></tr>"
    yield "</table>"
    yield f"<p>{_safe(cost_words(review))}.</p>"
    if review.new.overrides:
        shown = ", ".join(f"<code>{_safe(override)}</code>" for override in review.new.overrides)
        yield f"<p><strong>Overrides</strong> of what packages ask for: {shown}</p>"


def _section(title: str, changes: list[Change]) -> Iterator[str]:
    yield f"<h2>{title}</h2>"
    yield '<ul class="changes">'
    for change in changes:
        yield f'<li class="{change.level}"><span class="level">{change.level}</span><div>{_text(change.text)}'
        if change.consequences:
            yield '<ul class="because">'
            yield from (f"<li>{_text(consequence)}</li>" for consequence in change.consequences)
            yield "</ul>"
        for excerpt in change.excerpts:
            yield f"<details><summary>{_safe(excerpt.title)}</summary><pre>"
            yield from (_diff_line(line, is_diff=excerpt.language == "diff") for line in excerpt.text.splitlines())
            yield "</pre></details>"
        yield "</div></li>"
    yield "</ul>"


def _diff_line(line: str, *, is_diff: bool) -> str:
    shown = _safe(line.expandtabs(4))
    if is_diff and line[:1] in ("+", "-"):
        return f'<span class="{"plus" if line[0] == "+" else "minus"}">{shown}</span>'
    return shown


def _hosts(review: Review) -> Iterator[str]:
    yield "<h2>Hosts</h2>"
    yield "<table><tr><th>host</th><th></th><th>why</th></tr>"
    for host in review.hosts:
        level = "stop" if host.new == "no" else "look" if host.new == "unsure" else "note"
        words = _safe(host_line(host, review)).replace("-&gt;", "→")
        why = "; ".join(_text(reason) for reason in host.reasons)
        yield f'<tr class="{level}"><td><code>{_safe(host.name)}</code></td><td class="level">{words}</td><td>{why}</td></tr>'
    yield "</table>"


def _chart(review: Review) -> Iterator[str]:
    """Bars of the largest packages, before above now."""
    shown = [size for size in review.sizes[:SHOWN_BARS] if size.old_bytes or size.new_bytes]
    if not shown:
        return
    most = max(max(size.old_bytes, size.new_bytes) for size in shown)
    height = 30 * len(shown)
    rest = review.sizes[len(shown) :]
    yield "<h2>Sizes of wheels</h2>"
    yield '<p><span class="key was"></span>before<span class="key now"></span>now</p>'
    yield f'<svg class="chart" viewBox="0 0 1000 {height}" role="img" aria-label="Sizes of the largest wheels, before and now">'
    for number, size in enumerate(shown):
        yield from _bars(size, 30 * number, most, has_old=review.old is not None)
    yield "</svg>"
    if rest:
        amount = size_text(sum(size.new_bytes for size in rest))
        yield f"<p>And {counted(len(rest), 'smaller package')} of {amount} in all.</p>"


def _bars(size: PackageSize, top: int, most: int, *, has_old: bool) -> Iterator[str]:
    left, room = 270, 560
    yield f'<text x="{left - 12}" y="{top + 19}" text-anchor="end">{_safe(_short(size.name))}</text>'
    for offset, kind, amount in ((4, "old", size.old_bytes), (14, "new", size.new_bytes)):
        if amount:
            width = max(round(room * amount / most, 1), 1.5)
            yield f'<rect class="{kind}" x="{left}" y="{top + offset}" width="{width}" height="9" rx="1.5"/>'
    end = left + round(room * max(size.old_bytes, size.new_bytes) / most) + 10
    yield f'<text class="size" x="{end}" y="{top + 19}">{_safe(_sizes(size, has_old=has_old))}</text>'


def _sizes(size: PackageSize, *, has_old: bool) -> str:
    if size.old_bytes == size.new_bytes or not has_old:
        return size_text(size.new_bytes)
    if not size.old_bytes:
        return f"{size_text(size.new_bytes)}, new"
    if not size.new_bytes:
        return f"{size_text(size.old_bytes)}, gone"
    return f"{size_text(size.old_bytes)} → {size_text(size.new_bytes)}"


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"{name[:33]}…"


def _packages(review: Review) -> Iterator[str]:
    yield f"<h2>{Section.PACKAGE.value}: {_safe(package_summary(package_changes(review)))}</h2>"
    yield "<table><tr><th></th><th>package</th><th>before</th><th>now</th><th></th></tr>"
    for heading, rows in package_groups(review):
        yield f'<tr><th colspan="5">{_safe(heading)}</th></tr>'
        yield from (_row(row) for row in rows)
    yield "</table>"


def _row(row: Row) -> str:
    cells = [_safe(row.word), f"<code>{_safe(row.name).replace('-&gt;', '→')}</code>"]
    cells += [_safe(row.old), _safe(row.new), _text(row.note)]
    return f"<tr{' class=loud' if row.is_loud else ''}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return "".join(
        f"<code>{_safe(piece.text)}</code>" if piece.is_literal else _safe(piece.text) for piece in pieces(text)
    )


def _safe(text: str) -> str:
    return escape(escaped(text), quote=True)
