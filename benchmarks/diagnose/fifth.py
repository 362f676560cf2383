"""A fifth helping, written down once the fourth was right: what machines and images do, and what looks broken and works."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.diagnose import recipes
from benchmarks.diagnose.case import Built, Case, real
from benchmarks.diagnose.case import recipe as case
from benchmarks.diagnose.fourth import of_wheels
from benchmarks.diagnose.listed import MISMATCH, install
from benchmarks.diagnose.making import age, site
from benchmarks.diagnose.third import toolkit, user_of_toolkit
from benchmarks.diagnose.third_gpu import says, smi
from tests.support.tiny_elf import Wanted, tiny_library
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.diagnose.making import Maker


def _raising(
    folder: Path,
    name: str,
    error: str,
    text: str,
    *,
    more: dict[str, bytes | str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """A package whose import ends with an exception."""
    return make_wheel(folder, name, "1.0", {f"{name}/__init__.py": f"raise {error}({text})\n", **(more or {})}, tag=tag)


def _label_twice(maker: Maker, folder: Path) -> Built:
    """The same release from two indexes: one has the label, one has not."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels)])
    again = recipes.torch(folder / "other", "2.11.0")[0]
    other = maker.venv(folder / "other-venv")
    maker.wheel(other, again)
    info = site(other) / "torch-2.11.0.dist-info"
    metadata = info / "METADATA"
    metadata.write_text(
        metadata.read_text(encoding="utf-8").replace("Version: 2.11.0", "Version: 2.11.0+cu128"), encoding="utf-8"
    )
    info.rename(site(prefix) / "torch-2.11.0+cu128.dist-info")
    return Built(prefix=prefix)


def _own_datasets(maker: Maker, folder: Path) -> Built:
    """The user's own folder has the name of a package."""
    project = folder / "project"
    (project / "toolkit").mkdir(parents=True)
    (project / "toolkit/__init__.py").write_text("", encoding="utf-8")
    (project / "train.py").write_text("from toolkit import start\n", encoding="utf-8")
    return Built(prefix=install(maker, folder, [toolkit(folder, "2.1")]), cwd=project)


def _compat(maker: Maker, folder: Path) -> Built:
    """The libraries for forward compatibility, on a GPU that they are not made for."""
    wheels = folder / "wheels"
    compat = folder / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.1").write_bytes(tiny_library(soname="libcuda.so.1", exports=["cuInit"]))
    text = "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW"
    prefix = install(maker, folder, [recipes.torch(wheels), says(wheels, "serving", text)])
    return Built(prefix=prefix, environ={"PATH": smi(folder, "580.95.05"), "LD_LIBRARY_PATH": os.fspath(compat)})


def _void(maker: Maker, folder: Path) -> Built:
    """A container that was given no GPU."""
    wheels = folder / "wheels"
    text = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
    driver = tiny_library(needed=["libcuda.so.1"], exports=["PyInit__d"])
    needy = make_wheel(
        wheels, "kernely", "1.0", {"kernely/__init__.py": "", f"kernely/_d.{recipes.SUFFIX}": driver}, tag=recipes.TAG
    )
    prefix = install(maker, folder, [recipes.torch(wheels), needy, says(wheels, "serving", text)])
    return Built(prefix=prefix, environ={"NVIDIA_VISIBLE_DEVICES": "void"})


def _static_tls(maker: Maker, folder: Path) -> Built:
    text = "__file__.replace('__init__.py', '../imgs.libs/libgomp-d22c30c5.so.1.0.0') + ': cannot allocate memory in static TLS block'"
    more: dict[str, bytes | str] = {
        "imgs.libs/libgomp-d22c30c5.so.1.0.0": tiny_library(soname="libgomp-d22c30c5.so.1.0.0")
    }
    return Built(
        prefix=install(maker, folder, [_raising(folder, "imgs", "ImportError", text, more=more, tag=recipes.TAG)])
    )


