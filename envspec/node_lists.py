"""Lists of hosts as Slurm writes them: `gpu[001-004,7],login` names six hosts.

    >>> expand_nodes("n[08-10],login")
    ('n08', 'n09', 'n10', 'login')

Pure: what `scontrol show hostnames` does, for machines that have none. A range keeps the width of its first number. Several brackets in one name
are taken in their order, the last one counting fastest.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from envspec.errors import EnvspecError
from envspec.forms import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS_LIMIT = 65_536
"""How many hosts a list may have: as many as Slurm lets a bracket have."""

_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def expand_nodes(text: str, *, input_name: str = "") -> tuple[str, ...]:
    """The hosts of a list, in its order; one that is named twice comes once.

    Args:
        text: `node[001-004,7],login`.
        input_name: Where it is from, for messages.

    Raises:
        EnvspecError: It is no such list, or has more than `HOSTS_LIMIT` hosts.
    """
    found: dict[str, None] = {}
    for name in _split(text, input_name):
        for host in _expand(name, text, input_name):
            found[host] = None
            if len(found) > HOSTS_LIMIT:
                raise _refused(text, f"it has more than {HOSTS_LIMIT} hosts", input_name)
    return tuple(found)


def _split(text: str, input_name: str) -> Iterator[str]:
    """The names between the commas that stand in no bracket."""
    depth, begin = 0, 0
    for position, character in enumerate(f"{text},"):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[begin:position]
            begin = position + 1
        if depth not in (0, 1):
            break
    if depth != 0:
        raise _refused(text, "its brackets are not closed, or lie in one another", input_name)


def _expand(name: str, text: str, input_name: str) -> Iterator[str]:
    pieces: list[tuple[str, ...] | list[str]] = []
    position, count = 0, 1
    for match in _PIECE.finditer(name):
        if match.start() != position:
            break
        position = match.end()
        inner, plain = match.groups()
        piece = (plain,) if inner is None else _numbers(inner, text, input_name)
        pieces.append(piece)
        count *= len(piece)
        if count > HOSTS_LIMIT:
            raise _refused(text, f"it has more than {HOSTS_LIMIT} hosts", input_name)
    if position != len(name) or not pieces:
        raise _refused(text, f"{quoted(name)} names no host", input_name)
    return ("".join(parts) for parts in itertools.product(*pieces))


def _numbers(inner: str, text: str, input_name: str) -> list[str]:
    found: list[str] = []
    for each in inner.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise _refused(text, f"{quoted(each)} is no range of numbers", input_name)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _refused(text, f"{quoted(each)} ends before it begins", input_name)
        if len(found) + int(last) - int(first) + 1 > HOSTS_LIMIT:
            raise _refused(text, f"it has more than {HOSTS_LIMIT} hosts", input_name)
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _refused(text: str, why: str, input_name: str) -> EnvspecError:
    return EnvspecError(
        f"{quoted(text)} is no list of hosts: {why}",
        input_name=input_name,
        hint="write it as Slurm does: `node[001-004,7],login`; `scontrol show hostnames` shows what a list means",
    )
