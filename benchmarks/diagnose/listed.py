"""Cases of the list of public reports, as recipes: those that leave a trace in a venv."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.diagnose import recipes
from benchmarks.diagnose.case import Built, Case
from benchmarks.diagnose.case import recipe as case
from benchmarks.diagnose.making import edit, remove, replace, site
from tests.support.tiny_elf import Wanted, tiny_library
from tests.support.wheels import make_wheel, record_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.diagnose.making import Maker

COLLISION = "owned-twice file-collision"
MISMATCH = "cuda-major-mismatch"


def install(maker: Maker, folder: Path, wheels: Sequence[Path | list[Path]]) -> Path:
    """A venv with some wheels, installed in this order."""
    prefix = maker.venv(folder / "venv")
    for each in wheels:
        for wheel in each if isinstance(each, list) else [each]:
            maker.wheel(prefix, wheel)
    return prefix


def _c01(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels, "2.9.1", cuda="12.8"), recipes.kernel(wheels)])
    return Built(prefix=prefix, library="sgl_kernel/common_ops.abi3.so")


def _c02(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    old = recipes.kernel(wheels, "sgl-kernel", "0.3.21", cuda=12, check=recipes.CHECK_OLD)
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), old]), library="sgl_kernel/common_ops.abi3.so")


def _c03(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    old = recipes.vision(wheels, "0.24.1", cuda="12.8", of_torch="2.9.1")
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), old]), library="torchvision/_C.so")


def _c04(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    audio = recipes.kernel(wheels, "torchaudio", "2.11.0", module="torchaudio", check=recipes.STABLE)
    prefix = install(maker, folder, [recipes.torch(wheels, "2.9.1", cuda="12.8"), audio])
    return Built(prefix=prefix, library="torchaudio/common_ops.abi3.so")


def _c05(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    vllm = recipes.kernel(wheels, "vllm", "0.33.0", module="vllm")
    prefix = install(maker, folder, [recipes.torch(wheels, "2.9.1", cuda="12.8"), vllm])
    return Built(prefix=prefix, library="vllm/common_ops.abi3.so")


def _c06(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    plain = {"dsl/__init__.py": "from dsl.rt import build\n", "dsl/rt.py": "def build(a):\n    return a\n"}
    other = {**plain, "dsl/rt.py": "def build(a, b):\n    return a, b\n"}
    user = make_wheel(
        wheels, "dsl-user", "1.0", {"dsl_user/__init__.py": "import dsl\ndsl.build(1)\n"}, requires=["libs-base"]
    )
    base = make_wheel(wheels, "libs-base", "4.4.1", plain)
    cu13 = make_wheel(wheels, "libs-cu13", "4.4.1", other)
    return Built(prefix=install(maker, folder, [base, cu13, user]))


def _c07(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    old = recipes.kernel(wheels, "sgl-kernel", "0.3.21", cuda=12, check=recipes.CHECK_OLD)
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), old, recipes.kernel(wheels)]))


def _c08(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    both = {
        name: make_wheel(
            wheels,
            name,
            "4.12.0.88",
            {"cv2/__init__.py": f"headless = {name.endswith('headless')}\n", "cv2/version.py": "x = 1\n"},
        )
        for name in ("opencv-python", "opencv-python-headless")
    }
    return Built(prefix=install(maker, folder, list(both.values())))


def _c09(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    newer = recipes.kernel(
        wheels, "sgl-deep-gemm", "0.2.3", module="deep_gemm", needed=["libc.so.6"],
        undefined=[Wanted("memcpy", version="GLIBC_2.97", library="libc.so.6")],
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), newer]), library="deep_gemm/common_ops.abi3.so")


def _c10(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    needy = recipes.kernel(wheels, needed=["libnumactl.so.1"])
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), needy]), library="sgl_kernel/common_ops.abi3.so")


def _c16(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    foreign = recipes.kernel(wheels, machine="aarch64")
    return Built(
        prefix=install(maker, folder, [recipes.torch(wheels), foreign]), library="sgl_kernel/common_ops.abi3.so"
    )


def _c24_hash(maker: Maker, folder: Path) -> Built:
    row = record_row("wrong/__init__.py", b"x = 2\n")
    wheel = make_wheel(folder, "wrong", "1.0", {"wrong/__init__.py": "x = 1\n"}, record={"wrong/__init__.py": row})
    return Built(prefix=install(maker, folder, [wheel]))


def _c24_ghost(maker: Maker, folder: Path) -> Built:
    ghost = record_row("ghost/engine.py", b"x = 2\n")
    wheel = make_wheel(
        folder, "ghost", "1.0", {"ghost/__init__.py": "from ghost import engine\n"}, record_extra=[ghost]
    )
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, wheel)  # uv leaves the row out
    return Built(prefix=prefix)


def _c24_unrecorded(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder,
        "quiet",
        "1.0",
        {"quiet/__init__.py": "", "zz.pth": "import os; os.environ['QUIET'] = '1'\n"},
        record={"zz.pth": None},
    )
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, wheel)
    return Built(prefix=prefix)


def _c25(maker: Maker, folder: Path) -> Built:
    data = {
        "data/bin/activate": "echo taken\n",
        "data/pyvenv.cfg": "home = /opt/none/bin\nversion = 3.12.1\n",
        "data/bin/ptxas": "x",
    }
    return Built(prefix=install(maker, folder, [make_wheel(folder, "dd", "1.0", data=data)]))


def _c26_link(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    wheel = make_wheel(
        wheels, "links", "1.0",
        {"links/__init__.py": "import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libx.so'))\n",
         "links/libx.so.1": tiny_library(soname="libx.so.1")},
        tag=recipes.TAG, symlinks={"links/libx.so": "libx.so.1"},
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [wheel]), library="links/libx.so")


def _c26_hook(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder,
        "hooked",
        "1.0",
        {"hooked/__init__.py": "", "sitecustomize.py": "import os\nos.environ['HOOKED'] = '1'\n"},
    )
    return Built(prefix=install(maker, folder, [wheel]))


def _c27(maker: Maker, folder: Path) -> Built:
    wheels = [
        make_wheel(
            folder,
            name,
            "1.0",
            {f"{name}/__init__.py": "def main():\n    pass\n"},
            entry_points=f"[console_scripts]\nserve = {name}:main\n",
        )
        for name in ("alpha", "beta")
    ]
    return Built(prefix=install(maker, folder, wheels))


def _c28(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder, "pthx", "1.0", {"pthx/__init__.py": "", "pthx.pth": "import os; os.environ['PTHX'] = '1'\n"}
    )
    return Built(prefix=install(maker, folder, [wheel]))


def _c29(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(folder, "shared", "1.0", {"shared/__init__.py": "LIMIT = 1\n", "shared/more.py": ""})
    first = maker.venv(folder / "first")
    maker.wheel(first, wheel)
    with (site(first) / "shared/__init__.py").open(
        "r+b"
    ) as file:  # in place, as some editors do: the cache gets it too
        file.write(b"LIMIT = x\n")
    second = maker.venv(folder / "second")
    # As uv links it from its cache.
    shutil.copytree(site(first), site(second), dirs_exist_ok=True, copy_function=_link_again)
    return Built(prefix=second)


def _link_again(source: str, target: str) -> str:
    if not Path(target).exists():
        os.link(source, target)
    return target


def _c30_present(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    old = recipes.vision(wheels, "0.24.1", cuda="12.8", of_torch="2.9.1")
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.sgl(wheels), old])
    edit(site(prefix) / "sgl/graph.py", "x = 1", "x = 2")
    edit(site(prefix) / "sgl/layers.py", "x = 1", "x = 3")
    return Built(prefix=prefix, library="torchvision/_C.so")


def _c30_absent(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    framework, _ = recipes.sgl(wheels, swallow=False)
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels), framework]))


def _c31(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    decoy = folder / "decoy"
    decoy.mkdir(parents=True)
    (decoy / "libcudart.so.13").write_bytes(recipes.cudart(13, exports=["cudaFree"]))
    prefix = install(maker, folder, [recipes.torch(wheels, runpath=True), recipes.kernel(wheels)])
    return Built(prefix=prefix, environ={"LD_LIBRARY_PATH": os.fspath(decoy)})


def _c32(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    old = recipes.kernel(
        wheels, "nixl-kernel", "1.5.2", module="nixl_kernel", cuda=12, runpath="$ORIGIN/../nvidia/cuda_runtime/lib"
    )
    prefix = install(maker, folder, [recipes.torch(wheels), old, recipes.cuda_runtime(wheels, 12)])
    return Built(prefix=prefix)


def _c35(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(folder, "kernels-x", "1.0+cu130", {"kernels_x/__init__.py": ""}, metadata_version="1.0")
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, wheel)
    return Built(prefix=prefix)


def _c38_missing(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(folder, "plain", "1.0", {"plain/__init__.py": "from plain import core\n", "plain/core.py": ""})
    prefix = install(maker, folder, [wheel])
    remove(site(prefix) / "plain/core.py")
    return Built(prefix=prefix)


def _c38_edited(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder, "plain", "1.0", {"plain/__init__.py": "from plain import core\n", "plain/core.py": "x = 1\n"}
    )
    prefix = install(maker, folder, [wheel])
    edit(site(prefix) / "plain/core.py", "x = 1", "x = 2")
    return Built(prefix=prefix)


def _c39_moved(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder,
        "served",
        "1.0",
        {"served/__init__.py": "def main():\n    pass\n"},
        entry_points="[console_scripts]\nserve = served:main\n",
    )
    prefix = install(maker, folder, [wheel])
    return Built(prefix=prefix.rename(folder / "elsewhere"))


def _c39_gone(maker: Maker, folder: Path) -> Built:
    prefix = install(maker, folder, [make_wheel(folder, "plain", "1.0")])
    for name in ("python", "python3", "python3.12"):
        (prefix / "bin" / name).unlink(missing_ok=True)
    (prefix / "bin/python").symlink_to("/opt/python-3.12.0/bin/python3.12")
    edit_home = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    lines = ["home = /opt/python-3.12.0/bin" if line.startswith("home") else line for line in edit_home]
    replace(prefix / "pyvenv.cfg", "\n".join(lines) + "\n")
    return Built(prefix=prefix)


CASES: list[Case] = [
    case("C01", "kernels for CUDA 13 beside torch for CUDA 12", MISMATCH, "sglang-kernel", _c01, run="sgl_kernel"),
    case("C02", "kernels for CUDA 12 beside torch for CUDA 13", MISMATCH, "sgl-kernel", _c02, run="sgl_kernel"),
    case("C03", "torchvision of another CUDA line", MISMATCH, "torchvision", _c03, run="torchvision"),
    case("C04", "torchaudio without a pin of torch", MISMATCH, "torchaudio", _c04, run="torchaudio"),
    case("C05", "framework built for another CUDA than torch", MISMATCH, "vllm", _c05, run="vllm"),
    case("C06", "two packages own one file", COLLISION, "libs-base libs-cu13", _c06, run="dsl_user"),
    case("C07", "a package beside its successor", COLLISION, "sgl-kernel sglang-kernel", _c07, run="sgl_kernel", fails=False),
    case("C08", "two packages of OpenCV", COLLISION, "opencv-python opencv-python-headless", _c08, run="cv2", fails=False),
    case("C09", "needs a newer glibc than the host has", "glibc-too-old", "sgl-deep-gemm", _c09, run="deep_gemm"),
    case("C10", "needs a library of the system that is not there", "host-library missing-library", "sglang-kernel", _c10, run="sgl_kernel"),
    case("C16", "library of another architecture", "foreign-machine", "sglang-kernel", _c16, run="sgl_kernel"),
    case("C24a", "RECORD has a wrong hash", "", "", _c24_hash, run="wrong", fails=False, remark="wrong"),
    case("C24b", "RECORD names a file that is not there", "missing-file record-ghost", "ghost", _c24_ghost, run="ghost"),
    case("C24c", "a start-up hook that RECORD does not name", "stray-code unrecorded-file startup-hook", "", _c24_unrecorded),
    case("C25", "a wheel that overwrites pyvenv.cfg",
         "reserved-path interpreter-gone interpreter-problem", "", _c25, run="dd", fails=False),
    case("C26a", "a link that became a text file", "not-a-library damaged-binary", "links", _c26_link, run="links"),
    case("C26b", "a wheel that ships sitecustomize", "startup-hook stray-code", "hooked", _c26_hook),
    case("C27", "two packages with one script", "script-collision owned-twice", "alpha beta", _c27),
    case("C28", "a .pth that runs code", "startup-hook", "pthx", _c28),
    case("C29", "an edit in place that came through uv's cache", "poisoned-file edited-file", "shared", _c29, run="shared"),
    case("C30a", "torchvision is wrong, the message says pybase64",
         MISMATCH, "torchvision", _c30_present, run="sgl", innocent="pybase64", remark="sgl/graph.py"),
    case("C30b", "pybase64 is missing", "module-missing requires-dist", "pybase64", _c30_absent, run="sgl"),
    case("C31", "LD_LIBRARY_PATH has another libcudart", "library-path", "", _c31, run="torch"),
    case("C32", "two CUDA runtimes in one process",
         "dual-cuda-runtime cuda-major-mismatch", "nixl-kernel", _c32, run="nixl_kernel", fails=False),
    case("C35", "a local version only in the folder's name", "metadata-version local-version-mismatch", "kernels-x", _c35),
    case("C38a", "a file was deleted", "missing-file", "plain", _c38_missing, run="plain"),
    case("C38b", "a file was edited, and all is well", "", "", _c38_edited, run="plain", fails=False, remark="plain/core.py"),
    case("C39a", "a venv that was moved", "moved-venv", "", _c39_moved, run="served", fails=False),
    case("C39b", "the interpreter of the venv is gone", "interpreter-gone", "", _c39_gone, run="plain"),
]  # fmt: skip
