"""Runs whole processes and says what they took: time, and memory if asked.

Time is from before the process is started until it has ended and was waited for. Memory is looked at from outside, in `/proc`: how much all
processes below the command hold together, and the most that any one of them held.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SAMPLE_INTERVAL_S = 0.05
OUTPUT_SHOWN_BYTES = 4000
_KIB = 1024


class CannotMeasure(Exception):  # noqa: N818 - it says what is the matter
    """A figure cannot be had: a command failed, or something that it needs is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line as it is run, and as it may be shown."""

    shown: str
    """Without a path of this machine."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    """The whole environment."""

    cwd: Path
    codes: tuple[int, ...] = (0,)
    """Exit codes that are no failure: 1 of what looks for something wrong and finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one run of one command, or of several in a row, took."""

    seconds: float
    user_s: float
    system_s: float
    """Processor time of the command and of every child that it waited for."""

    largest_process_bytes: int
    """The most resident memory that any one process held (`ru_maxrss`); never less than what this process itself holds."""

    def __add__(self, other: Usage) -> Usage:
        """Both, one after the other."""
        return Usage(
            seconds=self.seconds + other.seconds,
            user_s=self.user_s + other.user_s,
            system_s=self.system_s + other.system_s,
            largest_process_bytes=max(self.largest_process_bytes, other.largest_process_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The most that the processes of one command held at one of the moments at which they were looked at."""

    tree_pss_bytes: int
    """Of all together, memory that several share counted once (the sum of their PSS)."""

    tree_rss_bytes: int
    """Of all together, shared memory counted for each (the sum of their RSS)."""

    processes: int
    """The most that ran at once."""

    samples: int


NO_MEMORY = MemoryPeak(tree_pss_bytes=0, tree_rss_bytes=0, processes=0, samples=0)


def run(command: Command) -> Usage:
    """Run a command to its end.

    Raises:
        CannotMeasure: It failed; the message has the end of what it printed.
    """
    return _run(command, None)[0]


def run_watched(command: Command, *, interval_s: float = SAMPLE_INTERVAL_S) -> tuple[Usage, MemoryPeak]:
    """Run a command to its end and look at its memory now and then.

    Args:
        command: The command.
        interval_s: Seconds between two looks. A look takes about 5 ms of a core, so that at 0.05 s the time that is measured is not to be used.

    Raises:
        CannotMeasure: It failed; the message has the end of what it printed.
    """
    return _run(command, interval_s)


def _run(command: Command, interval_s: float | None) -> tuple[Usage, MemoryPeak]:
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        child = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(command.environ),
            cwd=command.cwd,
        )
        try:
            peak = NO_MEMORY if interval_s is None else _watch(child.pid, interval_s)
            _, status, used = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            child.wait()
            raise
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in command.codes:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - OUTPUT_SHOWN_BYTES))
            tail = output.read().decode("utf-8", "replace").strip()
            raise CannotMeasure(f"`{command.shown}` ended with {child.returncode}:\n{tail}")
    usage = Usage(
        seconds=seconds,
        user_s=used.ru_utime,
        system_s=used.ru_stime,
        largest_process_bytes=used.ru_maxrss * _KIB,
    )
    return usage, peak


def _watch(pid: int, interval_s: float) -> MemoryPeak:
    """Look at a process and all below it until it has ended; it is left to be waited for."""
    pss = rss = processes = samples = 0
    ended = select.poll()
    descriptor = os.pidfd_open(pid)
    ended.register(descriptor, select.POLLIN)
    try:
        while not ended.poll(interval_s * 1000 if samples else 0):
            tree = _descendants(pid)
            held = [_memory_of(each) for each in tree]
            pss = max(pss, sum(each[0] for each in held))
            rss = max(rss, sum(each[1] for each in held))
            processes = max(processes, len(tree))
            samples += 1
    finally:
        os.close(descriptor)
    return MemoryPeak(tree_pss_bytes=pss, tree_rss_bytes=rss, processes=processes, samples=samples)


def _descendants(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - quicker, and it is done every few milliseconds
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The name of the program, in brackets, may contain anything; after it come the state and the parent.
                parent = int(file.read().rpartition(b") ")[2].split(b" ", 2)[1])
                children.setdefault(parent, []).append(int(name))
    found = [pid]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def _memory_of(pid: int) -> tuple[int, int]:
    """PSS and RSS of a process in bytes; nothing if it has just ended."""
    pss = rss = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("Rss:"):
                rss = int(line.split()[1]) * _KIB
            elif line.startswith("Pss:"):
                pss = int(line.split()[1]) * _KIB
                break
    return pss, rss
