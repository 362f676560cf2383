"""Figures, how they are judged, and how they are shown."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.commands import Command, MemoryPeak, Usage  # noqa: TC001 - parts of public values

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULT_FORMAT = 1
_MB = 1e6

Verdict = Literal["met", "missed", "skipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a figure must not exceed."""

    kind: Literal["seconds", "ratio", "megabytes"]
    limit: float
    """Seconds, times the peer, or 10^6 bytes."""

    def __str__(self) -> str:
        ratio = f"{self.limit:.2f} x" if self.limit < 1 else f"{self.limit:.1f} x"
        shown = {"seconds": f"{self.limit:.2f} s", "ratio": ratio, "megabytes": f"{self.limit:.0f} MB"}
        return f"<= {shown[self.kind]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one of the two took."""

    shown: tuple[str, ...]
    """The command lines, without paths."""

    runs: tuple[Usage, ...]

    @property
    def median_s(self) -> float:
        """Seconds."""
        return statistics.median(usage.seconds for usage in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Every single run."""
        return {
            "commands": list(self.shown),
            "median_s": round(self.median_s, 4),
            "seconds": [round(usage.seconds, 4) for usage in self.runs],
            "user_s": [round(usage.user_s, 3) for usage in self.runs],
            "system_s": [round(usage.system_s, 3) for usage in self.runs],
            "largest_process_bytes": [usage.largest_process_bytes for usage in self.runs],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    """Of the row, as `--only` has it, with a further word where it gives several lines."""

    work: str
    """What was done."""

    goal: Goal | None
    """None if nothing could be measured."""

    load_before: tuple[float, float, float] | None = None
    """Of the last 1, 5 and 15 minutes, before the first run."""

    page_cache: str = ""
    """In which state it was."""

    envspec: Side | None = None
    peer: Side | None = None
    memory: tuple[MemoryPeak, ...] = ()
    """One for each of envspec's runs, where memory was looked at."""

    peer_memory: tuple[MemoryPeak, ...] = ()
    notes: tuple[str, ...] = ()
    not_measured: str = ""
    """Why there are no figures; empty if there are."""

    skipped: bool = False
    """Whether there are none because something is not there, rather than because it failed."""

    @property
    def of_memory(self) -> bool:
        """Whether the row is about memory rather than time."""
        return self.goal is not None and self.goal.kind == "megabytes"

    @property
    def ratio(self) -> float | None:
        """Envspec's median by the peer's."""
        if self.envspec is None or self.peer is None or self.of_memory:
            return None
        return self.envspec.median_s / self.peer.median_s

    @property
    def peak_mb(self) -> float | None:
        """The most that envspec's processes held together, over all runs."""
        return max((peak.tree_pss_bytes for peak in self.memory), default=0) / _MB or None

    @property
    def verdict(self) -> Verdict:
        """Whether the goal is met."""
        if self.not_measured or self.envspec is None or self.goal is None:
            return "skipped" if self.skipped else "failed"
        figures = {"seconds": self.envspec.median_s, "ratio": self.ratio, "megabytes": self.peak_mb}
        figure = figures[self.goal.kind]
        if figure is None:
            return "failed"
        return "met" if figure <= self.goal.limit else "missed"

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured."""
        return {
            "name": self.name,
            "work": self.work,
            "goal": None if self.goal is None else {"kind": self.goal.kind, "limit": self.goal.limit},
            "verdict": self.verdict,
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "envspec": None if self.envspec is None else self.envspec.to_json(),
            "peer": None if self.peer is None else self.peer.to_json(),
            "memory": [asdict(peak) for peak in self.memory],
            "peer_memory": [asdict(peak) for peak in self.peer_memory],
            "load_before": None if self.load_before is None else [round(load, 2) for load in self.load_before],
            "page_cache": self.page_cache,
            "notes": list(self.notes),
            "not_measured": self.not_measured.partition("\n")[0] or None,  # further lines may have paths
        }


def side(commands: Sequence[Command], runs: Sequence[Usage]) -> Side:
    """One side from the commands of one of its runs, and what all its runs took."""
    return Side(shown=tuple(command.shown for command in commands), runs=tuple(runs))


def result_json(
    rows: Sequence[Row], *, machine: dict[str, Any], date: str, runs: int, cold_runs: int
) -> dict[str, Any]:
    """The raw output of a whole run."""
    return {
        "version": RESULT_FORMAT,
        "date": date,
        "machine": machine,
        "runs": runs,
        "cold_runs": cold_runs,
        "rows": [row.to_json() for row in rows],
    }


def print_table(rows: Sequence[Row], *, title: str) -> None:
    """Show the rows: both times with their spread, ratio, goal, and whether it is met."""
    # Only now: what this process holds would count as memory of the processes that it starts.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    table = Table(title=title, title_justify="left")
    for heading in ("row", "work", "envspec", "peer", "ratio", "goal", ""):
        table.add_column(heading, justify="right" if heading in {"envspec", "peer", "ratio", "goal"} else "left")
    colours = {"met": "green", "missed": "red", "skipped": "yellow", "failed": "red"}
    for row in rows:
        table.add_row(
            row.name,
            row.work,
            _figure(row.envspec, row.memory, of_memory=row.of_memory),
            _figure(row.peer, row.peer_memory, of_memory=row.of_memory),
            "" if row.ratio is None else f"{row.ratio:.{2 if row.ratio >= 0.1 else 3}f} x",
            str(row.goal or ""),
            f"[{colours[row.verdict]}]{row.verdict}[/]",
        )
    console.print(table)
    for row in rows:
        for note in filter(None, (*row.notes, row.not_measured)):
            console.print(f"{row.name}: {note}", markup=False, highlight=False, soft_wrap=True)


def _figure(one: Side | None, memory: Sequence[MemoryPeak], *, of_memory: bool) -> str:
    if one is None:
        return ""
    if of_memory:
        if not memory:
            return ""
        together = max(peak.tree_pss_bytes for peak in memory) / _MB
        largest = max(usage.largest_process_bytes for usage in one.runs) / _MB
        return f"{together:.0f} MB\nlargest process {largest:.0f}"
    seconds = sorted(usage.seconds for usage in one.runs)
    digits = 3 if one.median_s < 1 else 2
    spread = f"\n{seconds[0]:.{digits}f} to {seconds[-1]:.{digits}f}" if len(seconds) > 1 else ""
    return f"{one.median_s:.{digits}f} s{spread}"
