"""What kernels ought to give, computed in float64 by the plainest means, and judgements of what they gave.

Every function works on tensors of any device, so that tests can show, without a GPU, that a right result passes and a wrong one does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.probes import kit


def matmul(
    found: kit.Found, out: Any, left: Any, right: Any, generator: Any, *, bound: float, scale: float = 1.0
) -> None:
    """Judge a product: some rows and columns against float64 on the CPU, and all of it by a product with random signs.

    A row of the whole is right if (out s) equals left (right s) for random signs s: the error of one element shows in the sum of its row unless
    it is below the rounding of the row's other elements.

    Args:
        found: Where figures go.
        out: `[m, n]`, what the kernel gave.
        left: `[m, k]`.
        right: `[k, n]`.
        generator: torch's, on the CPU.
        bound: Of the relative error.
        scale: What the product is multiplied with.
    """
    import torch

    rows = torch.randperm(out.shape[0], generator=generator)[:64]
    columns = torch.randperm(out.shape[1], generator=generator)[:256]
    device = out.device
    some = left[rows.to(left.device)].cpu().double() @ right.t()[columns.to(right.device)].cpu().double().t() * scale
    taken = out[rows.to(device)][:, columns.to(device)].cpu().double()
    size = float(some.norm()) / math.sqrt(some.numel())
    off = (taken - some).abs()
    found.at_most("relative_error", float(off.norm() / some.norm()), bound)
    found.at_most("worst_element", float((off / (some.abs() + size)).max()), 6 * bound)

    signs = (torch.randint(0, 2, (out.shape[1], 1), generator=generator).double() * 2 - 1).to(device)
    rest = _times(out, signs) - _times(left, _times(right, signs)) * scale
    found.at_most("worst_row", float(rest.abs().max()) / (size * math.sqrt(out.shape[1])), 3 * bound)


def _times(matrix: Any, column: Any) -> Any:
    """A product in float64, a few rows at a time, so that no wide copy of the whole is made."""
    import torch

    return torch.cat([rows.double() @ column for rows in matrix.split(2048)])


def attention(q: Any, k: Any, v: Any, *, allowed: Any = None, causal: bool = False) -> Any:
    """Attention in float64: q `[..., rows, dim]`, k and v `[..., keys, dim]`, allowed broadcast to `[..., rows, keys]`."""
    import torch

    scores = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(
            k.shape[-2] - q.shape[-2]
        )
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1) @ v.double()


def convolution(x: Any, weight: Any) -> Any:
    """A convolution with padding 1 and a 3x3 kernel, as a product of unfolded patches in float64: x `[n, c, h, w]`."""
    import torch.nn.functional as F  # noqa: N812

    count, _, height, width = x.shape
    patches = F.unfold(x.double(), 3, padding=1)
    return (weight.double().flatten(1) @ patches).view(count, weight.shape[0], height, width)


def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    """Root mean square normalisation over the last dimension."""
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight.double()


def silu_and_mul(x: Any) -> Any:
    """SiLU of the first half of the last dimension, times the second half."""
    gate, up = x.double().chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def rotated(x: Any, cache: Any, positions: Any, *, neox: bool) -> Any:
    """Rotary embedding: x `[tokens, heads, dim]`, cache `[positions, dim]` with cosines, then sines."""
    import torch

    cos, sin = (part.unsqueeze(1) for part in cache.double()[positions].chunk(2, dim=-1))
    wide = x.double()
    first, second = wide.chunk(2, dim=-1) if neox else (wide[..., ::2], wide[..., 1::2])
    parts = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(parts, dim=-1) if neox else torch.stack(parts, dim=-1).flatten(-2)


def judge_renormed(found: kit.Found, out: Any, probabilities: Any, *, top_k: Any = None, top_p: Any = None) -> None:
    """Judge a distribution cut to its k most probable tokens, or to the fewest whose sum reaches p.

    Which of two nearly equal tokens at the cut stays is left open: what is kept must be more probable than what is not, within 1e-5 of each
    other, be as many (or sum to as much) as it ought to, and be in proportion.

    Args:
        found: Where figures go.
        out: `[rows, tokens]`, what the kernel gave.
        probabilities: Before.
        top_k: How many, `[rows]`.
        top_p: Which sum, `[rows]`.
    """
    import torch

    wide = probabilities.double()
    kept = out > 0
    found.require(bool(torch.isfinite(out).all()), "the result has values that are no numbers")
    found.require(bool(kept.any(-1).all()), "a row has nothing left")
    least = wide.masked_fill(~kept, math.inf).amin(-1)
    most = wide.masked_fill(kept, -math.inf).amax(-1)
    found.at_most("order", max(-1.0, float(((most - least) / least).amax())), 1e-5)
    mass = (wide * kept).sum(-1)
    scaled = wide * kept / mass.unsqueeze(-1)
    found.at_most("relative_error", float((out.double() - scaled).norm() / scaled.norm()), 1e-5)
    if top_k is not None:
        surely = (wide > least.unsqueeze(-1)).sum(-1)
        found.at_most("too_few", int((top_k - kept.sum(-1)).amax()), 0)
        found.at_most("too_many", int((surely - top_k).amax()) + 1, 0)
    if top_p is not None:
        short = top_p.double() - mass
        spare = mass - least - top_p.double()
        found.at_most("mass_missing", float(short.amax()), 1e-5)
        found.at_most("mass_to_spare", float(spare.amax()), 1e-5)


def boxes_kept(boxes: Sequence[Sequence[float]], scores: Sequence[float], limit: float) -> tuple[list[int], float]:
    """Non-maximum suppression: the boxes that stay, best first, and how near the limit any overlap comes that decided."""
    order = sorted(range(len(boxes)), key=lambda index: -scores[index])
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes]
    kept: list[int] = []
    nearest = math.inf
    for index in order:
        x0, y0, x1, y1 = boxes[index]
        stays = True
        for other in kept:
            a0, b0, a1, b1 = boxes[other]
            both = max(0.0, min(x1, a1) - max(x0, a0)) * max(0.0, min(y1, b1) - max(y0, b0))
            overlap = both / (areas[index] + areas[other] - both)
            nearest = min(nearest, abs(overlap - limit))
            if overlap > limit:
                stays = False
                break
        if stays:
            kept.append(index)
    return kept, nearest


def roi_align(x: Any, boxes: Any, *, size: int, scale: float, samples: int) -> Any:
    """Means of bilinear samples over the bins of boxes, aligned by half a pixel, in float64.

    Args:
        x: `[n, c, h, w]`.
        boxes: `[boxes, 5]`: number in the batch, x0, y0, x1, y1.
        size: Bins a side.
        scale: Of the boxes' coordinates.
        samples: A side of each bin.
    """
    import torch

    wide = x.double()
    height, width = x.shape[-2:]
    steps = (torch.arange(size * samples, dtype=torch.float64, device=x.device) + 0.5) / samples
    out = []
    for number, *corners in boxes.double().tolist():
        x0, y0, x1, y1 = (corner * scale - 0.5 for corner in corners)
        ys, xs = (start + steps * (end - start) / size for start, end in ((y0, y1), (x0, x1)))
        grid = _bilinear(wide[int(number)], ys, xs, height, width)
        out.append(grid.view(-1, size, samples, size, samples).mean((2, 4)))
    return torch.stack(out)


def _bilinear(plane: Any, ys: Any, xs: Any, height: int, width: int) -> Any:
    import torch

    def ends(at: Any, limit: int) -> tuple[Any, Any, Any, Any]:
        outside = (at < -1.0) | (at > limit)
        at = at.clamp(0, limit - 1)
        low = at.floor().long()
        return low, (low + 1).clamp(max=limit - 1), at - low, ~outside

    y0, y1, fy, y_in = ends(ys, height)
    x0, x1, fx, x_in = ends(xs, width)
    rows = plane[:, y0] * (1 - fy)[:, None] + plane[:, y1] * fy[:, None]
    cells = rows[:, :, x0] * (1 - fx) + rows[:, :, x1] * fx
    return cells * (y_in[:, None] & x_in[None, :]).to(torch.float64)


# Trees


def random_parents(rows: int, chance: Any) -> list[int]:
    """Parents of a random tree of rows, sometimes deep, sometimes wide; a parent stands before its children, the root's is -1."""
    return [-1, *(row - 1 if chance.random() < 0.5 else chance.randrange(row) for row in range(1, rows))]


