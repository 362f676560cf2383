"""The one root error of envspec.

An error says what happened with both values, which input it concerns and what to do next. All problems of one input travel in one error, so
that a person mends them in one go. Only `envspec.cli` prints errors or turns them into an exit code.

Exit codes: 1 means "looked and found wrong" (a stale lock, a failed check, a digest that differs), 2 means "could not look" (usage, an
unreadable file, the network).
"""

from __future__ import annotations

from dataclasses import dataclass

FOUND_WRONG = 1
COULD_NOT_LOOK = 2


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input."""

    message: str
    """What happened, with both values; backticks around literals, no full stop at the end."""

    where: str = ""
    """The place in the input: a key path with its line, a file, a package. Empty if the whole input is meant."""

    hint: str = ""
    """What to do next; empty if there is nothing to advise."""


class EnvspecError(Exception):
    """Something went wrong that a person can act on.

    Attributes:
        message: What happened, with both values; one line.
        input_name: Which input it concerns, such as `ddtree.toml`; empty if none.
        hint: What to do next; empty if there is nothing to advise.
        problems: Every single problem, where the error gathers several.
        exit_code: `FOUND_WRONG` or `COULD_NOT_LOOK`.
        detail: Evidence of several lines (the end of a child's stderr, the first differing files), shown after the message.
    """

    def __init__(
        self,
        message: str,
        *,
        input_name: str = "",
        hint: str = "",
        problems: tuple[Problem, ...] = (),
        exit_code: int = COULD_NOT_LOOK,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.input_name = input_name
        self.hint = hint
        self.problems = problems
        self.exit_code = exit_code
        self.detail = detail

    def __str__(self) -> str:
        """The whole error as plain text, in the shape that the command line prints after `error: `."""
        lines = [self.message]
        if self.input_name:
            lines.append(f"  input: {self.input_name}")
        for problem in self.problems:
            place = f"{problem.where}: " if problem.where else ""
            lines.append(f"  - {place}{problem.message}")
            if problem.hint:
                lines.append(f"    hint: {problem.hint}")
        lines.extend(f"  {line}" for line in self.detail.splitlines())
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)
