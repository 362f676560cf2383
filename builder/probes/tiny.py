"""A tiny random target and DFlash drafter, written as SGLang loads them.

Random weights make most steps a near-tie, on which rounding decides; then engines differ, and nothing is wrong. So the head is the embedding in
another order, which lets one token stand out after each, and the halves that write to the stream are strong enough that what stands out depends
on the tokens before as well: else no mask would be tested. By simulation in float32 and bf16, half of the continuations of 10 tokens have no
near-tie, and half of the tokens change with the beginning of the prompt.

The drafter's last norm is small, so that its guesses are almost uniform: a tree of more nodes than the vocabulary has tokens then holds them
all at its first level, and each round accepts a draft. With a chain almost none is.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 64
HIDDEN = 256
INNER = 512
HEADS = 4
KV_HEADS = 2
WIDTH = 64
TARGET_LAYERS = 4
DRAFT_LAYERS = 2
BLOCK = 8
MASK_ID = VOCABULARY - 1
END_ID = VOCABULARY - 2
FEATURE_LAYERS = (0, 2)
BUDGET = 127
"""Nodes of a tree: all tokens at the first level, and as many below."""

EMBEDDING = 0.3
HEAD = 0.5
HEAD_NOISE = 0.02
STREAM = 3.0
DRAFT_NORM = 0.05


def config(layers: int) -> dict[str, Any]:
    """What the configurations of both say."""
    return {
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": END_ID,
        "eos_token_id": END_ID,
    }


def layers(count: int, prefix: str, generator: Any, stream: float) -> dict[str, Any]:
    """Weights of the layers; the halves that write to the stream are scaled."""
    import torch

    def normal(rows: int, columns: int, scale: float = 1.0) -> Any:
        return torch.randn(rows, columns, generator=generator) * (scale / math.sqrt(columns))

    scale = stream / math.sqrt(2 * count)
    out: dict[str, Any] = {}
    for index in range(count):
        at = f"{prefix}layers.{index}."
        for name, width in (
            ("input_layernorm", HIDDEN),
            ("post_attention_layernorm", HIDDEN),
            ("self_attn.q_norm", WIDTH),
            ("self_attn.k_norm", WIDTH),
        ):
            out[f"{at}{name}.weight"] = torch.ones(width)
        out[f"{at}self_attn.q_proj.weight"] = normal(HEADS * WIDTH, HIDDEN)
        out[f"{at}self_attn.k_proj.weight"] = normal(KV_HEADS * WIDTH, HIDDEN)
        out[f"{at}self_attn.v_proj.weight"] = normal(KV_HEADS * WIDTH, HIDDEN)
        out[f"{at}self_attn.o_proj.weight"] = normal(HIDDEN, HEADS * WIDTH, scale)
        out[f"{at}mlp.gate_proj.weight"] = normal(INNER, HIDDEN)
        out[f"{at}mlp.up_proj.weight"] = normal(INNER, HIDDEN)
        out[f"{at}mlp.down_proj.weight"] = normal(HIDDEN, INNER, scale)
    return out


def write_pair(folder: Path, generator: Any) -> None:
    """The folders `target` and `draft`.

    Args:
        folder: Where.
        generator: torch's, on the CPU.
    """
    import torch

    target = layers(TARGET_LAYERS, "model.", generator, STREAM)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator) * EMBEDDING
    order = torch.randperm(VOCABULARY, generator=generator)
    noise = torch.randn(VOCABULARY, HIDDEN, generator=generator) * HEAD_NOISE
    target |= {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(HIDDEN)}
    target["lm_head.weight"] = embedding[order] * HEAD + noise
    write(folder / "target", target, {"architectures": ["Qwen3ForCausalLM"], **config(TARGET_LAYERS)})

    draft = layers(DRAFT_LAYERS, "", generator, 1.0)
    wide = len(FEATURE_LAYERS) * HIDDEN
    draft["fc.weight"] = torch.randn(HIDDEN, wide, generator=generator) / math.sqrt(wide)
    draft |= {"hidden_norm.weight": torch.ones(HIDDEN), "norm.weight": torch.full((HIDDEN,), DRAFT_NORM)}
    write(
        folder / "draft",
        draft,
        {
            "architectures": ["DFlashDraftModel"],
            **config(DRAFT_LAYERS),
            "block_size": BLOCK,
            "num_target_layers": TARGET_LAYERS,
            "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(FEATURE_LAYERS)},
        },
    )


def write(folder: Path, tensors: dict[str, Any], about: dict[str, Any]) -> None:
    """One model."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")
