"""The live table of hosts on a terminal, with rich: what each is doing, how far it is, how long it has taken."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

BAR_WIDTH = 20


class _Row:
    """One host."""

    def __init__(self, table: TableReporter) -> None:
        self._table = table
        self.state = "waiting"
        self.style = "dim"
        self.done = self.total = 0
        self.unit = ""
        self.started = 0.0
        self.ended = 0.0

    def show(self, text: str) -> None:
        """What the host is doing now."""
        self.started = self.started or time.monotonic()
        self.state, self.style, self.total = text, "", 0

    def amount(self, label: str, done: int, total: int, unit: str) -> None:
        """How far it is."""
        self.state, self.done, self.total, self.unit = label, done, total, unit

    def end(self, text: str, *, good: bool) -> None:
        """How it ended."""
        self.state, self.total, self.style = text, 0, "green" if good else "red"
        self.ended = time.monotonic()
        self._table.end_one()

    def cells(self) -> tuple[Text, Text, Text]:
        """State, amount and time."""
        bar = ""
        if self.total:
            share = min(1.0, self.done / self.total)
            filled = round(share * BAR_WIDTH)
            sizes = (
                f"{self.done / 1e6:.0f}/{self.total / 1e6:.0f} MB"
                if self.unit == "bytes"
                else f"{self.done}/{self.total} {self.unit}"
            )
            bar = f"{'━' * filled}{'╌' * (BAR_WIDTH - filled)} {sizes}"
        seconds = (self.ended or time.monotonic()) - self.started if self.started else 0.0
        return Text(self.state, self.style, overflow="ellipsis", no_wrap=True), Text(bar), Text(f"{seconds:.0f} s")


class TableReporter:
    """A row for each host; the table goes away when the last host has ended."""

    def __init__(self, names: Sequence[str]) -> None:
        """Show the table.

        Args:
            names: Of the hosts, in their order.
        """
        self._rows = {name: _Row(self) for name in names}
        self._left = len(self._rows)
        self._guard = threading.Lock()
        self._console = Console(stderr=True)
        self._live = Live(get_renderable=self._render, console=self._console, transient=True, refresh_per_second=8)
        self._live.start()

    def host(self, name: str) -> _Row:
        """The place of one host."""
        return self._rows[name]

    def end_one(self) -> None:
        """Count a host that has ended."""
        with self._guard:
            self._left -= 1
            if self._left == 0:
                self._live.stop()

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 2))
        ended = sum(1 for row in self._rows.values() if row.ended)
        running = sorted(self._rows.items(), key=lambda item: (bool(item[1].ended), not item[1].started))
        height = max(4, self._console.height - 3)
        for name, row in running[:height]:
            table.add_row(Text(name, "bold"), *row.cells())
        if len(running) > height:
            table.add_row(Text(""), Text(f"and {len(running) - height} more, {ended} of all have ended", "dim"))
        return table
