"""The two models in plain PyTorch: a Qwen3-like target and a DFlash drafter.

Weights are dictionaries of tensors; those of layers are stacked along the first axis, which keeps the optimizer at a dozen tensors. Names and
arithmetic follow what SGLang 0.5.11 computes (`models/qwen3.py`, `models/dflash.py`): RMSNorm before each half layer, RMSNorm of queries and
keys by head, rotary positions in halves, SwiGLU, grouped queries. The stream between layers is bf16, as it is when the model is served.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

Weights = dict[str, torch.Tensor]

EPS = 1e-6
ROPE_THETA = 1e6
LAYER_NAMES = ("ln1", "qkv", "q_norm", "k_norm", "o", "ln2", "gate_up", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one model."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads."""
        return self.kv_heads * self.head_dim

    def record(self) -> dict[str, int]:
        """As JSON has it."""
        return asdict(self)


def init_layers(shape: Shape, *, depth: int, device: str, generator: torch.Generator) -> Weights:
    """Random weights of the layers; the halves that write to the stream are scaled down by the depth."""

    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        std = scale / math.sqrt(columns)
        return torch.randn(shape.layers, rows, columns, device=device, generator=generator) * std

    def ones(width: int) -> torch.Tensor:
        return torch.ones(shape.layers, width, device=device)

    out = 1 / math.sqrt(2 * depth)
    return {
        "ln1": ones(shape.hidden),
        "qkv": normal(shape.q_size + 2 * shape.kv_size, shape.hidden),
        "q_norm": ones(shape.head_dim),
        "k_norm": ones(shape.head_dim),
        "o": normal(shape.hidden, shape.q_size, out),
        "ln2": ones(shape.hidden),
        "gate_up": normal(2 * shape.inner, shape.hidden),
        "down": normal(shape.hidden, shape.inner, out),
    }


def init_target(shape: Shape, *, device: str, seed: int) -> Weights:
    """Random weights of the target, in float32."""
    generator = torch.Generator(device=device).manual_seed(seed)
    weights = init_layers(shape, depth=shape.layers, device=device, generator=generator)
    weights["embed"] = torch.randn(shape.vocab, shape.hidden, device=device, generator=generator) * 0.3
    weights["norm"] = torch.ones(shape.hidden, device=device)
    weights["lm_head"] = torch.randn(shape.vocab, shape.hidden, device=device, generator=generator) * 0.02
    return weights