def _no_exec(maker: Maker, folder: Path) -> Built:
    """The venv lies on a file system that is mounted with noexec."""
    text = f"__file__.replace('__init__.py', '_core.{recipes.SUFFIX}') + ': failed to map segment from shared object: Operation not permitted'"
    more: dict[str, bytes | str] = {f"mathy/_core.{recipes.SUFFIX}": tiny_library(exports=["PyInit__core"])}
    return Built(
        prefix=install(maker, folder, [_raising(folder, "mathy", "ImportError", text, more=more, tag=recipes.TAG)])
    )


def _new_cxx(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    kernel = recipes.kernel(
        wheels, "newcxx", "1.0", module="newcxx", needed=["libstdc++.so.6"],
        undefined=[Wanted("_ZSt4cout", version="GLIBCXX_3.4.99", library="libstdc++.so.6")],
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), kernel]), library="newcxx/common_ops.abi3.so")


def _cupy(maker: Maker, folder: Path) -> Built:
    """A package for CUDA 12 that finds no library of it, beside torch for CUDA 13; torch is not what it is built on."""
    wheels = folder / "wheels"
    library = tiny_library(needed=["libnvrtc.so.12", "libcublas.so.12"], exports=["PyInit_driver"])
    cupy = make_wheel(
        wheels, "cupy-cuda12x", "13.6.0",
        {"cupy/__init__.py": "from cupy import driver\n", f"cupy/driver.{recipes.SUFFIX}": library}, tag=recipes.TAG,
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), cupy]), library=f"cupy/driver.{recipes.SUFFIX}")


def _stale_extension(maker: Maker, folder: Path) -> Built:
    """What torch compiled for the release before lies in the user's cache."""
    wheels = folder / "wheels"
    cache = folder / "home/.cache/torch_extensions/py312_cu128/fused"
    cache.mkdir(parents=True)
    (cache / "fused.so").write_bytes(tiny_library(undefined=[Wanted(recipes.CHECK_OLD)], needed=["libc10.so"]))
    code = "import ctypes, os, torch\nctypes.CDLL(os.path.expanduser('~/.cache/torch_extensions/py312_cu128/fused/fused.so'))\n"
    fused = make_wheel(wheels, "fusedops", "1.0", {"fusedops/__init__.py": code}, requires=["torch"])
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), fused]))


def _disk_full(maker: Maker, folder: Path) -> Built:
    text = "28, 'No space left on device', '/var/cache/models/blob'"
    return Built(prefix=install(maker, folder, [_raising(folder, "fetcher", "OSError", text)]))


def _sourceless(maker: Maker, folder: Path) -> Built:
    """A slim image: bytecode beside the sources, and the sources deleted."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])
    for name in ("toolkit", "worker"):
        program = [os.fspath(prefix / "bin/python"), "-m", "compileall", "-q", "-b", os.fspath(site(prefix) / name)]
        from builder import process  # noqa: PLC0415 - only here

        process.run(program, env={**os.environ}, cwd=folder, timeout_s=60)
        for path in (site(prefix) / name).rglob("*.py"):
            path.unlink()
    return Built(prefix=prefix)


def _no_records(maker: Maker, folder: Path) -> Built:
    """An image builder that keeps no RECORD."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])
    for path in site(prefix).glob("*.dist-info/RECORD"):
        path.unlink()
    return Built(prefix=prefix)


def _path_editable(maker: Maker, folder: Path) -> Built:
    """A checkout by a path in a `.pth`, as hatch and uv install it."""
    source = folder / "checkout/src/ours"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("import toolkit\n", encoding="utf-8")
    wheel = make_wheel(folder, "ours", "0.1", {"_ours.pth": f"{folder / 'checkout/src'}\n"}, requires=["toolkit>=2"])
    prefix = install(maker, folder, [toolkit(folder, "2.1"), wheel])
    (info,) = site(prefix).glob("ours-*.dist-info")
    url = '{"url": "file://' + os.fspath(folder / "checkout") + '", "dir_info": {"editable": true}}'
    (info / "direct_url.json").write_text(url, encoding="utf-8")
    age(prefix)
    return Built(prefix=prefix)


