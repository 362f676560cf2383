"""A third helping, each expectation written down before it was run: what installers, copies and paths do to a venv.

Those of GPUs are in `third_gpu.py`, those of real wheels in `third_wheels.py`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from benchmarks.commands import CannotMeasure
from benchmarks.diagnose import recipes
from benchmarks.diagnose.case import Built, Case
from benchmarks.diagnose.case import recipe as case
from benchmarks.diagnose.listed import install
from benchmarks.diagnose.making import PYTHON_MINOR, age, remove, replace, site
from builder import process
from tests.support.tiny_elf import Wanted, tiny_library
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.diagnose.making import Maker


def toolkit(folder: Path, version: str, *, labelled: bool = True) -> Path:
    """A package whose release 2 has a module and a name more than its release 1."""
    files: dict[str, bytes | str] = {
        "toolkit/__init__.py": f"from toolkit.core import start  # {version}\n",
        "toolkit/core.py": f"def start():\n    return {version!r}\n",
        "toolkit/plain.py": "x = 1\n",
    }
    if version.startswith("2"):
        files["toolkit/core.py"] = "from toolkit.fresh import start, stop\n"
        files["toolkit/fresh.py"] = "def start():\n    pass\ndef stop():\n    pass\n"
    if labelled:
        files["toolkit/version.py"] = f"__version__ = '{version}'\n"
    return make_wheel(folder, "toolkit", version, files)


def user_of_toolkit(folder: Path, requires: str = "toolkit>=2") -> Path:
    """A package that needs release 2."""
    return make_wheel(
        folder, "worker", "1.0", {"worker/__init__.py": "from toolkit.core import stop\n"}, requires=[requires]
    )


def _half_upgraded(maker: Maker, folder: Path, *, labelled: bool) -> Built:
    """The metadata of the new release, the files of the old one: the copy stopped between the two."""
    prefix = install(maker, folder, [toolkit(folder / "old", "1.4", labelled=labelled), user_of_toolkit(folder)])
    other = maker.venv(folder / "new-venv")
    maker.wheel(other, toolkit(folder / "new", "2.1", labelled=labelled))
    remove(site(prefix) / "toolkit-1.4.dist-info")
    (site(other) / "toolkit-2.1.dist-info").rename(site(prefix) / "toolkit-2.1.dist-info")
    return Built(prefix=prefix)


def _interrupted(maker: Maker, folder: Path) -> Built:
    """Pip was stopped while it unpacked the new release: the old one is under names with a tilde, half of the new one is there."""
    prefix = install(maker, folder, [toolkit(folder / "old", "1.4"), user_of_toolkit(folder)])
    (site(prefix) / "toolkit").rename(site(prefix) / "~oolkit")
    (site(prefix) / "toolkit-1.4.dist-info").rename(site(prefix) / "~oolkit-1.4.dist-info")
    (site(prefix) / "toolkit").mkdir()
    replace(site(prefix) / "toolkit/__init__.py", "from toolkit.core import start  # 2.1\n")
    return Built(prefix=prefix)


def _target(maker: Maker, folder: Path) -> Built:
    """`pip install --target` leaves a folder that is there as it is, and adds the metadata of what it did not install."""
    prefix = install(maker, folder, [toolkit(folder / "old", "1.4", labelled=False), user_of_toolkit(folder)])
    new = toolkit(folder / "new", "2.1", labelled=False)
    done = process.run(
        [os.fspath(maker.python), "-m", "pip", "install", "--no-deps", "--no-index", "--quiet",
         "--disable-pip-version-check", "--target", os.fspath(site(prefix)), os.fspath(new)],
        env={**os.environ}, cwd=folder, timeout_s=120,
    )  # fmt: skip
    if done.returncode != 0:
        raise CannotMeasure(f"pip: {done.stderr[-300:]}")
    age(prefix)
    return Built(prefix=prefix)


def _other_python(maker: Maker, folder: Path) -> Built:
    """`bin/python` follows a link to what `python3` is after an upgrade; pyvenv.cfg still says what it was."""
    other = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == PYTHON_MINOR:
        raise CannotMeasure("there is no other Python")
    prefix = install(maker, folder, [toolkit(folder, "2.1")])
    for name in ("python", "python3", f"python{PYTHON_MINOR}"):
        (prefix / "bin" / name).unlink(missing_ok=True)
    (prefix / "bin/python").symlink_to(other)
    (prefix / "bin/python3").symlink_to("python")
    return Built(prefix=prefix)


def _foreign_suffix(maker: Maker, folder: Path) -> Built:
    """`pip install --platform manylinux2014_aarch64 --target`, as somebody does who fills a cache for other machines."""
    wheel = make_wheel(
        folder, "fastjson", "3.11.4",
        {"fastjson/__init__.py": "from fastjson.fastjson import loads\n",
         "fastjson/fastjson.cpython-312-aarch64-linux-gnu.so": tiny_library(exports=["PyInit_fastjson"], machine="aarch64")},
        tag="cp312-cp312-manylinux_2_17_aarch64",
    )  # fmt: skip
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, wheel)
    return Built(prefix=prefix, library="fastjson/fastjson.cpython-312-aarch64-linux-gnu.so")


def _newer_abi3(maker: Maker, folder: Path) -> Built:
    """A module of the stable interface of a later Python: its name fits, a function is not there."""
    wheel = make_wheel(
        folder, "clocks", "1.0",
        {"clocks/__init__.py": "from clocks import _ticks\n",
         "clocks/_ticks.abi3.so": tiny_library(exports=["PyInit__ticks"], undefined=[Wanted("PyLong_AsInt32")])},
        tag="cp314-abi3-manylinux_2_17_x86_64",
    )  # fmt: skip
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, wheel)
    return Built(prefix=prefix, library="clocks/_ticks.abi3.so")


def _generated(maker: Maker, folder: Path) -> Built:
    """Code that was generated by a newer compiler than the runtime can read; no requirement says so."""
    check = (
        "class VersionError(Exception):\n    pass\ndef validate(major, name):\n    if major > 5:\n"
        "        raise VersionError(f'Detected incompatible Protorun Gencode/Runtime versions when loading {name}: gencode 6.31.1 '\n"
        "            'runtime 5.29.5. Runtime version cannot be older than the linked gencode version.')\n"
    )
    runtime = make_wheel(folder, "protorun", "5.29.5", {"protorun/__init__.py": "", "protorun/versions.py": check})
    user = make_wheel(
        folder, "tracewire", "1.36",
        {"tracewire/__init__.py": "from tracewire import wire_pb2\n",
         "tracewire/wire_pb2.py": "from protorun import versions\nversions.validate(6, 'wire.proto')\n"},
        requires=["protorun"],
    )  # fmt: skip
    return Built(prefix=install(maker, folder, [runtime, user]))


def _script(maker: Maker, folder: Path, name: str, text: str, wheels: list[Path], beside: dict[str, str]) -> Built:
    project = folder / "project"
    project.mkdir(parents=True)
    for path, content in {name: text, **beside}.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(content, encoding="utf-8")
    return Built(prefix=install(maker, folder, [*wheels]), cwd=project)


def _stray_queue(maker: Maker, folder: Path) -> Built:
    pool = make_wheel(folder, "pooling", "2.0", {"pooling/__init__.py": "import queue\nIDLE = queue.LifoQueue()\n"})
    return _script(maker, folder, "app.py", "import pooling\n", [pool], {"queue.py": "jobs = []\n"})


def _stray_types(maker: Maker, folder: Path) -> Built:
    """A name that Python itself needs early."""
    pool = make_wheel(folder, "pooling", "2.0", {"pooling/__init__.py": "import secrets\nsecrets.token_hex(2)\n"})
    return _script(maker, folder, "app.py", "import pooling\n", [pool], {"secrets.py": "KEY = 'x'\n"})


def _results_folder(maker: Maker, folder: Path) -> Built:
    """A folder of results is a namespace package where the package itself is not installed."""
    text = "import runlog\nrunlog.init(project='x')\n"
    return _script(maker, folder, "train.py", text, [toolkit(folder, "2.1")], {"runlog/run-1/summary.json": "{}\n"})


def _named_like(maker: Maker, folder: Path) -> Built:
    """A script with the name of what it imports."""
    text = "import tritonish\n@tritonish.jit\ndef kernel():\n    pass\n"
    wheel = make_wheel(folder, "tritonish", "3.6.0", {"tritonish/__init__.py": "def jit(f):\n    return f\n"})
    return _script(maker, folder, "tritonish.py", text, [wheel], {})


def _editable_finder(maker: Maker, folder: Path) -> Built:
    """As setuptools installs a checkout today: by a finder, and no path in a `.pth`. The checkout is gone."""
    finder = (
        "import sys\nfrom importlib.machinery import PathFinder\nfrom importlib.util import spec_from_file_location\n"
        f"MAPPING = {{'ourcode': {os.fspath(folder / 'checkout/src/ourcode')!r}}}\n"
        "class _EditableFinder:\n    @classmethod\n    def find_spec(cls, fullname, path=None, target=None):\n"
        "        import os\n        if fullname in MAPPING and os.path.exists(MAPPING[fullname] + '/__init__.py'):\n"
        "            return spec_from_file_location(fullname, MAPPING[fullname] + '/__init__.py')\n        return None\n"
        "def install():\n    sys.meta_path.append(_EditableFinder)\n"
    )
    wheel = make_wheel(
        folder, "ourcode", "0.1",
        {"__editable___ourcode_0_1_finder.py": finder,
         "__editable__.ourcode-0.1.pth": "import __editable___ourcode_0_1_finder; __editable___ourcode_0_1_finder.install()\n"},
    )  # fmt: skip
    prefix = install(maker, folder, [wheel])
    (info,) = site(prefix).glob("ourcode-*.dist-info")
    (info / "direct_url.json").write_text(
        '{"url": "file://' + os.fspath(folder / "checkout") + '", "dir_info": {"editable": true}}', encoding="utf-8"
    )
    return Built(prefix=prefix)


def _namespace(maker: Maker, folder: Path) -> Built:
    """Somebody made a package of one part of a namespace, in the venv; the other part lies in a checkout."""
    plugins = make_wheel(folder, "acme-plugins", "1.0", {"acme/plugins/__init__.py": "import acme.core\n"})
    prefix = install(maker, folder, [plugins])
    core = folder / "checkout/acme/core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("x = 1\n", encoding="utf-8")
    replace(site(prefix) / "checkout.pth", f"{folder / 'checkout'}\n")
    replace(site(prefix) / "acme/__init__.py", "")
    return Built(prefix=prefix)


def _first_by_hook(maker: Maker, folder: Path) -> Built:
    """A `.pth` with code that puts the packages of another venv first."""
    prefix = install(maker, folder, [toolkit(folder / "new", "2.1"), user_of_toolkit(folder)])
    other = maker.venv(folder / "other")
    maker.wheel(other, toolkit(folder / "old", "1.4"))
    replace(site(prefix) / "shared.pth", f"import sys; sys.path.insert(0, {os.fspath(site(other))!r})\n")
    return Built(prefix=prefix)


def _from_other_venv(maker: Maker, folder: Path) -> Built:
    """A `.pth` that adds the packages of another venv: what is not here comes from there, built for another torch."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels)])
    other = maker.venv(folder / "base")
    maker.wheel(other, recipes.vision(folder / "old", "0.24.1", cuda="12.8", of_torch="2.9.1"))
    replace(site(prefix) / "base.pth", f"{site(other)}\n")
    return Built(prefix=prefix)


