"""The kernels of `ddtree_utils.py`, interpreted on the CPU: each against the functions that it stands for, and in whole rounds of the worker.

Rounds also run as the worker captures them for CUDA graphs: what is captured here is a function, and a replay runs it again, into the same
tensors.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

import contextlib
import inspect
import math
import random
from types import SimpleNamespace

import ddtree_file
import sglang.srt.model_executor.cuda_graph_runner as graphs
import sglang.srt.speculative.ddtree_utils as installed
import tensors
import torch
import worker

SOURCE = ddtree_file.source()


def load(text):
    """A module whose kernels work on what is here."""
    module = ddtree_file.load(text)
    module.has_kernels = anywhere
    return module


def anywhere(tensor):
    """In the place of `has_kernels`, which asks for a GPU."""
    return True


utils = load(SOURCE)


def check_kernel_and_heap_build_the_same_trees():
    chance = random.Random(22)
    generator = torch.Generator().manual_seed(22)
    for case in range(60):
        count, levels, vocab = chance.randint(1, 3), chance.randint(1, 5), chance.randint(1, 9)
        budget = chance.randint(0, 16)
        width = chance.randint(min(vocab, max(1, budget)), vocab)
        scores, ids = tensors.candidates(generator, count, levels, vocab, width, tensors.KINDS[case % 6])
        roots = torch.randint(vocab, (count,), generator=generator)
        for chain_seed in (False, True):
            heap, kernel = (
                utils.build_tree(scores, ids, roots, budget, chain_seed=chain_seed, method=method)
                for method in ("heap", "kernel")
            )
            assert tensors.same(heap, kernel), (case, chain_seed)


def with_kernel(check):
    """A check of `tensors.py`, with the kernel in the place of the heap."""
    names = check.__globals__
    before = names["utils"], names["METHODS"]
    names["utils"], names["METHODS"] = utils, ["kernel"]
    try:
        check()
    finally:
        names["utils"], names["METHODS"] = before


def check_rounding_lifts_no_child_above_its_parent():
    with_kernel(tensors.check_every_tree_has_its_invariants_after_rounding)


def check_a_level_of_nan_ends_the_tree():
    with_kernel(tensors.check_a_level_of_nan_ends_the_tree)


def check_candidates_of_other_types_are_taken():
    with_kernel(tensors.check_an_oracle_may_give_other_types)


def check_a_tree_goes_where_it_is_asked_to():
    scores, ids = tensors.candidates(torch.Generator().manual_seed(5), 2, 3, 6, 6)
    out = torch.zeros((3, 2, 8), dtype=torch.int64)
    tree = utils.build_tree(scores, ids, torch.tensor([4, 5]), 7, method="kernel", out=out)
    plain = utils.build_tree(scores, ids, torch.tensor([4, 5]), 7, method="heap")
    assert tensors.same(plain, tree)
    assert tensors.same(plain, utils.TreeBatch(*out))


def check_mask_is_that_of_the_plain_functions():
    generator = torch.Generator().manual_seed(24)
    for prefix_lens in ([0], [5], [0, 7, 3], [4, 0, 0, 9, 2]):
        scores, ids = tensors.candidates(generator, len(prefix_lens), 3, 5, 5, "holes")
        tree = utils.build_tree(scores, ids, torch.zeros(len(prefix_lens), dtype=torch.int64), 8, method="heap")
        for dtype in (torch.int32, torch.int64):
            lens = torch.tensor(prefix_lens, dtype=dtype)
            plain = utils.pack_mask(utils.tree_visibility(tree, 3), lens, sum(prefix_lens))
            assert torch.equal(utils.tree_mask(tree, 3, lens, sum(prefix_lens)), plain)
            buffer = torch.full((len(plain) + 9,), 7, dtype=torch.uint8)
            utils.pack_mask_into(buffer, tree.parents, lens)
            assert torch.equal(buffer[: len(plain)].bool(), plain)
            assert (buffer[len(plain) :] == 7).all()


def check_candidates_are_the_best_of_the_whole_vocabulary_in_order():
    generator = torch.Generator().manual_seed(25)
    for vocab, k in ((23, 6), (40, 40), (300, 33), (5, 1)):
        weight = torch.randn(vocab, 8, generator=generator)
        hidden = torch.randn(4, 8, generator=generator)
        scores, ids = tensors.expected_topk(hidden @ weight.T, k)
        found = utils.draft_topk(hidden, tensors.Head(weight, 100), k)
        assert torch.allclose(found[0], scores, atol=1e-6)
        assert torch.equal(found[1], ids + 100)
        assert (found[0].dtype, found[1].dtype) == (torch.float32, torch.int64)


def check_equal_scores_are_ordered_by_id_and_nan_is_never_taken():
    found = utils.draft_topk(torch.ones(2, 4), tensors.Head(torch.ones(12, 4), 0), 12)
    assert found[1].tolist() == [list(range(12))] * 2
    assert torch.allclose(found[0], torch.full((2, 12), -math.log(12)))
    hidden = torch.ones(2, 4)
    hidden[1] = math.nan
    scores, _ = utils.draft_topk(hidden, tensors.Head(torch.randn(12, 4), 0), 5)
    assert torch.isfinite(scores[0]).all()
    assert (scores[1] == -math.inf).all()


def check_a_commit_keeps_the_path_and_gives_back_the_rest():
    chance = random.Random(3)
    for _ in range(40):
        count, rows = chance.randint(1, 5), chance.choice((3, 9, 16))
        most = min(rows, chance.randint(1, 6))
        paths = [[0, *sorted(chance.sample(range(1, rows), chance.randint(0, most - 1)))] for _ in range(count)]
        counts = [chance.randint(1, len(path)) for path in paths]
        tokens = [chance.randrange(1000) for _ in paths]
        slots = torch.randperm(1000)[: count * rows]
        table, before = torch.zeros(count + 3, 64, dtype=torch.int32), torch.zeros(count + 3, 64, dtype=torch.int32)
        indices = torch.randperm(count + 3)[:count]
        dtype = chance.choice((torch.int32, torch.int64))
        lengths = torch.tensor([chance.randint(0, 20) for _ in paths], dtype=dtype)
        old = lengths.tolist()
        found = utils.commit_paths(
            paths, counts, tokens, slots=slots, table=table, indices=indices, lengths=lengths, max_path=most
        )
        kept = [i * rows + row for i in range(count) for row in paths[i][: counts[i]]]
        freed = [i * rows + row for i in range(count) for row in range(rows) if row not in paths[i][: counts[i]]]
        assert found.rows.tolist() == kept
        assert found.slots.tolist() == slots[kept].tolist()
        assert found.freed.tolist() == slots[freed].tolist()
        assert found.positions.tolist() == [old[i] + depth for i in range(count) for depth in range(counts[i])]
        assert (found.tokens.tolist(), found.counts.tolist()) == (tokens, counts)
        assert (found.tokens.dtype, found.counts.dtype, found.lengths.dtype) == (torch.int64, torch.int32, torch.int32)
        after = [length + more for length, more in zip(old, counts, strict=True)]
        assert lengths.tolist() == after == found.lengths.tolist()
        for i, path in enumerate(paths):
            for depth, row in enumerate(path[: counts[i]]):
                before[indices[i], old[i] + depth] = slots[i * rows + row]
        assert torch.equal(table, before)


def check_keys_and_values_of_the_draft_are_normed_rotated_and_written_for_all_layers():
    generator = torch.Generator().manual_seed(1)
    layers, heads, size, hidden_size, tokens = 3, 2, 8, 16, 5
    half = size // 2
    weight = torch.randn(layers, 2 * heads * size, hidden_size, generator=generator) * 0.3
    norms = [torch.rand(size, generator=generator) + 0.5 for _ in range(layers)]
    angles = torch.arange(16)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    rotation = torch.cat([angles.cos(), angles.sin()], -1)
    keys, values = ([torch.full((20, heads, size), 9.0) for _ in range(layers)] for _ in range(2))
    hidden = torch.randn(tokens, hidden_size, generator=generator)
    positions, slots = torch.tensor([3, 4, 5, 0, 9]), torch.tensor([7, 2, 19, 1, 11])
    utils.DraftKvWriter(weight, norms, 1e-6, rotation, keys, values).write(hidden, positions, slots)
    for layer in range(layers):
        k, v = (hidden @ weight[layer].T).view(tokens, 2, heads, size).unbind(1)
        k = k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + 1e-6) * norms[layer]
        cos, sin = rotation[positions][:, None, :half], rotation[positions][:, None, half:]
        k = torch.cat([k[..., :half] * cos - k[..., half:] * sin, k[..., half:] * cos + k[..., :half] * sin], -1)
        assert torch.allclose(keys[layer][slots], k, atol=1e-5)
        assert torch.allclose(values[layer][slots], v, atol=1e-5)
        assert int((keys[layer] == 9).all(-1).all(-1).sum()) == 20 - tokens, "another slot was written to"


# --- rounds of the worker ------------------------------------------------------------------------------------------


class Graphs:
    """In the place of SGLang's graph runner: what it captures runs at once, and again at each replay."""

    def __init__(self, world, width, backend):
        self.world, self.width, self.backend = world, width, backend
        self.capture_bs = [1, 2, 4]

    def capture_one_batch_size(self, bs, forward):
        rows = bs * self.width
        whole = forward.__self__
        batch = SimpleNamespace(
            seq_lens=torch.ones(bs, dtype=torch.int64),
            req_pool_indices=torch.zeros(bs, dtype=torch.int64),
            out_cache_loc=torch.zeros(rows, dtype=torch.int64),
            seq_lens_cpu=None,
            attn_backend=self.backend,
            forward_mode=worker.ForwardMode.TARGET_VERIFY,
            whole=whole,
        )
        inputs = [torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64), batch]
        if "input_embeds" in inspect.signature(forward).parameters:
            inputs.append(torch.zeros(rows, 2))
        self.world.capturing = True
        output = forward(*inputs)
        self.world.capturing = False

        def replay():
            again = forward(*inputs)
            for name, tensor in vars(output).items():
                tensor.copy_(getattr(again, name))

        return SimpleNamespace(replay=replay), output


