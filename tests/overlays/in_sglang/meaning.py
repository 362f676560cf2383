"""What a tree means to a target: one forward with mask and positions equals one forward per path; and decoding with it changes no output.

The target is a small transformer with rotary positions in float64, on the CPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import ddtree_file
import torch

utils = ddtree_file.load(ddtree_file.source())

VOCAB, HIDDEN, HEADS, LAYERS = 13, 16, 2, 3
LEVELS = 4


class Transformer:
    """Causal by its mask alone: whoever calls it says who sees whom, and where each token stands."""

    def __init__(self, seed, vocab=VOCAB, sharpness=1.0):
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(shape[-1])

        self.embedding = weight(vocab, HIDDEN) * 4
        self.layers = [[weight(HIDDEN, HIDDEN) * 1.5 for _ in range(5)] for _ in range(LAYERS)]
        self.head = weight(vocab, HIDDEN) * 4 * sharpness

    def rotate(self, x, positions):
        half = x.shape[-1] // 2
        speeds = 0.7 ** torch.arange(half, dtype=torch.float64)
        angles = positions.double()[:, None, None] * speeds
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], dim=-1)

    def __call__(self, tokens, positions, mask):
        """Logits [T, vocab] of T tokens; mask[i, j]: token i sees token j."""
        x = self.embedding[tokens]
        for query, key, value, out, inner in self.layers:
            normal = torch.nn.functional.layer_norm(x, (HIDDEN,))
            q, k, v = ((normal @ matrix.T).view(len(tokens), HEADS, HIDDEN // HEADS) for matrix in (query, key, value))
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(HIDDEN // HEADS)
            weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
            x = x + torch.einsum("hij,jhd->ihd", weights, v).reshape(len(tokens), HIDDEN) @ out.T
            x = x + torch.tanh(torch.nn.functional.layer_norm(x, (HIDDEN,)) @ inner.T)
        return torch.nn.functional.layer_norm(x, (HIDDEN,)) @ self.head.T

    def causal(self, tokens):
        count = len(tokens)
        return self(torch.tensor(tokens), torch.arange(count), torch.ones(count, count).tril().bool())


def drafted(seed, count, *, vocab=VOCAB, levels=LEVELS, sharpness=1.5):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, levels, vocab, generator=generator) * sharpness
    return torch.log_softmax(logits, -1).sort(dim=-1, descending=True, stable=True)


def verify(target, prefixes, tree, *, levels=LEVELS):
    """One forward a request over prefix and tree, with positions and mask as the attention backend gets them.

    Returns:
        Logits [bs * N, vocab] of the rows of the trees.
    """
    lens = [len(prefix) for prefix in prefixes]
    count, rows = tree.tokens.shape
    mask = utils.pack_mask(utils.tree_visibility(tree, levels), torch.tensor(lens), sum(lens))
    positions = utils.tree_positions(tree, torch.tensor(lens)).view(count, rows)
    logits, start = [], 0
    for i, prefix in enumerate(prefixes):
        total = lens[i] + rows
        own = mask[start : start + rows * total].view(rows, total)
        start += rows * total
        before = torch.ones(lens[i], lens[i]).tril().bool()
        whole = torch.cat([torch.cat([before, torch.zeros(lens[i], rows, dtype=torch.bool)], 1), own])
        tokens = torch.cat([torch.tensor(prefix, dtype=torch.int64), tree.tokens[i]])
        places = torch.cat([torch.arange(lens[i]), positions[i]])
        logits.append(target(tokens, places, whole)[lens[i] :])
    assert start == mask.numel()
    return torch.cat(logits)


def path_of(tree, i, row):
    tokens = []
    while row >= 0:
        tokens.append(int(tree.tokens[i, row]))
        row = int(tree.parents[i, row])
    return tokens[::-1]


def furthest(target, prefixes, tree, *, judged=None):
    """The greatest difference between a node's logits in the tree's forward and in a forward of its path alone."""
    judged = tree if judged is None else judged
    logits = verify(target, prefixes, tree).view(*tree.tokens.shape, -1)
    worst = 0.0
    for i, prefix in enumerate(prefixes):
        for row in range(tree.num_rows):
            if row == 0 or judged.parents[i, row] >= 0:
                alone = target.causal(prefix + path_of(judged, i, row))[-1]
                worst = max(worst, float((logits[i, row] - alone).abs().max()))
    return worst


def example(budget=20, *, chain_seed=False):
    prefixes = [[1, 5, 2, 8, 3], [7], [4, 4, 9, 0, 6, 2, 11, 3, 12]]
    scores, ids = drafted(31, 3)
    roots = torch.tensor([3, 10, 1])
    return prefixes, utils.build_tree(scores, ids, roots, budget, chain_seed=chain_seed)


def check_tree_forward_equals_one_forward_per_path():
    target = Transformer(32)
    for budget, chain_seed in ((1, False), (4, False), (20, False), (20, True)):
        prefixes, tree = example(budget, chain_seed=chain_seed)
        assert furthest(target, prefixes, tree) < 1e-10
        assert furthest(target, prefixes, dataclasses.replace(tree, visible=None)) < 1e-10
    assert int(tree.depths.max()) == LEVELS


def check_padding_changes_no_node():
    target = Transformer(32)
    prefixes, tree = example(3)
    scores, ids = drafted(31, 3)
    scores[:, 2:] = -math.inf
    padded = utils.build_tree(scores[..., :1], ids[..., :1], tree.tokens[:, 0], 6)
    assert padded.num_nodes.tolist() == [2, 2, 2]
    assert furthest(target, prefixes, padded) < 1e-10
    assert torch.isfinite(verify(target, prefixes, padded)).all()


def check_another_position_mask_or_parent_is_noticed():
    """If these went by unnoticed, the comparison above would prove nothing."""
    target = Transformer(32)
    prefixes, tree = example()
    rows = torch.arange(tree.num_rows).expand_as(tree.tokens)

    by_row = utils.TreeBatch(tokens=tree.tokens, parents=tree.parents, depths=rows.clone())
    assert furthest(target, prefixes, by_row) > 1e-3, "positions by row"

    chain = utils.TreeBatch(tokens=tree.tokens, parents=rows - 1, depths=tree.depths)
    causal = utils.tree_visibility
    try:
        utils.tree_visibility = lambda tree, depth: causal(chain, tree.num_rows)
        assert furthest(target, prefixes, tree) > 1e-3, "a causal mask"
    finally:
        utils.tree_visibility = causal

    noticed = 0
    for row in range(2, tree.num_rows):
        others = [r for r in range(row) if tree.depths[0, r] == tree.depths[0, row] - 1 and r != tree.parents[0, row]]
        if others:
            parents = tree.parents.clone()
            parents[0, row] = others[0]
            swapped = utils.TreeBatch(tokens=tree.tokens, parents=parents, depths=tree.depths)
            assert furthest(target, prefixes, swapped, judged=tree) > 1e-3, "another parent"
            noticed += 1
    assert noticed >= 5


# --- decoding ------------------------------------------------------------------------------------------------------


def greedy(target, prompt, count):
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(target.causal(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def oracle(target, sequence, seed, *, levels=LEVELS):
    """A draft that is right about half of the time: the target's own future, mixed with noise."""
    scores, ids = drafted(seed, 1, levels=levels)
    generator = torch.Generator().manual_seed(seed)
    future = list(sequence)
    for level in range(levels):
        future.append(int(target.causal(future)[-1].argmax()))
        if torch.rand((), generator=generator) < 0.6:
            place = int((ids[0, level] == future[-1]).nonzero())
            order = [place, *[p for p in range(VOCAB) if p != place]]
            ids[0, level] = ids[0, level, order].clone()
    return scores, ids


