"""What the checks of `lossless.py` share: engines, prompts, the reference and its noise, comparisons, and what was found."""

from __future__ import annotations

import json
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.ddtree import figures, machine
from benchmarks.ddtree.engines import Engine, EngineDiedError, Outputs, Pair, algorithm

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

LEAST_SCREEN = 0.1
"""Least distance of AR's two best log probabilities over a continuation that is to be equal token for token; raised to the noise of the pair."""
MARGIN = 0.05
"""An emitted token may be worse than the best by this, in log probability; raised to the noise of the pair."""
LEAST_P = 1e-3
"""A chi-square test below this fails."""
NEW_TOKENS = 32
Prompts = list[list[int]]


class Harness:
    """Engines, prompts, and what was found."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.pair = Pair(target=args.models / "target", draft=args.models / "draft")
        parts = json.loads((args.models / "prompts.json").read_text(encoding="utf-8"))
        half = args.prompts // 2
        self.prompts: Prompts = [*parts["train"][:half], *parts["eval"][:half]]
        self.result: dict[str, Any] = {
            "version": 1,
            "machine": machine.describe(),
            "settings": self.settings(),
            "checks": [],
        }
        self.lock = threading.Lock()
        self.alive: dict[str, Engine] = {}
        self.reference: list[list[int]] = []
        self.gaps: list[float] = []
        self.noise = 0.0
        self.spoken: list[tuple[str, list[int], list[int]]] = []
        """Who said what: kind of engine, prompt, output."""

    def settings(self) -> dict[str, Any]:
        """Constants of this run."""
        return {
            "least_screen": LEAST_SCREEN,
            "margin": MARGIN,
            "new_tokens": NEW_TOKENS,
            "prompts": self.args.prompts,
            "budget": self.args.budget,
        }

    def engines(self) -> list[Engine]:
        """All engines of the correctness run."""
        pair, args = self.pair, self.args
        budget = args.budget
        graphs: dict[str, Any] = {"cuda_graph_bs": [1, 2, 3, 8]}
        strict = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}

        def tree(**more: Any) -> dict[str, Any]:
            return algorithm(pair, "DDTREE", **{"budget": budget, **graphs, **more})

        def engine(
            name: str,
            arguments: dict[str, Any],
            environment: dict[str, str] | None = None,
            *,
            site: Path | None = args.site,
        ) -> Engine:
            return Engine(
                name=name,
                arguments=arguments,
                log=args.logs / f"{name}.log",
                site=str(site or ""),
                environment=environment or {},
            )

        def probe(text: str) -> dict[str, str]:
            return {"DDTREE_PROBE": text}

        dump = args.scratch
        wanted = [
            engine("ar", algorithm(pair, "AR", cuda_graph_bs=[1, 2, 3, 8, 48])),
            engine("ar-eager", algorithm(pair, "AR", graphs=False)),
            engine("dflash", algorithm(pair, "DFLASH", **graphs)),
            engine("dflash-eager", algorithm(pair, "DFLASH", graphs=False)),
            engine("dflash-base", algorithm(pair, "DFLASH", **graphs), site=args.base_site),
            engine("ddtree", tree(cuda_graph_bs=[1, 2, 3, 8, 48]), probe(f"dump={dump}/graphs")),
            engine("ddtree-eager", tree(graphs=False), probe(f"dump={dump}/eager")),
            engine("ddtree-tight", tree(max_total_tokens=2560, schedule_conservativeness=0.05), strict),
            engine("ddtree-chunked", tree(chunked_prefill_size=64)),
            engine("ddtree-strict", tree(cuda_graph_bs=[1, 2, 8, 24]), strict | probe(f"pool={dump}/pool.jsonl")),
            engine("ddtree-seed", tree(speculative_ddtree_chain_seed=True)),
            engine("ar-fp16", algorithm(pair, "AR", dtype="float16", **graphs)),
            engine("ddtree-fp16", tree(dtype="float16"), probe(f"dump={dump}/fp16")),
        ]
        return [one for one in wanted if not args.engines or one.name in args.engines]

    def note(self, name: str, check: Callable[[], dict[str, Any]]) -> None:
        """Runs one check and writes what it found; a check whose engines are missing fails."""
        begun = time.monotonic()
        try:
            found = check()
        except Exception as problem:  # noqa: BLE001 - the other checks go on
            found = {
                "passed": False,
                "error": f"{type(problem).__name__}: {problem}"[-1500:],
                "trace": traceback.format_exc()[-800:],
            }
        with self.lock:
            self.result["checks"].append({"check": name, "seconds": round(time.monotonic() - begun, 2), **found})
            self.save()
        print(json.dumps({"check": name, **short(found)})[:1200], flush=True)

    def save(self) -> None:
        """Writes what there is."""
        self.args.out.write_text(json.dumps(self.result, default=str) + "\n", encoding="utf-8")

    def make_reference(self) -> dict[str, Any]:
        """AR, one request at a time, with the two best log probabilities of each step."""
        outputs = self.alive["ar"].generate(
            self.prompts, new_tokens=NEW_TOKENS, concurrency=1, options={"return_logprob": True, "top_logprobs_num": 2}
        )
        self.reference = [output["ids"] for output in outputs]
        self.gaps = [least_gap(output) for output in outputs]
        self.spoken += [("ar", prompt, ids) for prompt, ids in zip(self.prompts, self.reference, strict=True)]
        changes = self.kernel_noise(outputs)
        self.noise = max(changes)
        return {
            "passed": True,
            "noise": figures.quantiles(changes),
            "screen": self.screen,
            "screened": len(self.screened()),
            "of": len(self.prompts),
            "least_gaps": self.gaps,
            "outputs": self.reference,
        }

    @property
    def screen(self) -> float:
        """Gap from which on a flip is no matter of rounding."""
        return max(LEAST_SCREEN, self.noise)

    def kernel_noise(self, outputs: Outputs) -> list[float]:
        """How much the gap of the two best tokens changes when the plain engine reads AR's own outputs at once instead of decoding them.

        Decoding and prefill are different kernels for the same function, so this is what rounding does to this pair on this machine. Only
        steps count at which both agree on what the two best are.
        """
        changes = []
        for at in range(0, len(outputs), 32):
            some = list(zip(self.prompts[at : at + 32], outputs[at : at + 32], strict=True))
            for (_, output), read in zip(
                some, self.read_at_once([(prompt, output["ids"]) for prompt, output in some]), strict=True
            ):
                for decoded, prefilled in zip(output["meta"]["output_top_logprobs"], read, strict=True):
                    if {entry[1] for entry in decoded} == {entry[1] for entry in prefilled}:
                        best = decoded[0][1]
                        gap = prefilled[0][0] - prefilled[1][0]
                        changes.append(
                            abs((decoded[0][0] - decoded[1][0]) - (gap if prefilled[0][1] == best else -gap))
                        )
        return changes

    def read_at_once(self, pairs: list[tuple[list[int], list[int]]]) -> list[list[Any]]:
        """For each prompt and output, the two best tokens of the plain engine at each position of the output."""
        options = {
            "return_logprob": [True] * len(pairs),
            "top_logprobs_num": [2] * len(pairs),
            "logprob_start_len": [len(prompt) - 1 for prompt, _ in pairs],
        }
        outputs = self.alive["ar"].generate([[*prompt, *ids] for prompt, ids in pairs], new_tokens=1, options=options)
        return [
            output["meta"]["input_top_logprobs"][-len(ids) :] for (_, ids), output in zip(pairs, outputs, strict=True)
        ]

    def screened(self) -> list[int]:
        """Prompts whose continuation has no near-tie."""
        return [index for index, gap in enumerate(self.gaps) if gap >= self.screen]

    def compare(
        self, kind: str, chosen: list[int], outputs: Outputs, *, reference: list[list[int]] | None = None
    ) -> dict[str, Any]:
        """Agreement over all and over the screened ones; remembers the outputs for the margin check."""
        ids = [output["ids"] for output in outputs]
        wanted = reference or [self.reference[index] for index in chosen]
        self.spoken += (
            [(kind, self.prompts[index], out) for index, out in zip(chosen, ids, strict=True)]
            if reference is None
            else []
        )
        clean = [at for at, index in enumerate(chosen) if self.gaps[index] >= self.screen]
        every = figures.agreement(ids, wanted)
        screened = figures.agreement([ids[at] for at in clean], [wanted[at] for at in clean])
        rounds = sum(output["meta"].get("spec_verify_ct") or 0 for output in outputs)
        accept = (sum(map(len, ids)) - len(ids)) / rounds if rounds else None
        return {
            "passed": 0 < screened["of"] == screened["equal"],
            "screened": f"{screened['equal']}/{screened['of']}",
            "all": f"{every['equal']}/{every['of']}",
            "screened_different": [chosen[clean[at]] for at in as_list(screened["different"])],
            # Where the others differ, and how near a tie AR was on these prompts.
            "different": {
                chosen[at]: {"at": figures.common_prefix(ids[at], wanted[at]), "least_gap": self.gaps[chosen[at]]}
                for at in as_list(every["different"])
            },
            "tokens_before_first_difference": every["tokens_before_first_difference"],
            "accept_length": accept,
        }

    def each(self, names: list[str], one: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """One function for several engines at once; an engine that dies gives a failed row."""

        def safe(name: str) -> list[dict[str, Any]]:
            try:
                return one(name)
            except EngineDiedError as problem:
                return [{"engine": name, "passed": False, "error": str(problem)[-1200:]}]

        with ThreadPoolExecutor(len(names)) as pool:
            return [row for rows in pool.map(safe, names) for row in rows]


def least_gap(output: dict[str, Any]) -> float:
    """Smallest distance of the two best log probabilities over the steps of one output."""
    return min(float(step[0][0] - step[1][0]) for step in output["meta"]["output_top_logprobs"])


def as_list(value: Any) -> list[int]:
    """A list that a mixed dictionary holds."""
    return list(value)


def short(found: dict[str, Any]) -> dict[str, Any]:
    """Without the long parts."""
    brief = {key: value for key, value in found.items() if key not in {"rows", "trace"}}
    if "rows" in found:
        brief["rows"] = [
            {
                key: value
                for key, value in row.items()
                if key in {"engine", "batch", "kind", "wave", "passed", "screened", "all", "p", "error"}
            }
            for row in found["rows"]
        ][:24]
    return brief
