"""Arithmetic on outputs, standard library only: agreement, margins, the chi-square test, medians."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


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


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(values)
    return {
        "median": median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "max": ordered[-1],
    }
