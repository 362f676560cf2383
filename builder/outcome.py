"""What a build did, and what an earlier one left: light enough for a build of what is there already."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from builder.agent.generations import active_generation, profile_names
from builder.agent.store import read_json
from envspec.errors import FOUND_WRONG, EnvspecError

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

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
    verified: bool = True
    """False if it was activated with `--no-verify`."""

    receipt: Mapping[str, Any] | None = None
    """The evidence, as `envspec.receipt` has it; None if it cannot be read."""

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
            "verified": self.verified,
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
            verified=bool(fields["verified"]),
        )


class ProbesFailed(EnvspecError):  # noqa: N818 - it says what is the matter
    """An environment does not pass its probes: nothing was activated.

    Attributes:
        receipt: The evidence, as `envspec.receipt` has it.
    """

    def __init__(self, message: str, receipt: Mapping[str, Any]) -> None:
        super().__init__(message, hint="nothing was activated; what was active still is", exit_code=FOUND_WRONG)
        self.receipt = receipt


def find_built(
    store: Store,
    *,
    folder: Path,
    lock_sha256: str,
    spec_sha256: str,
    patches: Mapping[str, str] | None = None,
    verified: bool = True,
) -> BuildOutcome | None:
    """What a build of exactly these two files left, if it is still active: a few small reads, nothing is parsed.

    Args:
        store: The store.
        folder: Where the spec lies; the paths of patches are relative to it.
        lock_sha256: Of the lock's bytes.
        spec_sha256: Of the spec's bytes.
        patches: Files of overlays and their sha256, where they were looked at elsewhere; None to look in the folder.
        verified: Whether one that was activated with `--no-verify` does not do.

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
    is_verified = bool(receipt.get("verified", True))
    if any(probe.result == "fail" for probe in probes) or (verified and not is_verified):
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
        verified=is_verified,
        receipt=receipt,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How the last proof of an environment ended."""

    verified: bool
    time: str
    set: str
    """`quick`, `full`, `chosen` or `none`."""

    failed: tuple[str, ...]
    """Ids of the proofs that failed."""

    results: Mapping[str, int]
    """How many proofs ended how."""

    def to_json(self) -> dict[str, Any]:
        """The record that `status --json` prints."""
        return {
            "verified": self.verified,
            "time": self.time,
            "set": self.set,
            "failed": list(self.failed),
            "results": dict(self.results),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Verification:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        return cls(
            verified=bool(fields["verified"]),
            time=str(fields["time"]),
            set=str(fields["set"]),
            failed=tuple(str(name) for name in fields["failed"]),
            results={str(name): int(count) for name, count in fields["results"].items()},
        )

    def line(self) -> str:
        """It in a few words for a person."""
        if self.failed:
            return f"no: {', '.join(self.failed)} failed at {self.time}"
        if not self.verified:
            return f"no: activated at {self.time} with --no-verify"
        counts = ", ".join(f"{count} {word}" for word, count in self.results.items() if count)
        return f"{self.time}{f', {self.set} set' if self.set != 'none' else ''}: {counts or 'nothing to run'}"


def last_verification(store: Store, env: str) -> Verification | None:
    """How the last proof of an environment ended; None if there is no receipt that can be read."""
    receipts = [read_json(store.receipts(env) / f"{kind}.json") for kind in ("build", "verify")]
    found = [receipt for receipt in receipts if receipt is not None and isinstance(receipt.get("time"), str)]
    if not found:
        return None
    last = max(reversed(found), key=lambda receipt: receipt["time"])  # of two in one second, the verification
    try:
        rows = [(str(row["id"]), str(row["result"])) for row in last["probes"]]
    except (KeyError, TypeError):
        return None
    results = {word: sum(result == word for _, result in rows) for word in ("pass", "compiled", "skip", "fail")}
    return Verification(
        verified=bool(last.get("verified", True)),
        time=last["time"],
        set=str(last.get("set", "quick")),
        failed=tuple(name for name, result in rows if result == "fail"),
        results=results,
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
