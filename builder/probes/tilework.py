"""Triton kernels for the probe of Triton: elementwise, a reduction, and a product of matrices in tiles. Loaded by the probe, never imported."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, size, BLOCK: tl.constexpr):
    """Stores x + y."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, sums, columns, BLOCK: tl.constexpr):
    """Softmax of each row, and its sum."""
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row + at, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + at, powers / tl.sum(powers, 0), mask=inside)
    tl.store(sums + tl.program_id(0), tl.sum(tl.where(inside, values, 0.0), 0))


@triton.jit
def dot(left, right, out, size, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr):
    """Stores left right, of square matrices whose side is a multiple of the tiles."""
    across = size // TILE_N
    number = tl.program_id(0)
    # Groups of rows share the columns that are in the cache.
    group = number // (GROUP * across)
    tall = min(size // TILE_M - group * GROUP, GROUP)
    tile_m = group * GROUP + (number % (GROUP * across)) % tall
    tile_n = (number % (GROUP * across)) // tall
    rows = tile_m * TILE_M + tl.arange(0, TILE_M)
    columns = tile_n * TILE_N + tl.arange(0, TILE_N)
    inner = tl.arange(0, TILE_K)
    left_at = left + rows[:, None] * size + inner[None, :]
    right_at = right + inner[:, None] * size + columns[None, :]
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for _ in range(0, size, TILE_K):
        total = tl.dot(tl.load(left_at), tl.load(right_at), total)
        left_at += TILE_K
        right_at += TILE_K * size
    tl.store(out + rows[:, None] * size + columns[None, :], total.to(out.dtype.element_ty))


TILES = {"TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "GROUP": 8}
OPTIONS = {"num_warps": 8, "num_stages": 3}


def run_dot(left: Any, right: Any, out: Any, size: int) -> None:
    """Stores left right."""
    dot[((size // TILES["TILE_M"]) * (size // TILES["TILE_N"]),)](left, right, out, size, **TILES, **OPTIONS)


def sources() -> dict[str, dict[str, Any]]:
    """Each kernel as it is run: what `compiling.compile_one` takes of it."""
    two, three = {"x": "*fp32", "out": "*fp32"}, {"out": "*bf16", "size": "i32"}
    matrix = {"kernel": dot, "constants": TILES, "options": OPTIONS}
    return {
        "add": {
            "kernel": add,
            "types": {**two, "y": "*fp32", "size": "i32"},
            "constants": {"BLOCK": 1024},
            "options": {},
        },
        "softmax": {
            "kernel": softmax,
            "types": {**two, "sums": "*fp32", "columns": "i32"},
            "constants": {"BLOCK": 32768},
            "options": {"num_warps": 16},
        },
        "dot-bf16": {**matrix, "types": {**three, "left": "*bf16", "right": "*bf16"}},
        "dot-fp8": {**matrix, "types": {**three, "left": "*fp8e4nv", "right": "*fp8e4nv"}},
    }
