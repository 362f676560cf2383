"""Spoilt copies of `ddtree_utils.py`, each of which a check of `tensors.py` or `meaning.py` must find."""

from __future__ import annotations

import ddtree_file
import meaning
import tensors

SOURCE = ddtree_file.source()

# What is wrong -> (text, text that takes its place, a check that has to fail).
MUTANTS = {
    "heap: a rounding error lifts a child above its parent": (
        "(0.0 if own > 0.0 else own)",
        "own",
        tensors.check_every_tree_has_its_invariants_after_rounding,
    ),
    "heap: the scores of the first request": (
        "nodes = _best_first(scores[i],",
        "nodes = _best_first(scores[0],",
        tensors.check_trees_of_a_batch_are_those_of_its_requests,
    ),
    "heap: scores read as they are not": (
        "bits[:, :size].contiguous().view(torch.float32)",
        "bits[:, :size].contiguous().to(torch.float32)",
        tensors.check_heap_takes_the_scores_as_they_are,
    ),
    "heap: a row does not see its parent's ancestors": (
        "bytearray(rows[parent])",
        "bytearray(num_rows)",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    "heap: a row does not see itself": (
        "        cells[row] = 1\n",
        "",
        tensors.check_a_row_sees_its_ancestors_and_itself_only,
    ),
    "heap: the mask of the first request": (
        "_visible_cells(rows[i][1])",
        "_visible_cells(rows[0][1])",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    # mask
    "mask: a row does not see itself": (
        "visible = torch.eye(num_rows, dtype=torch.bool, device=tree.parents.device)",
        "visible = torch.zeros(num_rows, num_rows, dtype=torch.bool)",
        tensors.check_a_row_sees_its_ancestors_and_itself_only,
    ),
    "mask: ancestors beyond the half are lost": (
        "while reach <= max_depth:",
        "while 2 * reach <= max_depth:",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    "mask: steps do not double": (
        "        above = above.gather(1, above)\n",
        "",
        tensors.check_depth_of_fifteen_is_seen_to_the_root,
    ),
    "mask: padding sees the root": (
        "torch.where(tree.parents == NO_PARENT, own, tree.parents)",
        "tree.parents.clamp(min=0)",
        tensors.check_a_row_sees_its_ancestors_and_itself_only,
    ),
    "mask: rows and columns changed over": (
        "    return visible\n",
        "    return visible.transpose(1, 2)\n",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    "mask: everything before a row is visible": (
        "    return visible\n",
        "    return torch.ones_like(visible).tril()\n",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    "packing: the tree stands before the prefix": (
        "mask.view(num_rows, -1)[:, prefix_lens_sum:] = visible[0]",
        "mask.view(num_rows, -1)[:, :num_rows] = visible[0]",
        tensors.check_packed_mask_is_that_of_a_plain_loop,
    ),
    "packing: rows of one width": (
        "own[None, :] * widths[:, None]",
        "own[None, :] * widths[:1, None]",
        tensors.check_packed_mask_is_that_of_a_plain_loop,
    ),
    "packing: requests one row too early": (
        "(widths.cumsum(0) - widths) * num_rows + prefix",
        "(widths.cumsum(0) - widths) * (num_rows - 1) + prefix",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    # positions
    "positions by row": (
        "prefix_lens.unsqueeze(1) + tree.depths",
        "prefix_lens.unsqueeze(1) + torch.arange(tree.num_rows)",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    "positions one too high": (
        "prefix_lens.unsqueeze(1) + tree.depths",
        "prefix_lens.unsqueeze(1) + 1 + tree.depths",
        tensors.check_positions_are_prefix_plus_depth,
    ),
    "positions of the first request": (
        "prefix_lens.unsqueeze(1) + tree.depths",
        "prefix_lens[:1].unsqueeze(1) + tree.depths",
        meaning.check_tree_forward_equals_one_forward_per_path,
    ),
    # candidates
    "candidates: normalised over the top k": (
        "parts.append((top, ids, torch.logsumexp(logits,",
        "parts.append((top, ids, torch.logsumexp(top,",
        tensors.check_candidates_are_the_best_of_the_whole_vocabulary_on_one_rank_and_on_many,
    ),
    "candidates: places within the shard as ids": (
        "places + int(shard.org_vocab_start_index)",
        "places",
        tensors.check_candidates_are_the_best_of_the_whole_vocabulary_on_one_rank_and_on_many,
    ),
    "candidates: normaliser of one rank": (
        "        normaliser = torch.logsumexp(\n            all_ranks[..., 2 * k]",
        "        torch.logsumexp(\n            all_ranks[..., 2 * k]",
        tensors.check_candidates_are_the_best_of_the_whole_vocabulary_on_one_rank_and_on_many,
    ),
    "candidates: padding of the shard": (
        "torch.matmul(states, weight[:num_org].T)",
        "torch.matmul(states, weight[: num_org + 1].T)",
        tensors.check_candidates_are_the_best_of_the_whole_vocabulary_on_one_rank_and_on_many,
    ),
    "candidates: added tokens read from the padding": (
        "weight[added_at : added_at + num_added]",
        "weight[num_org : num_org + num_added]",
        tensors.check_added_tokens_have_their_ids,
    ),
    "candidates: equal scores as topk has them": (
        "    ids, order = ids.sort(dim=1)\n",
        "    ids, order = ids.sort(dim=1, descending=True)\n",
        tensors.check_equal_scores_are_ordered_by_id,
    ),
    "candidates: no softcap": (
        "        if softcap:\n",
        "        if False:\n",
        tensors.check_scale_softcap_and_dtype_are_those_of_the_target,
    ),
    "candidates: what a small shard lacks is offered": (
        'value=float("-inf"))\n        ids',
        "value=9.0)\n        ids",
        tensors.check_candidates_are_the_best_of_the_whole_vocabulary_on_one_rank_and_on_many,
    ),
    "candidates: only the first chunk": (
        "    if len(parts) == 1:\n",
        "    if parts:\n",
        tensors.check_candidates_are_the_best_of_the_whole_vocabulary_on_one_rank_and_on_many,
    ),
    # draws
    "draws: no temperature": (
        "logits[rows].float() / per_row(temperatures).unsqueeze(1)",
        "logits[rows].float()",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: settings by row": (
        "values.view(-1)[requests].repeat_interleave(rows_per_request)",
        "values.view(-1)[requests].repeat(rows_per_request)",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: the greatest top-k for all": (
        "passes = ranks < row_top_ks.unsqueeze(1)",
        "passes = ranks < max_top_k",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: the token over p is left out": (
        "passes &= before <= per_row(top_ps).unsqueeze(1)",
        "passes &= before + probs <= per_row(top_ps).unsqueeze(1)",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: top-p of what top-k has left": (
        "probs = torch.exp(best - normaliser)",
        "probs = torch.softmax(best, dim=-1)",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: top-p of what top-k has left, whole distributions": (
        "(top_p_renorm or _top_p_renorm)(whole,",
        "(top_p_renorm or _top_p_renorm)(_normalised(probs),",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: min-p against 1": (
        "probs.amax(dim=-1, keepdim=True) * per_row(min_ps)",
        "per_row(min_ps)",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: the best token always": (
        "(probs / clocks).argmax(dim=-1)",
        "probs.argmax(dim=-1)",
        meaning.check_sampled_decoding_with_trees_has_the_joint_distribution_of_the_target_alone,
    ),
    "draws: one draw for all rows": (
        "torch.empty_like(probs).exponential_",
        "torch.empty_like(probs[:1]).exponential_",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: places in the top k as ids": (
        "            choice = ids.gather(1, choice.unsqueeze(1)).squeeze(1)\n",
        "            pass\n",
        tensors.check_draws_have_the_target_distribution_in_every_mix_of_settings,
    ),
    "draws: greedy requests draw": (
        "torch.where(row_top_ks == 1,",
        "torch.where(row_top_ks == 0,",
        tensors.check_greedy_requests_take_the_first_best_token_beside_sampled_ones,
    ),
    # the whole
    "the walk takes a sibling of the accepted node": (
        "row for row, (parent, token) in enumerate",
        "min(row + 1, len(tokens) - 1) for row, (parent, token) in enumerate",
        meaning.check_greedy_decoding_with_trees_is_that_of_the_target_alone,
    ),
}


def check_every_spoilt_copy_is_found():
    wrong = []
    for name, (old, new, check) in MUTANTS.items():
        if SOURCE.count(old) != 1:
            wrong.append(f"{name}: the file has {SOURCE.count(old)} places for this change")
            continue
        spoilt = ddtree_file.load(SOURCE.replace(old, new))
        # The check's own module, under whatever name it was loaded.
        names = check.__globals__
        whole = names["utils"]
        names["utils"] = spoilt
        try:
            check()
        except (AssertionError, IndexError, RuntimeError, ValueError):
            pass
        else:
            wrong.append(f"{name}: {check.__name__} passed")
        finally:
            names["utils"] = whole
    assert not wrong, "\n".join(wrong)
