"""What `ddtree_utils.py` does with tensors: both builders, mask, positions, candidates over shards, draws. On the CPU."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import ddtree_file
import torch

utils = ddtree_file.load(ddtree_file.source())

METHODS = ["heap"]  # `kernels.py` runs some of these checks with the kernel

KINDS = ("any", "equal", "ties", "certain", "holes", "nothing")


def candidates(generator, count, levels, vocab, width, kind="any"):
    """Log-probabilities and ids [count, levels, width], best first, over a vocabulary."""
    logits = torch.randn(count, levels, vocab, generator=generator) * 2
    if kind == "equal":
        logits = torch.zeros_like(logits)
    elif kind == "ties":
        logits = logits.round()
    elif kind == "certain":
        logits = torch.where(torch.arange(vocab) == 1, 0.0, -math.inf).expand_as(logits)
    elif kind == "holes":
        logits = logits.masked_fill(torch.rand(logits.shape, generator=generator) < 0.4, -math.inf)
    elif kind == "nothing":
        logits = torch.full_like(logits, math.nan)
    scores = torch.log_softmax(logits, -1)
    scores = scores.masked_fill(torch.isnan(scores), -math.inf)
    scores, ids = scores.sort(dim=-1, descending=True, stable=True)
    return scores[..., :width].contiguous(), ids[..., :width].contiguous()


def same(left, right):
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in ("tokens", "parents", "depths"))


def some_trees(*, budgets=(0, 1, 3, 9, 24), method="heap"):
    generator = torch.Generator().manual_seed(21)
    for case in range(60):
        levels, vocab = 1 + case % 4, 1 + case % 6
        budget = budgets[case % len(budgets)]
        scores, ids = candidates(generator, 1 + case % 3, levels, vocab, vocab, KINDS[case % 6])
        roots = torch.randint(vocab, scores.shape[:1], generator=generator)
        yield utils.build_tree(scores, ids, roots, budget, method=method), levels


def ancestors(parents, row):
    """A row, its parent, and so on."""
    found = {row}
    while parents[row] >= 0:
        row = parents[row]
        found.add(row)
    return found


def check_heap_takes_the_scores_as_they_are():
    scores, ids = candidates(torch.Generator().manual_seed(18), 2, 3, 9, 9)
    roots = torch.zeros(2, dtype=torch.int64)
    tree = utils.build_tree(scores, ids, roots, 12, method="heap")
    for i in range(2):
        nodes = utils._best_first(scores[i].tolist(), 12, chain_seed=False)
        assert tree.parents[i, 1:].tolist() == [parent for _, parent, _ in nodes]
        assert tree.depths[i, 1:].tolist() == [depth for depth, _, _ in nodes]


def check_trees_of_a_batch_are_those_of_its_requests():
    generator = torch.Generator().manual_seed(23)
    scores, ids = candidates(generator, 7, 15, 40, 40)
    roots = torch.randint(40, (7,), generator=generator)
    for method in METHODS:
        together = utils.build_tree(scores, ids, roots, 63, method=method)
        for i in range(7):
            one = slice(i, i + 1)
            alone = utils.build_tree(scores[one], ids[one], roots[one], 63, method=method)
            assert torch.equal(together.tokens[one], alone.tokens)
            assert torch.equal(together.parents[one], alone.parents)


def check_every_tree_has_its_invariants():
    for method in METHODS:
        for tree, levels in some_trees(method=method):
            for tokens, parents, depths in zip(
                tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist(), strict=True
            ):
                assert (parents[0], depths[0]) == (-1, 0)
                seen = set()
                for row in range(1, len(tokens)):
                    if parents[row] == -1:
                        assert (tokens[row], depths[row]) == (tokens[0], 1)
                        assert all(parent == -1 for parent in parents[row:]), "padding stands last"
                        break
                    assert 0 <= parents[row] < row
                    assert depths[row] == depths[parents[row]] + 1 <= levels
                    assert (parents[row], tokens[row]) not in seen, "two siblings have one token"
                    seen.add((parents[row], tokens[row]))


def check_every_tree_has_its_invariants_after_rounding():
    """A log-probability just above 0 must not lift a child above its parent."""
    scores = torch.tensor([[[1e-7, -9.0], [1e-7, -9.0], [1e-7, -9.0]]])
    ids = torch.arange(2).expand(1, 3, 2)
    for method in METHODS:
        tree = utils.build_tree(scores, ids, torch.tensor([0]), 5, method=method)
        assert tree.parents[0, :4].tolist() == [-1, 0, 1, 2]
        # Of equals, the younger sibling comes before the child.
        scores_of_equals = torch.tensor([[[0.0, 0.0], [1e-7, -9.0]]])
        tree = utils.build_tree(scores_of_equals, ids[:, :2], torch.tensor([0]), 3, method=method)
        assert tree.parents[0].tolist() == [-1, 0, 0, 1]


def check_a_level_of_nan_ends_the_tree():
    scores, ids = candidates(torch.Generator().manual_seed(20), 2, 3, 4, 4)
    scores[0, 1] = scores[1, 0] = math.nan
    roots = torch.tensor([1, 2])
    for method in METHODS:
        assert utils.build_tree(scores, ids, roots, 9, method=method).num_nodes.tolist() == [4, 0]


def check_an_oracle_may_give_other_types():
    scores, ids = candidates(torch.Generator().manual_seed(19), 2, 3, 4, 4)
    roots = torch.tensor([1, 2])
    plain = utils.build_tree(scores, ids, roots, 9)
    for method in METHODS:
        other = utils.build_tree(scores.double(), ids.to(torch.int32), roots.to(torch.int32), 9, method=method)
        assert same(plain, other)


def check_wrong_candidates_are_refused():
    scores, ids = candidates(torch.Generator().manual_seed(1), 2, 3, 5, 5)
    roots = torch.zeros(2, dtype=torch.int64)
    for arguments in (
        (scores, ids[:, :2], roots, 4),
        (scores[0], ids[0], roots, 4),
        (scores, ids, roots[:1], 4),
        (scores, ids, roots, -1),
    ):
        try:
            utils.build_tree(*arguments)
        except ValueError as error:
            assert "DDTREE" in str(error)
        else:
            raise AssertionError("it was taken")


def check_a_row_sees_its_ancestors_and_itself_only():
    for tree, levels in some_trees():
        assert tree.visible is not None
        for way in (tree, dataclasses.replace(tree, visible=None)):  # the heap's own, and by pointer doubling
            visible = utils.tree_visibility(way, levels)
            assert visible.dtype == torch.bool
            sums = visible.sum(dim=2)
            real = tree.parents >= 0
            assert torch.equal(sums[real], tree.depths[real] + 1)
            for i, parents in enumerate(tree.parents.tolist()):
                for row in range(len(parents)):
                    assert set(visible[i, row].nonzero().view(-1).tolist()) == ancestors(parents, row)


def check_depth_of_fifteen_is_seen_to_the_root():
    rows = torch.arange(16).unsqueeze(0)
    chain = utils.TreeBatch(tokens=rows, parents=rows - 1, depths=rows)
    assert torch.equal(utils.tree_visibility(chain, 15)[0], torch.ones(16, 16).tril().bool())


def naive_mask(visible, prefix_lens):
    cells = []
    for i, prefix in enumerate(prefix_lens):
        for row in range(visible.shape[1]):
            cells += [True] * prefix + visible[i, row].tolist()
    return cells


def check_packed_mask_is_that_of_a_plain_loop():
    generator = torch.Generator().manual_seed(24)
    for prefix_lens in ([0], [5], [0, 7, 3], [4, 0, 0, 9], [1] * 6):
        for rows in (1, 4, 9):
            visible = torch.rand(len(prefix_lens), rows, rows, generator=generator) < 0.5
            for dtype in (torch.int32, torch.int64):
                mask = utils.pack_mask(visible, torch.tensor(prefix_lens, dtype=dtype), sum(prefix_lens))
                assert mask.dtype == torch.bool
                assert mask.tolist() == naive_mask(visible, prefix_lens)


def check_positions_are_prefix_plus_depth():
    for tree, _ in some_trees():
        prefix_lens = torch.arange(3, 3 + len(tree.tokens), dtype=torch.int32)
        expected = [
            prefix + depth
            for prefix, depths in zip(prefix_lens.tolist(), tree.depths.tolist(), strict=True)
            for depth in depths
        ]
        positions = utils.tree_positions(tree, prefix_lens)
        assert (positions.tolist(), positions.dtype) == (expected, torch.int64)


# --- candidates ----------------------------------------------------------------------------------------------------


class Head:
    """One rank's part of a vocabulary-parallel head: base tokens, padding, added tokens, padding."""

    def __init__(self, base, first_base, added=None, first_added=0, padding=3):
        junk = torch.full((padding, base.shape[1]), 50.0)  # would win, if it were looked at
        added = base[:0] if added is None else added
        self.weight = torch.cat([base, junk, added, junk])
        self.shard_indices = SimpleNamespace(
            num_org_elements=len(base),
            num_org_elements_padded=len(base) + padding,
            num_added_elements=len(added),
            org_vocab_start_index=first_base,
            added_vocab_start_index=first_added,
        )


