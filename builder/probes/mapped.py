"""What is mapped into a process: which libraries of CUDA, from where, and in which order the linker loaded them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CUDA_NAME = re.compile(
    r"lib(?:cudart|cublas|cublasLt|nvblas|cudnn|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cusparseLt|nccl|nvrtc|nvJitLink|nvjpeg"
    r"|nvshmem|cupti|cufile|npp[a-z]*|nvToolsExt|nvperf|nvfatbin|nvptxcompiler|nvvm|torch|c10|caffe2)(?:[-_.][A-Za-z0-9_.+-]*)?\.so"
)
_DRIVER_NAME = re.compile(r"lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[a-z0-9-]+)\.so")


def is_cuda_library(name: str) -> bool:
    """Whether a file is called like a library of CUDA, cuDNN, NCCL or torch; those of the driver are none."""
    return _CUDA_NAME.match(name) is not None and _DRIVER_NAME.match(name) is None


@dataclass(frozen=True)
class Mapped:
    """Libraries of CUDA that a process has mapped."""

    inside: tuple[str, ...]
    """Paths within the environment."""

    foreign: tuple[str, ...]
    """Paths outside, beside the driver's."""

    driver: tuple[str, ...]


def mapped_libraries(maps: str, roots: Sequence[str]) -> Mapped:
    """Sort the libraries of CUDA in a table of mappings.

    Args:
        maps: As in `/proc/self/maps`.
        roots: Folders of the environment; they count as they are and resolved.
    """
    real = [f"{each.rstrip('/')}/" for root in roots if root for each in (root, os.path.realpath(root))]
    inside: set[str] = set()
    foreign: set[str] = set()
    driver: set[str] = set()
    for line in maps.splitlines():
        path = line[line.find("/") :].removesuffix(" (deleted)") if "/" in line else ""
        name = path.rpartition("/")[2]
        if _DRIVER_NAME.match(name):
            driver.add(path)
        elif _CUDA_NAME.match(name):
            (inside if any(path.startswith(root) for root in real) else foreign).add(path)
    return Mapped(inside=tuple(sorted(inside)), foreign=tuple(sorted(foreign)), driver=tuple(sorted(driver)))


def load_order() -> list[str]:
    """The shared objects of this process in the order in which the linker loaded them, which is that of a search for a symbol."""
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))

    names: list[str] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)

    def note(info: Any, _size: int, _data: Any) -> int:
        names.append(os.fsdecode(info.contents.name or b""))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(kind(note), None)
    return names


def shadowed(foreign: Iterable[str], order: Sequence[str], inside: Iterable[str]) -> list[str]:
    """Those of the foreign libraries whose namesake of the environment was loaded before them: no symbol is taken from these.

    sgl_kernel loads the CUDA runtime of a toolkit on the host by its path, after torch has loaded the environment's.
    """
    first: dict[str, str] = {}
    for path in order:
        first.setdefault(_soname(path), path)
    own = {os.path.realpath(path) for path in inside}
    return [path for path in foreign if os.path.realpath(first.get(_soname(path), path)) in own]


def _soname(path: str) -> str:
    # A path may be resolved to `libcudart.so.13.0.96`: what counts is `libcudart.so.13`.
    name = path.rpartition("/")[2]
    known = re.match(r".+?\.so(?:\.\d+)?", name)
    return known[0] if known else name


def unloadable_library(site: str, package: str) -> str:
    """What the linker says of a package's first library that cannot be loaded: packages swallow it and fail with something else."""
    import ctypes

    folder = Path(site, package)
    for path in sorted(folder.glob("*.so")) if site else ():
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            return f"{package}/{path.name} cannot be loaded: {error}"
    return ""
