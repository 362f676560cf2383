"""The series' own tree code on a trained pair, on the CPU: its output must be that of greedy decoding, token for token.

    python -m benchmarks.ddtree.logic --models FOLDER --utils .../sglang/srt/speculative/ddtree_utils.py --out FILE

Builder, positions, visibility, packed mask and walk come from the file of the series; the two models are those of `model.py`. In float32
rounding moves a log probability by less than 1e-3, so what is left is whether parents, masks, positions and the walk are right. What the
kernels of a GPU do is not tested here. The accept lengths are those of the shipped builder.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from benchmarks.ddtree import model, weights
from benchmarks.ddtree.text import MASK_ID
from benchmarks.ddtree.tree_build import load

if TYPE_CHECKING:
    from types import ModuleType

    from benchmarks.ddtree.model import Shape, Weights

BLOCK = 16


def forward(
    plain: Weights,
    shape: Shape,
    ids: torch.Tensor,
    positions: torch.Tensor,
    allowed: torch.Tensor,
    keep: tuple[int, ...],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits `[rows, vocab]` and features of rows with any positions and any visibility `[rows, rows]`."""
    x = F.embedding(ids, plain["embed"]).unsqueeze(0)
    cos, sin = (part.to(x.dtype) for part in model.rope_table(positions, shape.head_dim))
    group = shape.heads // shape.kv_heads
    kept = []

    def turn(part: torch.Tensor) -> torch.Tensor:
        first, second = part.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    for index, (ln1, qkv, q_norm, k_norm, o, ln2, gate_up, down) in enumerate(model.layers_of(plain)):
        q, k, v = F.linear(model.rms(x, ln1), qkv).split((shape.q_size, shape.kv_size, shape.kv_size), dim=-1)
        q = turn(model.rms(model.heads_of(q, shape.heads, shape.head_dim), q_norm))
        k = turn(model.rms(model.heads_of(k, shape.kv_heads, shape.head_dim), k_norm)).repeat_interleave(group, dim=1)
        v = model.heads_of(v, shape.kv_heads, shape.head_dim).repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), o)
        x = x + model.swiglu(model.rms(x, ln2), gate_up, down)
        if index in keep:
            kept.append(x)
    return F.linear(model.rms(x, plain["norm"]), plain["lm_head"])[0], torch.cat(kept, dim=-1)[0] if kept else x[0]


class Pair:
    """Target and drafter with what they were trained for."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.target, self.shape = weights.read_target(folder / "target", device="cpu", dtype=dtype)
        config = json.loads((folder / "draft/config.json").read_text(encoding="utf-8"))
        self.draft_shape = weights.shape_of(config)
        self.draft = weights.read_draft(folder / "draft", self.draft_shape, dtype=dtype)
        self.layers = tuple(config["dflash_config"]["target_layer_ids"])

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Decoding without a draft, each step a forward of its own row."""
        decoder = model.Decoder(self.target, self.shape, batch=1, length=len(prompt) + count)
        return list(decoder.generate(torch.tensor([prompt]), temperature=torch.zeros(1))[0, len(prompt) :].tolist())

    def candidates(self, known: list[int], features: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log probabilities and ids `[1, L, width]` of the drafter after what is known; its last token has no features yet."""
        hidden = model.draft_blocks(
            self.draft,
            self.draft_shape,
            self.target["embed"],
            features.unsqueeze(0),
            torch.tensor([[known[-1]]]),
            torch.tensor([[len(known) - 1]]),
            block=BLOCK,
            mask_id=MASK_ID,
        )
        scores = F.linear(hidden[0, 0, 1:], self.target["lm_head"]).log_softmax(-1)
        best, ids = scores.topk(width, dim=-1)
        return best.unsqueeze(0).float(), ids.unsqueeze(0)

    def by_tree(self, utils: ModuleType, prompt: list[int], count: int, budget: int) -> tuple[list[int], int]:
        """Decoding by trees; returns the tokens and how many rounds they took."""
        rows = len(prompt)
        causal = torch.ones(rows, rows, dtype=torch.bool).tril()
        logits, features = forward(
            self.target, self.shape, torch.tensor(prompt), torch.arange(rows), causal, self.layers
        )
        known = [*prompt, int(logits[-1].argmax())]
        rounds = 0
        while len(known) < len(prompt) + count:
            prefix = len(known) - 1
            scores, ids = self.candidates(known, features, budget)
            tree = utils.build_tree(scores, ids, torch.tensor(known[-1:]), budget)
            width = tree.num_rows
            lengths = torch.tensor([prefix])
            packed = utils.pack_mask(utils.tree_visibility(tree, BLOCK - 1), lengths, prefix).view(
                width, prefix + width
            )
            before = torch.ones(prefix, prefix + width, dtype=torch.bool).tril()
            logits, made = forward(
                self.target,
                self.shape,
                torch.cat((torch.tensor(known[:-1]), tree.tokens[0])),
                torch.cat((torch.arange(prefix), utils.tree_positions(tree, lengths))),
                torch.cat((before, packed)),
                self.layers,
            )
            decided = logits[prefix:].argmax(-1).tolist()
            path, tokens = utils.walk_tree(tree.tokens[0].tolist(), tree.parents[0].tolist(), decided)
            features = torch.cat((features, made[[prefix + row for row in path]]))
            known += tokens
            rounds += 1
        return known[len(prompt) :][:count], rounds


def main() -> None:
    """Reads the command line and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--utils", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--prompts", type=int, default=24, help="half from text that was trained on, half from unseen text"
    )
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--budgets", type=int, nargs="*", default=[15, 63])
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--seconds", type=float, default=1200, help="no further prompt is begun after this time")
    args = parser.parse_args()
    utils, pair = load(args.utils), Pair(args.models, getattr(torch, args.dtype))
    parts = json.loads((args.models / "prompts.json").read_text(encoding="utf-8"))
    half = args.prompts // 2
    result: dict[str, Any] = {"dtype": args.dtype, "new_tokens": args.new_tokens, "rows": []}
    begun = time.monotonic()
    with torch.no_grad():
        for prompt in [
            prompt for both in zip(parts["train"][:half], parts["eval"][:half], strict=True) for prompt in both
        ]:
            if time.monotonic() - begun > args.seconds:
                break
            truth = pair.greedy(prompt, args.new_tokens)
            for budget in args.budgets:
                tokens, rounds = pair.by_tree(utils, prompt, args.new_tokens, budget)
                result["rows"].append(
                    {"budget": budget, "equal": tokens == truth, "rounds": rounds, "prompt": len(prompt)}
                )
            for budget in args.budgets:
                mine = [row for row in result["rows"] if row["budget"] == budget]
                made = len(mine) * (args.new_tokens - 1)
                result[f"budget {budget}"] = {
                    "equal": f"{sum(row['equal'] for row in mine)}/{len(mine)}",
                    "accept_length": made / sum(row["rounds"] for row in mine),
                }
            args.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}))


if __name__ == "__main__":
    main()