class Group:
    """Ranks one after the other: what each has to gather is taken down first, then handed out."""

    def __init__(self, size):
        self.world_size = size
        self.taken = []
        self.collecting = True

    def all_gather_into_tensor(self, output, mine):
        if self.collecting:
            self.taken.append(mine.clone())
            output.zero_()
        else:
            assert output.is_contiguous()
            output.copy_(torch.cat(self.taken))


def over_ranks(hidden, heads, k, **options):
    group = Group(len(heads))
    for head in heads:
        utils.draft_topk(hidden, head, k, tp_group=group, **options)
    group.collecting = False
    return [utils.draft_topk(hidden, head, k, tp_group=group, **options) for head in heads]


def expected_topk(logits, k):
    """By (-score, id), from the log-softmax of whole rows."""
    scores = torch.log_softmax(logits.float(), -1)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return scores.gather(1, order), order


def check_candidates_are_the_best_of_the_whole_vocabulary_on_one_rank_and_on_many():
    generator = torch.Generator().manual_seed(25)
    weight = torch.randn(23, 8, generator=generator)
    hidden = torch.randn(9, 8, generator=generator)
    scores, ids = expected_topk(hidden @ weight.T, 6)
    for chunk_rows in (1, 4, 256):
        found = utils.draft_topk(hidden, Head(weight, 0), 6, chunk_rows=chunk_rows)
        assert torch.allclose(found[0], scores, atol=1e-6)
        assert torch.equal(found[1], ids)
        assert found[0].dtype == torch.float32
    for cuts in ([0, 10, 23], [0, 2, 4, 23], [0, 0, 23], [0, 23, 23]):  # the last two: a rank without tokens
        heads = [Head(weight[a:b], a) for a, b in itertools.pairwise(cuts)]
        ranks = over_ranks(hidden, heads, 6)
        for found in ranks:
            assert torch.allclose(found[0], scores, atol=1e-6)
            assert torch.equal(found[1], ids)
            # Bit for bit, or ranks would build different trees.
            assert torch.equal(found[0], ranks[0][0])


