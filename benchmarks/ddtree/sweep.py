"""Accept lengths and tokens per second of AR, DFLASH and DDTREE.

    python -m benchmarks.ddtree.sweep --models FOLDER --out FILE [--budgets 15 31 63 127 255]

All engines are started first and stay; then they are measured in turn, each alone on the GPU, so that a drift of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ddtree import figures, machine, report, stages
from benchmarks.ddtree.engines import Engine, EngineDiedError, Pair, algorithm, leave_on_term, start_all

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES = (1, 4, 16)
PROMPTS = {1: 16, 4: 16, 16: 32}
"""How many prompts of a part are run at a batch size."""


def engines_of(args: argparse.Namespace) -> list[Engine]:
    """What is compared."""
    pair = Pair(target=args.models / "target", draft=args.models / "draft")
    more: dict[str, Any] = {"cuda_graph_bs": [1, 2, 4, 8, 16]}

    def engine(name: str, arguments: dict[str, Any], *, site: Path | None) -> Engine:
        return Engine(name=name, arguments=arguments, log=args.logs / f"sweep-{name}.log", site=str(site or ""))

    out = [engine("AR", algorithm(pair, "AR", **more), site=args.base_site)]
    out.append(engine("DFLASH", algorithm(pair, "DFLASH", **more), site=args.base_site))
    if args.site:
        out.append(engine("DFLASH, patched", algorithm(pair, "DFLASH", **more), site=args.site))
        for budget in args.budgets:
            out.append(engine(f"DDTREE {budget}", algorithm(pair, "DDTREE", budget=budget, **more), site=args.site))
            if args.chain_seed:
                arguments = algorithm(pair, "DDTREE", budget=budget, speculative_ddtree_chain_seed=True, **more)
                out.append(engine(f"DDTREE {budget}, chain seed", arguments, site=args.site))
    return out


def one_run(engine: Engine, prompts: list[list[int]], *, batch: int, new_tokens: int) -> dict[str, Any]:
    """Speed and accept length of one engine over some prompts, `batch` of them at a time."""
    engine.ask("flush")
    first = engine.generate(prompts, new_tokens=1, concurrency=batch, timeout_s=180)[0]["wall_s"]
    engine.ask("flush")
    outputs = engine.generate(prompts, new_tokens=new_tokens, concurrency=batch, timeout_s=180)
    tokens = sum(len(output["ids"]) for output in outputs)
    rounds = sum(output["meta"].get("spec_verify_ct") or 0 for output in outputs)
    seconds = outputs[0]["wall_s"]
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "prefill_seconds": first,
        # The first token of a request comes from the prefill.
        "accept_length": (tokens - len(outputs)) / rounds if rounds else 1.0,
        "rounds": rounds,
        "outputs": [output["ids"] for output in outputs],
    }


def measure(
    alive: dict[str, Engine],
    prompts: dict[str, list[list[int]]],
    args: argparse.Namespace,
    keep: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """All runs; what there is goes to `keep` after each round over the engines."""
    rows: list[dict[str, Any]] = []
    start = time.monotonic()
    dead: set[str] = set()

    def one(name: str, some: list[list[int]], *, batch: int, new_tokens: int) -> dict[str, Any] | None:
        if name in dead or time.monotonic() - start > args.seconds:
            return None
        try:
            return one_run(alive[name], some, batch=batch, new_tokens=new_tokens)
        except EngineDiedError as problem:
            dead.add(name)
            rows.append({"engine": name, "error": str(problem)[-500:]})
            return None

    # A run is a part of the prompts at a batch size; before the first of a batch size, every engine warms up for it.
    plan = [(repeat, part, batch) for repeat in range(args.repeats) for batch in BATCHES for part in ("train", "eval")]
    for repeat, part, batch in plan:
        for name in alive:
            if repeat == 0 and part == "train":
                one(name, prompts["eval"][-batch:], batch=batch, new_tokens=16)
            run = one(name, prompts[part][: PROMPTS[batch]], batch=batch, new_tokens=args.new_tokens)
            if run is not None:
                rows.append({"engine": name, "part": part, "batch": batch, "repeat": repeat, **run})
        keep(rows)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the repeats, both parts of the prompts together and apart."""
    out = []
    names = list(dict.fromkeys(row["engine"] for row in rows if "error" not in row))
    for part in ("train", "eval", "both"):
        for batch in BATCHES:
            for name in names:
                runs = [
                    row
                    for row in rows
                    if row["engine"] == name and row.get("batch") == batch and part in {row["part"], "both"}
                ]
                if not runs:
                    continue
                rounds = sum(run["rounds"] for run in runs)
                repeats: dict[int, list[dict[str, Any]]] = {}
                for run in runs:
                    repeats.setdefault(run["repeat"], []).append(run)
                speeds = [
                    sum(run["tokens"] for run in some) / sum(run["seconds"] for run in some)
                    for some in repeats.values()
                ]
                accept = sum(run["accept_length"] * run["rounds"] for run in runs) / rounds if rounds else 1.0
                decoding = sum(run["seconds"] - run["prefill_seconds"] for run in runs)
                # The first token of a request comes from the prefill.
                decoded = sum(run["tokens"] - len(run["outputs"]) for run in runs)
                out.append(
                    {
                        "engine": name,
                        "prompts": part,
                        "batch": batch,
                        "accept_length": accept,
                        "tokens_per_s": figures.median(speeds),
                        "lowest": min(speeds),
                        "highest": max(speeds),
                        "decoded_per_s": decoded / decoding,
                        "ms_per_round": decoding / rounds * batch * 1e3 if rounds else None,
                    }
                )
    return out


