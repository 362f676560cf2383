"""What a build did, and what an earlier one left: light enough for a build of what is there already."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.agent.generations import active_generation, profile_names
from builder.agent.store import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.agent.store import Store
    from envspec.lock import Lock

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
    """False if the environment was in the store already."""

    activated: bool
    """False if it was active already."""

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
            "activated": self.activated,
            "probes": [{"id": probe.id, "result": probe.result, "reason": probe.reason} for probe in self.probes],
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }

    @classmethod
    def from_json(cls, host: str, fields: Mapping[str, Any]) -> BuildOutcome:
        """What a host says that it did; the host's own name comes from us.

        Raises:
            KeyError, TypeError, ValueError: It is no such record.
        """
        return cls(
            host=host,
            env=str(fields["env"]),
            site=str(fields["site"]),
            path=Path(str(fields["path"])),
            generation=int(fields["generation"]),
            built=bool(fields["built"]),
            activated=bool(fields["activated"]),
            probes=tuple(
                Probe(id=str(probe["id"]), result=str(probe["result"]), reason=str(probe["reason"]))
                for probe in fields["probes"]
            ),
            seconds={str(name): float(value) for name, value in fields["seconds"].items()},
        )


def find_built(
    store: Store, *, folder: Path, lock_sha256: str, spec_sha256: str, patches: Mapping[str, str] | None = None
) -> BuildOutcome | None:
    """What a build of exactly these two files left, if it is still active: a few small reads, nothing is parsed.

    Args:
        store: The store.
        folder: Where the spec lies; the paths of patches are relative to it.
        lock_sha256: Of the lock's bytes.
        spec_sha256: Of the spec's bytes.
        patches: Files of overlays and their sha256, where they were looked at elsewhere; None to look in the folder.

    Returns:
        None if anything has to be looked at more closely: another lock or spec, a patch on disk that is not the one that was built with, or a
        build that was not the last one of its environment.
    """
    for name in profile_names(store):
        generation = active_generation(store, name)
        if generation is not None and (generation.lock_sha256, generation.spec_sha256) == (lock_sha256, spec_sha256):
            break
    else:
        return None
    if not (generation.path / "bin" / "python").exists():  # follows the link: the interpreter may be gone
        return None
    receipt = read_json(store.receipts(generation.env) / "build.json") or {}
    if (receipt.get("lock_sha256"), receipt.get("spec_sha256")) != (lock_sha256, spec_sha256):
        return None
    try:
        if patches is not None:
            if receipt["patches"] != patches:
                return None
        elif any(_sha256_of(folder / path) != sha256 for path, sha256 in receipt["patches"].items()):
            return None
        probes = tuple(Probe(id=each["id"], result=each["result"], reason=each["reason"]) for each in receipt["probes"])
    except (OSError, KeyError, TypeError, AttributeError):
        return None
    if any(probe.result == "fail" for probe in probes):
        return None
    return BuildOutcome(
        host=LOCALHOST,
        env=generation.env,
        site=generation.site,
        path=generation.path,
        generation=generation.number,
        built=False,
        activated=False,
        probes=probes,
        seconds={},
    )


def patch_files(lock: Lock, folder: Path) -> dict[str, str]:
    """Every file of the lock's overlays, relative to the folder of the spec, and its sha256 as it lies there.

    Raises:
        OSError: One cannot be read.
    """
    paths: list[str] = []
    for overlay in lock.overlays:
        beside = overlay.series.rpartition("/")[0]
        paths += [overlay.series, *(f"{beside}/{patch.name}" if beside else patch.name for patch in overlay.patches)]
    return {path: _sha256_of(folder / path) for path in paths}


def _sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