class GraphWorld(worker.World):
    """A world whose target and draft can be captured."""

    capturing = False

    def __init__(self, **options):
        world, made = self, worker.module.DFlashWorker
        module = worker.module
        self.replays = 0

        class TritonAttnBackend:
            cuda_graph_custom_mask = torch.zeros(1 << 16, dtype=torch.uint8)

            def init_forward_metadata_replay_cuda_graph(self, bs, rows, lengths, *_, seq_lens_cpu):
                assert (len(rows), len(lengths)) == (bs, bs)

        def make(arguments, *others):
            width = arguments.speculative_num_draft_tokens
            backend = TritonAttnBackend()
            for runner, rows in ((world.target_runner, width), (world.draft_runner, worker.BLOCK)):
                runner.attn_backend = backend
                runner.graph_runner = Graphs(world, rows, backend)
            world.target_runner.model.forward = world.target_in_graph
            world.draft_runner.model.forward = world.draft_in_graph
            return made(arguments, *others)

        @contextlib.contextmanager
        def capturing():
            yield SimpleNamespace(stream="a stream")

        module.DFlashWorker, module.graph_capture, graphs.model_capture_mode = make, capturing, contextlib.nullcontext
        try:
            super().__init__(**options)
        finally:
            module.DFlashWorker = made
        assert sorted(self.worker._tree_rounds) == [1, 2, 4]

    def real(self, batch, width):
        """The requests that are there; those that are not must have nothing."""
        count, size = len(self.requests), len(batch.seq_lens)
        assert count <= size
        assert not batch.seq_lens[count:].any()
        assert not batch.req_pool_indices[count:].any()
        assert not batch.out_cache_loc[count * width :].any()
        return count

    def draft_in_graph(self, input_ids, positions, batch, input_embeds):
        if self.capturing:
            return SimpleNamespace(hidden_states=torch.zeros(len(positions), worker.VOCAB))
        count = self.real(batch, worker.BLOCK)
        table = self.table[batch.req_pool_indices[:count]]
        for i, length in enumerate(batch.seq_lens[:count].tolist()):
            slots = batch.out_cache_loc.view(-1, worker.BLOCK)[i]
            assert torch.equal(table[i, length : length + worker.BLOCK].long(), slots)
        seen = SimpleNamespace(
            input_ids=batch.whole.block[:count].reshape(-1),
            positions=positions[: count * worker.BLOCK],
            seq_lens=batch.seq_lens,
        )
        hidden = self.draft_forward(seen).logits_output.hidden_states
        whole = torch.zeros(len(positions), worker.VOCAB)
        whole[: len(hidden)] = hidden
        return SimpleNamespace(hidden_states=whole)

    def target_in_graph(self, input_ids, positions, batch):
        rows = len(positions)
        logits, hidden = torch.zeros(rows, worker.VOCAB), torch.zeros(rows, 2)
        if not self.capturing:
            self.replays += 1
            width = batch.whole.width
            count = self.real(batch, width)
            kept = count * width
            cells = width * (int(batch.seq_lens[:count].sum()) + kept)
            spec = SimpleNamespace(
                draft_token_num=width,
                positions=positions[:kept],
                custom_mask=batch.attn_backend.cuda_graph_custom_mask[:cells].bool(),
                tree=SimpleNamespace(parents=batch.whole.packed[1]),
            )
            seen = SimpleNamespace(
                forward_mode=worker.ForwardMode.TARGET_VERIFY,
                spec_info=spec,
                input_ids=input_ids[:kept],
                out_cache_loc=batch.out_cache_loc[:kept],
                reqs=self.requests,
                seq_lens=batch.seq_lens[:count],
            )
            output = self.target_forward(seen, is_verify=True).logits_output
            logits[:kept], hidden[:kept] = output.next_token_logits, output.hidden_states
        return SimpleNamespace(next_token_logits=logits, hidden_states=hidden)


