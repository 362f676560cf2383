"""The third helping for servers with GPUs, as recipes: libraries of two CUDAs, drivers, variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.diagnose import recipes
from benchmarks.diagnose.case import Built, Case
from benchmarks.diagnose.case import recipe as case
from benchmarks.diagnose.listed import install
from benchmarks.diagnose.making import edit, replace, site, uninstall
from tests.support.tiny_elf import Wanted, tiny_library
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.diagnose.making import Maker

NVIDIA = "py3-none-manylinux2014_x86_64"


def _cudnn(folder: Path, major: int) -> Path:
    """CuDNN of two CUDAs lies at one path."""
    library = tiny_library(soname="libcudnn.so.9", exports=[f"cudnnCreate{major}", "cudnnCreate"])
    name = f"nvidia-cudnn-cu{major}"
    return make_wheel(folder, name, "9.13.0.50", {"nvidia/cudnn/lib/libcudnn.so.9": library}, tag=NVIDIA)


def _nccl(folder: Path, version: str, *exports: str) -> Path:
    library = tiny_library(soname="libnccl.so.2", exports=["ncclAllReduce", *exports])
    return make_wheel(folder, "nvidia-nccl-cu13", version, {"nvidia/nccl/lib/libnccl.so.2": library}, tag=NVIDIA)


def _with(maker: Maker, folder: Path, soname: str, where: str, symbols: list[str], requires: str) -> Path:
    """A venv with torch, whose `libtorch_cuda.so` needs one more library of NVIDIA."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels)])
    library = tiny_library(
        soname="libtorch_cuda.so", needed=["libc10.so", soname], rpath=f"$ORIGIN:$ORIGIN/../../nvidia/{where}/lib",
        undefined=[Wanted(symbol) for symbol in symbols],
    )  # fmt: skip
    code = "import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'lib', 'libtorch_cuda.so'))\n"
    beside = make_wheel(
        wheels, "torch-cuda-part", "2.11.0", {"torch/lib/libtorch_cuda.so": library, "torch/cuda_part.py": code},
        tag=recipes.TAG, requires=[requires],
    )  # fmt: skip
    maker.wheel(prefix, beside)
    return prefix


def _two_cudnn(maker: Maker, folder: Path) -> Built:
    prefix = _with(maker, folder, "libcudnn.so.9", "cudnn", ["cudnnCreate13"], "nvidia-cudnn-cu13==9.13.0.50")
    maker.wheel(prefix, _cudnn(folder, 13))
    maker.wheel(prefix, _cudnn(folder, 12))
    return Built(prefix=prefix, library="torch/lib/libtorch_cuda.so")


def _cudnn_taken_along(maker: Maker, folder: Path) -> Built:
    """Both were there, and the other one was uninstalled: with it went the file that both have."""
    built = _two_cudnn(maker, folder)
    uninstall(built.prefix, "nvidia_cudnn_cu12")
    return built


def _old_nccl(maker: Maker, folder: Path) -> Built:
    prefix = _with(maker, folder, "libnccl.so.2", "nccl", ["ncclCommWindowRegister"], "nvidia-nccl-cu13==2.28.9")
    maker.wheel(prefix, _nccl(folder, "2.19.3"))
    return Built(prefix=prefix, library="torch/lib/libtorch_cuda.so")


def _no_runtime(maker: Maker, folder: Path) -> Built:
    prefix = install(maker, folder, [recipes.torch(folder / "wheels", "2.9.1", cuda="12.8")])
    uninstall(prefix, "nvidia_cuda_runtime_cu12")
    return Built(prefix=prefix, library="torch/lib/libc10.so")


def _leftovers(maker: Maker, folder: Path) -> Built:
    """What an older torch required stays behind for ever, and hurts nobody."""
    wheels = folder / "wheels"
    rest = [
        recipes.cuda_runtime(wheels, 12),
        make_wheel(
            wheels, "nvidia-cublas-cu12", "12.8.4.1",
            {"nvidia/cublas/lib/libcublas.so.12": tiny_library(soname="libcublas.so.12")}, tag=NVIDIA,
        ),
        make_wheel(
            wheels, "nvidia-nvjitlink-cu12", "12.8.93",
            {"nvidia/nvjitlink/lib/libnvJitLink.so.12": tiny_library(soname="libnvJitLink.so.12")}, tag=NVIDIA,
        ),
    ]  # fmt: skip
    prefix = install(maker, folder, [*rest, recipes.torch(wheels), recipes.vision(wheels), recipes.kernel(wheels)])
    return Built(prefix=prefix)


