"""Cases of the same kinds that nobody listed, as recipes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.diagnose import recipes
from benchmarks.diagnose.case import Built, Case
from benchmarks.diagnose.case import recipe as case
from benchmarks.diagnose.listed import install
from benchmarks.diagnose.making import SITE, edit, remove, replace, site
from tests.support.tiny_elf import Wanted, tiny_library
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.diagnose.making import Maker


def _array(folder: Path, name: str = "arrays", version: str = "2.3.5", *, python: str = "312") -> Path:
    """A package with an extension module that is linked for one minor version of Python, as numpy is."""
    return make_wheel(
        folder,
        name,
        version,
        {
            f"{name}/__init__.py": f"from {name} import _core\n",
            f"{name}/_core/__init__.py": f"from {name}._core import _umath\n",
            f"{name}/_core/_umath.cpython-{python}-x86_64-linux-gnu.so": tiny_library(exports=["PyInit__umath"]),
            f"{name}/version.py": f"__version__ = '{version}'\n",
        },
        tag=f"cp{python}-cp{python}-manylinux_2_17_x86_64",
    )


def _other_minor(maker: Maker, folder: Path) -> Built:
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, _array(folder, python="311"))
    return Built(prefix=prefix)


def _without_metadata(maker: Maker, folder: Path) -> Built:
    library = make_wheel(folder, "protolib", "6.33.6", {"protolib/__init__.py": "x = 1\n", "protolib/message.py": ""})
    user = make_wheel(folder, "prouser", "1.0", {"prouser/__init__.py": "import protolib\n"}, requires=["protolib>=6"])
    prefix = install(maker, folder, [library, user])
    remove(site(prefix) / "protolib-6.33.6.dist-info")
    return Built(prefix=prefix)


def _stray_torch(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels)])
    (folder / "project").mkdir()
    (folder / "project/torch.py").write_text("def train():\n    pass\n", encoding="utf-8")
    return Built(prefix=prefix, cwd=folder / "project")


def _stray_standard(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(folder, "quick", "1.0", {"quick/__init__.py": "import colorsys\ncolorsys.rgb_to_hsv(0, 0, 0)\n"})
    extra = folder / "extra"
    extra.mkdir()
    (extra / "colorsys.py").write_text("palette = []\n", encoding="utf-8")
    return Built(prefix=install(maker, folder, [wheel]), environ={"PYTHONPATH": os.fspath(extra)})


def _half_deleted(maker: Maker, folder: Path) -> Built:
    files: dict[str, bytes | str] = {f"pictures/part_{each}.py": f"x = {each}\n" for each in range(20)}
    files["pictures/__init__.py"] = "".join(f"from pictures import part_{each}\n" for each in range(20))
    prefix = install(maker, folder, [make_wheel(folder, "pictures", "12.2.0", files)])
    for each in range(7, 20):
        remove(site(prefix) / f"pictures/part_{each}.py")
    return Built(prefix=prefix)


def _lost(maker: Maker, folder: Path) -> Built:
    prefix = install(maker, folder, [make_wheel(folder, "lost", "1.0", {"lost/__init__.py": "", "lost/a.py": ""})])
    remove(site(prefix) / "lost")
    return Built(prefix=prefix)


def _too_old(maker: Maker, folder: Path) -> Built:
    tokens = make_wheel(folder, "tokens", "0.19.1", {"tokens/__init__.py": "__version__ = '0.19.1'\n"})
    user = make_wheel(
        folder,
        "transforms",
        "5.6.0",
        {"transforms/__init__.py": "from tokens import AddedToken\n"},
        requires=["tokens>=0.22,<=0.23"],
    )
    return Built(prefix=install(maker, folder, [tokens, user]))


def _preload(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    decoy = folder / "anaconda3/lib"
    decoy.mkdir(parents=True)
    (decoy / "libstdc++.so.6").write_bytes(tiny_library(soname="libstdc++.so.6", exports=["_ZSt4cout@GLIBCXX_3.4"]))
    needy = recipes.kernel(
        wheels, "newcxx", "1.0", module="newcxx", needed=["libstdc++.so.6"],
        undefined=[Wanted(each, version="GLIBCXX_3.4", library="libstdc++.so.6") for each in ("_ZSt4cout", "_ZSt9terminatev")],
    )  # fmt: skip
    prefix = install(maker, folder, [recipes.torch(wheels), needy])
    return Built(prefix=prefix, environ={"LD_LIBRARY_PATH": os.fspath(decoy)}, library="newcxx/common_ops.abi3.so")


def _truncated(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.kernel(wheels)])
    path = site(prefix) / "sgl_kernel/common_ops.abi3.so"
    replace(path, path.read_bytes()[:200])
    return Built(prefix=prefix, library="sgl_kernel/common_ops.abi3.so")


def _emptied(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder,
        "filled",
        "1.0",
        {"filled/__init__.py": "from filled.core import start\n", "filled/core.py": "def start():\n    pass\n"},
    )
    prefix = install(maker, folder, [wheel])
    replace(site(prefix) / "filled/core.py", "")
    return Built(prefix=prefix)


def _zeroed(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder,
        "filled",
        "1.0",
        {"filled/__init__.py": "from filled.core import start\n", "filled/core.py": "def start():\n    pass\n"},
    )
    prefix = install(maker, folder, [wheel])
    replace(site(prefix) / "filled/core.py", bytes(27))  # after a crash of the machine
    return Built(prefix=prefix)


def _edited(maker: Maker, folder: Path, core: str) -> Built:
    files = {
        "served/__init__.py": "from served import engine\n",
        "served/engine.py": "from served import core\n",
        "served/core.py": "LIMIT = 1\ndef run():\n    return LIMIT\n",
        "served/other.py": "x = 1\n",
    }
    prefix = install(maker, folder, [make_wheel(folder, "served", "1.0", files)])
    edit(site(prefix) / "served/other.py", "x = 1", "x = 2")
    replace(site(prefix) / "served/core.py", core)
    return Built(prefix=prefix)


def _syntax(maker: Maker, folder: Path) -> Built:
    return _edited(maker, folder, "LIMIT = 1\ndef run(:\n    return LIMIT\n")


def _circular(maker: Maker, folder: Path) -> Built:
    return _edited(maker, folder, "from served.engine import start\nLIMIT = 1\n")


def _hang(maker: Maker, folder: Path) -> Built:
    return _edited(maker, folder, "import threading\nthreading.Event().wait()\n")


def _crash(maker: Maker, folder: Path) -> Built:
    return _edited(maker, folder, "import ctypes\nctypes.string_at(0)\n")


def _missing_name(maker: Maker, folder: Path) -> Built:
    base = make_wheel(folder, "schema-core", "2.33.0", {"schema_core/__init__.py": "old = 1\n"})
    user = make_wheel(
        folder,
        "schema",
        "2.13.4",
        {"schema/__init__.py": "from schema_core import new\n"},
        requires=["schema-core==2.46.4"],
    )
    return Built(prefix=install(maker, folder, [base, user]))


def _editable_moved(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder, "ourcode", "0.1", {"__editable__.ourcode-0.1.pth": os.fspath(folder / "checkout/src") + "\n"}
    )
    prefix = install(maker, folder, [wheel])
    (info,) = site(prefix).glob("ourcode-*.dist-info")
    (info / "direct_url.json").write_text(
        '{"url": "file://' + os.fspath(folder / "checkout") + '", "dir_info": {"editable": true}}', encoding="utf-8"
    )
    return Built(prefix=prefix)


def _two_versions(maker: Maker, folder: Path) -> Built:
    files = {"double/__init__.py": "from double.fresh import x\n", "double/fresh.py": "x = 1\n"}
    prefix = install(maker, folder, [make_wheel(folder / "new", "double", "2.0", files)])
    old = make_wheel(folder / "old", "double", "1.0", {"double/__init__.py": "x = 0\n"})
    maker.unzip(prefix, old)  # an update that was interrupted, or two tools
    return Built(prefix=prefix)


def _python_path(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder, "arraylib", "2.3.5", {"arraylib/__init__.py": "from arraylib import core\n", "arraylib/core.py": ""}
    )
    prefix = install(maker, folder, [wheel])
    other = folder / "opt/site-packages/arraylib"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("from arraylib import multiarray\n", encoding="utf-8")
    return Built(prefix=prefix, environ={"PYTHONPATH": os.fspath(other.parent)})


def _python_home(maker: Maker, folder: Path) -> Built:
    (folder / "opt").mkdir()
    prefix = install(maker, folder, [make_wheel(folder, "plain", "1.0")])
    return Built(prefix=prefix, environ={"PYTHONHOME": os.fspath(folder / "opt")})


def _lfs_pointer(maker: Maker, folder: Path) -> Built:
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.kernel(wheels)])
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345678\n"
    replace(site(prefix) / "sgl_kernel/common_ops.abi3.so", pointer)
    return Built(prefix=prefix, library="sgl_kernel/common_ops.abi3.so")


def _copied_library(maker: Maker, folder: Path) -> Built:
    """The library of another release was copied over; the metadata is that of the good one."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels)])
    old = maker.venv(folder / "old")
    maker.wheel(old, recipes.vision(folder / "old-wheels", "0.24.1", cuda="12.8", of_torch="2.9.1"))
    replace(site(prefix) / "torchvision/_C.so", (site(old) / "torchvision/_C.so").read_bytes())
    return Built(prefix=prefix, library="torchvision/_C.so")


