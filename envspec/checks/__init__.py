"""Checks: pure rules over facts.

    verdict = run_checks(Closure(spec=spec, wheels=wheels, accepted_tags=tags))

Importing this package registers every check. A family is a module; a check is one function in it (see `envspec.checks.registry`).
"""

from __future__ import annotations

# The families register their checks when they are imported.
from envspec.checks import (
    archive,
    assembler,
    binaries,
    bundled,
    contents,
    cuda_line,
    driver,
    floors,
    gpu_code,
    identity,
    linking,
    lockstep,
    ownership,
    record,
    requirements,
    startup,
)
from envspec.checks.closure import Closure, ClosureWheel
from envspec.checks.registry import Check, registered_checks
from envspec.checks.verdict import Verdict, apply_waivers, run_checks, strictly

FAMILIES = (
    archive,
    assembler,
    binaries,
    bundled,
    contents,
    cuda_line,
    driver,
    floors,
    gpu_code,
    identity,
    linking,
    lockstep,
    ownership,
    record,
    requirements,
    startup,
)

__all__ = [
    "FAMILIES",
    "Check",
    "Closure",
    "ClosureWheel",
    "Verdict",
    "apply_waivers",
    "registered_checks",
    "run_checks",
    "strictly",
]
