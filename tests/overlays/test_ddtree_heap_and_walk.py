"""The parts of DDTREE that need no torch: best-first heap, walk, decoding of toy models; and spoilt copies that must fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.draft_trees import PROOFS, load_utils, utils_source

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = utils_source()

MUTANTS = {
    "the sibling is not offered": (
        "        offer(depth, parent, rank + 1, parent_score)\n        offer(depth + 1",
        "        offer(depth + 1",
    ),
    "the child is not offered": (
        "        offer(depth + 1, len(nodes), 0, -negative)\n    return nodes",
        "    return nodes",
    ),
    "the worst first": ("(-score, depth, parent, rank, parent_score)", "(score, depth, parent, rank, parent_score)"),
    "a sibling's score is added to its elder's": (
        "offer(depth, parent, rank + 1, parent_score)\n        offer",
        "offer(depth, parent, rank + 1, -negative)\n        offer",
    ),
    "a child is scored by its grandparent": (
        "offer(depth + 1, len(nodes), 0, -negative)\n    return",
        "offer(depth + 1, len(nodes), 0, parent_score)\n    return",
    ),
    "the parent is one row too high": (
        "offer(depth + 1, len(nodes), 0, -negative)\n    return",
        "offer(depth + 1, len(nodes) - 1, 0, -negative)\n    return",
    ),
    "one level too few": ("depth <= num_levels and", "depth < num_levels and"),
    "one token too few": ("rank < width:", "rank < width - 1:"),
    "impossible tokens are taken": ('if score > float("-inf"):', "if True:"),
    "deep before shallow among equals": (
        "(-score, depth, parent, rank, parent_score)",
        "(-score, -depth, parent, rank, parent_score)",
    ),
    "one node too many": (
        "    return nodes\n\n\ndef _pack_nodes",
        "    return nodes + nodes[-1:]\n\n\ndef _pack_nodes",
    ),
    "the chain's siblings are forgotten": (
        "            offer(depth, parent, rank + 1, parent_score)\n            parent_score",
        "            parent_score",
    ),
    "the chain's siblings have the score of the root": (
        "            parent_score += min(0.0, scores[depth - 1][rank])\n",
        "",
    ),
    "the chain seed is ignored": (
        "    if chain_seed:\n        # The first `num",
        "    if False:\n        # The first `num",
    ),
    "padding is a child of the root": ("parents + [NO_PARENT] * padding", "parents + [0] * padding"),
    "a node has its parent's token": ("candidates[depth - 1][rank] for", "candidates[depth - 2][rank] for"),
    "a row does not see itself": ("        cells[row] = 1\n", ""),
    "a row sees itself alone": ("bytearray(rows[parent])", "bytearray(num_rows)"),
    "padding sees the row before": (
        "bytearray(num_rows) if parent == NO_PARENT else",
        "bytearray(num_rows) if row == 0 else",
    ),
    "the walk takes any child": ("children.get((path[-1], decided[-1]))", "children.get((path[-1], tokens[-1]))"),
    "the walk ignores whose child a node is": ("(parent, token): row for row", "(row - 1, token): row for row"),
    "the walk emits the draft's tokens": ("decided.append(decisions[row])", "decided.append(tokens[row])"),
    "the walk stops one short": ("is not None:\n        path", "is not None and len(path) < 2:\n        path"),
}


@pytest.mark.parametrize("prove", PROOFS, ids=lambda prove: prove.__name__.removeprefix("prove_"))
def test_heap_and_walk(prove: Callable[[Any], None]) -> None:
    prove(load_utils(SOURCE))


@pytest.mark.parametrize("name", MUTANTS)
def test_spoilt_heap_or_walk_is_found(name: str) -> None:
    old, new = MUTANTS[name]
    assert SOURCE.count(old) == 1, f"the file has {SOURCE.count(old)} places for this change: rewrite it"
    spoilt = load_utils(SOURCE.replace(old, new))
    for prove in PROOFS:
        try:
            prove(spoilt)
        except (AssertionError, IndexError, ValueError):
            return
    pytest.fail("no proof failed")
