"""Verbs on a node that an engine runs them on: Slurm, Ansible, Kubernetes. Who the node is, one line that says what came of it, and its receipt.

Engines mix what several nodes print, line by line. With `--line` a node prints one line on stdout, and its name begins every line on stderr.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Mapping

LineOption = Annotated[
    bool,
    Parameter(
        name="--line",
        negative=(),
        help="Print one line that begins with this node's name (with --json: the object in one line), for engines that mix the output of nodes.",
    ),
]
ReceiptsOption = Annotated[
    Path | None,
    Parameter(
        name="--receipts",
        help="Leave this node's receipt in this folder too, which nodes share; `envspec status --receipts` reads it.",
    ),
]
NODE_VARIABLES = ("ENVSPEC_NODE", "SLURMD_NODENAME")


class NodeLines(io.TextIOBase):
    """A stream whose every line begins with a node's name; a line is written whole."""

    def __init__(self, stream: TextIO, node: str) -> None:
        """Write to another stream.

        Args:
            stream: It.
            node: The name.
        """
        self._stream = stream
        self._node = node
        self._rest = ""

    def write(self, text: str) -> int:
        """Write the lines that are complete."""
        *lines, self._rest = f"{self._rest}{text}".split("\n")
        if lines:
            self._stream.write("".join(f"{self._node}: {line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Write what was begun, as a line."""
        if self._rest:
            self.write("\n")
        self._stream.flush()


def node_name(environ: Mapping[str, str]) -> str:
    """What this machine is called: as ENVSPEC_NODE says, else Slurm, else the kernel.

    Args:
        environ: This process's environment.
    """
    given = next((environ[name] for name in NODE_VARIABLES if environ.get(name)), os.uname().nodename)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", given).strip("-._")[:80] or "node"


def leave(folder: Path, fields: Mapping[str, Any], *, generation: int | None, path: Path, now: str) -> Path:
    """Leave this node's receipt in a folder that nodes share.

    Args:
        folder: It.
        fields: The receipt, as `envspec.receipt` has it.
        generation: What is active here; None if the receipt is about another environment.
        path: Of the environment.
        now: RFC 3339 in UTC.

    Raises:
        EnvspecError: The receipt is none, or cannot be written.
    """
    from builder.gathered import leave_receipt  # noqa: PLC0415 - only where it is asked for
    from builder.host_receipts import seen_receipt  # noqa: PLC0415
    from envspec.receipt import receipt_of  # noqa: PLC0415

    receipt = receipt_of(fields, name="the receipt")
    node = node_name(os.environ)
    seen = seen_receipt(receipt, host=node, time=now, generation=generation, path=os.fspath(path))
    # Where nodes share a store, one of them has proven what all of them have.
    return leave_receipt(folder, {**seen, "seen": {**seen["seen"], "machine": os.uname().nodename}})
