"""The single-file steps that turn one patch series on disk into another, so that after each of them the series is the old one or the new one.

The only thing that says what a series is, is the series file, and a single file can be replaced at one instant. So a patch that the series file
names is never written over while it is named: its new content first gets a name of its own, the series file is switched to that, then the patch
is written under its old name, and the series file is switched back. Who is killed in between leaves the new series under odd names; the next
`save` gives it the right ones.

Example:
    for step in replacement_steps(...):
        write_or_remove(step)  # each atomic, in this order
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_INTERIM = re.compile(r"_saving-([0-9a-f]{8})-(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One file of the series' folder, to be replaced or removed at one instant."""

    name: str
    content: bytes | None
    """None if it is to be removed."""


def settled_name(name: str) -> str:
    """The name that a patch is to have; another than it has only where a `save` was killed."""
    found = _INTERIM.fullmatch(name)
    return found[2] if found else name


def is_left_over(name: str, content: bytes) -> bool:
    """Whether a file is a patch under the name that it has while a series is replaced."""
    found = _INTERIM.fullmatch(name)
    return found is not None and found[1] == _digest(content)


def replacement_steps(
    *,
    series_name: str,
    text_before: bytes | None,
    text: bytes,
    named_before: Collection[str],
    there: Mapping[str, bytes],
    patches: Sequence[tuple[str, bytes]],
    removable: Collection[str],
) -> tuple[Step, ...]:
    """The steps, in their order.

    Args:
        series_name: Name of the series file.
        text_before: Its content; None if it is not there.
        text: What it is to be.
        named_before: The patches that it names.
        there: Files of the folder, as far as they are patches before or after.
        patches: Name and content of every patch of the new series.
        removable: Files that may be removed once the new series does not name them.
    """
    names = {name for name, _ in patches}
    wrong = [(name, content) for name, content in patches if there.get(name) != content]
    steps: list[Step] = []
    interim: dict[str, str] = {}
    if len(wrong) > 1 or text != text_before:
        interim = {name: f"_saving-{_digest(content)}-{name}" for name, content in wrong if name in named_before}
    if interim:
        early = [Step(name=interim.get(name, name), content=content) for name, content in wrong]
        steps += [step for step in early if there.get(step.name) != step.content]
        steps.append(Step(name=series_name, content=_renamed(text, interim)))
        removable = {*removable, *interim.values()}
    steps += [Step(name=name, content=content) for name, content in wrong]
    if interim or text != text_before:
        steps.append(Step(name=series_name, content=text))
    written = {step.name for step in steps if step.content is not None}
    gone = {name for name in removable if name not in names and (name in there or name in written)}
    return (*dict.fromkeys(steps), *(Step(name=name, content=None) for name in sorted(gone)))


def _renamed(text: bytes, names: Mapping[str, str]) -> bytes:
    """The series file with other names in it."""
    lines = text.decode().split("\n")
    for index, line in enumerate(lines):
        words = line.split()
        if words and words[0] in names:
            lines[index] = line.replace(words[0], names[words[0]], 1)
    return "\n".join(lines).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]
