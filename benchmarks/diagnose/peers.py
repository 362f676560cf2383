"""What other tools say about the same venv, and whether they name the package that is at fault."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.diagnose.making import site
from builder import process
from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.diagnose.case import Built, Case
    from benchmarks.diagnose.making import Maker

LIMIT_S = 120.0
SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one tool said."""

    said: str
    """Its first line that matters; empty if it had no complaint, or was not asked."""

    names: bool
    """Whether a package that is at fault, or its module, is in it: not whether the reader learns the cause."""


def ask_peers(maker: Maker, case: Case, built: Built, environ: Mapping[str, str], cwd: Path) -> dict[str, Answer]:
    """Ask each.

    Args:
        maker: Has pip and uv.
        case: What is asked about.
        built: The venv.
        environ: Of the user.
        cwd: Where the user stands.
    """
    words = _words(case, built)
    python = os.fspath(built.prefix / "bin/python")
    pip = _run(
        [os.fspath(maker.python), "-m", "pip", "--disable-pip-version-check", "--python", python, "check"], environ, cwd
    )
    uv = _run([os.fspath(maker.uv), "pip", "check", "--python", python], environ, cwd)
    answers = {
        "pip check": "" if pip.returncode == 0 else pip.stdout or pip.stderr,
        "uv pip check": "" if uv.returncode == 0 else "\n".join(uv.stderr.splitlines()[2:]) or uv.stderr,
        "import": "",
        "ldd": "",
    }
    if case.run:
        asked = [case.run] if case.run.endswith(".py") else ["-c", f"import {case.run}"]
        ran = _run([python, "-B", *asked], environ, cwd, timeout_s=10.0 if case.hangs else LIMIT_S)
        last = (ran.stderr.strip().splitlines() or [f"rc {ran.returncode}"])[-1]
        answers["import"] = "" if ran.returncode == 0 else last
    if built.library:
        done = _run(["ldd", os.fspath(site(built.prefix) / built.library)], environ, cwd)
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        answers["ldd"] = "; ".join(line for line in lines if "not found" in line or "not a dynamic" in line)
    return {
        name: Answer(said=_short(text, built), names=any(word in _plain(text) for word in words))
        for name, text in answers.items()
    }


def _words(case: Case, built: Built) -> set[str]:
    folders = {built.library.partition("/")[0]} if built.library else set()
    return {_plain(each) for each in {*case.packages, *folders} if each}


def _plain(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _short(text: str, built: Built) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    joined = " / ".join(lines[:3]) + (f" (and {len(lines) - 3} lines)" if len(lines) > 3 else "")
    return printable(joined.replace(f"{built.prefix}/", "").replace(f"{built.prefix.parent}/", ""))[:SHOWN]


def _run(argv: list[str], environ: Mapping[str, str], cwd: Path, *, timeout_s: float = LIMIT_S) -> process.Completed:
    return process.run(argv, env=environ, cwd=cwd, timeout_s=timeout_s)
