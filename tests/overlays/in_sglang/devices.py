"""Tensors of `ddtree_utils.py` stay on their device: run on made-up CUDA tensors, which have a device and no memory.

An operation that mixes devices is an error there as on a GPU, and which copies cross to the host can be counted.
"""

from __future__ import annotations

from types import SimpleNamespace

import ddtree_file
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

utils = ddtree_file.load(ddtree_file.source())
utils.has_kernels = lambda tensor: False  # they need memory


def on_device(*tensors):
    assert all(tensor.device.type == "cuda" for tensor in tensors), [tensor.device for tensor in tensors]


def made_up(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def check_candidates_stay_on_the_device():
    for added in (0, 4):
        with FakeTensorMode():
            head = SimpleNamespace(
                weight=made_up(128, 16, dtype=torch.bfloat16),
                shard_indices=SimpleNamespace(
                    num_org_elements=100,
                    num_org_elements_padded=104,
                    num_added_elements=added,
                    org_vocab_start_index=0,
                    added_vocab_start_index=100,
                ),
            )
            for chunk_rows in (4, 256):
                found = utils.draft_topk(
                    made_up(30, 16), head, 63, logit_scale=0.5, softcap=30.0, chunk_rows=chunk_rows
                )
                on_device(*found)
                assert [tensor.shape for tensor in found] == [(30, 63)] * 2


def check_candidates_over_ranks_stay_on_the_device():
    group = SimpleNamespace(world_size=2, all_gather_into_tensor=on_device)
    with FakeTensorMode():
        for tokens in (0, 40, 100):
            head = SimpleNamespace(
                weight=made_up(104, 16),
                shard_indices=SimpleNamespace(
                    num_org_elements=tokens,
                    num_org_elements_padded=104,
                    num_added_elements=0,
                    org_vocab_start_index=0,
                    added_vocab_start_index=200,
                ),
            )
            found = utils.draft_topk(made_up(30, 16), head, 63, tp_group=group)
            on_device(*found)
            assert [tensor.shape for tensor in found] == [(30, 63)] * 2


def check_positions_and_masks_stay_on_the_device():
    for count in (1, 4):
        with FakeTensorMode():
            tree = utils.TreeBatch(*(made_up(count, 64, dtype=torch.int64) for _ in range(3)))
            lens = made_up(count, dtype=torch.int32)
            visible = utils.tree_visibility(tree, 15)
            mask = utils.pack_mask(visible, lens, 100)
            on_device(visible, mask, utils.tree_positions(tree, lens), tree.num_nodes)
            assert mask.shape == (64 * (100 + count * 64),)


def check_draws_stay_on_the_device():
    with FakeTensorMode():
        settings = {
            "temperatures": made_up(3, 1),
            "top_ks": made_up(3, dtype=torch.int32),
            "top_ps": made_up(3),
            "min_ps": made_up(3),
        }
        for need in (False, True):
            drawn = utils.sample_rows(
                made_up(24, 50), 8, **settings, need_top_k=False, need_top_p=need, need_min_p=need
            )
            on_device(drawn)
            assert drawn.shape == (24,)


def check_mixed_devices_would_be_found():
    with FakeTensorMode():
        try:
            made_up(3) + torch.ones(3)
        except RuntimeError as error:
            assert "device" in str(error)
        else:
            raise AssertionError("this file proves nothing")
