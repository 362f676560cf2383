"""The agent on a host: takes calls from one pipe, does them one after the other, and says how each ended.

    controller                                       agent
                                                     {"hello": {"protocol": 1, "agent": <sha256>, ...}}
    {"id": 1, "call": "facts", "with": {...}}        {"id": 1, "event": {"note": "..."}}
                                                     {"id": 1, "result": {...}}   or   {"id": 1, "error": {...}}
    {"wheel": <sha256>, "raw": <bytes>} + bytes      {"id": 1, "event": {"need": [...]}}
    {"fetch": [{"sha256": ..., "urls": [...]}]}
    {"alive": true}                                  {"alive": true}
    end of input                                     {"final": {"status": "closed"}}

When its input ends, or nothing is heard for a minute, whatever runs is stopped, its children with it, and every lock is let go.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from builder.agent.pipe import BadMessage, PipeLost, PipeReader, PipeWriter
from builder.agent.store import Store
from builder.outcome import ProbesFailed
from envspec.errors import EnvspecError

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from builder.agent.interpreter import Interpreter
    from builder.agent.receive import Receiver

PROTOCOL = 1
LAST_WORD_S = 20.0
"""How long a call that is stopped may take to clean up before the process ends all the same."""

FETCHES_AT_ONCE = 4
PROGRESS_STEPS = 200
"""A bar sends no more than so many events."""


class Stopped(BaseException):
    """The controller is gone: raised in the main thread, so that everything is cleaned up on the way out."""


class Agent:
    """What calls work with."""

    def __init__(self, store: Store, writer: PipeWriter, agent_file: bytes) -> None:
        self.store = store
        self.writer = writer
        self.agent_file = agent_file
        self.call_id = 0
        self.receiver: Receiver | None = None
        self.interpreters: dict[tuple[str, str, str, str], Interpreter] = {}
        self.stopping = False
        """Whether the controller is gone: then nothing is begun or activated any more, wherever the main thread is."""

    def event(self, event: dict[str, Any]) -> None:
        """Tell the controller something about the call that runs; raises `Stopped` if it is gone."""
        if self.stopping:
            raise Stopped
        self.writer.say({"id": self.call_id, "event": event})

    def note(self, text: str) -> None:
        """Say one line (as `builder.progress.Reporter`)."""
        self.event({"note": text})

    @contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Report a bar (as `builder.progress.Reporter`)."""
        self.event({"stage": label, "total": total, "unit": unit})
        guard = threading.Lock()
        done = told = 0

        def advance(units: int) -> None:
            nonlocal done, told
            with guard:
                done += units
                tell = (done - told) * PROGRESS_STEPS >= total
                told = done if tell else told
            if tell:
                self.event({"stage": label, "done": done})

        yield advance


