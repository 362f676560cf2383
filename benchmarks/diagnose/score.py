"""Whether a diagnosis is the right one, and the table of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.diagnose.case import Case
    from benchmarks.diagnose.peers import Answer

PEERS = ("pip check", "uv pip check", "import", "ldd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One case and what became of it."""

    case: Case
    problems: tuple[str, ...]
    """What is wrong with the diagnosis; empty if it is right."""

    first: str
    """The first cause in one line."""

    explains: str
    causes: int
    seconds: float
    peers: Mapping[str, Answer]

    @property
    def right(self) -> bool:
        """Whether the right cause comes first, and all else that is asked for is there."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The record of the raw output."""
        case = self.case
        return {
            "case": case.id,
            "kind": case.kind,
            "title": case.title,
            "run": case.run,
            "expected": {"checks": sorted(case.checks), "packages": sorted(case.packages), "remark": case.remark},
            "right": self.right,
            "problems": list(self.problems),
            "first_cause": self.first,
            "explains": self.explains,
            "causes": self.causes,
            "seconds": round(self.seconds, 2),
            "peers": {name: {"said": each.said, "names_the_package": each.names} for name, each in self.peers.items()},
        }


def judge(case: Case, told: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with a diagnosis.

    Args:
        case: With what is expected.
        told: What `envspec diagnose --json` printed.
    """
    causes, problems = told["causes"], []
    traced = told.get("run") or {}
    if case.run and case.fails != (traced.get("ending") not in (None, "ok")):
        problems.append(f"the run ended with {traced.get('ending')} {traced.get('detail', '')}".strip())
    if case.checks:
        if not causes:
            problems.append("no cause")
        elif not _fits(causes[0], case.checks, case.packages):
            problems.append(f"first is {_line(causes[0])}")
    else:
        problems += [f"a cause of severity error: {_line(each)}" for each in causes if each["severity"] == "error"]
    if case.second is not None and not any(_fits(each, *case.second) for each in causes[1:]):
        problems.append(f"no further cause of {'/'.join(sorted(case.second[1]))}")
    innocent = {each["package"] for each in told["not_causes"]}
    problems += [f"`{each}` is not said to be innocent" for each in sorted(case.not_causes - innocent)]
    if case.remark and not any(
        case.remark in text for text in (*told.get("remarks", ()), *(_all(each) for each in causes))
    ):
        problems.append(f"nothing is said about `{case.remark}`")
    return tuple(problems)


def _fits(cause: Mapping[str, Any], checks: frozenset[str], packages: frozenset[str]) -> bool:
    first = cause["packages"][0] if cause["packages"] else ""
    return cause["check"] in checks and (not packages or first in packages)


def _all(cause: Mapping[str, Any]) -> str:
    return " ".join([cause["message"], *cause["evidence"], *cause["follows"]])


def _line(cause: Mapping[str, Any]) -> str:
    return f"{cause['check']} [{', '.join(cause['packages'])}]: {cause['message']}"


def first_line(told: Mapping[str, Any]) -> str:
    """The first cause in one line; empty if there is none."""
    return _line(told["causes"][0]) if told["causes"] else ""


def table(scored: Sequence[Scored]) -> str:
    """The table for a person."""
    lines = [f"{'case':6} {'kind':7} {'right':6} {'pip':4} {'uv':4} {'imp':4} {'ldd':4} {'s':>5}  first cause"]
    for each in scored:
        marks = [
            ("names" if answer.names else "says") if answer.said else "-"
            for answer in (each.peers.get(name, _SILENT) for name in PEERS)
        ]
        shown = " ".join(f"{mark[:4]:4}" for mark in marks)
        text = each.first if each.right else f"{each.problems[0]}"
        lines.append(
            f"{each.case.id:6} {each.case.kind:7} {'yes' if each.right else 'NO':6} {shown} {each.seconds:5.1f}  {text[:150]}"
        )
    broken = [each for each in scored if not each.case.healthy]
    healthy = [each for each in scored if each.case.healthy]
    right = sum(each.right for each in broken)
    lines.append(
        f"right cause first: {right} of {len(broken)}; healthy venvs without an error: {sum(e.right for e in healthy)} of {len(healthy)}"
    )
    for name in PEERS:
        asked = [each.peers[name] for each in broken if name in each.peers]
        said = [answer for answer in asked if answer.said]
        named = sum(answer.names for answer in said)
        lines.append(f"{name}: complains in {len(said)} of {len(asked)}, and names a package at fault in {named}")
    return "\n".join(lines)


class _Silent:
    said = ""
    names = False


_SILENT: Any = _Silent()