def _minor_labels(maker: Maker, folder: Path) -> Built:
    """Two minors of one CUDA go together."""
    wheels = folder / "wheels"
    torch = recipes.torch(wheels, "2.9.1", cuda="12.6")
    return Built(
        prefix=install(maker, folder, [torch, recipes.vision(wheels, "0.24.1", cuda="12.8", of_torch="2.9.1")])
    )


def _nightly(maker: Maker, folder: Path) -> Built:
    """A nightly torch, which requirements of releases accept."""
    wheels = folder / "wheels"
    version = "2.12.0.dev20261101"
    user = make_wheel(wheels, "speedup", "1.10", {"speedup/__init__.py": "import torch\n"}, requires=["torch>=2.0.0"])
    vision = recipes.vision(wheels, "0.27.0.dev20261101", of_torch=version)
    return Built(prefix=install(maker, folder, [recipes.torch(wheels, version), vision, user]))


def _cpu_vision(maker: Maker, folder: Path) -> Built:
    """Torchvision of the index for CPUs, beside torch for CUDA: it imports, and its operators know no GPU."""
    wheels = folder / "wheels"
    files: dict[str, bytes | str] = {
        "torchvision/__init__.py": "import torch\nfrom torchvision import extension, ops\n",
        "torchvision/extension.py": "import os\nimport torch\ntorch.ops.load_library(os.path.join(os.path.dirname(__file__), '_C.so'))\n",
        "torchvision/ops.py": "def nms():\n    raise NotImplementedError(\"Could not run 'torchvision::nms' with arguments from "
        "the 'CUDA' backend. This could be because the operator doesn't exist for this backend\")\n",
        "torchvision/version.py": "__version__ = '0.26.0+cpu'\ncuda = None\n",
        "torchvision/_C.so": tiny_library(
            needed=["libc10.so", "libtorch.so"], undefined=[Wanted(recipes.CHECK_NEW, weak=True)]
        ),
    }
    vision = make_wheel(wheels, "torchvision", "0.26.0+cpu", files, tag=recipes.TAG, requires=["torch==2.11.0"])
    user = make_wheel(
        wheels, "detector", "1.0", {"detector/__init__.py": "import torchvision\ntorchvision.ops.nms()\n"}
    )
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), vision, user]))


def _cpu_torch(maker: Maker, folder: Path) -> Built:
    """Torch of the index for CPUs was installed over that for CUDA."""
    wheels = folder / "wheels"
    torch = make_wheel(
        wheels, "torch", "2.11.0+cpu",
        {"torch/__init__.py": recipes._TORCH,  # noqa: SLF001
         "torch/version.py": "__version__ = '2.11.0+cpu'\ndebug = False\ncuda = None\n",
         "torch/lib/libtorch_global_deps.so": tiny_library(soname="libtorch_global_deps.so"),
         "torch/lib/libc10.so": tiny_library(soname="libc10.so", exports=[recipes.STABLE]),
         "torch/lib/libtorch.so": tiny_library(soname="libtorch.so", needed=["libc10.so"], rpath="$ORIGIN"),
         f"torch/_C.{recipes.SUFFIX}": tiny_library(needed=["libtorch.so"], rpath="$ORIGIN/lib", exports=["PyInit__C"])},
        tag=recipes.TAG,
    )  # fmt: skip
    return Built(
        prefix=install(maker, folder, [torch, recipes.kernel(wheels)]), library="sgl_kernel/common_ops.abi3.so"
    )


def smi(folder: Path, driver: str, compute: str = "9.0") -> str:
    """A PATH with an `nvidia-smi` that tells of a driver and a GPU."""
    tools = folder / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    program = tools / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '0, NVIDIA H100, {compute}, 81559, {driver}'\n", encoding="utf-8")
    program.chmod(0o755)
    return f"{tools}:{os.environ.get('PATH', os.defpath)}"


def says(folder: Path, name: str, text: str) -> Path:
    """A package that asks torch for a GPU and is told so."""
    return make_wheel(
        folder,
        name,
        "1.0",
        {f"{name}/__init__.py": f"import torch\nraise RuntimeError({text!r})\n"},
        requires=["torch"],
    )


def _old_driver(maker: Maker, folder: Path) -> Built:
    text = (
        "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading and "
        "installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
    )
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), says(wheels, "serving", text)])
    return Built(prefix=prefix, environ={"PATH": smi(folder, "550.54.15")})


def _hidden_devices(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), says(wheels, "serving", "No CUDA GPUs are available")])
    return Built(prefix=prefix, environ={"PATH": smi(folder, "580.95.05"), "CUDA_VISIBLE_DEVICES": "2"})


