"""The equality rule of the probe of engines, on engines that are played."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

from builder.probes import kit

engine: Any = importlib.import_module("builder.probes.engine")
VOCABULARY = 16


def logits(tokens: list[int], *, reading: bool) -> list[float]:
    """What a played model thinks of the next token; decoding and reading at once round differently."""
    state = 0
    for token in tokens:
        state = (state * 31 + token + 1) % 9973
    # Exponential clocks: the two best of them are seldom near each other.
    chances = [(((state + 3) * (token + 11) * 7919) % 10007 + 1) / 10008 for token in range(VOCABULARY)]
    values = [-4 * math.log(chance) for chance in chances]
    return [value + (0.04 * math.cos(state + token) if reading else 0.0) for token, value in enumerate(values)]


def log_probabilities(values: list[float]) -> list[float]:
    total = math.log(sum(map(math.exp, values)))
    return [value - total for value in values]


def best(values: list[float], count: int) -> list[list[Any]]:
    known = log_probabilities(values)
    order = sorted(range(len(known)), key=lambda token: -known[token])[:count]
    return [[known[token], token, None] for token in order]


class Played:
    """An engine that decodes greedily, and one that speculates if `rounds_of` is not 0."""

    def __init__(self, fault: str = "", tokens_a_round: float = 0.0) -> None:
        self.fault = fault
        self.tokens_a_round = tokens_a_round
        self.asked = 0

    def generate(
        self, prompts: list[list[int]], *, tokens: int = engine.TOKENS, options: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        outputs = []
        for prompt in prompts:
            self.asked += 1
            ids: list[int] = []
            steps = []
            for _ in range(tokens):
                values = logits([*prompt, *ids], reading=False)
                steps.append(best(values, 2))
                pick = 0
                if self.fault == "always" or (self.fault == "once" and self.asked == 40 and len(ids) == 3):
                    pick = 1
                ids.append(int(best(values, 2)[pick][1]))
            meta: dict[str, Any] = {}
            if options and "logprob_start_len" in options:
                meta["input_top_logprobs"] = [
                    None,
                    *(best(logits(prompt[:place], reading=True), 8) for place in range(1, len(prompt))),
                ]
            elif options:
                meta["output_top_logprobs"] = steps
            if self.tokens_a_round:
                meta["spec_verify_ct"] = math.ceil((tokens - 1) / self.tokens_a_round)
            outputs.append({"ids": ids, "meta": meta})
        return outputs


def trial(**engines: Played) -> Any:
    made = engine.Trial(kit.probe_of({"id": "engine", "memory_bytes": 1}, {"seed": 1}))
    made.engines = {"AR": Played(), **engines}
    made.prompts = [[(7 * number + place) % VOCABULARY for place in range(5 + number % 4)] for number in range(64)]
    return made


def test_engines_that_agree_pass() -> None:
    made = trial(DFLASH=Played(tokens_a_round=1), DDTREE=Played(tokens_a_round=2))
    found = kit.Found()
    engine.plain(found, made)
    assert found.wrong == []
    assert 0.01 < made.noise < 0.2
    assert 8 <= found.figures["screened"]["value"] < 64
    for name in ("DFLASH", "DDTREE"):
        found = kit.Found()
        engine.compare(found, made, name, 8)
        assert found.wrong == []
        assert found.figures["equal_of_all"]["value"] == 64


@pytest.mark.parametrize("fault", ["always", "once"])
def test_a_token_that_greedy_decoding_would_not_say_is_found(fault: str) -> None:
    made = trial(DDTREE=Played(fault, tokens_a_round=2))
    found = kit.Found()
    engine.compare(found, made, "DDTREE", 1)
    assert any("worst margin" in each for each in found.wrong)
    if fault == "always":
        assert any("different" in each for each in found.wrong)


def test_a_plain_engine_whose_decoding_is_wrong_is_found() -> None:
    made = trial()
    made.engines["AR"] = Played("always")
    found = kit.Found()
    engine.plain(found, made)
    assert any("noise" in each for each in found.wrong)


@pytest.mark.parametrize(
    ("name", "tokens_a_round", "says"),
    [
        ("DDTREE", 1.0, "a round accepts 1.00 tokens, but its tree holds every token: at least 1.5"),
        ("DDTREE", 0.0, "no output tells of a round of DDTREE: it did not speculate"),
        ("DFLASH", 0.0, "no output tells of a round of DFLASH: it did not speculate"),
    ],
)
def test_an_engine_that_does_not_speculate_as_it_ought_to_is_found(name: str, tokens_a_round: float, says: str) -> None:
    found = kit.Found()
    engine.compare(found, trial(**{name: Played(tokens_a_round=tokens_a_round)}), name, 8)
    assert found.wrong == [says]