def agreement(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """How the outputs of each engine compare with those of AR on the same prompts; near-ties make them differ at times."""
    out: dict[str, dict[str, Any]] = {}
    truth = {
        (row["part"], row["batch"]): row["outputs"] for row in rows if row["engine"] == "AR" and row.get("repeat") == 0
    }
    for name in dict.fromkeys(row["engine"] for row in rows if "error" not in row):
        mine: list[list[int]] = []
        wanted: list[list[int]] = []
        for row in rows:
            if row["engine"] == name and "error" not in row and (row["part"], row["batch"]) in truth:
                mine += row["outputs"]
                wanted += truth[row["part"], row["batch"]]
        found = figures.agreement(mine, wanted)
        out[name] = {key: found[key] for key in ("equal", "of", "tokens_before_first_difference")}
    return out


def main() -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--site", type=Path, help="folder with the patched sglang; without it, AR and DFLASH only")
    parser.add_argument(
        "--base-site", type=Path, help="folder with the sglang as published; the installed one if left out"
    )
    parser.add_argument("--budgets", type=int, nargs="*", default=[15, 31, 63, 127, 255])
    parser.add_argument("--chain-seed", action="store_true", help="each budget also with the chain in the tree")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240, help="no further run is begun after this time")
    parser.add_argument("--after", type=Path, help="measure only once this file is there; engines start before")
    parser.add_argument("--stages", action="store_true", help="also where the time of a round goes")
    parser.add_argument("--prime", type=int, default=1, help="engines that are waited for before the others start")
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--scratch", type=Path, default=Path("scratch"))
    args = parser.parse_args()
    leave_on_term()
    args.scratch.mkdir(parents=True, exist_ok=True)
    prompts = json.loads((args.models / "prompts.json").read_text(encoding="utf-8"))
    begun = time.monotonic()
    compared = engines_of(args)
    profiled = (
        stages.engines(args, (63,) if args.site else ()) if args.stages else stages.Profiled(engines=(), files={})
    )
    alive, failed = start_all([*compared, *profiled.engines], prime=args.prime)
    result: dict[str, Any] = {
        "version": 1,
        "machine": machine.describe(),
        "models": json.loads((args.models / "train.json").read_text(encoding="utf-8")),
        "settings": {"new_tokens": args.new_tokens, "repeats": args.repeats, "temperature": 0, "cuda_graphs": True},
        "start_s": time.monotonic() - begun,
        "failed": failed,
    }
    print(json.dumps({"start_s": result["start_s"], "failed": failed}), flush=True)
    while args.after and not args.after.exists():
        time.sleep(0.5)

    def keep(rows: list[dict[str, Any]]) -> None:
        result["summary"] = summary(rows)
        result["agreement_with_ar"] = agreement(rows)
        result["runs"] = rows
        args.out.write_text(json.dumps(result) + "\n", encoding="utf-8")

    try:
        result["stages_ms"] = profiled.measure(alive, prompts)
        stages.show(result["stages_ms"])
        keep([])
        measure({engine.name: alive[engine.name] for engine in compared if engine.name in alive}, prompts, args, keep)
    finally:
        for engine in alive.values():
            engine.stop()
    lines = result["summary"]
    for part in ("train", "eval", "both"):
        print(f"\n{part}:\n{report.sweep_table(lines, part=part)}", flush=True)
    print(json.dumps(result["agreement_with_ar"]))


if __name__ == "__main__":
    main()
