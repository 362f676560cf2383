"""What is known of CUDA's libraries and of the packages that are built on them.

Facts of the field, each with its source, in one place. Nothing here is about one environment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.binaries import Binary

FIRST_MAJOR = 11
"""Of CUDA, that is still met; smaller numbers in a soname are versions of the library itself."""

_MAJOR_IN_SONAME = re.compile(
    r"lib(cudart|nvrtc|nvrtc-builtins|cublas|cublasLt|nvJitLink|cupti|nvjpeg|npp[a-z]+|nvfatbin)"
    r"(?:[.-][0-9a-f]{8,})?\.so\.([0-9]+)(?:\.[0-9]+)*"
)
"""Libraries of the toolkit whose soname carries the CUDA major (as in the wheels of CUDA 12 and 13). Those of the others carry the library's own
version: cuFFT is `libcufft.so.12` in CUDA 13 and `libcufft.so.11` in CUDA 12."""

TOOLKIT_LIBRARY = re.compile(
    r"lib(cudart|nvrtc|nvrtc-builtins|cublas|cublasLt|nvJitLink|cupti|nvjpeg|npp[a-z]+|nvfatbin|cufft|cufftw|curand"
    r"|cusolver|cusolverMg|cusparse|cusparseLt|cudnn[a-z_]*|nccl|nvshmem[a-z_]*|cufile[a-z_]*|nvToolsExt|cudss)"
    r"\.so(?:\.[0-9]+)*"
)
"""Sonames that come from wheels of NVIDIA and from no host."""

_MAJOR_IN_LABEL = re.compile(r"\+cu([0-9]{2})([0-9]{1,2})\b")
_TORCH_LIBRARY = re.compile(r"lib(torch|torch_[a-z_]+|c10|c10_cuda|shm)\.so")
_TORCH_NAMESPACE = re.compile(r"_Z\w*?(?<![0-9])(?:3c10|2at|5torch|6caffe2)(?=[0-9A-Z])")
_TORCH_FUNCTION = re.compile(r"aoti_torch_|torch_|THP")

TORCH_PRELOADS = (
    ("cublas", "libcublasLt.so.*[0-9]"),
    ("cublas", "libcublas.so.*[0-9]"),
    ("cudnn", "libcudnn.so.*[0-9]"),
    ("cuda_nvrtc", "libnvrtc.so.*[0-9]"),
    ("cuda_nvrtc", "libnvrtc-builtins.so.*[0-9]"),
    ("cuda_runtime", "libcudart.so.*[0-9]"),
    ("cuda_cupti", "libcupti.so.*[0-9]"),
    ("cufft", "libcufft.so.*[0-9]"),
    ("curand", "libcurand.so.*[0-9]"),
    ("nvjitlink", "libnvJitLink.so.*[0-9]"),
    ("cusparse", "libcusparse.so.*[0-9]"),
    ("cusparselt", "libcusparseLt.so.*[0-9]"),
    ("cusolver", "libcusolver.so.*[0-9]"),
    ("nccl", "libnccl.so.*[0-9]"),
    ("nvshmem", "libnvshmem_host.so.*[0-9]"),
    ("cufile", "libcufile.so.*[0-9]"),
    ("nvtx", "libnvToolsExt.so.*[0-9]"),
)
"""Folder below `nvidia/` and pattern of the libraries that `import torch` loads once CUDA's runtime is loaded, in its order (torch 2.11,
`_preload_cuda_deps`; torch 2.8 to 2.10 have the same libraries). Packages built on torch live off this: sglang-kernel needs `libnvrtc.so.13` and
says nowhere where it is."""

TORCH_PARTNERS = {
    "2.8": {"torchvision": "0.23", "torchaudio": "2.8", "triton": "3.4"},
    "2.9": {"torchvision": "0.24", "torchaudio": "2.9", "triton": "3.5"},
    "2.10": {"torchvision": "0.25", "torchaudio": "2.10", "triton": "3.6"},
    "2.11": {"torchvision": "0.26", "torchaudio": "2.11", "triton": "3.6"},
    "2.12": {"torchvision": "0.27", "triton": "3.7"},
    "2.13": {"torchvision": "0.28", "triton": "3.7"},
    "2.14": {"torchvision": "0.29"},
}
"""Minor version of torch -> the releases that were built with it, from the METADATA of their wheels."""


BUILDS_FOR_CUDA = {
    "torch": {12: "torch 2.10 or earlier", 13: "torch 2.11 or later"},
    "sgl-kernel": {12: "sgl-kernel 0.3.21", 13: "sglang-kernel 0.4.2 or later, its successor"},
    "sglang-kernel": {12: "sglang-kernel 0.4.0 or sgl-kernel 0.3.21", 13: "sglang-kernel 0.4.2 or later"},
}
"""Package -> CUDA major -> the releases that are built for it, as the wheels on PyPI show (measured on 2026-11-30)."""


LOADED_AFTER_ITS_LIBRARY = {
    "cuda-core": "cuda.core opens torch's library for everybody before it imports its bridge to tensors",
}
"""Package -> why its extensions may bind to symbols of a library that they are not linked against."""


class CudaTrace(NamedTuple):
    """One thing that says for which CUDA something was built."""

    major: int
    release: str
    """As precise as the trace is: `12.8.93`, `12.8`, `12`."""

    text: str
    """For a person: `torchvision/_C.so needs libcudart.so.12`."""


def major_of_soname(soname: str) -> int | None:
    """The CUDA major that a soname of the toolkit carries; None if it carries none.

    Example:
        >>> major_of_soname("libcudart.so.12"), major_of_soname("libcufft.so.12")
        (12, None)
    """
    found = _MAJOR_IN_SONAME.fullmatch(soname)
    return int(found[2]) if found and int(found[2]) >= FIRST_MAJOR else None


def traces_of_binary(binary: Binary, shown: str) -> tuple[CudaTrace, ...]:
    """What a binary itself says: the libraries that it needs, and the notes in its GPU code.

    Args:
        binary: Which.
        shown: Its path, as a person should see it.
    """
    found = []
    for soname in binary.needed:
        major = major_of_soname(soname)
        if major is not None:
            found.append(CudaTrace(major, str(major), f"{shown} needs {soname}"))
    for release in binary.gpu.releases if binary.gpu else ():
        text = f"{shown} has GPU code made by CUDA {release}"
        found.append(CudaTrace(int(release.partition(".")[0]), release, text))
    return tuple(found)


def trace_of_label(path: str, key: str, value: str) -> CudaTrace | None:
    """What an assignment in a `version.py` says: `'2.11.0+cu130'`, or `cuda = '13.0'`."""
    shown = f"{path} says `{key} = '{value}'`"
    found = _MAJOR_IN_LABEL.search(value)
    if found:
        return CudaTrace(int(found[1]), f"{int(found[1])}.{int(found[2])}", shown)
    if key == "cuda" and re.fullmatch(r"[0-9]{2}\.[0-9]{1,2}", value):
        return CudaTrace(int(value.partition(".")[0]), value, shown)
    return None


def trace_of_version(version: str, shown: str) -> CudaTrace | None:
    """What the local part of a version says: `2.11.0+cu130`."""
    found = _MAJOR_IN_LABEL.search(version)
    return CudaTrace(int(found[1]), f"{int(found[1])}.{int(found[2])}", f"{shown} says {version}") if found else None


def most_precise(traces: Iterable[CudaTrace]) -> str:
    """The release that the traces of one major agree on, as precisely as a person needs it: `12.8`, or `13`."""
    releases = sorted({".".join(trace.release.split(".")[:2]) for trace in traces}, key=lambda text: text.count("."))
    precise = [release for release in releases if "." in release]
    return precise[0] if len(set(precise)) == 1 else releases[0].partition(".")[0] if releases else ""


def is_torch_library(soname: str) -> bool:
    """Whether a soname is one of torch's own."""
    return _TORCH_LIBRARY.fullmatch(soname) is not None


