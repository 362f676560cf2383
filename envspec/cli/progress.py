"""Progress on a terminal, with rich."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.progress import Advance


class _AmountColumn(ProgressColumn):
    """Bytes with their speed, or items."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn()
        self._speed = TransferSpeedColumn()
        self._items = MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        """What is done and what there is in all."""
        unit = task.fields["unit"]
        if unit == "bytes":
            return Text.assemble(self._bytes.render(task), " ", self._speed.render(task))
        return Text.assemble(self._items.render(task), f" {unit}")


class TerminalReporter:
    """Bars on stderr; several stages may run at once."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            _AmountColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._open = 0
        self._guard = threading.Lock()

    def note(self, text: str) -> None:
        """Say one line."""
        self._progress.console.print(text, style="dim", highlight=False, markup=False)

    def remark(self, text: str) -> None:
        """Say something that has to be seen."""
        self._progress.console.print(f"warning: {text}", style="yellow", highlight=False, markup=False)

    @contextlib.contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Advance]:
        """Show a bar while the context lasts."""
        if total == 0:
            yield lambda _units: None
            return
        with self._guard:
            if self._open == 0:
                self._progress.start()
            self._open += 1
        task = self._progress.add_task(label, total=total, unit=unit)
        try:
            yield lambda units: self._progress.advance(task, units)
        finally:
            with self._guard:
                self._progress.remove_task(task)
                self._open -= 1
                if self._open == 0:
                    self._progress.stop()
