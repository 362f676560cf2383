"""What this machine keeps of builds and verifications on hosts: `<store>/receipts/<env id>/<name>@<host>.build.json` and `.verify.json`.

So that one can say of a host that cannot be reached what it had. The last of each kind is kept, as canonical JSON. What a host says of itself is
in it, bounded; nothing here decides over a build.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from builder.agent.store import make_folder, read_json, write_new
from envspec.canonical import canonical_json
from envspec.forms import ENV_ID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.agent.store import Store
    from builder.outcome import Probe
    from envspec.preflight import HostFacts

VERSION = 1
TEXT_LIMIT = 300
ROWS_LIMIT = 64
SIZE_LIMIT_BYTES = 256 << 10
NUMBER_LIMIT = 10**9

Kind = Literal["build", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReceipt:
    """One build or verification on a host, as it was said here."""

    kind: Kind
    host: str
    """Its name in the spec."""

    name: str
    """Of the environment."""

    time: str
    """RFC 3339 in UTC, by this machine's clock."""

    env: str
    site: str
    generation: int
    path: str
    """Of the environment there."""

    probes: tuple[Probe, ...] = ()
    drift: int = 0
    """How many paths differed."""

    python: str = ""
    driver: str = ""
    gpus: tuple[tuple[str, str], ...] = ()
    """Name and compute capability of each."""

    def to_json(self) -> dict[str, Any]:
        """The receipt as JSON: whatever the host said, it is small."""
        return {
            "version": VERSION,
            "kind": self.kind,
            "host": self.host,
            "name": self.name,
            "time": self.time,
            "env": self.env,
            "site": self.site[:TEXT_LIMIT],
            "generation": max(0, min(self.generation, NUMBER_LIMIT)),
            "path": self.path[:TEXT_LIMIT],
            "probes": [
                {"id": each.id[:TEXT_LIMIT], "result": each.result[:TEXT_LIMIT], "reason": each.reason[:TEXT_LIMIT]}
                for each in self.probes[:ROWS_LIMIT]
            ],
            "drift": self.drift,
            "python": self.python[:TEXT_LIMIT],
            "driver": self.driver[:TEXT_LIMIT],
            "gpus": [[name[:TEXT_LIMIT], compute[:TEXT_LIMIT]] for name, compute in self.gpus[:ROWS_LIMIT]],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> HostReceipt:
        """The inverse of `to_json`, but for the probes, which nobody asks for again.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        return cls(
            kind="verify" if fields["kind"] == "verify" else "build",
            host=str(fields["host"]),
            name=str(fields["name"]),
            time=str(fields["time"]),
            env=str(fields["env"]),
            site=str(fields["site"]),
            generation=int(fields["generation"]),
            path=str(fields["path"]),
            drift=int(fields["drift"]),
            python=str(fields["python"]),
            driver=str(fields["driver"]),
            gpus=tuple((str(name), str(compute)) for name, compute in fields["gpus"]),
        )


def facts_of(facts: HostFacts | None) -> dict[str, Any]:
    """What a receipt has of a host's facts."""
    if facts is None:
        return {}
    return {
        "python": facts.python,
        "driver": facts.driver,
        "gpus": tuple((gpu.name, gpu.compute) for gpu in facts.gpus),
    }


def keep_receipt(store: Store, receipt: HostReceipt) -> bool:
    """Keep a receipt, if this machine has a store that can be written; the one before of its kind goes.

    What the host was not asked for this time is taken from the one before.

    Returns:
        Whether it was written.
    """
    if ENV_ID.mismatch(receipt.env):  # a host may say anything, and it names a folder
        return False
    path = _path(store, receipt.env, receipt.name, receipt.host, receipt.kind)
    before = read_json(path) if _is_small(path) else None
    fields = receipt.to_json()
    if before is not None and not receipt.python:
        fields |= {key: before[key] for key in ("python", "driver", "gpus") if key in before}
    with contextlib.suppress(
        OSError, UnicodeEncodeError
    ):  # of a reader of the store, on a full disk: the build is none the worse for it
        if not path.parent.parent.is_dir():
            return False
        make_folder(path.parent)
        # Renamed, not flushed: a second build is to take no longer for it, and after a power cut one asks the host.
        temporary = path.with_name(f".envspec-{os.getpid()}-{path.name}")
        write_new(temporary, canonical_json(fields) + b"\n")
        temporary.replace(path)
        return True
    return False


def last_receipts(store: Store, name: str, hosts: Iterable[str]) -> dict[str, HostReceipt]:
    """The newest receipt of each host that has one.

    Args:
        store: Of this machine.
        name: Of the environment.
        hosts: Their names in the spec.
    """
    found: dict[str, HostReceipt] = {}
    try:
        folders = sorted((store.root / "receipts").iterdir())
    except OSError:
        return {}
    for host in hosts:
        there = [
            receipt
            for folder in folders
            for kind in ("build", "verify")
            if (receipt := _read(_path(store, folder.name, name, host, kind), name, host)) is not None
        ]
        if there:
            newest = max(there, key=lambda receipt: receipt.time)
            same = [each for each in there if each.env == newest.env and each.python]
            if same and not newest.python:
                newest = replace(newest, python=same[0].python, driver=same[0].driver, gpus=same[0].gpus)
            found[host] = newest
    return found


def _path(store: Store, env: str, name: str, host: str, kind: str) -> Path:
    return store.receipts(env) / f"{name}@{host}.{kind}.json"


def _read(path: Path, name: str, host: str) -> HostReceipt | None:
    fields = read_json(path) if _is_small(path) else None
    try:
        receipt = None if fields is None else HostReceipt.from_json(fields)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if receipt is None or (receipt.name, receipt.host, receipt.env) != (name, host, path.parent.name):
        return None
    return receipt


def _is_small(path: Path) -> bool:
    try:
        return path.stat().st_size <= SIZE_LIMIT_BYTES
    except OSError:
        return False
