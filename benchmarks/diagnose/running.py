"""Runs one case: makes its venv, asks envspec and its peers, and judges."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.commands import CannotMeasure
from benchmarks.diagnose.peers import ask_peers
from benchmarks.diagnose.score import Scored, first_line, judge
from builder import process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.diagnose.case import Case
    from benchmarks.diagnose.making import Maker

REPOSITORY = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 600.0
HANG_LIMIT_S = 3.0
_START = """
import json, os, sys
os.environ.clear()
os.environ.update(json.loads(sys.argv.pop(1)))
sys.argv[0] = "envspec"
from envspec.cli import main
sys.exit(main())
"""
KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")


def today() -> str:
    """The date, for raw output."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def user_environ(work: Path, built: Mapping[str, str]) -> dict[str, str]:
    """The variables of a user: a few of ours, a home in the work folder, and the case's own."""
    home = work / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {**{name: os.environ[name] for name in KEPT if name in os.environ}, "HOME": os.fspath(home), **built}


def diagnose(prefix: Path, run: str, environ: Mapping[str, str], cwd: Path, *options: str) -> dict[str, Any]:
    """What `envspec diagnose --json` says, in a process of its own.

    Raises:
        CannotMeasure: It says nothing.
    """
    # Variables that the user has are set once envspec's own Python runs: PYTHONHOME would be its end, and is not its matter.
    argv = [
        sys.executable,
        "-P",
        "-c",
        _START,
        json.dumps(dict(environ)),
        "diagnose",
        os.fspath(prefix),
        "--json",
        "--quiet",
    ]
    if run:
        argv += ["--run", run]
    clean = {name: os.environ[name] for name in KEPT if name in os.environ}
    done = process.run(
        [*argv, *options], env={**clean, "PYTHONPATH": os.fspath(REPOSITORY)}, cwd=cwd, timeout_s=RUN_LIMIT_S
    )
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise CannotMeasure(f"diagnose ended with {done.returncode}: {done.stderr.strip()[-500:]}") from error
    if "causes" not in told:
        raise CannotMeasure(f"diagnose ended with {done.returncode}: {done.stdout.strip()[-500:]}")
    return told


def run_case(maker: Maker, case: Case, folder: Path, *, peers: bool) -> Scored:
    """Make a case and judge what is said of it.

    Raises:
        CannotMeasure: It cannot be made, or nothing is said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    built = case.build(maker, folder)
    environ = user_environ(folder, built.environ)
    cwd = built.cwd or folder / "home"
    options = ["--timeout", str(HANG_LIMIT_S)] if case.hangs else []
    if case.kind == "recipe":
        options.append("--offline")  # no index has these packages
    started = time.monotonic()
    told = diagnose(built.prefix, case.run, environ, cwd, *options)
    seconds = time.monotonic() - started
    return Scored(
        case=case,
        problems=judge(case, told),
        first=first_line(told),
        explains=told["causes"][0]["explains"] if told["causes"] else "",
        causes=len(told["causes"]),
        seconds=seconds,
        peers=ask_peers(maker, case, built, environ, cwd) if peers else {},
    )
