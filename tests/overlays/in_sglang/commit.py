"""The bookkeeping of `DFlashVerifyInput` with a tree: slots, lengths, hidden states; with SGLang's allocator, and no GPU."""

from __future__ import annotations

import random
from types import SimpleNamespace

import sglang.srt.speculative.dflash_info as info
import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.speculative.ddtree_utils import NO_PARENT, TreeBatch, build_tree, tree_positions
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

VOCAB = 11
LEVELS = 4
POOL = 4096
EOS = 7


def assign_slots(request_rows, table, starts, ends, slots, count):
    """What the triton kernel of that name does."""
    taken = 0
    for row, start, end in zip(request_rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start
    assert taken == len(slots)
    assert count == len(request_rows)


info.assign_req_to_token_pool_func = assign_slots


class Mode:
    def is_idle(self):
        return False


class Request:
    """As much of a request as verification looks at."""

    def __init__(self, prompt, *, most=10**9):
        self.origin_input_ids = list(prompt)
        self.output_ids = []
        self.most = most
        self.kv_committed_len = self.kv_allocated_len = 0
        self.spec_verify_ct = self.spec_accepted_drafts = 0
        self.grammar = None

    def check_finished(self):
        pass

    def finished(self):
        return bool(self.output_ids) and (self.output_ids[-1] == EOS or len(self.output_ids) >= self.most)


class World:
    """A batch over a pool of slots, and what must be true of it between steps."""

    def __init__(self, prompts, *, most=10**9):
        self.allocator = TokenToKVPoolAllocator(POOL, torch.int64, "cpu", None, need_sort=False)
        self.table = torch.full((len(prompts) + 3, 400), -1, dtype=torch.int32)
        self.requests = [Request(prompt, most=most) for prompt in prompts]
        lengths = [len(prompt) for prompt in prompts]
        # Not the identity, so that mixing up request and row shows.
        self.rows = torch.arange(len(prompts) + 2, 2, -1)[: len(prompts)]
        for request, row in zip(self.requests, self.rows.tolist(), strict=True):
            count = len(request.origin_input_ids)
            self.table[row, :count] = self.allocator.alloc(count).to(torch.int32)
            request.kv_committed_len = request.kv_allocated_len = count
        self.batch = SimpleNamespace(
            forward_mode=Mode(),
            reqs=self.requests,
            batch_size=lambda: len(self.requests),
            device="cpu",
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            seq_lens_cpu=torch.tensor(lengths, dtype=torch.int32),
            seq_lens_sum=sum(lengths),
            req_pool_indices=self.rows,
            req_to_token_pool=SimpleNamespace(req_to_token=self.table),
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=SimpleNamespace(token_to_kv_pool_allocator=self.allocator, is_chunk_cache=lambda: True),
            sampling_info=None,
            out_cache_loc=None,
            input_ids=None,
        )

    def held(self):
        """The slots of each request, in the order of its tokens."""
        return [
            self.table[row, :length].tolist()
            for row, length in zip(self.rows.tolist(), self.batch.seq_lens.tolist(), strict=True)
        ]

    def check(self):
        free = torch.cat([self.allocator.free_pages, self.allocator.release_pages]).tolist()
        used = [slot for slots in self.held() for slot in slots]
        assert len(set(free)) == len(free), "a slot was freed twice"
        assert len(set(used)) == len(used), "two tokens share a slot"
        assert sorted(free + used) == list(range(1, POOL + 1)), "a slot leaked, or is free and used"
        assert self.batch.seq_lens.tolist() == self.batch.seq_lens_cpu.tolist()
        assert self.batch.seq_lens_sum == sum(self.batch.seq_lens.tolist())
        for request, length in zip(self.requests, self.batch.seq_lens.tolist(), strict=True):
            assert request.kv_committed_len == request.kv_allocated_len == length


def random_tree(count, budget, generator):
    scores = torch.log_softmax(torch.randn(count, LEVELS, VOCAB, generator=generator) * 2, -1)
    scores, ids = scores.sort(dim=-1, descending=True)
    roots = torch.randint(VOCAB, (count,), generator=generator)
    return build_tree(scores, ids, roots, budget)


def verify_input(world, tree):
    return DFlashVerifyInput(
        draft_token=tree.tokens.reshape(-1),
        positions=tree_positions(tree, world.batch.seq_lens),
        draft_token_num=tree.num_rows,
        tree=tree,
        max_depth=LEVELS,
    )


def logits_for(decisions):
    return torch.nn.functional.one_hot(decisions.reshape(-1), VOCAB).float() * 5


def expected_walk(tokens, parents, decisions):
    path, out = [0], [decisions[0]]
    while True:
        hits = [i for i in range(1, len(tokens)) if parents[i] == path[-1] and tokens[i] == out[-1]]
        if not hits:
            return path, out
        path.append(hits[0])
        out.append(decisions[hits[0]])


def step(world, tree, decisions):
    """One verification; returns what it gave and the slots and hidden states that it was to choose from."""
    spec = verify_input(world, tree)
    spec.prepare_for_verify(world.batch, 1, build_custom_mask=False)
    offered = world.batch.out_cache_loc.view(tree.tokens.shape).clone()
    hidden = torch.arange(offered.numel(), dtype=torch.float32).unsqueeze(1).expand(-1, 3).contiguous()
    output = SimpleNamespace(next_token_logits=logits_for(decisions), hidden_states=hidden)
    return spec.verify(batch=world.batch, logits_output=output, page_size=1), offered, spec


def check_commit_keeps_exactly_the_path_in_order_over_many_steps():
    generator = torch.Generator().manual_seed(1)
    world = World([[1] * 5, [2], [3] * 9])
    most = 0
    for _ in range(60):
        world.check()
        before = world.held()
        tree = random_tree(3, 20, generator)
        decisions = torch.randint(VOCAB, tree.tokens.shape, generator=generator)
        decisions[decisions == EOS] = 0
        old = [list(request.output_ids) for request in world.requests]
        (roots, commits, hidden, accepted), offered, _ = step(world, tree, decisions)
        world.check()
        walks = [
            expected_walk(tree.tokens[i].tolist(), tree.parents[i].tolist(), decisions[i].tolist()) for i in range(3)
        ]
        most = max(most, *(len(path) for path, _ in walks))
        assert commits.tolist() == [len(path) for path, _ in walks]
        assert accepted == [len(path) - 1 for path, _ in walks]
        assert roots.tolist() == [out[-1] for _, out in walks]
        rows = [i * tree.num_rows + row for i, (path, _) in enumerate(walks) for row in path]
        assert hidden[:, 0].tolist() == rows
        for i, (path, out) in enumerate(walks):
            assert world.requests[i].output_ids == old[i] + out
            assert world.held()[i] == before[i] + offered[i][torch.tensor(path)].tolist()
    assert most >= 3, "no path was long enough to test its order"


def check_a_tree_that_is_a_chain_does_what_the_chain_code_does():
    generator = torch.Generator().manual_seed(2)
    for _ in range(40):
        tokens = torch.randint(VOCAB, (2, LEVELS + 1), generator=generator)
        tokens[tokens == EOS] = 1
        decisions = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)
        spoil = torch.rand(decisions.shape, generator=generator) < 0.3
        decisions = torch.where(spoil, (decisions + 1) % VOCAB, decisions)
        rows = torch.arange(LEVELS + 1).expand(2, -1)
        tree = TreeBatch(tokens=tokens, parents=rows - 1, depths=rows.clone())
        results = []
        for as_tree in (True, False):
            world = World([[1, 2, 3], [4]], most=3)
            spec = verify_input(world, tree)
            if not as_tree:
                spec.tree = None
            spec.prepare_for_verify(world.batch, 1, build_custom_mask=True)
            mask = spec.custom_mask
            hidden = torch.arange(tokens.numel() * 2, dtype=torch.float32).view(-1, 2)
            output = SimpleNamespace(next_token_logits=logits_for(decisions), hidden_states=hidden)
            roots, commits, kept, accepted = spec.verify(batch=world.batch, logits_output=output, page_size=1)
            world.check()
            results.append(
                (
                    mask.tolist(),
                    spec.positions.tolist(),
                    roots.tolist(),
                    commits.tolist(),
                    kept.tolist(),
                    accepted,
                    world.held(),
                    world.allocator.free_pages.tolist(),
                    [request.output_ids for request in world.requests],
                    output.hidden_states,
                )
            )
        assert results[0] == results[1]


