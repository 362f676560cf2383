"""The only place that starts processes.

No shell ever sees a word of an argv. A child gets its own process group, so that ending it ends what it started too. Environment variables
are passed explicitly where they matter; secrets never travel in an argv.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CANNOT_START = 127
"""Return code that stands for "the program could not be started", as in a POSIX shell."""

TIMED_OUT = 124
"""Return code that stands for "ended by us after `timeout_s`", as timeout(1) has it."""


@dataclass(frozen=True)
class Completed:
    """A process that ended."""

    returncode: int
    """Negative: ended by that signal. `CANNOT_START` and `TIMED_OUT` as above."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class CompletedBytes:
    """A process that ended, with what it printed as it printed it."""

    returncode: int
    """As in `Completed`."""

    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Bounded:
    """A process of which not everything is believed: how it ended, and as much of what it printed as was asked for."""

    returncode: int
    """As in `Completed`; `-SIGKILL` too if it was ended because it printed too much."""

    stdout: bytes
    """Its beginning."""

    stderr: bytes
    """Its end."""

    cut: bool
    """Whether it printed more than was asked for, and was ended."""

    seconds: float = 0.0
    """How long it ran; of one with a gate, since it was let through."""


class Gate(Protocol):
    """Lets one process after the other through, once each has got ready."""

    def enter(self, cancelled: Callable[[], bool]) -> bool:
        """Wait for one's turn; False if it is cancelled."""

    def leave(self) -> None:
        """Let the next one through."""


POLL_S = 0.1
"""How often a bounded process is looked at while it prints nothing."""

READ_BYTES = 1 << 16
READY = b'{"ready": true}'
"""The line with which a process says that it waits at its gate."""

TimeoutExpired = subprocess.TimeoutExpired

KILLED_WITHIN_S = 10.0
"""How long the end of a process that was killed is waited for: in a driver that hangs it may never come."""