def _own_folders(maker: Maker, folder: Path) -> Built:
    """LD_LIBRARY_PATH names the venv's own libraries, as many recipes on the net advise."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels)])
    return Built(prefix=prefix, environ={"LD_LIBRARY_PATH": os.fspath(site(prefix) / "nvidia/cu13/lib")})


def _forbidden_python(maker: Maker, folder: Path) -> Built:
    """A package that was never tried with this Python, and works."""
    prefix = maker.venv(folder / "venv")
    maker.unzip(
        prefix,
        make_wheel(folder, "cautious", "1.0", {"cautious/__init__.py": "x = 1\n"}, requires_python=">=3.9,<3.12"),
    )
    return Built(prefix=prefix)


def _narrow_tag(maker: Maker, folder: Path) -> Built:
    """A package without any extension whose wheel is tagged for another Python."""
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, make_wheel(folder, "narrow", "1.0", {"narrow/__init__.py": "x = 1\n"}, tag="cp311-none-any"))
    return Built(prefix=prefix)


CASES: list[Case] = [
    case("N100", "one release with two labels", "two-versions", "torch", _label_twice, run="torchvision", fails=False),
    case("N101", "a folder of the user with a package's name", "shadowed-module", "toolkit", _own_datasets, run="train.py"),
    case("N102", "forward compatibility where it does not work", "library-path", "", _compat, run="serving", remark="compat"),
    case("N103", "a container without a GPU", "driver-absent devices-hidden", "", _void, run="serving", remark="NVIDIA_VISIBLE_DEVICES"),
    case("N104", "no room for thread-local storage", "static-tls", "imgs -", _static_tls, run="imgs", remark="static TLS"),
    case("N105", "a file system without execution", "noexec", "", _no_exec, run="mathy", remark="noexec"),
    case("N106", "a newer libstdc++ than the system's", "libstdcxx-too-old", "newcxx", _new_cxx, run="newcxx"),
    case("N107", "a package for CUDA 12 that has none of its libraries", f"{MISMATCH} missing-library requires-dist", "cupy-cuda12x",
         _cupy, run="cupy"),
    case("N108", "an extension that was compiled for another torch", "stale-cache", "", _stale_extension, run="fusedops",
         remark="torch_extensions"),
    case("N109", "a full disk", "machine-limit run-failed", "fetcher -", _disk_full, run="fetcher", remark="No space left"),
    case("H31", "bytecode without sources", "", "", _sourceless, run="worker", fails=False),
    case("H32", "packages without a RECORD", "", "", _no_records, run="worker", fails=False),
    case("H33", "a checkout by a path", "", "", _path_editable, run="ours", fails=False),
    case("H37", "LD_LIBRARY_PATH with the venv's own folders", "", "", _own_folders, run="torchvision", fails=False),
    case("H38", "a package that does not want this Python, and works", "", "", _forbidden_python, run="cautious", fails=False),
    case("H39", "a tag that is narrower than its package", "", "", _narrow_tag, run="narrow", fails=False),
    real("H34", "namespaces of all kinds", "", "",
         of_wheels("google-cloud-storage", "azure-storage-blob", "zope.interface", "ruamel.yaml", "sphinxcontrib-jsmath", "paste"),
         run="google.cloud.storage", fails=False),
    real("H35", "gradio, streamlit", "", "", of_wheels("gradio", "streamlit"), run="streamlit", fails=False),
    real("H36", "numba, faiss, onnxruntime, spacy, lightgbm", "", "", of_wheels("numba", "faiss-cpu", "onnxruntime", "spacy", "lightgbm"),
         run="spacy", fails=False),
]  # fmt: skip