def is_torch_symbol(name: str) -> bool:
    """Whether a symbol is one that torch would define."""
    return _TORCH_NAMESPACE.match(name) is not None or _TORCH_FUNCTION.match(name) is not None


def same_function(name: str) -> str:
    """The part of a mangled C++ name that stays when parameters change; empty if it has none.

    Example:
        >>> same_function("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib")
        '3c104cuda29c10_cuda_check_implementation'
    """
    start, end = _nested_name(name)
    return name[start:end]


def _nested_name(name: str) -> tuple[int, int]:
    """Where the names with their lengths begin and end in a mangled name."""
    found = re.match(r"_ZN[KVrRO]*", name)
    start = at = found.end() if found else len(name)
    while digits := re.match(r"[1-9][0-9]{0,3}", name[at : at + 4]):
        following = at + digits.end() + int(digits[0])
        if following > len(name):
            return len(name), len(name)
        at = following
    return start, at


def readable_symbol(name: str) -> str:
    """The qualified name in a mangled C++ name, without its parameters; the name as it is where it has none.

    Example:
        >>> readable_symbol("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib")
        'c10::cuda::c10_cuda_check_implementation'
    """
    at, end = _nested_name(name)
    parts = []
    while at < end:
        digits = re.match(r"[1-9][0-9]{0,3}", name[at : at + 4])
        length = int(digits[0]) if digits else 0
        at += len(digits[0]) if digits else end
        parts.append(name[at : at + length])
        at += length
    return "::".join(parts) if parts else name
