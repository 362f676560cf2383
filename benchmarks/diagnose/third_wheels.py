"""The third helping with real wheels, all of them small, and further healthy venvs: other makers, other layouts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.commands import CannotMeasure
from benchmarks.diagnose.case import Built, Case
from benchmarks.diagnose.case import real as case
from benchmarks.diagnose.making import PYTHON_MINOR, remove, replace, site, uninstall
from builder import process
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.diagnose.making import Maker

PLATFORM = "--python-platform"


def _of(maker: Maker, folder: Path, *requirements: str) -> Path:
    prefix = maker.venv(folder / "venv")
    maker.install(prefix, *requirements)
    return prefix


def _forced(maker: Maker, prefix: Path, requirement: str) -> None:
    """One package in another version, whatever others require."""
    uninstall(prefix, requirement.partition("==")[0].replace("-", "_"))
    maker.install(prefix, requirement, deps=False)


def _into(maker: Maker, folder: Path, requirement: str, platform: str, python: str = PYTHON_MINOR) -> Built:
    """As somebody fills a venv for another machine."""
    prefix = maker.venv(folder / "venv")
    maker.install(
        prefix, "--python-version", python, PLATFORM, platform, "--target", os.fspath(site(prefix)), requirement
    )
    return Built(prefix=prefix)


def _project(prefix: Path, folder: Path, **scripts: str) -> Built:
    project = folder / "project"
    project.mkdir()
    for name, text in scripts.items():
        (project / f"{name}.py").write_text(text, encoding="utf-8")
    return Built(prefix=prefix, cwd=project)


def _headless(maker: Maker, folder: Path) -> Built:
    """Both packages of OpenCV were there, and one was uninstalled."""
    prefix = _of(maker, folder, "opencv-python-headless==4.12.0.88", "numpy<2.3")
    maker.install(prefix, "opencv-python==4.12.0.88", deps=False)
    uninstall(prefix, "opencv_python")
    return Built(prefix=prefix)


def _hub(maker: Maker, folder: Path) -> Built:
    prefix = _of(maker, folder, "transformers==4.57.1")
    maker.install(prefix, "httpx", "shellingham", "typer-slim")  # which the newer one requires
    _forced(maker, prefix, "huggingface_hub==1.0.1")
    return Built(prefix=prefix)


def _typing(maker: Maker, folder: Path) -> Built:
    prefix = _of(maker, folder, "pydantic==2.11.9")
    _forced(maker, prefix, "typing_extensions==4.5.0")
    return Built(prefix=prefix)


def _newer_code(maker: Maker, folder: Path) -> Built:
    """The user's own generated code is of a newer protoc than the runtime."""
    text = (
        "from google.protobuf import runtime_version\n"
        "runtime_version.ValidateProtobufRuntimeVersion(runtime_version.Domain.PUBLIC, 6, 31, 1, '', 'wire.proto')\n"
    )
    return _project(_of(maker, folder, "protobuf==5.29.5"), folder, server="import wire_pb2\n", wire_pb2=text)


def _older_code(maker: Maker, folder: Path) -> Built:
    """A package whose generated code is of a protoc before 3.19; its requirement has no upper bound."""
    return Built(prefix=_of(maker, folder, "tensorboardX==2.5", "protobuf==6.31.1", "numpy<2.4"))


def _musl(maker: Maker, folder: Path) -> Built:
    return _into(maker, folder, "orjson==3.11.4", "x86_64-unknown-linux-musl")


def _aarch64(maker: Maker, folder: Path) -> Built:
    return _into(maker, folder, "lxml==6.0.2", "aarch64-manylinux_2_28")


def _no_cffi(maker: Maker, folder: Path) -> Built:
    prefix = _of(maker, folder, "cryptography==46.0.3")
    uninstall(prefix, "cffi")
    return Built(prefix=prefix)


def _no_pkg_resources(maker: Maker, folder: Path) -> Built:
    prefix = _of(maker, folder, "setuptools>=82")
    code = "import pkg_resources\n__version__ = pkg_resources.get_distribution('oldplugin').version\n"
    maker.wheel(
        prefix, make_wheel(folder, "oldplugin", "1.0", {"oldplugin/__init__.py": code}, requires=["setuptools"])
    )
    return Built(prefix=prefix)


def _cached_download(maker: Maker, folder: Path) -> Built:
    return Built(prefix=_of(maker, folder, "diffusers==0.24.0", "huggingface-hub==0.27.0"))


def _werkzeug(maker: Maker, folder: Path) -> Built:
    return Built(prefix=_of(maker, folder, "flask==2.2.2", "werkzeug==3.0.1"))


def _proxies(maker: Maker, folder: Path) -> Built:
    """A keyword that the other package took away; both requirements hold."""
    prefix = _of(maker, folder, "openai==1.50.0", "httpx==0.28.1")
    return _project(prefix, folder, chat="from openai import OpenAI\nOpenAI(api_key='x')\n")


def _removed_alias(maker: Maker, folder: Path) -> Built:
    prefix = _of(maker, folder, "numpy==2.3.5")
    code = "import numpy as np\nEMPTY = np.float_(0)\n"
    maker.wheel(prefix, make_wheel(folder, "oldsci", "0.3", {"oldsci/__init__.py": code}, requires=["numpy"]))
    return Built(prefix=prefix)


