"""Which lines differ between two texts, decided by this module alone, so that it does not depend on a version of git, diff or Python.

Patience diff: lines that are there once on both sides are anchors, and what lies between two of them is compared on its own. Where there is no
anchor, the shortest edit script (Myers) is looked for up to a bound, beyond which a region counts as replaced. A run that could stand in several
places (an added function between two blank lines) stands where its first line is least indented, and a blank line alone parts no two replaced
regions.

Invariants:
- The runs are in order, do not touch each other, and replacing each one's old lines by its new ones gives the new text.
- The same two texts always give the same runs.

Example:
    >>> changed_runs([b"a", b"b", b"c"], [b"a", b"x", b"c"])
    [Run(old_start=1, old_end=2, new_start=1, new_end=2)]
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EDITS = 400
"""Inserted and deleted lines in a region without anchors, up to which the shortest script is looked for; memory grows with their square."""

MOST_DEPTH = 64
"""How often a region is cut at anchors before the shortest script is looked for."""

MOST_SLIDES = 200
"""Lines that a run is moved at most."""

_BLANK_COST = 1 << 16


@dataclass(frozen=True, slots=True)
class Run:
    """Lines that were replaced: `old[old_start:old_end]` by `new[new_start:new_end]`; one of the two may be empty."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def changed_runs(old: Sequence[bytes], new: Sequence[bytes]) -> list[Run]:
    """What has to be replaced in one text to get the other.

    Args:
        old: Lines.
        new: Lines.
    """
    return _slid(_joined(_runs(_common_lines(old, new), len(old), len(new)), old), old, new)