def init_draft(shape: Shape, *, features: int, device: str, seed: int) -> Weights:
    """Random weights of the drafter, in float32.

    Args:
        shape: Its sizes; hidden, vocabulary and head size are the target's.
        features: How many layers of the target it sees.
        device: Where.
        seed: Of the random numbers.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    weights = init_layers(shape, depth=shape.layers, device=device, generator=generator)
    wide = features * shape.hidden
    weights["fc"] = torch.randn(shape.hidden, wide, device=device, generator=generator) / math.sqrt(wide)
    weights["hidden_norm"] = torch.ones(shape.hidden, device=device)
    weights["norm"] = torch.ones(shape.hidden, device=device)
    return weights


def layers_of(weights: Weights) -> list[tuple[torch.Tensor, ...]]:
    """Weights of each layer, in the order of LAYER_NAMES."""
    return list(zip(*(weights[name].unbind(0) for name in LAYER_NAMES), strict=True))


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm over the last axis."""
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def rope_table(positions: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `[..., head_dim / 2]` of positions, in float32."""
    half = head_dim // 2
    steps = torch.arange(half, device=positions.device, dtype=torch.float32)
    angles = positions.float().unsqueeze(-1) * ROPE_THETA ** (-steps / half)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions over `[batch, heads, time, head_dim]`."""
    wide = x if x.dtype == torch.float64 else x.float()
    first, second = wide.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def heads_of(x: torch.Tensor, count: int, head_dim: int) -> torch.Tensor:
    """`[batch, time, count * head_dim]` as `[batch, count, time, head_dim]`."""
    return x.view(*x.shape[:2], count, head_dim).transpose(1, 2)


def swiglu(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The second half layer."""
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


def causal_layer(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    kv_heads: int,
) -> torch.Tensor:
    """One layer of the target over whole sequences `[batch, time, hidden]`."""
    ln1, qkv, q_norm, k_norm, o, ln2, gate_up, down = weights
    head_dim = q_norm.shape[0]
    q, k, v = F.linear(rms(x, ln1), qkv).split((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), dim=-1)
    q = rotate(rms(heads_of(q, heads, head_dim), q_norm), cos, sin)
    k = rotate(rms(heads_of(k, kv_heads, head_dim), k_norm), cos, sin)
    v = heads_of(v, kv_heads, head_dim)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + F.linear(mixed.transpose(1, 2).flatten(2), o)
    return x + swiglu(rms(x, ln2), gate_up, down)


Layer = Callable[..., torch.Tensor]


def target_stream(
    weights: Weights,
    shape: Shape,
    ids: torch.Tensor,
    *,
    keep: tuple[int, ...] = (),
    layer: Layer = causal_layer,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Final hidden states (normed) of sequences, and the stream after the layers in `keep`."""
    x = F.embedding(ids, weights["embed"])
    cos, sin = rope_table(torch.arange(ids.shape[1], device=ids.device), shape.head_dim)
    kept = []
    for index, layer_weights in enumerate(layers_of(weights)):
        x = layer(x, layer_weights, cos, sin, shape.heads, shape.kv_heads)
        if index in keep:
            kept.append(x)
    return rms(x, weights["norm"]), kept


class Decoder:
    """Generates with a cache of fixed size, all sequences at the same position; on a GPU each step is one replayed graph."""

    def __init__(self, weights: Weights, shape: Shape, *, batch: int, length: int) -> None:
        self.weights, self.shape, self.batch, self.length = weights, shape, batch, length
        self.device = weights["embed"].device
        cache = (shape.layers, batch, shape.kv_heads, length, shape.head_dim)
        self.keys = torch.zeros(cache, device=self.device, dtype=weights["embed"].dtype)
        self.values = torch.zeros_like(self.keys)
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=self.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.temperature = torch.zeros(batch, 1, device=self.device)
        self.table = rope_table(torch.arange(length, device=self.device), shape.head_dim)
        self.steps = torch.arange(length, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def _step(self) -> None:
        shape = self.shape
        x = F.embedding(self.tokens, self.weights["embed"])
        cos, sin = (part.index_select(0, self.position) for part in self.table)
        blocked = (self.steps > self.position).view(1, 1, 1, -1)
        group = shape.heads // shape.kv_heads
        for index, (ln1, qkv, q_norm, k_norm, o, ln2, gate_up, down) in enumerate(layers_of(self.weights)):
            q, k, v = F.linear(rms(x, ln1), qkv).split((shape.q_size, shape.kv_size, shape.kv_size), dim=-1)
            q = rotate(rms(q.view(self.batch, shape.heads, 1, -1), q_norm), cos, sin)
            k = rotate(rms(k.view(self.batch, shape.kv_heads, 1, -1), k_norm), cos, sin)
            self.keys[index].index_copy_(2, self.position, k)
            self.values[index].index_copy_(2, self.position, v.view(self.batch, shape.kv_heads, 1, -1))
            q = q.view(self.batch, shape.kv_heads, group, shape.head_dim)
            scores = q @ self.keys[index].transpose(-1, -2) / math.sqrt(shape.head_dim)
            scores = scores if x.dtype == torch.float64 else scores.float()
            mixed = scores.masked_fill(blocked, float("-inf")).softmax(-1).to(x.dtype) @ self.values[index]
            x = x + F.linear(mixed.reshape(self.batch, -1), o)
            x = x + swiglu(rms(x, ln2), gate_up, down)
        logits = F.linear(rms(x, self.weights["norm"]), self.weights["lm_head"]).float()
        noise = -torch.log(torch.empty_like(logits).exponential_())
        self.tokens.copy_((logits + self.temperature * noise).argmax(-1))
        self.position += 1

    def _prefill(self, prompts: torch.Tensor) -> None:
        shape = self.shape
        time = prompts.shape[1]
        cos, sin = (part[:time] for part in self.table)
        x = F.embedding(prompts, self.weights["embed"])
        for index, weights in enumerate(layers_of(self.weights)):
            ln1, qkv, _, k_norm = weights[:4]
            _, k, v = F.linear(rms(x, ln1), qkv).split((shape.q_size, shape.kv_size, shape.kv_size), dim=-1)
            self.keys[index, :, :, :time] = rotate(rms(heads_of(k, shape.kv_heads, shape.head_dim), k_norm), cos, sin)
            self.values[index, :, :, :time] = heads_of(v, shape.kv_heads, shape.head_dim)
            x = causal_layer(x, weights, cos, sin, shape.heads, shape.kv_heads)

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def generate(self, prompts: torch.Tensor, *, temperature: torch.Tensor) -> torch.Tensor:
        """Prompts `[batch, time]` continued up to the length of the cache.

        Args:
            prompts: All of one length.
            temperature: One a sequence; 0 is greedy.
        """
        time = prompts.shape[1]
        self.temperature.copy_(temperature.view(-1, 1))
        self._prefill(prompts[:, :-1])
        if self.device.type == "cuda" and self.graph is None:
            self._warm(prompts, time)
        self.tokens.copy_(prompts[:, -1])
        self.position.fill_(time - 1)
        out = [prompts]
        for _ in range(self.length - time):
            if self.graph is None:
                self._step()
            else:
                self.graph.replay()
            out.append(self.tokens.clone().unsqueeze(1))
        return torch.cat(out, dim=1)

    def _warm(self, prompts: torch.Tensor, time: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.tokens.copy_(prompts[:, -1])
            self.position.fill_(time - 1)
            self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self.position.fill_(time - 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.graph = graph


def draft_blocks(
    weights: Weights,
    shape: Shape,
    embed: torch.Tensor,
    features: torch.Tensor,
    roots: torch.Tensor,
    anchors: torch.Tensor,
    *,
    block: int,
    mask_id: int,
) -> torch.Tensor:
    """Hidden states (normed) `[batch, blocks, block, hidden]` of blocks that start at anchors.

    A block sees the features of the tokens before its anchor, and all of itself; not its anchor's features, since the target has not read that
    token yet when the block is drafted.

    Args:
        weights: Of the drafter.
        shape: Of the drafter.
        embed: The target's embedding.
        features: The target's stream after the chosen layers, side by side: `[batch, time, features * hidden]`.
        roots: Tokens at the anchors, `[batch, blocks]`.
        anchors: Positions of the blocks, `[batch, blocks]`.
        block: Tokens a block, the root included.
        mask_id: Token that stands for an open position.
    """
    batch, time, _ = features.shape
    blocks = anchors.shape[1]
    context = rms(F.linear(features, weights["fc"]), weights["hidden_norm"])
    ids = torch.full((batch, blocks, block), mask_id, dtype=torch.int64, device=anchors.device)
    ids[:, :, 0] = roots
    x = F.embedding(ids.flatten(1), embed)
    own_positions = (anchors.unsqueeze(-1) + torch.arange(block, device=anchors.device)).flatten(1)
    own_cos, own_sin = (part.unsqueeze(1) for part in rope_table(own_positions, shape.head_dim))
    cos, sin = rope_table(torch.arange(time, device=anchors.device), shape.head_dim)

    owner = torch.arange(blocks, device=anchors.device).repeat_interleave(block)
    sees_context = torch.arange(time, device=anchors.device).view(1, 1, -1) < anchors[:, owner].unsqueeze(-1)
    sees_block = (owner.view(-1, 1) == owner.view(1, -1)).expand(batch, -1, -1)
    allowed = torch.cat((sees_context, sees_block), dim=-1).unsqueeze(1)

    group = shape.heads // shape.kv_heads
    for ln1, qkv, q_norm, k_norm, o, ln2, gate_up, down in layers_of(weights):
        q, k, v = F.linear(rms(x, ln1), qkv).split((shape.q_size, shape.kv_size, shape.kv_size), dim=-1)
        context_k, context_v = F.linear(context, qkv[shape.q_size :]).chunk(2, dim=-1)
        q = rotate(rms(heads_of(q, shape.heads, shape.head_dim), q_norm), own_cos, own_sin)
        k = rotate(rms(heads_of(k, shape.kv_heads, shape.head_dim), k_norm), own_cos, own_sin)
        context_k = rotate(rms(heads_of(context_k, shape.kv_heads, shape.head_dim), k_norm), cos, sin)
        keys = torch.cat((context_k, k), dim=2).repeat_interleave(group, dim=1)
        both_v = (heads_of(context_v, shape.kv_heads, shape.head_dim), heads_of(v, shape.kv_heads, shape.head_dim))
        values = torch.cat(both_v, dim=2).repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), o)
        x = x + swiglu(rms(x, ln2), gate_up, down)
    return rms(x, weights["norm"]).view(batch, blocks, block, -1)
