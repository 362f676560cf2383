"""Probe: SGLang's engine answers, and DFLASH and DDTREE say token for token what it says without a draft."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "engine",
    "purpose": "Engines with a tiny random model start, and drafts by DFLASH and DDTREE do not change what greedy decoding says.",
    "tolerance": "equal tokens where the best two were never nearer than what rounding moves them, measured; elsewhere within that of the best",
    "needs": {"gpus": 1, "modules": ["torch", "sglang", "safetensors"]},
    "per": "gpu",
    "set": "full",
    "compiles": False,
    "seconds": {"quick": 480, "full": 480},
    "memory_bytes": 24_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.probes import kit, serve_engine, tiny
else:
    import kit

    serve_engine, tiny = kit.neighbour("serve_engine"), kit.neighbour("tiny")

PROMPTS = 128
TOKENS = 10
LEAST_SCREEN = 0.1
"""Least distance of the two best log-probabilities over a continuation that has to be equal; raised to the measured noise."""

MARGIN = 0.05
"""What a token may be worse than the best, in log-probability; raised to the measured noise."""

LEAST_SCREENED = 8
MOST_NOISE = 1.0
"""Between decoding and reading at once; more is no rounding."""

START_S = 240
ANSWER_S = 120

COMMON = {
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "grammar_backend": "none",
    "sampling_backend": "pytorch",
    "disable_piecewise_cuda_graph": True,
    "disable_flashinfer_autotune": True,
    "mem_fraction_static": 0.6,
    "max_total_tokens": 16384,
    "context_length": 2048,
    "max_running_requests": 16,
    "cuda_graph_bs": [1, 2, 4, 8],
    "random_seed": 1,
    "log_level": "warning",
}

Outputs = list[dict[str, Any]]


class Engine:
    """An engine in a process of its own."""

    def __init__(self, name: str, arguments: dict[str, Any], prefix: str) -> None:
        self.name = name
        self.log = Path.cwd() / f"{name}.log"
        reading, writing = os.pipe()
        environment = {
            **os.environ,
            # Programs that SGLang compiles kernels with are the environment's.
            "PATH": os.pathsep.join((str(Path(prefix, "bin")), os.environ.get("PATH", os.defpath))),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        }
        command = [sys.executable, "-X", "faulthandler", "-B", "-s", serve_engine.__file__ or ""]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, str(writing), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                env=environment,
            )
        os.close(writing)
        self.answers = reading
        self.rest = b""
        self.begun = time.monotonic()

    def wait(self) -> float:
        """Waits until it can answer; seconds since it was started."""
        self._read(max(1.0, START_S - (time.monotonic() - self.begun)))
        return time.monotonic() - self.begun

    def generate(
        self, prompts: list[list[int]], *, tokens: int = TOKENS, options: dict[str, Any] | None = None
    ) -> Outputs:
        """Continues prompts greedily, all at once."""
        sampling = [{"temperature": 0, "ignore_eos": True, "max_new_tokens": tokens}] * len(prompts)
        asked = {"prompts": prompts, "sampling": sampling, "options": options}
        if self.process.stdin is None:
            raise kit.Wrong(f"the engine `{self.name}` cannot be asked")
        try:
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise kit.Wrong(f"the engine `{self.name}` has ended: {self._tail()}") from None
        outputs: Outputs = self._read(ANSWER_S)
        return outputs

    def _read(self, limit_s: float) -> Any:
        until = time.monotonic() + limit_s
        while b"\n" not in self.rest:
            ready = select.select([self.answers], [], [], max(0.0, until - time.monotonic()))[0]
            if not ready:
                raise kit.Wrong(f"the engine `{self.name}` gave no answer in {limit_s:.0f} s: {self._tail()}")
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise kit.Wrong(f"the engine `{self.name}` ended: {self._tail()}")
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=3)  # so that its log has what a child of it said
            raise kit.Wrong(f"the engine `{self.name}`: {answer['error'][:600]}; {self._tail()}")
        return answer["result"]

    def _tail(self) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return " ".join(text[-900:].split())

    def stop(self) -> None:
        """Ends it and all that it started."""
        for pid in [*serve_engine.descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Trial:
    """The engines, and what was said."""

    def __init__(self, probe: kit.Probe) -> None:
        self.probe = probe
        self.prompts: list[list[int]] = []
        self.reference: list[list[int]] = []
        self.gaps: list[float] = []
        self.noise = 0.0
        self.engines: dict[str, Engine] = {}
        self.unusable: set[str] = set()

    @functools.cached_property
    def folder(self) -> Path:
        """Where the models are."""
        folder = Path.cwd() / "models"
        tiny.write_pair(folder, self.probe.generator("models"))
        chance = random.Random(self.probe.number("prompts"))
        self.prompts = [[chance.randrange(tiny.END_ID) for _ in range(chance.randrange(8, 48))] for _ in range(PROMPTS)]
        return folder

    def engine(self, name: str) -> Engine:
        """An engine, started at its first use."""
        if name not in self.engines:
            arguments = {"model_path": str(self.folder / "target"), **COMMON}
            if name != "AR":
                arguments |= {"speculative_algorithm": name, "speculative_draft_model_path": str(self.folder / "draft")}
            if name == "DDTREE":
                arguments["speculative_ddtree_budget"] = tiny.BUDGET
            self.engines[name] = Engine(name, arguments, self.probe.prefix)
            self.unusable.add(name)
            self.engines[name].wait()
            self.unusable.discard(name)
        if name in self.unusable:
            raise kit.Wrong(f"not tried: the engine `{name}` did not start")
        return self.engines[name]

    def have_reference(self) -> None:
        """What the plain engine says one by one, how near its ties were, and how much rounding moves them."""
        if self.reference:
            return
        plain = self.engine("AR")
        options = {"return_logprob": True, "top_logprobs_num": 2}
        outputs = [plain.generate([prompt], options=options)[0] for prompt in self.prompts]
        steps = [output["meta"]["output_top_logprobs"] for output in outputs]
        self.gaps = [min(step[0][0] - step[1][0] for step in each) for each in steps]
        self.reference = [output["ids"] for output in outputs]
        read = self.read_at_once(self.reference)
        changes = [
            abs((one[0][0] - one[1][0]) - (two[0][0] - two[1][0] if two[0][1] == one[0][1] else two[1][0] - two[0][0]))
            for decoded, prefilled in zip(steps, read, strict=True)
            for one, two in zip(decoded, prefilled, strict=True)
            if {one[0][1], one[1][1]} == {two[0][1], two[1][1]}
        ]
        self.noise = max([*changes, worst_margin(self.reference, read)])

    @property
    def slack(self) -> float:
        """What rounding may move; a quarter more than what was seen, since another kernel may round worse."""
        return 1.25 * self.noise

    def read_at_once(self, continuations: list[list[int]]) -> list[list[Any]]:
        """The two best tokens of the plain engine at each position of continuations, which it reads instead of decoding them."""
        out: list[list[Any]] = []
        pairs = list(zip(self.prompts, continuations, strict=True))
        for at in range(0, len(pairs), 16):
            some = pairs[at : at + 16]
            options = {
                "return_logprob": [True] * len(some),
                "top_logprobs_num": [8] * len(some),
                "logprob_start_len": [len(prompt) - 1 for prompt, _ in some],
            }
            outputs = self.engine("AR").generate([[*prompt, *ids] for prompt, ids in some], tokens=1, options=options)
            out += [
                output["meta"]["input_top_logprobs"][-len(ids) :]
                for (_, ids), output in zip(some, outputs, strict=True)
            ]
        return out

    def stop(self) -> None:
        """Ends all engines."""
        for engine in self.engines.values():
            engine.stop()


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases. Engines start one after the other: kernels are compiled at the first start, and each would compile them."""
    import safetensors.torch
    import torch

    del torch, safetensors
    trial = Trial(probe)
    yield kit.Case("AR", partial(plain, trial=trial))
    for name in ("DFLASH", "DDTREE"):
        for batch in (1, 8):
            yield kit.Case(f"{name}-{batch}", partial(compare, trial=trial, name=name, batch=batch))
    yield kit.Case("stop", partial(stop, trial=trial))


