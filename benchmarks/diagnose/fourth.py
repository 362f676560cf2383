"""A fourth helping, written down once the third was right: the first cause at the first run says what the mending was worth."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.diagnose import recipes
from benchmarks.diagnose.case import Built, Case, real
from benchmarks.diagnose.case import recipe as case
from benchmarks.diagnose.listed import install
from benchmarks.diagnose.making import PYTHON_MINOR, remove, replace, site
from benchmarks.diagnose.third import toolkit, user_of_toolkit
from tests.support.tiny_elf import tiny_library
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.diagnose.making import Maker

TORCH_TOO = "import torch\n"


def _whole(maker: Maker, folder: Path) -> Path:
    return install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])


def _plugin(maker: Maker, folder: Path) -> Built:
    """A program loads all plugins, and one of them lacks what it requires."""
    host = make_wheel(
        folder, "hosting", "3.0",
        {"hosting/__init__.py": "from importlib.metadata import entry_points\nfor each in entry_points(group='hosting'):\n    each.load()\n"},
    )  # fmt: skip
    plugin = make_wheel(
        folder, "hosting-gpu", "1.0", {"hosting_gpu/__init__.py": "import toolkit\ndef start():\n    pass\n"},
        requires=["toolkit>=2"], entry_points="[hosting]\ngpu = hosting_gpu:start\n",
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [host, plugin]))


def _relative_path(maker: Maker, folder: Path) -> Built:
    """PYTHONPATH names a folder relative to where the user stands."""
    project = folder / "project"
    (project / "src/toolkit").mkdir(parents=True)
    (project / "src/toolkit/__init__.py").write_text("", encoding="utf-8")
    return Built(prefix=_whole(maker, folder), environ={"PYTHONPATH": "src"}, cwd=project)


def _customized(maker: Maker, folder: Path) -> Built:
    """A sitecustomize that a tool put on PYTHONPATH takes site-packages out of the path."""
    tool = folder / "opt/agent"
    tool.mkdir(parents=True)
    text = "import sys\nsys.path[:] = [each for each in sys.path if 'site-packages' not in each]\n"
    (tool / "sitecustomize.py").write_text(text, encoding="utf-8")
    return Built(prefix=_whole(maker, folder), environ={"PYTHONPATH": os.fspath(tool)})


def _safe_path(maker: Maker, folder: Path) -> Built:
    """The folder of a script is not searched, since a variable says so."""
    project = folder / "project"
    project.mkdir(parents=True)
    (project / "app.py").write_text("import toolkit\nimport helpers\n", encoding="utf-8")
    (project / "helpers.py").write_text("", encoding="utf-8")
    return Built(prefix=_whole(maker, folder), environ={"PYTHONSAFEPATH": "1"}, cwd=project)


def _foreign_bundled(maker: Maker, folder: Path) -> Built:
    """The extension is for this machine, the library that its wheel bundles for another."""
    wheel = make_wheel(
        folder, "imagery", "1.0",
        {"imagery/__init__.py": "from imagery import _c\n",
         f"imagery/_c.{recipes.SUFFIX}": tiny_library(needed=["libjpegx-1a2b.so.62"], runpath="$ORIGIN/../imagery.libs", exports=["PyInit__c"]),
         "imagery.libs/libjpegx-1a2b.so.62": tiny_library(soname="libjpegx-1a2b.so.62", machine="aarch64")},
        tag=recipes.TAG,
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [wheel]), library=f"imagery/_c.{recipes.SUFFIX}")


def _linked_folder(maker: Maker, folder: Path, *, gone: bool) -> Built:
    """Somebody put a link to a shared folder in the place of a package."""
    prefix = _whole(maker, folder)
    share = folder / "share"
    share.mkdir()
    (site(prefix) / "toolkit").rename(share / "toolkit")
    (site(prefix) / "toolkit").symlink_to(share / "toolkit")
    if gone:
        remove(share / "toolkit")
    return Built(prefix=prefix)


def _own_mistake(maker: Maker, folder: Path) -> Built:
    project = folder / "project"
    project.mkdir(parents=True)
    (project / "app.py").write_text("import toolkit\ntoolkit.start(\n", encoding="utf-8")
    return Built(prefix=_whole(maker, folder), cwd=project)


def _illegal(maker: Maker, folder: Path) -> Built:
    """Built for a newer processor."""
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    return Built(prefix=install(maker, folder, [make_wheel(folder, "fastmath", "2.0", {"fastmath/__init__.py": code})]))


def _egg_link(maker: Maker, folder: Path) -> Built:
    """`setup.py develop` of a checkout that is gone."""
    prefix = install(maker, folder, [make_wheel(folder, "caller", "1.0", {"caller/__init__.py": "import ourcode\n"})])
    checkout = folder / "checkout"
    replace(site(prefix) / "ourcode.egg-link", f"{checkout}\n.")
    replace(site(prefix) / "easy-install.pth", f"{checkout}\n")
    return Built(prefix=prefix)


def _debug_build(maker: Maker, folder: Path) -> Built:
    """Compiled on the spot by a Python that was built for debugging."""
    wheel = make_wheel(
        folder, "speedy", "1.0",
        {"speedy/__init__.py": "from speedy import _core\n",
         "speedy/_core.cpython-312d-x86_64-linux-gnu.so": tiny_library(exports=["PyInit__core"])},
        tag="cp312-cp312d-linux_x86_64",
    )  # fmt: skip
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, wheel)
    return Built(prefix=prefix)


def _smi(folder: Path, text: str, code: int) -> str:
    tools = folder / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n", encoding="utf-8")
    (tools / "nvidia-smi").chmod(0o755)
    return f"{tools}:{os.environ.get('PATH', os.defpath)}"


def _driver_replaced(maker: Maker, folder: Path) -> Built:
    """The driver was upgraded and the machine not started again."""
    wheels = folder / "wheels"
    text = (
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have "
        "already set an error? Error 803: system has unsupported display driver / cuda driver combination"
    )
    code = f"import torch\nraise RuntimeError({text!r})\n"
    serving = make_wheel(wheels, "serving", "1.0", {"serving/__init__.py": code}, requires=["torch"])
    path = _smi(folder, "Failed to initialize NVML: Driver/library version mismatch", 18)
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), serving]), environ={"PATH": path})


def _no_headers(maker: Maker, folder: Path) -> Built:
    """A compiler is there, the headers of Python are not."""
    wheels = folder / "wheels"
    text = (
        "Command '['/usr/bin/gcc', '/tmp/x/main.c', '-O3', '-shared']' returned non-zero exit status 1.\n/tmp/x/main.c:4:10: fatal error: "
        "Python.h: No such file or directory\ncompilation terminated."
    )
    triton = make_wheel(
        wheels,
        "triton",
        "3.6.0",
        {"triton/__init__.py": f"class CompilationError(Exception):\n    pass\nraise CompilationError({text!r})\n"},
    )
    return Built(prefix=install(maker, folder, [recipes.torch(wheels), triton]))


def _extra(maker: Maker, folder: Path) -> Built:
    """What an extra would have brought."""
    server = make_wheel(
        folder, "serverly", "1.0", {"serverly/__init__.py": "import websocketly\n"},
        requires=["websocketly>=10; extra == 'standard'"], extras=["standard"],
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [server]))


def _not_executable(maker: Maker, folder: Path) -> Built:
    """A venv of copies came through a file system that has no modes."""
    prefix = _whole(maker, folder)
    for name in ("python", "python3", f"python{PYTHON_MINOR}"):
        (prefix / "bin" / name).unlink(missing_ok=True)
    (prefix / "bin/python").write_bytes(maker.python.read_bytes())
    (prefix / "bin/python").chmod(0o644)
    return Built(prefix=prefix)


def _no_libpython(maker: Maker, folder: Path) -> Built:
    """A venv of copies whose interpreter needs a library that stayed behind."""
    prefix = _whole(maker, folder)
    for name in ("python", "python3", f"python{PYTHON_MINOR}"):
        (prefix / "bin" / name).unlink(missing_ok=True)
    said = "error while loading shared libraries: libpython3.12.so.1.0: cannot open shared object file: No such file or directory"
    (prefix / "bin/python").write_text(f'#!/bin/sh\necho "$0: {said}" >&2\nexit 127\n', encoding="utf-8")
    (prefix / "bin/python").chmod(0o755)
    return Built(prefix=prefix)


def _cut_record(maker: Maker, folder: Path) -> Built:
    """RECORD ends in the middle of a row; everything is there."""
    prefix = _whole(maker, folder)
    record = site(prefix) / "toolkit-2.1.dist-info/RECORD"
    text = record.read_text(encoding="utf-8")
    replace(record, text[: len(text) // 3])
    return Built(prefix=prefix)


def _legacy_requirement(maker: Maker, folder: Path) -> Built:
    """A requirement that was good ten years ago."""
    user = make_wheel(
        folder,
        "veteran",
        "1.0",
        {"veteran/__init__.py": "import toolkit\n"},
        requires=["toolkit (>=2.*)", "pytz (>dev)"],
    )
    return Built(prefix=install(maker, folder, [toolkit(folder, "2.1"), user]))


def _spaces(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder,
        "served",
        "1.0",
        {"served/__init__.py": "def main():\n    pass\n"},
        entry_points="[console_scripts]\nserve = served:main\n",
    )
    return Built(prefix=install(maker, folder / "my models", [wheel]))


def _shared_namespace_file(maker: Maker, folder: Path) -> Built:
    """Eleven packages bring the same empty `__init__.py`, and one of them was uninstalled: the file is gone, and nobody misses it."""
    parts = [
        make_wheel(
            folder, f"nvidia-part-{name}", "13.0", {"nvidia/__init__.py": "", f"nvidia/{name}/__init__.py": "x = 1\n"},
            tag="py3-none-manylinux2014_x86_64",
        )
        for name in ("cublas", "cudnn")
    ]  # fmt: skip
    user = make_wheel(
        folder, "gemms", "1.0", {"gemms/__init__.py": "import nvidia.cublas\n"}, requires=["nvidia-part-cublas"]
    )
    prefix = install(maker, folder, [*parts, user])
    remove(site(prefix) / "nvidia/__init__.py")
    return Built(prefix=prefix)


def of_wheels(*requirements: str) -> Callable[[Maker, Path], Built]:
    """A venv with real packages and what they require, made as a case makes one."""

    def build(maker: Maker, folder: Path) -> Built:
        prefix = maker.venv(folder / "venv")
        maker.install(prefix, *requirements)
        return Built(prefix=prefix)

    return build


CASES: list[Case] = [
    case("N85", "a plugin lacks what it requires", "requires-dist module-missing", "toolkit", _plugin, run="hosting"),
    case("N86", "a relative folder of PYTHONPATH", "shadowed-module", "toolkit", _relative_path, run="worker"),
    case("N87", "a sitecustomize on PYTHONPATH", "shadowed-module startup-hook stray-code", "", _customized, run="worker",
         remark="sitecustomize"),
    case("N88", "PYTHONSAFEPATH keeps a script's folder away", "module-missing", "", _safe_path, run="app.py",
         remark="PYTHONSAFEPATH"),
    case("N89", "a bundled library for another machine", "foreign-machine missing-library", "imagery", _foreign_bundled, run="imagery"),
    case("N90", "a link to a folder that is gone", "lost-package missing-file", "toolkit",
         lambda maker, folder: _linked_folder(maker, folder, gone=True), run="worker", remark="share/toolkit"),
    case("N91", "a mistake in the user's own script", "run-failed", "-", _own_mistake, run="app.py", remark="app.py"),
    case("N92", "instructions that the processor lacks", "run-failed", "fastmath", _illegal, run="fastmath", remark="SIGILL"),
    case("N93", "an egg-link to a checkout that is gone", "path-gone", "ourcode -", _egg_link, run="caller", remark="checkout"),
    case("N94", "an extension of a Python for debugging", "tag-mismatch dead-extension", "speedy", _debug_build, run="speedy"),
    case("N95", "the driver was replaced below a running machine", "driver-mismatch driver-absent driver-too-old", "torch -",
         _driver_replaced, run="serving", remark="mismatch"),
    case("N96", "no headers of Python for what compiles", "compiler-absent run-failed", "triton -", _no_headers, run="triton",
         remark="Python.h"),
    case("N97", "what an extra would have brought", "module-missing requires-dist", "websocketly", _extra, run="serverly", remark="standard"),
    case("N98", "an interpreter that may not be executed", "interpreter-problem interpreter-gone", "", _not_executable, run="worker"),
    case("N99", "an interpreter without its library", "interpreter-problem interpreter-gone", "", _no_libpython, run="worker",
         remark="libpython3.12.so.1.0"),
    case("H26", "a link to a folder that is there", "", "", lambda maker, folder: _linked_folder(maker, folder, gone=False),
         run="worker", fails=False),
    case("H27", "a RECORD that was cut off", "", "", _cut_record, run="worker", fails=False),
    case("H28", "requirements in a form of long ago", "", "", _legacy_requirement, run="veteran", fails=False),
    case("H29", "blanks in the path of the venv", "", "", _spaces, run="served", fails=False),
    case("H30", "the __init__.py of a namespace went with another package", "", "", _shared_namespace_file, run="gemms", fails=False),
    real("W33", "marshmallow 4 below environs 9", "name-missing requires-dist", "marshmallow environs",
         of_wheels("environs==9.5.0", "marshmallow==4.0.0"), run="environs"),
    real("W34", "pyOpenSSL of before with cryptography of today", "name-missing", "cryptography pyopenssl",
         of_wheels("pyopenssl==22.0.0", "cryptography==46.0.3"), run="OpenSSL"),
    real("W36", "a package for an older Python", "name-missing module-missing", "nose", of_wheels("nose==1.3.7"), run="nose"),
    real("W37", "jinja2 3.1 below a package that takes what it dropped", "name-missing", "jinja2 jinja2-time nbconvert flask",
         of_wheels("flask==1.0.4", "jinja2==3.1.6", "werkzeug==1.0.1", "itsdangerous==1.1.0", "markupsafe==2.1.5"), run="flask"),
]  # fmt: skip