def _moved_settings(maker: Maker, folder: Path) -> Built:
    prefix = _of(maker, folder, "pydantic==2.11.9")
    code = "from pydantic import BaseSettings\nclass Settings(BaseSettings):\n    pass\n"
    maker.wheel(prefix, make_wheel(folder, "oldapp", "1.0", {"oldapp/__init__.py": code}, requires=["pydantic"]))
    return Built(prefix=prefix)


def _dotenv(maker: Maker, folder: Path) -> Built:
    """The module of a project with another name."""
    return _project(_of(maker, folder, "click"), folder, app="import click\nfrom dotenv import load_dotenv\n")


def _link_mode(maker: Maker, folder: Path) -> Built:
    """Uv with links into its cache, which was then cleaned."""
    prefix = maker.venv(folder / "venv")
    cache = folder / "cache"
    done = process.run(
        [os.fspath(maker.uv), "pip", "install", "--quiet", "--python", os.fspath(prefix / "bin/python"), "--link-mode",
         "symlink", "--cache-dir", os.fspath(cache), "requests==2.32.5"],
        env={**os.environ}, cwd=folder, timeout_s=600,
    )  # fmt: skip
    if done.returncode != 0:
        raise CannotMeasure(f"uv: {done.stderr[-300:]}")
    remove(cache)
    return Built(prefix=prefix)


def _old_extension(maker: Maker, folder: Path) -> Built:
    """The extension of the release before stayed beside the code of the new one: pydantic-core says so itself."""
    prefix = _of(maker, folder, "pydantic-core==2.41.5")
    old = maker.venv(folder / "old")
    maker.install(old, "pydantic-core==2.33.2")
    (new,) = (site(prefix) / "pydantic_core").glob("_pydantic_core.*.so")
    (other,) = (site(old) / "pydantic_core").glob("_pydantic_core.*.so")
    replace(new, other.read_bytes())
    maker.install(prefix, "pydantic==2.12.5")
    return Built(prefix=prefix)


def _only_metadata_gone(maker: Maker, folder: Path) -> Built:
    """METADATA and RECORD were lost, the files are there; whoever asks for the version finds nothing."""
    prefix = _of(maker, folder, "transformers==4.57.1")
    (info,) = site(prefix).glob("tqdm-*.dist-info")
    remove(info)
    return Built(prefix=prefix)


def _healthy(*requirements: str, options: tuple[str, ...] = ()) -> Callable[[Maker, Path], Built]:
    def build(maker: Maker, folder: Path) -> Built:
        prefix = maker.venv(folder / "venv")
        maker.install(prefix, *options, *requirements)
        return Built(prefix=prefix)

    return build


