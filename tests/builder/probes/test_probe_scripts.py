"""What every probe says of itself, and how its results leave the process."""

from __future__ import annotations

import ast
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "builder" / "probes"
HELPERS = {
    "__init__",
    "chips",
    "compiling",
    "kit",
    "mapped",
    "references",
    "serve_engine",
    "tilework",
    "tiny",
}
IDS = {
    "ddtree",
    "driver",
    "engine",
    "flashinfer",
    "libraries",
    "nccl",
    "sgl_kernel",
    "torch",
    "torch_compile",
    "torchvision",
    "triton",
}


def about_of(name: str) -> dict[str, Any]:
    """The literal ABOUT of a script, read without running it."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    found = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "ABOUT" for each in node.targets)
    ]
    assert len(found) == 1
    value: dict[str, Any] = ast.literal_eval(found[0])
    return value


def test_every_script_of_the_folder_is_a_known_probe_or_a_helper() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == HELPERS | IDS
    for name in HELPERS:
        assert "\nABOUT" not in (FOLDER / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(IDS))
def test_a_probe_says_what_it_is_for_and_what_it_takes(name: str) -> None:
    about = about_of(name)
    assert set(about) == {"id", "purpose", "tolerance", "needs", "per", "set", "compiles", "seconds", "memory_bytes"}
    assert about["id"] == name
    assert about["purpose"].endswith(".")
    assert about["tolerance"]
    assert about["needs"]["gpus"] in (0, 1, 2)
    assert all(re.fullmatch(r"[a-z_]+", module) for module in about["needs"]["modules"])
    assert about["per"] in ("host", "gpu")
    assert about["set"] in ("quick", "full")
    assert isinstance(about["compiles"], bool)
    assert 0 < about["seconds"]["quick"] <= about["seconds"]["full"] <= 600
    assert 0 <= about["memory_bytes"] <= 24_000_000_000


@pytest.mark.parametrize("name", sorted(IDS))
def test_a_probe_imports_nothing_before_it_is_asked(name: str) -> None:
    """At its top stands only the standard library and the kit; what it probes is imported when its cases are made."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert {each for each in imported if each not in sys.stdlib_module_names} == set()


