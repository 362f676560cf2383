"""Receipts that nodes leave in a folder which they share: how machines that an engine built are known without reaching them.

    leave_receipt(folder, seen_receipt(receipt, host="node-1", ...))     # on each node
    gather(folder, "ddtree")                                             # anywhere

Each node has files of its own, `<env id>/<name>@<node>.build.json` and `.verify.json`, the last of each kind; so nodes need no lock. What is in
the folder is believed as much as those who may write there: a receipt says what its writer saw, and its form is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.store import write_atomically
from builder.host_receipts import HostReceipt
from builder.receipts import list_files, read_stored
from envspec.errors import EnvspecError
from envspec.receipt import encode_receipt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from envspec.receipt import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The newest receipt of a node."""

    path: Path
    seen: HostReceipt
    receipt: Receipt

    @property
    def elsewhere(self) -> str:
        """The machine that made the receipt, where that is another one than the node: they share a store. Empty for the node's own."""
        machine = self.receipt.fields["seen"].get("machine", self.receipt.host_name)
        return "" if machine == self.receipt.host_name else self.receipt.host_name


def leave_receipt(folder: Path, fields: Mapping[str, Any]) -> Path:
    """Leave a node's receipt; the one before of its kind and environment goes.

    Args:
        folder: That the nodes share.
        fields: As `builder.host_receipts.seen_receipt` makes them.

    Raises:
        EnvspecError: It cannot be written.
    """
    path = folder / str(fields["env"]) / f"{fields['name']}@{fields['seen']['host']}.{fields['kind']}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode_receipt(fields))
    except OSError as error:
        raise EnvspecError(
            f"the receipt cannot be left in `{folder}`: {error.strerror or error}",
            input_name="--receipts",
            hint="give a folder that every node can write; the environment is built and active",
        ) from error
    return path


def gather(folder: Path, name: str) -> tuple[dict[str, Gathered], tuple[EnvspecError, ...]]:
    """The newest receipt of each node.

    Args:
        folder: That the nodes share.
        name: Of the environment.

    Returns:
        Node -> its newest receipt, and what was refused.

    Raises:
        EnvspecError: There is no such folder.
    """
    if not folder.is_dir():
        raise EnvspecError(
            f"there is no folder `{folder}`",
            input_name="--receipts",
            hint="`envspec build --receipts` on the nodes makes it",
        )
    found: dict[str, Gathered] = {}
    refused: list[EnvspecError] = []
    for path in list_files((folder,)):
        if "@" not in path.name:
            continue  # saved for review, by another verb
        try:
            each = _read(path)
        except EnvspecError as error:
            refused.append(error)
            continue
        before = found.get(each.seen.host)
        if each.receipt.name == name and (before is None or before.seen.time <= each.seen.time):
            found[each.seen.host] = each
    return dict(sorted(found.items())), tuple(refused)


def _read(path: Path) -> Gathered:
    receipt = read_stored(path).receipt
    try:
        seen = HostReceipt.of(receipt)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EnvspecError(f"`{path.name}` is refused as a receipt of a node: it does not say of which") from error
    if path.name != f"{receipt.name}@{seen.host}.{seen.kind}.json" or path.parent.name != seen.env:
        raise EnvspecError(f"`{path.name}` is refused as a receipt of a node: it is about another")
    return Gathered(path=path, seen=seen, receipt=receipt)