def _user_site(maker: Maker, folder: Path) -> Built:
    """A requirement that only the user's own folder has, in too old a version, in a venv that sees it."""
    prefix = install(maker, folder, [user_of_toolkit(folder)])
    config = (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    replace(
        prefix / "pyvenv.cfg",
        config.replace("include-system-site-packages = false", "include-system-site-packages = true"),
    )
    other = maker.venv(folder / "old-venv")
    maker.wheel(other, toolkit(folder / "old", "1.4"))
    user = folder / f"home/.local/lib/python{PYTHON_MINOR}"
    user.mkdir(parents=True)
    site(other).rename(user / "site-packages")
    return Built(prefix=prefix)


def _python_path_only(maker: Maker, folder: Path) -> Built:
    """PYTHONPATH of a system with another Python, for a package that the venv has not: its extension is for that Python."""
    files: dict[str, bytes | str] = {
        "arrays/__init__.py": "from arrays import _core\n",
        "arrays/_core.cpython-311-x86_64-linux-gnu.so": tiny_library(exports=["PyInit__core"]),
    }
    other = folder / "opt/ros/lib/python3.11/site-packages"
    for path, content in files.items():
        (other / path).parent.mkdir(parents=True, exist_ok=True)
        (other / path).write_bytes(content.encode() if isinstance(content, str) else content)
    user = make_wheel(folder, "robot", "1.0", {"robot/__init__.py": "import arrays\n"})
    return Built(prefix=install(maker, folder, [user]), environ={"PYTHONPATH": os.fspath(other)})


def _preload_gone(maker: Maker, folder: Path, *, broken: bool) -> Built:
    """A library that LD_PRELOAD names is gone: the linker complains at every start, and goes on."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])
    if broken:
        remove(site(prefix) / "toolkit/fresh.py")
    return Built(prefix=prefix, environ={"LD_PRELOAD": "/usr/lib/gone/libjemalloc.so.2"})


def _no_bytes_library(maker: Maker, folder: Path) -> Built:
    """The disk was full."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.kernel(wheels)])
    replace(site(prefix) / "sgl_kernel/common_ops.abi3.so", b"")
    return Built(prefix=prefix, library="sgl_kernel/common_ops.abi3.so")


def _pointer_of_data(maker: Maker, folder: Path) -> Built:
    """Data of a package is a pointer of Git LFS, since somebody copied it out of a checkout."""
    code = "import json, pathlib\nVOICES = json.loads((pathlib.Path(__file__).parent / 'voices.json').read_text())\n"
    files: dict[str, bytes | str] = {
        "speaker/__init__.py": "from speaker import table\n",
        "speaker/table.py": code,
        "speaker/voices.json": "{" + ", ".join(f'"v{each}": {each}' for each in range(500)) + "}\n",
    }
    prefix = install(maker, folder, [make_wheel(folder, "speaker", "0.9", files)])
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 6789\n"
    replace(site(prefix) / "speaker/voices.json", pointer)
    return Built(prefix=prefix)


def _links_to_nowhere(maker: Maker, folder: Path) -> Built:
    """Everything is a link into a cache that was cleaned."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])
    for name in ("toolkit", "worker"):
        for path in sorted((site(prefix) / name).rglob("*.py")):
            path.unlink()
            path.symlink_to(f"/nowhere/cache/archive-v0/{name}/{path.name}")
    return Built(prefix=prefix)


def _file_for_folder(maker: Maker, folder: Path) -> Built:
    """A file lies where the folder of a package should be."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])
    remove(site(prefix) / "toolkit")
    (site(prefix) / "toolkit").write_text("", encoding="utf-8")
    return Built(prefix=prefix)


def _without_init(maker: Maker, folder: Path) -> Built:
    """Without its `__init__.py` a package is a namespace, and has no names."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), make_wheel(
        folder, "worker", "1.0", {"worker/__init__.py": "from toolkit import start\n"}, requires=["toolkit"])])  # fmt: skip
    remove(site(prefix) / "toolkit/__init__.py")
    return Built(prefix=prefix)


def _stale_package(maker: Maker, folder: Path) -> Built:
    """The new release has a module where the old one had a package, whose folder stayed: Python takes the folder."""
    new = {"engine/__init__.py": "from engine.ops import fuse\n", "engine/ops.py": "def fuse():\n    pass\n"}
    prefix = install(maker, folder, [make_wheel(folder, "engine", "2.0", new)])
    replace(site(prefix) / "engine/ops/__init__.py", "from engine.ops.old import split\n")
    replace(site(prefix) / "engine/ops/old.py", "def split():\n    pass\n")
    return Built(prefix=prefix)


def _cut_bytecode(maker: Maker, folder: Path) -> Built:
    """Bytecode that a full disk cut off, with the time of its source: Python believes it."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])
    python = os.fspath(prefix / "bin/python")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process.run([python, "-c", "import toolkit.core"], env=environ, cwd=folder, timeout_s=60)
    (path,) = (site(prefix) / "toolkit/__pycache__").glob("core.*.pyc")
    path.write_bytes(path.read_bytes()[:40])
    return Built(prefix=prefix)


def _removed_distutils(maker: Maker, folder: Path) -> Built:
    user = make_wheel(
        folder, "oldbuild", "1.0", {"oldbuild/__init__.py": "from distutils.version import LooseVersion\n"}
    )
    return Built(prefix=install(maker, folder, [user]))


def _system_library(maker: Maker, folder: Path) -> Built:
    """LD_LIBRARY_PATH of conda brings an old libz."""
    library = tiny_library(
        needed=["libz.so.1"], exports=["PyInit__codec"],
        undefined=[Wanted("inflateGetDictionary", version="ZLIB_1.2.7.1", library="libz.so.1")],
    )  # fmt: skip
    wheel = make_wheel(
        folder, "codecs-x", "1.0",
        {"codecs_x/__init__.py": "from codecs_x import _codec\n", f"codecs_x/_codec.{recipes.SUFFIX}": library}, tag=recipes.TAG,
    )  # fmt: skip
    decoy = folder / "miniconda3/lib"
    decoy.mkdir(parents=True)
    (decoy / "libz.so.1").write_bytes(tiny_library(soname="libz.so.1", exports=["inflate@ZLIB_1.2.0"]))
    return Built(
        prefix=install(maker, folder, [wheel]),
        environ={"LD_LIBRARY_PATH": os.fspath(decoy)},
        library=f"codecs_x/_codec.{recipes.SUFFIX}",
    )


def _egg(maker: Maker, folder: Path) -> Built:
    """An egg in the old way, which only `easy-install.pth` knows; who requires it is content."""
    prefix = install(maker, folder, [user_of_toolkit(folder)])
    egg = site(prefix) / f"toolkit-2.1-py{PYTHON_MINOR}.egg"
    other = maker.venv(folder / "egg-venv")
    maker.wheel(other, toolkit(folder, "2.1"))
    (egg / "EGG-INFO").mkdir(parents=True)
    (site(other) / "toolkit").rename(egg / "toolkit")
    (egg / "EGG-INFO/PKG-INFO").write_text("Metadata-Version: 2.1\nName: toolkit\nVersion: 2.1\n", encoding="utf-8")
    replace(site(prefix) / "easy-install.pth", f"./{egg.name}\n")
    return Built(prefix=prefix)


def _backports(maker: Maker, folder: Path) -> Built:
    """Backports of what Python has: `typing`, `dataclasses`, `enum34` lie in site-packages, and hide nothing there."""
    wheels = [
        make_wheel(folder, name, "1.0", {f"{module}.py": "raise ImportError('too old')\n"})
        for name, module in (("typing", "typing"), ("dataclasses", "dataclasses"))
    ]
    wheels.append(make_wheel(folder, "enum34", "1.1.10", {"enum/__init__.py": "raise ImportError('too old')\n"}))
    return Built(prefix=install(maker, folder, [*wheels, toolkit(folder, "2.1"), user_of_toolkit(folder)]))


def _other_patch(maker: Maker, folder: Path) -> Built:
    """The interpreter was brought to another patch release below the venv."""
    prefix = install(maker, folder, [toolkit(folder, "2.1"), user_of_toolkit(folder)])
    lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    changed = [f"{line.partition('=')[0]}= {PYTHON_MINOR}.0" if line.startswith("version") else line for line in lines]
    replace(prefix / "pyvenv.cfg", "\n".join(changed) + "\n")
    return Built(prefix=prefix)


CASES: list[Case] = [
    case("N41", "metadata of the new release, files of the old one", "version-inside", "toolkit",
         lambda maker, folder: _half_upgraded(maker, folder, labelled=True), run="worker"),
    case("N42", "the same, and nothing inside says its version", "missing-file version-inside edited-file", "toolkit",
         lambda maker, folder: _half_upgraded(maker, folder, labelled=False), run="worker"),
    case("N43", "an upgrade by pip that was stopped half-way", "leftover requires-dist missing-file", "toolkit", _interrupted,
         run="worker", remark="~oolkit"),
    case("N44", "pip install --target over a venv", "two-versions", "toolkit", _target, run="worker"),
    case("N45", "bin/python has become another Python", "interpreter-minor", "", _other_python, run="toolkit"),
    case("N46", "an extension for aarch64 by its name", "foreign-machine tag-mismatch", "fastjson", _foreign_suffix, run="fastjson"),
    case("N47", "stable interface of a later Python", "tag-mismatch", "clocks", _newer_abi3, run="clocks"),
    case("N48", "generated code newer than its runtime", "generated-code name-missing run-failed", "protorun", _generated, run="tracewire"),
    case("N49", "a queue.py beside the script", "shadowed-module", "", _stray_queue, run="app.py", remark="queue.py"),
    case("N50", "a secrets.py beside the script", "shadowed-module", "", _stray_types, run="app.py", remark="secrets.py"),
    case("N51", "a folder of results with the name of what is not installed", "module-missing shadowed-module", "runlog",
         _results_folder, run="train.py"),
    case("N52", "a script with the name of what it imports", "shadowed-module", "tritonish -", _named_like,
         run="tritonish.py", remark="tritonish.py"),
    case("N53", "a checkout that an editable finder names is gone", "path-gone", "ourcode", _editable_finder, run="ourcode"),
    case("N54", "an __init__.py in a namespace of the venv", "stray-code stray-module shadowed-module", "",
         _namespace, run="acme.plugins", remark="acme/__init__.py"),
    case("N55", "a .pth that puts another venv first", "shadowed-module stray-code", "", _first_by_hook, run="worker", remark="shared.pth"),
    case("N56", "a .pth that adds another venv with another CUDA", "outside-package shadowed-module cuda-major-mismatch", "torchvision",
         _from_other_venv, run="torchvision", remark="base.pth"),
    case("N57", "a requirement of the user's own folder, too old", "requires-dist", "toolkit worker", _user_site, run="worker", remark="1.4"),
    case("N58", "PYTHONPATH with extensions of another Python", "outside-package shadowed-module", "arrays", _python_path_only,
         run="robot", remark="PYTHONPATH"),
    case("N59", "LD_PRELOAD of a file that is gone", "", "", lambda maker, folder: _preload_gone(maker, folder, broken=False),
         run="worker", fails=False, remark="libjemalloc"),
    case("N60", "the same, and a deleted module", "missing-file", "toolkit",
         lambda maker, folder: _preload_gone(maker, folder, broken=True), run="worker"),
    case("N61", "a library of no bytes", "not-a-library edited-file damaged-binary", "sglang-kernel", _no_bytes_library, run="sgl_kernel"),
    case("N62", "data that is a pointer of Git LFS", "cut-off-file edited-file", "speaker", _pointer_of_data,
         run="speaker", remark="voices.json"),
    case("N63", "links into a cache that was cleaned", "lost-package missing-file", "toolkit worker", _links_to_nowhere,
         run="worker", fails=False, remark="/nowhere/cache"),
    case("N64", "a file in the place of a folder", "lost-package missing-file", "toolkit", _file_for_folder, run="worker"),
    case("N65", "a package without its __init__.py", "missing-file", "toolkit", _without_init, run="worker"),
    case("N66", "a folder of the old release before a module of the new one", "stray-code", "engine", _stale_package, run="engine"),
    case("N67", "bytecode that was cut off", "bad-bytecode", "toolkit", _cut_bytecode, run="worker"),
    case("N68", "a module that Python no longer has", "module-missing", "oldbuild", _removed_distutils, run="oldbuild"),
    case("N69", "LD_LIBRARY_PATH with an old libz", "library-path", "", _system_library, run="codecs_x"),
    case("H7", "an egg in the old way", "", "", _egg, run="worker", fails=False),
    case("H8", "backports of the standard library", "", "", _backports, run="worker", fails=False),
    case("H9", "another patch release of Python", "", "", _other_patch, run="worker", fails=False),
]  # fmt: skip