def with_kernels():
    """Let the worker use them."""
    worker.stand_in()
    installed.has_kernels = worker.info.has_kernels = worker.module.has_kernels = anywhere


with_kernels()


def served(world, *, seed=1, count=5, disturb=False):
    """Requests run to their end, and whether each is what the target says alone."""
    requests = [
        worker.Request(prompt, most=14, seed=70 + at) for at, prompt in enumerate(worker.prompts(count, seed=seed))
    ]
    aborted = worker.serve(world, requests, disturb=disturb)
    for request in requests:
        expected = worker.alone(request.origin_input_ids, 14, seed=request.seed if world.seeds else None)
        assert request.output_ids == expected[: len(request.output_ids)]
        assert request in aborted or len(request.output_ids) >= len(expected[:14])


def check_rounds_with_kernels_give_what_the_target_says_alone():
    served(worker.World(budget=6))
    served(worker.World(budget=9, chain_seed=True), seed=2, disturb=True)


def check_rounds_in_graphs_give_what_the_target_says_alone():
    for options in ({"budget": 6}, {"budget": 9, "chain_seed": True}, {"budget": 6, "seeds": True}):
        world = GraphWorld(**options)
        served(world, seed=3, disturb=options["budget"] == 9)
        assert world.replays > 5


def check_a_mask_beyond_the_buffer_runs_without_these_graphs():
    world = GraphWorld(budget=6)
    world.target_runner.attn_backend.cuda_graph_custom_mask = torch.zeros(7 * (7 + 8), dtype=torch.uint8)
    world.admit(worker.Request([1, 2, 3], most=12))
    while not world.requests[0].finished():
        world.round()
    assert 0 < world.replays < world.requests[0].spec_verify_ct
    assert world.requests[0].output_ids[:12] == worker.alone([1, 2, 3], 12)


