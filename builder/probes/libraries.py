"""Probe: every library of CUDA that the environment's packages map is the environment's own, and nothing on the host goes before it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

ABOUT = {
    "id": "libraries",
    "purpose": "Packages import from the environment, and no library of CUDA is mapped from elsewhere, the driver's own excepted.",
    "tolerance": "none: every mapping counts; a second copy that is loaded after the environment's own is told, and gives no symbol",
    "needs": {"gpus": 0, "modules": ["torch"]},
    "per": "host",
    "set": "quick",
    "compiles": True,
    "seconds": {"quick": 90, "full": 120},
    "memory_bytes": 1_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.probes import kit, mapped
else:
    import kit

    mapped = kit.neighbour("mapped")

MODULES = ("torch", "triton", "torchvision", "sgl_kernel", "flashinfer")
"""What is imported if the request names nothing; those that the environment has."""


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases, in this order: what is mapped is judged when all is imported and used."""
    yield kit.Case("search-path", partial(search_path, probe=probe, environ=os.environ))
    for module in probe.modules or MODULES:
        if probe.modules or _has(module):
            yield kit.Case(f"import-{module}", partial(import_one, probe=probe, name=module))
    yield kit.Case("use", partial(use, probe=probe))
    yield kit.Case("mapped", partial(kit.judge_mapped, probe=probe))
    yield kit.Case("runtime", partial(runtime, probe=probe))


def search_path(found: kit.Found, probe: kit.Probe, environ: Mapping[str, str]) -> None:
    """What the host puts before the environment's own search: LD_LIBRARY_PATH goes before RUNPATH, LD_PRELOAD before everything."""
    own = {path.name for path in own_libraries(Path(probe.site or probe.prefix)) if mapped.is_cuda_library(path.name)}
    ahead: list[str] = []
    for folder in filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        if probe.has(f"{folder}/"):
            continue
        with contextlib.suppress(OSError):
            ahead += [str(path) for path in sorted(Path(folder).iterdir()) if path.name in own]
    preloaded = [
        path
        for path in environ.get("LD_PRELOAD", "").replace(":", " ").split()
        if mapped.is_cuda_library(path.rpartition("/")[2])
    ]
    found.note("own_libraries", len(own))
    found.at_most("ahead_of_own", len(ahead) + len(preloaded), 0)
    if ahead or preloaded:
        what = [f"LD_LIBRARY_PATH puts {path} before the environment's own" for path in ahead[:4]]
        found.wrong[:] = [*what, *(f"LD_PRELOAD loads {path}" for path in preloaded)]


def own_libraries(site: Path) -> Iterator[Path]:
    """Libraries of CUDA that packages bring along."""
    for pattern in ("nvidia/*/lib/*.so*", "nvidia/*/*/lib/*.so*", "torch/lib/*.so*"):
        yield from site.glob(pattern)


def import_one(found: kit.Found, probe: kit.Probe, name: str) -> None:
    """One import, and where it came from."""
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        cause = mapped.unloadable_library(probe.site, name)
        if cause:
            raise kit.Wrong(f"{kit.reason_of(error)}; {cause}") from error
        raise
    version = getattr(module, "__version__", "")
    if version:
        found.note("version", str(version))
    place = str(getattr(module, "__file__", "") or next(iter(module.__path__)))
    found.require(probe.has(place), f"`{name}` was imported from {place}, outside the environment")


def use(found: kit.Found, probe: kit.Probe) -> None:
    """Small calls, after which the libraries are mapped that are only loaded at their first use."""
    del probe
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found.note("device", device)
    if device == "cpu":
        return
    x = torch.randn(1, 8, 16, 16, device=device)
    torch.nn.functional.conv2d(x, torch.randn(8, 8, 3, 3, device=device), padding=1)  # cuDNN
    torch.nn.functional.linear(x[0, 0], torch.randn(16, 16, device=device), torch.randn(16, device=device))  # cuBLASLt
    torch.fft.rfft(x)
    torch.linalg.solve(x[0, 0] + 50 * torch.eye(16, device=device), x[0, 1])  # cuSOLVER
    torch.sparse.mm(torch.eye(16, device=device).to_sparse_csr(), x[0, 0])  # cuSPARSE
    torch.cuda.synchronize()


def runtime(found: kit.Found, probe: kit.Probe) -> None:
    """Which CUDA runtime a symbol is taken from, and whether it is of the toolkit that the lock names."""
    import torch

    version = str(torch.version.cuda or "")
    found.note("torch_cuda", version or "none")
    if not version:
        raise kit.Wrong("torch was built without CUDA")
    major = version.partition(".")[0]
    if probe.toolkit:
        wanted = probe.toolkit.partition(".")[0]
        found.require(major == wanted, f"torch is built for CUDA {version}, the lock names {probe.toolkit}")
    path = home_of("cudaRuntimeGetVersion")
    found.note("runtime", path or "none")
    found.require(
        not path or probe.has(path),
        f"the CUDA runtime that symbols are taken from is {path}, not the environment's",
    )


def home_of(symbol: str) -> str:
    """The file that a symbol of this process is found in; empty if none of the global ones has it."""

    class Info(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("at", ctypes.c_void_p),
        )

    everything = ctypes.CDLL(None)
    try:
        address = ctypes.cast(getattr(everything, symbol), ctypes.c_void_p)
    except AttributeError:
        return ""
    info = Info()
    return os.fsdecode(info.file) if everything.dladdr(address, ctypes.byref(info)) and info.file else ""


def _has(module: str) -> bool:
    from importlib.machinery import PathFinder

    return PathFinder.find_spec(module, sys.path) is not None


if __name__ == "__main__":
    kit.main(ABOUT, cases)