def check_added_tokens_have_their_ids():
    generator = torch.Generator().manual_seed(26)
    base, added = torch.randn(10, 8, generator=generator), torch.randn(4, 8, generator=generator) * 3
    hidden = torch.randn(5, 8, generator=generator)
    scores, places = expected_topk(hidden @ torch.cat([base, added]).T, 14)
    ids = torch.where(places < 10, places, places - 10 + 100)
    found = utils.draft_topk(hidden, Head(base, 0, added, 100), 14)
    assert torch.allclose(found[0], scores, atol=1e-6)
    assert torch.equal(found[1], ids)
    ranks = over_ranks(hidden, [Head(base[:6], 0, added[:1], 100), Head(base[6:], 6, added[1:], 101)], 14)
    for found in ranks:
        assert torch.equal(found[1], ids)


def check_equal_scores_are_ordered_by_id():
    hidden = torch.ones(2, 4)
    weight = torch.ones(12, 4)
    for found in (
        utils.draft_topk(hidden, Head(weight, 0), 12),
        *over_ranks(hidden, [Head(weight[:5], 0), Head(weight[5:], 5)], 12),
    ):
        assert found[1].tolist() == [list(range(12))] * 2
        assert torch.allclose(found[0], torch.full((2, 12), -math.log(12)))