def check_a_path_is_cut_where_its_request_ends():
    for ending in range(1, LEVELS + 2):
        rows = torch.arange(LEVELS + 1).expand(1, -1)
        tokens = torch.tensor([[1, 2, 3, 4, 5]])
        decisions = torch.tensor([[2, 3, 4, 5, 6]])
        tokens[0, ending:] = torch.where(rows[0, ending:] == ending, EOS, tokens[0, ending:])
        decisions[0, ending - 1] = EOS
        tree = TreeBatch(tokens=tokens, parents=rows - 1, depths=rows.clone())
        world = World([[9, 9]])
        (roots, commits, hidden, accepted), offered, _ = step(world, tree, decisions)
        world.check()
        assert world.requests[0].output_ids[-1] == EOS
        assert commits.tolist() == [ending] == [len(world.requests[0].output_ids)]
        assert roots.tolist() == [EOS]
        assert accepted == [ending - 1]
        assert hidden[:, 0].tolist() == list(range(ending))
        assert world.held()[0][2:] == offered[0][:ending].tolist()


def check_padding_rows_are_freed_and_never_accepted():
    # One node; the padding repeats the root's token, which the target decides on all the time.
    tokens = torch.tensor([[3, 3, 3, 3]])
    parents = torch.tensor([[NO_PARENT, 0, NO_PARENT, NO_PARENT]])
    depths = torch.tensor([[0, 1, 1, 1]])
    world = World([[5] * 4])
    (_, commits, _, _), offered, _ = step(
        world, TreeBatch(tokens=tokens, parents=parents, depths=depths), torch.full((1, 4), 3)
    )
    world.check()
    assert commits.tolist() == [2]
    assert world.held()[0][4:] == offered[0][:2].tolist()


