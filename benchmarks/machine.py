"""What the figures were measured on. Nothing here names the machine or a place on it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any


def describe_machine(work: Path, *, envspec: Path, python: Path, uv: Path, nix_hash: Path | None) -> dict[str, Any]:
    """Processor, memory, file system, kernel, and the versions of everything that is measured.

    Args:
        work: A folder on the file system that is measured.
        envspec: The command that is measured.
        python: The Python of the environments.
        uv: A peer.
        nix_hash: The other peer; None if it is not there.
    """
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "file_system": file_system(work),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "envspec": version_of(envspec),
        "envspec_python": platform.python_version(),
        "environment_python": version_of(python),
        "uv": version_of(uv),
        "nix": None if nix_hash is None else version_of(nix_hash),
    }


def machine_label(machine: dict[str, Any]) -> str:
    """A name for a kind of machine, good for a file name: `amd-epyc-2-cores-25-gb`."""
    size = round(machine["memory_bytes"] / 1e9)
    words = re.findall(r"[a-z0-9]+", re.sub(r"\([^)]*\)|@.*", " ", machine["cpu"].lower()))
    return "-".join([*words, str(machine["cores"]), "cores", str(size), "gb"])


def cpu_model() -> str:
    """The processor's name, as the kernel has it."""
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def file_system(path: Path) -> str:
    """Type and options of the file system that a path lies on: `ext4, rw,relatime, journal`."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields = line.split(" ")
        if fields[2] == wanted:
            kind = fields[fields.index("-") + 1]
            # Overlays and network mounts have places of the machine among their options.
            options = [option for option in fields[5].split(",") if "/" not in option and ":" not in option]
            journal = ""
            if kind in {"ext3", "ext4"}:
                device_name = fields[fields.index("-") + 2].rpartition("/")[2]
                journal = ", journal" if any(Path("/proc/fs/jbd2").glob(f"{device_name}-*")) else ", no journal"
            return f"{kind}, {','.join(options)}{journal}"
    return "unknown"


def load_average() -> tuple[float, float, float]:
    """Of the last 1, 5 and 15 minutes."""
    return os.getloadavg()


def version_of(program: Path) -> str:
    """What a program says to `--version`."""
    ended = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return (ended.stdout.strip() or ended.stderr.strip()).partition("\n")[0]
