"""What compilers that run on a host need of it: packages that make their kernels when these are first used.

Facts of a host -> findings. A wheel cannot show what it compiles at run time, so the spec says in `target.jit` which of these compilers the
environment is used with; of one that is locked and not named, a lack is only a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.facts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envspec.facts import Severity

C_COMPILER, CXX_COMPILER, PYTHON_HEADERS, NVCC = "a C compiler", "a C++ compiler", "Python.h", "nvcc"

JIT_NEEDS: Mapping[str, tuple[str, ...]] = {
    # builds a launcher for each kernel with the host's compiler, against the interpreter's headers
    "triton": (C_COMPILER, PYTHON_HEADERS),
    # generated C++ and CUDA sources
    "flashinfer": (CXX_COMPILER, NVCC),
    # torch.compile: wrappers in C++, kernels through triton
    "inductor": (CXX_COMPILER, C_COMPILER, PYTHON_HEADERS),
}
"""Compiler -> what it needs on the host."""

JIT_PACKAGES: Mapping[str, str] = {"triton": "triton", "flashinfer": "flashinfer-python", "inductor": "torch"}
"""Compiler -> the package that has it."""

_NVCC_PACKAGES = frozenset({"nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"})

_REMEDIES = {
    C_COMPILER: "install a C compiler (Debian: gcc)",
    CXX_COMPILER: "install a C++ compiler (Debian: g++)",
    PYTHON_HEADERS: "install the headers of the environment's Python (Debian: python{python}-dev)",
    NVCC: "install nvcc of CUDA {cuda} and set CUDA_HOME, or lock nvidia-cuda-nvcc",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTools:
    """What a host has for compiling."""

    c_compiler: str = ""
    """Path; empty if there is none."""

    cxx_compiler: str = ""
    python_headers: str = ""
    """Folder of `Python.h` of the environment's Python; empty if it has none."""

    nvcc: str = ""
    """CUDA release of the nvcc in CUDA_HOME or PATH: `13.0`; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JitDemand:
    """What an environment compiles at run time."""

    named: tuple[str, ...]
    """Compilers that the spec names."""

    packages: frozenset[str]
    """Names of the locked packages."""

    python: str
    """Minor version of the environment's Python."""

    cuda: str
    """CUDA of the environment: `13.0`; empty if it has none."""


def jit_findings(host: str, tools: HostTools, demand: JitDemand) -> Iterable[Finding]:
    """What a host lacks for the compilers of an environment.

    Args:
        host: Its name.
        tools: What it has.
        demand: What is compiled.
    """
    for compiler, needs in JIT_NEEDS.items():
        package = JIT_PACKAGES[compiler]
        if package not in demand.packages:
            continue
        severity: Severity = "error" if compiler in demand.named else "warning"
        lacks = [lack for need in needs if (lack := _lack(need, tools, demand))]
        if lacks and (severity == "error" or compiler != "inductor"):  # torch alone compiles nothing by itself
            yield Finding(
                check="jit-tools",
                severity=severity,
                subject=f"host {host}",
                message=f"host {host} has {' and '.join(lacks)}, which {compiler} needs when a kernel is first used",
                hint="; ".join(
                    _REMEDIES[need].format(python=demand.python, cuda=demand.cuda)
                    for need in needs
                    if _lack(need, tools, demand)
                ),
                packages=(package,),
            )


def _lack(need: str, tools: HostTools, demand: JitDemand) -> str:
    """What is wrong with one need: `no Python.h`, or `nvcc of CUDA 12.8, not 13`; empty if nothing is."""
    if need == NVCC:
        if demand.packages & _NVCC_PACKAGES:
            return ""
        major = demand.cuda.partition(".")[0]
        if not tools.nvcc:
            return "no nvcc"
        if major and tools.nvcc.partition(".")[0] != major:
            return f"nvcc of CUDA {tools.nvcc}, not {major}"
        return ""
    has = {C_COMPILER: tools.c_compiler, CXX_COMPILER: tools.cxx_compiler, PYTHON_HEADERS: tools.python_headers}[need]
    return "" if has else f"no {need.removeprefix('a ')}"
