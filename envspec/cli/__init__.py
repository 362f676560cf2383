"""The command line: one file a verb. The only place that prints, exits, and knows both the values and the effects.

Data goes to stdout, talk and progress to stderr. Exit 0 is good, 1 "looked and found wrong", 2 "could not look". Modules are imported by the
verb that needs them, so that a build of what is there already costs little more than the interpreter.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


class EndedError(KeyboardInterrupt):
    """Somebody wants this process to end: an engine, a service manager, a terminal that closes."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def main() -> NoReturn:
    """Run the command line with this process's arguments."""
    from envspec.cli.app import run  # noqa: PLC0415 - imported late, like every verb

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup(1) the second is to be ignored
            signal.signal(number, _end)
    sys.exit(run(sys.argv[1:]))


def _end(number: int, _frame: object) -> NoReturn:
    """End as Ctrl-C does: what was started ends too, and what is half-made goes."""
    raise EndedError(number)
