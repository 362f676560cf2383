"""How findings about libraries and symbols are worded: who needs what, and what there is instead."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from envspec.checks.wording import counted, joined
from envspec.cuda import is_torch_library, readable_symbol, same_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.checks.closure import ClosureWheel
    from envspec.linker import Missing, Unbound
    from envspec.links import Links

SHOWN_SYMBOLS = 3


def missing_lines(found: Sequence[Missing], links: Links, *, only_known: bool = False) -> list[str]:
    """A line for each library that is missing: who needs it, and what other version of it there is.

    Args:
        found: Which, by whom.
        links: Of the environment.
        only_known: Whether to leave out those of which the wheels have no version at all.
    """
    needed: dict[str, list[str]] = defaultdict(list)
    for each in found:
        if not only_known or links.providers(each.soname) or is_torch_library(each.soname):
            needed[each.soname].append(links.shown(each.path))
    lines = []
    for soname, paths in needed.items():
        others = links.providers(soname)
        there = (
            f"; {links.place} provides {joined([f'{name} ({owner.label})' for name, owner in others])}"
            if others
            else ""
        )
        shown = sorted(set(paths))
        lines.append(f"{_who(shown)} {soname}{there}")
    return lines


def symbol_lines(found: Sequence[Unbound], links: Links, torch: ClosureWheel | None) -> list[str]:
    """A line for each of the first symbols: who needs it, and what torch exports instead, if it should be torch's."""
    by_symbol: dict[str, list[str]] = defaultdict(list)
    for each in found:
        by_symbol[each.reference.name].append(links.shown(each.path))
    lines = [
        f"{_who(sorted(set(by_symbol[name])))} {name}{_near(name, links, torch)}"
        for name in by_need(found)[:SHOWN_SYMBOLS]
    ]
    if len(by_symbol) > SHOWN_SYMBOLS:
        lines.append(f"and {counted(len(by_symbol) - SHOWN_SYMBOLS, 'more symbol')}")
    return lines


def _who(paths: Sequence[str]) -> str:
    """Objects with their verb."""
    return f"{paths[0]} needs" if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more need"


def by_need(found: Sequence[Unbound]) -> list[str]:
    """The names of symbols, those that most objects need first."""
    objects: dict[str, set[str]] = defaultdict(set)
    for each in found:
        objects[each.reference.name].add(each.path)
    return sorted(objects, key=lambda name: (-len(objects[name]), name))


def _near(name: str, links: Links, torch: ClosureWheel | None) -> str:
    """Whether torch exports the same function with other parameters."""
    function = same_function(name)
    if torch is None or not function:
        return ""
    for binary in torch.facts.binaries.binaries:
        if binary.path in links.linker.objects and function in binary.exports:
            same = [other for other in binary.exported if same_function(other) == function]
            if same:
                return f"; {torch.label} exports {min(same)}"
    return f"; {torch.label} exports no `{readable_symbol(name)}`"
