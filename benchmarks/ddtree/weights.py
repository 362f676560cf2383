"""Writing the pair as SGLang loads it, reading it back, and packing it small enough to be carried."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.ddtree.model import LAYER_NAMES, ROPE_THETA, Shape, Weights
from benchmarks.ddtree.text import END_ID, MASK_ID

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN = {
    "ln1": "input_layernorm",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ln2": "post_attention_layernorm",
    "down": "mlp.down_proj",
}


def layer_tensors(weights: Weights, shape: Shape, prefix: str) -> Weights:
    """Layers under the names of a checkpoint: fused projections taken apart."""
    out: Weights = {}
    for index in range(shape.layers):
        at = f"{prefix}layers.{index}."
        for name, full in _PLAIN.items():
            out[f"{at}{full}.weight"] = weights[name][index]
        qkv = weights["qkv"][index].split((shape.q_size, shape.kv_size, shape.kv_size))
        for letter, part in zip("qkv", qkv, strict=True):
            out[f"{at}self_attn.{letter}_proj.weight"] = part
        gate, up = weights["gate_up"][index].chunk(2)
        out[f"{at}mlp.gate_proj.weight"], out[f"{at}mlp.up_proj.weight"] = gate, up
    return out


def stacked_layers(tensors: Weights, shape: Shape, prefix: str) -> Weights:
    """The inverse of `layer_tensors`."""

    def stack(*names: str) -> torch.Tensor:
        return torch.stack(
            [
                torch.cat([tensors[f"{prefix}layers.{index}.{name}.weight"] for name in names])
                for index in range(shape.layers)
            ]
        )

    out = {name: stack(full) for name, full in _PLAIN.items()}
    out["qkv"] = stack(*(f"self_attn.{letter}_proj" for letter in "qkv"))
    out["gate_up"] = stack("mlp.gate_proj", "mlp.up_proj")
    return {name: out[name] for name in LAYER_NAMES}


def common_config(shape: Shape) -> dict[str, Any]:
    """What both configurations say."""
    return {
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": END_ID,
        "eos_token_id": END_ID,
    }


def write_target(folder: Path, weights: Weights, shape: Shape) -> None:
    """A folder that SGLang takes as model path."""
    tensors = layer_tensors(weights, shape, "model.")
    tensors |= {"model.embed_tokens.weight": weights["embed"], "model.norm.weight": weights["norm"]}
    tensors["lm_head.weight"] = weights["lm_head"]
    _write(folder, tensors, {"architectures": ["Qwen3ForCausalLM"], **common_config(shape)})


def write_draft(
    folder: Path, weights: Weights, shape: Shape, *, block: int, target_layers: int, feature_layers: tuple[int, ...]
) -> None:
    """A folder that SGLang takes as draft model path."""
    tensors = layer_tensors(weights, shape, "")
    tensors |= {f"{name}.weight": weights[name] for name in ("fc", "hidden_norm", "norm")}
    config = {
        "architectures": ["DFlashDraftModel"],
        **common_config(shape),
        "block_size": block,
        "num_target_layers": target_layers,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(feature_layers)},
    }
    _write(folder, tensors, config)


def _write(folder: Path, tensors: Weights, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().to(torch.bfloat16).contiguous().cpu() for name, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def shape_of(config: dict[str, Any]) -> Shape:
    """Sizes that a configuration names."""
    return Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        inner=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
    )


def read_target(folder: Path, *, device: str, dtype: torch.dtype) -> tuple[Weights, Shape]:
    """Weights of a folder that `write_target` wrote."""
    shape = shape_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    tensors = load_file(folder / "model.safetensors")
    weights = stacked_layers(tensors, shape, "model.")
    weights |= {"embed": tensors["model.embed_tokens.weight"], "norm": tensors["model.norm.weight"]}
    weights["lm_head"] = tensors["lm_head.weight"]
    return {name: tensor.to(device=device, dtype=dtype) for name, tensor in weights.items()}, shape


def read_draft(folder: Path, shape: Shape, *, dtype: torch.dtype) -> Weights:
    """Weights of a folder that `write_draft` wrote, on the CPU."""
    tensors = load_file(folder / "model.safetensors")
    out = stacked_layers(tensors, shape, "")
    out |= {name: tensors[f"{name}.weight"] for name in ("fc", "hidden_norm", "norm")}
    return {name: tensor.to(dtype) for name, tensor in out.items()}


def turn(data: bytes | bytearray, bits: int) -> bytes:
    """Words of 16 bits, each rotated to the left."""
    words = torch.frombuffer(bytearray(data), dtype=torch.int16).to(torch.int32) & 0xFFFF
    turned: bytes = (words << bits | words >> (16 - bits)).to(torch.int16).numpy().tobytes()
    return turned


def pack(folder: Path, out: Path, *, pieces: int) -> int:
    """All files of a folder in a few pieces of about equal size.

    Words of bf16 are turned by one bit, so that the exponent is one byte, and dealt into bytes: exponents compress well, the others do not.

    Args:
        folder: What to pack.
        out: Where the pieces `pack.0`, `pack.1`, ... go.
        pieces: How many.

    Returns:
        Bytes in all pieces.
    """
    head, bodies = [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        halves = (data, b"")
        if path.suffix == ".safetensors":
            turned = turn(data + b"\0" * (len(data) % 2), 1)
            halves = (turned[0::2], turned[1::2])
        packed = [zlib.compress(half, 6) for half in halves]
        head.append([path.relative_to(folder).as_posix(), len(data), len(packed[0]), len(packed[1])])
        bodies.extend(packed)
    prefix = json.dumps(head).encode()
    whole = len(prefix).to_bytes(8, "little") + prefix + b"".join(bodies)
    step = -(-len(whole) // pieces)
    out.mkdir(parents=True, exist_ok=True)
    for index in range(pieces):
        (out / f"pack.{index}").write_bytes(whole[index * step : (index + 1) * step])
    return len(whole)


def unpack(pieces: Path, folder: Path) -> None:
    """The inverse of `pack`."""
    names = sorted(pieces.glob("pack.*"), key=lambda path: int(path.suffix[1:]))
    whole = b"".join(path.read_bytes() for path in names)
    size = int.from_bytes(whole[:8], "little")
    at = 8 + size
    for name, length, low, high in json.loads(whole[8:at]):
        first, second = zlib.decompress(whole[at : at + low]), zlib.decompress(whole[at + low : at + low + high])
        at += low + high
        data = bytearray(len(first) + len(second))
        if name.endswith(".safetensors"):
            data[0::2], data[1::2] = first, second
            data = bytearray(turn(data, 15)[:length])
        else:
            data[:] = first
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
