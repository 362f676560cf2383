"""What all ways of showing a review have in common: its words, its order, its literals."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from envspec.diff.changes import Change, Section, size_text
from envspec.wording import counted, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envspec.diff.hosts import HostVerdict
    from envspec.diff.review import Review

QUALIFIES = {"yes": "qualifies", "no": "does not qualify", "unsure": "not known", "absent": "not declared"}

MOVES = {
    "added": "new",
    "removed": "gone",
    "replaced": "replaced",
    "upgraded": "up",
    "downgraded": "DOWN",
    "other-build": "other build",
    "other-wheel": "other wheel",
    "other-tree": "other tree",
    "requirements": "needs",
}
"""Kind of a package's change -> the word in its row."""

SHOWN_DIGEST = 16
"""Characters of a site digest: enough to tell two apart; `--format json` has them all."""

_SHOWN_HEADS = 4
_SUMMARY = (
    ("added", "new"),
    ("removed", "gone"),
    ("replaced", "replaced"),
    ("upgraded", "newer"),
    ("downgraded", "older"),
)


class Piece(NamedTuple):
    """A part of a text: a literal, or words."""

    is_literal: bool
    text: str


class Row(NamedTuple):
    """A package in the table of packages."""

    word: str
    name: str
    old: str
    new: str
    note: str
    """Why it changed, where the group does not say it; empty else."""

    is_loud: bool


def pieces(text: str) -> list[Piece]:
    """A text in parts: what stands between backticks is literal. A backtick without a partner is a character like any other.

    Example:
        >>> [piece.text for piece in pieces("a `b` c")]
        ['a ', 'b', ' c']
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = [f"{parts[-2]}`{parts[-1]}"]
    return [Piece(bool(number % 2), part) for number, part in enumerate(parts) if part]


def escaped(text: str) -> str:
    """A text in which every character that is not plainly visible is an escape: the last guard before it is shown."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def verdict_words(review: Review) -> str:
    """The first line of a review: how much there is to stop at, look at, and know."""
    if review.old is None:
        return f"the first lock: {counted(len(review.new.packages), 'package')}"
    if not review.changes:
        if review.same_env and review.same_site:
            return "no change: the same environment, the same tree"
        return "no change that a person has to know"
    counts = review.counts()
    words = [f"{counts[level]} {level}" for level in counts if counts[level]]
    return f"{', '.join(words)}: {_headline(review)}"


def _headline(review: Review) -> str:
    """What kind of change it is, in one sentence."""
    moved = package_changes(review)
    patched = {change.package: None for change in review.changes if change.section is Section.OVERLAY}
    same = {change.package: None for change in review.changes if change.kind in ("reuploaded", "index-moved")}
    words = [f"packages {package_summary(moved)}"] if moved else []
    if same:
        words.append(f"{joined(_few(same))} from elsewhere in the same version")
    if patched:
        words.append(f"patches of {joined(_few(patched))} changed")
    if not words:
        return "the same environment" if review.same_env else "no package moved"
    return ", ".join(words if moved or same else [*words, "no package moved"])


def _few(names: Iterable[str]) -> list[str]:
    listed = list(names)
    more = len(listed) - _SHOWN_HEADS
    return [*listed[:_SHOWN_HEADS], *([f"{more} more"] if more > 0 else [])]


def identity_rows(review: Review) -> list[tuple[str, str, str]]:
    """Name, before and now of what identifies an environment."""
    old = review.old
    rows = [("env", old.env if old else "", review.new.env)]
    rows.append(("site", old.site[:SHOWN_DIGEST] if old else "", review.new.site[:SHOWN_DIGEST]))
    rows.append(("packages", str(len(old.packages)) if old else "", str(len(review.new.packages))))
    return rows


