"""Wheels that are written here, in the form of the real ones: torch and what is built on it, small enough for a test.

Their libraries are real ones for `ld.so`, so that an import fails as the real one fails, with the words of the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.diagnose.making import PYTHON_MINOR
from tests.support.tiny_elf import Wanted, tiny_library
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TAG = f"cp{PYTHON_MINOR.replace('.', '')}-cp{PYTHON_MINOR.replace('.', '')}-manylinux_2_17_x86_64"
SUFFIX = f"cpython-{PYTHON_MINOR.replace('.', '')}-x86_64-linux-gnu.so"
CHECK_NEW = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
STABLE = "torch_library_impl"
CHECK_OLD = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"

_TORCH = """\
import ctypes
import os
from torch.version import __version__

class _Ops:
    def __init__(self):
        self.loaded = set()

    def load_library(self, path):
        ctypes.CDLL(path)
        self.loaded.add(os.path.basename(os.path.dirname(path)))

ops = _Ops()
_lib = os.path.join(os.path.dirname(__file__), "lib")
for _name in ("libtorch_global_deps.so", "libc10.so", "libtorch.so"):
    ctypes.CDLL(os.path.join(_lib, _name), mode=ctypes.RTLD_GLOBAL)
"""
_VISION_EXTENSION = """\
import os
import torch

try:
    torch.ops.load_library(os.path.join(os.path.dirname(__file__), "_C.so"))
except (ImportError, OSError):
    pass
"""
_VISION_OPS = """\
import torch

if "torchvision" not in torch.ops.loaded:
    raise RuntimeError("operator torchvision::nms does not exist")
"""
_TRIED = """\
import logging
logger = logging.getLogger(__name__)
try:
    import torchvision
except (ImportError, RuntimeError) as error:
    logger.info("no images: %s", error)
    torchvision = None
"""
_GUESS = """\
from sgl import images
if images.torchvision is None:
    raise ImportError("cannot load the image processor: is pybase64 missing? Try `pip install pybase64`")
"""
_KERNEL = """\
import os
import torch

_path = os.path.join(os.path.dirname(__file__), "common_ops.abi3.so")
try:
    torch.ops.load_library(_path)
except Exception as error:
    raise ImportError("[{module}] could not load any common_ops library") from error
"""


def torch(folder: Path, version: str = "2.11.0", *, cuda: str = "13.0", runpath: bool = False) -> list[Path]:
    """Torch for a CUDA, and the runtime that it requires.

    Args:
        folder: Where the wheels go.
        version: Of torch.
        cuda: Its CUDA.
        runpath: Whether its libraries have a RUNPATH, before which LD_LIBRARY_PATH goes, instead of a RPATH.
    """
    major = int(cuda.partition(".")[0])
    place = "cu13" if major >= 13 else "cuda_runtime"
    search = f"$ORIGIN:$ORIGIN/../../nvidia/{place}/lib"
    rpath, path = (None, search) if runpath else (search, None)
    exports = [CHECK_OLD] if version.startswith("2.9") else [CHECK_NEW, STABLE]
    runtime = runtime_name(major)
    wheel = make_wheel(
        folder,
        "torch",
        version,
        {
            "torch/__init__.py": _TORCH,
            "torch/version.py": f"__version__ = '{version}+cu{cuda.replace('.', '')}'\ndebug = False\ncuda = '{cuda}'\n",
            "torch/lib/libtorch_global_deps.so": tiny_library(
                soname="libtorch_global_deps.so", needed=[f"libcudart.so.{major}"], rpath=rpath, runpath=path
            ),
            "torch/lib/libc10.so": tiny_library(
                soname="libc10.so",
                needed=[f"libcudart.so.{major}"],
                rpath=rpath,
                runpath=path,
                exports=exports,
                undefined=[Wanted("cudaMalloc", version=f"libcudart.so.{major}", library=f"libcudart.so.{major}")],
            ),
            "torch/lib/libtorch.so": tiny_library(
                soname="libtorch.so", needed=["libc10.so"], rpath=rpath, runpath=path
            ),
            f"torch/_C.{SUFFIX}": tiny_library(needed=["libtorch.so"], rpath="$ORIGIN/lib", exports=["PyInit__C"]),
        },
        tag=TAG,
        requires=[f"{runtime}=={_runtime_version(major)}"],
    )
    return [wheel, cuda_runtime(folder, major)]


def runtime_name(major: int) -> str:
    """The package that has NVIDIA's runtime of a CUDA."""
    return "nvidia-cuda-runtime" if major >= 13 else f"nvidia-cuda-runtime-cu{major}"


