"""Rules about venvs; importing this package registers every one. A family is a module, a rule is one function in it."""

from __future__ import annotations

from envspec.diagnosis.registry import registered_rules
from envspec.diagnosis.rules import (
    damage,
    files,
    gpus,
    interpreter,
    machine,
    metadata,
    outside,
    owners,
    paths,
    releases,
    running,
    strays,
)

FAMILIES = (damage, files, gpus, interpreter, machine, metadata, outside, owners, paths, releases, running, strays)

__all__ = ["FAMILIES", "registered_rules"]
