"""Several things at a time, for which nobody waits longer than for the first that goes wrong.

A pool of `concurrent.futures` waits for all that it has begun, and the interpreter's end does too: who interrupts a command that asks a silent
server would wait for minutes.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Item = TypeVar("Item")
Result = TypeVar("Result")


def apart(work: Callable[[], Result]) -> Result:
    """Do one thing in another thread, so that an interruption need not wait for it.

    Args:
        work: What; it may be in a library that looks for no signals.
    """
    return together(lambda _: work(), (None,), most=1)[0]


def together(work: Callable[[Item], Result], items: Iterable[Item], *, most: int) -> list[Result]:
    """Do something with each of several things.

    Args:
        work: What; in other threads. What hangs is left to itself once another has failed, or the user wants to stop.
        items: The things.
        most: How many at a time.

    Returns:
        What came of each, in their order.

    Raises:
        BaseException: The first that a thread raised; nothing new is begun then.
    """
    todo = deque(enumerate(items))
    count = len(todo)
    ended: SimpleQueue[tuple[int, Result | BaseException, bool]] = SimpleQueue()

    def run() -> None:
        while True:
            try:
                place, item = todo.popleft()
            except IndexError:
                return
            try:
                ended.put((place, work(item), True))
            except BaseException as error:  # noqa: BLE001 - carried to whoever waits
                ended.put((place, error, False))

    for _ in range(min(most, count)):
        threading.Thread(target=run, daemon=True).start()
    found: dict[int, Result] = {}
    try:
        while len(found) < count:
            place, outcome, is_good = ended.get()
            if not is_good:
                raise outcome  # type: ignore[misc]
            found[place] = outcome  # type: ignore[assignment]
    finally:
        todo.clear()
    return [found[place] for place in range(count)]
