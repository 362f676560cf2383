"""Folders of tiny models, and `ServerArgs` that name them, on a machine that may have no GPU."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path

from sglang.srt import server_args

logging.disable(logging.WARNING)

FOLDER = Path(tempfile.mkdtemp())
TARGET = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DRAFT = {
    **TARGET,
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 2,
    "block_size": 8,
    "num_target_layers": 4,
    "dflash_config": {"mask_token_id": 511, "target_layer_ids": [0, 2]},
}


def model(name, config):
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def arguments(**changes):
    options = {
        "model_path": model("target", TARGET),
        "speculative_draft_model_path": model("draft", DRAFT),
        "speculative_algorithm": "DDTREE",
        "device": "cuda",
        "skip_tokenizer_init": True,
        "grammar_backend": "none",
        "mem_fraction_static": 0.5,
        **changes,
    }
    # The machine that runs this may have no GPU, or one of any size and kind: the answers must not depend on it.
    old = server_args.get_device_memory_capacity
    server_args.get_device_memory_capacity = lambda device=None: 140_000
    try:
        return server_args.ServerArgs(**options)
    finally:
        server_args.get_device_memory_capacity = old
