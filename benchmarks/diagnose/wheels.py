"""Cases with real wheels, from the index or linked from an environment that envspec built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.diagnose.case import Built, Case
from benchmarks.diagnose.case import real as case
from benchmarks.diagnose.listed import COLLISION, MISMATCH
from benchmarks.diagnose.making import edit, remove, replace, site, uninstall
from tests.support.tiny_elf import tiny_library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.diagnose.making import Maker


def _c01(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.install(prefix, "torch==2.9.1")
    maker.link(prefix, "sglang-kernel", deps=False)
    return Built(prefix=prefix, library="sgl_kernel/sm90/common_ops.abi3.so")


def _c02(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "torch")
    maker.install(prefix, "sgl-kernel==0.3.21", deps=False)
    return Built(prefix=prefix, library="sgl_kernel/sm90/common_ops.abi3.so")


def _c03(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "torch", "numpy", "pillow")
    maker.install(prefix, "torchvision==0.24.1", deps=False)
    return Built(prefix=prefix, library="torchvision/_C.so")


def _c04(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.install(prefix, "torch==2.9.1")
    maker.link(prefix, "torchaudio", deps=False)
    return Built(prefix=prefix, library="torchaudio/lib/libtorchaudio.abi3.so")


def _c06(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "numpy", "typing-extensions", "cuda-python")
    maker.install(prefix, "nvidia-cutlass-dsl-libs-base==4.4.1", deps=False)
    maker.install(prefix, "nvidia-cutlass-dsl-libs-cu13==4.4.1", deps=False)
    return Built(prefix=prefix)


def _c07(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.install(prefix, "torch==2.9.1")
    maker.install(prefix, "sgl-kernel==0.3.21", deps=False)
    maker.install(prefix, "sglang-kernel==0.4.0", deps=False)
    return Built(prefix=prefix)


def _c08(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "numpy")
    maker.install(prefix, "opencv-python==4.12.0.88", "numpy<2.3")
    maker.install(prefix, "opencv-python-headless==4.12.0.88", deps=False)
    return Built(prefix=prefix)


def _c10(maker: Maker, folder: Path) -> Built:
    """Soundfile's own library is a file of the wheel; the one of a system without it is not there."""
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "torchcodec", "torch", "numpy")
    return Built(prefix=prefix, library="torchcodec/libtorchcodec_core7.so")


