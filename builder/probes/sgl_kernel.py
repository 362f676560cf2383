"""Probe: the compiled kernels of sgl_kernel that SGLang runs on every token give what float64 gives."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "sgl_kernel",
    "purpose": "Normalisation, activation, rotary embedding, sampling cuts, fp8 products, and building and walking of draft trees are right.",
    "tolerance": "16-bit results 4e-3, 8e-3 where they are rounded twice; sampling cuts 1e-5; fp8 products 2e-2 of their operands; trees exact",
    "needs": {"gpus": 1, "modules": ["torch", "sgl_kernel"]},
    "per": "gpu",
    "set": "quick",
    "compiles": False,
    "seconds": {"quick": 90, "full": 180},
    "memory_bytes": 4_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import kit, references
else:
    import kit

    references = kit.neighbour("references")

BOUND = 4e-3
EPSILON = 1e-6
FP8_MOST = 448.0


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases. The operators are called as torch knows them: the package's own functions hand some over to flashinfer."""
    import sgl_kernel
    import torch

    ops = torch.ops.sgl_kernel

    def case(name: str, what: Callable[..., None], **how: Any) -> kit.Case:
        return kit.Case(name, partial(what, probe=probe, torch=torch, ops=ops, **how))

    yield case("library", library, package=sgl_kernel)
    for dtype in ("bfloat16", "float16"):
        for rows, width in ((7, 256), (8192, 8192)):
            yield case(f"rmsnorm-{dtype}-{rows}x{width}", rmsnorm, dtype=dtype, rows=rows, width=width)
            yield case(f"silu-and-mul-{dtype}-{rows}x{width}", silu_and_mul, dtype=dtype, rows=rows, width=width)
    yield case("fused-add-rmsnorm-1000x4096", fused_add_rmsnorm, rows=1000, width=4096)
    for neox in (True, False):
        for tokens in (5, 4096):
            yield case(f"rotary-{'neox' if neox else 'interleaved'}-{tokens}", rotary, neox=neox, tokens=tokens)
    for rows, vocabulary in ((3, 1000), (128, 151936)):
        yield case(f"top-k-renorm-{rows}x{vocabulary}", top_k, rows=rows, vocabulary=vocabulary)
        yield case(f"top-p-renorm-{rows}x{vocabulary}", top_p, rows=rows, vocabulary=vocabulary)
    for m, n, k in ((16, 256, 128), (333, 512, 1024), (8192, 8192, 8192)):
        yield case(f"fp8-scaled-mm-{m}x{n}x{k}", fp8_scaled_mm, m=m, n=n, k=k)
    for requests in (1, 17):
        yield case(f"build-tree-{requests}", build_tree, requests=requests)
    for requests, rows in ((1, 9), (16, 65), (48, 256)):
        yield case(f"verify-tree-{requests}x{rows}", verify_tree, requests=requests, rows=rows)


def library(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, package: Any) -> None:
    """Which build of the kernels was loaded: there is one for Hopper and one for all others."""
    del torch, ops
    path = str(package.common_ops.__file__)
    kind = path.split("/")[-2]
    found.note("build", kind)
    found.note("version", str(package.__version__))
    wanted = "sm90" if kit.capability() == (9, 0) else "sm100"
    found.require(kind == wanted, f"it loaded the build for {kind}, this GPU takes {wanted}")
    del probe


def rmsnorm(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, dtype: str, rows: int, width: int) -> None:
    """Root mean square normalisation."""
    x, weight = _normal(probe, torch, f"rmsnorm-{dtype}-{rows}", getattr(torch, dtype), (rows, width), (width,))
    out = kit.poisoned(rows, width, dtype=x.dtype, device=kit.DEVICE)
    pdl = kit.capability() >= (9, 0)
    ops.rmsnorm.default(out, x, weight, EPSILON, pdl)
    kit.compare(found, out, references.rms_norm(x, weight, EPSILON), BOUND)
    if rows >= 8192:
        seconds = kit.seconds_of(lambda: ops.rmsnorm.default(out, x, weight, EPSILON, pdl))
        found.speed("memory", 4 * rows * width / seconds / 1e9, "GB/s", "memory", least=0.1)


def fused_add_rmsnorm(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, rows: int, width: int) -> None:
    """The sum with the residual, and its normalisation, both in place."""
    shapes = ((rows, width), (rows, width), (width,))
    x, residual, weight = _normal(probe, torch, "fused-add-rmsnorm", torch.bfloat16, *shapes)
    before_x, before = x.clone(), residual.clone()
    ops.fused_add_rmsnorm.default(x, residual, weight, EPSILON, kit.capability() >= (9, 0))
    both = before_x.double() + before.double()
    kit.compare(found, residual, both, BOUND, name="residual_")
    kit.compare(found, x, references.rms_norm(both, weight, EPSILON), 2 * BOUND)