def check_greedy_decoding_with_trees_is_that_of_the_target_alone():
    target = Transformer(33)
    prompts = [[1, 2, 3], [12], [5, 6, 7, 8, 9, 10]]
    alone = [greedy(target, prompt, 24) for prompt in prompts]
    assert len({tuple(tokens) for tokens in alone}) == 3
    for budget in (1, 4, 15, 63):
        for chain_seed in (False, True):
            sequences = [list(prompt) for prompt in prompts]
            rounds = 0
            while min(len(s) - len(p) for s, p in zip(sequences, prompts, strict=True)) < 24:
                rounds += 1
                drafts = [oracle(target, sequence, 100 * rounds + i) for i, sequence in enumerate(sequences)]
                tree = utils.build_tree(
                    torch.cat([scores for scores, _ in drafts]),
                    torch.cat([ids for _, ids in drafts]),
                    torch.tensor([sequence[-1] for sequence in sequences]),
                    budget,
                    chain_seed=budget >= 15 and chain_seed,
                )
                decided = verify(target, [sequence[:-1] for sequence in sequences], tree).argmax(-1)
                for i, sequence in enumerate(sequences):
                    width = slice(i * tree.num_rows, (i + 1) * tree.num_rows)
                    _, out = utils.walk_tree(tree.tokens[i].tolist(), tree.parents[i].tolist(), decided[width].tolist())
                    sequence.extend(out)
            for sequence, prompt, expected in zip(sequences, prompts, alone, strict=True):
                assert sequence[len(prompt) :][:24] == expected, (budget, chain_seed)
            assert rounds <= 24
            assert budget < 15 or rounds < 14, (budget, rounds)


