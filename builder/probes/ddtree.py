"""Probe: draft trees of DDTREE are built, masked and walked right, and SGLang's attention kernel sees exactly what the mask says."""

from __future__ import annotations

import itertools
import math
import random
from functools import partial
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "ddtree",
    "purpose": "Trees built on the GPU equal the CPU's, their masks, positions and walks are right, and the verify kernel attends by the mask.",
    "tolerance": "trees, masks, positions and walks exact; attention in bf16 6e-3 of float64, and off by more than 2e-2 with a causal mask",
    "needs": {"gpus": 1, "modules": ["torch", "triton", "sglang"]},
    "per": "gpu",
    "set": "quick",
    "compiles": True,
    "seconds": {"quick": 120, "full": 240},
    "memory_bytes": 4_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import compiling, kit, references
else:
    import kit

    compiling, references = kit.neighbour("compiling"), kit.neighbour("references")

BOUND = 6e-3
CONTROL = 2e-2
"""A mask that is not the tree's must show."""

HEADS = {"64": (4, 2, 64), "128": (8, 2, 128)}
"""Query heads, key heads, width of a head."""


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases; in compile mode the kernels that verify a tree, for every compute capability of the lock."""
    import torch
    from sglang.srt.layers.attention.triton_ops import extend_attention
    from sglang.srt.speculative import ddtree_utils

    def case(name: str, what: Callable[..., None], **how: Any) -> kit.Case:
        return kit.Case(name, partial(what, probe=probe, torch=torch, utils=ddtree_utils, **how))

    yield case("walk", walk)
    if probe.mode == "compile":
        for compute, kind in itertools.product(probe.compute, ("extend-64", "extend-128", "unified-128")):
            how = {"module": extend_attention, "compute": compute, "kind": kind}
            yield kit.Case(f"{kind}-{compute}", partial(compile_kernel, **how), result="compiled")
        return
    yield case("best-prefixes", best_prefixes)
    for requests, budget in ((1, 15), (8, 63), (4, 255), *(((16, 1024),) if probe.full else ())):
        yield case(f"build-{requests}x{budget}", build, requests=requests, budget=budget)
    for requests, budget in ((1, 15), (3, 63)):
        yield case(f"mask-{requests}x{budget}", mask, requests=requests, budget=budget)
    rows = (9, 33, 64, 65, 130) if probe.full else (9, 64, 130)
    prefixes = ((0, 5), (1, 63, 64), (17, 300, 2049)) if probe.full else ((0, 5), (17, 300, 2049))
    for count, lengths, width in itertools.product(rows, prefixes, HEADS):
        name = f"attention-{count}-{'+'.join(map(str, lengths))}-{width}"
        yield case(
            name,
            attention,
            kernel=extend_attention.extend_attention_fwd,
            rows=count,
            prefixes=lengths,
            heads=HEADS[width],
        )


def walk(found: kit.Found, probe: kit.Probe, torch: Any, utils: Any) -> None:
    """The walk of decisions through random trees, some with rows that hold no node."""
    del torch
    chance = random.Random(probe.number("walk"))
    wrong, longest = 0, 0
    for _ in range(300):
        parents = [*references.random_parents(chance.randrange(1, 80), chance), *[-1] * chance.randrange(3)]
        tokens, decisions = references.tokens_and_decisions(parents, chance)
        path, decided = utils.walk_tree(tokens, parents, decisions)
        truth = references.walk(tokens, parents, decisions)
        wrong += list(path) != truth or list(decided) != [decisions[row] for row in truth]
        longest = max(longest, len(truth))
    found.at_most("wrong", wrong, 0)
    found.note("longest", longest)


def best_prefixes(found: kit.Found, probe: kit.Probe, torch: Any, utils: Any) -> None:
    """That small trees hold as much probability as any choice of prefixes could."""
    worst = 0.0
    for trial in range(12):
        levels, vocabulary, budget = 1 + trial % 4, 2 + trial % 5, 1 + 2 * trial
        scores, ids = candidates(torch, probe.generator(f"best-{trial}"), 1, levels, vocabulary, vocabulary)
        tree = utils.build_tree(scores, ids, torch.zeros(1, dtype=torch.int64), budget, method="heap")
        sums = [0.0]
        for parent, token, depth in zip(
            *(part[0, 1:].tolist() for part in (tree.parents, tree.tokens, tree.depths)), strict=True
        ):
            if parent < 0:  # the rest is padding
                break
            place = ids[0, depth - 1].tolist().index(token)
            sums.append(sums[parent] + float(scores[0, depth - 1, place]))
        total = sum(math.exp(score) for score in sums[1:])
        worst = max(worst, abs(total - references.best_prefixes(scores[0].double().tolist(), budget)))
    found.at_most("worst", worst, 1e-6)


def build(found: kit.Found, probe: kit.Probe, torch: Any, utils: Any, *, requests: int, budget: int) -> None:
    """Trees by the kernel on the GPU, against the heap on the host."""
    name = f"build-{requests}x{budget}"
    wrong = {"tokens": 0, "parents": 0, "depths": 0, "visible": 0}
    for trial, spread in enumerate((0.3, 3.0)):
        scores, ids = candidates(
            torch, probe.generator(f"{name}-{trial}"), requests, 15, 4096, min(budget, 1024), spread
        )
        roots = torch.arange(requests)
        for chain in (False, True):
            here = utils.build_tree(scores, ids, roots, budget, chain_seed=chain, method="heap")
            placed = [part.to(kit.DEVICE) for part in (scores, ids, roots)]
            there = utils.build_tree(*placed, budget, chain_seed=chain, method="kernel")
            for part in ("tokens", "parents", "depths"):
                wrong[part] += int((getattr(here, part) != getattr(there, part).cpu()).sum())
            seen = [utils.tree_visibility(tree, 15).cpu() for tree in (here, there)]
            wrong["visible"] += int((seen[0] != seen[1]).sum())
    for part, count in wrong.items():
        found.at_most(f"wrong_{part}", count, 0)


def mask(found: kit.Found, probe: kit.Probe, torch: Any, utils: Any, *, requests: int, budget: int) -> None:
    """Visibility, positions and the packed mask of trees, cell by cell against their parents."""
    chance = random.Random(probe.number(f"mask-{requests}"))
    wrong = {"visible": 0, "positions": 0, "packed": 0}
    for method in ("heap", "kernel"):
        scores, ids = candidates(torch, probe.generator(f"mask-{requests}"), requests, 15, 512, min(budget, 512), 2.0)
        roots = torch.zeros(requests, dtype=torch.int64)
        tree = utils.build_tree(*(part.to(kit.DEVICE) for part in (scores, ids, roots)), budget, method=method)
        parents = tree.parents.tolist()
        truth = torch.tensor([references.ancestors(each) for each in parents])
        visible = utils.tree_visibility(tree, 15)
        wrong["visible"] += int((visible.cpu() != truth).sum())
        lengths = [chance.randrange(200) for _ in parents]
        placed = torch.tensor(lengths, device=kit.DEVICE)
        positions = [
            length + depth for length, each in zip(lengths, parents, strict=True) for depth in references.depths(each)
        ]
        wrong["positions"] += int((utils.tree_positions(tree, placed).cpu() != torch.tensor(positions)).sum())
        wanted = [
            torch.cat((torch.ones(budget + 1, length, dtype=torch.bool), each), dim=1).flatten()
            for length, each in zip(lengths, truth, strict=True)
        ]
        packed = utils.pack_mask(visible, placed, sum(lengths)).cpu()
        wrong["packed"] += int((packed != torch.cat(wanted)).sum())
    for part, count in wrong.items():
        found.at_most(f"wrong_{part}", count, 0)


def attention(
    found: kit.Found,
    probe: kit.Probe,
    torch: Any,
    utils: Any,
    *,
    kernel: Callable[..., None],
    rows: int,
    prefixes: tuple[int, ...],
    heads: tuple[int, int, int],
) -> None:
    """SGLang's kernel on trees behind ragged prefixes, with the mask that DDTREE packs; and with a causal mask, which must differ."""
    name = f"attention-{rows}-{prefixes}-{heads}"
    chance = random.Random(probe.number(name))
    generator = probe.generator(name, kit.DEVICE)
    count, kv_count, width = heads
    requests, total = len(prefixes), sum(prefixes)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=kit.DEVICE).to(torch.bfloat16)

    def ints(values: Any, dtype: Any) -> Any:
        return torch.tensor(values, dtype=dtype, device=kit.DEVICE)

    q, k, v = (
        normal(requests * rows, count, width),
        normal(requests * rows, kv_count, width),
        normal(requests * rows, kv_count, width),
    )
    pool = (normal(total + 7, kv_count, width), normal(total + 7, kv_count, width))
    slots = torch.randperm(total + 7, generator=generator, device=kit.DEVICE)[:total]
    trees = [references.random_parents(rows, chance) for _ in prefixes]
    zeros = torch.zeros(requests, rows, dtype=torch.int64, device=kit.DEVICE)
    batch = utils.TreeBatch(tokens=zeros, parents=ints(trees, torch.int64), depths=zeros)
    visible = utils.tree_visibility(batch, rows)
    causal = torch.ones(rows, rows, dtype=torch.bool, device=kit.DEVICE).tril().expand(requests, -1, -1)
    starts = [sum(prefixes[:index]) for index in range(requests + 1)]
    mask_starts = [sum(rows * (size + rows) for size in prefixes[:index]) for index in range(requests + 1)]

    def run(seen: Any) -> Any:
        out = kit.poisoned(requests * rows, count, width, dtype=torch.bfloat16, device=kit.DEVICE)
        kernel(
            q,
            k,
            v,
            out,
            *pool,
            ints([rows * index for index in range(requests + 1)], torch.int32),
            ints(starts, torch.int32),
            slots,
            utils.pack_mask(seen.contiguous(), ints(prefixes, torch.int64), total),
            True,  # is_causal
            ints(mask_starts, torch.int64),
            rows,
            1.0,
            1.0,
        )
        return out

    prefix = [tuple(part[slots[start:end]] for part in pool) for start, end in itertools.pairwise(starts)]
    truth = references.tree_attention(q, k, v, prefix, trees, sees=references.ancestors)
    kit.compare(found, run(visible), truth, BOUND)
    control = kit.errors(run(causal), truth)[0]
    found.note("error_if_causal", control)
    found.require(control > CONTROL, f"a causal mask gives nearly the same ({control:.2g}): the mask is not used")


