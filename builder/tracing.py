"""A traced run in a venv of this machine or of a host: `envspec.traced.Traced`, whatever the code that was run would have us believe.

    traced = trace("torchvision", "/srv/venv", environ=os.environ)

What comes back was said by a process that runs anybody's code, perhaps on another machine: it is taken apart, cut to size and made fit to
be shown.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args

from builder.agent.tracing import TraceOrder, run_traced
from builder.hosts import checked
from envspec.printable import printable
from envspec.traced import Ending, Frame, Raised, Traced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.session import Session

DEFAULT_TIMEOUT_S = 300.0
CHAIN_LIMIT = 50
SWALLOWED_LIMIT = 200
FRAMES_LIMIT = 101
MESSAGES_LIMIT = 100
PATHS_LIMIT = 5000
TEXT_LIMIT = 4000
NAME_LIMIT = 1000

_ENDINGS = get_args(Ending)
_RELATIONS = ("", "cause", "context", "member")


def trace(
    target: str,
    path: str,
    *,
    environ: Mapping[str, str],
    session: Session | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    arguments: tuple[str, ...] = (),
    cwd: str = "",
    clean: bool = False,
) -> Traced:
    """Run a module's import, or a script, in a venv.

    Args:
        target: The module, or the script's path: it has a slash in it, or ends with `.py`.
        path: The venv, or its interpreter.
        environ: The environment that it gets here; on a host it gets that of whoever logs in there.
        session: With the agent of a host; None for this machine.
        timeout_s: Seconds until it is killed.
        arguments: Of the script.
        cwd: Where it is run; empty for the home folder.
        clean: Whether it gets a few variables only: neither LD_LIBRARY_PATH nor PYTHONPATH.

    Raises:
        EnvspecError: The target is no module's name and no script, or the host cannot be asked.
    """
    order = TraceOrder(prefix=path, target=target, timeout_s=timeout_s, arguments=arguments, cwd=cwd, clean=clean)
    if session is None:
        return read_traced(run_traced(order, environ), target=target, host="this machine")
    answer = session.call("trace", order.to_json())
    return read_traced(answer, target=target, host=session.host)


def read_traced(record: Mapping[str, Any], *, target: str, host: str) -> Traced:
    """A record as a value, with every text and list cut to size.

    Args:
        record: As `builder.agent.tracing` makes it.
        target: What was asked for; whatever the record says.
        host: Whose record it is, for the message.

    Raises:
        EnvspecError: It is none.
    """
    return checked(host, "a traced run", lambda: _traced(record, target))


def _traced(record: Mapping[str, Any], target: str) -> Traced:
    ending = record["ending"]
    if ending not in _ENDINGS:
        raise ValueError(f"a run that ended with {str(ending)[:40]!r}")
    seconds = float(record["seconds"])
    modules = (_row(each, 2) for each in _list(record["modules"], PATHS_LIMIT))
    return Traced(
        target=target,
        ending=ending,
        detail=_text(record["detail"], NAME_LIMIT),
        chain=tuple(_raised(each) for each in _list(record["chain"], CHAIN_LIMIT)),
        swallowed=tuple(_raised(each) for each in _list(record["swallowed"], SWALLOWED_LIMIT)),
        messages=tuple(_text(each, NAME_LIMIT) for each in _list(record["messages"], MESSAGES_LIMIT)),
        modules=tuple(sorted((_text(name, NAME_LIMIT), _text(file, NAME_LIMIT)) for name, file in modules)),
        mapped=tuple(sorted(_text(each, NAME_LIMIT) for each in _list(record["mapped"], PATHS_LIMIT))),
        seconds=seconds if math.isfinite(seconds) and seconds >= 0 else 0.0,
    )


def _raised(record: Any) -> Raised:  # noqa: ANN401 - JSON of anybody
    relation = record["relation"]
    if relation not in _RELATIONS:
        raise ValueError(f"a relation {str(relation)[:40]!r}")
    return Raised(
        type=_text(record["type"], NAME_LIMIT),
        message=_text(record["message"], TEXT_LIMIT),
        name=_text(record["name"], NAME_LIMIT),
        path=_text(record["path"], NAME_LIMIT),
        frames=tuple(_frame(each) for each in _list(record["frames"], FRAMES_LIMIT)),
        importing=tuple(_text(each, NAME_LIMIT) for each in _list(record["importing"], FRAMES_LIMIT)),
        relation=relation,
    )


def _frame(row: Any) -> Frame:  # noqa: ANN401 - JSON of anybody
    file, line, function, module = _row(row, 4)
    if isinstance(line, bool) or not isinstance(line, int):
        raise TypeError("a line that is no number")
    return Frame(
        _text(file, NAME_LIMIT), max(0, min(line, 1 << 31)), _text(function, NAME_LIMIT), _text(module, NAME_LIMIT)
    )


def _row(row: Any, length: int) -> list[Any]:  # noqa: ANN401 - JSON of anybody
    if not isinstance(row, list) or len(row) != length:
        raise TypeError(f"a row that has not {length} fields")
    return row


def _list(value: Any, limit: int) -> list[Any]:  # noqa: ANN401 - JSON of anybody
    if not isinstance(value, list):
        raise TypeError("a list that is none")
    return value[:limit]


def _text(value: Any, limit: int) -> str:  # noqa: ANN401 - JSON of anybody
    if not isinstance(value, str):
        raise TypeError("a text that is none")
    return printable(value[:limit])