def check_sampled_decoding_with_trees_has_the_joint_distribution_of_the_target_alone():
    vocab, draws, temperature = 4, 8000, 1.3
    target = Transformer(34, vocab=vocab, sharpness=0.5)
    prompt = [1, 3, 2]

    def distribution(sequence):
        return torch.softmax(target.causal(sequence)[-1] / temperature, -1)

    def tree_after(sequence, budget, seed):
        scores, ids = drafted(seed, 1, vocab=vocab)
        return utils.build_tree(scores, ids, torch.tensor([sequence[-1]]), budget)

    generator = torch.Generator().manual_seed(35)
    options = {
        "temperatures": torch.full((draws, 1), temperature),
        "top_ks": torch.full((draws,), 1 << 30),
        "top_ps": torch.ones(draws),
        "min_ps": torch.zeros(draws),
    }

    def steps(sequence, count, budget, seed):
        """What `count` requests that stand at the same place emit next."""
        tree = tree_after(sequence, budget, seed)
        logits = verify(target, [sequence[:-1]], tree).float()
        taken = {name: value[:count] for name, value in options.items()}
        drawn = utils.sample_rows(logits.repeat(count, 1), tree.num_rows, generator=generator, **taken)
        tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
        return [utils.walk_tree(tokens, parents, row)[1] for row in drawn.view(count, -1).tolist()]

    for budget in (2, 7, 30):
        counts = dict.fromkeys(itertools.product(range(vocab), repeat=3), 0)
        waiting = {(): draws}
        seed = 200 + budget
        while waiting:
            sofar, count = waiting.popitem()
            seed += 1
            for out in steps(prompt + list(sofar), count, budget, seed):
                reached = (*sofar, *out)
                if len(reached) >= 3:
                    counts[reached[:3]] += 1
                else:
                    waiting[reached] = waiting.get(reached, 0) + 1
        assert sum(counts.values()) == draws
        statistic = 0.0
        for outcome, seen in counts.items():
            share = math.prod(float(distribution(prompt + list(outcome[:i]))[outcome[i]]) for i in range(3))
            statistic += (seen - share * draws) ** 2 / (share * draws)
        assert statistic < 103.4, (budget, statistic)  # 63 degrees of freedom: 0.1 % lie above