def check_scale_softcap_and_dtype_are_those_of_the_target():
    generator = torch.Generator().manual_seed(27)
    weight = torch.randn(9, 8, generator=generator).bfloat16()
    hidden = torch.randn(3, 8, generator=generator)
    logits = (hidden.bfloat16() @ weight.T).float()
    scores, ids = expected_topk(3 * torch.tanh(logits * 0.5 / 3), 4)
    found = utils.draft_topk(hidden, Head(weight, 0), 4, logit_scale=0.5, softcap=3.0)
    assert torch.allclose(found[0], scores, atol=2e-2)  # products of 16 bits round as the kernel has it
    assert torch.equal(found[1], ids)


def check_a_draft_of_nan_gives_the_root_alone():
    hidden = torch.randn(4, 8)
    hidden[1] = math.nan
    weight = torch.randn(9, 8)
    scores, ids = utils.draft_topk(hidden, Head(weight, 0), 4)
    assert not torch.isfinite(scores[1]).any()
    assert torch.isfinite(scores[[0, 2, 3]]).all()
    for method in METHODS:
        tree = utils.build_tree(scores[None, 1:], ids[None, 1:], torch.tensor([5]), 6, method=method)
        assert tree.num_nodes.tolist() == [0]
        assert tree.tokens.tolist() == [[5] * 7]


# --- draws ---------------------------------------------------------------------------------------------------------


def reference_probabilities(logits, temperature, top_k, top_p, min_p):
    """Temperature, top-k and top-p of the whole distribution, min-p; written down one token at a time."""
    weights = torch.softmax(logits.double() / temperature, -1)
    order = weights.sort(descending=True, stable=True).indices.tolist()
    kept = order[:top_k]
    chosen, before = [], 0.0
    for token in kept:
        if before > top_p:
            break
        chosen.append(token)
        before += float(weights[token])
    best = max(float(weights[token]) for token in chosen)
    chosen = [token for token in chosen if float(weights[token]) >= min_p * best]
    total = sum(float(weights[token]) for token in chosen)
    return {token: float(weights[token]) / total for token in chosen}


def assert_distributed(tokens, expected, draws):
    counts = torch.bincount(tokens, minlength=1 + max(expected)).tolist()
    assert sum(counts) == draws
    assert all(token in expected for token, count in enumerate(counts) if count), "a token that must not be drawn"
    likely = {token: share * draws for token, share in expected.items() if share * draws >= 5}
    statistic = sum((counts[token] - mean) ** 2 / mean for token, mean in likely.items())
    freedom = max(1, len(likely) - 1)
    # Wilson and Hilferty: the point that 0.01 % lie above.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, (statistic, limit, counts, expected)


def sample(logits, width, settings, **options):
    columns = [torch.tensor(column) for column in zip(*settings, strict=True)]
    return utils.sample_rows(
        logits,
        width,
        temperatures=columns[0].float().view(-1, 1),
        top_ks=columns[1].to(torch.int32),
        top_ps=columns[2].float(),
        min_ps=columns[3].float(),
        generator=torch.Generator().manual_seed(29),
        **options,
    )