def _common_lines(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of lines that stay, in order."""
    pairs: list[tuple[int, int]] = []
    regions = [(0, len(old), 0, len(new), 0)]
    while regions:
        old_start, old_end, new_start, new_end, depth = regions.pop()
        while old_start < old_end and new_start < new_end and old[old_start] == new[new_start]:
            pairs.append((old_start, new_start))
            old_start, new_start = old_start + 1, new_start + 1
        while old_start < old_end and new_start < new_end and old[old_end - 1] == new[new_end - 1]:
            old_end, new_end = old_end - 1, new_end - 1
            pairs.append((old_end, new_end))
        if old_start == old_end or new_start == new_end:
            continue
        anchors = _anchors(old, new, (old_start, old_end), (new_start, new_end)) if depth < MOST_DEPTH else []
        if not anchors:
            shortest = _shortest(old[old_start:old_end], new[new_start:new_end])
            pairs += [(old_start + left, new_start + right) for left, right in shortest]
            continue
        pairs += anchors
        ends = [*anchors, (old_end, new_end)]
        starts = [(old_start, new_start), *((left + 1, right + 1) for left, right in anchors)]
        regions += [
            (left, left_end, right, right_end, depth + 1)
            for (left, right), (left_end, right_end) in zip(starts, ends, strict=True)
        ]
    return sorted(pairs)


def _anchors(
    old: Sequence[bytes], new: Sequence[bytes], old_range: tuple[int, int], new_range: tuple[int, int]
) -> list[tuple[int, int]]:
    """The longest series of lines that are there once on both sides and in the same order on both."""
    old_places, new_places = _single_places(old, old_range), _single_places(new, new_range)
    candidates = [(place, new_places[line]) for line, place in old_places.items() if line in new_places]
    # The longest increasing subsequence: `tops[n]` is the candidate with the least new line that ends a series of n + 1.
    tops: list[int] = []
    top_lines: list[int] = []
    before: list[int] = []
    for index, (_, place) in enumerate(candidates):
        length = bisect_left(top_lines, place)
        before.append(tops[length - 1] if length else -1)
        tops[length : length + 1] = [index]
        top_lines[length : length + 1] = [place]
    series: list[tuple[int, int]] = []
    index = tops[-1] if tops else -1
    while index >= 0:
        series.append(candidates[index])
        index = before[index]
    return series[::-1]


def _single_places(lines: Sequence[bytes], place: tuple[int, int]) -> dict[bytes, int]:
    """Line -> index, of the lines that are there once in a range; in the range's order."""
    found: dict[bytes, int] = {}
    for index in range(*place):
        found[lines[index]] = -1 if lines[index] in found else index
    return {line: index for line, index in found.items() if index >= 0}


def _shortest(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of lines that stay, by the shortest script; none if it has more than `MOST_EDITS` lines."""
    reached = {1: 0}  # diagonal -> furthest old line
    history: list[dict[int, int]] = []
    for edits in range(MOST_EDITS + 1):
        history.append(reached.copy())
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])
            left = reached[diagonal + 1] if down else reached[diagonal - 1] + 1
            right = left - diagonal
            while left < len(old) and right < len(new) and old[left] == new[right]:
                left, right = left + 1, right + 1
            reached[diagonal] = left
            if left >= len(old) and right >= len(new):
                return _walked_back(history, left, right)
    return []


def _walked_back(history: list[dict[int, int]], left: int, right: int) -> list[tuple[int, int]]:
    """The pairs on the way that the shortest script took."""
    pairs: list[tuple[int, int]] = []
    for edits in range(len(history) - 1, -1, -1):
        reached = history[edits]
        diagonal = left - right
        down = diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        start_left = reached[before] if edits else 0
        start_right = start_left - before if edits else 0
        while left > start_left and right > start_right:
            left, right = left - 1, right - 1
            pairs.append((left, right))
        left, right = start_left, start_right
    return pairs[::-1]


def _runs(pairs: list[tuple[int, int]], old_length: int, new_length: int) -> list[Run]:
    """What lies between lines that stay."""
    runs: list[Run] = []
    old_at = new_at = 0
    for old_index, new_index in [*pairs, (old_length, new_length)]:
        if old_index > old_at or new_index > new_at:
            runs.append(Run(old_at, old_index, new_at, new_index))
        old_at, new_at = old_index + 1, new_index + 1
    return runs


def _joined(runs: list[Run], old: Sequence[bytes]) -> list[Run]:
    """The runs, two that both replace lines made one where nothing but blank lines stays between them."""
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else run
        both_replace = all(one.old_start < one.old_end and one.new_start < one.new_end for one in (last, run))
        if joined and both_replace and not any(line.strip() for line in old[last.old_end : run.old_start]):
            joined[-1] = Run(last.old_start, run.old_end, last.new_start, run.new_end)
        else:
            joined.append(run)
    return joined


def _slid(runs: list[Run], old: Sequence[bytes], new: Sequence[bytes]) -> list[Run]:
    """The runs, each that only adds or only removes moved to the best of the places where it means the same."""
    slid: list[Run] = []
    for index, run in enumerate(runs):
        adds = run.old_start == run.old_end
        if not adds and run.new_start != run.new_end:
            slid.append(run)
            continue
        lines, start, end = (new, run.new_start, run.new_end) if adds else (old, run.old_start, run.old_end)
        # One line has to stay between two runs; before the first and behind the last none is needed.
        floor = (slid[-1].new_end if adds else slid[-1].old_end) + 1 if slid else 0
        ceiling = len(lines)
        for following in runs[index + 1 : index + 2]:
            ceiling = (following.new_start if adds else following.old_start) - 1
        shift = _best_shift(lines, (start, end), (floor, ceiling))
        slid.append(Run(run.old_start + shift, run.old_end + shift, run.new_start + shift, run.new_end + shift))
    return slid


def _best_shift(lines: Sequence[bytes], place: tuple[int, int], bounds: tuple[int, int]) -> int:
    start, end = place
    lowest = highest = 0
    while lowest > -MOST_SLIDES and start + lowest > bounds[0] and lines[start + lowest - 1] == lines[end + lowest - 1]:
        lowest -= 1
    while highest < MOST_SLIDES and end + highest < bounds[1] and lines[start + highest] == lines[end + highest]:
        highest += 1
    return min(
        range(lowest, highest + 1),
        key=lambda shift: (_cost(lines, start + shift) + _cost(lines, end + shift), -shift),
    )


def _cost(lines: Sequence[bytes], index: int) -> int:
    """How odd it looks if a run begins or ends before a line: the line's indentation, and more than any if it is blank."""
    if index == len(lines):
        return 0
    line = lines[index]
    stripped = line.lstrip(b" \t")
    return len(line) - len(stripped) if stripped.strip() else _BLANK_COST
