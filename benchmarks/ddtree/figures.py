"""Arithmetic on outputs, standard library only: agreement, margins, the chi-square test, medians."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number, the mean of the two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


def agreement(outputs: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Outputs that equal the reference token for token, over the length of the output.

    Returns:
        `equal` and `of`, the share of tokens before the first difference, and which ones differ.
    """
    pairs = list(zip(outputs, reference, strict=True))
    same = [len(out) <= len(ref) and list(out) == list(ref[: len(out)]) for out, ref in pairs]
    tokens = sum(len(out) for out, _ in pairs)
    return {
        "equal": sum(same),
        "of": len(pairs),
        "tokens_before_first_difference": sum(common_prefix(out, ref) for out, ref in pairs) / max(1, tokens),
        "different": [index for index, equal in enumerate(same) if not equal],
    }


def gamma_q(shape: float, x: float) -> float:
    """Upper regularised incomplete gamma function: by series below `shape + 1`, by continued fraction above."""
    if x <= 0:
        return 1.0
    front = math.exp(-x + shape * math.log(x) - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        for step in range(1, 2000):
            term *= x / (shape + step)
            total += term
            if term < total * 1e-15:
                break
        return 1 - front * total
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    value = d
    for step in range(1, 2000):
        a = -step * (step - shape)
        b += 2
        d = a * d + b
        d = 1 / (d if abs(d) > tiny else tiny)
        c = b + a / c
        c = c if abs(c) > tiny else tiny
        value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * value


def same_distribution(first: Iterable[Hashable], second: Iterable[Hashable], *, least: int = 20) -> dict[str, float]:
    """Two-sample chi-square test; outcomes seen fewer than `least` times in both samples together are one class.

    Returns:
        Statistic, degrees of freedom, p-value, and the distance in total variation.
    """
    left, right = Counter(first), Counter(second)
    sizes = (left.total(), right.total())
    classes: dict[Hashable, list[int]] = {}
    for outcome in left.keys() | right.keys():
        seen = (left[outcome], right[outcome])
        key = outcome if sum(seen) >= least else ("rare",)
        counts = classes.setdefault(key, [0, 0])
        counts[0] += seen[0]
        counts[1] += seen[1]
    statistic = 0.0
    for counts in classes.values():
        together = sum(counts)
        for count, size in zip(counts, sizes, strict=True):
            expected = together * size / sum(sizes)
            statistic += (count - expected) ** 2 / expected
    freedom = len(classes) - 1
    distance = sum(abs(a / sizes[0] - b / sizes[1]) for a, b in classes.values()) / 2
    p_value = gamma_q(freedom / 2, statistic / 2) if freedom else 1.0
    return {
        "statistic": statistic,
        "freedom": freedom,
        "p": p_value,
        "total_variation": distance,
        "samples": min(sizes),
    }


def same_choices(
    first: Sequence[tuple[int, ...]],
    second: Sequence[tuple[int, ...]],
    clear: Callable[[tuple[int, ...]], bool],
    *,
    least: int = 40,
) -> dict[str, float]:
    """Whether two samplers choose alike after each beginning that is clear; a chi-square test for each, added up.

    Given how often each sampler has come to a beginning, its next choices are independent of all others: statistics and degrees of freedom add.

    Args:
        first: Token sequences of one sampler.
        second: Those of the other.
        clear: Whether what may follow a beginning does not depend on rounding.
        least: A beginning that one of them has seen less often is left out.

    Returns:
        Statistic, degrees of freedom, p-value, beginnings that were compared, and choices that were made after them (of the second sampler).
    """
    after: tuple[dict[tuple[int, ...], list[int]], ...] = ({}, {})
    for nexts, sequences in zip(after, (first, second), strict=True):
        for sequence in sequences:
            for at, token in enumerate(sequence):
                nexts.setdefault(sequence[:at], []).append(token)
    statistic, freedom, begun, choices = 0.0, 0.0, 0, 0
    for beginning in sorted(after[0].keys() & after[1].keys()):
        left, right = after[0][beginning], after[1][beginning]
        if min(len(left), len(right)) >= least and clear(beginning):
            found = same_distribution(left, right)
            statistic += found["statistic"]
            freedom += found["freedom"]
            begun += 1
            choices += len(right)
    return {
        "statistic": statistic,
        "freedom": freedom,
        "p": gamma_q(freedom / 2, statistic / 2) if freedom else 1.0,
        "beginnings": begun,
        "choices": choices,
    }


def has_clear_cut(logprobs: Sequence[float], *, temperature: float, top_k: int, top_p: float, distance: float) -> bool:
    """Whether the same tokens stay if every difference of two logits is off by `distance`.

    What stays: the best, at most `top_k`, and each only while those before it have no more than `top_p` of the whole distribution.

    Args:
        logprobs: Of the whole vocabulary, any order.
        temperature: Divides them.
        top_k: At most so many stay.
        top_p: Share of the distribution.
        distance: What rounding may do to the difference of two of them.
    """
    ordered = sorted(logprobs, reverse=True)
    weights = [math.exp((value - ordered[0]) / temperature) for value in ordered]
    whole = sum(weights)
    # A share moves by no more than share * (1 - share) * distance / temperature.
    slack = distance / temperature / 4
    before, stay = 0.0, 0
    while stay < min(top_k, len(ordered)) and before <= top_p:
        before += weights[stay] / whole
        stay += 1
    before_last = before - weights[stay - 1] / whole
    clear_of_top_p = before_last <= top_p - slack and (stay == top_k or before > top_p + slack)
    return clear_of_top_p and (stay == len(ordered) or ordered[stay - 1] - ordered[stay] > distance)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(values)
    return {
        "median": median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "max": ordered[-1],
    }