def ancestors(parents: Sequence[int]) -> list[list[bool]]:
    """Which rows each row sees: itself and its ancestors."""
    seen = [[False] * len(parents) for _ in parents]
    for row in range(len(parents)):
        at = row
        while at >= 0:
            seen[row][at] = True
            at = parents[at]
    return seen


def depths(parents: Sequence[int]) -> list[int]:
    """Steps from the root to each row."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def links(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each row, -1 where there is none; children in the order of their rows."""
    first, following = [-1] * len(parents), [-1] * len(parents)
    last = [-1] * len(parents)
    for row, parent in enumerate(parents):
        if parent < 0:
            continue
        if last[parent] < 0:
            first[parent] = row
        else:
            following[last[parent]] = row
        last[parent] = row
    return first, following


def walk(tokens: Sequence[int], parents: Sequence[int], decisions: Sequence[int]) -> list[int]:
    """The rows that the decisions lead through, from the root on: each next row is the child that holds the decision of the last."""
    path = [0]
    while True:
        children = [
            row for row, parent in enumerate(parents) if parent == path[-1] and tokens[row] == decisions[path[-1]]
        ]
        if not children:
            return path
        path.append(children[0])


def tokens_and_decisions(parents: Sequence[int], chance: Any) -> tuple[list[int], list[int]]:
    """Tokens of a tree's rows, siblings apart, and what a target decides after each row: mostly one of its children."""
    children: list[list[int]] = [[] for _ in parents]
    for row, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(row)
    tokens = [chance.randrange(1000, 2000)] * len(parents)
    decisions = []
    for row in range(len(parents)):
        drawn = chance.sample(range(1000, 1000 + 4 * len(parents)), len(children[row]) + 1)
        for child, token in zip(children[row], drawn, strict=False):
            tokens[child] = token
        lucky = children[row] and chance.random() < 0.8
        decisions.append(tokens[chance.choice(children[row])] if lucky else drawn[-1])
    return tokens, decisions


