"""The series `overlays/ddtree` in the environment that the lock builds, on the CPU.

`tests/overlays/in_sglang` has the checks. They run with the environment's Python, torch and SGLang, one process a file. What needs a GPU is in
`benchmarks/ddtree`.

As the other tests here they need `ENVSPEC_REAL_STORE`. While working on the series, `ENVSPEC_DDTREE_TREE=<folder with sglang/>` puts a tree of
one's own before the environment's; then nothing is said about the lock.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from builder.agent.driver_stub import BuiltStub, build_stub, driver_symbols, find_compiler, has_driver
from builder.overlay import read_series
from envspec.lock_toml import parse_lock
from envspec.patch import apply_patch, parse_patch

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "tests/overlays/in_sglang"
SERIES = ROOT / "overlays/ddtree/series"
STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
OWN_TREE = os.environ.get("ENVSPEC_DDTREE_TREE", "")
FILES = ("tensors", "meaning", "devices", "mutants", "kernels", "commit", "worker", "mutants_in_place", "refusals")
TIMEOUT_S = 900

if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)


def names_in(file: str) -> list[str]:
    """The checks of a file, read without importing it."""
    tree = ast.parse((CHECKS / f"{file}.py").read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """How to start the environment's Python."""

    path: Path
    environ: dict[str, str]


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    done = subprocess.run(
        [sys.executable, "-m", "envspec", "build", "--store", STORE, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    environment = Path(json.loads(done.stdout)["hosts"][0]["path"])
    # What runs here must not depend on what the shell has set, nor write into the environment.
    environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8"}
    environ["HOME"] = os.fspath(tmp_path_factory.mktemp("home"))
    if OWN_TREE:
        environ["PYTHONPATH"] = OWN_TREE
    python = environment / "bin/python"
    if not has_driver(python, environ=environ):
        files = [Path(folder) / name for folder, _, names in os.walk(environment) for name in names]
        needs = driver_symbols(file for file in files if file.is_file())
        stub = build_stub(tmp_path_factory.mktemp("stub"), needs, find_compiler(os.environ), environ=dict(os.environ))
        if not isinstance(stub, BuiltStub):
            pytest.skip(stub.reason)
        environ["LD_LIBRARY_PATH"] = os.fspath(stub.folder)
    environ["CUDA_VISIBLE_DEVICES"] = ""  # the same with and without a GPU
    environ["OMP_NUM_THREADS"] = "1"  # as many processes run as there are cores
    return Interpreter(path=python, environ=environ)


@pytest.fixture(scope="module")
def results(interpreter: Interpreter) -> dict[str, tuple[dict[str, str], str]]:
    """For each file, what went wrong in each check that ran (empty: nothing), and all that was printed."""

    def check(file: str) -> tuple[dict[str, str], str]:
        done = subprocess.run(
            [interpreter.path, CHECKS / "run_checks.py", CHECKS / f"{file}.py"],
            env=interpreter.environ,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
        reasons = {line["check"]: "" if line["result"] == "pass" else line["reason"] or "no reason" for line in lines}
        return reasons, done.stdout

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(FILES, pool.map(check, FILES), strict=True))


def test_no_file_of_checks_is_forgotten() -> None:
    beside = {path.stem for path in CHECKS.glob("*.py")} - {"run_checks", "ddtree_file", "tiny_models", "chain_trace"}
    assert beside == set(FILES)
    assert all(names_in(file) for file in FILES)


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in names_in(file)])
def test_check_in_sglang(results: dict[str, tuple[dict[str, str], str]], file: str, name: str) -> None:
    reasons, printed = results[file]
    assert name in reasons, f"the check did not run:\n{printed[-3000:]}"
    assert not reasons[name], reasons[name]


def dflash_trace(interpreter: Interpreter, tree: Path) -> dict[str, object]:
    """What DFLASH does with the SGLang of a folder."""
    done = subprocess.run(
        [interpreter.path, CHECKS / "chain_trace.py"],
        env={**interpreter.environ, "PYTHONPATH": os.fspath(tree)},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    trace: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return trace


def test_each_part_of_the_series_imports_and_leaves_dflash_as_the_base_wheel_has_it(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    lock = parse_lock((ROOT / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")
    (overlay,) = lock.overlays
    (base,) = (Path(STORE) / "wheels" / overlay.base_sha256).glob("*.whl")
    trees = [tmp_path / "base"]
    with zipfile.ZipFile(base) as wheel:
        wheel.extractall(trees[0])
    patches = read_series(SERIES).patches
    for number, patch in enumerate(patches):
        before, after = trees[-1], tmp_path / f"after-{number + 1}"
        shutil.copytree(before, after, copy_function=os.link)
        parsed = parse_patch((SERIES.parent / patch.name).read_bytes(), input_name=patch.name)

        def read(path: str, before: Path = before) -> bytes | None:
            file = before / path
            return file.read_bytes() if file.exists() else None

        for path, content in apply_patch(parsed, read).items():
            assert content is not None
            (after / path).unlink(missing_ok=True)  # another name of the file before it
            (after / path).write_bytes(content)
        trees.append(after)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        expected, *traces = pool.map(partial(dflash_trace, interpreter), trees)
    assert expected["ddtree"] is False
    for patch, found in zip(patches, traces, strict=True):
        # Nothing of the algorithm can be reached before the last patch names it.
        assert found == {**expected, "ddtree": patch is patches[-1]}, patch.name
