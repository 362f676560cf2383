"""Receipts: the evidence of one build or verification on one machine, in one form for ever.

A receipt is a JSON object in UTF-8, its keys sorted, one space a level, with a line end at its end: equal receipts are equal bytes, and a review
can read what differs. The bytes of the file are what is signed. What is not exactly in this form is refused, and so is one that contradicts
itself: a probe that passes though one of its cases failed, a case that passes though a figure exceeds its bound.

A receipt proves what its signer saw. Without a signature it proves nothing to anyone else.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError, Problem
from envspec.printable import printable, printable_json
from envspec.probe import ProbeRun, worst_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECEIPT_FORMAT = 1
SIZE_LIMIT_BYTES = 8 << 20
DEPTH_LIMIT = 16
NAMESPACE = "envspec-receipt"
"""Of signatures (ssh-keygen -Y): one that was made for anything else does not count."""

KINDS = ("build", "verify", "venv")

_ENV = re.compile(r"[a-z2-7]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """A receipt that was read and is in order."""

    kind: str
    """`build`, `verify`, or `venv` for one that envspec did not build."""

    name: str
    """Of the environment."""

    env: str
    site: str
    time: str
    host: Mapping[str, Any]
    """What the machine is like."""

    tool: str
    set: str
    """`quick`, `full`, `chosen`, or `none` if nothing was run."""

    verified: bool
    """Whether imports and probes were run and passed; False for `build --no-verify`."""

    probes: tuple[tuple[str, str, str], ...]
    """Id, result and reason of each proof."""

    runs: tuple[ProbeRun, ...]
    left_out: tuple[tuple[str, str], ...]
    fields: Mapping[str, Any]
    """All of it."""

    @property
    def host_name(self) -> str:
        """What the machine calls itself."""
        return str(self.host.get("hostname", ""))

    @property
    def failed(self) -> bool:
        """Whether any proof failed."""
        return any(result == "fail" for _, result, _ in self.probes)


def encode_receipt(fields: Mapping[str, Any]) -> bytes:
    """A receipt as bytes.

    Args:
        fields: JSON.

    Raises:
        ValueError: A number in it is none.
    """
    return (json.dumps(fields, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def summaries(runs: tuple[ProbeRun, ...]) -> list[dict[str, str]]:
    """Id, result and reason of each probe, over all GPUs that it ran on.

    Args:
        runs: Of one verification.
    """
    by_id: dict[str, list[ProbeRun]] = {}
    for run in runs:
        by_id.setdefault(run.id, []).append(run)
    found = []
    for name, group in by_id.items():
        result = worst_of(run.result for run in group)
        spoken = [run for run in group if run.result == result and run.reason]
        reason = ""
        if spoken:
            place = f"{spoken[0].place}: " if spoken[0].place and len(group) > 1 else ""
            more = f" (and on {len(spoken) - 1} more GPUs)" if len(spoken) > 1 else ""
            reason = f"{place}{spoken[0].reason}{more}"
        found.append({"id": name, "result": result, "reason": reason})
    return found


def parse_receipt(raw: bytes, *, name: str) -> Receipt:
    """Read a receipt.

    Args:
        raw: Its bytes.
        name: Of its file, for messages.

    Raises:
        EnvspecError: It is none, is not in its one form, or contradicts itself.
    """
    if len(raw) > SIZE_LIMIT_BYTES:
        raise _refused(name, f"it has {len(raw)} bytes, a receipt at most {SIZE_LIMIT_BYTES}")
    try:
        fields = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
        if not isinstance(fields, dict):
            raise _refused(name, "it is no JSON object")
        _check_depth(fields, 1)
        canonical = encode_receipt(fields)
    except UnicodeError as error:
        raise _refused(name, "it is not UTF-8") from error
    except RecursionError as error:
        raise _refused(name, f"it is nested deeper than {DEPTH_LIMIT} levels") from error
    except ValueError as error:
        raise _refused(name, f"it is no JSON of ours: {printable(str(error)[:200])}") from error
    if fields.get("version") != RECEIPT_FORMAT or isinstance(fields["version"], bool):
        version = printable(str(fields.get("version"))[:40])
        raise _refused(name, f"it has format {version}, this envspec knows {RECEIPT_FORMAT}", code=COULD_NOT_LOOK)
    if canonical != raw:
        raise _refused(name, "it is not in the one form of a receipt: it was edited, or written by something else")
    return receipt_of(fields, name=name)


def receipt_of(fields: Mapping[str, Any], *, name: str) -> Receipt:
    """JSON as a receipt.

    Args:
        fields: JSON.
        name: Where it is from, for messages.

    Raises:
        EnvspecError: It is none, or contradicts itself; everything that is wrong is listed.
    """
    problems: list[Problem] = []

    def text(key: str, pattern: re.Pattern[str]) -> str:
        value = fields.get(key)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            problems.append(Problem(where=key, message=f"it is `{printable(str(value)[:60])}`"))
            return ""
        return value

    kind, env, site = text("kind", re.compile("|".join(KINDS))), text("env", _ENV), text("site", _DIGEST)
    receipt_name, time = text("name", _NAME), text("time", _TIME)
    tool, chosen = text("tool", re.compile(r"[ -~]{1,60}")), text("set", re.compile("quick|full|chosen|none"))
    host, verified = fields.get("host"), fields.get("verified")
    if not isinstance(host, dict) or not isinstance(host.get("hostname"), str):
        problems.append(Problem(where="host", message="it says nothing of the machine"))
        host = {}
    if not isinstance(verified, bool):
        problems.append(Problem(where="verified", message="it is neither true nor false"))
    runs: list[ProbeRun] = []
    probes: list[tuple[str, str, str]] = []
    left_out: list[tuple[str, str]] = []
    try:
        probes = [_summary(row) for row in fields["probes"]]
        left_out = [(str(probe), str(why)) for probe, why in fields["left_out"]]
        runs = [ProbeRun.from_json(row) for row in fields["runs"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problems.append(Problem(where="probes", message=printable(f"{type(error).__name__}: {str(error)[:100]}")))
    else:
        problems += _contradictions(probes, tuple(runs), verified=verified is True)
    problems += [Problem(where=key, message="it has another shape") for key in _shapeless(fields)]
    if printable_json(fields) != fields:
        problems.append(Problem(message="it has characters that a terminal would obey"))
    if problems:
        raise _refused(name, "it is not what a receipt is", problems=tuple(problems))
    return Receipt(
        kind=kind,
        name=receipt_name,
        env=env,
        site=site,
        time=time,
        host=host,
        tool=tool,
        set=chosen,
        verified=bool(verified),
        probes=tuple(probes),
        runs=tuple(runs),
        left_out=tuple(left_out),
        fields=fields,
    )


def _summary(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if row["result"] not in ("pass", "fail", "skip", "compiled"):
        raise ValueError(f"a result is `{str(row['result'])[:20]}`")
    return str(row["id"]), str(row["result"]), str(row["reason"])


def _shapeless(fields: Mapping[str, Any]) -> Iterator[str]:
    """What others read further on, and is not as they expect it."""

    def texts(value: Any) -> bool:  # noqa: ANN401 - any JSON
        return isinstance(value, list) and all(isinstance(each, str) for each in value)

    host, variables, venv = fields.get("host"), fields.get("variables", {}), fields.get("venv") or {}
    gpus = host.get("gpus", []) if isinstance(host, dict) else []
    if not isinstance(gpus, list) or not all(
        isinstance(gpu, dict) and isinstance(gpu.get("name"), str) and isinstance(gpu.get("compute"), str)
        for gpu in gpus
    ):
        yield "host.gpus"
    if not isinstance(variables, dict) or not texts(list(variables.values())):
        yield "variables"
    drift = fields.get("drift") or []
    if not isinstance(drift, list) or not all(texts(row) and len(row) == 4 for row in drift):
        yield "drift"
    differ = venv.get("differ", []) if isinstance(venv, dict) else None
    if not isinstance(differ, list) or not all(isinstance(row, dict) for row in differ):
        yield "venv"
    if not isinstance(fields.get("seed"), (int, type(None))):
        yield "seed"
    if not isinstance(fields.get("prefix", ""), str):
        yield "prefix"


def _contradictions(probes: list[tuple[str, str, str]], runs: tuple[ProbeRun, ...], *, verified: bool) -> list[Problem]:
    found: list[Problem] = []
    for run in runs:
        where = f"{run.id}{f', {run.place}' if run.place else ''}"
        results = [case.result for case in run.cases]
        if run.result == "pass" and ("fail" in results or "pass" not in results):
            found.append(Problem(where=where, message="it passes, and its cases do not"))
        shown = "compiled" in results or (run.mode == "compile" and "pass" in results)
        if run.result == "compiled" and ("fail" in results or not shown):
            found.append(Problem(where=where, message="it is compiled, and its cases are not"))
        if run.mode == "compile" and run.result == "pass":
            found.append(Problem(where=where, message="it was only compiled, and passes"))
        found += [
            Problem(where=f"{where}, {case.case}", message=wrong)
            for case in run.cases
            if (wrong := case.contradiction())
        ]
    stated = {name: result for name, result, _ in probes}
    for row in summaries(runs):
        if stated.get(row["id"]) != row["result"]:
            found.append(
                Problem(where=row["id"], message=f"its runs {row['result']}, the summary says {stated.get(row['id'])}")
            )
    if verified and "fail" in stated.values():
        found.append(Problem(where="verified", message="it says so, and a proof failed"))
    return found


def _refused(name: str, why: str, *, problems: tuple[Problem, ...] = (), code: int = FOUND_WRONG) -> EnvspecError:
    return EnvspecError(f"`{name}` is refused as a receipt: {why}", problems=problems, exit_code=code)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has a key twice")
    return fields


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _check_depth(value: Any, depth: int) -> None:  # noqa: ANN401 - any JSON
    if depth > DEPTH_LIMIT:
        raise RecursionError
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(inner, depth + 1)
