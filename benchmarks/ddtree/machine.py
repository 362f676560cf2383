"""What the figures were measured on: processor, GPU, driver, versions. No host name, no path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from typing import Any

import torch

from benchmarks.machine import cpu_model

PACKAGES = ("sglang", "sglang-kernel", "torch", "triton", "transformers", "tokenizers", "flashinfer-python")


def describe() -> dict[str, Any]:
    """As the results have it."""
    query = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit,temperature.gpu"
    program = shutil.which("nvidia-smi")
    told = ""
    if program:
        command = [program, f"--query-gpu={query}", "--format=csv,noheader"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "gpu": dict(zip(query.split(","), (part.strip() for part in told.strip().split(",")), strict=False)),
        "capability": list(torch.cuda.get_device_capability()) if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
