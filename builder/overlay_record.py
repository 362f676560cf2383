"""The record of a work tree, `.git/envspec.json` in it: what it was made of, and what was last saved.

It is judged before it is followed, since it names files and commits, and a work tree may come from anywhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from builder.agent.store import write_atomically
from envspec.patch import parse_series

if TYPE_CHECKING:
    from pathlib import Path

STATE_FORMAT = 1

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PRINTABLE = re.compile(r".+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRecord:
    """A base wheel that is in a work tree."""

    commit: str
    version: str
    file: str
    sha256: str
    rebased: bool
    """Whether `rebase` brought it; else it was the locked one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTreeState:
    """What a work tree was made of."""

    package: str
    series: str
    """Path of the series file, as the spec has it."""

    bases: tuple[BaseRecord, ...]
    patches: tuple[tuple[str, str], ...]
    """Name and sha256 of each patch of the series on disk, as of the last `edit` or `save`."""

    saving: tuple[tuple[str, str], ...] | None
    """The same of what a `save` that is under way, or was killed, writes."""

    tip: str
    """The commit that is that series."""


def write_state(folder: Path, state: WorkTreeState) -> None:
    """Write down what a work tree was made of, at one instant."""
    record = {"envspec-overlay": STATE_FORMAT, **asdict(state)}
    write_atomically(folder / ".git" / "envspec.json", json.dumps(record, indent=1, sort_keys=True) + "\n")


def parse_state(raw: bytes) -> WorkTreeState:
    """The record that a file holds.

    Args:
        raw: The whole file.

    Raises:
        ValueError: It is none, or names what envspec would not have written; also KeyError, TypeError, AttributeError, EnvspecError.
    """
    record = json.loads(raw)
    if record.pop("envspec-overlay") != STATE_FORMAT:
        raise ValueError("another format")
    bases = tuple(
        BaseRecord(
            commit=_matching(_COMMIT, base["commit"]),
            version=_matching(_PRINTABLE, base["version"]),
            file=_matching(_PRINTABLE, base["file"]),
            sha256=_matching(_SHA256, base["sha256"]),
            rebased=bool(base["rebased"]),
        )
        for base in record["bases"]
    )
    if not bases:
        raise ValueError("no base")
    return WorkTreeState(
        package=_matching(_PRINTABLE, record["package"]),
        series=_matching(_PRINTABLE, record["series"]),
        bases=bases,
        patches=_digests(record["patches"]),
        saving=None if record["saving"] is None else _digests(record["saving"]),
        tip=_matching(_COMMIT, record["tip"]),
    )


def _digests(pairs: list[list[str]]) -> tuple[tuple[str, str], ...]:
    """Names of patches, each that of a file beside the series, with their sha256."""
    names = tuple(name for name, _ in pairs)
    if parse_series("\n".join(names), input_name="") != names:
        raise ValueError("not the names of patches")
    return tuple((name, _matching(_SHA256, sha256)) for name, sha256 in pairs)


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None or not text.isprintable():
        raise ValueError("not what was written")
    return text
