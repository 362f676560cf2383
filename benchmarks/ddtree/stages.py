"""Where the time of a round goes, at batch 1: whole rounds as they run, and stages with the device waited for between them.

    python -m benchmarks.ddtree.stages --models FOLDER --out FILE [--site FOLDER]

Waiting costs time of its own and takes away what host and device do side by side, so the stages add up to more than a round.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.ddtree import machine
from benchmarks.ddtree.engines import Engine, EngineDiedError, Pair, algorithm, leave_on_term, start_all


def main() -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--budgets", type=int, nargs="*", default=[63])
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--scratch", type=Path, default=Path("scratch"))
    args = parser.parse_args()
    leave_on_term()
    args.scratch.mkdir(parents=True, exist_ok=True)
    pair = Pair(target=args.models / "target", draft=args.models / "draft")
    prompts = json.loads((args.models / "prompts.json").read_text(encoding="utf-8"))
    some = [*prompts["train"][:4], *prompts["eval"][:4]]
    kinds: dict[str, dict[str, Any]] = {"DFLASH": algorithm(pair, "DFLASH", cuda_graph_bs=[1])}
    if args.site:
        for budget in args.budgets:
            kinds[f"DDTREE {budget}"] = algorithm(pair, "DDTREE", budget=budget, cuda_graph_bs=[1])
    engines, files = [], {}
    for name, arguments in kinds.items():
        for probe in ("rounds", "stages"):
            label = f"{name}, {probe}"
            files[label] = args.scratch / f"{label.replace(' ', '-').replace(',', '')}.json"
            engines.append(
                Engine(
                    name=label,
                    arguments=arguments,
                    log=args.logs / f"{files[label].stem}.log",
                    site=str(args.site or ""),
                    environment={"DDTREE_PROBE": f"{probe}={files[label]}"},
                )
            )
    alive, failed = start_all(engines)
    result: dict[str, Any] = {"version": 1, "machine": machine.describe(), "batch": 1, "failed": failed, "milliseconds": {}}
    for label, engine in alive.items():
        try:
            outputs = engine.generate(some, new_tokens=192, concurrency=1)
            rounds = sum(output["meta"]["spec_verify_ct"] for output in outputs)
            told = json.loads(files[label].read_text(encoding="utf-8")) if files[label].exists() else {}
            told["wall per round"] = {"calls": rounds, "mean_ms": outputs[0]["wall_s"] / max(1, rounds) * 1e3}
            result["milliseconds"][label] = told
        except EngineDiedError as problem:
            failed[label] = str(problem)[-600:]
    for engine in alive.values():
        engine.stop()
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for label, stages in result["milliseconds"].items():
        print(label, json.dumps({name: round(times.get("median_ms", times["mean_ms"]), 3) for name, times in stages.items()}), flush=True)


if __name__ == "__main__":
    main()
