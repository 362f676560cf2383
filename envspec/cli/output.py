"""How things are printed: errors, findings, JSON, progress."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from builder.progress import SilentReporter
from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.progress import Reporter
    from envspec.errors import EnvspecError
    from envspec.facts import Finding

_SHOWN_EVIDENCE = {"error": 10, "warning": 5, "info": 0}

_RED, _YELLOW, _CYAN, _BOLD, _END = "\x1b[31;1m", "\x1b[33;1m", "\x1b[36m", "\x1b[1m", "\x1b[0m"


def ready_stdout() -> None:
    """Let stdout take every text: what its encoding has not, and bytes of names that are not UTF-8, become escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def say_in_utf8() -> None:
    """Let what is printed from now on be UTF-8, whatever the locale: a document that others read, and no talk."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def say(text: str) -> None:
    """Print a line of data to stdout."""
    sys.stdout.write(text + "\n")


def say_json(value: dict[str, Any], *, line: bool = False) -> None:
    """Print the one JSON object of a command.

    Args:
        value: It.
        line: Whether in one line.
    """
    say_in_utf8()  # half of a surrogate pair becomes `\\ud800`, which is JSON
    shape: dict[str, Any] = {"separators": (",", ":")} if line else {"indent": 1}
    sys.stdout.write(json.dumps({"version": 1, **value}, sort_keys=True, ensure_ascii=False, **shape) + "\n")


def tell(text: str) -> None:
    """Print a line of talk to stderr."""
    sys.stderr.write(text + "\n")


def print_error(error: EnvspecError, *, as_json: bool, node: str = "") -> None:
    """Print an error: for a person on stderr, and as the JSON object if one was asked for and none was printed yet.

    Args:
        error: It.
        as_json: Whether an object was asked for.
        node: With `--line` the name of this node: the object is one line that has it.
    """
    # Names, paths and texts of others are in errors: a terminal must obey none of them.
    lines = [printable(line.expandtabs(4)) for line in str(error).splitlines()]
    for index, line in enumerate(lines):
        if index == 0:
            tell(f"{_paint('error', _RED)}: {line}")
        elif line.startswith("hint: "):
            tell(f"{_paint('hint', _CYAN)}: {line[len('hint: ') :]}")
        else:
            tell(line)
    if as_json and not getattr(error, "json_printed", False):
        named = {"host": node} if node else {}
        say_json({"error": error_to_json(error), **named}, line=bool(node))


def error_to_json(error: EnvspecError) -> dict[str, Any]:
    """An error as `--json` prints it; one of probes that fail has them, and their likely causes."""
    receipt, causes = getattr(error, "receipt", None), getattr(error, "causes", {})
    probes = {}
    if receipt is not None:
        probes = {
            "probes": [{"id": name, "result": result, "reason": reason} for name, result, reason in receipt.probes],
            "runs": [run.to_json() for run in receipt.runs],
            "causes": {name: [cause.to_json() for cause in found] for name, found in causes.items()},
        }
    return {
        **probes,
        "message": error.message,
        "input": error.input_name or None,
        "hint": error.hint or None,
        "detail": error.detail or None,
        "problems": [
            {"where": problem.where or None, "message": problem.message, "hint": problem.hint or None}
            for problem in error.problems
        ],
    }


def tell_verdict(findings: Sequence[Finding]) -> None:
    """Print on stderr what a person has to know: errors with their evidence first, then warnings; of notes nothing."""
    for severity in ("error", "warning"):
        for finding in findings:
            if finding.severity == severity:
                for line in finding_lines(finding):
                    tell(line)


def finding_lines(finding: Finding) -> list[str]:
    """A finding for a person: the message, some of the evidence, and what to do."""
    colours = {"error": _RED, "warning": _YELLOW, "info": _CYAN}
    shown = _SHOWN_EVIDENCE[finding.severity]
    lines = [f"{_paint(finding.severity, colours[finding.severity])}: {finding.message} [{finding.check}]"]
    lines += [f"  {evidence}" for evidence in finding.evidence[:shown]]
    if len(finding.evidence) > shown:
        lines.append(f"  and {len(finding.evidence) - shown} more, which `--json` has")
    if finding.hint:
        lines.append(f"  {_paint('hint', _CYAN)}: {finding.hint}")
    return lines


class PlainReporter(SilentReporter):
    """Shows no progress, and says what has to be seen."""

    def remark(self, text: str) -> None:
        """Print a warning (as `builder.progress.remark`)."""
        tell(f"{_paint('warning', _YELLOW)}: {text}")


def make_reporter(*, quiet: bool) -> Reporter:
    """Where progress goes: a live display on a terminal, nowhere with `--quiet` or where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        return PlainReporter()
    from envspec.cli.progress import TerminalReporter  # noqa: PLC0415 - rich, only where it shows

    return TerminalReporter()


def _paint(word: str, colour: str) -> str:
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return word
    return f"{colour}{word}{_END}"
