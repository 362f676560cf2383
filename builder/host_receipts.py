"""What this machine keeps of builds and verifications on hosts: `<store>/receipts/<env id>/<name>@<host>.build.json` and `.verify.json`.

These are the hosts' own receipts, in their one form (`envspec.receipt`), with what this machine saw besides: the host's name in the spec, when
it was asked, and what was active. So one can say of a host that cannot be reached what it had, and compare the figures of two. The last of each
kind is kept. What a host says of itself is in it, checked and bounded; nothing here decides over a build.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.store import make_folder, write_new
from envspec.errors import EnvspecError
from envspec.forms import ENV_ID
from envspec.printable import printable
from envspec.receipt import SIZE_LIMIT_BYTES, Receipt, encode_receipt, parse_receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.agent.store import Store

TEXT_LIMIT = 300
NUMBER_LIMIT = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReceipt:
    """A receipt of a host, as far as `status` shows it."""

    kind: str
    host: str
    """Its name in the spec."""

    time: str
    """When it was asked: RFC 3339 in UTC, by this machine's clock."""

    env: str
    site: str
    generation: int
    path: str
    """Of the environment there."""

    drift: int
    """How many paths differed."""

    python: str
    driver: str
    gpus: tuple[tuple[str, str], ...]
    """Name and compute capability of each."""

    @classmethod
    def of(cls, receipt: Receipt) -> HostReceipt:
        """A receipt that this machine kept.

        Raises:
            KeyError, TypeError, ValueError: It is none of those.
        """
        seen, host = receipt.fields["seen"], receipt.host
        return cls(
            kind=receipt.kind,
            host=str(seen["host"]),
            time=str(seen["time"]),
            env=receipt.env,
            site=receipt.site,
            generation=int(seen["generation"]),
            path=str(seen["path"]),
            drift=len(receipt.fields.get("drift") or ()),
            python=str(receipt.fields["interpreter"]["version"]),
            driver=str(host.get("driver") or ""),
            gpus=tuple((gpu["name"], gpu["compute"]) for gpu in host.get("gpus", [])),
        )

    def to_json(self) -> dict[str, Any]:
        """The record that `status --json` prints."""
        return {
            "kind": self.kind,
            "host": self.host,
            "time": self.time,
            "env": self.env,
            "site": self.site,
            "generation": self.generation,
            "path": self.path,
            "drift": self.drift,
            "python": self.python,
            "driver": self.driver,
            "gpus": [list(gpu) for gpu in self.gpus],
        }


def seen_receipt(receipt: Receipt, *, host: str, time: str, generation: int | None, path: str) -> dict[str, Any]:
    """A host's receipt with what this machine saw besides.

    Args:
        receipt: The host's.
        host: Its name in the spec.
        time: When it was asked: RFC 3339 in UTC.
        generation: What is active there; None if it is about another environment.
        path: Of the environment there.
    """
    number = 0 if generation is None else max(0, min(generation, NUMBER_LIMIT))
    seen = {"host": host, "time": time, "generation": number, "path": printable(path)[:TEXT_LIMIT]}
    return {**receipt.fields, "seen": seen}


def keep_receipt(store: Store, fields: Mapping[str, Any]) -> Path | None:
    """Keep a receipt, if this machine has a store that can be written; the one before of its kind goes.

    Args:
        store: Of this machine.
        fields: As `seen_receipt` makes them.

    Returns:
        Its file; None if it was not written.
    """
    env = str(fields["env"])
    if ENV_ID.mismatch(env):  # a host may say anything, and it names a folder
        return None
    path = _path(store, env, fields["name"], fields["seen"]["host"], fields["kind"])
    content = encode_receipt(fields)
    if len(content) > SIZE_LIMIT_BYTES:
        return None
    with contextlib.suppress(
        OSError, UnicodeEncodeError
    ):  # of a reader of the store, on a full disk: the build is none the worse for it
        if not path.parent.parent.is_dir():
            return None
        make_folder(path.parent)
        # Renamed, not flushed: a second build is to take no longer for it, and after a power cut one asks the host.
        temporary = path.with_name(f".envspec-{os.getpid()}-{path.name}")
        write_new(temporary, content)
        path.with_name(f"{path.name}.sig").unlink(missing_ok=True)  # of other bytes
        temporary.replace(path)
        return path
    return None


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
            found[host] = max(there, key=lambda receipt: receipt.time)
    return found


def _path(store: Store, env: str, name: str, host: str, kind: str) -> Path:
    return store.receipts(env) / f"{name}@{host}.{kind}.json"


def _read(path: Path, name: str, host: str) -> HostReceipt | None:
    try:
        if path.stat().st_size > SIZE_LIMIT_BYTES:
            return None
        whole = parse_receipt(path.read_bytes(), name=path.name)
        receipt = HostReceipt.of(whole)
    except (OSError, EnvspecError, KeyError, TypeError, ValueError, OverflowError):
        return None
    if (whole.name, receipt.host, receipt.env) != (name, host, path.parent.name):
        return None
    return receipt
