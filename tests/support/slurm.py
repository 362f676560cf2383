"""A real Slurm cluster on one machine: munged, slurmctld, and nodes that each have a name, process ids and a local disk of their own.

    with Slurm(4) as cluster:
        done = cluster.run("srun", "--label", "-N4", "--ntasks-per-node=1", "hostname")

`cluster.local` is another folder on every node (a bind mount, as a local disk has it); everything else is shared, as on a cluster with a file
server. All of it lies in a temporary folder, and ends with the context. Needs root, and Debian's slurm-wlm and munge: `why_not()` says what is
missing.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

START_LIMIT_S = 30.0
RUN_LIMIT_S = 120.0
_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"


@functools.cache
def why_not() -> str:
    """Why there can be no cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "nodes of a test need root, for namespaces and slurmd"
    programs = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "sbcast", "scontrol", "unshare")
    missing = [program for program in programs if shutil.which(program, path=_SYSTEM) is None]
    if missing:
        return f"a cluster needs {', '.join(missing)}: install slurm-wlm, munge"
    done = subprocess.run(
        ["/usr/bin/env", "unshare", "--mount", "--pid", "--uts", "--fork", "true"], capture_output=True, check=False
    )
    return "" if done.returncode == 0 else "this machine allows no namespaces"


def need_slurm() -> None:
    """Skip the test, with the reason, where there can be no cluster."""
    if why_not():
        pytest.skip(why_not())


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, on loopback."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Slurm:
    """See the module's docstring."""

    def __init__(self, count: int) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="slurm.", dir="/tmp"))  # paths of sockets must be short
        self.names = [f"node{number:02}" for number in range(count)]
        self.local = self.base / "local"
        self.binds: dict[str, list[tuple[Path, Path]]] = {}
        """Node -> folders that it sees in other places, source and target; to be set before the start."""
        self._processes: list[subprocess.Popen[bytes]] = []

    def local_of(self, name: str) -> Path:
        """Where a node's local folder lies here."""
        return self.base / name / "local"

    def environ(self, more: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """The variables of a client."""
        values = {"PATH": _SYSTEM, "LANG": "C.UTF-8", "SLURM_CONF": str(self.base / "slurm.conf"), **(more or {})}
        return {name: value for name, value in values.items() if value is not None}

    def run(
        self,
        *argv: str | Path,
        cwd: Path | None = None,
        environ: Mapping[str, str | None] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client of Slurm."""
        done = subprocess.run(
            ["/usr/bin/env", *map(str, argv)],
            cwd=cwd or self.base,
            env=self.environ(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=RUN_LIMIT_S,
        )
        assert not check or done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}\n{self._logs()}"
        return done

    def batch(
        self,
        script: str | Path,
        *arguments: str | Path,
        out: Path,
        cwd: Path,
        environ: Mapping[str, str | None],
        limit_s: float = RUN_LIMIT_S,
    ) -> int:
        """Run a batch script on all nodes to its end; its exit code. What it prints goes to `out`.

        `sbatch --wait` would look every ten seconds only.
        """
        argv = ("sbatch", "--parsable", f"-N{len(self.names)}", f"--output={out}", script, *arguments)
        job = self.run(*argv, cwd=cwd, environ=environ).stdout.strip()
        deadline = time.monotonic() + limit_s
        while True:
            said = self.run("scontrol", "show", "job", job).stdout
            (state,), (code, *_) = (re.findall(rf"\b{key}=(\w+)", said) for key in ("JobState", "ExitCode"))
            if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                return int(code)
            assert time.monotonic() < deadline, f"{said}\n{self._logs()}"
            time.sleep(0.1)  # nothing tells when it ends

    def __enter__(self) -> Slurm:  # noqa: PYI034 - as everywhere here
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        base = self.base
        base.chmod(0o755)  # munged wants no folder that others may write
        (base / "state").mkdir()
        self.local.mkdir()
        (base / "munge.key").write_bytes(secrets.token_bytes(1024))
        (base / "munge.key").chmod(0o400)
        controller, *ports = _free_ports(1 + len(self.names))
        lines = [
            "ClusterName=test",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={controller}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={base}/munge.sock",
            f"StateSaveLocation={base}/state",
            f"SlurmdSpoolDir={base}/spool-%n",
            f"SlurmctldPidFile={base}/slurmctld.pid",
            f"SlurmdPidFile={base}/slurmd-%n.pid",
            f"SlurmctldLogFile={base}/slurmctld.log",
            f"SlurmdLogFile={base}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmctldParameters=max_dbd_msg_action=discard",
        ]
        lines += [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=500"
            for name, port in zip(self.names, ports, strict=True)
        ]
        lines.append("PartitionName=all Nodes=ALL Default=YES State=UP")
        (base / "slurm.conf").write_text("\n".join(lines) + "\n")
        self._spawn(
            *("munged", "--force", "--foreground", f"--socket={base}/munge.sock", f"--key-file={base}/munge.key"),
            *(f"--log-file={base}/munge.log", f"--pid-file={base}/munge.pid", f"--seed-file={base}/munge.seed"),
        )
        self._until((base / "munge.sock").exists)
        self._spawn("slurmctld", "-D")
        for name in self.names:
            self.local_of(name).mkdir(parents=True)
            script = f"hostname {name}\nmount --make-rprivate /\nmount --bind {self.local_of(name)} {self.local}\n"
            script += "".join(f"mount --bind {source} {target}\n" for source, target in self.binds.get(name, ()))
            # Not `exec`: the shell is the one that takes in what orphans leave.
            script += f"slurmd -D -N {name}\nexit $?\n"
            space = ("--mount", "--pid", "--uts", "--fork", "--kill-child=SIGKILL", "--mount-proc")
            self._spawn("unshare", *space, "sh", "-ec", script)
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        self._until(lambda: self.run(*idle, check=False).stdout.strip() == str(len(self.names)))

    def _spawn(self, *argv: str) -> None:
        with (self.base / "daemons.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    ["/usr/bin/env", *argv],
                    env=self.environ(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not ready():
            assert time.monotonic() < deadline, self._logs()
            assert all(each.poll() is None for each in self._processes), self._logs()
            time.sleep(0.05)  # nothing tells when the daemons have found each other

    def _logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in self.base.glob("*.log")
        )

    def _stop(self) -> None:
        for each in reversed(self._processes):  # the nodes first: with `unshare` all of a node ends
            each.kill()
            each.wait()
        subprocess.run(["/usr/bin/env", "chmod", "-R", "u+w", str(self.base)], check=False, capture_output=True)
        shutil.rmtree(self.base, ignore_errors=True)
