"""Probes as values: what a probe says of itself, what it reports, and what is made of it.

A probe is a script that the environment's own interpreter runs on a host. It says what it is for in a literal, `ABOUT`, and reports one JSON
object a line on its stdout: a case each, and a last line that says how many there were. What it prints is not trusted: it comes from a process
that runs kernels, and may have been cut off, or be nonsense. So a case that claims to pass is judged again by its own figures, and a report
without its last line is a crash.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

LINE_LIMIT_BYTES = 1 << 16
OUTPUT_LIMIT_BYTES = 4 << 20
CASES_LIMIT = 1000
FIGURES_LIMIT = 64
TEXT_LIMIT = 2000
"""Characters of a reason, or of a value that is text."""

STANDING = ("driver", "libraries")
"""Probes that go before those of `[verify] kernels`, wherever there are any: what they find explains what the others do."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+:=,/()\[\]-]{0,99}")
_ID = re.compile(r"[a-z][a-z0-9_]{0,39}")
_UNIT = re.compile(r"[ -~]{0,20}")

_RANK = {"fail": 3, "pass": 2, "compiled": 1, "skip": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a probe says of itself."""

    id: str
    purpose: str
    tolerance: str
    gpus: int
    """How many GPUs it needs."""

    modules: tuple[str, ...]
    """Top-level modules without which it is not run."""

    per: str
    """`gpu`: run for each GPU by itself; `host`: run once."""

    set: str
    """`quick`, and then also in the full set, or `full`."""

    compiles: bool
    """Whether it has something to compile where there is no GPU."""

    quick_s: float
    full_s: float
    """Limits, the first compilation included."""

    memory_bytes: int
    """On the GPU, at most."""

    def limit_s(self, chosen: str) -> float:
        """Its limit in a set."""
        return self.full_s if chosen == "full" else self.quick_s


def parse_about(name: str, source: str) -> About:
    """Read `ABOUT` out of a probe's source, without running it.

    Args:
        name: Of the file, without its suffix.
        source: Its text.

    Raises:
        ValueError: It has none, or it is not as it should be.
    """
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "ABOUT" for target in targets):
            fields = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            break
    else:
        raise ValueError(f"the probe `{name}` has no ABOUT")
    try:
        needs, seconds = fields["needs"], fields["seconds"]
        about = About(
            id=str(fields["id"]),
            purpose=str(fields["purpose"]),
            tolerance=str(fields["tolerance"]),
            gpus=int(needs["gpus"]),
            modules=tuple(str(module) for module in needs["modules"]),
            per=str(fields["per"]),
            set=str(fields["set"]),
            compiles=bool(fields["compiles"]),
            quick_s=float(seconds["quick"]),
            full_s=float(seconds["full"]),
            memory_bytes=int(fields["memory_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"ABOUT of the probe `{name}`: {type(error).__name__}: {error}") from error
    if about.id != name or not _ID.fullmatch(name):
        raise ValueError(f"ABOUT of the probe `{name}` has id `{about.id}`")
    if about.per not in ("gpu", "host") or about.set not in ("quick", "full"):
        raise ValueError(f"ABOUT of the probe `{name}` has per `{about.per}` and set `{about.set}`")
    return about


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that a case measured."""

    name: str
    value: float | int | str
    """A number that is none (`nan`, `inf`) is text."""

    unit: str = ""
    bound: float | None = None
    """What it must not exceed; None if it is not judged."""

    of: float | None = None
    """What the chip can do; None if nothing is known."""

    def to_json(self) -> dict[str, Any]:
        """The record that receipts carry."""
        more = {"unit": self.unit or None, "bound": self.bound, "of": self.of}
        return {"value": self.value, **{key: value for key, value in more.items() if value is not None}}

    @classmethod
    def from_json(cls, name: str, fields: Mapping[str, Any]) -> Figure:
        """The inverse of `to_json`; also what a probe prints.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        value = fields["value"]
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise TypeError(f"a figure's value is {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        elif isinstance(value, str):
            value = _text(value, 200)
        elif isinstance(value, int) and abs(value) > 1 << 63:
            raise ValueError("a figure of more than 64 bits")
        unit = str(fields.get("unit") or "")
        if not _NAME.fullmatch(name) or not _UNIT.fullmatch(unit):
            raise ValueError("a figure's name or unit is odd")
        return cls(name=name, value=value, unit=unit, bound=_number(fields.get("bound")), of=_number(fields.get("of")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that a probe tried."""

    case: str
    result: str
    """`pass`, `fail`, `skip` or `compiled`."""

    reason: str = ""
    seconds: float = 0.0
    figures: tuple[Figure, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The record that receipts carry."""
        return {
            "case": self.case,
            "result": self.result,
            "reason": self.reason,
            "seconds": self.seconds,
            "figures": {figure.name: figure.to_json() for figure in self.figures},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`; also what a probe prints.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        name, result, figures = fields["case"], fields["result"], fields.get("figures") or {}
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError("a case's name is odd")
        if result not in _RANK:
            raise ValueError(f"a result is {str(result)[:20]!r}")
        if not isinstance(figures, dict) or len(figures) > FIGURES_LIMIT:
            raise ValueError("its figures are no object, or too many")
        return cls(
            case=name,
            result=result,
            reason=_text(fields.get("reason") or "", TEXT_LIMIT),
            seconds=round(max(0.0, _number(fields.get("seconds")) or 0.0), 4),
            figures=tuple(Figure.from_json(str(key), value) for key, value in figures.items()),
        )

    def contradiction(self) -> str:
        """Why a case that claims to pass does not, by its own figures; empty if it does."""
        for figure in self.figures if self.result == "pass" else ():
            if figure.value in ("nan", "inf", "-inf"):
                return f"it claims to pass, but `{figure.name}` is {figure.value}"
            if figure.bound is not None and (isinstance(figure.value, str) or figure.value > figure.bound):
                return f"it claims to pass, but `{figure.name}` is {figure.value}, the bound {figure.bound:g}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a probe printed, as far as it can be read."""

    cases: tuple[Case, ...]
    ended: bool
    """Whether its last line is there, and counts the cases right."""

    problem: str = ""
    """The first line that is no line of a report; empty if all are."""


def parse_report(output: bytes, *, cut: bool = False) -> Report:
    """Read what a probe printed.

    Args:
        output: Its stdout, up to the limit.
        cut: Whether there was more.
    """
    cases: dict[str, Case] = {}
    ended, problem = False, ""
    for number, line in enumerate(output.splitlines(), 1):
        if not line.strip() or (number == 1 and line == b'{"ready": true}'):  # it waited at its gate
            continue
        try:
            case = _read_line(line, cases, ended=ended)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            problem = _text(f"line {number} is no line of a report: {error}", 300)
            break
        if case is None:
            ended = True
        else:
            wrong = case.contradiction()
            cases[case.case] = case if not wrong else _failed(case, wrong)
    if cut and not (problem and cases):
        problem = f"it printed more than {len(output)} bytes"
    return Report(cases=tuple(cases.values()), ended=ended and not problem, problem=problem)


def _read_line(line: bytes, cases: Mapping[str, Case], *, ended: bool) -> Case | None:
    """The case of a line; None for the last line."""
    if ended:
        raise ValueError("something after the end")
    if len(line) > LINE_LIMIT_BYTES:
        raise ValueError(f"it has {len(line)} bytes")
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise TypeError("no object")
    if fields.get("end") is True:
        if fields["cases"] != len(cases):
            raise ValueError(f"it counts {str(fields['cases'])[:20]} cases, there are {len(cases)}")
        return None
    case = Case.from_json(fields)
    if case.case in cases:
        raise ValueError(f"the case `{case.case}` a second time")
    if len(cases) >= CASES_LIMIT:
        raise ValueError(f"more than {CASES_LIMIT} cases")
    return case


def _failed(case: Case, reason: str) -> Case:
    return Case(case=case.case, result="fail", reason=reason, seconds=case.seconds, figures=case.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """A probe that was run, compiled or skipped, on one GPU or on the host."""

    id: str
    gpu: int | None
    """Number of the GPU; None for the whole host."""

    mode: str
    """`run`, `compile`, or `skip` if no process was started."""

    result: str
    reason: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    script: str = ""
    """sha256 of the probe's script."""

    cases: tuple[Case, ...] = ()
    stderr: str = ""
    """Its end, where the probe failed."""

    def to_json(self) -> dict[str, Any]:
        """The record that receipts carry."""
        return {
            "id": self.id,
            "gpu": self.gpu,
            "mode": self.mode,
            "result": self.result,
            "reason": self.reason,
            "seconds": self.seconds,
            "limit_seconds": self.limit_s,
            "script": self.script or None,
            "cases": [case.to_json() for case in self.cases],
            "stderr": self.stderr or None,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ProbeRun:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        gpu, cases = fields["gpu"], fields["cases"]
        if not _ID.fullmatch(str(fields["id"])) or fields["result"] not in _RANK:
            raise ValueError("a probe's id or result is odd")
        if fields["mode"] not in ("run", "compile", "skip") or len(cases) > CASES_LIMIT:
            raise ValueError("a probe's mode is odd, or it has too many cases")
        if gpu is not None and (isinstance(gpu, bool) or not isinstance(gpu, int) or not 0 <= gpu < 1024):
            raise ValueError("a GPU's number is odd")
        script = str(fields["script"] or "")
        if script and not re.fullmatch(r"[0-9a-f]{64}", script):
            raise ValueError("a script's sha256 is none")
        return cls(
            id=str(fields["id"]),
            gpu=gpu,
            mode=fields["mode"],
            result=fields["result"],
            reason=_text(fields["reason"], TEXT_LIMIT),
            seconds=_number(fields["seconds"]) or 0.0,
            limit_s=_number(fields["limit_seconds"]) or 0.0,
            script=script,
            cases=tuple(Case.from_json(case) for case in cases),
            stderr=_text(fields["stderr"] or "", 8 * TEXT_LIMIT),
        )

    @property
    def place(self) -> str:
        """Where it ran, for a sentence: `GPU 0`, or an empty string for the host."""
        return "" if self.gpu is None else f"GPU {self.gpu}"


def worst_of(results: Iterable[str]) -> str:
    """The result of several: `fail` if any failed, else the most that was shown; `skip` if there is nothing."""
    return max(results, key=lambda result: _RANK[result], default="skip")


def sum_up(report: Report, ending: str, asked: Sequence[str], *, mode: str = "run") -> tuple[str, str]:
    """Result and reason of a probe that has ended.

    Args:
        report: What it printed.
        ending: How it ended, where that is wrong: `SIGSEGV`, `rc 3`, `no end after 60 s`; empty for exit code 0.
        asked: The cases that were asked for; empty for all.
        mode: `run`, or `compile`: then nothing is more than compiled.

    Returns:
        `fail` if anything is wrong; the reason names the first thing and counts the others.
    """
    failed = [case for case in report.cases if case.result == "fail"]
    wrong = [f"{case.case}: {case.reason or 'no reason is given'}" for case in failed]
    if report.problem:
        wrong.append(f"what it printed cannot be read: {report.problem}")
    if ending or not report.ended:
        last = f" after the case `{report.cases[-1].case}`" if report.cases else " before its first case"
        if ending:
            wrong.append(f"{ending}{last}")
        elif not report.problem:
            wrong.append(f"it ended without saying so{last}")
    missing = [case for case in asked if case not in {each.case for each in report.cases}]
    if missing and not wrong:
        wrong.append(f"it has no case `{missing[0]}`")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return "fail", _text(f"{wrong[0]}{more}", TEXT_LIMIT)
    if not report.cases:
        return "skip", "it has no case here"
    skipped = [case for case in report.cases if case.result == "skip"]
    result = worst_of(case.result for case in report.cases)
    if mode == "compile" and result == "pass":
        result = "compiled"
    if result == "skip":
        return result, skipped[0].reason
    more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
    return result, f"skipped {skipped[0].case}{more}: {skipped[0].reason}" if skipped else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The probes of one verification."""

    probes: tuple[tuple[About, tuple[str, ...]], ...]
    """In the order in which they run, each with the cases that are asked for; none for all."""

    left_out: tuple[tuple[str, str], ...]
    """Probes of the set that are not run, and why not."""

    problems: tuple[tuple[str, str], ...] = ()
    """Probes that are asked for by name and cannot be run, and why not."""


def choose(
    abouts: Mapping[str, About],
    *,
    kernels: Sequence[str],
    chosen: str,
    only: Sequence[tuple[str, tuple[str, ...]]],
    has_module: Callable[[str], bool],
) -> Choice:
    """Which probes are to be run.

    Args:
        abouts: All that there are.
        kernels: `[verify] kernels` of the spec.
        chosen: `quick`: those of `kernels` that are quick, and the standing ones before them. `full`: all.
        only: Ids with cases: then these are run and no others.
        has_module: Whether the environment has a top-level module.
    """
    names: list[str] = []
    asked: dict[str, tuple[str, ...]] = {}
    problems: list[tuple[str, str]] = []
    left_out: list[tuple[str, str]] = []
    if only:
        for name, cases in only:
            asked[name] = (*asked.get(name, ()), *cases)
        names = list(asked)
    elif chosen == "full":
        first = [*STANDING, *kernels]
        names = list(dict.fromkeys([*first, *(name for name in sorted(abouts) if name not in first)]))
        names = [name for name in names if name in abouts or name not in STANDING]
    elif kernels:
        names = list(dict.fromkeys([*(name for name in STANDING if name in abouts), *kernels]))
    by_name = set(asked) | set(kernels)
    probes: list[tuple[About, tuple[str, ...]]] = []
    for name in names:
        about = abouts.get(name)
        if about is None:
            problems.append((name, f"there is no probe `{name}`"))
            continue
        missing = [module for module in about.modules if not has_module(module)]
        if missing:
            lacks = f"the environment has no {', '.join(f'`{module}`' for module in missing)}"
            (problems if name in by_name else left_out).append((name, lacks))
        elif about.set == "full" and chosen == "quick" and not only:
            left_out.append((name, "only in the full set"))
        else:
            probes.append((about, asked.get(name, ())))
    return Choice(probes=tuple(probes), left_out=tuple(left_out), problems=tuple(problems))


def _text(value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is {type(value).__name__}")
    text = printable(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a number is {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a number is {number}")
    return number
