"""The only place that starts processes.

No shell ever sees a word of an argv. A child gets its own process group, so that ending it ends what it started too. Environment variables
are passed explicitly where they matter; secrets never travel in an argv.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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
