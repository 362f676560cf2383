"""Accept lengths computed without SGLang: an independent figure to hold the engine's against.

The rounds of speculative decoding are replayed on greedy continuations of the target: the chain accepts while the drafter's best token is the
target's; a tree accepts while the target's tokens are nodes of it. The tree here is the best-first heap of the DDTree paper (Ringel and Romano,
arXiv:2604.12989, algorithm 1), written from its description.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Row = Sequence[float]


def best_prefixes(logp: Sequence[Row], *, budget: int) -> set[tuple[int, ...]]:
    """Ranks of the most probable prefixes under independent positions.

    Args:
        logp: For each position, log probabilities in falling order.
        budget: How many prefixes.
    """
    depth, width = len(logp), len(logp[0])
    heap: list[tuple[float, tuple[int, ...]]] = [(-logp[0][0], (0,))]
    chosen: set[tuple[int, ...]] = set()
    while heap and len(chosen) < budget:
        cost, ranks = heapq.heappop(heap)
        chosen.add(ranks)
        at, last = len(ranks) - 1, ranks[-1]
        if last + 1 < width:
            heapq.heappush(heap, (cost + logp[at][last] - logp[at][last + 1], (*ranks[:-1], last + 1)))
        if at + 1 < depth:
            heapq.heappush(heap, (cost - logp[at + 1][0], (*ranks, 0)))
    return chosen


def accepted(ids: Sequence[Sequence[int]], logp: Sequence[Row], truth: Sequence[int], *, budget: int) -> int:
    """Drafted tokens that one round accepts; a budget of 0 means the chain.

    Args:
        ids: Candidates of each position, best first.
        logp: Their log probabilities.
        truth: What the target says after the root.
        budget: Nodes of the tree.
    """
    limit = min(len(ids), len(truth))
    ranks: list[int] = []
    nodes = best_prefixes(logp, budget=budget) if budget else None
    for position in range(limit):
        row = list(ids[position])
        if truth[position] not in row:
            break
        rank = row.index(truth[position])
        if (nodes is None and rank > 0) or (nodes is not None and (*ranks, rank) not in nodes):
            break
        ranks.append(rank)
    return len(ranks)


def replay(
    sequence: Sequence[int],
    ids: Sequence[Sequence[Sequence[int]]],
    logp: Sequence[Sequence[Row]],
    *,
    first: int,
    budget: int,
) -> tuple[int, int]:
    """Tokens and rounds of one continuation.

    Args:
        sequence: Prompt and greedy continuation.
        ids: Candidates by anchor, position, rank; the first anchor is `first`.
        logp: Likewise.
        first: Position of the first token that the target made.
        budget: Nodes of the tree; 0 means the chain.
    """
    at, rounds = first, 0
    while at + 1 < len(sequence):
        at += 1 + accepted(ids[at - first], logp[at - first], sequence[at + 1 :], budget=budget)
        rounds += 1
    return len(sequence) - 1 - first, rounds
