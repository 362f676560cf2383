"""Whether DDTREE changes anything but the speed: one JSON file and a table.

    python -m benchmarks.ddtree.lossless --models FOLDER --site FOLDER --out FILE

All engines are started side by side and asked the same things; nothing here measures time. What is compared:

- with AR, token for token, where AR's two best tokens were never closer than what rounding moves them, and over all prompts;
- with the plain engine reading prompt and output at once: each token must be its best or within MARGIN of it. AR's own outputs give the
  control: decoding and prefill are different kernels, so they have gaps too;
- logits of every node of a tree with a forward of its path, in float32 by the model of `model.py`;
- distributions at temperature > 0, by a chi-square test;
- the KV pool after 1,000 requests: every slot free or in the prefix cache, none twice.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.ddtree import figures, report, weights
from benchmarks.ddtree.engines import Engine, Outputs, leave_on_term, start_all
from benchmarks.ddtree.harness import LEAST_P, MARGIN, NEW_TOKENS, Harness, least_gap
from benchmarks.ddtree.nodes import node_errors

if TYPE_CHECKING:
    from collections.abc import Callable


class Lossless(Harness):
    """The checks."""

    def run(self) -> None:
        """Every check; one that fails to run is noted and the next goes on."""
        self.args.scratch.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        self.alive, failed = start_all(self.engines(), timeout_s=self.args.start_seconds, prime=self.args.prime)
        self.result |= {"start_s": time.monotonic() - begun, "engines": sorted(self.alive), "failed": failed}
        self.save()
        print(json.dumps({"start_s": self.result["start_s"], "failed": failed}), flush=True)
        try:
            self.note("reference", self.make_reference)
            # A check, and the engines that it cannot do without.
            chains: list[list[tuple[str, Callable[[], dict[str, Any]], set[str]]]] = [
                [
                    ("equal: all modes", self.check_modes, {"ddtree"}),
                    ("equal: stop tokens", self.check_stop, {"dflash", "ddtree"}),
                    ("dflash unchanged", self.check_dflash, {"dflash", "dflash-base"}),
                ],
                [
                    ("equal: staggered", self.check_staggered, {"ddtree"}),
                    ("equal: prefix hits", self.check_prefix_hits, {"ddtree"}),
                ],
                [
                    ("equal: chunked prefill", self.check_chunked, {"ddtree-chunked"}),
                    ("distribution", self.check_distribution, {"ddtree"}),
                ],
                [("equal: retraction", self.check_retraction, {"ddtree-tight"})],
                [
                    ("equal: 16-bit floats", self.check_fp16, {"ar-fp16", "ddtree-fp16"}),
                    ("distribution, clear cuts", self.check_cuts, {"ar-fp16", "ddtree-fp16"}),
                ],
                [("kv pool", self.check_pool, {"ddtree-strict"})],
            ]
            asked = set(self.args.engines)

            def in_turn(chain: list[tuple[str, Callable[[], dict[str, Any]], set[str]]]) -> None:
                for name, check, needs in chain:
                    wanted = not self.args.checks or name in self.args.checks
                    if wanted and (
                        not asked or needs <= asked
                    ):  # an engine that was asked for and died is a failed check
                        self.note(name, check)

            with ThreadPoolExecutor(len(chains)) as pool:  # an engine answers one thread at a time
                list(pool.map(in_turn, chains))
            self.note("margin", self.check_margin)
        finally:
            for engine in self.alive.values():
                engine.stop()
            self.save()
        self.note("logits of nodes", self.check_nodes)
        self.save()

    def check_modes(self) -> dict[str, Any]:
        """Every algorithm, eager and with graphs, at batch 1, 3 and 8, prompts of many lengths."""
        names: list[str] = [
            name
            for name in ("ar", "ar-eager", "dflash", "dflash-eager", "ddtree", "ddtree-eager", "ddtree-seed")
            if name in self.alive
        ]
        some = list(range(0, len(self.prompts), 4))

        def one(name: str) -> list[dict[str, Any]]:
            rows = []
            for batch in (1, 3, 8):
                chosen = some if name.endswith("eager") else list(range(len(self.prompts)))
                outputs = self.alive[name].generate(
                    [self.prompts[index] for index in chosen], new_tokens=NEW_TOKENS, concurrency=batch
                )
                rows.append({"engine": name, "batch": batch, **self.compare(f"{name}/{batch}", chosen, outputs)})
            return rows

        rows = self.each(names, one)
        return {"passed": all(row["passed"] for row in rows), "rows": rows}

    def check_staggered(self) -> dict[str, Any]:
        """Requests that come and end at different times, so that batches grow and shrink between rounds."""
        dice = random.Random(3)
        chosen = list(range(len(self.prompts)))
        rows = []
        for name in (name for name in ("ddtree", "ddtree-eager") if name in self.alive):
            delays = [dice.uniform(0, 0.6) for _ in chosen]
            counts = [dice.randint(1, NEW_TOKENS) for _ in chosen]
            outputs = self.alive[name].generate(
                [self.prompts[index] for index in chosen], new_tokens=counts, delays_s=delays
            )
            exact = all(len(output["ids"]) == count for output, count in zip(outputs, counts, strict=True))
            found = self.compare(f"{name}/staggered", chosen, outputs)
            rows.append({"engine": name, **found, "passed": found["passed"] and exact, "lengths_exact": exact})
        return {"passed": all(row["passed"] for row in rows), "rows": rows}

    def check_prefix_hits(self) -> dict[str, Any]:
        """The same prompts again, and prompts that go on inside what a tree has committed."""
        engine = self.alive["ddtree"]
        chosen = list(range(len(self.prompts)))
        engine.ask("flush")
        rows = []
        for wave in ("cold", "again"):
            outputs = engine.generate(self.prompts, new_tokens=NEW_TOKENS, concurrency=8)
            cached = sum(output["meta"].get("cached_tokens") or 0 for output in outputs)
            rows.append({"wave": wave, "cached_tokens": cached, **self.compare(f"ddtree/{wave}", chosen, outputs)})
        kept = 20
        longer = [[*prompt, *ids[:kept]] for prompt, ids in zip(self.prompts, self.reference, strict=True)]
        outputs = engine.generate(longer, new_tokens=NEW_TOKENS - kept, concurrency=8)
        cached = sum(output["meta"].get("cached_tokens") or 0 for output in outputs)
        inside = cached - sum(map(len, self.prompts))
        wanted = [ids[kept:] for ids in self.reference]
        rows.append(
            {"wave": "inside outputs", "cached_tokens": cached, **self.compare("", chosen, outputs, reference=wanted)}
        )
        self.spoken += [
            ("ddtree/inside", prompt, output["ids"]) for prompt, output in zip(longer, outputs, strict=True)
        ]
        return {
            "passed": all(row["passed"] for row in rows) and inside > 0,
            "tokens_hit_inside_outputs": inside,
            "rows": rows,
        }

    def check_retraction(self) -> dict[str, Any]:
        """A pool too small for all: requests are put back and begun anew."""
        engine = self.alive["ddtree-tight"]
        chosen = list(range(0, len(self.prompts), 2))
        outputs = engine.generate([self.prompts[index] for index in chosen], new_tokens=200, timeout_s=180)
        retracted = sum(output["meta"].get("total_retractions") or 0 for output in outputs)
        self.spoken += [
            ("ddtree/retracted", self.prompts[index], output["ids"])
            for index, output in zip(chosen, outputs, strict=True)
        ]
        cut: Outputs = [{**output, "ids": output["ids"][:NEW_TOKENS], "meta": {}} for output in outputs]
        found = self.compare("ddtree/retracted, start", chosen, cut)
        return {**found, "passed": found["passed"] and retracted > 0, "retractions": retracted, "new_tokens": 200}

    def check_chunked(self) -> dict[str, Any]:
        """Long prompts read in chunks of 64 tokens."""
        groups = [
            [token for prompt in self.prompts[at : at + 4] for token in prompt]
            for at in range(0, min(48, len(self.prompts)) - 3, 4)
        ]
        options = {"return_logprob": True, "top_logprobs_num": 2}
        truth = self.alive["ar"].generate(groups, new_tokens=NEW_TOKENS, concurrency=4, options=options)
        outputs = self.alive["ddtree-chunked"].generate(groups, new_tokens=NEW_TOKENS, concurrency=3)
        self.spoken += [
            ("ddtree/chunked", prompt, output["ids"]) for prompt, output in zip(groups, outputs, strict=True)
        ]
        ids, wanted = [output["ids"] for output in outputs], [output["ids"] for output in truth]
        clean = [at for at, output in enumerate(truth) if least_gap(output) >= self.screen]
        screened = figures.agreement([ids[at] for at in clean], [wanted[at] for at in clean])
        every = figures.agreement(ids, wanted)
        return {
            "passed": screened["equal"] == screened["of"],
            "screened": f"{screened['equal']}/{screened['of']}",
            "all": f"{every['equal']}/{every['of']}",
            "prompt_tokens": [len(prompt) for prompt in groups],
        }

    def check_stop(self) -> dict[str, Any]:
        """A stop token that comes often, so also inside accepted paths."""
        counts = Counter(token for ids in self.reference for token in ids[2:])
        stop = counts.most_common(1)[0][0]
        cut = [ids[: ids.index(stop) + 1] if stop in ids else ids for ids in self.reference]
        params = {"stop_token_ids": [stop], "ignore_eos": False}
        chosen = list(range(len(self.prompts)))
        rows = []
        for name in ("ar", "dflash", "ddtree"):
            outputs = self.alive[name].generate(self.prompts, new_tokens=NEW_TOKENS, concurrency=8, params=params)
            found = self.compare("", chosen, outputs, reference=cut)
            reasons = Counter(str(output["meta"]["finish_reason"]["type"]) for output in outputs)
            after = sum(stop in output["ids"][:-1] for output in outputs)
            rows.append(
                {
                    "engine": name,
                    **found,
                    "passed": found["passed"] and after == 0,
                    "reasons": dict(reasons),
                    "went_past_it": after,
                }
            )
        return {"passed": all(row["passed"] for row in rows), "stop_token": stop, "rows": rows}

    def check_fp16(self) -> dict[str, Any]:
        """Both in float16, whose steps are an eighth of bf16's: near-ties are rarer."""
        options = {"return_logprob": True, "top_logprobs_num": 2}
        truth = self.alive["ar-fp16"].generate(self.prompts, new_tokens=NEW_TOKENS, concurrency=1, options=options)
        wanted = [output["ids"] for output in truth]
        rows = []
        for batch in (1, 8):
            outputs = self.alive["ddtree-fp16"].generate(self.prompts, new_tokens=NEW_TOKENS, concurrency=batch)
            ids = [output["ids"] for output in outputs]
            clean = [at for at, output in enumerate(truth) if least_gap(output) >= self.screen / 4]
            screened = figures.agreement([ids[at] for at in clean], [wanted[at] for at in clean])
            every = figures.agreement(ids, wanted)
            rows.append(
                {
                    "batch": batch,
                    "passed": screened["equal"] == screened["of"],
                    "screened": f"{screened['equal']}/{screened['of']}",
                    "all": f"{every['equal']}/{every['of']}",
                }
            )
        return {"passed": all(row["passed"] for row in rows), "screen": self.screen / 4, "rows": rows}

    def check_dflash(self) -> dict[str, Any]:
        """DFLASH of the patched tree against DFLASH as published, same requests in the same order; and itself again, as control."""

        def outputs(name: str) -> list[list[int]]:
            engine = self.alive[name]
            out = []
            for batch in (1, 8):
                engine.ask("flush")
                for at in range(0, len(self.prompts), batch):
                    some = self.prompts[at : at + batch]
                    out += [output["ids"] for output in engine.generate(some, new_tokens=NEW_TOKENS)]
            return out

        base, patched, again = outputs("dflash-base"), outputs("dflash"), outputs("dflash-base")
        same = sum(left == right for left, right in zip(base, patched, strict=True))
        control = sum(left == right for left, right in zip(base, again, strict=True))
        return {
            "passed": same == len(base),
            "equal": f"{same}/{len(base)}",
            "base_against_itself": f"{control}/{len(base)}",
        }

    def check_distribution(self) -> dict[str, Any]:
        """Three tokens at temperature 1, and with top-k and top-p, many times: AR against DDTREE, and AR against AR as control."""
        spread = self.alive["ar"].generate(
            self.prompts, new_tokens=3, concurrency=8, options={"return_logprob": True, "top_logprobs_num": 1}
        )
        doubt = [-sum(entry[0] for entry in output["meta"]["output_token_logprobs"]) for output in spread]
        open_prompts = sorted(range(len(doubt)), key=lambda index: -doubt[index])[4:5] * 2
        settings: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}]
        rows = []
        for index, params in zip(open_prompts, settings, strict=True):

            def draw(label: str, index: int = index, params: dict[str, Any] = params) -> list[tuple[int, ...]]:
                engine, out = self.alive[label.split(maxsplit=1)[0]], []
                for _ in range(self.args.samples // 512):
                    outputs = engine.generate([self.prompts[index]] * 512, new_tokens=3, params=params)
                    out += [tuple(output["ids"]) for output in outputs]
                return out

            with ThreadPoolExecutor(3) as pool:
                plain, tree, again = pool.map(draw, ("ar", "ddtree", "ar again"))
            tested, control = figures.same_distribution(plain, tree), figures.same_distribution(plain, again)
            # With a cut, rounding decides what can be sampled at all: told, and judged by `check_cuts`.
            judged = "top_k" not in params
            passed = {"passed": tested["p"] >= LEAST_P} if judged else {}
            rows.append({"prompt": index, "params": params, **tested, "control": control, "judged": judged, **passed})
        return {"passed": all(row["passed"] for row in rows if row["judged"]), "rows": rows}

    def check_cuts(self) -> dict[str, Any]:
        """Top-k and top-p in float16, after beginnings at which rounding cannot move a token over the cut; with controls.

        The cut is a step: a token whose logit two kernels round to either side of it is sampled by one and never by the other. So only
        beginnings count whose cut is farther from every token than what was measured to happen to the difference of two logits.
        """
        plain, tree = self.alive["ar-fp16"], self.alive["ddtree-fp16"]
        options = {"return_logprob": True, "top_logprobs_num": 2}
        outputs = plain.generate(self.prompts, new_tokens=NEW_TOKENS, concurrency=1, options=options)
        noise = figures.quantiles(self.kernel_noise(outputs, "ar-fp16"))
        params = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
        spread = plain.generate(
            self.prompts, new_tokens=3, concurrency=8, options={"return_logprob": True, "top_logprobs_num": 1}
        )
        doubt = [-sum(entry[0] for entry in output["meta"]["output_token_logprobs"]) for output in spread]
        rows: list[dict[str, Any]] = []
        for index in sorted(range(len(doubt)), key=lambda number: -doubt[number])[4:7]:
            prompt = self.prompts[index]

            def draw(
                engine: Engine, params: dict[str, Any] = params, prompt: list[int] = prompt
            ) -> list[tuple[int, ...]]:
                out = []
                for _ in range(self.args.samples // 512):
                    outputs = engine.generate([prompt] * 512, new_tokens=3, params=params)
                    out += [tuple(output["ids"]) for output in outputs]
                return out

            with ThreadPoolExecutor(2) as pool:
                spoken = pool.submit(draw, tree)
                truth, again, wrong = draw(plain), draw(plain), draw(plain, {**params, "top_k": 17})
            clear = self.clear_beginnings(plain, prompt, [*truth, *spoken.result()], params, noise["max"])
            row: dict[str, Any] = {
                "prompt": index,
                **figures.same_choices(truth, spoken.result(), clear.__contains__),
                "control": figures.same_choices(truth, again, clear.__contains__),
                "control_with_top_k_17": figures.same_choices(truth, wrong, clear.__contains__),
                "clear": len(clear),
            }
            rows.append({**row, "passed": row["p"] >= LEAST_P and row["beginnings"] > 0})
        caught = sum(row["control_with_top_k_17"]["p"] < LEAST_P for row in rows)
        return {
            "passed": all(row["passed"] for row in rows) and caught > 0,
            "params": params,
            "noise": noise,
            "wrong_control_caught": caught,
            "rows": rows,
        }

    def clear_beginnings(
        self,
        engine: Engine,
        prompt: list[int],
        sequences: list[tuple[int, ...]],
        params: dict[str, Any],
        distance: float,
    ) -> set[tuple[int, ...]]:
        """Beginnings of sequences that came often, and whose next token's cut is clear to the plain engine."""
        counts = Counter(sequence[:at] for sequence in sequences for at in range(len(sequence)))
        often = [beginning for beginning, count in counts.items() if count >= 80]
        _, shape = weights.read_target(self.pair.target, device="cpu", dtype=torch.float32)
        clear = set()
        for at in range(0, len(often), 32):
            some = often[at : at + 32]
            outputs = engine.generate(
                [[*prompt, *beginning] for beginning in some],
                new_tokens=1,
                options={"return_logprob": True, "top_logprobs_num": shape.vocab},
            )
            for beginning, output in zip(some, outputs, strict=True):
                logprobs = [entry[0] for entry in output["meta"]["output_top_logprobs"][0]]
                if figures.has_clear_cut(logprobs, distance=distance, **params):
                    clear.add(beginning)
        return clear

    def check_pool(self) -> dict[str, Any]:
        """1,000 requests of all kinds with some aborted, the pool counted after each round; then every slot accounted for."""
        engine = self.alive["ddtree-strict"]
        dice = random.Random(5)
        done, reasons = 0, Counter[str]()
        while done < 1000:
            some = [dice.choice(self.prompts)[: dice.randint(8, 160)] for _ in range(100)]
            counts = [dice.randint(1, 64) for _ in some]
            stop = {"stop_token_ids": [dice.randint(2, 400)], "ignore_eos": False} if done % 200 else {}
            params = {**stop, "temperature": 1.0 if done % 300 == 100 else 0}
            delays = [dice.uniform(0, 0.3) for _ in some]
            outputs = engine.generate(some, new_tokens=counts, concurrency=24, delays_s=delays, params=params)
            reasons.update(str(output["meta"]["finish_reason"]["type"]) for output in outputs)
            done += len(outputs)
        some = self.prompts[:32]
        sampling = [{"temperature": 0, "ignore_eos": True, "max_new_tokens": 400}] * len(some)
        aborted = engine.ask("abort_half", prompts=some, sampling=sampling, after_s=0.15)
        time.sleep(1.0)  # the idle check of SGLang runs, and raises when anything is missing
        engine.ask("flush")
        state = json.loads((self.args.scratch / "pool.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        whole = state["available"] + state["evictable"] == state["total"] and state["protected"] == 0
        distinct = state["free_slots"] == state["different_free_slots"]
        back = state["free_requests"] == state["request_slots"]
        return {
            "passed": whole and distinct and back,
            "requests": done,
            "finished_by": dict(reasons),
            "aborted": aborted,
            "pool": state,
            "checked_every_round": True,
        }

    def check_margin(self) -> dict[str, Any]:
        """The plain engine reads prompt and output at once; each emitted token against its best one."""
        different = list(dict.fromkeys((tuple(prompt), tuple(ids)) for _, prompt, ids in self.spoken))
        gaps: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}
        for at in range(0, len(different), 32):
            some = different[at : at + 32]
            options = {
                "return_logprob": [True] * len(some),
                "top_logprobs_num": [1] * len(some),
                "logprob_start_len": [len(prompt) - 1 for prompt, _ in some],
            }
            outputs = self.alive["ar"].generate(
                [[*prompt, *ids] for prompt, ids in some], new_tokens=1, options=options
            )
            for (read, spoken), output in zip(some, outputs, strict=True):
                own = output["meta"]["input_token_logprobs"][-len(spoken) :]
                best = output["meta"]["input_top_logprobs"][-len(spoken) :]
                # SGLang reports the last id of the vocabulary, and what is beyond, as 0.
                if any(entry[1] not in {token, 0} for entry, token in zip(own, spoken, strict=True)):
                    raise ValueError("log probabilities are of other tokens")
                gaps[read, spoken] = [top[0][0] - entry[0] for entry, top in zip(own, best, strict=True)]
        kinds: dict[str, list[float]] = {}
        for kind, prompt, ids in self.spoken:
            kinds.setdefault(kind, []).extend(gaps[tuple(prompt), tuple(ids)])
        rows: list[dict[str, Any]] = [
            {
                "kind": kind,
                "tokens": len(values),
                "best": sum(value <= 0 for value in values) / len(values),
                "beyond_margin": sum(value > max(MARGIN, self.noise) for value in values),
                "beyond_0.05": sum(value > MARGIN for value in values),
                "largest": sorted(values)[-5:],
            }
            for kind, values in kinds.items()
        ]
        control = max((row["largest"][-1] for row in rows if row["kind"].startswith("ar")), default=0.0)
        trees = [row for row in rows if row["kind"].startswith("ddtree")]
        return {
            "margin": max(MARGIN, self.noise),
            "passed": bool(trees) and all(row["beyond_margin"] == 0 for row in trees),
            "largest_of_ar": control,
            "largest_of_ddtree": max((row["largest"][-1] for row in trees), default=0.0),
            "beyond_margin_ar": sum(row["beyond_margin"] for row in rows if row["kind"].startswith("ar")),
            "beyond_margin_ddtree": sum(row["beyond_margin"] for row in trees),
            "tokens_ddtree": sum(row["tokens"] for row in trees),
            "rows": rows,
        }

    def check_nodes(self) -> dict[str, Any]:
        """Logits of every node of the first trees against a float32 forward of prefix and path; a wrong path as control."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        plain, shape = weights.read_target(self.pair.target, device=device, dtype=torch.float32)
        rows = []
        for folder in sorted(path for path in self.args.scratch.iterdir() if path.is_dir()):
            for file in sorted(folder.glob("tree-*.pt")):
                rows += [{"engine": folder.name, **row} for row in node_errors(torch.load(file), plain, shape)]
        if not rows:
            return {"passed": False, "error": "no tree was dumped"}
        kinds = {}
        for engine in dict.fromkeys(row["engine"] for row in rows):
            mine = [row for row in rows if row["engine"] == engine]
            kinds[engine] = {
                "trees": len(mine),
                "nodes": sum(row["nodes"] for row in mine),
                "worst_node": max(row["worst_node"] for row in mine),
                "worst_root": max(row["root"] for row in mine),
                "least_wrong_path": min(row["wrong_path"] for row in mine),
                "same_best_token": sum(row["same_best"] for row in mine) / sum(row["nodes"] for row in mine),
                "positions_exact": all(row["positions_exact"] for row in mine),
            }
        good = all(
            kind["positions_exact"] and kind["worst_node"] < 0.25 * kind["least_wrong_path"] for kind in kinds.values()
        )
        return {
            "passed": good,
            "unit": "largest difference of a row's logits over their standard deviation",
            "engines": kinds,
        }


def main() -> None:
    """Reads the command line and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--site", type=Path, help="folder with the patched sglang; the installed one if left out")
    parser.add_argument("--base-site", type=Path, help="folder with the sglang as published")
    parser.add_argument("--budget", type=int, default=63)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--engines", nargs="*", default=[], help="only these")
    parser.add_argument("--checks", nargs="*", default=[], help="only these, beside margin and logits of nodes")
    parser.add_argument("--prime", type=int, default=1, help="engines that are waited for before the others start")
    parser.add_argument("--start-seconds", type=float, default=240)
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--scratch", type=Path, default=Path("scratch"))
    args = parser.parse_args()
    leave_on_term()
    harness = Lossless(args)
    harness.run()
    print(report.checks_table(harness.result["checks"]))


if __name__ == "__main__":
    main()