def check_larger_batches_run_without_these_graphs():
    world = GraphWorld(budget=6)
    for prompt in worker.prompts(5, seed=6):
        world.admit(worker.Request(prompt, most=20))
    world.round()
    assert world.replays == 0


# What is wrong -> (text of ddtree_utils.py, text that takes its place, a check that has to fail).
MUTANTS = {
    "build: the last among equals": (
        "tl.min(tl.where(score == best, order, far), 0)",
        "tl.max(tl.where(score == best, order, zero), 0)",
        check_kernel_and_heap_build_the_same_trees,
    ),
    "build: a sibling by its own score": (
        "younger > nothing, parent_score + tl.minimum(younger, 0.0), nothing\n            )\n            child",
        "younger > nothing, best + tl.minimum(younger, 0.0), nothing\n            )\n            child",
        check_kernel_and_heap_build_the_same_trees,
    ),
    "build: children of the wrong level": (
        "                scores_ptr + level + k,\n                mask=alive & (depth < levels),",
        "                scores_ptr + level,\n                mask=alive & (depth < levels),",
        check_kernel_and_heap_build_the_same_trees,
    ),
    "build: one level too few": (
        "mask=alive & (depth < levels)",
        "mask=alive & (depth < levels - 1)",
        check_kernel_and_heap_build_the_same_trees,
    ),
    "build: the chain's siblings by the root's score": (
        "                parent_score = tl.where(alive, best, parent_score)\n",
        "",
        check_kernel_and_heap_build_the_same_trees,
    ),
    "build: rounding lifts a child": (
        "child = tl.where(child > nothing, best + tl.minimum(child, 0.0), nothing)",
        "child = tl.where(child > nothing, best + child, nothing)",
        check_rounding_lifts_no_child_above_its_parent,
    ),
    "build: padding has a parent": (
        "tl.where(alive, parent, zero - 1)",
        "tl.where(alive, parent, zero)",
        check_kernel_and_heap_build_the_same_trees,
    ),
    "mask: everything before a row": (
        "seen = columns == row",
        "seen = columns <= row",
        check_mask_is_that_of_the_plain_functions,
    ),
    "mask: parents only": (
        "            parent = tl.load(parents_ptr + request.to(tl.int64) * rows + parent)\n",
        "            parent = parent * 0 - 1\n",
        check_mask_is_that_of_the_plain_functions,
    ),
    "mask: rows of the first request": (
        "mask=before < request, other=0)\n        start",
        "mask=before < 0, other=0)\n        start",
        check_mask_is_that_of_the_plain_functions,
    ),
    "candidates: normalised over the top k": (
        "mask=at < num_tokens,",
        "mask=at < k,",
        check_candidates_are_the_best_of_the_whole_vocabulary_in_order,
    ),
    "candidates: equal scores by falling id": (
        "other_token[None, :] < token[:, None]",
        "other_token[None, :] > token[:, None]",
        check_equal_scores_are_ordered_by_id_and_nan_is_never_taken,
    ),
    "candidates: places as ids": (
        "token + first_id",
        "token",
        check_candidates_are_the_best_of_the_whole_vocabulary_in_order,
    ),
    "commit: rows in place of the path": (
        "tl.load(slots_ptr + request * rows + row, mask=kept, other=0)",
        "tl.load(slots_ptr + request * rows + depth, mask=kept, other=0)",
        check_a_commit_keeps_the_path_and_gives_back_the_rest,
    ),
    "commit: lengths stay": (
        "        tl.store(lengths_ptr + request, prefix + count)\n",
        "",
        check_a_commit_keeps_the_path_and_gives_back_the_rest,
    ),
    "commit: the table of the first row": (
        "cells = table_ptr + index * table_stride",
        "cells = table_ptr + request * table_stride",
        check_a_commit_keeps_the_path_and_gives_back_the_rest,
    ),
    "draft: no norm": (
        "k1 = k1 * scale * tl.load(",
        "k1 = k1 * tl.load(",
        check_keys_and_values_of_the_draft_are_normed_rotated_and_written_for_all_layers,
    ),
    "draft: rotated the other way": (
        "(k2 * cos + k1 * sin)",
        "(k2 * cos - k1 * sin)",
        check_keys_and_values_of_the_draft_are_normed_rotated_and_written_for_all_layers,
    ),
    "draft: keys as values": (
        "        row += heads * 2 * HALF\n",
        "",
        check_keys_and_values_of_the_draft_are_normed_rotated_and_written_for_all_layers,
    ),
}

