"""Arithmetic behind the measurements of DDTREE: agreement, the chi-square test, trees of the offline replay, tables and plots."""

from __future__ import annotations

import itertools
import math
import random
import xml.etree.ElementTree as ET

import pytest

from benchmarks.ddtree import figures, offline, report


@pytest.mark.parametrize(
    ("outputs", "reference", "equal", "share"),
    [
        ([[1, 2, 3]], [[1, 2, 3]], 1, 1.0),
        ([[1, 2]], [[1, 2, 3]], 1, 1.0),  # ended earlier, as asked
        ([[1, 9, 3]], [[1, 2, 3]], 0, 1 / 3),
        ([[1, 2, 3, 4]], [[1, 2, 3]], 0, 3 / 4),  # went on too long
        ([[7], [1]], [[7], [2]], 1, 1 / 2),
    ],
)
def test_agreement_counts_outputs_that_equal_the_start_of_the_reference(
    outputs: list[list[int]], reference: list[list[int]], equal: int, share: float
) -> None:
    found = figures.agreement(outputs, reference)
    assert (found["equal"], found["of"]) == (equal, len(outputs))
    assert found["tokens_before_first_difference"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("freedom", "statistic", "p"),
    [(1, 3.841459, 0.05), (10, 18.307038, 0.05), (50, 67.504807, 0.05), (4, 13.276704, 0.01), (30, 10.0, 0.99980)],
)
def test_chi_square_tail_is_that_of_the_tables(freedom: int, statistic: float, p: float) -> None:
    assert figures.gamma_q(freedom / 2, statistic / 2) == pytest.approx(p, rel=1e-4)


def test_samples_of_one_distribution_pass_and_of_another_fail() -> None:
    dice = random.Random(1)  # noqa: S311
    first = [dice.choice("aaabbc") for _ in range(4000)]
    second = [dice.choice("aaabbc") for _ in range(4000)]
    other = [dice.choice("aabbcc") for _ in range(4000)]
    assert figures.same_distribution(first, second)["p"] > 0.01
    assert figures.same_distribution(first, other)["p"] < 1e-6


def test_rare_outcomes_are_one_class() -> None:
    first = ["often"] * 100 + [f"rare {index}" for index in range(50)]
    second = ["often"] * 100 + [f"other {index}" for index in range(50)]
    assert figures.same_distribution(first, second)["freedom"] == 1


@pytest.mark.parametrize("budget", [1, 3, 7, 12])
def test_offline_tree_holds_the_most_probable_prefixes(budget: int) -> None:
    dice = random.Random(budget)  # noqa: S311
    logp = []
    for _ in range(3):
        weights = sorted((dice.random() for _ in range(4)), reverse=True)
        logp.append([math.log(weight / sum(weights)) for weight in weights])
    every = [ranks for depth in (1, 2, 3) for ranks in itertools.product(range(4), repeat=depth)]

    def score(ranks: tuple[int, ...]) -> float:
        return sum(logp[at][rank] for at, rank in enumerate(ranks))

    chosen = offline.best_prefixes(logp, budget=budget)
    best = sorted((score(ranks) for ranks in every), reverse=True)[:budget]
    assert sorted(map(score, chosen), reverse=True) == pytest.approx(best)
    assert all(ranks[:-1] in chosen for ranks in chosen if len(ranks) > 1)


def test_chain_and_tree_accept_what_they_hold() -> None:
    ids = [[5, 6], [7, 8], [9, 10]]
    logp = [[-0.1, -2.0], [-0.1, -2.0], [-0.1, -2.0]]
    assert offline.accepted(ids, logp, [5, 7, 9, 1], budget=0) == 3
    assert offline.accepted(ids, logp, [5, 8, 9], budget=0) == 1
    assert offline.accepted(ids, logp, [5, 8, 9], budget=14) == 3
    assert offline.accepted(ids, logp, [5, 11], budget=14) == 1


def test_replay_counts_the_rounds_until_the_sequence_ends() -> None:
    sequence = [0, 0, 1, 2, 3, 4, 5]
    ids = [[[sequence[at + step]] if at + step < len(sequence) else [99] for step in (1, 2)] for at in range(2, 7)]
    logp = [[[-0.1], [-0.1]]] * 5
    assert offline.replay(sequence, ids, logp, first=2, budget=0) == (4, 2)


def test_plot_is_well_formed_and_has_every_point() -> None:
    line = report.Line(name="a < b", points=((15.0, 2.0), (31.0, 3.5)))
    root = ET.fromstring(report.draw([report.Plot(title="t", unit="u", lines=(line,))]))  # noqa: S314 - our own text
    assert len([element for element in root.iter() if element.tag.endswith("circle")]) == 2


def test_speed_table_has_a_row_for_each_engine() -> None:
    lines = [
        {
            "engine": name,
            "prompts": "both",
            "batch": batch,
            "accept_length": 2.0,
            "tokens_per_s": 100.0 * batch,
            "decoded_per_s": 110.0 * batch,
        }
        for name in ("AR", "DDTREE 63")
        for batch in (1, 4)
    ]
    assert report.sweep_table(lines, part="both").splitlines()[2:] == [
        "| AR | 2.00 | 100 (110) | 400 (440) |",
        "| DDTREE 63 | 2.00 | 100 (110) | 400 (440) |",
    ]