ALL = 1 << 30
SETTINGS = (
    (1.0, ALL, 1.0, 0.0),
    (0.6, ALL, 1.0, 0.0),
    (1.7, 5, 1.0, 0.0),
    (1.0, ALL, 0.7, 0.0),
    (1.3, 9, 0.8, 0.0),
    (1.0, ALL, 1.0, 0.2),
    (1.4, 8, 0.9, 0.1),
)


def check_draws_have_the_target_distribution_in_every_mix_of_settings():
    generator = torch.Generator().manual_seed(28)
    width, draws, vocab = 2, 20_000, 12
    logits = torch.randn(width, vocab, generator=generator) * 1.5
    batches = [[setting] for setting in SETTINGS]
    batches += [list(SETTINGS), [SETTINGS[2], SETTINGS[4], SETTINGS[6]], [SETTINGS[0], SETTINGS[3]]]
    for settings in batches:
        rows = logits.repeat(len(settings) * draws, 1)
        repeated = [setting for setting in settings for _ in range(draws)]
        need = {
            "need_top_k": any(s[1] != ALL for s in settings),
            "need_top_p": any(s[2] != 1.0 for s in settings),
            "need_min_p": any(s[3] != 0.0 for s in settings),
        }
        drawn = sample(rows, width, repeated, **need).view(len(settings), draws, width)
        for i, setting in enumerate(settings):
            for row in range(width):
                assert_distributed(drawn[i, :, row], reference_probabilities(logits[row], *setting), draws)


def check_draws_by_parts_are_distributed_alike():
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(30))
    draws = 6000
    drawn = sample(logits.repeat(draws, 1), 3, [(1.0, ALL, 0.8, 0.0)] * draws, max_cells=3 * 6 * 7, need_top_k=False)
    for row in range(3):
        expected = reference_probabilities(logits[row], 1.0, ALL, 0.8, 0.0)
        assert_distributed(drawn.view(draws, 3)[:, row], expected, draws)


def check_greedy_requests_take_the_first_best_token_beside_sampled_ones():
    logits = torch.zeros(40, 8)
    logits[:, 3] = logits[:, 6] = 2.0
    drawn = sample(logits, 4, [(1.0, 1, 1.0, 0.0), (1.0, ALL, 1.0, 0.0)] * 5).view(10, 4)
    assert (drawn[::2] == 3).all()
    assert set(drawn[1::2].reshape(-1).tolist()) != {3}
    assert (sample(logits, 4, [(1.0, 1, 1.0, 0.0)] * 10) == 3).all()


def check_given_kernels_are_used_for_whole_distributions():
    used = []

    def kernel(name, own):
        def renorm(probabilities, limits):
            used.append((name, tuple(limits.shape), probabilities.dtype))
            return own(probabilities, limits)

        return renorm

    logits = torch.randn(6, 10)
    options = {
        "top_k_renorm": kernel("k", utils._top_k_renorm),
        "top_p_renorm": kernel("p", utils._top_p_renorm),
    }
    sample(logits, 3, [(1.0, 4, 0.5, 0.0), (1.0, ALL, 0.9, 0.0)], **options)
    assert used == [("k", (6,), torch.float32), ("p", (6,), torch.float32)]
    used.clear()
    sample(logits, 3, [(1.0, 4, 0.5, 0.0), (1.0, 3, 0.9, 0.0)], **options)
    assert used == []  # a few tokens that are sorted already need no kernel


def check_logits_are_left_as_they_are():
    logits = torch.randn(4, 10)
    before = logits.clone()
    sample(logits, 2, [(0.5, 4, 0.5, 0.1), (2.0, ALL, 0.9, 0.0)])
    assert torch.equal(logits, before)
