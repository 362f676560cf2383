"""Whatever a process has started ends with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from builder.agent.children import end_children

CHILD = "import time, sys; print('up', flush=True); time.sleep(1000)"


@pytest.mark.parametrize("leads", [True, False], ids=["leads a group", "in the group of its parent"])
def test_a_child_that_nobody_ended_is_killed(leads: bool) -> None:  # noqa: FBT001
    program = (
        "import subprocess, sys\n"
        "from builder.agent.children import end_children\n"
        f"child = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdout=subprocess.PIPE, start_new_session={leads})\n"
        "child.stdout.readline()\n"
        "end_children()\n"
        "print(child.wait(), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "-9\n"


def test_what_a_child_started_in_its_group_goes_with_it() -> None:
    grandchild = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}]).wait()"
    program = (
        "import os, subprocess, sys\n"
        "from builder.agent.children import end_children\n"
        f"child = subprocess.Popen([sys.executable, '-c', {grandchild!r}], stdout=subprocess.PIPE, start_new_session=True)\n"
        "child.stdout.readline()\n"
        "end_children()\n"
        "print(child.stdout.read())\n"  # ends when the last one that holds the pipe has
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "b''\n"


def test_a_process_without_children_kills_nothing() -> None:
    program = "import os; from builder.agent.children import end_children; end_children(); print(os.getpid() > 0)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True\n"
    )
    assert callable(end_children)
    assert os.getpid() > 0
