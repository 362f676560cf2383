"""Whoever ends a command, Ctrl-C or an engine or a closing terminal: what it started ends too, and the exit code says how."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.projects import Project

# Tells who it is and who its child is, and hangs; it holds the pipe as long as it lives, and so does its child.
SCRIPT = """
import os, subprocess, sys, time
pipe = os.open(sys.argv[0] + ".fifo", os.O_WRONLY)
os.set_inheritable(pipe, True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False, start_new_session=True)
os.write(pipe, f"{os.getpid()} {child.pid}\\n".encode())
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_a_command_started_ends_with_it(built: Project, tmp_path: Path, number: signal.Signals) -> None:
    active = built.active()
    assert active is not None
    script = tmp_path / "hangs.py"
    script.write_text(SCRIPT)
    os.mkfifo(f"{script}.fifo")
    process = built.start("diagnose", active, "--run", script)
    with Path(f"{script}.fifo").open("rb") as pipe:
        assert len(pipe.readline().split()) == 2
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert pipe.read() == b""  # nobody holds the other end any more
    assert process.returncode == 128 + number
    assert "; nothing was activated" in said


def test_a_closing_terminal_does_not_end_a_command_that_is_to_go_on(built: Project) -> None:
    ran = built.run(
        "run", "--", "python", "-c", "import signal; print(signal.getsignal(signal.SIGHUP))", before=["nohup"]
    )
    assert (ran.code, ran.stdout.strip()) == (0, str(signal.SIG_IGN))