def cost_words(review: Review) -> str:
    """What the change costs, in one line."""
    cost = review.cost
    total = f"all wheels are {size_text(cost.new_bytes)}"
    if review.old is not None and cost.old_bytes != cost.new_bytes:
        total += f", {size_text(abs(cost.new_bytes - cost.old_bytes))} {'more' if cost.new_bytes > cost.old_bytes else 'less'} than before"
    if not cost.host_wheels:
        return (
            f"nothing to download, nothing to send: all {counted(cost.reused_wheels, 'wheel')} are used again; {total}"
        )
    download = (
        f"{size_text(cost.download_bytes)} to download ({counted(cost.download_wheels, 'wheel')})"
        if cost.download_wheels
        else "nothing to download"
    )
    sent = f"{size_text(cost.host_bytes)} to each host ({counted(cost.host_wheels, 'wheel')})"
    reused = f", {counted(cost.reused_wheels, 'wheel')} used again" if cost.reused_wheels else ""
    return f"{download}, {sent}{reused}; {total}"


def host_line(verdict: HostVerdict, review: Review) -> str:
    """Before and now of a host, in words."""
    if review.old is None:
        return QUALIFIES[verdict.new]
    if verdict.old == verdict.new:
        return f"{QUALIFIES[verdict.new]}, as before"
    return f"{QUALIFIES[verdict.old]} -> {QUALIFIES[verdict.new]}"


def hosts_matter(review: Review) -> bool:
    """Whether the table of hosts says something."""
    return bool(review.hosts) and not (review.same_env and all(host.old == host.new for host in review.hosts))


def sections(review: Review) -> Iterator[tuple[Section, list[Change]]]:
    """The sections that have something, in order, the packages left out."""
    for section in Section:
        found = [change for change in review.changes if change.section is section and not is_row(change)]
        if found:
            yield section, found


def is_row(change: Change) -> bool:
    """Whether a change is a row of the table of packages."""
    return change.section is Section.PACKAGE


def package_changes(review: Review) -> list[Change]:
    """The changes of packages, in order."""
    return [change for change in review.changes if is_row(change)]


def package_summary(changes: Sequence[Change]) -> str:
    """How many packages did what: `1 new, 15 replaced, 4 newer`."""
    counts = Counter(change.kind for change in changes)
    words = [f"{counts[kind]} {word}" for kind, word in _SUMMARY if counts[kind]]
    others = sum(counts.values()) - sum(counts[kind] for kind, _ in _SUMMARY)
    if others:
        words.append(f"{others} other")
    return ", ".join(words)


def package_groups(review: Review) -> list[tuple[str, list[Row]]]:
    """The rows of the table of packages, under the packages of the spec that they are there for."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for change in package_changes(review):
        groups.setdefault(change.heads, []).append(change)
    ordered = sorted(groups.items(), key=lambda item: (not item[0], len(item[0]) > 1, item[0]))
    return [(_heading(heads), [_row(change, heads) for change in _head_first(changes)]) for heads, changes in ordered]


def _head_first(changes: list[Change]) -> list[Change]:
    """A package that the spec asks for stands above what it brings; what is loud above the rest."""
    return sorted(changes, key=lambda each: (each.level == "note", (each.package,) != each.heads, each.package))


def _heading(heads: tuple[str, ...]) -> str:
    if not heads:
        return "asked for by nothing"
    more = len(heads) - _SHOWN_HEADS
    return "for " + joined([*heads[:_SHOWN_HEADS], *([f"{more} more"] if more > 0 else [])])


def _row(change: Change, heads: tuple[str, ...]) -> Row:
    name = change.package
    if change.kind == "replaced":
        name = f"{change.subject} -> {change.package}"
    note = ""
    is_file = change.kind in ("other-build", "other-wheel", "other-tree", "requirements")
    if is_file:
        note = change.text.partition(": ")[2] if change.kind != "requirements" else change.text
    elif change.because and ((change.package,) == heads or change.level != "note"):
        note = ", ".join(change.because)
    return Row(
        word=MOVES[change.kind],
        name=name,
        old="" if is_file else change.old,
        new="" if is_file else change.new,
        note=note,
        is_loud=change.level != "note",
    )
