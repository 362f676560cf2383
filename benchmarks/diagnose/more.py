"""A second helping of cases that nobody listed, made after the first were right: kinds that the rules had not been written against."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.diagnose import recipes
from benchmarks.diagnose.case import Built, Case
from benchmarks.diagnose.case import recipe as case
from benchmarks.diagnose.listed import install
from benchmarks.diagnose.making import remove, replace, site
from tests.support.tiny_elf import tiny_library
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.diagnose.making import Maker


def _torch_symbol(maker: Maker, folder: Path) -> Built:
    """Built against another torch of the same CUDA, as a wheel of flash-attn that somebody made at home."""
    wheels = folder / "wheels"
    attention = recipes.kernel(wheels, "flash-att", "2.8.3", module="flash_att", check="_ZN3c104cuda9SetDeviceEab")
    return Built(
        prefix=install(maker, folder, [recipes.torch(wheels), attention]), library="flash_att/common_ops.abi3.so"
    )


def _empty_metadata(maker: Maker, folder: Path) -> Built:
    """A disk that was full when METADATA was written."""
    code = "from importlib.metadata import version\n__version__ = '.'.join(version('versioned').split('.'))\n"
    prefix = install(maker, folder, [make_wheel(folder, "versioned", "1.0", {"versioned/__init__.py": code})])
    replace(site(prefix) / "versioned-1.0.dist-info/METADATA", "")
    return Built(prefix=prefix)


def _musl(maker: Maker, folder: Path) -> Built:
    wheel = make_wheel(
        folder,
        "alpine",
        "1.0",
        {
            "alpine/__init__.py": "from alpine import _speed\n",
            "alpine/_speed.cpython-312-x86_64-linux-musl.so": tiny_library(
                needed=["libc.musl-x86_64.so.1"], exports=["PyInit__speed"]
            ),
        },
        tag="cp312-cp312-musllinux_1_2_x86_64",
    )
    prefix = maker.venv(folder / "venv")
    maker.unzip(prefix, wheel)
    return Built(prefix=prefix)


def _dropped_module(maker: Maker, folder: Path) -> Built:
    new = make_wheel(folder, "toolbox", "82.0", {"toolbox/__init__.py": "", "toolbox/build.py": ""})
    user = make_wheel(
        folder, "olduser", "1.0", {"olduser/__init__.py": "import toolbox.legacy\n"}, requires=["toolbox"]
    )
    return Built(prefix=install(maker, folder, [new, user]))


def _dropped_attribute(maker: Maker, folder: Path) -> Built:
    new = make_wheel(folder, "arraybox", "2.0", {"arraybox/__init__.py": "double = float\n"})
    code = "import arraybox\nDEFAULT = arraybox.single\n"
    user = make_wheel(folder, "olduser", "1.0", {"olduser/__init__.py": code}, requires=["arraybox"])
    return Built(prefix=install(maker, folder, [new, user]))


def _other_name(maker: Maker, folder: Path) -> Built:
    code = "try:\n    import yamlish\nexcept ImportError:\n    raise RuntimeError('configuration cannot be read') from None\n"
    user = make_wheel(folder, "confuser", "1.0", {"confuser/__init__.py": code}, requires=["PyYamlish>=6"])
    return Built(prefix=install(maker, folder, [user]))


def _undeclared(maker: Maker, folder: Path) -> Built:
    user = make_wheel(folder, "careless", "1.0", {"careless/__init__.py": "import sixish\n"})
    return Built(prefix=install(maker, folder, [user]))


def _namespace(maker: Maker, folder: Path) -> Built:
    """Somebody made a package of a namespace: its other parts, in another folder of the path, are not found any more."""
    buffers = make_wheel(folder, "gbuffers", "6.0", {"goo/buffers/__init__.py": "x = 1\n"})
    user = make_wheel(folder, "gcloud", "1.0", {"goo/cloud/__init__.py": "import goo.buffers\n"}, requires=["gbuffers"])
    prefix = install(maker, folder, [buffers, user])
    extra = folder / "checkout/goo"
    extra.mkdir(parents=True)
    (extra / "__init__.py").write_text("", encoding="utf-8")
    return Built(prefix=prefix, environ={"PYTHONPATH": os.fspath(extra.parent)})


def _broken_hook(maker: Maker, folder: Path) -> Built:
    hook = make_wheel(folder, "tracer", "1.0", {"tracer_start.py": "", "tracer.pth": "import tracer_start\n"})
    prefix = install(maker, folder, [hook, make_wheel(folder, "plain", "1.0")])
    remove(site(prefix) / "tracer_start.py")
    return Built(prefix=prefix)


def _leftover(maker: Maker, folder: Path) -> Built:
    """An update was interrupted: the old package is under a name with a tilde, the new one is not there."""
    wheel = make_wheel(folder, "arrayish", "2.3.5", {"arrayish/__init__.py": "x = 1\n", "arrayish/core.py": ""})
    user = make_wheel(folder, "frames", "1.0", {"frames/__init__.py": "import arrayish\n"}, requires=["arrayish>=2"])
    prefix = install(maker, folder, [wheel, user])
    (site(prefix) / "arrayish").rename(site(prefix) / "~rrayish")
    (site(prefix) / "arrayish-2.3.5.dist-info").rename(site(prefix) / "~rrayish-2.3.5.dist-info")
    return Built(prefix=prefix)


def _newlines(maker: Maker, folder: Path) -> Built:
    """A venv in git, where every line end became two bytes."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.kernel(wheels)])
    path = site(prefix) / "sgl_kernel/common_ops.abi3.so"
    content = path.read_bytes()
    replace(path, content[:64] + content[64:].replace(b"\x00\x01", b"\x00\r\x01"))
    return Built(prefix=prefix, library="sgl_kernel/common_ops.abi3.so")


