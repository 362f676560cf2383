"""A running agent seen from the controller: two ends of a pipe, the last words of stderr, and an end."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

from builder.process import kill_group, start_pipe
from envspec.printable import printable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    from builder.bundle import Bundle

STDERR_KEPT_BYTES = 8192
STOP_TIMEOUT_S = 10.0


class Transport(Protocol):
    """A way to reach one machine."""

    @property
    def host(self) -> str:
        """What the machine is called, for messages."""

    def start(self, bundle: Bundle, store: str) -> Connection:
        """Start the agent's bootstrap.

        Args:
            bundle: The agent.
            store: Folder of the store there; empty for the default of the user there.

        Raises:
            EnvspecError: The transport's program cannot be started.
        """

    def explain(self, returncode: int | None, stderr: str) -> tuple[str, str]:
        """Message and hint for an agent that did not answer.

        Args:
            returncode: Of the transport's program; None if it had to be ended.
            stderr: What it said.
        """


class Connection:
    """A child process that leads to an agent."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            OSError: The program cannot be started.
        """
        self._child: subprocess.Popen[bytes] = start_pipe(argv, env=env)
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def read_fd(self) -> int:
        """Where the agent's answers come from."""
        return _open(self._child.stdout)

    @property
    def write_fd(self) -> int:
        """Where calls go to."""
        return _open(self._child.stdin)

    def close_input(self) -> None:
        """Tell the agent that there is no more to come."""
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()

    def end(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Wait for the child, or kill it, and close the pipes: nothing can be read or written any more.

        Returns:
            Its exit code; None if it had to be killed.
        """
        code: int | None = None
        try:
            code = self._child.wait(timeout=timeout_s)
        except Exception:  # noqa: BLE001 - whatever happens, it has to end
            self.kill()
        self._listener.join(0.2)
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None and not (stream is self._child.stderr and self._listener.is_alive()):
                with contextlib.suppress(OSError):
                    stream.close()
        return code

    def kill(self) -> None:
        """End the child at once: the agent then sees the end of its input. May be called from any thread."""
        kill_group(self._child)
        self._child.wait()

    def stderr(self) -> str:
        """The last words of the child."""
        return printable(bytes(self._said).decode("utf-8", "replace")).strip()

    def _listen(self) -> None:
        stream = self._child.stderr
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                while raw := stream.read(4096):
                    self._said += raw
                    del self._said[:-STDERR_KEPT_BYTES]  # however much a host says


def _open(stream: Any) -> int:  # noqa: ANN401 - a pipe
    descriptor: int = stream.fileno()
    return descriptor
