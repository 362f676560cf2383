"""All steps in turn, each in a process of its own with a time limit; a step that fails does not stop the next.

    python -m benchmarks.ddtree --out FOLDER [--site FOLDER] [--seconds 3000] [--steps smoke kernel train lossless tree-build sweep report]

Every step writes its result into FOLDER as it goes, so a run that is cut keeps what it had.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

# Step and the most seconds it may take; on one H200 with 16 cores.
STEPS = {"smoke": 240, "kernel": 60, "train": 420, "lossless": 600, "tree-build": 60, "sweep": 600, "report": 30}


def command(step: str, args: argparse.Namespace) -> list[str]:
    """The command line of a step, without the interpreter."""
    out, models = args.out, args.models or args.out / "models"
    site = ["--site", str(args.site)] if args.site else []
    base = ["--base-site", str(args.base_site)] if args.base_site else []
    places = ["--logs", str(out / "logs"), "--scratch", str(out / "scratch")]
    pair = ["--models", str(models)]
    utils = (args.site or args.installed) / "sglang/srt/speculative/ddtree_utils.py"
    return {
        "smoke": ["smoke", *site, *places, "--out", str(out / "smoke.json")],
        "kernel": ["kernel_mask", "--out", str(out / "kernel-mask.json")],
        "train": ["train", "--out", str(models), *(["--corpus", *map(str, args.corpus)] if args.corpus else [])],
        "lossless": ["lossless", *pair, *site, *base, *places, "--out", str(out / "lossless.json")],
        "tree-build": ["tree_build", "--utils", str(utils), "--out", str(out / "tree-build.json")],
        "sweep": ["sweep", *pair, *site, *base, *places, "--out", str(out / "sweep.json")],
        "report": ["report", "--results", str(out)],
    }[step]


def main() -> int:
    """Reads the command line and runs the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", nargs="*", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--seconds", type=float, default=3000, help="for all steps together")
    parser.add_argument("--models", type=Path, help="a pair that was trained before")
    parser.add_argument("--corpus", type=Path, nargs="*", default=[])
    parser.add_argument("--site", type=Path, help="folder with the patched `sglang`; the installed one if left out")
    parser.add_argument(
        "--base-site", type=Path, help="folder with `sglang` as published, for the comparison of DFLASH"
    )
    args = parser.parse_args()
    args.installed = next((Path(place) for place in sys.path if (Path(place) / "sglang").is_dir()), Path())
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    failed = []
    for step in args.steps:
        limit_s = min(STEPS[step], args.seconds - (time.monotonic() - begun))
        if limit_s <= 0:
            failed.append(step)
            print(f"== {step}: no time left", flush=True)
            continue
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ddtree." + command(step, args)[0], *command(step, args)[1:]]
        )
        try:
            code: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # the steps end their engines in order
            code = "time limit"
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        print(f"== {step}: {code}, {time.monotonic() - start:.0f} s", flush=True)
        if code != 0:
            failed.append(step)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
