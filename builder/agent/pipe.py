"""Two ends of a pipe: lines of JSON, some of which announce that raw bytes follow.

Both sides use it: the agent on a host, and the controller. What comes in is not trusted: a line, and all lines of one exchange together, have a
limit, JSON is limited in depth, and strings lose their control characters. Each side says something every few seconds, so that a connection that
was cut without a word is noticed: sshd and the kernel would take hours.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import json
import math
import os
import select
import threading
import time

from envspec.printable import printable

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

LINE_LIMIT_BYTES = 16 << 20
CHUNK_BYTES = 1 << 18
DEPTH_LIMIT = 12
TICK_S = 5.0
"""How often each side says that it is there."""

SILENCE_LIMIT_S = 60.0
"""After so much silence the connection counts as lost."""


class PipeLost(Exception):  # noqa: N818 - it says what is the matter
    """The other side is gone: end of input, a broken pipe, or silence."""


class BadMessage(ValueError):  # noqa: N818 - it says what is the matter
    """What came in is no message of ours."""


class PipeReader:
    """Lines and raw bytes from a descriptor."""

    def __init__(
        self,
        fd: int,
        *,
        tick: Callable[[], None] = lambda: None,
        silence_limit_s: float = SILENCE_LIMIT_S,
        line_limit_bytes: int = LINE_LIMIT_BYTES,
        clean: bool = True,
    ) -> None:
        """Read from a descriptor.

        Args:
            fd: The descriptor.
            tick: Called every `TICK_S` while this side waits or reads.
            silence_limit_s: Seconds without a byte after which the other side counts as lost.
            line_limit_bytes: The longest line that is read.
            clean: Whether strings lose their control characters: a host obeys its controller, and not the other way round.
        """
        self._fd = fd
        self._tick = tick
        self._silence_limit_s = silence_limit_s
        self._line_limit_bytes = line_limit_bytes
        self._clean = clean
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._buffer = bytearray()
        self._searched = 0
        self._heard = self._ticked = time.monotonic()
        self.received = 0
        """Bytes in all."""

    def line(self) -> bytes:
        """The next line, without its end.

        Raises:
            PipeLost: There is none.
            BadMessage: It is too long.
        """
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > self._line_limit_bytes:
                raise BadMessage(f"a line of more than {self._line_limit_bytes} bytes")
            self._buffer += self._more(1 << 16)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def message(self) -> dict[str, Any]:
        """The next message.

        Raises:
            PipeLost: There is none.
            BadMessage: The line is no JSON object, or too long or too deep.
        """
        return parse_message(self.line(), clean=self._clean)

    def chunks(self, size: int) -> Iterator[bytes]:
        """The raw bytes that a message announced.

        Args:
            size: How many.

        Raises:
            PipeLost: They end before that.
        """
        while size > 0:
            if self._buffer:
                chunk = bytes(self._buffer[: min(size, CHUNK_BYTES)])
                del self._buffer[: len(chunk)]
                self._searched = 0
            else:
                chunk = self._more(min(size, CHUNK_BYTES))
            size -= len(chunk)
            yield chunk

    def _more(self, limit: int) -> bytes:
        while True:
            now = time.monotonic()
            if now - self._ticked >= TICK_S:
                self._ticked = now
                self._tick()
            if self._poll.poll(TICK_S * 1000 if self._silence_limit_s > TICK_S else self._silence_limit_s * 500):
                try:
                    raw = os.read(self._fd, limit)
                except OSError as error:
                    raise PipeLost(str(error)) from error
                if not raw:
                    raise PipeLost("the connection ended")
                self._heard = time.monotonic()
                self.received += len(raw)
                return raw
            # Only now: what came while nobody read is a sign of life too.
            if time.monotonic() - self._heard > self._silence_limit_s:
                raise PipeLost(f"no sign of life for {self._silence_limit_s:g} s")


class PipeWriter:
    """Messages and raw bytes to a descriptor; may be used from any thread."""

    def __init__(self, fd: int) -> None:
        """Write to a descriptor."""
        self._fd = fd
        self._guard = threading.Lock()
        self.sent = 0
        """Bytes in all."""

    def say(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            PipeLost: The other side is gone.
        """
        raw = encode_message(message)
        with self._guard:
            self._write(raw)

    def try_say(self, message: dict[str, Any]) -> None:
        """Send a message unless something else is being sent just now: then the other side hears of us anyway."""
        if self._guard.acquire(blocking=False):
            try:
                self._write(encode_message(message))
            except PipeLost:
                pass  # whoever reads will notice
            finally:
                self._guard.release()

    def say_with(self, message: dict[str, Any], chunks: Iterator[bytes]) -> None:
        """Send a message and the raw bytes that it announces.

        Raises:
            PipeLost: The other side is gone.
        """
        with self._guard:
            self._write(encode_message(message))
            for chunk in chunks:
                self._write(chunk)

    def write_raw(self, raw: bytes) -> None:
        """Send bytes that are no message.

        Raises:
            PipeLost: The other side is gone.
        """
        with self._guard:
            self._write(raw)

    def _write(self, raw: bytes) -> None:
        view = memoryview(raw)
        try:
            while view:
                written = os.write(self._fd, view)
                self.sent += written
                view = view[written:]
        except OSError as error:
            raise PipeLost(str(error)) from error


def encode_message(message: dict[str, Any]) -> bytes:
    """A message as a line: ASCII, whatever the strings hold."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def parse_message(line: bytes, *, clean: bool = True) -> dict[str, Any]:
    """A line as a message.

    Args:
        line: Without its end.
        clean: Whether to limit its depth and take control characters out of its strings.

    Raises:
        BadMessage: It is none.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a line that is no JSON: {printable(line[:80].decode('utf-8', 'replace'))}") from error
    if not isinstance(value, dict):
        raise BadMessage("a line that is no JSON object")
    cleaned: dict[str, Any] = _clean(value, 0) if clean else value
    return cleaned


def _clean(value: Any, depth: int) -> Any:  # noqa: ANN401 - any JSON value
    if depth > DEPTH_LIMIT:
        raise BadMessage(f"JSON of more than {DEPTH_LIMIT} levels")
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadMessage("a number that is none")
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {printable(key): _clean(item, depth + 1) for key, item in value.items()}
    return value
