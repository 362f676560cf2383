"""Runs a probe's cases on a CPU, by the environment's Python, with plain torch in place of kernels: right ones, and ones with a planted fault.

    python trial.py FOLDER-OF-PROBES PROBE FAULT=CASE,CASE...

FAULT is `none`, or names a fault below. Output is `{"fault": ...}` and the probe's stream, for each. What is shown is that a right result
passes each comparison and a wrong one does not; what runs on a GPU is no part of it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

FOLDER, NAME, *GROUPS = sys.argv[1:]
FAULT = "none"
sys.path.insert(0, FOLDER)
os.environ["TRITON_INTERPRET"] = "1"

import kit

kit.DEVICE = "cpu"
kit.capability = lambda: (9, 0)
kit.room = lambda probe: 1 << 26


def once(work, **how):
    work()
    return 1e-3


kit.seconds_of = once


def load(name):
    spec = importlib.util.spec_from_file_location(f"probe_{name}", Path(FOLDER, f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probe = load(NAME)
import torch

references = kit.neighbour("references")


def one_wrong(tensor):
    """One element of a result is another one."""
    flat = tensor.view(-1)
    flat[flat.numel() // 3] = flat[flat.numel() // 3] * 3 + 1
    return tensor


def tile_wrong(tensor):
    """A block of a result is missing."""
    tensor[: max(1, tensor.shape[0] // 8), : max(1, tensor.shape[1] // 8)] = 0
    return tensor


def not_written(tensor):
    """The last part of a result was never written."""
    tensor.view(-1)[-1:] = float("nan")
    return tensor


def coarse(tensor):
    """A result with 5 bits."""
    scale = torch.ldexp(torch.ones(()), torch.frexp(tensor.float())[1] - 5)
    tensor.copy_((tensor.float() / scale).round() * scale)
    return tensor


FAULTS = {"one": one_wrong, "tile": tile_wrong, "nan": not_written, "coarse": coarse, "none": lambda tensor: tensor}


def HURT(tensor):  # noqa: N802 - what is done to every result
    return FAULTS.get(FAULT, FAULTS["none"])(tensor)


def hurt(function):
    def wrapped(*args, out=None, **more):
        result = function(*args, out=out, **more) if out is not None else function(*args, **more)
        return HURT(result)

    return wrapped


def patch_torch():
    torch.matmul = hurt(torch.matmul)
    torch._scaled_mm = hurt(torch._scaled_mm)
    functional = torch.nn.functional
    functional.conv2d = hurt(functional.conv2d)
    real = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = hurt(lambda q, k, v, is_causal: real(q, k, v, is_causal=is_causal))
    layer_norm = functional.layer_norm
    functional.layer_norm = lambda x, *rest, **more: (
        layer_norm(x, *rest, **more) if x.dtype == torch.float64 else HURT(layer_norm(x, *rest, **more))
    )
    softmax = torch.Tensor.softmax
    torch.Tensor.softmax = lambda x, *rest: softmax(x, *rest) if x.dtype == torch.float64 else HURT(softmax(x, *rest))
    total = torch.sum
    torch.sum = lambda x, dim, keepdim, out: HURT(total(x, dim=dim, keepdim=keepdim, out=out).view(1, 1)).view(1)
    copy = torch.Tensor.copy_
    torch.Tensor.copy_ = lambda x, y, *rest: HURT(copy(x, y, *rest)) if x.dtype == torch.int64 else copy(x, y, *rest)
    sort = torch.Tensor.sort

    def sorted_wrong(x, *rest, **more):
        values, places = sort(x, *rest, **more)
        if FAULT != "none":
            values[[3, 4]] = values[[4, 3]]
        return values, places

    torch.Tensor.sort = sorted_wrong


def patch_sgl_kernel():
    library = torch.library.Library("sgl_kernel", "IMPL", "CPU")

    def norm(out, x, weight, epsilon, pdl):
        out.copy_(references.rms_norm(x, weight, epsilon))
        HURT(out)

    def fused(x, residual, weight, epsilon, pdl):
        both = x.double() + residual.double()
        residual.copy_(both)
        x.copy_(references.rms_norm(both, weight, epsilon))
        HURT(x)

    def silu(out, x):
        out.copy_(torch.nn.functional.silu(x[:, : x.shape[1] // 2].float()) * x[:, x.shape[1] // 2 :].float())
        HURT(out)

    def rotary(positions, query, key, width, cache, neox):
        for part in (query, key):
            heads = part.view(len(positions), -1, width)
            # The other way round on purpose: not the reference's own code.
            cos, sin = cache[positions].float().split(width // 2, dim=1)
            for head in range(heads.shape[1]):
                at = (
                    (slice(0, width // 2), slice(width // 2, width))
                    if neox
                    else (slice(0, width, 2), slice(1, width, 2))
                )
                a, b = heads[:, head, at[0]].float(), heads[:, head, at[1]].float()
                if FAULT == "style":
                    cos, sin = sin, cos
                heads[:, head, at[0]], heads[:, head, at[1]] = (
                    (a * cos - b * sin).to(part.dtype),
                    (b * cos + a * sin).to(part.dtype),
                )
        HURT(query)

    def cut_k(probabilities, out, limits, value):
        for row, limit in enumerate(limits.tolist()):
            best = probabilities[row].topk(limit + (FAULT == "off-by-one")).indices
            out[row] = 0
            out[row, best] = probabilities[row, best] / probabilities[row, best].sum()
        HURT(out)

    def cut_p(probabilities, out, limits, value):
        for row, limit in enumerate(limits.tolist()):
            ordered, places = probabilities[row].double().sort(descending=True)
            count = int((ordered.cumsum(0) < limit).sum()) + 1 + (FAULT == "off-by-one")
            out[row] = 0
            out[row, places[:count]] = (ordered[:count] / ordered[:count].sum()).float()
        HURT(out)

    def scaled(left, right, left_scale, right_scale, dtype, bias):
        out = (left.float() * left_scale) @ (right.float() * right_scale.view(1, -1))
        return HURT(out.to(dtype))

    def build(parent_list, selected, lengths, mask, positions, index, child, sibling, wide, deep, rows, mode):
        at = 0
        for request, (length, own) in enumerate(zip(lengths.tolist(), selected.tolist(), strict=True)):
            up = parent_list[request].tolist()
            parents = [-1] + [0 if each < wide else own.index(up[each // wide]) + 1 for each in own]
            for row in range(rows):
                line = [True] * length + [False] * rows
                step, depth = row, 0
                while step >= 0:
                    line[length + step] = True
                    step, depth = parents[step], depth + (parents[step] >= 0)
                if FAULT == "mask" and row == rows - 1:
                    line[length + rows - 2] = not line[length + rows - 2]
                mask[at : at + len(line)] = torch.tensor(line)
                at += len(line)
                positions[request * rows + row] = length + depth
            for row in range(rows - 1, 0, -1):
                sibling[request, row] = child[request, parents[row]]
                child[request, parents[row]] = row
        index.copy_(torch.arange(index.numel()).view_as(index))
        if FAULT == "links":
            sibling[0, -1] = 1

    def verify(predicted, accepted, counts, tokens, index, child, sibling, decisions):
        for request in range(tokens.shape[0]):
            row, length = 0, 0
            accepted[request, 0] = index[request, 0]
            while True:
                predicted[index[request, row]] = decisions[request, row].to(torch.int32)
                follower = int(child[request, row])
                while follower >= 0 and tokens[request, follower] != decisions[request, row]:
                    follower = int(sibling[request, follower])
                if follower < 0 or length + 1 >= accepted.shape[1]:
                    break
                length, row = length + 1, follower
                accepted[request, length] = index[request, row]
            counts[request] = length - (FAULT == "off-by-one")

    for name, function in {
        "rmsnorm": norm,
        "fused_add_rmsnorm": fused,
        "silu_and_mul": silu,
        "rotary_embedding": rotary,
        "top_k_renorm_probs": cut_k,
        "top_p_renorm_probs": cut_p,
        "fp8_scaled_mm": scaled,
        "build_tree_kernel_efficient": build,
        "verify_tree_greedy": verify,
    }.items():
        library.impl(name, function)
    return library


ORIGINALS = {}


def patch_ddtree():
    """Bugs as somebody could make them in `ddtree_utils.py`."""
    from sglang.srt.speculative import ddtree_utils as utils

    for name in ("tree_visibility", "pack_mask", "build_tree", "walk_tree"):
        setattr(utils, name, ORIGINALS.setdefault(name, getattr(utils, name)))
    visibility, packed, build, walk = utils.tree_visibility, utils.pack_mask, utils.build_tree, utils.walk_tree
    if FAULT == "mask":  # a row sees its elder sibling

        def tree_visibility(tree, depth):
            seen = visibility(tree, depth).clone()
            seen[:, -1, -2] = True
            return seen

        utils.tree_visibility = tree_visibility
    if FAULT == "pack":  # the columns are off by one
        utils.pack_mask = lambda seen, lengths, total: packed(seen.roll(1, dims=2), lengths, total)
    if FAULT == "order":  # the last two nodes change places

        def build_tree(*rest, **more):
            tree = build(*rest, **more)
            if more.get("method") == "kernel":
                tree.tokens[:, [-1, -2]] = tree.tokens[:, [-2, -1]]
            return tree

        utils.build_tree = build_tree
    if FAULT == "causal":  # a chain's mask
        utils.tree_visibility = lambda tree, depth: (
            visibility(tree, depth) | torch.ones_like(visibility(tree, depth)).tril()
        )
    if FAULT == "walk":  # it stops a step early
        utils.walk_tree = lambda *rest: tuple(part[: max(1, len(part) - 1)] for part in walk(*rest))
    # Triton's interpreter takes bf16 for integers.
    torch.bfloat16 = torch.float16


def patch_flashinfer():
    """Wrappers that read the plan as flashinfer documents it."""
    import flashinfer

    class Wrapper:
        def __init__(self, workspace, layout, backend="auto"):
            assert layout == "NHD"

        def keys_of(self, cache, request):
            starts, indices, last, page = self.table
            own = indices[int(starts[request]) : int(starts[request + 1])].long()
            size = page * (len(own) - 1) + int(last[request])
            return [part[own].flatten(0, 1)[:size].float() for part in cache]

        def attend(self, q, cache, request, seen=None):
            keys, values = self.keys_of(cache, request)
            group = q.shape[1] // keys.shape[1]
            if FAULT == "last-page":
                keys, values = keys[:-1], values[:-1]
                seen = None if seen is None else seen[:, :-1]
            scores = torch.einsum("qhd,khd->hqk", q.float(), keys.repeat_interleave(group, 1)) / q.shape[-1] ** 0.5
            if seen is not None:
                scores = scores.masked_fill(~seen, float("-inf"))
            return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values.repeat_interleave(group, 1))

    class Decode(Wrapper):
        def plan(self, starts, indices, last, heads, kv_heads, width, page, *, q_data_type, kv_data_type):
            assert starts.dtype == indices.dtype == last.dtype == torch.int32
            self.table = (starts, indices, last, page)

        def run(self, q, cache, out):
            for request in range(len(q)):
                out[request] = self.attend(q[request : request + 1], cache, request)[0]
            HURT(out)

    class Prefill(Wrapper):
        def plan(
            self,
            rows,
            starts,
            indices,
            last,
            heads,
            kv_heads,
            width,
            page,
            *,
            q_data_type,
            kv_data_type,
            custom_mask=None,
            causal=False,
        ):
            assert rows.dtype == starts.dtype == indices.dtype == last.dtype == torch.int32
            self.table, self.rows, self.mask, self.causal = (starts, indices, last, page), rows, custom_mask, causal

        def run(self, q, cache, out):
            at = 0
            for request in range(len(self.rows) - 1):
                own = slice(int(self.rows[request]), int(self.rows[request + 1]))
                count = own.stop - own.start
                size = len(self.keys_of(cache, request)[0])
                if self.mask is not None and FAULT != "unmasked":
                    seen = self.mask[at : at + count * size].view(count, size)
                    at += count * size
                elif self.causal:
                    seen = torch.ones(count, size, dtype=torch.bool).tril(size - count)
                else:
                    seen = torch.ones(count, size, dtype=torch.bool)
                out[own] = self.attend(q[own], cache, request, seen)

    flashinfer.BatchDecodeWithPagedKVCacheWrapper = Decode
    flashinfer.BatchPrefillWithPagedKVCacheWrapper = Prefill
    torch.cuda.synchronize = lambda: None


torch.backends.cuda.preferred_blas_library = lambda name: None
kept = None
if NAME == "torch":
    cases = probe.cases
    patched = []

    def cases_of_patched(asked):
        found = list(cases(asked))
        if not patched:
            patched.append(patch_torch())
        return found

    probe.cases = cases_of_patched
if NAME == "triton":
    torch.bfloat16 = torch.float16  # its interpreter takes bf16 for integers
if NAME == "sgl_kernel":
    import sgl_kernel  # noqa: F401 - its operators

    kept = patch_sgl_kernel()
if NAME == "flashinfer":
    patch_flashinfer()

stream = kit._Stream(os.dup(1))
os.dup2(2, 1)
for group in GROUPS:
    FAULT, _, asked = group.partition("=")
    if NAME == "ddtree":
        patch_ddtree()
    request = {
        "seed": int(os.environ.get("TRIAL_SEED", "7")),
        "set": "quick",
        "mode": "run",
        "cases": asked.split(",") if asked else None,
        "gpu": {"name": "none"},
    }
    stream.say({"fault": FAULT})
    kit.run(probe.ABOUT, probe.cases, request, kit._Stream(stream.descriptor))
