"""Trains the target on source text, lets it write, and trains the drafter on what it wrote.

    python -m benchmarks.ddtree.train --out FOLDER

The budget of each part is time, not steps, so two runs give models that differ a little. FOLDER receives `target/` and `draft/` as SGLang loads
them, `prompts.json`, and `train.json` with losses, speeds, and accept lengths computed offline.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from benchmarks.ddtree import model, offline, text, weights
from benchmarks.ddtree.model import Shape, Weights

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 16
PROMPT = 64
"""Tokens of a prompt for the drafter's training."""


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--corpus", type=Path, nargs="*", default=[], help="folders with Python sources (the standard library)"
    )
    parser.add_argument("--corpus-bytes", type=int, default=24_000_000)
    parser.add_argument("--layers", type=int, default=96, help="of the target")
    parser.add_argument("--inner", type=int, default=256, help="width of the target's second half layers")
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--target-seconds", type=float, default=150)
    parser.add_argument("--draft-seconds", type=float, default=130)
    parser.add_argument("--sequences", type=int, default=8192, help="continuations that the drafter learns from")
    parser.add_argument("--length", type=int, default=384, help="tokens of a continuation, prompt included")
    parser.add_argument(
        "--tiny", action="store_true", help="a few steps of very small models, to try the script on a CPU"
    )
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    log: dict[str, Any] = {
        "arguments": {key: str(value) for key, value in vars(args).items() if key not in {"out", "corpus"}}
    }
    Trainer(args, log).run()
    (args.out / "train.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


class Trainer:
    """One run."""

    def __init__(self, args: argparse.Namespace, log: dict[str, Any]) -> None:
        self.args, self.log = args, log
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        tiny = args.tiny
        self.shape = Shape(
            vocab=512 if tiny else args.vocab,
            hidden=64 if tiny else 256,
            inner=96 if tiny else args.inner,
            layers=6 if tiny else args.layers,
            heads=2 if tiny else 4,
            kv_heads=1 if tiny else 2,
            head_dim=32 if tiny else 64,
        )
        self.draft_shape = Shape(**{**self.shape.record(), "layers": 2 if tiny else 5, "inner": 96 if tiny else 768})
        last = self.shape.layers - 3
        self.feature_layers = (1, 4) if tiny else tuple(1 + round(part * (last - 1) / 4) for part in range(5))
        self.batch, self.window = (2, 128) if tiny else (64, 512)
        log |= {
            "target": self.shape.record(),
            "draft": self.draft_shape.record(),
            "feature_layers": self.feature_layers,
        }
        self.layer: model.Layer = model.causal_layer

    def run(self) -> None:
        """All parts in turn."""
        torch.manual_seed(1)
        torch.set_float32_matmul_precision("high")
        self.args.out.mkdir(parents=True, exist_ok=True)
        streams = self.read_text()
        target = self.train_target(streams)
        weights.write_target(self.args.out / "target", target, self.shape)
        self.write_prompts(streams)
        sequences = self.write_sequences(target, streams)
        draft = self.train_draft(target, sequences)
        weights.write_draft(
            self.args.out / "draft",
            draft,
            self.draft_shape,
            block=BLOCK,
            target_layers=self.shape.layers,
            feature_layers=self.feature_layers,
        )
        self.log["offline"] = {
            name: self.accept_lengths(target, draft, streams[name], count=2 if self.args.tiny else 48)
            for name in ("train", "eval")
        }
        say("offline accept lengths", **self.log["offline"])

    def read_text(self) -> dict[str, torch.Tensor]:
        """Token streams by part."""
        start = time.monotonic()
        corpus = text.read_corpus(
            tuple(self.args.corpus), limit_bytes=3_000_000 if self.args.tiny else self.args.corpus_bytes
        )
        tokenizer = text.train_tokenizer(corpus.parts["train"], vocab=self.shape.vocab)
        ids = {part: text.encode(tokenizer, texts) for part, texts in corpus.parts.items()}
        folder = self.args.out / "target"
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "mask_token": "<|mask|>"})
            + "\n",
            encoding="utf-8",
        )
        self.log["corpus"] = {
            "sha256": corpus.sha256,
            "tokens": {part: len(tokens) for part, tokens in ids.items()},
            "bytes": {part: sum(map(len, texts)) for part, texts in corpus.parts.items()},
            "seconds": time.monotonic() - start,
        }
        say("text", **self.log["corpus"])
        return {part: torch.tensor(tokens, device=self.device) for part, tokens in ids.items()}

    def windows(self, stream: torch.Tensor, count: int, length: int) -> torch.Tensor:
        """Random windows of a stream, `[count, length]`."""
        starts = torch.randint(0, stream.numel() - length, (count, 1), device=self.device)
        return stream[starts + torch.arange(length, device=self.device)]

    def train_target(self, streams: dict[str, torch.Tensor]) -> Weights:
        """Next tokens of the text; returns bf16 weights."""
        master = model.init_target(self.shape, device=self.device, seed=1)
        self.log["target_parameters"] = sum(tensor.numel() for tensor in master.values())
        if self.device == "cuda" and not self.args.no_compile:
            self.layer = torch.compile(model.causal_layer, dynamic=False)

        def loss_of(working: Weights, windows: torch.Tensor) -> torch.Tensor:
            hidden, _ = model.target_stream(working, self.shape, windows[:, :-1], layer=self.layer)
            logits = F.linear(hidden, working["lm_head"])
            return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())

        def batch() -> torch.Tensor:
            return self.windows(streams["train"], self.batch, self.window + 1)

        try:
            working, self.log["target_training"] = self.fit(
                master, loss_of, batch, seconds=self.args.target_seconds, peak=2.5e-3
            )
        except RuntimeError as problem:
            if self.layer is model.causal_layer:
                raise
            say("compiled layers failed, going on without", problem=repr(problem)[:300])
            self.layer = model.causal_layer
            master = model.init_target(self.shape, device=self.device, seed=1)
            working, self.log["target_training"] = self.fit(
                master, loss_of, batch, seconds=self.args.target_seconds, peak=2.5e-3
            )
        with torch.no_grad():
            held_out = [
                loss_of(working, self.windows(streams["eval"], self.batch, self.window + 1)).item() for _ in range(8)
            ]
        self.log["target_training"]["held_out_loss"] = sum(held_out) / len(held_out)
        say(
            "target", **{key: self.log["target_training"][key] for key in ("steps", "seconds", "loss", "held_out_loss")}
        )
        return {name: tensor.detach() for name, tensor in working.items()}

    def fit(
        self,
        master: Weights,
        loss_of: Callable[[Weights, torch.Tensor], torch.Tensor],
        batch: Callable[[], torch.Tensor],
        *,
        seconds: float,
        peak: float,
    ) -> tuple[Weights, dict[str, Any]]:
        """AdamW on float32 copies of bf16 weights, the rate a cosine over the given time."""
        working = {name: tensor.to(torch.bfloat16).requires_grad_() for name, tensor in master.items()}
        names = list(master)
        matrices = [master[name] for name in names if "norm" not in name and not name.startswith("ln")]
        vectors = [master[name] for name in names if "norm" in name or name.startswith("ln")]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            lr=peak,
            betas=(0.9, 0.95),
            fused=self.device == "cuda",
        )
        curve: list[tuple[int, float]] = []
        recent: list[torch.Tensor] = []
        start, step, share = time.monotonic(), 0, 0.0
        while True:
            if step == 3:  # the first steps compile
                self.sync()
                start = time.monotonic()
            if step % 10 == 0 and step >= 3:
                self.sync()
                share = (time.monotonic() - start) / seconds
                if share >= 1 or (self.args.tiny and step >= 10):
                    break
            rate = peak * min(1.0, (step + 1) / 150) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = loss_of(working, batch())
            loss.backward()
            grads = [working[name].grad for name in names]
            wide = [grad.float() for grad in grads if grad is not None]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(wide)))
            torch._foreach_mul_(wide, torch.clamp(1.0 / (norm + 1e-6), max=1.0))
            for name, grad in zip(names, wide, strict=True):
                master[name].grad = grad
                working[name].grad = None
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_([working[name] for name in names], [master[name] for name in names])
            recent.append(loss.detach())
            step += 1
            if step % 100 == 0:
                curve.append((step, torch.stack(recent[-50:]).mean().item()))
        last = torch.stack(recent[-50:]).mean().item()
        took = time.monotonic() - start
        if not math.isfinite(last):
            message = f"loss is {last}"
            raise ArithmeticError(message)
        return working, {"steps": step, "seconds": took, "loss": last, "curve": curve}

    def write_prompts(self, streams: dict[str, torch.Tensor]) -> None:
        """Prompts of 24 to 160 tokens from seen and from unseen files."""
        generator = torch.Generator().manual_seed(7)
        prompts: dict[str, list[list[int]]] = {}
        for part in ("train", "eval"):
            stream = streams[part].cpu()
            lengths = torch.randint(24, 161, (96,), generator=generator).tolist()
            starts = torch.randint(0, stream.numel() - 200, (96,), generator=generator).tolist()
            prompts[part] = [stream[at : at + size].tolist() for at, size in zip(starts, lengths, strict=True)]
        (self.args.out / "prompts.json").write_text(json.dumps(prompts) + "\n", encoding="utf-8")

    def write_sequences(self, target: Weights, streams: dict[str, torch.Tensor]) -> torch.Tensor:
        """What the target writes after prompts from seen and unseen files: three quarters greedy, a quarter at temperature 0.8."""
        start = time.monotonic()
        count, length = (8, 96) if self.args.tiny else (self.args.sequences, self.args.length)
        batch = min(count, 2048)
        decoder = model.Decoder(target, self.shape, batch=batch, length=length)
        temperature = torch.where(torch.arange(batch, device=self.device) % 4 == 3, 0.8, 0.0)
        out = []
        for _ in range(-(-count // batch)):
            half = batch // 2
            prompts = torch.cat(
                (self.windows(streams["train"], half, PROMPT), self.windows(streams["draft"], batch - half, PROMPT))
            )
            prompts = prompts[torch.randperm(batch, device=self.device)]
            out.append(decoder.generate(prompts, temperature=temperature))
        sequences = torch.cat(out)
        self.sync()
        took = time.monotonic() - start
        self.log["sequences"] = {"count": sequences.shape[0], "length": length, "seconds": took}
        say("sequences", **self.log["sequences"])
        return sequences

    def features(self, target: Weights, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's stream after the chosen layers, side by side, and its hidden states."""
        with torch.no_grad():
            hidden, kept = model.target_stream(target, self.shape, ids, keep=self.feature_layers)
        return torch.cat(kept, dim=-1), hidden

    def train_draft(self, target: Weights, sequences: torch.Tensor) -> Weights:
        """Blocks at random anchors; nearer positions weigh more, since a miss there ends the run."""
        master = model.init_draft(self.draft_shape, features=len(self.feature_layers), device=self.device, seed=2)
        self.log["draft_parameters"] = sum(tensor.numel() for tensor in master.values())
        batch, blocks = (4, 2) if self.args.tiny else (64, 16)
        # The target stands still, so its features are computed once: 6 GB for 6,144 sequences.
        seen = torch.cat([self.features(target, ids)[0] for ids in sequences.split(64)])
        offsets = torch.arange(1, BLOCK, device=self.device)
        weight = torch.exp(-(offsets - 1) / 7.0)
        length = sequences.shape[1]

        def draw() -> torch.Tensor:
            return torch.randint(0, sequences.shape[0], (batch,), device=self.device)

        def loss_of(working: Weights, rows: torch.Tensor) -> torch.Tensor:
            ids, features = sequences[rows], seen[rows]
            anchors = torch.randint(PROMPT, length - 2, (batch, blocks), device=self.device)
            hidden = model.draft_blocks(
                working,
                self.draft_shape,
                target["embed"],
                features,
                ids.gather(1, anchors),
                anchors,
                block=BLOCK,
                mask_id=text.MASK_ID,
            )
            places = anchors.unsqueeze(-1) + offsets
            inside = places < length
            labels = ids.gather(1, places.clamp(max=length - 1).flatten(1)).view_as(places)
            logits = F.linear(hidden[:, :, 1:], target["lm_head"])
            loss = F.cross_entropy(logits.flatten(0, 2).float(), labels.flatten(), reduction="none").view_as(places)
            share = inside * weight
            return (loss * share).sum() / share.sum()

        working, self.log["draft_training"] = self.fit(
            master, loss_of, draw, seconds=self.args.draft_seconds, peak=2e-3
        )
        say("draft", **{key: self.log["draft_training"][key] for key in ("steps", "seconds", "loss")})
        return {name: tensor.detach() for name, tensor in working.items()}

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def accept_lengths(self, target: Weights, draft: Weights, stream: torch.Tensor, *, count: int) -> dict[str, float]:
        """Mean tokens a round of chain and trees over greedy continuations of prompts from one part."""
        length = 96 if self.args.tiny else self.args.length
        decoder = model.Decoder(target, self.shape, batch=count, length=length)
        greedy = torch.zeros(count, device=self.device)
        ids = decoder.generate(self.windows(stream, count, PROMPT), temperature=greedy)
        features, _ = self.features(target, ids)
        anchors = torch.arange(PROMPT, length - 1, device=self.device)
        budgets = (0, 15, 31, 63, 127, 255)
        tokens, rounds = dict.fromkeys(budgets, 0), dict.fromkeys(budgets, 0)
        for row in range(count):
            hidden = model.draft_blocks(
                draft,
                self.draft_shape,
                target["embed"],
                features[row : row + 1],
                ids[row : row + 1, PROMPT:-1],
                anchors.unsqueeze(0),
                block=BLOCK,
                mask_id=text.MASK_ID,
            )
            logp = F.linear(hidden[0, :, 1:], target["lm_head"]).float().log_softmax(-1)
            best, where = logp.topk(64, dim=-1)
            sequence = ids[row].tolist()
            candidates, scores = where.tolist(), best.tolist()
            for budget in budgets:
                made, took = offline.replay(sequence, candidates, scores, first=PROMPT, budget=budget)
                tokens[budget] += made
                rounds[budget] += took
        return {"chain" if budget == 0 else f"tree-{budget}": tokens[budget] / rounds[budget] for budget in budgets}

    def sync(self) -> None:
        """Waits for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def say(what: str, **fields: object) -> None:
    """One line of progress."""
    print(f"[train] {what}: " + json.dumps(fields, default=str), flush=True)


if __name__ == "__main__":
    main()
