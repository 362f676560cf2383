"""The live table of hosts."""

from __future__ import annotations

import io

from rich.console import Console

from envspec.cli.fleet_progress import TableReporter


def shown(table: TableReporter, *, height: int = 20) -> list[str]:
    console = Console(file=io.StringIO(), width=100, height=height)
    console.print(table._render())
    output = console.file
    assert isinstance(output, io.StringIO)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_table_says_what_each_host_is_doing() -> None:
    table = TableReporter(["h0", "h1", "h2"])
    try:
        table.host("h0").show("connecting")
        table.host("h1").amount("sending", 30_000_000, 60_000_000, "bytes")
        lines = shown(table)
        assert [line.split()[0] for line in lines] == ["h0", "h1", "h2"]
        assert "connecting" in lines[0]
        assert "sending" in lines[1]
        assert "30/60 MB" in lines[1]
        assert "waiting" in lines[2]
    finally:
        table.close()


def test_host_that_has_ended_goes_below_those_that_run() -> None:
    table = TableReporter(["h0", "h1"])
    table.host("h0").show("connecting")
    table.host("h0").end("built, generation 1", good=True)
    table.host("h1").amount("unpacking and compiling", 3, 179, "wheels")
    lines = shown(table)
    assert [line.split()[0] for line in lines] == ["h1", "h0"]
    assert "3/179 wheels" in lines[0]
    assert "built, generation 1" in lines[1]
    table.host("h1").end("failed", good=False)  # the last one takes the table away


def test_more_hosts_than_lines_are_counted() -> None:
    table = TableReporter([f"h{number}" for number in range(200)])
    try:
        table.host("h7").show("connecting")
        lines = shown(table)
        assert lines[0].startswith("h7")
        assert len(lines) < 60
        assert "more" in lines[-1]
    finally:
        table.close()