def candidates(
    torch: Any, generator: Any, requests: int, levels: int, vocabulary: int, best: int, spread: float = 2.0
) -> tuple[Any, Any]:
    """Log-probabilities and ids of the best tokens of each position, best first, on the CPU."""
    logits = torch.randn(requests, levels, vocabulary, generator=generator) * spread
    scores, ids = logits.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    return scores[..., :best].contiguous(), ids[..., :best].contiguous()


def compile_kernel(found: kit.Found, module: Any, compute: str, kind: str) -> None:
    """One of the attention kernels as SGLang would launch it on a GPU: with a mask, and with the tiles of that GPU."""
    name, _, wide = kind.partition("-")
    width = int(wide)
    module._is_cuda = True
    module.CUDA_CAPABILITY = tuple(map(int, compute.split(".")))
    tiles = module._get_block_sizes_for_extend_attention(width, width)
    constants = dict(zip(("BLOCK_DMODEL", "BLOCK_DPE", "BLOCK_DV", "BLOCK_M", "BLOCK_N"), tiles, strict=False))
    flags = {
        "Lq": width,
        "Lv": width,
        "SLIDING_WINDOW_SIZE": -1,
        "logit_cap": 0.0,
        "xai_temperature_len": -1,
        "USE_CUSTOM_MASK": True,
        "IS_CAUSAL": True,
        "SKIP_PREFIX_CUSTOM_MASK": True,
        "STORE_TRANSPOSE": False,
        "HAS_SINK": False,
    }
    kernel = module._fwd_kernel if name == "extend" else module._fwd_kernel_unified
    types: dict[str, str] = {}
    for argument in kernel.arg_names:
        known = argument_type(argument)
        if argument in flags:
            constants[argument] = flags[argument]
        elif known is None and argument not in constants:
            constants[argument] = None  # sinks, windows: a run without them passes None
        elif known is not None:
            types[argument] = known
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    options = {"num_warps": tiles[5], "num_stages": 1}
    compiling.compile_one(found, kernel=kernel, types=types, constants=constants, options=options, compute=compute)


def argument_type(name: str) -> str | None:
    """What SGLang passes for an argument of these kernels; None for constants, and for what a run without sinks and windows leaves out."""
    if name.startswith("stride_") or name == "kv_group_num":
        return "i32"
    if name in ("qo_indptr", "kv_indptr", "prefix_lens"):
        return "*i32"
    if name in ("kv_indices", "mask_indptr"):
        return "*i64"
    if name == "mask_ptr":
        return "*i1"
    if name in ("sm_scale", "k_scale", "v_scale", "sm_scale_withk"):
        return "fp32"
    return (
        "*bf16" if name in ("Q_Extend", "K_Extend", "V_Extend", "O_Extend", "K_Buffer", "V_Buffer", "Q", "O") else None
    )


if __name__ == "__main__":
    kit.main(ABOUT, cases)