def stop(found: kit.Found, trial: Trial) -> None:
    """All engines are ended."""
    found.note("engines", len(trial.engines))
    trial.stop()


def plain(found: kit.Found, trial: Trial) -> None:
    """The engine without a draft: decoding agrees with reading at once, as far as rounding goes."""
    begun = time.monotonic()
    trial.engine("AR")
    found.note("start", round(time.monotonic() - begun, 1), "s")
    trial.have_reference()
    found.at_most("noise", trial.noise, MOST_NOISE)
    screen = max(LEAST_SCREEN, trial.slack)
    clear = sum(gap >= screen for gap in trial.gaps)
    found.note("screened", clear)
    found.note("prompts", len(trial.prompts))
    found.require(
        clear >= LEAST_SCREENED, f"only {clear} of {len(trial.gaps)} continuations have no near-tie: too few to compare"
    )
    found.require(
        all(len(ids) == TOKENS for ids in trial.reference), "a continuation has another length than was asked for"
    )
    judge_margin(found, trial, trial.reference)
    again = trial.engine("AR").generate(trial.prompts[:16])
    wrong = sum(
        output["ids"] != ids
        for output, ids, gap in zip(again, trial.reference[:16], trial.gaps[:16], strict=True)
        if gap >= screen
    )
    found.at_most("different_in_a_batch", wrong, 0)


