"""Facts of real wheels for cases of linking, cut down by `tools/record_case_facts.py`."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

from envspec.facts import INSPECTOR, WheelFacts, wheel_facts_from_json

FACTS = Path(__file__).resolve().parents[1] / "data" / "facts" / "links"


@cache
def recorded(wheel: str) -> WheelFacts:
    """The facts of a wheel.

    Args:
        wheel: Name and version: `torch-2.11.0`.
    """
    record = json.loads(gzip.decompress((FACTS / f"{wheel}.json.gz").read_bytes()))
    # What a later inspector measures besides does not matter here.
    return wheel_facts_from_json(record | {"inspector": INSPECTOR})