def _c24(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.install(prefix, "selenium==4.1.0", "urllib3<2", "setuptools<81")
    record = site(prefix) / "selenium-4.1.0.dist-info/RECORD"  # as the wheel has it: uv writes it anew, others do not
    replace(record, "".join(f"/{line}\n" for line in record.read_text(encoding="utf-8").splitlines()))
    return Built(prefix=prefix)


def _c30(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "timm", "pybase64")
    uninstall(prefix, "torchvision")
    maker.install(prefix, "torchvision==0.24.1", deps=False)
    return Built(prefix=prefix, library="torchvision/_C.so")


def _c31(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "torch", "numpy")
    decoy = folder / "usr/local/cuda/lib64"
    decoy.mkdir(parents=True)
    soname = "libnvJitLink.so.13"
    (decoy / soname).write_bytes(tiny_library(soname=soname, exports=[f"nvJitLinkVersion@{soname}"]))
    return Built(prefix=prefix, environ={"LD_LIBRARY_PATH": os.fspath(decoy)})


def _c38(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "transformers")
    remove(site(prefix) / "transformers/utils/hub.py")
    return Built(prefix=prefix)


def _c39(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.install(prefix, "fastapi==0.136.1", "uvicorn==0.47.0")
    return Built(prefix=prefix.rename(folder / "moved"))


def _other_minor(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.install(
        prefix,
        "--python-version",
        "3.11",
        "--python-platform",
        "x86_64-manylinux_2_28",
        "--target",
        os.fspath(site(prefix)),
        "numpy==2.3.5",
    )
    return Built(prefix=prefix)


def _other_cffi(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "cffi", "soundfile", "numpy")
    other = folder / "other"
    maker.install(
        prefix,
        "--python-version",
        "3.11",
        "--python-platform",
        "x86_64-manylinux_2_28",
        "--target",
        os.fspath(other),
        "--no-deps",
        "cffi==2.0.0",
    )
    for path in site(prefix).glob("_cffi_backend.*"):
        path.unlink()
    for path in other.glob("_cffi_backend.*"):
        replace(site(prefix) / path.name, path.read_bytes())
    return Built(prefix=prefix)


def _protobuf(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "grpcio", "protobuf", "grpcio-health-checking")
    remove(site(prefix) / "protobuf-6.33.6.dist-info")
    return Built(prefix=prefix)


def _tokenizers(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "transformers")
    uninstall(prefix, "tokenizers")
    maker.install(prefix, "tokenizers==0.21.4", deps=False)
    return Built(prefix=prefix)


def _pydantic(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "pydantic")
    uninstall(prefix, "pydantic_core")
    maker.install(prefix, "pydantic-core==2.33.2", deps=False)
    return Built(prefix=prefix)


def _pillow(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "pillow")
    for path in sorted((site(prefix) / "PIL").glob("[F-Z]*.py")):
        path.unlink()
    return Built(prefix=prefix)


def _numpy_cut(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "numpy")
    (path,) = (site(prefix) / "numpy/_core").glob("_multiarray_umath.*.so")
    replace(path, path.read_bytes()[:1_000_000])
    return Built(prefix=prefix, library=f"numpy/_core/{path.name}")


def _numpy_no_blas(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "numpy")
    for path in (site(prefix) / "numpy.libs").glob("libscipy_openblas*"):
        path.unlink()
    (path,) = (site(prefix) / "numpy/_core").glob("_multiarray_umath.*.so")
    return Built(prefix=prefix, library=f"numpy/_core/{path.name}")


def _libstdcxx(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "numpy", "pandas")
    decoy = folder / "anaconda3/lib"
    decoy.mkdir(parents=True)
    (decoy / "libstdc++.so.6").write_bytes(tiny_library(soname="libstdc++.so.6", exports=["_ZSt4cout@GLIBCXX_3.4"]))
    return Built(prefix=prefix, environ={"LD_LIBRARY_PATH": os.fspath(decoy)})


def _preload(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "numpy", "pandas")
    decoy = folder / "old"
    decoy.mkdir(parents=True)
    (decoy / "libstdc++.so.6").write_bytes(tiny_library(soname="libstdc++.so.6", exports=["_ZSt4cout@GLIBCXX_3.4"]))
    return Built(prefix=prefix, environ={"LD_PRELOAD": os.fspath(decoy / "libstdc++.so.6")})


def _pandas_binary(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.install(prefix, "pandas==2.1.1", "numpy==1.26.4")
    uninstall(prefix, "numpy")
    maker.link(prefix, "numpy")
    return Built(prefix=prefix)


def _stray_types(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "requests")
    replace(
        site(prefix) / "http.py", "def get(url):\n    return None\n"
    )  # hides nothing: the standard library goes first
    replace(
        site(prefix) / "idna.py", "def encode(text):\n    return text\n"
    )  # nor this: a package goes before a module
    replace(site(prefix) / "urllib3/util/ssl_.py", "from urllib3.util.ssl_match_hostname import nothing\n")
    return Built(prefix=prefix)


def _edited_template(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, "fastapi", "starlette", "pydantic")
    path = site(prefix) / "starlette/routing.py"
    edit(
        path,
        "from __future__ import annotations\n",
        "from __future__ import annotations\nfrom starlette.applications import Starlette\n",
    )
    return Built(prefix=prefix)


def _healthy_env(maker: Maker, folder: Path) -> Built:
    if maker.donor is None:
        prefix = maker.venv(folder / "venv")
        maker.link(prefix, "torch")
        return Built(prefix=prefix)
    return Built(prefix=maker.donor)


def _healthy(*requirements: str) -> Callable[[Maker, Path], Built]:
    def build(maker: Maker, folder: Path) -> Built:
        prefix = maker.venv(folder / "venv")
        if requirements:
            maker.install(prefix, *requirements)
        return Built(prefix=prefix)

    return build


CASES: list[Case] = [
    case("C01w", "kernels for CUDA 13 beside torch for CUDA 12", MISMATCH, "sglang-kernel", _c01, run="sgl_kernel"),
    case("C02w", "kernels for CUDA 12 beside torch for CUDA 13", MISMATCH, "sgl-kernel", _c02, run="sgl_kernel"),
    case("C03w", "torchvision of another CUDA line", MISMATCH, "torchvision", _c03, run="torchvision"),
    case("C04w", "torchaudio without a pin of torch", MISMATCH, "torchaudio", _c04, run="torchaudio"),
    case("C06w", "two packages own 93 differing files", COLLISION, "nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-cu13", _c06),
    case("C07w", "a package beside its successor", COLLISION, "sgl-kernel sglang-kernel", _c07),
    case("C08w", "two packages of OpenCV", COLLISION, "opencv-python opencv-python-headless", _c08, run="cv2", fails=False),
    case("C10w", "needs FFmpeg of the system", "host-library no-fitting-variant missing-library", "torchcodec", _c10, run="torchcodec"),
    case("C24w", "every path of RECORD begins with a slash", "", "", _c24, run="selenium", fails=False, remark="absolute paths"),
    case("C30w", "timm fails by torchvision, pybase64 is there", MISMATCH, "torchvision", _c30, run="timm", innocent="timm"),
    case("C31w", "LD_LIBRARY_PATH has another nvJitLink", "library-path", "nvidia-nvjitlink -", _c31, run="torch", fails=False),
    case("C38w", "one of transformers' files was deleted", "missing-file", "transformers", _c38, run="transformers"),
    case("C39w", "a venv that was moved", "moved-venv", "", _c39, run="fastapi", fails=False),
    case("W01", "numpy of another Python minor", "interpreter-minor tag-mismatch dead-extension", "numpy", _other_minor, run="numpy"),
    case("W02", "cffi's module of another Python minor",
         "missing-file interpreter-minor dead-extension", "cffi", _other_cffi, run="soundfile"),
    case("W03", "protobuf without its metadata",
         "stray-module requires-dist", "protobuf grpcio-health-checking", _protobuf, run="grpc_health.v1.health_pb2", fails=False),
    case("W04", "tokenizers too old for transformers", "requires-dist", "tokenizers transformers", _tokenizers, run="transformers"),
    case("W05", "pydantic and pydantic-core of two releases", "requires-dist", "pydantic-core pydantic", _pydantic, run="pydantic"),
    case("W06", "half of pillow deleted", "missing-file", "pillow", _pillow, run="PIL.Image"),
    case("W07", "numpy's library cut off", "damaged-binary edited-file", "numpy", _numpy_cut, run="numpy"),
    case("W08", "numpy's own BLAS deleted", "missing-file missing-library", "numpy", _numpy_no_blas, run="numpy"),
    case("W09", "LD_LIBRARY_PATH with an old libstdc++", "library-path libstdcxx-too-old", "", _libstdcxx, run="pandas"),
    case("W10", "LD_PRELOAD of a foreign libstdc++", "library-path libstdcxx-too-old", "", _preload, run="pandas"),
    case("W11", "pandas built for numpy 1", "binary-interface requires-dist", "pandas numpy", _pandas_binary, run="pandas"),
    case("W12", "an edited file asks for what is not there", "edited-file", "urllib3", _stray_types, run="requests"),
    case("W13", "a circular import from an edited file", "edited-file", "starlette", _edited_template, run="fastapi"),
    case("H1", "the environment that envspec built", "", "", _healthy_env, fails=False),
    case("H2", "fastapi, uvicorn, pydantic, sqlalchemy",
         "", "", _healthy("fastapi", "uvicorn[standard]", "pydantic", "sqlalchemy"), run="fastapi", fails=False),
    case("H3", "numpy, pandas, scikit-learn, matplotlib",
         "", "", _healthy("numpy", "pandas", "scikit-learn", "matplotlib"), run="sklearn", fails=False),
    case("H4", "django, celery, psycopg, boto3, pytest",
         "", "", _healthy("django", "celery", "psycopg[binary]", "boto3", "pytest"), run="django", fails=False),
    case("H5", "jupyter", "", "", _healthy("jupyter"), run="notebook", fails=False),
    case("H6", "an empty venv", "", "", _healthy(), fails=False),
]  # fmt: skip
