"""Time to build trees on the host and on the GPU, from candidates that lie on the GPU and back.

python -m benchmarks.ddtree.tree_build --utils .../sglang/srt/speculative/ddtree_utils.py --out FILE
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.ddtree import figures

if TYPE_CHECKING:
    from types import ModuleType

DEPTH = 15
VOCAB = 4096


def load(path: Path) -> ModuleType:
    """A module that imports nothing of SGLang, from its file."""
    spec = importlib.util.spec_from_file_location("ddtree_utils", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ddtree_utils"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utils", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    utils = load(args.utils)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for budget in (15, 31, 63, 127, 255):
        for batch in (1, 2, 4, 8, 16):
            logits = torch.randn(batch, DEPTH, VOCAB, device=device) * 3
            scores, ids = logits.log_softmax(-1).topk(budget)
            roots = torch.zeros(batch, dtype=torch.int64, device=device)
            row: dict[str, float | int | bool] = {"budget": budget, "batch": batch}
            trees = {}
            for method in ("heap", "kernel") if device == "cuda" else ("heap",):
                times = []
                for _ in range(args.repeats + 3):
                    if device == "cuda":
                        torch.cuda.synchronize()
                    start = time.perf_counter()
                    trees[method] = utils.build_tree(scores, ids, roots, budget, method=method)
                    if device == "cuda":
                        torch.cuda.synchronize()
                    times.append((time.perf_counter() - start) * 1e3)
                row[f"{method}_ms"] = round(figures.median(times[3:]), 3)
            row["same"] = all(
                torch.equal(getattr(trees["heap"], part), getattr(tree, part))
                for tree in trees.values()
                for part in ("tokens", "parents", "depths")
            )
            rows.append(row)
    args.out.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
