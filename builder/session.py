"""The controller's end of the pipe to an agent: the greeting, calls and their events, wheels, and the end.

A host is not trusted: its lines have limits (`builder.agent.pipe`), an exchange has one in all, and what is no message of ours ends the session.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from builder.agent.pipe import TICK_S, BadMessage, PipeLost, PipeReader, PipeWriter, parse_message
from builder.agent.serve import PROTOCOL
from builder.outcome import ProbesFailed
from envspec.errors import COULD_NOT_LOOK, EnvspecError, Problem
from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from builder.bundle import Bundle
    from builder.transports.connection import Transport

BANNER_LIMIT_BYTES = 1 << 18
"""How much a login shell may print before the agent speaks."""

LAST_WORD_TIMEOUT_S = 10.0

TALK_LIMIT_BYTES = 256 << 20
"""How much a host may say in one session."""


class ConnectionLost(EnvspecError):  # noqa: N818 - it says what is the matter
    """The connection ended before the agent said how its call ended: it is worth another try."""


class Session:
    """One agent.

    Example:
        with Session(transport, bundle, store="") as session:
            facts = session.call("facts", {...})
    """

    def __init__(self, transport: Transport, bundle: Bundle, *, store: str = "") -> None:
        """Start an agent and wait for its greeting.

        Args:
            transport: The way there.
            bundle: The agent.
            store: Folder of the store there; empty for the default of the user there.

        Raises:
            EnvspecError: The host cannot be reached, has no Python, or answers something else.
        """
        self._transport = transport
        self.host = transport.host
        self._connection = transport.start(bundle, store)
        self._writer = PipeWriter(self._connection.write_fd)
        self._reader = PipeReader(self._connection.read_fd, tick=lambda: self._writer.try_say({"alive": True}))
        self._calls = 0
        self._raw_bytes = 0
        self._ended = False
        self._code: int | None = None
        self.round_trips = 1
        self.store = ""
        """Folder of the store there."""
        try:
            self._greet(bundle)
        except BaseException:
            self.abandon()
            raise

    @property
    def sent_bytes(self) -> int:
        """Bytes that went to the host."""
        return self._writer.sent

    @property
    def received_bytes(self) -> int:
        """Bytes that came from it."""
        return self._reader.received

    def call(
        self,
        name: str,
        values: dict[str, Any],
        on_event: Callable[[dict[str, Any]], None] = lambda _event: None,
        *,
        on_raw: Callable[[int, Iterator[bytes]], None] | None = None,
    ) -> dict[str, Any]:
        """Let the agent do something and wait for it.

        Args:
            name: As `builder.agent.calls` knows it.
            values: Its arguments.
            on_event: Told what happens meanwhile.
            on_raw: Takes raw bytes that the agent announces: how many, and they. If it raises, the session is over.

        Raises:
            ConnectionLost: The connection ended before the call did.
            EnvspecError: The call failed; the error is the agent's.
        """
        self._calls += 1
        self.round_trips += 1
        try:
            self._writer.say({"id": self._calls, "call": name, "with": values})
            while True:
                message = self._message()
                if message.get("id") != self._calls:
                    continue  # a sign of life; after a last word the pipe ends
                if on_raw is not None and "raw" in message:
                    size = int(message["raw"])
                    self._raw_bytes += size
                    on_raw(size, self._reader.chunks(size))
                elif isinstance(message.get("event"), dict):
                    on_event(message["event"])
                elif isinstance(message.get("error"), dict):
                    raise _error_of(message["error"], self.host)
                elif isinstance(message.get("result"), dict):
                    result: dict[str, Any] = message["result"]
                    return result
        except PipeLost as error:
            raise self._lost(error) from error
        except (BadMessage, KeyError, TypeError, ValueError) as error:
            raise self._nonsense(error) from error

    @contextlib.contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Say that we are there while nothing is asked: who hears nothing for a minute gives up."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(TICK_S):
                self._writer.try_say({"alive": True})

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def send_wheel(self, sha256: str, size: int, chunks: Iterator[bytes]) -> None:
        """Send a wheel, or the rest of one; may be called from another thread than `call`.

        Args:
            sha256: Of the whole wheel.
            size: Bytes that are sent.
            chunks: They.

        Raises:
            PipeLost: The connection ended.
        """
        self._writer.say_with({"wheel": sha256, "raw": size}, chunks)

    def let_fetch(self, urls: Mapping[str, Sequence[str]]) -> None:
        """Tell the agent where it can fetch wheels itself.

        Args:
            urls: sha256 -> URLs, in the order in which they are to be tried.
        """
        with contextlib.suppress(PipeLost):
            self._writer.say({"fetch": [{"sha256": sha256, "urls": list(each)} for sha256, each in urls.items()]})

    def refuse_wheel(self, reason: str) -> None:
        """Tell the agent that what it asked for cannot be had."""
        with contextlib.suppress(PipeLost):
            self._writer.say({"no_wheel": reason})

    def close(self) -> None:
        """End the agent, and wait for its last word."""
        if self._ended:
            return
        self._connection.close_input()
        watchdog = threading.Timer(LAST_WORD_TIMEOUT_S, self._connection.kill)
        watchdog.daemon = True
        watchdog.start()
        with contextlib.suppress(PipeLost, BadMessage):
            while "final" not in self._message():
                pass
        watchdog.cancel()
        self._end(LAST_WORD_TIMEOUT_S)

    def kill(self) -> None:
        """End the connection at once; may be called from any thread. The agent stops what it does."""
        self._connection.kill()

    def abandon(self) -> None:
        """End the connection at once, and let go of it."""
        self._connection.kill()
        self._end(0.0)

    def __enter__(self) -> Session:  # noqa: PYI034 - as everywhere here
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _end(self, timeout_s: float) -> int | None:
        if not self._ended:
            self._ended = True
            self._code = self._connection.end(timeout_s)
        return self._code

    def _message(self) -> dict[str, Any]:
        if self._reader.received - self._raw_bytes > TALK_LIMIT_BYTES:
            raise BadMessage(f"more than {TALK_LIMIT_BYTES} bytes")
        return self._reader.message()

    def _greet(self, bundle: Bundle) -> None:
        try:
            greeting = self._first_message()
            if "need_agent" in greeting:
                self.round_trips += 1
                self._writer.write_raw(bundle.content)
                greeting = self._first_message()
        except PipeLost as error:
            raise self._lost(error) from error
        except BadMessage as error:
            raise self._nonsense(error) from error
        if "no_python" in greeting:
            raise EnvspecError(
                f"`{self.host}` has no CPython 3.10 or later that answers",
                hint="install one there: on Debian and Ubuntu `apt-get install python3`",
            )
        hello = greeting.get("hello")
        if not isinstance(hello, dict):
            raise self._nonsense(BadMessage(f"a greeting of another kind: {str(greeting)[:200]}"))
        protocol, agent = hello.get("protocol"), str(hello.get("agent"))
        if protocol != PROTOCOL or agent != bundle.sha256:
            raise EnvspecError(
                f"`{self.host}` runs the agent {agent[:16]} with protocol {protocol}, this envspec has "
                f"{bundle.sha256[:16]} with protocol {PROTOCOL}",
                hint="remove `agents/` from its store: the right one is sent then",
            )
        self.store = str(hello.get("store"))

    def _first_message(self) -> dict[str, Any]:
        """The first line that is one of ours: a login shell may print before."""
        skipped = b""
        while True:
            line = self._reader.line()
            if line.startswith(b"{"):
                with contextlib.suppress(BadMessage):
                    message = parse_message(line)
                    if message.keys() & {"hello", "need_agent", "no_python", "damaged_agent"}:
                        return message
            skipped += line + b"\n"
            if len(skipped) > BANNER_LIMIT_BYTES:
                raise BadMessage(f"begins with: {printable(skipped[:200].decode('utf-8', 'replace'))}")

    def _lost(self, error: PipeLost) -> EnvspecError:
        code = self._end(1.0)
        said = self._connection.stderr()
        if self.store:
            reason = said.splitlines()[-1] if said else str(error)
            return ConnectionLost(
                f"the connection to `{self.host}` was lost: {reason}",
                hint="build again: what has arrived there is not sent twice",
            )
        message, hint = self._transport.explain(code, said)
        return EnvspecError(message, hint=hint)

    def _nonsense(self, error: Exception) -> EnvspecError:
        self._connection.kill()
        return EnvspecError(
            f"`{self.host}` does not speak as an agent does: {error}",
            hint="is something in its login scripts in the way? `ssh HOST true` has to print nothing",
        )


def _error_of(fields: dict[str, Any], host: str) -> EnvspecError:
    """The agent's error as ours. What it says is shown, and decides nothing here but the exit code."""
    if "errno" in fields:
        place = f": `{fields['file']}`" if fields.get("file") else ""
        return EnvspecError(
            f"{str(fields.get('message'))[:500]}{place if place not in str(fields.get('message')) else ''}",
            input_name=host,
            hint=_OS_HINTS.get(fields["errno"], ""),
        )
    if isinstance(fields.get("receipt"), dict):
        return ProbesFailed(str(fields.get("message"))[:2000], fields["receipt"])
    problems = fields.get("problems") or []
    return EnvspecError(
        str(fields.get("message"))[:2000],
        input_name=str(fields.get("input") or ""),
        hint=str(fields.get("hint") or "")[:500],
        detail=str(fields.get("detail") or "")[:20_000],
        exit_code=1 if fields.get("exit_code") == 1 else COULD_NOT_LOOK,
        problems=tuple(
            Problem(where=str(where), message=str(message), hint=str(hint)) for where, message, hint in problems[:100]
        ),
    )


_OS_HINTS = {
    28: "free some space there (`envspec gc --host` removes what nothing uses)",
    122: "raise the quota there, or free some space",
    30: "its file system is read-only: mend it, or name another `store` for the host",
    13: "the user there may not: name another `store` for the host, or use the user that the store belongs to",
}
