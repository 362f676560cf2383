"""`ddtree_utils.py` as the series `overlays/ddtree` makes it, and what must be true of the parts of it that need no torch.

The file is new in the series, so the patches alone give it. Torch is not among the tools of this repository; heap and walk work on lists and
run here with an empty stand-in for torch. What works on tensors is proven in the real environment
(`tests/real/test_ddtree_series_in_sglang.py`).

Each `prove_*` takes the module, so that the tests can hand it a spoilt one and see that it fails.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from builder.overlay import read_series
from envspec.patch import apply_patches, parse_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SERIES = Path(__file__).parents[2] / "overlays/ddtree/series"
UTILS = "sglang/srt/speculative/ddtree_utils.py"

Scores = list[list[float]]
"""Per level, the log-probabilities of its candidates, best first."""

Prefix = tuple[int, ...]
"""The ranks of the tokens on the way to a node."""


def utils_source() -> str:
    """The text of `ddtree_utils.py` after the whole series."""
    files: dict[str, bytes | None] = {}
    for patch in read_series(SERIES).patches:
        parsed = parse_patch((SERIES.parent / patch.name).read_bytes(), input_name=patch.name)
        if any(change.path == UTILS for change in parsed.files):
            only = [change for change in parsed.files if change.path == UTILS]
            files |= apply_patches(
                [type(parsed)(name=parsed.name, files=tuple(only))], files.get, input_name=parsed.name
            )
    content = files[UTILS]
    assert content is not None
    return content.decode()


def load_utils(source: str) -> Any:
    """A module from the text of `ddtree_utils.py`, with an empty stand-in for torch."""
    module = ModuleType("ddtree_utils_under_test")
    torch = ModuleType("torch")
    torch.version = SimpleNamespace(hip=None)  # type: ignore[attr-defined]
    with _modules(torch=torch, ddtree_utils_under_test=module):
        exec(compile(source, UTILS, "exec"), module.__dict__)  # noqa: S102 - our own file
    return module


@contextmanager
def _modules(**modules: ModuleType) -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def random_scores(chance: random.Random, levels: int, width: int, *, kind: str = "any") -> Scores:
    """Log-probabilities of that many levels and candidates. `kind`: any, equal, ties, certain, holes."""
    scores = []
    for _ in range(levels):
        logits = [chance.gauss(0, chance.choice([0.2, 1, 4])) for _ in range(width)]
        if kind == "equal":
            logits = [0.0] * width
        elif kind == "ties":
            logits = [float(round(logit)) for logit in logits]
        elif kind == "certain":
            logits[0] = math.inf
        if math.inf in logits:
            row = [0.0] + [-math.inf] * (width - 1)
        else:
            total = math.log(sum(math.exp(logit) for logit in logits))
            row = [min(0.0, logit - total) for logit in logits]  # never above 0 by rounding
        if kind == "holes":
            row = [-math.inf if chance.random() < 0.4 else score for score in row]
        scores.append(sorted(row, reverse=True))
    return scores


def score_of(scores: Scores, prefix: Prefix) -> float:
    """The log-probability of a prefix."""
    total = 0.0
    for level, rank in enumerate(prefix):
        total += scores[level][rank]
    return total


def prefixes_of(nodes: Sequence[tuple[int, int, int]]) -> list[Prefix]:
    """The prefixes that the nodes (depth, parent's row, rank) stand for, in row order, without the root."""
    found: list[Prefix] = [()]
    for depth, parent, rank in nodes:
        assert 0 <= parent < len(found), "a parent stands after its child"
        assert depth == len(found[parent]) + 1
        found.append((*found[parent], rank))
    return found[1:]


def all_prefixes(scores: Scores) -> list[Prefix]:
    """Every prefix that is not impossible."""
    ranks = range(len(scores[0]) if scores else 0)
    every = (prefix for depth in range(1, len(scores) + 1) for prefix in itertools.product(ranks, repeat=depth))
    return [prefix for prefix in every if score_of(scores, prefix) > -math.inf]


def mass(scores: Scores, prefixes: Sequence[Prefix]) -> float:
    """The expected accepted length of a tree under the draft (proposition 1 of the paper)."""
    return math.fsum(math.exp(score_of(scores, prefix)) for prefix in prefixes)


def best_over_all_trees(scores: Scores, budget: int) -> float:
    """The highest mass of any tree of at most `budget` nodes, by trying them all."""
    every = all_prefixes(scores)
    children: dict[Prefix, list[Prefix]] = {}
    for prefix in every:
        children.setdefault(prefix[:-1], []).append(prefix)
    best = 0.0
    seen = {frozenset[Prefix]()}
    grown: list[frozenset[Prefix]] = [frozenset()]
    for _ in range(budget):
        larger = []
        for tree in grown:
            for inner in [(), *tree]:
                for child in children.get(inner, ()):
                    candidate = tree | {child}
                    if child not in tree and candidate not in seen:
                        seen.add(candidate)
                        larger.append(candidate)
                        best = max(best, mass(scores, tuple(candidate)))
        grown = larger
    return best


def prove_best_of_all_trees(utils: Any) -> None:
    """No tree of the same size has a higher expected accepted length."""
    chance = random.Random(11)
    for kind in ("any", "any", "equal", "ties", "certain", "holes"):
        for levels, width, budget in ((1, 3, 2), (2, 2, 4), (2, 3, 4), (3, 2, 5), (3, 3, 4)):
            scores = random_scores(chance, levels, width, kind=kind)
            taken = prefixes_of(utils._best_first(scores, budget, chain_seed=False))
            assert math.isclose(mass(scores, taken), best_over_all_trees(scores, budget), abs_tol=1e-12)


def prove_best_prefixes(utils: Any) -> None:
    """On larger cases: the most probable prefixes, closed, in the promised order, within the bound on ranks."""
    chance = random.Random(12)
    for case in range(240):
        levels, width = chance.randint(1, 4), chance.randint(1, 6)
        budget = chance.randint(0, 25)
        kind = ("any", "equal", "ties", "certain", "holes")[case % 5]
        scores = random_scores(chance, levels, width, kind=kind)
        nodes = utils._best_first(scores, budget, chain_seed=False)
        taken = prefixes_of(nodes)
        every = all_prefixes(scores)
        assert len(taken) == len(set(taken)) == min(budget, len(every))
        best = sorted((score_of(scores, prefix) for prefix in every), reverse=True)[:budget]
        assert sorted((score_of(scores, prefix) for prefix in taken), reverse=True) == best
        # The order: score, depth, place of the parent, rank. It is total, so it says which of equal prefixes are taken.
        place = {prefix: row for row, prefix in enumerate([(), *taken])}
        keys = [(-score_of(scores, p), len(p), place[p[:-1]], p[-1]) for p in taken]
        assert keys == sorted(keys)
        for prefix in taken:
            assert prefix[-1] + 1 <= budget - len(prefix) + 1
            assert prefix[-1] == 0 or (*prefix[:-1], prefix[-1] - 1) in place


def prove_narrow_candidates_suffice(utils: Any) -> None:
    """The top min(B, V) candidates of a level give the tree that the whole vocabulary gives (lemma 1)."""
    chance = random.Random(13)
    for _ in range(60):
        budget = chance.randint(1, 8)
        scores = random_scores(chance, 3, 12, kind=chance.choice(["any", "ties", "equal"]))
        narrow = [row[:budget] for row in scores]
        assert utils._best_first(narrow, budget, chain_seed=False) == utils._best_first(
            scores, budget, chain_seed=False
        )


def prove_chain_seed(utils: Any) -> None:
    """The chain comes first, then the best of the rest; with a budget of L it is the chain and nothing else."""
    chance = random.Random(14)
    for case in range(120):
        levels, width = chance.randint(1, 4), chance.randint(1, 5)
        kind = ("any", "equal", "ties", "certain", "holes")[case % 5]
        scores = random_scores(chance, levels, width, kind=kind)
        chain = [p for p in ((0,) * depth for depth in range(1, levels + 1)) if score_of(scores, p) > -math.inf]
        for budget in (0, 1, levels, levels + 1, 20):
            taken = prefixes_of(utils._best_first(scores, budget, chain_seed=True))
            assert taken[: len(chain)] == chain[:budget]
            rest = [prefix for prefix in all_prefixes(scores) if prefix not in chain]
            best = sorted((score_of(scores, prefix) for prefix in rest), reverse=True)[: max(0, budget - len(chain))]
            assert [score_of(scores, prefix) for prefix in taken[len(chain) :]] == best
    peaked = [[-0.001, -8.0, -9.0]] * 3
    assert (
        utils._best_first(peaked, 3, chain_seed=False)
        == utils._best_first(peaked, 3, chain_seed=True)
        == [(1, 0, 0), (2, 1, 0), (3, 2, 0)]
    )


def prove_expected_length(utils: Any) -> None:
    """Proposition 1: the mean accepted length of draws of the draft is the tree's mass."""
    chance = random.Random(15)
    scores = random_scores(chance, 4, 4)
    taken = set(prefixes_of(utils._best_first(scores, 9, chain_seed=False)))
    draws = 40_000
    total = 0
    for _ in range(draws):
        drawn: Prefix = ()
        for row in scores:
            drawn = (*drawn, chance.choices(range(4), [math.exp(score) for score in row])[0])
        total += max(depth for depth in range(5) if depth == 0 or drawn[:depth] in taken)
    # The accepted length lies between 0 and 4: its mean has a standard error below 2 / sqrt(draws).
    assert abs(total / draws - mass(scores, tuple(taken))) < 4 * 2 / math.sqrt(draws)


def prove_numbers_that_are_none(utils: Any) -> None:
    """Impossible tokens and NaN are never taken; without any candidate there is the root alone."""
    nothing = math.nan
    assert utils._best_first([[nothing, nothing], [0.0, -1.0]], 5, chain_seed=False) == []
    assert utils._best_first([[-math.inf]], 5, chain_seed=True) == []
    assert utils._best_first([], 5, chain_seed=False) == []
    assert utils._best_first([[], []], 5, chain_seed=False) == []
    assert prefixes_of(utils._best_first([[-0.1, nothing], [nothing, nothing]], 5, chain_seed=False)) == [(0,)]


def prove_packing(utils: Any) -> None:
    """Row 0 is the root, rows follow in order, padding has the root's token and no parent."""
    packed = utils._pack_nodes([(1, 0, 1), (2, 1, 0)], [[10, 11], [20, 21]], 7, 4)
    assert packed == [[7, 11, 20, 7, 7], [-1, 0, 1, -1, -1], [0, 1, 2, 1, 1]]


def random_tree(utils: Any, chance: random.Random, *, vocab: int = 4, levels: int = 4) -> list[list[int]]:
    """Tokens, parents and depths of a tree over a small vocabulary, often with padding."""
    scores = random_scores(chance, levels, vocab, kind=chance.choice(["any", "holes"]))
    ids = [chance.sample(range(vocab), vocab) for _ in range(levels)]
    budget = chance.randint(0, 24)
    packed: list[list[int]] = utils._pack_nodes(
        utils._best_first(scores, budget, chain_seed=False), ids, chance.randrange(vocab), budget
    )
    return packed


def prove_walk(utils: Any) -> None:
    """The walk is that of a search over the paths themselves, ends at the first miss, and never meets padding."""
    chance = random.Random(16)
    longest = 0
    for _ in range(400):
        tokens, parents, depths = random_tree(utils, chance)
        decisions = [chance.randrange(4) for _ in tokens]
        path, decided = utils.walk_tree(tokens, parents, decisions)
        at = 0
        expected = [0]
        while True:
            hits = [r for r in range(1, len(tokens)) if parents[r] == at and tokens[r] == decisions[at]]
            if not hits:
                break
            (at,) = hits
            expected.append(at)
        assert path == expected
        assert decided == [decisions[row] for row in path]
        assert [depths[row] for row in path] == list(range(len(path)))
        assert all(parents[row] != utils.NO_PARENT for row in path[1:])
        longest = max(longest, len(path))
    assert longest == 5  # the deepest path possible


def prove_visible_cells(utils: Any) -> None:
    """A row sees its ancestors and itself, padding itself alone."""
    chance = random.Random(18)
    for _ in range(60):
        _, parents, _ = random_tree(utils, chance)
        cells = utils._visible_cells(parents)
        expected = bytearray()
        for row in range(len(parents)):
            seen = {row}
            above = parents[row]
            while above >= 0:
                seen.add(above)
                above = parents[above]
            expected += bytes(column in seen for column in range(len(parents)))
        assert cells == expected


def toy_model(seed: int, vocab: int, *, sharpness: float) -> Callable[[Prefix], list[float]]:
    """A target: the distribution of the next token after any sequence, the same for the same sequence."""

    def probabilities(sequence: Prefix) -> list[float]:
        chance = random.Random(f"{seed} {sequence[-6:]}")
        weights = [math.exp(sharpness * chance.gauss(0, 1)) for _ in range(vocab)]
        return [weight / sum(weights) for weight in weights]

    return probabilities


def decode(
    utils: Any,
    target: Callable[[Prefix], list[float]],
    draft: Callable[[Prefix], list[float]],
    prompt: Prefix,
    count: int,
    *,
    levels: int,
    budget: int,
    chain_seed: bool = False,
    chance: random.Random | None = None,
) -> tuple[Prefix, int]:
    """`count` tokens after the prompt, by draft trees. With `chance` they are drawn, else they are the best ones.

    Returns:
        The tokens, and the number of verifications.
    """
    sequence = prompt
    rounds = 0
    while len(sequence) < len(prompt) + count:
        rounds += 1
        # One distribution per position, none of which knows what the others will be: as a DFlash draft has them.
        levels_ids, scores = [], []
        for level in range(levels):
            probabilities = draft((*sequence[-2:], -1 - level))
            ids = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
            levels_ids.append(ids)
            scores.append([math.log(probabilities[token]) for token in ids])
        tokens, parents, _ = utils._pack_nodes(
            utils._best_first(scores, budget, chain_seed), levels_ids, sequence[-1], budget
        )
        contexts: list[Prefix] = [sequence]
        for row in range(1, len(tokens)):
            contexts.append((*contexts[parents[row]], tokens[row]) if parents[row] >= 0 else sequence)
        decisions = []
        for context in contexts:
            probabilities = target(context)
            if chance is None:
                decisions.append(max(range(len(probabilities)), key=probabilities.__getitem__))
            else:
                decisions.append(chance.choices(range(len(probabilities)), probabilities)[0])
        _, decided = utils.walk_tree(tokens, parents, decisions)
        sequence = (*sequence, *decided)
    return sequence[len(prompt) : len(prompt) + count], rounds


def prove_greedy_decoding_is_lossless(utils: Any) -> None:
    """With trees of every size the output is that of the target alone, in fewer steps."""
    for seed in range(4):
        target = toy_model(seed, 6, sharpness=1.5)
        draft = toy_model(seed + 1000, 6, sharpness=1.0)
        alone: Prefix = (1, 2)
        while len(alone) < 2 + 40:
            probabilities = target(alone)
            alone = (*alone, max(range(6), key=probabilities.__getitem__))
        for budget in (1, 4, 15, 63):
            for chain_seed in (False, True):
                out, rounds = decode(utils, target, draft, (1, 2), 40, levels=4, budget=budget, chain_seed=chain_seed)
                assert out == alone[2:], (seed, budget, chain_seed)
                assert rounds <= 40
                # 63 nodes hold every first token, so each step accepts one at least.
                assert budget < 63 or chain_seed or rounds <= 20


def prove_sampled_decoding_is_lossless(utils: Any) -> None:
    """Drawn tokens have the target's joint distribution, whatever the draft proposes: chi-square over three tokens."""
    vocab, draws = 3, 6000
    target = toy_model(5, vocab, sharpness=1.0)
    draft = toy_model(6, vocab, sharpness=2.0)
    chance = random.Random(17)
    outcomes = list(itertools.product(range(vocab), repeat=3))
    expected = {
        outcome: math.prod(target((1, *outcome[:i]))[outcome[i]] for i in range(3)) * draws for outcome in outcomes
    }
    for budget in (3, 12):
        counts = dict.fromkeys(outcomes, 0)
        for _ in range(draws):
            out, _ = decode(utils, target, draft, (1,), 3, levels=3, budget=budget, chance=chance)
            counts[(out[0], out[1], out[2])] += 1
        statistic = sum((counts[o] - expected[o]) ** 2 / expected[o] for o in outcomes)
        assert statistic < 54.05, statistic  # 26 degrees of freedom: 0.1 % lie above


PROOFS: tuple[Callable[[Any], None], ...] = (
    prove_best_of_all_trees,
    prove_best_prefixes,
    prove_narrow_candidates_suffice,
    prove_chain_seed,
    prove_expected_length,
    prove_numbers_that_are_none,
    prove_packing,
    prove_walk,
    prove_visible_cells,
    prove_greedy_decoding_is_lossless,
    prove_sampled_decoding_is_lossless,
)
