"""Where the time of a round goes, at batch 1: whole rounds as they run, and stages with the device waited for between them.

Waiting costs time of its own and takes away what host and device do side by side, so the stages add up to more than a round. `sweep.py` starts
the engines for it with its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.ddtree.engines import Engine, EngineDiedError, Pair, algorithm

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Engines with a probe, and the files that the probes write."""

    engines: tuple[Engine, ...]
    files: dict[str, Path]

    def measure(self, alive: dict[str, Engine], prompts: dict[str, list[list[int]]]) -> dict[str, Any]:
        """Times by engine and stage, in milliseconds."""
        some = [*prompts["train"][:4], *prompts["eval"][:4]]
        out: dict[str, Any] = {}
        for label, file in self.files.items():
            if label not in alive:
                continue
            try:
                alive[label].generate(some[:1], new_tokens=32)
                outputs = alive[label].generate(some, new_tokens=160, concurrency=1)
            except EngineDiedError as problem:
                out[label] = {"error": str(problem)[-600:]}
                continue
            rounds = sum(output["meta"].get("spec_verify_ct") or 0 for output in outputs)
            tokens = sum(len(output["ids"]) for output in outputs)
            told = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            told["wall per round"] = {"calls": rounds, "mean_ms": outputs[0]["wall_s"] / max(1, rounds) * 1e3}
            told["wall per token"] = {"calls": tokens, "mean_ms": outputs[0]["wall_s"] / tokens * 1e3}
            out[label] = told
        return out


def engines(args: argparse.Namespace, budgets: tuple[int, ...]) -> Profiled:
    """DFLASH and trees, each with a probe for whole rounds and with one for stages."""
    pair = Pair(target=args.models / "target", draft=args.models / "draft")
    kinds: dict[str, dict[str, Any]] = {"DFLASH": algorithm(pair, "DFLASH", cuda_graph_bs=[1])}
    kinds |= {f"DDTREE {budget}": algorithm(pair, "DDTREE", budget=budget, cuda_graph_bs=[1]) for budget in budgets}
    some, files = [], {}
    for name, arguments in kinds.items():
        for probe in ("rounds", "stages"):
            label = f"{name}, {probe}"
            files[label] = args.scratch / f"{label.replace(' ', '-').replace(',', '')}.json"
            some.append(
                Engine(
                    name=label,
                    arguments=arguments,
                    log=args.logs / f"{files[label].stem}.log",
                    site=str(args.site or ""),
                    environment={"DDTREE_PROBE": f"{probe}={files[label]}"},
                )
            )
    return Profiled(engines=tuple(some), files=files)


def show(profile: dict[str, Any]) -> None:
    """One line an engine."""
    for label, told in profile.items():
        brief = {
            name: round(times["median_ms"] if "median_ms" in times else times["mean_ms"], 3)
            for name, times in told.items()
            if isinstance(times, dict)
        }
        print(label, json.dumps(brief or told), flush=True)