def _runtime_version(major: int) -> str:
    return "13.0.96" if major >= 13 else "12.8.90"


def cuda_runtime(folder: Path, major: int) -> Path:
    """NVIDIA's runtime."""
    soname = f"libcudart.so.{major}"
    place = "cu13" if major >= 13 else "cuda_runtime"
    return make_wheel(
        folder,
        runtime_name(major),
        _runtime_version(major),
        {f"nvidia/{place}/lib/{soname}": cudart(major)},
        tag="py3-none-manylinux2014_x86_64",
    )


def cudart(major: int, *, exports: Sequence[str] = ("cudaMalloc", "cudaFree")) -> bytes:
    """A `libcudart.so`; its functions have versions as the real one's have."""
    soname = f"libcudart.so.{major}"
    return tiny_library(soname=soname, exports=[f"{name}@{soname}" for name in exports])


def vision(folder: Path, version: str = "0.26.0", *, cuda: str = "13.0", of_torch: str = "2.11.0") -> Path:
    """Torchvision for a torch."""
    major = cuda.partition(".")[0]
    return make_wheel(
        folder,
        "torchvision",
        version,
        {
            "torchvision/__init__.py": "import torch\nfrom torchvision import extension\nfrom torchvision import _meta_registrations\n",
            "torchvision/extension.py": _VISION_EXTENSION,
            "torchvision/_meta_registrations.py": _VISION_OPS,
            "torchvision/version.py": f"__version__ = '{version}+cu{cuda.replace('.', '')}'\ngit_version = 'x'\n",
            "torchvision/_C.so": tiny_library(
                needed=["libc10.so", "libtorch.so", f"libcudart.so.{major}"],
                undefined=[
                    Wanted(CHECK_OLD if of_torch.startswith("2.9") else CHECK_NEW),
                    Wanted("cudaMalloc", version=f"libcudart.so.{major}", library=f"libcudart.so.{major}"),
                ],
            ),
        },
        tag=TAG,
        requires=[f"torch=={of_torch}"],
    )


def kernel(
    folder: Path,
    name: str = "sglang-kernel",
    version: str = "0.4.2",
    *,
    module: str = "sgl_kernel",
    cuda: int = 13,
    needed: Sequence[str] = (),
    undefined: Sequence[Wanted] = (),
    check: str = CHECK_NEW,
    requires: Sequence[str] = (),
    more: Mapping[str, bytes | str] | None = None,
    machine: str = "x86_64",
    runpath: str | None = None,
) -> Path:
    """A wheel with one library of kernels that is built on torch, and requires nothing, as the real ones are."""
    library = tiny_library(
        needed=["libtorch.so", "libc10.so", f"libcudart.so.{cuda}", *needed],
        undefined=[
            Wanted(check),
            Wanted("cudaMalloc", version=f"libcudart.so.{cuda}", library=f"libcudart.so.{cuda}"),
            *undefined,
        ],
        machine=machine,
        runpath=runpath,
    )
    files: dict[str, bytes | str] = {
        f"{module}/__init__.py": _KERNEL.format(module=module),
        f"{module}/common_ops.abi3.so": library,
        **(more or {}),
    }
    return make_wheel(folder, name, version, files, tag="cp310-abi3-manylinux2014_x86_64", requires=requires)


def sgl(folder: Path, *, base64: str = "pybase64", swallow: bool = True) -> list[Path]:
    """A framework above torchvision and pybase64, whose own message is a wrong guess, and pybase64."""
    framework = make_wheel(
        folder,
        "sgl",
        "0.5.11",
        {
            "sgl/__init__.py": "from sgl import server\n",
            "sgl/server.py": "from sgl import images, utils\n",
            "sgl/images.py": _TRIED if swallow else "import torchvision\n",
            "sgl/utils.py": f"{_GUESS if swallow else ''}import {base64}\n",
            "sgl/layers.py": "x = 1\n",
            "sgl/graph.py": "x = 1\n",
        },
        requires=["torch==2.11.0", "torchvision", "pybase64"],
    )
    return [framework, pybase64(folder)]


def pybase64(folder: Path) -> Path:
    """A package that is suspected."""
    return make_wheel(
        folder, "pybase64", "1.4.3", {"pybase64/__init__.py": "b64encode = None\n", "pybase64/_fallback.py": ""}
    )