def _stub_driver(maker: Maker, folder: Path) -> Built:
    """The stub of the driver that a toolkit has for its linker, found first."""
    wheels = folder / "wheels"
    stubs = folder / "usr/local/cuda/lib64/stubs"
    stubs.mkdir(parents=True)
    for name in ("libcuda.so", "libcuda.so.1"):
        (stubs / name).write_bytes(tiny_library(soname="libcuda.so.1", exports=["cuInit"]))
    text = "CUDA driver error: CUDA driver is a stub library"
    prefix = install(maker, folder, [recipes.torch(wheels), says(wheels, "serving", text)])
    return Built(prefix=prefix, environ={"PATH": smi(folder, "580.95.05"), "LD_LIBRARY_PATH": os.fspath(stubs)})


def _path_without_effect(maker: Maker, folder: Path) -> Built:
    """LD_LIBRARY_PATH names another runtime, and torch's RPATH goes before it: nothing is wrong."""
    wheels = folder / "wheels"
    decoy = folder / "usr/local/cuda/lib64"
    decoy.mkdir(parents=True)
    (decoy / "libcudart.so.13").write_bytes(recipes.cudart(13, exports=["cudaFree"]))
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels)])
    return Built(prefix=prefix, environ={"LD_LIBRARY_PATH": os.fspath(decoy)})


def _no_toolkit(maker: Maker, folder: Path) -> Built:
    """CUDA_HOME names a toolkit that was removed; what is compiled at the first use needs it."""
    wheels = folder / "wheels"
    code = (
        "import os, subprocess, torch\n"
        "subprocess.check_output([os.path.join(os.environ['CUDA_HOME'], 'bin', 'nvcc'), '--version'])\n"
    )
    gemm = make_wheel(wheels, "jitgemm", "2.1", {"jitgemm/__init__.py": code}, requires=["torch"])
    prefix = install(maker, folder, [recipes.torch(wheels), gemm])
    return Built(prefix=prefix, environ={"CUDA_HOME": os.fspath(folder / "usr/local/cuda-13.0")})


def _lock_step(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    code = (
        "import flashinfer_cubin\nif flashinfer_cubin.__version__ != '0.6.13':\n    raise RuntimeError('flashinfer-cubin version '\n"
        "        f'({flashinfer_cubin.__version__}) does not match flashinfer version (0.6.13)')\n"
    )
    python = make_wheel(wheels, "flashinfer-python", "0.6.13", {"flashinfer/__init__.py": code})
    cubin = make_wheel(
        wheels, "flashinfer-cubin", "0.6.12", {"flashinfer_cubin/__init__.py": "__version__ = '0.6.12'\n"}
    )
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), python, cubin]))


def _bindings(maker: Maker, folder: Path) -> Built:
    """The metapackage of CUDA's bindings is of one CUDA, the bindings of another."""
    wheels = folder / "wheels"
    meta = make_wheel(wheels, "cuda-python", "13.0.3", {}, requires=["cuda-bindings~=13.0.3"])
    bindings = make_wheel(wheels, "cuda-bindings", "12.9.4", {"cuda/bindings/__init__.py": "", "cuda/cuda.py": ""})
    user = make_wheel(
        wheels,
        "dsl-x",
        "4.4",
        {"dsl_x/__init__.py": "from cuda.bindings import driver\n"},
        requires=["cuda-python>=13"],
    )
    return Built(prefix=install(maker, folder, [meta, bindings, user]))


def _two_tritons(maker: Maker, folder: Path) -> Built:
    """Torch's own build of triton beside triton."""
    wheels = folder / "wheels"
    files = {"triton/__init__.py": "from triton.compiler import compile_it\n"}
    nightly = make_wheel(
        wheels, "pytorch-triton", "3.5.1", {**files, "triton/compiler.py": "def compile_it():\n    return 1\n"}
    )
    usual = make_wheel(wheels, "triton", "3.6.0", {**files, "triton/compiler.py": "def compile_it(x):\n    return 2\n"})
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), nightly, usual]))


def _labelled_pin(maker: Maker, folder: Path) -> Built:
    """A pin on `2.11.0+cu130`, and the wheel of the usual index, which is the same build without the label."""
    wheels = folder / "wheels"
    user = make_wheel(
        wheels, "pinned", "1.0", {"pinned/__init__.py": "import torch\n"}, requires=["torch==2.11.0+cu130"]
    )
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), user]))