def best_prefixes(scores: Sequence[Sequence[float]], budget: int) -> float:
    """The greatest sum of probabilities that so many prefixes can have. All prefixes are tried, so only for small trees.

    Args:
        scores: Log-probabilities by position.
        budget: Nodes beside the root.
    """
    level, every = [0.0], []
    for row in scores:
        level = [parent + own for parent in level for own in row]
        every.extend(level)
    return sum(math.exp(score) for score in sorted(every, reverse=True)[:budget])


def tree_attention(
    q: Any,
    k: Any,
    v: Any,
    prefix: Sequence[tuple[Any, Any]],
    trees: Sequence[Sequence[int]],
    *,
    sees: Callable[..., Any],
) -> Any:
    """Attention of the rows of trees behind prefixes, request by request in float64.

    Args:
        q: `[requests * rows, heads, dim]`.
        k: `[requests * rows, kv heads, dim]`.
        v: Likewise.
        prefix: Keys and values before each tree, `[tokens, kv heads, dim]`.
        trees: Parents of each request's rows.
        sees: Which rows each row sees, of parents.
    """
    import torch

    rows = len(trees[0])
    group = q.shape[1] // k.shape[1]
    out = []
    for index, (parents, (before_k, before_v)) in enumerate(zip(trees, prefix, strict=True)):
        own = slice(index * rows, (index + 1) * rows)
        keys, values = (
            torch.cat(pair).repeat_interleave(group, dim=1) for pair in ((before_k, k[own]), (before_v, v[own]))
        )
        whole = torch.ones(rows, before_k.shape[0], dtype=torch.bool)
        allowed = torch.cat((whole, torch.tensor(sees(parents), dtype=torch.bool)), dim=1).to(q.device)
        heads = attention(q[own].transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), allowed=allowed)
        out.append(heads.transpose(0, 1))
    return torch.cat(out)