def silu_and_mul(
    found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, dtype: str, rows: int, width: int
) -> None:
    """The gated activation of a feed-forward layer."""
    (x,) = _normal(probe, torch, f"silu-{dtype}-{rows}", getattr(torch, dtype), (rows, width))
    out = kit.poisoned(rows, width // 2, dtype=x.dtype, device=kit.DEVICE)
    ops.silu_and_mul.default(out, x)
    # Its two factors are rounded to 16 bits before they are multiplied.
    kit.compare(found, out, references.silu_and_mul(x), 2 * BOUND)


def rotary(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, neox: bool, tokens: int) -> None:
    """Rotary embedding of queries and keys, in place; the cache has the type of the queries."""
    heads, kv_heads, width, longest = 8, 2, 128, 8192
    name = f"rotary-{neox}-{tokens}"
    shapes = ((tokens, heads * width), (tokens, kv_heads * width))
    query, key = _normal(probe, torch, name, torch.bfloat16, *shapes)
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=kit.DEVICE) / width)
    angles = torch.arange(longest, dtype=torch.float64, device=kit.DEVICE).unsqueeze(1) * rates
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(torch.bfloat16)
    positions = torch.randint(longest, (tokens,), generator=probe.generator(name, kit.DEVICE), device=kit.DEVICE)
    truths = [
        references.rotated(part.clone().view(tokens, -1, width), cache, positions, neox=neox).flatten(1)
        for part in (query, key)
    ]
    ops.rotary_embedding.default(positions, query, key, width, cache, neox)
    # Its products are rounded to 16 bits before they are added.
    kit.compare(found, query, truths[0], 2 * BOUND, name="query_")
    kit.compare(found, key, truths[1], 2 * BOUND, name="key_")


def top_k(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, rows: int, vocabulary: int) -> None:
    """Distributions cut to their k most probable tokens, k by row."""
    probabilities, generator = _distribution(probe, torch, f"top-k-{rows}", rows, vocabulary)
    limits = torch.randint(1, 200, (rows,), generator=generator, device=kit.DEVICE).to(torch.int32)
    out = kit.poisoned(rows, vocabulary, dtype=torch.float32, device=kit.DEVICE)
    ops.top_k_renorm_probs.default(probabilities, out, limits, 0)
    references.judge_renormed(found, out, probabilities, top_k=limits)


def top_p(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, rows: int, vocabulary: int) -> None:
    """Distributions cut to the most probable tokens that sum to p, p by row."""
    probabilities, generator = _distribution(probe, torch, f"top-p-{rows}", rows, vocabulary)
    limits = torch.rand(rows, generator=generator, device=kit.DEVICE) * 0.9 + 0.05
    out = kit.poisoned(rows, vocabulary, dtype=torch.float32, device=kit.DEVICE)
    ops.top_p_renorm_probs.default(probabilities, out, limits, 0.0)
    references.judge_renormed(found, out, probabilities, top_p=limits)


def fp8_scaled_mm(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, m: int, n: int, k: int) -> None:
    """A product in fp8 with a scale for each row of the left and each column of the right."""
    kit.need_capability((8, 9), "fp8")
    name = f"fp8-{m}x{n}x{k}"
    left, right = _normal(probe, torch, name, torch.float32, (m, k), (n, k))
    scales = [side.abs().amax(1, keepdim=True) / FP8_MOST for side in (left, right)]
    small = [(side / scale).to(torch.float8_e4m3fn) for side, scale in zip((left, right), scales, strict=True)]
    truth = [part.to(torch.float32) * scale for part, scale in zip(small, scales, strict=True)]

    def work() -> Any:
        return ops.fp8_scaled_mm.default(small[0], small[1].t(), scales[0], scales[1], torch.bfloat16, None)

    kit.poison_pool(torch.empty(m, n, dtype=torch.bfloat16, device=kit.DEVICE))
    out = work()
    if tuple(out.shape) != (m, n):
        raise kit.Wrong(f"the result has shape {tuple(out.shape)}, it must be {(m, n)}")
    # Its sums are kept in the fewer bits that Hopper has for fp8.
    references.matmul(found, out, truth[0], truth[1].t(), probe.generator(f"rows-{name}"), bound=2e-2)
    if m >= 8192:
        found.speed("rate", 2 * m * n * k / kit.seconds_of(work) / 1e12, "TFLOP/s", "fp8", least=0.3)