def compare(found: kit.Found, trial: Trial, name: str, batch: int) -> None:
    """One algorithm, with so many requests at a time, against the plain engine."""
    trial.have_reference()
    begun = time.monotonic()
    engine = trial.engine(name)
    found.note("start", round(time.monotonic() - begun, 1), "s")
    outputs: Outputs = []
    for at in range(0, len(trial.prompts), batch):
        outputs += engine.generate(trial.prompts[at : at + batch])
    ids = [output["ids"] for output in outputs]
    screen = max(LEAST_SCREEN, trial.slack)
    clear = [gap >= screen for gap in trial.gaps]
    different = [number for number, (one, other) in enumerate(zip(ids, trial.reference, strict=True)) if one != other]
    found.note("screened", sum(clear))
    found.note("equal_of_all", len(ids) - len(different))
    found.at_most("different", sum(clear[number] for number in different), 0)
    judge_margin(found, trial, ids)
    rounds = sum(output["meta"].get("spec_verify_ct") or 0 for output in outputs)
    found.require(rounds, f"no output tells of a round of {name}: it did not speculate")
    if rounds:
        # The first token comes with the prompt.
        accepted = (sum(map(len, ids)) - len(ids)) / rounds
        found.note("accepted", round(accepted, 3))
        if name == "DDTREE":
            # The last round of a request may be cut short.
            found.require(
                accepted >= 1.5, f"a round accepts {accepted:.2f} tokens, but its tree holds every token: at least 1.5"
            )


def judge_margin(found: kit.Found, trial: Trial, ids: list[list[int]]) -> None:
    """How much worse than the best any emitted token is, to the plain engine that reads it all at once."""
    found.at_most("worst_margin", worst_margin(ids, trial.read_at_once(ids)), max(MARGIN, trial.slack))


def worst_margin(ids: list[list[int]], read: list[list[Any]]) -> float:
    """The greatest distance in log-probability of any token from the best at its place; of eight that are known for each."""
    worst = 0.0
    for emitted, places in zip(ids, read, strict=True):
        for token, best in zip(emitted, places, strict=True):
            known = {entry[1]: entry[0] for entry in best}
            # One that is not among them is worse than the last of them.
            worst = max(worst, best[0][0] - known.get(token, best[-1][0] - 1.0))
    return float(worst)


if __name__ == "__main__":
    kit.main(ABOUT, cases)