def check_a_thousand_requests_give_back_every_slot():
    chance = random.Random(3)
    generator = torch.Generator().manual_seed(3)
    world = World([[1]] * 4, most=6)
    served = 0
    while served < 1000:
        tree = random_tree(4, 12, generator)
        decisions = torch.randint(VOCAB, tree.tokens.shape, generator=generator)
        step(world, tree, decisions)
        world.check()
        for i, request in enumerate(world.requests):
            if request.finished() or chance.random() < 0.05:  # done, or aborted
                served += 1
                row, length = int(world.rows[i]), int(world.batch.seq_lens[i])
                world.allocator.free(world.table[row, :length].to(torch.int64))
                prompt = [1] * chance.randint(1, 9)
                world.requests[i] = world.batch.reqs[i] = Request(prompt, most=6)
                world.table[row, : len(prompt)] = world.allocator.alloc(len(prompt)).to(torch.int32)
                world.requests[i].kv_committed_len = world.requests[i].kv_allocated_len = len(prompt)
                world.batch.seq_lens_sum += len(prompt) - length
                world.batch.seq_lens[i] = world.batch.seq_lens_cpu[i] = len(prompt)
        world.check()


def check_a_tree_always_gets_its_mask_and_stands_at_its_depths():
    generator = torch.Generator().manual_seed(4)
    world = World([[1] * 7, [2] * 3])
    tree = random_tree(2, 9, generator)
    spec = verify_input(world, tree)
    spec.prepare_for_verify(world.batch, 1, build_custom_mask=False)
    assert spec.custom_mask.numel() == sum(10 * (length + 10) for length in (7, 3))
    assert spec.positions.view(2, 10).tolist() == (tree.depths + torch.tensor([[7], [3]])).tolist()
    assert world.batch.input_ids.tolist() == tree.tokens.reshape(-1).tolist()
    assert spec.get_spec_adjust_token_coefficient() == (10, 10)
    assert ScheduleBatch is not None


def check_a_tree_of_another_width_or_paged_memory_is_refused():
    world = World([[1] * 7])
    tree = random_tree(1, 9, torch.Generator().manual_seed(5))
    for wrong in (
        lambda: DFlashVerifyInput(
            draft_token=tree.tokens.reshape(-1), positions=None, draft_token_num=9, tree=tree, max_depth=LEVELS
        ),
        lambda: verify_input(world, tree).prepare_for_verify(world.batch, 16),
    ):
        try:
            wrong()
        except RuntimeError as error:
            assert "DDTREE" in str(error)
        else:
            raise AssertionError("it was taken")
    world.check()
