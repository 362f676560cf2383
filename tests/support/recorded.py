"""Facts that were measured in real wheels, cut down to what checks of binaries read.

    torch = recorded_facts("torch-2.11.0")

`tests/data/facts/<name>-<version>.json` keeps libraries with GPU code, those that set the floors of glibc and libstdc++
(with the highest version only), those that call the driver (its functions only), and those with search paths outside of
the wheel. Copies of a library are left out. `tools/record_facts.py` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.binaries import binary_facts_from_json
from tests.support.facts import make_facts

if TYPE_CHECKING:
    from envspec.facts import WheelFacts

FACTS = Path(__file__).resolve().parents[1] / "data" / "facts"


def recorded_facts(wheel: str) -> WheelFacts:
    """The facts of a wheel that `tests/data/facts` has.

    Args:
        wheel: Name and version: `sglang-kernel-0.4.2`.
    """
    record = json.loads((FACTS / f"{wheel}.json").read_text(encoding="utf-8"))
    return make_facts(
        record["name"],
        record["version"],
        filename=record["filename"],
        binaries=binary_facts_from_json(record["binaries"]),
    )
