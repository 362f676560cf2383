"""What a process in a venv would get from its host: variables, libraries, driver and GPUs.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from builder.agent.host import cached_libraries, machine_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.agent.survey_tree import Notes

VARIABLES = (
    "CUDA_CACHE_PATH",
    "CUDA_HOME",
    "CUDA_MODULE_LOADING",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "FLASHINFER_WORKSPACE_BASE",
    "LD_AUDIT",
    "LD_BIND_NOW",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "PYTHONUSERBASE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_LIBCUDA_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
    "VIRTUAL_ENV",
)
"""What is told of the environment: these, and nothing else of it."""

LONGEST_VALUE = 32_768
MOST_LIBRARIES = 20_000


def watched_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide what is loaded."""
    return {name: environ[name][:LONGEST_VALUE] for name in VARIABLES if name in environ}


def host_environment(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The variables for programs of the host, so that none of them is the venv's own or loads anything of it.

    Args:
        environ: Of this process.
        prefix: Of the venv.
    """

    def is_foreign(path: str) -> bool:
        real = os.path.realpath(path)
        return path.startswith("/") and real != prefix and not real.startswith(f"{prefix}/")

    kept = {name: value for name, value in environ.items() if not name.startswith(("LD_", "PYTHON"))}
    kept["PATH"] = ":".join(path for path in environ.get("PATH", os.defpath).split(":") if is_foreign(path))
    libraries = [path for path in environ.get("LD_LIBRARY_PATH", "").split(":") if is_foreign(path)]
    if libraries:  # some hosts have their driver there
        kept["LD_LIBRARY_PATH"] = ":".join(libraries)
    return kept


def linked_libraries(environ: Mapping[str, str], outside: Mapping[str, str], notes: Notes) -> dict[str, str]:
    """Name -> path of what the dynamic linker finds by itself: `LD_LIBRARY_PATH` first, then its cache.

    Args:
        environ: Of the process that would be started.
        outside: For programs of the host, as `host_environment` makes it.
        notes: Gets what could not be looked at.
    """
    found: dict[str, str] = {}
    for folder in environ.get("LD_LIBRARY_PATH", "")[:LONGEST_VALUE].replace(";", ":").split(":"):
        if not folder:
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if ".so" in entry.name and len(found) < MOST_LIBRARIES:
                        found.setdefault(entry.name, f"{folder.rstrip('/')}/{entry.name}")
        except OSError as error:
            notes.add(f"`{folder}` of LD_LIBRARY_PATH cannot be listed: {error.strerror}")
    for soname, path in cached_libraries(outside).items():
        if len(found) < MOST_LIBRARIES:
            found.setdefault(soname, path)
    return dict(sorted(found.items()))


def look_at_host(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Facts of the host as `Observation.host` has them, and what could not be found out."""
    notes: list[str] = []
    facts = machine_facts(environ, notes)
    return {
        "glibc": facts["glibc"],
        "driver": facts["driver"],
        "cuda": facts["cuda_driver"],
        "gpus": [{"name": gpu["name"], "compute": gpu["compute"]} for gpu in facts["gpus"]],
        "system": facts["system"],
        "hostname": facts["hostname"],
        "machine": facts["machine"],
    }, notes
