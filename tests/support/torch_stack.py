"""A small stack around torch in the form of the real one, for tests of how binaries fit together.

    make_closure([*torch_stack(), kernel("fastkernel", needed=["libtorch.so", "libcudart.so.12"])])

torch finds its own libraries by RPATH and NVIDIA's by opening them itself, and exports a few functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envspec.binaries import Binary, BinaryFacts, Label, Reference
from tests.support.facts import make_binary, make_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.facts import WheelFacts

CHECK_NEW = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
CHECK_OLD = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
DEFINE = "_ZNR5torch7Library4_defEON3c1014FunctionSchemaE"


def library(
    path: str, *, needed: Sequence[str] = (), exports: Sequence[str] = (), undefined: Sequence[str] = (), **more: Any
) -> Binary:
    """An object; `undefined` are names without a version."""
    return make_binary(
        path,
        needed=tuple(needed),
        exports="\n".join(exports),
        undefined=tuple(Reference(name, weak=False, version="", library="") for name in undefined),
        **more,
    )


def extension(path: str, *, exports: Sequence[str] = (), **more: Any) -> Binary:
    """An extension module, by what it exports."""
    stem = path.rpartition("/")[2].partition(".")[0]
    return library(path, exports=(*exports, f"PyInit_{stem}"), **more)


def wheel(
    name: str, version: str = "1.0", *, binaries: Sequence[Binary] = (), labels: Sequence[Label] = (), **more: Any
) -> WheelFacts:
    """A wheel with binaries, and with what its `version.py` says."""
    return make_facts(name, version, binaries=BinaryFacts(binaries=tuple(binaries), labels=tuple(labels)), **more)


def torch(version: str = "2.11.0", *, cuda: str = "13.0", exports: Sequence[str] = (CHECK_NEW, DEFINE)) -> WheelFacts:
    """A torch for a CUDA; for none if that is empty."""
    needs = (f"libcudart.so.{cuda.partition('.')[0]}",) if cuda else ()
    search = "$ORIGIN" if not cuda else f"$ORIGIN:$ORIGIN/../../nvidia/cu{cuda.partition('.')[0]}/lib"
    labels = [Label("torch/version.py", "cuda", cuda)] if cuda else []
    return wheel(
        "torch",
        version,
        labels=labels,
        binaries=[
            library("torch/lib/libtorch_global_deps.so", needed=needs, soname="libtorch_global_deps.so", rpath=search),
            library("torch/lib/libc10.so", needed=needs, soname="libc10.so", exports=exports, rpath=search),
            library("torch/lib/libtorch.so", needed=("libc10.so",), soname="libtorch.so", rpath=search),
            library(
                "torch/_C.cpython-312-x86_64-linux-gnu.so",
                needed=("libtorch.so",),
                rpath="$ORIGIN/lib",
                exports=("PyInit__C",),
            ),
        ],
    )


def cuda_runtime(major: int = 13, version: str = "13.0.96") -> WheelFacts:
    """NVIDIA's runtime where the wheels of that CUDA have it."""
    name, folder = (
        ("nvidia-cuda-runtime", "cu13") if major >= 13 else (f"nvidia-cuda-runtime-cu{major}", "cuda_runtime")
    )
    soname = f"libcudart.so.{major}"
    return wheel(
        name, version, binaries=[library(f"nvidia/{folder}/lib/{soname}", soname=soname, exports=("cudaMalloc",))]
    )


def torch_stack() -> tuple[WheelFacts, WheelFacts]:
    """torch 2.11.0 for CUDA 13.0, and the runtime that it needs."""
    return torch(), cuda_runtime()


def kernel(name: str = "fastkernel", version: str = "1.0", **more: Any) -> WheelFacts:
    """A wheel with one extension module that is built on torch, as sglang-kernel is: without a search path."""
    module = name.replace("-", "_")
    needed = more.pop("needed", ("libtorch.so", "libc10.so"))
    undefined = more.pop("undefined", ())
    return wheel(
        name, version, binaries=[extension(f"{module}/ops.abi3.so", needed=needed, undefined=undefined)], **more
    )