def build_tree(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, requests: int) -> None:
    """Mask, positions and links of draft trees as EAGLE describes them, exactly."""
    chance = random.Random(probe.number(f"build-tree-{requests}"))
    wide, deep, rows = 4, 5, 32
    trees = [eagle_tree(chance, wide, deep, rows) for _ in range(requests)]
    lengths = [chance.randrange(1, 300) for _ in trees]

    def ints(values: Any) -> Any:
        return torch.tensor(values, dtype=torch.int64, device=kit.DEVICE)

    cells = sum(rows * (length + rows) for length in lengths)
    mask = torch.ones(cells, dtype=torch.bool, device=kit.DEVICE)
    positions = torch.full((requests * rows,), -7, dtype=torch.int64, device=kit.DEVICE)
    index = torch.full((requests, rows), -7, dtype=torch.int64, device=kit.DEVICE)
    child, sibling = (torch.full((requests, rows), -1, dtype=torch.int64, device=kit.DEVICE) for _ in range(2))
    ops.build_tree_kernel_efficient.default(
        ints([tree[0] for tree in trees]),
        ints([tree[1] for tree in trees]),
        ints(lengths),
        mask,
        positions,
        index,
        child,
        sibling,
        wide,
        deep,
        rows,
        0,
    )
    parents = [tree[2] for tree in trees]
    sees = [
        [True] * length + row
        for length, tree in zip(lengths, parents, strict=True)
        for row in references.ancestors(tree)
    ]
    linked = [references.links(tree) for tree in parents]
    depths = [
        length + depth for length, tree in zip(lengths, parents, strict=True) for depth in references.depths(tree)
    ]
    wrong = {
        "mask": mask.cpu() != torch.tensor([cell for row in sees for cell in row]),
        "positions": positions.cpu() != torch.tensor(depths),
        "index": index.cpu() != torch.arange(requests * rows).view(requests, rows),
        "first_child": child.cpu() != torch.tensor([first for first, _ in linked]),
        "next_sibling": sibling.cpu() != torch.tensor([following for _, following in linked]),
    }
    for name, cells_wrong in wrong.items():
        found.at_most(f"wrong_{name}", int(cells_wrong.sum()), 0)


def eagle_tree(chance: random.Random, wide: int, deep: int, rows: int) -> tuple[list[int], list[int], list[int]]:
    """A random draft tree as EAGLE gives it to the kernel, and its parents.

    The first step proposes `wide` tokens; each later one `wide` children for each of `wide` proposals that the step before chose. Proposals
    are numbered step by step. The kernel gets, for each choice, which proposal it was (behind one entry for the root), and the proposals
    that the tree has.
    """
    chosen = [list(range(wide))]
    for step in range(1, deep):
        first = wide + (step - 1) * wide * wide
        chosen.append(chance.sample(range(first, first + wide * wide), wide))
    parent_list = [-1, *(proposal for step in chosen[: deep - 1] for proposal in step)]
    taken: list[int] = []
    while len(taken) < rows - 1:
        open_now = [
            proposal
            for proposal in range(wide + (deep - 1) * wide * wide)
            if proposal not in taken and (proposal < wide or parent_list[proposal // wide] in taken)
        ]
        taken.append(chance.choice(open_now))
    taken.sort()
    parents = [-1, *(0 if each < wide else 1 + taken.index(parent_list[each // wide]) for each in taken)]
    return parent_list, taken, parents


def verify_tree(found: kit.Found, probe: kit.Probe, torch: Any, ops: Any, *, requests: int, rows: int) -> None:
    """The walk of the target's greedy decisions through trees, exactly."""
    chance = random.Random(probe.number(f"verify-tree-{requests}-{rows}"))
    longest = 16
    trees = [references.random_parents(rows, chance) for _ in range(requests)]
    tokens, decisions, paths = [], [], []
    for parents in trees:
        own, decided = references.tokens_and_decisions(parents, chance)
        tokens.append(own)
        decisions.append(decided)
        paths.append(references.walk(own, parents, decided)[:longest])

    def ints(values: Any) -> Any:
        return torch.tensor(values, dtype=torch.int64, device=kit.DEVICE)

    linked = [references.links(parents) for parents in trees]
    predicted = torch.full((requests * rows,), -7, dtype=torch.int32, device=kit.DEVICE)
    accepted = torch.full((requests, longest), -1, dtype=torch.int32, device=kit.DEVICE)
    counts = torch.full((requests,), -7, dtype=torch.int32, device=kit.DEVICE)
    ops.verify_tree_greedy.default(
        predicted,
        accepted,
        counts,
        ints(tokens),
        torch.arange(requests * rows, device=kit.DEVICE).view(requests, rows),
        ints([first for first, _ in linked]),
        ints([following for _, following in linked]),
        ints(decisions),
    )
    wrong_paths = wrong_counts = wrong_tokens = 0
    said, rows_of, many = predicted.tolist(), accepted.tolist(), counts.tolist()
    for number, path in enumerate(paths):
        flat = [number * rows + row for row in path]
        wrong_paths += rows_of[number] != flat + [-1] * (longest - len(flat))
        wrong_counts += many[number] != len(path) - 1
        wrong_tokens += [said[row] for row in flat] != [decisions[number][row] for row in path]
    found.at_most("wrong_paths", wrong_paths, 0)
    found.at_most("wrong_counts", wrong_counts, 0)
    found.at_most("wrong_tokens", wrong_tokens, 0)
    found.note("mean_accepted", round(sum(map(len, paths)) / len(paths), 2))


def _normal(probe: kit.Probe, torch: Any, name: str, dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    generator = probe.generator(name, kit.DEVICE)
    return [torch.randn(shape, generator=generator, device=kit.DEVICE).to(dtype) for shape in shapes]


def _distribution(probe: kit.Probe, torch: Any, name: str, rows: int, vocabulary: int) -> tuple[Any, Any]:
    generator = probe.generator(name, kit.DEVICE)
    logits = torch.randn(rows, vocabulary, generator=generator, device=kit.DEVICE) * 3
    return logits.softmax(-1), generator


if __name__ == "__main__":
    kit.main(ABOUT, cases)
