"""Every probe with any interpreter, without envspec: for a machine that has nothing but an environment, or a venv that nobody built.

    python -m benchmarks.verify.by_hand --python PYTHON --out FILE [--set full] [--site FOLDER] [--only PROBE]

One probe after the other, on the first GPU that is visible; each in an empty folder below the working directory. Writes all records as JSON and
prints a line a probe. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PROBES = Path(__file__).resolve().parents[2] / "builder" / "probes"
ORDER = (
    "driver",
    "libraries",
    "torch",
    "triton",
    "torchvision",
    "sgl_kernel",
    "ddtree",
    "torch_compile",
    "flashinfer",
    "nccl",
    "engine",
)
_ASK = """
import json, sys, sysconfig
from importlib.machinery import PathFinder
known = [name for name in sys.argv[1:] if PathFinder.find_spec(name, sys.path) is not None]
try:
    import torch
    gpus = [[torch.cuda.get_device_name(i), "%d.%d" % torch.cuda.get_device_capability(i)] for i in range(torch.cuda.device_count())]
except Exception:
    gpus = []
print(json.dumps({"prefix": sys.prefix, "site": sysconfig.get_path("purelib"), "modules": known, "gpus": gpus}))
"""


def about_of(name: str) -> dict[str, Any]:
    """What a probe says of itself."""
    for node in ast.parse((PROBES / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "ABOUT":
            about: dict[str, Any] = ast.literal_eval(node.value)
            return about
    raise LookupError(name)


def facts_of(python: str) -> dict[str, Any]:
    """Prefix, folder of packages, modules and GPUs, as the interpreter sees them."""
    names = sorted({module for name in ORDER for module in about_of(name)["needs"]["modules"]})
    done = subprocess.run([python, "-s", "-c", _ASK, *names], capture_output=True, text=True, check=True, timeout=120)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def left_out(about: dict[str, Any], facts: dict[str, Any]) -> str:
    """Why a probe is not run; empty if it is."""
    missing = [module for module in about["needs"]["modules"] if module not in facts["modules"]]
    if missing:
        return f"no {', '.join(missing)}"
    short = len(facts["gpus"]) < about["needs"]["gpus"]
    if short and not (about["compiles"] and not facts["gpus"]):
        return f"{len(facts['gpus'])} GPUs"
    return ""


def run_one(python: str, name: str, request: dict[str, Any], limit_s: float, folder: Path) -> dict[str, Any]:
    """The records of one probe, and how it ended."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun = time.monotonic()
    process = subprocess.Popen(
        [python, "-X", "faulthandler", "-B", "-s", str(PROBES / f"{name}.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    ending = ""
    try:
        out, err = process.communicate(json.dumps(request) + "\n", timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        ending = f"no end in {limit_s:g} s"
    records = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if not ending and not any(record.get("end") for record in records):
        ending = f"it ended with {process.returncode}"
    return {
        "probe": name,
        "seconds": round(time.monotonic() - begun, 2),
        "ending": ending,
        "cases": [record for record in records if "case" in record],
        "stderr": err[-3000:] if ending or any(record.get("result") == "fail" for record in records) else "",
    }


def main(arguments: Sequence[str]) -> int:
    """Runs what the interpreter has the modules for.

    Returns:
        0 if every case passed or was skipped, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--site", help="folder of packages, if it is not the interpreter's own")
    parser.add_argument("--set", choices=("quick", "full"), default="quick")
    parser.add_argument("--only", action="append", default=[], choices=ORDER)
    parser.add_argument("--toolkit", default="13.0")
    parser.add_argument("--seed", type=int, default=0, help="default: fresh")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    python = str(Path(given.python).absolute())
    facts = facts_of(python)
    gpus = facts["gpus"]
    result: dict[str, Any] = {"version": 1, "set": given.set, "facts": facts, "probes": []}
    result["seed"] = given.seed or int.from_bytes(os.urandom(7), "big")
    failed = False
    for name in given.only or ORDER:
        about = about_of(name)
        why = left_out(about, facts) or (
            "only in the full set" if about["set"] == "full" and given.set == "quick" and not given.only else ""
        )
        if why:
            print(f"{'left out':9} {name}: {why}", flush=True)
            result["probes"].append({"probe": name, "left_out": why})
            continue
        request = {
            "version": 1,
            "set": given.set,
            "mode": "run" if gpus or not about["needs"]["gpus"] else "compile",
            "gpu": {"index": 0, "name": gpus[0][0], "compute": gpus[0][1]} if gpus and about["per"] == "gpu" else None,
            "compute": sorted({compute for _, compute in gpus}) or ["9.0", "12.0"],
            "seed": result["seed"],
            "prefix": facts["prefix"],
            "site": given.site or facts["site"],
            "toolkit": given.toolkit,
            "cases": None,
        }
        ran = run_one(python, name, request, about["seconds"][given.set], Path.cwd() / "probe-runs" / name)
        bad = [f"{case['case']}: {case.get('reason', '')}" for case in ran["cases"] if case["result"] == "fail"]
        failed = failed or bool(bad or ran["ending"])
        told = "FAIL" if bad or ran["ending"] else "pass"
        print(
            f"{told:9} {name}  {ran['seconds']} s, {len(ran['cases'])} cases  {ran['ending']} {' | '.join(bad)[:1500]}",
            flush=True,
        )
        result["probes"].append(ran)
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
