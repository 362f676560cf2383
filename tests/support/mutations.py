"""Locks with one field edited by hand: every leaf of a lock's TOML, changed to another value of the same form, or taken out.

The edited text stays canonical, as if `envspec` had written it, so that only what the field says can give it away.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tomllib

from envspec.lock_toml import HEADER
from envspec.toml_writing import key_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One edit."""

    path: Path
    """Keys and indices from the root: `("package", 12, "sha256")`."""

    kind: str
    """`changed` or `removed`."""

    text: str
    """The whole lock afterwards."""

    @property
    def key(self) -> str:
        """The name of the field."""
        return next(str(part) for part in reversed(self.path) if isinstance(part, str))


def leaves(value: object, path: Path = ()) -> Iterator[Path]:
    """The path of every scalar of a TOML value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    else:
        yield path


def mutations(text: str, *, step: int = 1, first: int = 0) -> Iterator[Mutation]:
    """Every edit of a lock; with `step`, every so-many-th, from the `first` on.

    Args:
        text: Of the lock.
        step: 1 for all.
        first: How many to pass over.
    """
    values = tomllib.loads(text)
    assert written(values) == text, "the writer of this test does not write what dump_lock writes"
    edits = [(path, kind) for path in leaves(values) for kind in ("changed", "removed")]
    for path, kind in edits[first::step]:
        edited = copy.copy(values)
        inner: Any = edited
        for part in path[:-1]:  # only what lies on the way is copied
            inner[part] = copy.copy(inner[part])
            inner = inner[part]
        if kind == "changed":
            inner[path[-1]] = other_value(inner[path[-1]])
        else:
            del inner[path[-1]]
        yield Mutation(path=path, kind=kind, text=written(edited))


def other_value(value: object) -> object:
    """Another value of the same form: one digit, or else one letter, is another one; the last of them, so that a prefix stays."""
    if isinstance(value, int):
        return value + 1
    assert isinstance(value, str)
    for others in ("0123456789", "abcdefghijklmnopqrstuvwxyz"):
        for place in range(len(value) - 1, -1, -1):
            if value[place] in others and not value[:place].endswith("sha"):
                char = others[(others.index(value[place]) + 1) % len(others)]
                if len(value) in {32, 64} and others[0] == "0" and char not in "23456789":
                    char = "3" if value[place] != "3" else "4"  # base32 has neither 0, 1, 8 nor 9
                return value[:place] + char + value[place + 1 :]
    return value + "x"


def written(values: dict[str, Any]) -> str:
    """TOML as locks are written, the keys in the order that they have."""
    return HEADER + "\n".join(_lines("", values)) + "\n"


def _lines(prefix: str, table: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, value in table.items():
        inner = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            lines += ["", f"[{inner}]", *_lines(inner, value)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                lines += ["", f"[[{inner}]]", *_lines(inner, each)]
        else:
            lines += key_lines((key, value))
    return lines