def test_documentation_has_the_figures_of_every_probe() -> None:
    page = (FOLDER.parents[1] / "docs" / "probes.md").read_text(encoding="utf-8")
    for name in sorted(IDS):
        about = about_of(name)
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` "))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1] == about["purpose"].rstrip(".")
        assert cells[2] == about["tolerance"]
        assert cells[3] == f"{about['set']}, {about['per']}"
        assert cells[4] == f"{about['memory_bytes'] / 1e9:g} GB"
        assert cells[5] == f"{about['seconds']['quick']} / {about['seconds']['full']} s"


SCRIPT = """
import os, sys
ABOUT = {"id": "trial", "memory_bytes": 1}
import kit

def cases(probe):
    BEFORE
    yield kit.Case("good", good)
    yield kit.Case("bad", bad)
    yield kit.Case("none", none)
    yield kit.Case("made", lambda found: found.note("registers", 7), result="compiled")

def good(found):
    print("a library says hello")
    os.write(1, b"and so does its C code\\n")
    found.at_most("relative_error", 1e-4, 1e-3)
    found.note("text", "9.0")

def bad(found):
    found.at_most("relative_error", float("nan"), 1e-3)
    raise_it()

def raise_it():
    try:
        raise OSError("libcudart.so.12: cannot open shared object file")
    except OSError as error:
        raise RuntimeError("operator torchvision::nms does not exist") from error

def none(found):
    raise kit.Skip("fp8 needs compute 8.9, the GPU has 8.0")

if __name__ == "__main__":
    kit.main(ABOUT, cases)
"""


def run_script(
    tmp_path: Path, script: str, request: dict[str, Any] | None = None, more: str = ""
) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """The records that a probe writes, and how it ended."""
    folder = tmp_path / "probes"
    folder.mkdir()
    for name in ("kit", "chips", "mapped"):
        shutil.copy(FOLDER / f"{name}.py", folder)
    (folder / "trial.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-B", str(folder / "trial.py")],
        input=json.dumps(request or {"seed": 1, "set": "quick", "mode": "run"}) + "\n" + more,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done


def test_results_are_lines_of_json_whatever_a_library_prints(tmp_path: Path) -> None:
    records, done = run_script(tmp_path, SCRIPT.replace("BEFORE", ""))
    assert done.returncode == 0
    assert [record.get("case") for record in records] == ["good", "bad", "none", "made", None]
    assert [record.get("result") for record in records[:4]] == ["pass", "fail", "skip", "compiled"]
    assert records[0]["figures"] == {"relative_error": {"value": 1e-4, "bound": 1e-3}, "text": {"value": "9.0"}}
    assert records[1]["figures"] == {"relative_error": {"value": "nan", "bound": 1e-3}}
    assert records[1]["reason"] == (
        "RuntimeError: operator torchvision::nms does not exist, from OSError: libcudart.so.12: cannot open shared object file"
    )
    assert records[2]["reason"] == "fp8 needs compute 8.9, the GPU has 8.0"
    assert records[4] == {"end": True, "cases": 4}
    assert "a library says hello" in done.stderr
    assert "and so does its C code" in done.stderr


def test_only_the_cases_that_are_asked_for_run(tmp_path: Path) -> None:
    records, _ = run_script(tmp_path, SCRIPT.replace("BEFORE", ""), {"cases": ["made"]})
    assert [record.get("case") for record in records] == ["made", None]


def test_an_import_that_fails_is_a_failed_case(tmp_path: Path) -> None:
    records, done = run_script(tmp_path, SCRIPT.replace("BEFORE", "import there_is_no_such_module"))
    assert done.returncode == 0
    assert [record.get("case") for record in records] == ["import", None]
    assert records[0]["reason"] == "ModuleNotFoundError: No module named 'there_is_no_such_module'"


def test_a_module_that_exits_while_it_is_imported_is_a_failed_case(tmp_path: Path) -> None:
    records, _ = run_script(tmp_path, SCRIPT.replace("BEFORE", "sys.exit(0)"))
    assert [record.get("result") for record in records] == ["fail", None]


def test_a_crash_leaves_no_last_line(tmp_path: Path) -> None:
    script = SCRIPT.replace("BEFORE", "").replace("raise_it()\n\n", "import ctypes; ctypes.string_at(0)\n\n", 1)
    records, done = run_script(tmp_path, script)
    assert done.returncode == -signal.SIGSEGV
    assert [record.get("case") for record in records] == ["good"]


def test_a_script_called_like_a_package_does_not_hide_it(tmp_path: Path) -> None:
    folder = tmp_path / "probes"
    records, _ = run_script(tmp_path, SCRIPT.replace("BEFORE", "import packaging.version"))
    assert records[0]["case"] == "good"
    shutil.rmtree(folder)
    script = SCRIPT.replace("BEFORE", "import packaging.version").replace('"trial"', '"packaging"')
    folder.mkdir()
    for name in ("kit", "chips", "mapped"):
        shutil.copy(FOLDER / f"{name}.py", folder)
    (folder / "packaging.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(folder / "packaging.py")],
        input="{}\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert json.loads(done.stdout.splitlines()[0])["case"] == "good"


def test_a_gated_probe_says_when_its_imports_are_done_and_waits(tmp_path: Path) -> None:
    records, _ = run_script(tmp_path, SCRIPT.replace("BEFORE", ""), {"gate": True}, more="go\n")
    assert records[0] == {"ready": True}
    assert [record.get("case") for record in records[1:]] == ["good", "bad", "none", "made", None]


def test_a_gated_probe_whose_imports_fail_says_so_behind_the_gate(tmp_path: Path) -> None:
    script = SCRIPT.replace("BEFORE", "import there_is_no_such_module")
    records, _ = run_script(tmp_path, script, {"gate": True}, more="go\n")
    assert records[0] == {"ready": True}
    assert [record.get("case") for record in records[1:]] == ["import", None]


def test_after_the_state_of_the_gpu_is_lost_no_case_is_tried(tmp_path: Path) -> None:
    script = SCRIPT.replace("BEFORE", "").replace(
        "    raise_it()\n\n", '    raise RuntimeError("CUDA error: an illegal memory access was encountered")\n\n', 1
    )
    records, _ = run_script(tmp_path, script)
    assert [record.get("result") for record in records[:4]] == ["pass", "fail", "fail", "fail"]
    assert records[2]["reason"] == "not tried: the GPU's state was lost in the case `bad`"