DRAIN_S = 1.0
"""How long what a process left in its pipes is read after its end: children of it may still print."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input_text: str | None = None,
    timeout_s: float | None = None,
) -> Completed:
    """Run a program to its end, with its output read as UTF-8.

    Args:
        argv: Program and arguments; the program is looked up in PATH.
        env: The whole environment of the child; None for this process's own.
        cwd: Its working directory; None for this process's own.
        input_text: Its standard input; None for an empty one.
        timeout_s: Seconds until the child's process group is killed; None for no limit.

    Returns:
        What it printed and how it ended. A program that cannot be started is a result too, not an exception.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if input_text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Completed(returncode=CANNOT_START, stdout="", stderr=str(error))
    try:
        stdout, stderr = child.communicate(input_text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_group(child)
        stdout, stderr = child.communicate()
        return Completed(returncode=TIMED_OUT, stdout=stdout, stderr=stderr)
    except BaseException:
        kill_group(child)
        child.wait()
        raise
    return Completed(returncode=child.returncode, stdout=stdout, stderr=stderr)


def run_bytes(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, input_bytes: bytes = b""
) -> CompletedBytes:
    """Run a program to its end, with input and output that are not text.

    Args:
        argv: Program and arguments; the program is looked up in the PATH of `env`.
        env: The whole environment of the child.
        cwd: Its working directory; None for this process's own.
        input_bytes: Its standard input.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        return CompletedBytes(returncode=CANNOT_START, stdout=b"", stderr=str(error).encode())
    try:
        stdout, stderr = child.communicate(input_bytes)
    except BaseException:
        kill_group(child)
        child.wait()
        raise
    return CompletedBytes(returncode=child.returncode, stdout=stdout, stderr=stderr)


def run_bounded(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    input_bytes: bytes,
    timeout_s: float,
    stdout_limit: int,
    stderr_limit: int,
    mark: str,
    gate: Gate | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Bounded:
    """Run a program that may hang, crash, print without end, or leave children behind. When this returns, nothing of it runs any more.

    Args:
        argv: Program and arguments.
        env: The whole environment of the child, but for the mark.
        cwd: Its working directory.
        input_bytes: Its standard input; less than a pipe holds (64 KiB).
        timeout_s: Seconds until it is killed with its process group; with a gate, as long before it as after it.
        stdout_limit: Bytes that it may print; with one more it is killed.
        stderr_limit: Bytes of the end of its stderr that are kept.
        mark: Name and value of an environment variable, `NAME=value`, by which descendants that left the process group are found and killed.
        gate: Where it waits after it printed a line that is `READY`, until one more line comes in; None for none.
        cancelled: Asked every `POLL_S`; once it says yes, the program is killed.
    """
    name, _, value = mark.partition("=")
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**env, name: value},
            cwd=cwd,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        return Bounded(returncode=CANNOT_START, stdout=b"", stderr=str(error).encode(), cut=False)
    started = time.monotonic()
    deadline = started + timeout_s
    stdout, stderr = bytearray(), bytearray()
    timed_out = cut = ended = inside = False
    try:
        _feed(child, input_bytes, close=gate is None)
        with selectors.DefaultSelector() as selector:
            for stream in (child.stdout, child.stderr):
                selector.register(_stream(stream), selectors.EVENT_READ)
            while not (cut or timed_out):
                if not ended and has_ended(child):
                    ended, deadline = True, min(deadline, time.monotonic() + DRAIN_S)
                ready = selector.select(0 if ended else POLL_S) if selector.get_map() else []
                for key, _ in ready:
                    chunk = os.read(key.fd, READ_BYTES)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is child.stdout:
                        stdout += chunk
                        cut = len(stdout) > stdout_limit
                    else:
                        stderr += chunk
                        del stderr[:-stderr_limit]
                if ended and (not ready or time.monotonic() >= deadline):
                    break
                if not ended and not selector.get_map():
                    time.sleep(POLL_S / 10)  # it closed both, and goes on
                if gate is not None and not inside and not ended and stdout.startswith(READY + b"\n"):
                    inside = gate.enter(cancelled)
                    started = time.monotonic()
                    deadline = started + timeout_s
                    _feed(child, b"go\n", close=True)
                timed_out = not ended and (time.monotonic() >= deadline or cancelled())
    finally:
        seconds = time.monotonic() - started
        kill_group(child)  # before it is waited for: until then nothing else can have its number
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILLED_WITHIN_S)
        kill_marked(mark)
        if gate is not None and inside:
            gate.leave()
        for stream in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(BrokenPipeError):
                _stream(stream).close()
    code = TIMED_OUT if timed_out or child.returncode is None else -signal.SIGKILL if cut else child.returncode
    return Bounded(returncode=code, stdout=bytes(stdout[:stdout_limit]), stderr=bytes(stderr), cut=cut, seconds=seconds)


def kill_marked(mark: str) -> None:
    """Kill every process of this user whose environment has a variable, `NAME=value`, that nothing else has."""
    wanted = b"\0" + mark.encode() + b"\0"
    deadline = time.monotonic() + KILLED_WITHIN_S
    while (
        time.monotonic() < deadline
    ):  # one that forks while it is looked for leaves another; and it takes a moment to die
        found = False
        for place in Path("/proc").iterdir():
            if place.name.isdecimal():
                with contextlib.suppress(OSError):
                    if wanted in b"\0" + (place / "environ").read_bytes():
                        os.kill(int(place.name), signal.SIGKILL)
                        found = True
        if not found:
            return
        time.sleep(POLL_S / 10)


def _feed(child: subprocess.Popen[bytes], content: bytes, *, close: bool) -> None:
    """Write to a child's stdin; one that does not read has its reasons."""
    with contextlib.suppress(BrokenPipeError):
        _stream(child.stdin).write(content)
        if close:
            _stream(child.stdin).close()


def _stream(stream: Any) -> Any:  # noqa: ANN401 - a pipe that was asked for is there
    return stream


def start_worker(
    argv: Sequence[str], *, env: Mapping[str, str], pass_fds: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    """Start a long-lived child that reads lines from its stdin and answers on its stdout; its stderr is ours.

    Args:
        argv: Program and arguments.
        env: The whole environment of the child.
        pass_fds: File descriptors that the child inherits, such as that of a lock which must outlive this process.

    Raises:
        OSError: The program cannot be started.
    """
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(env),
        encoding="utf-8",
        pass_fds=pass_fds,
        start_new_session=True,
    )


def start_watched(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str, pass_fds: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """Start a child of which nothing is believed: without a terminal and with nothing on its stdin; what it prints comes through pipes.

    Args:
        argv: Program and arguments.
        env: The whole environment of the child.
        cwd: Its working directory.
        pass_fds: File descriptors that it inherits besides, under their numbers.

    Raises:
        OSError: The program cannot be started.
    """
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=dict(env),
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def has_ended(child: subprocess.Popen[Any]) -> bool:
    """Whether a child has ended; it keeps its number until it is waited for."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def start_pipe(argv: Sequence[str], *, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a long-lived child that talks in bytes over pipes: stdin, stdout, stderr.

    Args:
        argv: Program and arguments.
        env: The whole environment of the child.

    Raises:
        OSError: The program cannot be started.
    """
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=dict(env),
        start_new_session=True,
    )


def kill_group(child: subprocess.Popen[Any]) -> None:
    """Kill a child and what it started in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def replace_with(argv: Sequence[str], *, env: Mapping[str, str]) -> None:
    """Become another program (exec).

    Raises:
        OSError: The program cannot be started.
    """
    os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - no shell is meant
