"""Every leaf of the committed lock, edited by hand, is caught, and the field is named. Needs the facts of its wheels.

Every leaf is changed; of each kind of leaf a dozen are taken out, or all of them with `MOST_REMOVED` raised: a minute more.

`ENVSPEC_REAL_STORE=<store> uv run pytest -m real tests/real/test_real_tampering.py`; wheels that were never measured are measured first.
With `-s` it prints the table of `docs/lock-format.md`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.mutations import mutations
from tests.support.tampering import Judge

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
STORE = os.environ.get("ENVSPEC_REAL_STORE", "")

MOST_REMOVED = 12

if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)


def test_every_edit_of_the_committed_lock_is_caught_and_the_field_is_named() -> None:
    subprocess.run(
        [sys.executable, "-m", "envspec", "check", "--store", STORE, "--quiet"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    text = (ROOT / "ddtree.lock").read_text(encoding="utf-8")
    judge = Judge(ROOT / "ddtree.toml", ROOT / "ddtree.lock", Path(STORE) / "facts")
    assert judge.verdict(text).caught_by == ""
    gc.collect()
    gc.freeze()  # the facts stay to the end; looking through them again and again takes longer than the rest
    tried: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    caught: Counter[tuple[str, str]] = Counter()
    missed: list[object] = []
    unnamed: list[object] = []
    for mutation in mutations(text):
        shape = ".".join(part for part in mutation.path if isinstance(part, str))
        removed[shape] += mutation.kind == "removed"
        if mutation.kind == "removed" and removed[shape] > MOST_REMOVED:
            continue
        verdict = judge.verdict(mutation.text)
        tried[shape] += 1
        caught[shape, verdict.caught_by] += 1
        if not verdict.caught_by:
            missed.append(mutation.path)
        elif mutation.key not in verdict.said:
            unnamed.append((mutation.path, verdict.said[:200]))
    gc.unfreeze()
    rows = [
        f"| `{shape}` | {edits} | {' | '.join(str(caught[shape, way]) for way in ('form', 'spec', 'wheels'))} |"
        for shape, edits in sorted(tried.items())
    ]
    sys.stdout.write("\n".join(["", *rows, f"{sum(tried.values())} edits, {len(missed)} not caught", ""]))
    assert missed == []
    assert unnamed == []
    assert sum(tried.values()) > 2000
