from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from envspec.requesters import Requests, find_chains, grow_tree

if TYPE_CHECKING:
    from collections.abc import Mapping


def requests(needs: Mapping[str, str], roots: str) -> Requests:
    """Who asks for whom; a package is a letter."""
    names = sorted({*needs, *itertools.chain(*needs.values()), *roots})
    sorted_needs = {name: tuple(sorted(set(needs.get(name, "")))) for name in names}
    return Requests(
        roots=frozenset(roots),
        needs=sorted_needs,
        requesters={name: tuple(each for each in names if name in sorted_needs[each]) for name in names},
    )


def all_chains(graph: Requests, package: str) -> list[tuple[str, ...]]:
    """Every chain, found the slow way."""
    found = []

    def walk(chain: tuple[str, ...]) -> None:
        if chain[-1] == package:
            found.append(chain)
            return
        for name in graph.needs[chain[-1]]:
            if name not in chain:
                walk((*chain, name))

    for root in graph.roots:
        walk((root,))
    return sorted(found, key=lambda chain: (len(chain), chain))


def test_chains_are_listed_shortest_first() -> None:
    graph = requests({"a": "bc", "b": "d", "c": "d", "d": "e"}, "a")
    assert find_chains(graph, "e", limit=9).shown == (("a", "b", "d", "e"), ("a", "c", "d", "e"))


def test_package_of_the_spec_has_itself_as_the_shortest_chain() -> None:
    graph = requests({"a": "b"}, "ab")
    assert find_chains(graph, "b", limit=9).shown == (("b",), ("a", "b"))


def test_requirements_that_go_in_circles_end() -> None:
    graph = requests({"a": "b", "b": "c", "c": "bd", "d": "a"}, "a")
    found = find_chains(graph, "d", limit=9)
    assert found.shown == (("a", "b", "c", "d"),)
    assert found.is_exact


def test_chains_beyond_number_are_counted_and_not_listed() -> None:
    layers = [f"{chr(97 + number)}{side}" for number in range(60) for side in "12"]
    needs = {name: tuple(layers[(number // 2 + 1) * 2 :][:2]) for number, name in enumerate(layers)}
    names = sorted(needs)
    graph = Requests(
        roots=frozenset(layers[:2]),
        needs=needs,
        requesters={name: tuple(each for each in names if name in needs[each]) for name in names},
    )
    found = find_chains(graph, layers[-1], limit=3)
    assert len(found.shown) == 3
    assert found.count == 2**59
    assert found.is_exact


def test_chains_in_a_thicket_of_circles_are_counted_as_far_as_that_is_soon_done() -> None:
    names = [f"p{number:02}" for number in range(30)]
    graph = Requests(
        roots=frozenset(names[:1]),
        needs={name: tuple(each for each in names if each != name) for name in names},
        requesters={name: tuple(each for each in names if each != name) for name in names},
    )
    found = find_chains(graph, names[-1], limit=2)
    assert not found.is_exact
    assert len(found.shown) == 2
    assert found.count >= 2


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.text(alphabet="abcdef", max_size=4), max_size=6),
    st.sets(st.sampled_from("abcdef"), min_size=1, max_size=3),
    st.integers(0, 5),
)
def test_chains_are_those_that_a_naive_search_finds(needs: dict[str, str], roots: set[str], limit: int) -> None:
    graph = requests({name: below.replace(name, "") for name, below in needs.items()}, "".join(roots))
    for package in graph.needs:
        expected = all_chains(graph, package)
        found = find_chains(graph, package, limit=limit)
        assert found.is_exact
        assert found.count == len(expected)
        assert [len(chain) for chain in found.shown] == [len(chain) for chain in expected[:limit]]
        assert set(found.shown) <= set(expected)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.text(alphabet="abcdef", max_size=4), max_size=6),
    st.sets(st.sampled_from("abcdef"), min_size=1, max_size=3),
)
def test_tree_shows_each_package_and_each_requirement_once(needs: dict[str, str], roots: set[str]) -> None:
    graph = requests(needs, "".join(roots))
    branches = list(grow_tree(graph))
    path: list[str] = []
    edges: list[tuple[str, str]] = []
    for branch in branches:
        del path[branch.depth :]
        if path:
            edges.append((path[-1], branch.package))
        path.append(branch.package)
    reached = {branch.package for branch in branches}
    assert sorted(edges) == sorted((name, below) for name in reached for below in graph.needs[name])


def test_tree_marks_what_is_shown_further_up() -> None:
    graph = requests({"a": "bc", "c": "b", "b": "d"}, "a")
    assert [(each.depth, each.package, each.is_repeated, each.is_last) for each in grow_tree(graph)] == [
        (0, "a", False, True),
        (1, "b", False, False),
        (2, "d", False, True),
        (1, "c", False, True),
        (2, "b", True, True),
    ]
    assert [each.package for each in grow_tree(graph, depth=0)] == ["a"]
