"""Receipts on disk: in the store, and in the repository for review."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.store import write_atomically
from envspec.errors import EnvspecError
from envspec.receipt import SIZE_LIMIT_BYTES, Receipt, encode_receipt, parse_receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any

SIGNATURE_SUFFIX = ".sig"
_FILE = re.compile(
    r"\d{4}-\d\d-\d\dT\d{6}Z-(?:build|verify|venv)(?:-[A-Za-z0-9._-]{1,80})?\.json"  # of this machine, or saved
    r"|[A-Za-z0-9._-]{1,100}@[^/]{1,100}\.(?:build|verify)\.json"  # of hosts: `builder.host_receipts`
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReceipt:
    """A receipt and where it lies."""

    path: Path
    raw: bytes
    receipt: Receipt
    signature: bytes | None
    """Of the file beside it; None if there is none."""

    @property
    def host(self) -> str:
        """The host as the spec calls it; what the machine calls itself where that is not known."""
        seen = self.receipt.fields.get("seen")
        return str(seen.get("host", "")) if isinstance(seen, dict) else self.receipt.host_name


def read_stored(path: Path) -> StoredReceipt:
    """Read a receipt and the signature beside it.

    Raises:
        EnvspecError: It cannot be read, or is none.
    """
    raw = _read_small(path, SIZE_LIMIT_BYTES)
    signature: bytes | None = None
    beside = path.with_name(f"{path.name}{SIGNATURE_SUFFIX}")
    if os.path.lexists(beside):
        signature = _read_small(beside, SIZE_LIMIT_BYTES)
    return StoredReceipt(path=path, raw=raw, receipt=parse_receipt(raw, name=path.name), signature=signature)


def list_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """The files below some folders that are named like receipts, by name: oldest first, then the last ones of hosts.

    Args:
        folders: Each with a folder for every env id; what is not there has none.
    """
    found = [
        path
        for folder in folders
        for path in (folder.glob("*/*.json") if folder.is_dir() else ())
        if _FILE.fullmatch(path.name)
    ]
    return tuple(sorted(found, key=lambda path: (path.name, os.fspath(path))))


def keep(folder: Path, fields: Mapping[str, Any], *, host: str = "") -> Path:
    """Write a receipt into a folder of receipts.

    Args:
        folder: It gets a folder for the env id.
        fields: The receipt.
        host: The host that it is from, as the spec calls it; empty for this machine.

    Returns:
        Its file.

    Raises:
        OSError: It cannot be written.
    """
    place = folder / str(fields["env"])
    place.mkdir(parents=True, exist_ok=True)
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", host).strip("-.")[:80]
    name = f"{str(fields['time']).replace(':', '')}-{fields['kind']}{f'-{label}' if label else ''}.json"
    path = place / name
    write_atomically(path, encode_receipt(fields))
    path.with_name(f"{name}{SIGNATURE_SUFFIX}").unlink(missing_ok=True)  # of other bytes
    return path


def newest_of(name: str, folders: Iterable[Path]) -> StoredReceipt | None:
    """The newest receipt of a host that has figures; None if there is none.

    Args:
        name: Of the host, as the spec or the machine itself calls it.
        folders: Where receipts lie.
    """
    found: list[StoredReceipt] = []
    for path in list_files(folders):
        with contextlib.suppress(EnvspecError):  # `envspec receipts list` shows what is refused
            stored = read_stored(path)
            if stored.receipt.runs and name in (stored.host, stored.receipt.host_name):
                found.append(stored)
    return max(found, key=lambda stored: stored.receipt.time, default=None)


def _read_small(path: Path, limit: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise EnvspecError(f"`{path}` is no ordinary file")
            return file.read(limit + 1)
    except OSError as error:
        hint = "`envspec receipts list` shows what there is"
        raise EnvspecError(f"`{path}` cannot be read: {error.strerror}", hint=hint) from error