def _by_pip(maker: Maker, folder: Path) -> Built:
    """`python -m venv` and its pip, which writes other metadata."""
    prefix = folder / "venv"
    _run(maker, folder, os.fspath(maker.python), "-m", "venv", os.fspath(prefix))
    _run(
        maker,
        folder,
        os.fspath(prefix / "bin/python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "flask",
        "gunicorn",
        "redis",
        "celery",
    )
    return Built(prefix=prefix)


def _by_virtualenv(maker: Maker, folder: Path) -> Built:
    tools = maker.venv(folder / "tools")
    maker.install(tools, "virtualenv")
    prefix = folder / "venv"
    _run(
        maker,
        folder,
        os.fspath(tools / "bin/virtualenv"),
        "--quiet",
        "--python",
        os.fspath(maker.python),
        os.fspath(prefix),
    )
    maker.install(prefix, "poetry-core", "aiohttp", "rich", "typer")
    return Built(prefix=prefix)


def _sees_system(maker: Maker, folder: Path) -> Built:
    """A venv that takes a requirement from the Python below it: here another folder plays that Python."""
    prefix = folder / "venv"
    _run(
        maker,
        folder,
        os.fspath(maker.python),
        "-m",
        "venv",
        "--system-site-packages",
        "--without-pip",
        os.fspath(prefix),
    )
    maker.install(prefix, "requests", deps=False)
    user = folder / f"home/.local/lib/python{PYTHON_MINOR}/site-packages"
    maker.install(prefix, "--target", os.fspath(user), "urllib3", "idna", "certifi", "charset-normalizer")
    return Built(prefix=prefix)


def _editable(maker: Maker, folder: Path) -> Built:
    """A checkout that is installed for work on it."""
    prefix = _of(maker, folder, "setuptools", "wheel", "numpy")
    checkout = folder / "checkout"
    (checkout / "src/ours").mkdir(parents=True)
    (checkout / "src/ours/__init__.py").write_text("import numpy\n", encoding="utf-8")
    text = (
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'ours'\nversion = '0.1'\ndependencies = ['numpy']\n"
    )
    (checkout / "pyproject.toml").write_text(text, encoding="utf-8")
    maker.install(prefix, "--no-build-isolation", "--editable", os.fspath(checkout))
    return Built(prefix=prefix)


def _conda(maker: Maker, folder: Path) -> Built:
    """A prefix of conda: no pyvenv.cfg, `conda-meta`, packages whose installer is conda."""
    prefix = _of(maker, folder, "numpy", "pandas", "requests")
    (prefix / "pyvenv.cfg").unlink()
    (prefix / "conda-meta").mkdir()
    (prefix / "conda-meta/history").write_text("==> 2026-11-01 <==\n", encoding="utf-8")
    for info in site(prefix).glob("*.dist-info"):
        replace(info / "INSTALLER", "conda\n")
    return Built(prefix=prefix)


def _run(maker: Maker, folder: Path, *argv: str) -> None:
    del maker
    done = process.run(list(argv), env={**os.environ}, cwd=folder, timeout_s=600)
    if done.returncode != 0:
        raise CannotMeasure(f"{argv[0].rpartition('/')[2]}: {done.stderr[-300:]}")


CASES: list[Case] = [
    case("W14", "one package of OpenCV uninstalled from beside the other", "lost-package missing-file", "opencv-python-headless",
         _headless, run="cv2", fails=False),
    case("W15", "huggingface-hub too new for transformers", "requires-dist", "huggingface-hub transformers", _hub, run="transformers"),
    case("W16", "typing_extensions too old for pydantic", "requires-dist", "typing-extensions pydantic pydantic-core", _typing, run="pydantic"),
    case("W17", "generated code newer than protobuf", "generated-code name-missing run-failed", "protobuf", _newer_code, run="server.py"),
    case("W18", "generated code too old for protobuf", "generated-code name-missing run-failed", "protobuf tensorboardx", _older_code,
         run="tensorboardX"),
    case("W19", "lxml for aarch64", "foreign-machine tag-mismatch", "lxml", _aarch64, run="lxml.etree"),
    case("W20", "orjson for musl", "tag-mismatch dead-extension", "orjson", _musl, run="orjson"),
    case("W21", "cryptography without cffi", "requires-dist module-missing", "cffi", _no_cffi, run="cryptography.hazmat.bindings._rust"),
    case("W22", "pkg_resources, which setuptools no longer has", "module-missing", "setuptools oldplugin", _no_pkg_resources, run="oldplugin"),
    case("W23", "diffusers takes a name that huggingface-hub dropped", "name-missing", "huggingface-hub diffusers", _cached_download,
         run="diffusers.utils.dynamic_modules_utils"),
    case("W24", "flask 2.2 with werkzeug 3", "name-missing", "werkzeug flask", _werkzeug, run="flask"),
    case("W25", "openai gives httpx a keyword that it dropped", "name-missing", "httpx openai", _proxies, run="chat.py"),
    case("W26", "a name that numpy 2 dropped", "name-missing", "numpy oldsci", _removed_alias, run="oldsci"),
    case("W27", "a name that pydantic moved to another package", "name-missing module-missing", "pydantic oldapp pydantic-settings",
         _moved_settings, run="oldapp"),
    case("W28", "a module of a project with another name", "module-missing", "python-dotenv", _dotenv, run="app.py"),
    case("W30", "links into uv's cache, which was cleaned", "lost-package missing-file", "requests urllib3 idna certifi charset-normalizer",
         _link_mode, run="requests", fails=False),
    case("W31", "the extension of the release before", "edited-file version-inside", "pydantic-core", _old_extension, run="pydantic"),
    case("W32", "a package that lost its metadata, and is asked for its version", "requires-dist stray-module module-missing", "tqdm",
         _only_metadata_gone, run="transformers"),
    case("H15", "transformers, tokenizers, safetensors, diffusers", "", "",
         _healthy("transformers", "diffusers", "sentencepiece", "einops"), run="transformers", fails=False),
    case("H16", "langchain, openai, chromadb-like", "", "", _healthy("langchain", "openai", "anthropic", "tiktoken"), run="openai", fails=False),
    case("H17", "scipy, statsmodels, polars, pyarrow, duckdb", "", "",
         _healthy("scipy", "statsmodels", "polars", "duckdb"), run="statsmodels", fails=False),
    case("H18", "grpcio, protobuf, opentelemetry", "", "",
         _healthy("grpcio", "grpcio-tools", "opentelemetry-sdk", "opentelemetry-exporter-otlp"), run="grpc", fails=False),
    case("H19", "scrapy, lxml, cryptography, pillow", "", "", _healthy("scrapy", "pillow"), run="scrapy", fails=False),
    case("H20", "black, mypy, ruff, pytest, tox, pre-commit", "", "",
         _healthy("black", "mypy", "ruff", "pytest", "tox", "pre-commit", "ipython"), run="pytest", fails=False),
    case("H21", "made by python -m venv and pip", "", "", _by_pip, run="celery", fails=False),
    case("H22", "made by virtualenv", "", "", _by_virtualenv, run="aiohttp", fails=False),
    case("H23", "sees the packages of the user", "", "", _sees_system, run="requests", fails=False),
    case("H24", "an editable checkout", "", "", _editable, run="ours", fails=False),
    case("H25", "a prefix like conda's", "", "", _conda, fails=False),
]  # fmt: skip
