"""Ends whatever this process has started and not waited for, when it ends itself.

A child is known to whoever started it once `Popen` has returned. An agent whose controller is gone is interrupted between any two instructions,
also between the start of a child and that moment: then nobody would stop it. So an agent looks for its children itself before it ends.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import os
import signal

ROUNDS = 10
"""How often is looked again: a child takes a moment to die, and a thread may have started another one meanwhile."""


def end_children() -> None:
    """Kill all children of this process, with the process groups that they lead. Nobody is waited for: this process is about to end."""
    for _ in range(ROUNDS):
        children = [pid for pid in _pids() if _parent(pid) == os.getpid()]
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                leads = os.getpgid(pid) == pid
                (os.killpg if leads else os.kill)(pid, signal.SIGKILL)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - text
    except OSError:
        return []


def _parent(pid: int) -> int:
    """Of a process that has not ended yet; 0 if there is none, or it has."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - text
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return 0
    return 0 if state == b"Z" else int(parent)
