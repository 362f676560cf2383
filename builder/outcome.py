"""What a build did, and what an earlier one left: light enough for a build of what is there already."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.generations import active_generation, profile_names
from builder.agent.store import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.store import Store

LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One proof and how it ended."""

    id: str
    result: str
    """`pass`, `fail`, `skip` or `compiled`."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOutcome:
    """What a build did."""

    host: str
    env: str
    site: str
    path: Path
    generation: int
    built: bool
    """False if everything was there and active already."""

    probes: tuple[Probe, ...]
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """The record of one host that `build --json` prints."""
        return {
            "host": self.host,
            "env": self.env,
            "site": self.site,
            "path": os.fspath(self.path),
            "generation": self.generation,
            "built": self.built,
            "probes": [{"id": probe.id, "result": probe.result, "reason": probe.reason} for probe in self.probes],
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }


def find_built(store: Store, *, lock_sha256: str, spec_sha256: str) -> BuildOutcome | None:
    """What a build of exactly these two files left, if it is still active: a few small reads, nothing is parsed or hashed.

    Args:
        store: The store.
        lock_sha256: Of the lock's bytes.
        spec_sha256: Of the spec's bytes.
    """
    for name in profile_names(store):
        generation = active_generation(store, name)
        if generation is not None and (generation.lock_sha256, generation.spec_sha256) == (lock_sha256, spec_sha256):
            break
    else:
        return None
    if not generation.path.is_dir():
        return None
    receipt = read_json(store.receipts(generation.env) / "build.json") or {}
    return BuildOutcome(
        host=LOCALHOST,
        env=generation.env,
        site=generation.site,
        path=generation.path,
        generation=generation.number,
        built=False,
        probes=tuple(
            Probe(id=each["id"], result=each["result"], reason=each["reason"]) for each in receipt.get("probes", ())
        ),
        seconds={},
    )
