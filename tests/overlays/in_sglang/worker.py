"""The DFLASH worker with trees, whole rounds of it, between a target and a draft that are made up and strict about what they are given.

Both keep, for each KV slot, the token and position that were written to it. The target works out what each row sees from slots and mask,
demands that these are the tokens of one sequence at positions 0, 1, 2, ..., and answers with a distribution that depends on all of them. The
draft demands that the slots of the context hold what the target said there. So a wrong slot, mask, position, parent, order or length shows.
"""

from __future__ import annotations

import functools
import random
from types import SimpleNamespace

import sglang.srt.speculative.dflash_info as info
import sglang.srt.speculative.dflash_worker as module
import torch
from sglang.srt.layers import sampler
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.model_executor.forward_batch_info import ForwardMode

torch.compiler.set_stance("force_eager")  # nothing here is worth a compiler

VOCAB, BLOCK, POOL, MOST = 12, 5, 3000, 30
EOS = 11


def assign_slots(request_rows, table, starts, ends, slots, count):
    """What the triton kernel of that name does."""
    taken = 0
    for row, start, end in zip(request_rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start
    assert (taken, count) == (len(slots), len(request_rows))


class OneRank:
    world_size = 1


def hashed(seeds, positions, columns):
    """In the place of a triton kernel: 32 bits for each seed, position and column."""
    rows = [
        [random.Random(f"{seed} {position} {column}").getrandbits(32) for column in columns.tolist()]
        for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64)


def stand_in():
    """Put what needs neither GPU nor process group in the place of what does."""
    info.assign_req_to_token_pool_func = module.assign_req_to_token_pool_func = assign_slots
    info.get_tp_group = module.get_tp_group = OneRank
    module.get_global_server_args = lambda: None
    module.set_global_server_args_for_scheduler = lambda arguments: None
    module.is_cuda = lambda: False
    sampler.murmur_hash32 = hashed


stand_in()


def answer(sequence):
    """The target's logits after a sequence."""
    chance = random.Random(str(list(sequence)))
    logits = torch.tensor([chance.gauss(0, 2) for _ in range(VOCAB)])
    logits[EOS] -= 2.5
    return logits


def alone(prompt, count, *, seed=None):
    """Decoding without a draft; with a seed, as deterministic inference draws."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        logits = answer(tokens)
        if seed is None:
            tokens.append(int(logits.argmax()))
        else:
            probs = torch.softmax(logits.unsqueeze(0) / 0.8, -1)
            position = torch.tensor([len(tokens) - 1])
            tokens.append(int(sampler.sampling_from_probs_torch(probs, torch.tensor([seed]), position)))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


class Request:
    def __init__(self, prompt, *, most, seed=0):
        self.origin_input_ids, self.output_ids = list(prompt), []
        self.most, self.seed = most, seed
        self.kv_committed_len = self.kv_allocated_len = 0
        self.spec_verify_ct = self.spec_accepted_drafts = 0
        self.grammar = None
        self.row = -1

    def check_finished(self):
        pass

    def finished(self):
        return bool(self.output_ids) and (self.output_ids[-1] == EOS or len(self.output_ids) >= self.most)


class World:
    """Target, draft and worker, with a running batch."""

    def __init__(self, *, algorithm="DDTREE", budget=9, chain_seed=False, seeds=False, graph_cells=None):
        self.seeds = seeds
        self.allocator = TokenToKVPoolAllocator(POOL, torch.int64, "cpu", None, need_sort=False)
        self.table = torch.zeros((9, 300), dtype=torch.int32)
        self.free_rows = list(range(8, 0, -1))
        self.target_store = torch.full((POOL + 1, 2), -1, dtype=torch.int64)
        self.draft_store = self.target_store.clone()
        self.requests = []
        self.draft_input = None
        self.graphs_used = []
        self.arguments = SimpleNamespace(
            speculative_algorithm=algorithm,
            speculative_ddtree_budget=budget,
            speculative_ddtree_chain_seed=chain_seed,
            speculative_num_draft_tokens=budget + 1 if algorithm == "DDTREE" else BLOCK,
            speculative_dflash_block_size=BLOCK,
            speculative_dflash_draft_window_size=None,
            speculative_draft_attention_backend=None,
            get_attention_backends=lambda: ("triton", "triton"),
            page_size=1,
            skip_tokenizer_init=False,
        )
        pools = {
            "req_to_token_pool": SimpleNamespace(req_to_token=self.table),
            "token_to_kv_pool_allocator": self.allocator,
        }

        class TritonAttnBackend:
            cuda_graph_custom_mask = None if graph_cells is None else torch.zeros(graph_cells)

        head = SimpleNamespace(
            weight=torch.eye(VOCAB),
            shard_indices=SimpleNamespace(
                num_org_elements=VOCAB,
                num_org_elements_padded=VOCAB,
                num_added_elements=0,
                org_vocab_start_index=0,
                added_vocab_start_index=VOCAB,
            ),
        )
        self.target_runner = SimpleNamespace(
            **pools,
            device="cpu",
            page_size=1,
            attn_backend=TritonAttnBackend(),
            graph_runner="the graphs",
            memory_pool_config=None,
            model_config=SimpleNamespace(context_len=256, vocab_size=VOCAB),
            model=SimpleNamespace(
                get_input_embeddings=lambda: torch.nn.Embedding(VOCAB, 2), lm_head=head, logits_processor=None
            ),
        )
        target_worker = SimpleNamespace(
            model_runner=self.target_runner,
            device="cpu",
            get_memory_pool=lambda: (pools["req_to_token_pool"], self.allocator),
            forward_batch_generation=self.target_forward,
        )
        attention = SimpleNamespace(
            qkv_proj=None,
            kv_proj_only=lambda hidden: (hidden, hidden),
            apply_k_norm=lambda k: k,
            apply_k_rope=self.check_rope,
            num_kv_heads=1,
            head_dim=2,
            attn=SimpleNamespace(k_scale=None, v_scale=None),
        )
        draft_model = SimpleNamespace(
            layers=[SimpleNamespace(self_attn=attention)], project_target_hidden=lambda hidden: hidden
        )
        draft_config = {"block_size": BLOCK, "dflash_config": {"mask_token_id": 0}}
        self.draft_runner = SimpleNamespace(
            **pools,
            token_to_kv_pool=SimpleNamespace(set_kv_buffer=self.write_draft),
            attn_backend=None,
            model=draft_model,
            model_config=SimpleNamespace(hf_config=draft_config),
            forward=self.draft_forward,
        )

        def draft_worker(server_args, **_):
            self.draft_arguments = server_args
            return SimpleNamespace(model_runner=self.draft_runner)

        module.TpModelWorker = draft_worker
        self.worker = module.DFlashWorker(self.arguments, 0, 0, None, 0, 0, 0, 0, target_worker)

    # --- target and draft

    def target_forward(self, batch, is_verify):
        assert is_verify
        assert batch.forward_mode == ForwardMode.TARGET_VERIFY
        self.graphs_used.append(self.target_runner.graph_runner)
        spec = batch.spec_info
        rows = spec.draft_token_num
        assert rows == self.arguments.speculative_num_draft_tokens
        tokens, positions = batch.input_ids.tolist(), spec.positions.tolist()
        slots = batch.out_cache_loc.tolist()
        assert len(tokens) == len(positions) == len(slots) == rows * len(batch.reqs)
        for slot, token, position in zip(slots, tokens, positions, strict=True):
            self.target_store[slot] = torch.tensor([token, position])
        logits, start = [], 0
        for i, (request, length) in enumerate(zip(batch.reqs, batch.seq_lens.tolist(), strict=True)):
            cells = spec.custom_mask[start : start + rows * (length + rows)].view(rows, -1)
            start += cells.numel()
            every = self.table[request.row, : length + rows].long()
            assert every[length:].tolist() == slots[i * rows : (i + 1) * rows]
            for row in range(rows):
                assert cells[row, :length].all()
                assert cells[row, length + row]
                assert not cells[row, length + row + 1 :].any(), "a row sees a later one"
                seen = self.target_store[every[cells[row]]]
                seen = seen[seen[:, 1].argsort()]
                if getattr(spec, "tree", None) is not None and row and spec.tree.parents[i, row] < 0:
                    logits.append(torch.zeros(VOCAB))
                    continue
                assert seen[:, 1].tolist() == list(range(len(seen))), "positions are not those of one sequence"
                logits.append(answer(seen[:, 0].tolist()))
        assert start == spec.custom_mask.numel()
        hidden = torch.tensor([tokens, positions], dtype=torch.float32).T.contiguous()
        output = SimpleNamespace(next_token_logits=torch.stack(logits), hidden_states=hidden)
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=False)

    def check_rope(self, positions, k):
        assert positions.tolist() == k[:, 1].long().tolist(), "hidden states are not in the order of the path"
        return k

    def write_draft(self, layer, slots, k, v, k_scale, v_scale):
        self.draft_store[slots] = k.view(-1, 2).long()

    def draft_forward(self, batch):
        ids = batch.input_ids.view(-1, BLOCK)
        logits = torch.zeros(len(ids), BLOCK, VOCAB)
        for i, request in enumerate(self.requests):
            length = int(batch.seq_lens[i])
            sequence = request.origin_input_ids + request.output_ids
            held = self.draft_store[self.table[request.row, :length].long()]
            assert held[:, 0].tolist() == sequence[:length], "the draft's KV is not of the committed tokens"
            assert held[:, 1].tolist() == list(range(length))
            assert length == len(sequence) - 1
            assert int(ids[i, 0]) == sequence[-1]
            assert batch.positions.view(-1, BLOCK)[i].tolist() == list(range(length, length + BLOCK))
            chance = random.Random(str(sequence) + "draft")
            future = list(sequence)
            for level in range(1, BLOCK):
                noise = torch.tensor([chance.gauss(0, 1.5) for _ in range(VOCAB)])
                right = answer(future)
                future.append(int(right.argmax()))
                logits[i, level] = right + noise if chance.random() < 0.7 else noise
        return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=logits.view(-1, VOCAB)))

    # --- the scheduler's part

    def admit(self, request):
        """Prefill all but the last token, as a request that starts, or comes back after a retraction."""
        sequence = request.origin_input_ids + request.output_ids
        if not request.output_ids:
            first = alone(request.origin_input_ids, 1, seed=request.seed if self.seeds else None)[0]
            request.output_ids.append(first)
        else:
            sequence = sequence[:-1]
        request.row = self.free_rows.pop()
        slots = self.allocator.alloc(len(sequence))
        self.table[request.row, : len(sequence)] = slots.to(torch.int32)
        written = torch.tensor([sequence, range(len(sequence))]).T
        self.target_store[slots] = written
        self.draft_store[slots] = written
        request.kv_committed_len = request.kv_allocated_len = len(sequence)
        new = info.DFlashDraftInput(
            verified_id=torch.tensor([request.output_ids[-1]]),
            target_hidden=torch.empty((0, 2)),
            ctx_lens=torch.zeros(1, dtype=torch.int32),
            draft_seq_lens=torch.tensor([len(sequence)], dtype=torch.int32),
        )
        if self.draft_input is None or not self.requests:
            self.draft_input = new
        else:
            self.draft_input.merge_batch(new)
        self.requests.append(request)

    def dismiss(self, gone):
        """Take requests out of the batch, finished, aborted or retracted, and give back their slots."""
        stay = [i for i, request in enumerate(self.requests) if request not in gone]
        for request in gone:
            length = request.kv_committed_len
            slots = self.table[request.row, :length].long()
            held = self.target_store[slots]
            assert held[:, 0].tolist() == (request.origin_input_ids + request.output_ids)[:length]
            assert held[:, 1].tolist() == list(range(length))
            assert torch.equal(self.draft_store[slots], held)  # a prefix hit would find both
            self.allocator.free(slots)
            self.free_rows.append(request.row)
        self.draft_input.filter_batch(torch.tensor(stay, dtype=torch.int64))
        self.requests = [self.requests[i] for i in stay]

    def round(self):
        lengths = [request.kv_committed_len for request in self.requests]
        sampling = None
        if self.seeds:
            count = len(self.requests)
            sampling = Sampling(
                is_all_greedy=False,
                has_custom_logit_processor=False,
                penalizer_orchestrator=SimpleNamespace(is_required=False),
                logit_bias=None,
                temperatures=torch.full((count, 1), 0.8),
                top_ks=torch.full((count,), 1 << 30),
                top_ps=torch.ones(count),
                min_ps=torch.zeros(count),
                need_top_k_sampling=False,
                need_top_p_sampling=False,
                need_min_p_sampling=False,
                sampling_seed=torch.tensor([request.seed for request in self.requests]),
            )
        batch = Batch(
            forward_mode=ForwardMode.DECODE,
            is_extend_in_batch=False,
            has_grammar=False,
            reqs=self.requests,
            device="cpu",
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            seq_lens_cpu=torch.tensor(lengths, dtype=torch.int32),
            seq_lens_sum=sum(lengths),
            req_pool_indices=torch.tensor([request.row for request in self.requests]),
            req_to_token_pool=SimpleNamespace(req_to_token=self.table),
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=SimpleNamespace(token_to_kv_pool_allocator=self.allocator, is_chunk_cache=lambda: True),
            sampling_info=sampling,
            spec_info=self.draft_input,
            out_cache_loc=None,
            input_ids=None,
        )
        result = self.worker.forward_batch_generation(batch)
        assert batch.spec_info is self.draft_input
        assert batch.forward_mode == ForwardMode.DECODE
        assert batch.seq_lens.tolist() == [request.kv_committed_len for request in self.requests]
        assert result.next_token_ids.tolist() == [request.output_ids[-1] for request in self.requests]
        self.check_slots()
        return result

    def check_slots(self):
        free = torch.cat([self.allocator.free_pages, self.allocator.release_pages]).tolist()
        used = [
            slot for request in self.requests for slot in self.table[request.row, : request.kv_committed_len].tolist()
        ]
        assert sorted(free + used) == list(range(1, POOL + 1)), "a slot leaked, is shared, or was freed twice"


class Sampling(SimpleNamespace):
    def __len__(self):
        return len(self.temperatures)


class Batch(SimpleNamespace):
    def batch_size(self):
        return len(self.reqs)

    def get_model_worker_batch(self):
        return self


def prompts(count, *, seed=1):
    chance = random.Random(seed)
    return [[chance.randrange(EOS) for _ in range(chance.randint(1, 20))] for _ in range(count)]


def serve(world, requests, *, disturb=False):
    """Run requests that arrive one after the other; with `disturb`, retract and abort some on the way."""
    chance = random.Random(5)
    waiting, aborted = list(requests), []
    while waiting or world.requests:
        while waiting and len(world.requests) < 4 and (not world.requests or chance.random() < 0.5):
            request = waiting.pop(0)
            world.admit(request)
            if request.finished():
                world.dismiss([request])
        if not world.requests:
            continue
        world.round()
        gone = [request for request in world.requests if request.finished()]
        if disturb and chance.random() < 0.15:
            victim = chance.choice(world.requests)
            if victim not in gone:
                gone.append(victim)
                (waiting if chance.random() < 0.7 else aborted).append(victim)
        if gone:
            world.dismiss(gone)
        world.check_slots()
    assert world.allocator.available_size() == POOL
    return aborted


def check_every_output_is_that_of_the_target_alone():
    built = module.build_tree
    for budget, chain_seed, method in (
        (4, False, "heap"),
        (9, False, "heap"),
        (9, True, "heap"),
        (30, False, "heap"),
        (30, True, "heap"),
    ):
        world = World(budget=budget, chain_seed=chain_seed)
        requests = [Request(prompt, most=MOST) for prompt in prompts(14)]
        try:
            module.build_tree = functools.partial(built, method=method)
            serve(world, requests)
        finally:
            module.build_tree = built
        for request in requests:
            assert request.output_ids[:MOST] == alone(request.origin_input_ids, MOST), (budget, chain_seed)


def check_retraction_and_abort_change_no_output_and_leak_nothing():
    world = World(budget=20)
    requests = [Request(prompt, most=MOST) for prompt in prompts(24, seed=2)]
    aborted = serve(world, requests, disturb=True)
    for request in requests:
        expected = alone(request.origin_input_ids, MOST)
        assert request.output_ids == expected[: len(request.output_ids)]
        assert request in aborted or request.output_ids == expected
    assert aborted


def check_trees_accept_more_than_the_chain_and_seeded_ones_never_less():
    accepted = {}
    for name, options in (
        ("chain", {"algorithm": "DFLASH"}),
        ("seeded", {"budget": 12, "chain_seed": True}),
        ("tree", {"budget": 30}),
    ):
        world = World(**options)
        requests = [Request(prompt, most=MOST) for prompt in prompts(14, seed=3)]
        serve(world, requests)
        for request in requests:
            assert request.output_ids[:MOST] == alone(request.origin_input_ids, MOST), name
        accepted[name] = sum(r.spec_accepted_drafts for r in requests) / sum(r.spec_verify_ct for r in requests)
    assert accepted["seeded"] > accepted["chain"]
    assert accepted["tree"] > accepted["chain"]


def check_seeded_draws_are_those_of_decoding_without_a_draft():
    world = World(budget=20, seeds=True)
    requests = [Request(prompt, most=12, seed=70 + i) for i, prompt in enumerate(prompts(8, seed=4))]
    serve(world, requests)
    greedy = 0
    for request in requests:
        assert request.output_ids == alone(request.origin_input_ids, 12, seed=request.seed)
        greedy += request.output_ids == alone(request.origin_input_ids, 12)
    assert greedy < len(requests)


def check_the_draft_runs_blocks_and_the_target_trees():
    world = World(budget=17)
    assert world.draft_arguments.speculative_num_draft_tokens == BLOCK == world.worker.block_size
    assert world.arguments.speculative_num_draft_tokens == 18
    assert world.draft_arguments.speculative_algorithm == "DDTREE"
    chain = World(algorithm="DFLASH")
    assert chain.draft_arguments.speculative_num_draft_tokens == BLOCK == chain.worker.block_size
    assert not chain.worker.is_ddtree


def check_an_unsupported_target_is_refused_before_the_draft_is_loaded():
    try:
        world = World()
        world.target_runner.sliding_window_size = 64
        module.DFlashWorker(world.arguments, 0, 0, None, 0, 0, 0, 0, world.worker.target_worker)
    except ValueError as error:
        assert "sliding-window" in str(error)
    else:
        raise AssertionError("it was taken")


def check_a_mask_that_exceeds_the_graphs_buffer_runs_without_graphs():
    world = World(budget=9, graph_cells=10 * (10 + 12))
    world.admit(Request([1, 2, 3], most=40))
    while not world.requests[0].finished():
        world.round()
    assert world.graphs_used[0] == "the graphs"
    assert world.graphs_used[-1] is None
    assert world.target_runner.graph_runner == "the graphs"
    chain = World(algorithm="DFLASH", graph_cells=1)
    chain.admit(Request([1, 2, 3], most=10))
    chain.round()
    assert chain.graphs_used == ["the graphs"]


def check_candidates_are_those_of_the_drafted_positions_in_order():
    world = World(budget=6)
    hidden = torch.randn(2, BLOCK, VOCAB)
    scores, ids = world.worker._draft_candidates(hidden, world.target_runner.model.lm_head)
    expected = torch.log_softmax(hidden[:, 1:], -1).sort(dim=-1, descending=True)
    assert scores.shape == (2, BLOCK - 1, 6)
    assert torch.allclose(scores, expected.values[..., :6], atol=1e-6)
    assert torch.equal(ids, expected.indices[..., :6])


def check_an_oracle_can_take_the_place_of_the_draft():
    world = World(budget=9)
    world.admit(Request([1, 2, 3], most=31))

    def candidates(draft_hidden, lm_head):
        sequence = world.requests[0].origin_input_ids + world.requests[0].output_ids
        levels = []
        for _ in range(BLOCK - 1):
            logits = answer(sequence)
            levels.append(torch.log_softmax(logits * 50, -1).sort(descending=True))
            sequence = [*sequence, int(logits.argmax())]
        scores, ids = (torch.stack(side).unsqueeze(0) for side in zip(*levels, strict=True))
        return scores, ids

    world.worker._draft_candidates = candidates
    steps = 0
    while not world.requests[0].finished():
        world.round()
        steps += 1
    expected = alone([1, 2, 3], 31)
    assert world.requests[0].output_ids[:31] == expected
    assert steps == -(-(len(expected) - 1) // BLOCK)


def check_one_rank_draws_for_all():
    told = []

    class Ranks:
        world_size = 2

        def broadcast(self, tensor, src):
            told.append((tuple(tensor.shape), tensor.dtype, src))
            tensor.fill_(3)

    spec = SimpleNamespace(draft_token_num=4, positions=torch.arange(8))
    sampling = SimpleNamespace(
        is_all_greedy=False,
        sampling_seed=None,
        temperatures=torch.ones(2, 1),
        top_ks=torch.full((2,), 1 << 30),
        top_ps=torch.ones(2),
        min_ps=torch.zeros(2),
        need_top_k_sampling=False,
        need_top_p_sampling=False,
        need_min_p_sampling=False,
    )
    try:
        info.get_tp_group = Ranks
        decided = info.DFlashVerifyInput._decide_rows(spec, torch.randn(8, VOCAB), sampling)
    finally:
        info.get_tp_group = OneRank
    assert told == [((8,), torch.int64, 0)]
    assert decided.tolist() == [3] * 8