def _two_torches(maker: Maker, folder: Path) -> Built:
    """`pip install --target` beside the venv, found first."""
    wheels = folder / "wheels"
    prefix = install(maker, folder, [recipes.torch(wheels), recipes.vision(wheels)])
    other = maker.venv(folder / "other")
    for wheel in recipes.torch(folder / "old", "2.9.1", cuda="12.8"):
        maker.wheel(other, wheel)
    return Built(prefix=prefix, environ={"PYTHONPATH": os.fspath(site(other))})


CASES: list[Case] = [
    case("N29", "kernels built against another torch of the same CUDA",
         "torch-abi-mismatch undefined-symbol", "flash-att", _torch_symbol, run="flash_att"),
    case("N30", "METADATA without content",
         "metadata-version no-record edited-file drift", "versioned", _empty_metadata, run="versioned"),
    case("N31", "a wheel for musl", "tag-mismatch dead-extension interpreter-minor", "alpine", _musl, run="alpine"),
    case("N32", "a module that the new release has dropped", "module-missing", "toolbox olduser", _dropped_module, run="olduser"),
    case("N33", "a name that the new release has dropped", "name-missing", "arraybox olduser", _dropped_attribute, run="olduser"),
    case("N34", "a requirement that is missing under another name", "requires-dist", "pyyamlish confuser", _other_name, run="confuser"),
    case("N35", "a requirement that nobody declared", "module-missing", "sixish careless", _undeclared, run="careless"),
    case("N36", "a folder of PYTHONPATH that takes a namespace over", "shadowed-module", "gcloud gbuffers", _namespace, run="goo.cloud"),
    case("N37", "a start-up hook whose module is gone",
         "missing-file lost-package startup-hook", "tracer", _broken_hook, run="plain", fails=False),
    case("N38", "what an interrupted update left", "leftover requires-dist module-missing lost-package", "arrayish", _leftover, run="frames"),
    case("N39", "a library in which line ends were changed",
         "damaged-binary edited-file not-a-library", "sglang-kernel", _newlines, run="sgl_kernel"),
    case("N40", "another torch before the venv's", "shadowed-module", "torch", _two_torches, run="torchvision"),
]  # fmt: skip
