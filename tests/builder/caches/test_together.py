"""Several things at a time: results in their order, and nobody waits for what hangs."""

from __future__ import annotations

import threading

import pytest

from builder.caches.together import together


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_results_come_in_the_order_of_the_things_and_no_more_than_so_many_run_at_once(count: int) -> None:
    guard, running, most = threading.Lock(), 0, 0

    def work(number: int) -> int:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        with guard:
            running -= 1
        return number * 2

    assert together(work, range(count), most=4) == [2 * number for number in range(count)]
    assert most <= 4


def test_the_first_error_ends_it_whatever_else_hangs_and_nothing_new_is_begun() -> None:
    never, hangs = threading.Event(), threading.Event()
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            hangs.set()
            never.wait()
        hangs.wait()
        raise ValueError(str(number))

    with pytest.raises(ValueError, match="1"):
        together(work, range(1, -1, -1), most=2)
    before = list(begun)
    never.set()
    assert sorted(before) == sorted(begun) == [0, 1]