def serve(store_root: str, read_fd: int, write_fd: int, agent_sha256: str, agent_file: bytes) -> int:
    """Serve one controller until it goes.

    Args:
        store_root: Folder of the store.
        read_fd: Where calls come from.
        write_fd: Where answers go.
        agent_sha256: Of the agent's file.
        agent_file: The agent's file: the store gets it, for the next time.

    Returns:
        The exit code.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, _stop)
    signal.signal(signal.SIGINT, _stop)
    writer = PipeWriter(write_fd)
    agent = Agent(Store(Path(store_root)), writer, agent_file)
    calls: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    os.write(write_fd, b"\n")  # what a login shell printed may lack the end of its line
    writer.say({"hello": {"protocol": PROTOCOL, "agent": agent_sha256, "store": os.fspath(agent.store.root)}})
    final: dict[str, Any] = {"status": "closed"}
    try:
        threading.Thread(target=_read, args=(agent, read_fd, calls), daemon=True).start()
        while True:
            _answer(agent, calls.get())
    except Stopped:
        pass
    except PipeLost:
        return 1
    except BaseException as error:  # noqa: BLE001 - the last word says it
        final = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(PipeLost):
        writer.say({"final": final})
    return 0


def _stop(_signal: int, _frame: object) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # once is enough: cleaning up is not to be interrupted
    raise Stopped


def _read(agent: Agent, fd: int, calls: queue.SimpleQueue[dict[str, Any]]) -> None:
    """The reading thread: ends the process when the input does."""
    reader = PipeReader(fd, tick=lambda: agent.writer.try_say({"alive": True}), clean=False)
    try:
        while True:
            message = reader.message()
            if "call" in message:
                calls.put(message)
            elif "wheel" in message:
                chunks = reader.chunks(int(message["raw"]))
                if agent.receiver is None:
                    for _ in chunks:
                        pass
                else:
                    agent.receiver.take(str(message["wheel"]), int(message["raw"]), chunks)
            elif "fetch" in message and agent.receiver is not None:
                rows = [(str(row["sha256"]), [str(url) for url in row["urls"]]) for row in message["fetch"]]
                threading.Thread(target=_fetch, args=(agent.receiver, rows), daemon=True).start()
            elif "no_wheel" in message and agent.receiver is not None:
                agent.receiver.fail(EnvspecError(str(message["no_wheel"])))
    except (PipeLost, BadMessage, KeyError, TypeError, ValueError):
        pass
    finally:
        agent.stopping = True
        threading.Timer(LAST_WORD_S, _leave, (3,)).start()
        os.kill(os.getpid(), signal.SIGTERM)  # wakes the main thread, whatever it waits for


def _fetch(receiver: Receiver, rows: list[tuple[str, list[str]]]) -> None:
    """Fetch wheels from caches and indexes, a few at a time, while the reading thread reads on."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - loads much, and is rarely needed

    with ThreadPoolExecutor(FETCHES_AT_ONCE) as several:
        for future in [several.submit(receiver.fetch, sha256, urls) for sha256, urls in rows]:
            error = future.exception()
            if error is not None:
                receiver.fail(error)


def _answer(agent: Agent, message: dict[str, Any]) -> None:
    from builder.agent.calls import CALLS  # noqa: PLC0415 - the greeting need not wait for it

    agent.call_id = int(message["id"])
    try:
        answer = {"result": CALLS[str(message["call"])](agent, message.get("with") or {})}
    except EnvspecError as error:
        answer = {"error": error_to_json(error)}
    except OSError as error:
        answer = {"error": {"message": str(error), "errno": error.errno, "file": str(error.filename or "")}}
    except PipeLost:
        raise
    except Exception as error:  # noqa: BLE001 - said where the call came from
        answer = {"error": {"message": f"this is a bug in envspec: {type(error).__name__}: {error}", "bug": True}}
    agent.writer.say({"id": agent.call_id, **answer})


def error_to_json(error: EnvspecError) -> dict[str, Any]:
    """An error as JSON."""
    return {
        "message": error.message,
        "input": error.input_name,
        "hint": error.hint,
        "detail": error.detail,
        "exit_code": error.exit_code,
        "problems": [[problem.where, problem.message, problem.hint] for problem in error.problems],
        **({"receipt": error.receipt} if isinstance(error, ProbesFailed) else {}),
    }


def main(store_root: str, agent_sha256: str, agent_file: bytes) -> None:
    """Serve the controller at this process's stdin and stdout, and end.

    Args:
        store_root: Folder of the store.
        agent_sha256: Of the agent's file.
        agent_file: The agent's file.
    """
    os.umask(0o022)
    sys.dont_write_bytecode = True
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # children get nothing of the pipe
    os.dup2(2, 1)
    _leave(serve(store_root, read_fd, write_fd, agent_sha256, agent_file))


def _leave(code: int) -> None:
    """End this process, and before that whatever it has started and nobody has ended."""
    if "subprocess" in sys.modules:
        from builder.agent.children import end_children  # noqa: PLC0415 - most agents start nothing

        end_children()
    os._exit(code)
