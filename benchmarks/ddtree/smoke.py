"""Whether the engines start and answer at all, on a pair with random weights: a minute, before anything longer.

python -m benchmarks.ddtree.smoke --site FOLDER --out FILE
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.ddtree import figures, model, weights
from benchmarks.ddtree.engines import Engine, EngineDiedError, Pair, algorithm, leave_on_term, start_all


def write_pair(folder: Path) -> Pair:
    """A target of 12 layers and a drafter of 2, random; the head is scaled so that one token stands out."""
    shape = model.Shape(vocab=4096, hidden=256, inner=640, layers=12, heads=4, kv_heads=2, head_dim=64)
    target = model.init_target(shape, device="cpu", seed=3)
    target["lm_head"] = target["lm_head"] * 20
    weights.write_target(folder / "target", target, shape)
    draft = model.Shape(**{**shape.record(), "layers": 2})
    drafted = model.init_draft(draft, features=2, device="cpu", seed=4)
    weights.write_draft(folder / "draft", drafted, draft, block=16, target_layers=12, feature_layers=(1, 8))
    return Pair(target=folder / "target", draft=folder / "draft")


def main() -> None:
    """Reads the command line and tries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--scratch", type=Path, default=Path("scratch"))
    args = parser.parse_args()
    leave_on_term()
    torch.set_num_threads(4)
    pair = write_pair(args.scratch / "random")
    graphs: dict[str, Any] = {"cuda_graph_bs": [1, 2, 4]}
    kinds = {
        "ddtree": algorithm(pair, "DDTREE", **graphs),
        "ddtree-eager": algorithm(pair, "DDTREE", graphs=False),
        # In float16 the draft fails where it has no graph for a batch, so all sizes that come up have one.
        "ddtree-fp16": algorithm(pair, "DDTREE", dtype="float16", cuda_graph_bs=[1, 2, 4, 8]),
        "ddtree-255": algorithm(pair, "DDTREE", budget=255, speculative_ddtree_chain_seed=True, **graphs),
        "dflash": algorithm(pair, "DFLASH", **graphs),
        "ar": algorithm(pair, "AR", **graphs),
    }
    engines = [
        Engine(name=name, arguments=arguments, log=args.logs / f"smoke-{name}.log", site=str(args.site or ""))
        for name, arguments in kinds.items()
    ]
    begun = time.monotonic()
    alive, failed = start_all(engines, timeout_s=170, prime=0)
    result: dict[str, Any] = {"start_s": time.monotonic() - begun, "failed": failed, "engines": {}}
    print(json.dumps(result), flush=True)
    dice = random.Random(1)
    prompts = [[dice.randint(2, 4000) for _ in range(dice.randint(5, 60))] for _ in range(5)]
    truth: list[list[int]] = []
    for name in reversed(kinds):
        if name not in alive:
            continue
        found: dict[str, Any] = {}
        tries: dict[str, dict[str, Any]] = {
            "one by one": {"concurrency": 1},
            "together": {},
            "temperature 1": {"params": {"temperature": 1.0}},
            "top-k, top-p": {"params": {"temperature": 0.8, "top_k": 20, "top_p": 0.9}},
        }
        for label, how in tries.items():
            if name == "dflash" and "params" in how:
                continue  # compiles kernels of its own
            try:
                outputs = alive[name].generate(prompts, new_tokens=24, timeout_s=60, **how)
                ids = [output["ids"] for output in outputs]
                truth = truth or ids
                found[label] = {"equal": figures.agreement(ids, truth)["equal"], "lengths": [len(one) for one in ids]}
            except EngineDiedError as problem:
                found[label] = {"error": str(problem)[-1500:]}
        result["engines"][name] = found
        print(name, json.dumps(found), flush=True)
    for engine in alive.values():
        engine.stop()
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