def _copied_torch(maker: Maker, folder: Path) -> Built:
    """The origin's shape: torch's files of one CUDA over those of another."""
    wheels = folder / "wheels"
    prefix = install(
        maker,
        folder,
        [recipes.torch(wheels, "2.9.1", cuda="12.8"), recipes.vision(wheels, "0.24.1", cuda="12.8", of_torch="2.9.1")],
    )
    for wheel in recipes.torch(folder / "new"):
        other = maker.venv(folder / wheel.name.partition("-")[0])
        maker.wheel(other, wheel)
        for name in ("torch", "nvidia"):
            for source in sorted((other / SITE / name).rglob("*")):
                if source.is_file():
                    replace(site(prefix) / source.relative_to(other / SITE), source.read_bytes())
    return Built(prefix=prefix, library="torchvision/_C.so")


def _renamed(maker: Maker, folder: Path) -> Built:
    prefix = install(
        maker,
        folder,
        [make_wheel(folder, "picture", "1.0", {"PIC/__init__.py": "from PIC import Image\n", "PIC/Image.py": ""})],
    )
    (site(prefix) / "PIC").rename(site(prefix) / "pic")  # through a file system that does not tell the two apart
    return Built(prefix=prefix)


def _wrong_name(maker: Maker, folder: Path) -> Built:
    good = make_wheel(
        folder,
        "pyweb",
        "2.9",
        {"webtoken/__init__.py": "from webtoken.api import encode\n", "webtoken/api.py": "def encode():\n    pass\n"},
    )
    bad = make_wheel(folder, "webtoken", "1.3", {"webtoken/__init__.py": "class Token:\n    pass\n"})
    user = make_wheel(
        folder, "loginapp", "1.0", {"loginapp/__init__.py": "from webtoken import encode\n"}, requires=["pyweb"]
    )
    return Built(prefix=install(maker, folder, [good, bad, user]))


