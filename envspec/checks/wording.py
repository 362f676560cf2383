"""How findings are worded; see `envspec.wording`."""

from __future__ import annotations

from envspec.wording import (
    SHOWN_CHARACTERS,
    SHOWN_EVIDENCE,
    SHOWN_EXAMPLES,
    counted,
    evidence,
    examples,
    joined,
    printable,
)

__all__ = [
    "SHOWN_CHARACTERS",
    "SHOWN_EVIDENCE",
    "SHOWN_EXAMPLES",
    "counted",
    "evidence",
    "examples",
    "joined",
    "printable",
]
