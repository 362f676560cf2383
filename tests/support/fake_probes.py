"""Probes that stand in for the real ones: small scripts that pass, fail, hang, crash, print nonsense or print without end.

`script(name, body)` is a probe with that body, which may use `say(case, result, **more)`, `end()` and `asked`, what the runner told it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).resolve().parents[2]

_HEAD = """
import json, os, sys
asked = json.loads(sys.stdin.readline())
BEFORE
sys.stdout.write(json.dumps({"ready": True}) + "\\n")
sys.stdout.flush()
sys.stdin.readline()
told = 0
def say(case, result="pass", reason="", **figures):
    global told
    told += 1
    row = {"case": case, "result": result, "reason": reason, "seconds": 0.5, "figures": figures}
    sys.stdout.write(json.dumps(row) + "\\n")
    sys.stdout.flush()
def end():
    sys.stdout.write(json.dumps({"end": True, "cases": told}) + "\\n")
    sys.stdout.flush()
"""


def about(name: str, **changes: Any) -> dict[str, Any]:
    """What a fake says of itself; by default that it needs no GPU and no module."""
    return {
        "id": name,
        "purpose": "stands in for a probe",
        "tolerance": "none",
        "needs": {"gpus": changes.pop("gpus", 0), "modules": changes.pop("modules", [])},
        "per": "host",
        "set": "quick",
        "compiles": False,
        "seconds": {"quick": changes.pop("quick_s", 60), "full": changes.pop("full_s", 60)},
        "memory_bytes": 0,
        **changes,
    }


def script(name: str, body: str, *, before: str = "", **changes: Any) -> bytes:
    """The source of a fake.

    Args:
        name: Its id.
        body: What it does.
        before: What it does before it waits at its gate.
        changes: Of its ABOUT.
    """
    head = _HEAD.replace("BEFORE", before)
    return f'"""A fake."""\nABOUT = {about(name, **changes)!r}\n{head}\n{body}\n'.encode()


PASSES = 'say("one", relative_error={"value": 0.001, "bound": 0.01}, speed={"value": 500.0, "unit": "TFLOP/s", "of": 989.0})\nend()'


def repository_with(folder: Path, probes: Mapping[str, bytes]) -> Path:
    """A copy of the two packages with other probes: a PYTHONPATH for the command line, whose agent then carries them to hosts too.

    Args:
        folder: Where to put it.
        probes: Name of the file -> source.
    """
    for package in ("envspec", "builder"):
        shutil.copytree(REPOSITORY / package, folder / package, dirs_exist_ok=True)
    write_probes(folder, probes)
    return folder


def write_probes(folder: Path, probes: Mapping[str, bytes]) -> None:
    """Put other probes into such a copy, in place of those that it has."""
    place = folder / "builder" / "probes"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, source in probes.items():
        (place / name).write_bytes(source)
