"""How long work tells of its progress: a port that the caller passes in, so that nothing below the command line prints.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

Advance = Callable[[int], None]
"""Tells that so many more units are done; may be called from any thread."""


class Reporter(Protocol):
    """Where progress goes."""

    def note(self, text: str) -> None:
        """Say one line: what begins, or what was found."""

    def stage(self, label: str, *, total: int, unit: str) -> AbstractContextManager[Advance]:
        """Show a bar while the context lasts.

        Args:
            label: What is being done: `fetching`.
            total: Units in all.
            unit: `bytes` or a plural noun such as `wheels`.
        """


class SilentReporter:
    """A reporter that says nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    @contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Advance]:  # noqa: ARG002
        """Show nothing."""
        yield lambda _units: None


class SharedStage:
    """A reporter for several fetches, one after another or at once, that fill one bar."""

    def __init__(self, reporter: Reporter, advance: Advance) -> None:
        """Prepare.

        Args:
            reporter: Where notes go.
            advance: Of the one bar.
        """
        self._reporter = reporter
        self._advance = advance

    def note(self, text: str) -> None:
        """Say one line."""
        self._reporter.note(text)

    def remark(self, text: str) -> None:
        """Say something that has to be seen."""
        remark(self._reporter, text)

    @contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Advance]:  # noqa: ARG002
        """The one bar."""
        yield self._advance


def remark(reporter: Reporter, text: str) -> None:
    """Say something that has to be seen also where no progress is shown: what was passed over, and why.

    Args:
        reporter: Has a method `remark` if it can do that; else it is a note.
        text: One line.
    """
    say = getattr(reporter, "remark", None)
    (reporter.note if say is None else say)(text)


class HostProgress(Protocol):
    """Where the progress of one host of several goes; may be told from any thread."""

    def show(self, text: str) -> None:
        """What the host is doing now."""

    def amount(self, label: str, done: int, total: int, unit: str) -> None:
        """How far it is with something that has an amount; the unit is `bytes` or a plural noun."""

    def end(self, text: str, *, good: bool) -> None:
        """How it ended."""


class FleetReporter(Protocol):
    """Where the progress of several hosts goes."""

    def host(self, name: str) -> HostProgress:
        """The place of one host."""

    def close(self) -> None:
        """Show nothing more; may be called again."""


class SilentHost:
    """Says nothing of a host."""

    def show(self, text: str) -> None:
        """Say nothing."""

    def amount(self, label: str, done: int, total: int, unit: str) -> None:
        """Say nothing."""

    def end(self, text: str, *, good: bool) -> None:
        """Say nothing."""


class SilentFleet:
    """Says nothing of any host."""

    def host(self, name: str) -> HostProgress:  # noqa: ARG002
        """The place of one host."""
        return SilentHost()

    def close(self) -> None:
        """Nothing is shown."""
