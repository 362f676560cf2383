"""How a traced run in a venv went: the whole chain of exceptions, those that were swallowed on the way, and how the process ended.

A traceback shows what was raised last. The cause is often an exception that a package caught and went on from, so every exception that was
raised inside an import is kept, in the order in which it was raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Ending = Literal["ok", "exception", "exit", "crash", "timeout", "not started"]


class Frame(NamedTuple):
    """One line of a traceback."""

    file: str
    line: int
    function: str
    module: str
    """`torchvision.extension`; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """One exception."""

    type: str
    """Qualified: `ModuleNotFoundError`, `torch.cuda.OutOfMemoryError`."""

    message: str
    name: str = ""
    """Of an ImportError: the module that it is about, as the exception itself says."""

    path: str = ""
    """Of an ImportError or OSError: the file that it is about."""

    frames: tuple[Frame, ...] = ()
    """From the outermost to where it was raised."""

    importing: tuple[str, ...] = ()
    """Modules that were being imported when it was raised, from the outermost."""

    relation: Literal["", "cause", "context", "member"] = ""
    """How the next of the chain came from it: it was given as its cause (`raise ... from`), was being handled, or is a member of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The outcome of one run."""

    target: str
    """The module, or the script's path."""

    ending: Ending
    detail: str = ""
    """`SIGSEGV`, `rc 3`, `no answer for 60 s`; empty if it ended well or with an exception."""

    chain: tuple[Raised, ...] = ()
    """What ended the run: from the first exception to the last one, which is what a plain traceback ends with."""

    swallowed: tuple[Raised, ...] = ()
    """Other exceptions that left a module's import or a library's loading and were caught by whoever asked for it, in their order."""

    messages: tuple[str, ...] = ()
    """What the dynamic linker and faulthandler said, and the last lines of stderr."""

    modules: tuple[tuple[str, str], ...] = ()
    """Modules at the root that were imported whole, with their files, sorted."""

    mapped: tuple[str, ...] = ()
    """Shared libraries that were mapped at the end, by path, sorted."""

    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it did not end well."""
        return self.ending != "ok"


def traced_to_json(traced: Traced) -> dict[str, Any]:
    """The outcome as JSON."""
    return {
        "target": traced.target,
        "ending": traced.ending,
        "detail": traced.detail,
        "chain": [_raised_to_json(each) for each in traced.chain],
        "swallowed": [_raised_to_json(each) for each in traced.swallowed],
        "messages": list(traced.messages),
        "modules": [list(each) for each in traced.modules],
        "mapped": list(traced.mapped),
        "seconds": traced.seconds,
    }


def traced_from_json(record: Mapping[str, Any]) -> Traced:
    """The inverse of `traced_to_json`.

    Raises:
        KeyError, TypeError, ValueError: The record is none.
    """
    return Traced(
        target=record["target"],
        ending=record["ending"],
        detail=record["detail"],
        chain=tuple(_raised_from_json(each) for each in record["chain"]),
        swallowed=tuple(_raised_from_json(each) for each in record["swallowed"]),
        messages=tuple(record["messages"]),
        modules=tuple((name, file) for name, file in record["modules"]),
        mapped=tuple(record["mapped"]),
        seconds=float(record["seconds"]),
    )


def _raised_to_json(each: Raised) -> dict[str, Any]:
    return {
        "type": each.type,
        "message": each.message,
        "name": each.name,
        "path": each.path,
        "frames": [list(frame) for frame in each.frames],
        "importing": list(each.importing),
        "relation": each.relation,
    }


def _raised_from_json(record: Mapping[str, Any]) -> Raised:
    return Raised(
        type=record["type"],
        message=record["message"],
        name=record["name"],
        path=record["path"],
        frames=tuple(Frame(*frame) for frame in record["frames"]),
        importing=tuple(record["importing"]),
        relation=record["relation"],
    )
