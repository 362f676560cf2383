"""The mask of a tree in SGLang's triton kernel, against attention computed path by path.

    python -m benchmarks.ddtree.kernel_mask --out FILE

For random trees of N rows behind ragged prefixes, each row's output is compared with float64 attention over exactly its keys: prefix, ancestors,
itself. Two controls must differ: the plain causal mask, and a tree whose parents stand after their children, since the kernel looks at no key
after the last row of a block.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

ROWS = (9, 33, 64, 65, 130)
PREFIXES = ((0, 5), (1, 63, 64), (17, 300, 2049), (1000,))
HEADS = ((4, 2, 64), (8, 2, 128))
BOUND = 2e-2
"""Of the relative error in bf16: operands have 8 bits."""


def random_parents(rows: int, generator: torch.Generator) -> list[int]:
    """Parents of a random tree; a node's parent is an earlier row, sometimes deep, sometimes wide."""
    parents = [-1]
    for row in range(1, rows):
        if torch.rand(1, generator=generator).item() < 0.5:
            parents.append(row - 1)
        else:
            parents.append(int(torch.randint(0, row, (1,), generator=generator)))
    return parents


def visible(parents: list[int]) -> torch.Tensor:
    """Which rows a row sees: itself and its ancestors, `[rows, rows]`."""
    rows = len(parents)
    seen = torch.zeros(rows, rows, dtype=torch.bool)
    for row in range(rows):
        at = row
        while at >= 0:
            seen[row, at] = True
            at = parents[at]
    return seen


def reference(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Attention in float64: q `[rows, heads, dim]`, keys and values `[keys, kv_heads, dim]`, allowed `[rows, keys]`."""
    group = q.shape[1] // keys.shape[1]
    wide_keys, wide_values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.double(), wide_keys) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, float("-inf")).softmax(-1), wide_values)


def one_case(rows: int, prefixes: tuple[int, ...], heads: tuple[int, int, int], seed: int) -> dict[str, float]:
    """Relative errors of the kernel for one batch: with its own mask, and of the two controls."""
    from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd

    generator = torch.Generator().manual_seed(seed)
    count, kv_count, dim = heads
    batch, total = len(prefixes), sum(prefixes)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to("cuda", torch.bfloat16)

    q, k, v = normal(batch * rows, count, dim), normal(batch * rows, kv_count, dim), normal(batch * rows, kv_count, dim)
    pool = (normal(total + 7, kv_count, dim), normal(total + 7, kv_count, dim))
    slots = torch.randperm(total + 7, generator=generator)[:total].to("cuda", torch.int64)
    trees = [random_parents(rows, generator) for _ in prefixes]

    def run(masks: list[torch.Tensor], order: torch.Tensor | None = None) -> torch.Tensor:
        flat = torch.cat(
            [
                torch.cat((torch.ones(rows, size, dtype=torch.bool), mask), 1).flatten()
                for size, mask in zip(prefixes, masks, strict=True)
            ]
        ).cuda()
        sizes = torch.tensor([0, *prefixes])
        mask_sizes = torch.tensor([0, *(rows * (size + rows) for size in prefixes)])
        picked = torch.arange(batch * rows, device="cuda") if order is None else order
        out = torch.full((batch * rows, count, dim), float("nan"), device="cuda", dtype=torch.bfloat16)
        extend_attention_fwd(
            q[picked].contiguous(),
            k[picked].contiguous(),
            v[picked].contiguous(),
            out,
            *pool,
            torch.arange(0, (batch + 1) * rows, rows, device="cuda", dtype=torch.int32),
            sizes.cumsum(0).to("cuda", torch.int32),
            slots,
            flat,
            True,
            mask_sizes.cumsum(0).to("cuda", torch.int64),
            rows,
            1.0,
            1.0,
        )
        back = torch.empty_like(out)
        back[picked] = out
        return back

    expected = []
    for index, (size, tree) in enumerate(zip(prefixes, trees, strict=True)):
        own, before = slice(index * rows, (index + 1) * rows), slots[sum(prefixes[:index]) :][:size]
        keys, values = (torch.cat((buffer[before], fresh[own])) for buffer, fresh in zip(pool, (k, v), strict=True))
        allowed = torch.cat((torch.ones(rows, size, dtype=torch.bool), visible(tree)), 1).cuda()
        expected.append(reference(q[own], keys, values, allowed))
    truth = torch.cat(expected)

    def error(out: torch.Tensor) -> float:
        return float((out.double() - truth).norm() / truth.norm())

    masks = [visible(tree) for tree in trees]
    causal = [torch.ones(rows, rows, dtype=torch.bool).tril() for _ in trees]
    turned = torch.cat([torch.arange((index + 1) * rows - 1, index * rows - 1, -1) for index in range(batch)]).cuda()
    return {
        "error": error(run(masks)),
        "error_if_causal": error(run(causal)),
        "error_if_parents_follow": error(run([mask.flip(0, 1) for mask in masks], turned)),
    }


def all_cases() -> dict[str, Any]:
    """Every number of rows with every prefix and head shape."""
    cases: list[dict[str, Any]] = []
    for rows in ROWS:
        for prefixes in PREFIXES:
            for heads in HEADS:
                errors = one_case(rows, prefixes, heads, seed=rows * 1000 + sum(prefixes))
                cases.append({"rows": rows, "prefixes": prefixes, "heads": heads, **errors})
    worst = max(case["error"] for case in cases)
    controls = min(case["error_if_causal"] for case in cases)
    return {
        "passed": worst < BOUND and controls > BOUND,
        "bound": BOUND,
        "worst_error": worst,
        "least_error_if_causal": controls,
        # Only trees of more than one block (128 rows on Hopper) can show it.
        "least_error_if_parents_follow": {
            rows: min(case["error_if_parents_follow"] for case in cases if case["rows"] == rows) for rows in ROWS
        },
        "cases": cases,
    }


def main() -> None:
    """Reads the command line and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    result = all_cases()
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "cases"}))


if __name__ == "__main__":
    main()
