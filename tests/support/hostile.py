"""Hosts without sshd: an `ssh` of a test's own, which runs for each host the real agent on this machine, or a program that a test wrote.

    hosts = FakeHosts(project)
    hosts.script("h1", 'hello()\\nsay({"id": hear()["id"], "result": {"outcome": 5}})')
    project.run("build", "--all")

What a program may use is in `tests.support.agents`. Everything else is as with real hosts, the command line included.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.support.agents import AGENT_PATH, HELPERS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.projects import Project

_SSH = """#!{python} -IS
import os, shlex, sys
if "-G" in sys.argv:
    print("controlmaster auto\\ncontrolpath /x\\nconnecttimeout 5\\nserveraliveinterval 5")
    sys.exit()
alias, command = sys.argv[sys.argv.index("--") + 1:]
folder = os.path.join({folder!r}, alias)
environment = {{"PATH": {path!r}, "HOME": folder}}
try:
    with open(folder + ".py") as file:
        script = file.read()
except OSError:
    os.execve("/bin/sh", ["sh", "-c", command], environment)
code = {helpers!r}.format(digest=shlex.split(command)[-3]) + script
os.execve({python!r}, [{python!r}, "-I", "-S", "-c", code], environment)
"""


class FakeHosts:
    """See the module's docstring."""

    def __init__(self, project: Project, *names: str) -> None:
        """Put the `ssh` in front of the project's PATH, and declare hosts, each with a store of its own."""
        self.folder = project.folder / "hosts"
        for name in names:
            (self.folder / name).mkdir(parents=True)
        program = project.folder / "bin" / "ssh"
        program.write_text(
            _SSH.format(python=sys.executable, folder=os.fspath(self.folder), path=AGENT_PATH, helpers=HELPERS)
        )
        program.chmod(0o755)
        project.declare_hosts({name: {"store": os.fspath(self.store(name))} for name in names})

    def store(self, name: str) -> Path:
        """Where a host has its store."""
        return self.folder / name / "store"

    def script(self, name: str, script: str) -> None:
        """Let a host be a program; an empty one makes it honest again."""
        path = self.folder / f"{name}.py"
        path.write_text(script)
        if not script:
            path.unlink()