def _half_copied_torch(maker: Maker, folder: Path) -> Built:
    """One library of torch was copied from a venv with another release, with the same CUDA."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels), recipes.kernel(wheels)])
    replace(
        site(prefix) / "torch/lib/libc10.so",
        tiny_library(
            soname="libc10.so", needed=["libcudart.so.13"], rpath="$ORIGIN:$ORIGIN/../../nvidia/cu13/lib",
            exports=[recipes.STABLE],
        ),
    )  # fmt: skip
    return Built(prefix=prefix, library="sgl_kernel/common_ops.abi3.so")


def _edited_and_path(maker: Maker, folder: Path) -> Built:
    """Two edits that are wanted, variables that do no harm, and the one thing that is wrong: a kernel package is gone."""
    wheels = folder / "wheels"
    framework = make_wheel(
        wheels, "serve-x", "0.5.11",
        {"serve_x/__init__.py": "from serve_x import layers\n", "serve_x/layers.py": "from serve_x import attention\nx = 1\n",
         "serve_x/attention.py": "import sgl_kernel\nx = 1\n"},
        requires=["torch", "sglang-kernel==0.4.2"],
    )  # fmt: skip
    prefix = install(maker, folder, [recipes.torch(wheels), framework])
    edit(site(prefix) / "serve_x/layers.py", "x = 1", "x = 2")
    edit(site(prefix) / "serve_x/attention.py", "x = 1", "x = 2")
    return Built(
        prefix=prefix, environ={"CUDA_HOME": "/usr/local/cuda-12.4", "LD_LIBRARY_PATH": "/usr/local/cuda-12.4/lib64"}
    )


CASES: list[Case] = [
    case("N70", "cuDNN of two CUDAs at one path", "owned-twice", "nvidia-cudnn-cu12 nvidia-cudnn-cu13", _two_cudnn, run="torch.cuda_part"),
    case("N71", "one of the two was uninstalled, and took the file along", "lost-package missing-file", "nvidia-cudnn-cu13",
         _cudnn_taken_along, run="torch.cuda_part"),
    case("N72", "NCCL older than torch requires", "requires-dist", "nvidia-nccl-cu13 torch-cuda-part", _old_nccl, run="torch.cuda_part"),
    case("N73", "the runtime of CUDA was uninstalled", "requires-dist missing-library", "nvidia-cuda-runtime-cu12", _no_runtime, run="torch"),
    case("N74", "torchvision for CPUs beside torch for CUDA", "cpu-build cuda-major-mismatch", "torchvision", _cpu_vision,
         run="detector", remark="+cpu"),
    case("N75", "torch for CPUs below kernels for CUDA", "cpu-build cuda-major-mismatch missing-library", "torch sglang-kernel", _cpu_torch,
         run="sgl_kernel", remark="+cpu"),
    case("N76", "the driver is too old for torch's CUDA", "driver-too-old", "torch", _old_driver, run="serving"),
    case("N77", "CUDA_VISIBLE_DEVICES hides every GPU", "devices-hidden", "", _hidden_devices, run="serving", remark="CUDA_VISIBLE_DEVICES"),
    case("N78", "a stub of the driver in LD_LIBRARY_PATH", "library-path", "", _stub_driver, run="serving", remark="stubs"),
    case("N79", "CUDA_HOME names a toolkit that is gone", "cuda-home", "", _no_toolkit, run="jitgemm"),
    case("N80", "parts of flashinfer in two versions", "lock-step", "flashinfer-cubin flashinfer-python", _lock_step, run="flashinfer"),
    case("N81", "CUDA's bindings of another CUDA than their metapackage", "requires-dist", "cuda-bindings cuda-python", _bindings, run="dsl_x"),
    case("N82", "triton beside pytorch-triton", "owned-twice", "triton pytorch-triton", _two_tritons, run="triton", fails=False),
    case("N83", "one library of torch from another release", "edited-file torch-abi-mismatch version-inside", "torch",
         _half_copied_torch, run="sgl_kernel", remark="libc10.so"),
    case("N84", "wanted edits and idle variables, and a package that is gone", "requires-dist module-missing", "sglang-kernel",
         _edited_and_path, run="serve_x", remark="serve_x/layers.py"),
    case("H10", "leftovers of CUDA 12 beside torch for CUDA 13", "", "", _leftovers, run="sgl_kernel", fails=False),
    case("H11", "two minors of one CUDA", "", "", _minor_labels, run="torchvision", fails=False),
    case("H12", "a nightly torch", "", "", _nightly, run="speedup", fails=False),
    case("H13", "LD_LIBRARY_PATH that a RPATH goes before", "", "", _path_without_effect, run="torchvision", fails=False),
    case("H14", "a pin with the label that the usual wheel lacks", "", "", _labelled_pin, run="pinned", fails=False),
]  # fmt: skip