def _no_permission(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder, "closed", "1.0", {"closed/__init__.py": "from closed import core\n", "closed/core.py": ""}
    )
    prefix = install(maker, folder, [wheel])
    core = site(prefix) / "closed/core.py"
    core.unlink()
    core.symlink_to("/nowhere/cache/closed/core.py")  # as a link into somebody's cache is, once that was cleaned
    return Built(prefix=prefix)


def _upgraded_python(maker: Maker, folder: Path) -> Built:
    prefix = install(maker, folder, [make_wheel(folder, "plain", "1.0", {"plain/__init__.py": ""})])
    (prefix / "lib/python3.12").rename(prefix / "lib/python3.11")
    return Built(prefix=prefix)


def _wrong_home(maker: Maker, folder: Path) -> Built:
    """Code of the release before, left behind by an update that only added."""
    new = {
        "engine/__init__.py": "from engine import ops\n",
        "engine/ops.py": "from engine import table\ntable.FRESH\n",
        "engine/table.py": "FRESH = 1\n",
    }
    prefix = install(maker, folder, [make_wheel(folder, "engine", "2.0", new)])
    replace(site(prefix) / "engine/table.py", "STALE = 1\n")
    return Built(prefix=prefix)


CASES: list[Case] = [
    case("N01", "a package of another Python minor", "interpreter-minor tag-mismatch dead-extension", "arrays", _other_minor, run="arrays"),
    case("N02", "a folder copied without its metadata",
         "stray-module requires-dist", "protolib prouser", _without_metadata, run="prouser", fails=False),
    case("N03", "a torch.py in the working directory", "shadowed-module stray-module", "torch", _stray_torch, run="torchvision"),
    case("N04", "PYTHONPATH hides a module of the standard library", "shadowed-module", "", _stray_standard, run="quick"),
    case("N05", "a package that is half deleted", "missing-file", "pictures", _half_deleted, run="pictures"),
    case("N06", "metadata without files", "lost-package", "lost", _lost, run="lost"),
    case("N07", "a requirement in too old a version", "requires-dist", "tokens transforms", _too_old, run="transforms"),
    case("N08", "LD_LIBRARY_PATH with an old libstdc++", "library-path libstdcxx-too-old", "", _preload, run="newcxx"),
    case("N09", "a library that was cut off", "damaged-binary edited-file not-a-library", "sglang-kernel", _truncated, run="sgl_kernel"),
    case("N10", "a module of no bytes", "edited-file", "filled", _emptied, run="filled"),
    case("N11", "a module of zeros after a crash", "edited-file", "filled", _zeroed, run="filled"),
    case("N12", "a syntax error in an edited file", "edited-file", "served", _syntax, run="served"),
    case("N13", "a circular import from an edited file", "edited-file", "served", _circular, run="served"),
    case("N14", "an edited file that waits for ever", "edited-file run-failed", "served", _hang, run="served"),
    case("N15", "an edited file that ends the process by a signal", "edited-file run-failed", "served", _crash, run="served"),
    case("N16", "two halves of one release in two versions", "requires-dist", "schema-core schema", _missing_name, run="schema"),
    case("N17", "an editable package whose checkout was moved",
         "path-gone lost-package module-missing missing-file", "ourcode", _editable_moved, run="ourcode"),
    case("N18", "two versions in one venv", "two-versions owned-twice", "double", _two_versions, run="double", fails=False),
    case("N19", "PYTHONPATH has another release", "shadowed-module", "arraylib", _python_path, run="arraylib"),
    case("N20", "PYTHONHOME is set", "python-home", "", _python_home, run="plain"),
    case("N21", "a library that is a pointer of Git LFS",
         "not-a-library damaged-binary edited-file", "sglang-kernel", _lfs_pointer, run="sgl_kernel"),
    case("N22", "the library of another release copied over",
         "cuda-major-mismatch edited-file", "torchvision", _copied_library, run="torchvision"),
    case("N23", "torch's files of another CUDA copied over",
         "cuda-major-mismatch version-inside edited-file", "torchvision torch", _copied_torch, run="torchvision"),
    case("N24", "a folder that lost its capitals", "lost-package missing-file", "picture", _renamed, run="PIC"),
    case("N25", "another project under the same module name", "owned-twice file-collision", "pyweb webtoken", _wrong_name, run="loginapp"),
    case("N26", "a file that is a link to nowhere", "missing-file edited-file", "closed", _no_permission, run="closed"),
    case("N27", "packages in the folder of another minor", "interpreter-minor interpreter-problem", "", _upgraded_python, run="plain"),
    case("N28", "one module of the release before", "edited-file", "engine", _wrong_home, run="engine"),
]  # fmt: skip
