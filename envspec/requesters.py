"""Who asks for a package: the chains of requirements that lead from the spec to it, and the tree of all of them.

A lock of 200 packages has millions of chains to its most needed ones, and requirements may go in circles. So chains are listed shortest first up
to a limit, and only counted beyond it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envspec.lock import Lock
    from envspec.spec import Spec

MOST_STEPS = 100_000
"""Of one search through requirements that go in circles; some tenths of a second."""

REPEATED = "(*)"
"""Stands in a tree behind a package whose requirements are shown further up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Who asks for whom in a lock."""

    roots: frozenset[str]
    """Packages that the spec names."""

    needs: Mapping[str, tuple[str, ...]]
    """Package -> packages that it needs, sorted."""

    requesters: Mapping[str, tuple[str, ...]]
    """Package -> packages that need it, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The ways from the spec to a package."""

    shown: tuple[tuple[str, ...], ...]
    """Each from a package that the spec names to the package asked for; shortest first, then by name."""

    count: int
    """Of all chains without a repeated package."""

    is_exact: bool
    """False if requirements go in circles and there are more than could be counted: `count` is then the least number."""


def requests_of(spec: Spec, lock: Lock) -> Requests:
    """Who asks for whom.

    Args:
        spec: Names the roots.
        lock: Of the spec.
    """
    requesters: dict[str, list[str]] = {package.name: [] for package in lock.packages}
    for package in lock.packages:
        for name in package.requires:
            requesters[name].append(package.name)
    return Requests(
        roots=frozenset(each.name for each in spec.packages) & requesters.keys(),
        needs={package.name: package.requires for package in lock.packages},
        requesters={name: tuple(names) for name, names in requesters.items()},
    )


def find_chains(requests: Requests, package: str, *, limit: int) -> Chains:
    """The chains to a package.

    Args:
        requests: Of the lock.
        package: A locked package.
        limit: The most chains that are listed.
    """
    listed = sorted(_shortest(requests, package, limit), key=lambda chain: (len(chain), chain))
    count = _count(requests, package, _reached(requests.requesters, package))
    if count is not None:
        return Chains(shown=tuple(listed), count=count, is_exact=True)
    found = list(itertools.islice(_simple(requests, package), MOST_STEPS))
    counted = sum(found)
    return Chains(shown=tuple(listed), count=max(counted, len(listed)), is_exact=len(found) < MOST_STEPS)


def _reached(relation: Mapping[str, tuple[str, ...]], start: str) -> set[str]:
    found = {start}
    left = [start]
    while left:
        new = [name for name in relation[left.pop()] if name not in found]
        found.update(new)
        left += new
    return found


def _count(requests: Requests, package: str, above: set[str]) -> int | None:
    """The number of chains; None if requirements above the package go in circles."""
    waiting = {name: sum(each in above for each in requests.requesters[name]) for name in above}
    chains = {name: int(name in requests.roots) for name in above}
    ready = [name for name, number in waiting.items() if number == 0]
    done = 0
    while ready:
        name = ready.pop()
        done += 1
        for needed in requests.needs[name]:
            if needed in above:
                chains[needed] += chains[name]
                waiting[needed] -= 1
                if waiting[needed] == 0:
                    ready.append(needed)
    return chains[package] if done == len(above) else None


def _shortest(requests: Requests, package: str, limit: int) -> Iterator[tuple[str, ...]]:
    """Chains without a repeated package, shortest first: each beginning is carried on only as far as it has to be."""
    distance = _distances(requests)
    heap: list[tuple[int, tuple[str, ...]]] = [(distance[package], (package,))] if package in distance else []
    found = steps = 0
    while heap and found < limit:
        _, chain = heapq.heappop(heap)
        if not chain[0]:
            found += 1
            yield chain[1:]
            continue
        if chain[0] in requests.roots:  # it may end here, and go on as well
            heapq.heappush(heap, (len(chain) - 1, ("", *chain)))
        for name in requests.requesters[chain[0]]:
            if name in distance and name not in chain and steps < MOST_STEPS:
                steps += 1
                heapq.heappush(heap, (len(chain) + distance[name], (name, *chain)))


def _distances(requests: Requests) -> dict[str, int]:
    """Package -> how many requirements it is away from the spec, at least."""
    found = dict.fromkeys(sorted(requests.roots), 0)
    left = deque(found)
    while left:
        name = left.popleft()
        for needed in requests.needs[name]:
            if needed not in found:
                found[needed] = found[name] + 1
                left.append(needed)
    return found


def _simple(requests: Requests, package: str) -> Iterator[bool]:
    """Walk up all chains without a repeated package: one item a step, true where a chain is complete."""
    chain = [package]
    branches = [iter(requests.requesters[package])]
    yield package in requests.roots
    while branches:
        name = next(branches[-1], None)
        if name is None:
            branches.pop()
            chain.pop()
        elif name not in chain:
            chain.append(name)
            branches.append(iter(requests.requesters[name]))
            yield name in requests.roots
        else:
            yield False


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One line of a tree."""

    depth: int
    package: str
    is_last: bool
    """Whether no other package follows below the same one."""

    is_repeated: bool
    """Whether what it needs is shown further up, and not again."""


def grow_tree(requests: Requests, *, depth: int | None = None) -> Iterator[Branch]:
    """The tree of requirements from the spec down; what a package needs is shown once, where it comes first.

    Args:
        requests: Of the lock.
        depth: The deepest level, from 0 for the packages of the spec; None for all.
    """
    shown: set[str] = set()
    names = sorted(requests.roots)
    stack = [iter([(name, number == len(names) - 1) for number, name in enumerate(names)])]
    while stack:
        following = next(stack[-1], None)
        if following is None:
            stack.pop()
            continue
        name, is_last = following
        level = len(stack) - 1
        is_repeated = name in shown and bool(requests.needs[name])
        yield Branch(depth=level, package=name, is_last=is_last, is_repeated=is_repeated)
        if name in shown or (depth is not None and level >= depth):
            continue
        shown.add(name)
        below = requests.needs[name]
        stack.append(iter([(each, number == len(below) - 1) for number, each in enumerate(below)]))