# The same for dflash_worker.py; a round in graphs has to find it.
WORKER_MUTANTS = {
    "stale requests stay": ("            self.inputs.zero_()\n", "            pass\n"),
    "the draft's slots are the last ones": ("[:, :block_size]\n", "[:, -block_size:]\n"),
    "positions of the chain": (
        "torch.add(starts, tree.depths, out=self.positions)",
        "torch.add(starts, torch.arange(self.width), out=self.positions)",
    ),
    "the tokens of the last round": ("        input_ids.copy_(self.packed[0].view(-1))\n", ""),
    "no mask": ("        pack_mask_into(\n", "        (lambda *_: None)(\n"),
    "slots of the draft for the target": (
        "self._set_inputs(forward_batch, self.slots)",
        "self._set_inputs(forward_batch, self.slots.flip(0))",
    ),
    "the best token before the target has run": (
        "        self.packed[3].copy_(best.view(self.bs, self.width))\n",
        "",
    ),
    "the table is not told": (
        "            self.slots,\n            bs,\n        )\n",
        "            self.slots * 0,\n            bs,\n        )\n",
    ),
}


def check_every_spoilt_copy_is_found():
    global utils  # noqa: PLW0603
    wrong = []
    for name, (old, new, check) in MUTANTS.items():
        if SOURCE.count(old) != 1:
            wrong.append(f"{name}: the file has {SOURCE.count(old)} places for this change")
            continue
        whole, utils = utils, load(SOURCE.replace(old, new))
        try:
            check()
        except Exception:  # noqa: BLE001, S110 - however it shows
            pass
        else:
            wrong.append(f"{name}: {check.__name__} passed")
        finally:
            utils = whole
    assert not wrong, "\n".join(wrong)


def check_every_spoilt_worker_is_found():
    module = worker.module
    with open(module.__file__, encoding="utf-8") as file:  # noqa: PTH123
        source = file.read()
    wrong = []
    for name, (old, new) in WORKER_MUTANTS.items():
        if source.count(old) != 1:
            wrong.append(f"{name}: the file has {source.count(old)} places for this change")
            continue
        exec(compile(source.replace(old, new), module.__file__, "exec"), module.__dict__)
        with_kernels()
        try:
            check_rounds_in_graphs_give_what_the_target_says_alone()
        except Exception:  # noqa: BLE001, S110 - however it shows
            pass
        else:
            wrong.append(name)
        finally:
            exec(compile(source, module.__file__, "exec"), module.__dict__)
            with_kernels()
    assert not wrong, "\n".join(wrong)
