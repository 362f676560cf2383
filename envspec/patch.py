r"""A patch series and its patches: text -> values -> changed files. Exact or not at all; `docs/overlays.md` has the format.

A patch is a unified diff, with or without git's extra lines. It is applied as it is written: every hunk at its stated line, every context and
removed line byte for byte. There is no fuzz and no offset, since a patch that "nearly fits" is how one person's environment comes to differ
from another's. What a unified diff cannot say in the open (renames, copies, mode changes, binary deltas, links) is refused by name.

Invariants:
- Content is bytes and its lines end in LF only: a CR belongs to the line, and a missing last newline stays missing.
- No line of a patch is passed over in silence, but for the free text before the first file and after git's closing `-- `.
- Whatever the input, nothing but `EnvspecError` comes out, and the work is linear in the size of the input.

Example:
    >>> patch = parse_patch(b"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n", input_name="0001-a-is-two.patch")
    >>> apply_patch(patch, {"x.py": b"a = 1\n"}.get)
    {'x.py': b'a = 2\n'}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.patch_format import FileChange, Hunk, parse_diff, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FileChange", "Hunk", "Patch", "apply_patch", "apply_patches", "parse_patch", "parse_series", "split_lines"]

MAX_PATCH_BYTES = 16 << 20
"""A patch that a person reviews is far smaller."""

SHOWN_PROBLEMS = 20
"""Of one series or patch, and of one file in it: the rest is only counted."""

_PATCH_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@=,-]*")
_DEED = {"modify": "changed", "delete": "removed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One patch."""

    name: str
    """For messages: its file name."""

    files: tuple[FileChange, ...]
    """In the patch's order, each path once."""


def parse_series(text: str, *, input_name: str) -> tuple[str, ...]:
    """The names of a series' patches, in the order in which they are applied.

    Args:
        text: One name a line; `#` begins a comment. `-p1` may follow a name, as quilt writes it.
        input_name: For messages: the path of the series file.

    Raises:
        EnvspecError: A name is not that of a file beside the series, comes twice, or has an option other than `-p1`.
    """
    names: dict[str, int] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        name, *options = words
        refused = [option for option in options if option != "-p1"]
        message = ""
        if _PATCH_NAME.fullmatch(name) is None:
            message = f"{shown(name)} is not the plain name of a file beside the series"
        elif name in names:
            message = f"{shown(name)} is listed twice, first in line {names[name]}"
        elif refused:
            message = f"{shown(name)} has the option {shown(refused[0])}; paths are always read with `-p1`, and nothing else is offered"
        if message:
            problems.append(Problem(message=message, where=f"line {number}"))
        else:
            names[name] = number
    if problems:
        raise EnvspecError("the series cannot be read", input_name=input_name, problems=_capped(problems))
    return tuple(names)


def parse_patch(content: bytes, *, input_name: str) -> Patch:
    """The patch that a file holds.

    Args:
        content: The whole file.
        input_name: Name of the patch, for messages.

    Raises:
        EnvspecError: It is no unified diff, or does what a patch of an overlay may not do. Every refused file is named.
    """
    if len(content) > MAX_PATCH_BYTES:
        raise EnvspecError(
            f"the patch has {len(content)} bytes, more than the {MAX_PATCH_BYTES} that are read", input_name=input_name
        )
    files, problems = parse_diff(content)
    seen: set[str] = set()
    for change in files:
        if change.path in seen:
            problems.append(
                Problem(message=f"`{change.path}` is changed twice", hint="a patch has one part for a file")
            )
        seen.add(change.path)
    if not files and not problems:
        problems.append(Problem(message="it changes no file: there is no `diff --git` or `--- ` line"))
    if problems:
        raise EnvspecError("the patch cannot be used", input_name=input_name, problems=_capped(problems))
    return Patch(name=input_name, files=tuple(files))


def apply_patch(patch: Patch, read: Callable[[str], bytes | None]) -> dict[str, bytes | None]:
    """The files that a patch changes, as they are afterwards.

    Args:
        patch: The patch.
        read: Path -> content of the file, None if there is none.

    Returns:
        Path -> new content, None if the file is removed; in the patch's order.

    Raises:
        EnvspecError: The patch does not fit (exit code `FOUND_WRONG`). Every hunk that does not is told.
    """
    return apply_patches((patch,), read, input_name=patch.name)


def apply_patches(
    patches: Sequence[Patch], read: Callable[[str], bytes | None], *, input_name: str
) -> dict[str, bytes | None]:
    """The files that patches change, one applied on top of the other, as they are after the last.

    A file that a patch does not fit is told, and what later patches do to the same file is not tried.

    Args:
        patches: In the order of the series.
        read: Path -> content of the file before the first patch, None if there is none.
        input_name: For messages: the name of the series, or of the only patch.

    Returns:
        Path -> final content, None if the file is not there afterwards; sorted by path.

    Raises:
        EnvspecError: A patch does not fit (exit code `FOUND_WRONG`).
    """
    contents: dict[str, bytes | None] = {}
    failed: set[str] = set()
    problems: list[Problem] = []
    for patch in patches:
        for change in patch.files:
            path = change.path
            if path in failed:
                continue
            before = contents[path] if path in contents else read(path)
            found = _misfits(patch.name, change, before)
            if found:
                problems += found
                failed.add(path)
            else:
                after = _splice(split_lines(before or b""), change)
                contents[path] = None if change.kind == "delete" else after
    if problems:
        files = "1 file does not fit" if len(failed) == 1 else f"{len(failed)} files do not fit"
        raise EnvspecError(
            f"{files}; nothing was written",
            input_name=input_name,
            problems=tuple(problems),
            exit_code=FOUND_WRONG,
            hint="the files are not those that the patch was made for: base it on this version of the package",
        )
    return dict(sorted(contents.items()))


def _misfits(patch_name: str, change: FileChange, before: bytes | None) -> list[Problem]:
    """Why a change does not fit a file; empty if it does."""
    where = f"{patch_name}: {change.path}"
    if change.kind == "add":
        if before is None:
            return []
        same = before == _splice([], change)
        again = ", with the same content: the patch seems to be applied already" if same else ""
        return [Problem(message=f"the file is to be added, and is there{again}", where=where)]
    if before is None:
        again = ": the patch seems to be applied already" if change.kind == "delete" else ""
        return [Problem(message=f"the file is to be {_DEED[change.kind]}, and is not there{again}", where=where)]
    lines = split_lines(before)
    misfits = [
        (f"{where}: hunk {number} of {len(change.hunks)}", hunk)
        for number, hunk in enumerate(change.hunks, start=1)
        if hunk.old_line > len(lines) or tuple(lines[hunk.old_line : hunk.old_line + len(hunk.old)]) != hunk.old
    ]
    if misfits:
        # Only those that are shown are looked into, which keeps the search for their text linear.
        problems = [_misfit(place, hunk, before, lines) for place, hunk in misfits[:SHOWN_PROBLEMS]]
        left = len(misfits) - len(problems)
        return problems + ([Problem(message=f"{left} more hunks do not fit", where=where)] if left else [])
    if change.kind == "delete":
        left = len(lines) - sum(len(hunk.old) for hunk in change.hunks)
        message = f"the file is to be removed, but the patch leaves {left} of its {len(lines)} lines"
        return [Problem(message=message, where=where)] if left else []
    return _joined_lines(where, change, lines)


def _joined_lines(where: str, change: FileChange, lines: list[bytes]) -> list[Problem]:
    """Whether the patch puts a line behind one that has no newline, which would make one line of two."""
    for number, hunk in enumerate(change.hunks, start=1):
        end = hunk.old_line + len(hunk.old)
        after_unfinished = bool(hunk.new) and hunk.old_line > 0 and not lines[hunk.old_line - 1].endswith(b"\n")
        ends_unfinished = bool(hunk.new) and end < len(lines) and not hunk.new[-1].endswith(b"\n")
        if after_unfinished or ends_unfinished:
            line = hunk.new_line + (0 if after_unfinished else len(hunk.new))
            message = f"line {line} would have no newline and yet not be the last one of the file"
            return [Problem(message=message, where=f"{where}: hunk {number} of {len(change.hunks)}")]
    return []


def _misfit(where: str, hunk: Hunk, before: bytes, lines: list[bytes]) -> Problem:
    """What is wrong with one hunk, and where its text stands if it stands anywhere."""
    message = f"lines are to be put in after line {hunk.old_line}, but the file has {len(lines)}"
    for line, expected in enumerate(hunk.old, start=hunk.old_line):
        found = lines[line] if line < len(lines) else None
        if found != expected:
            message = f"line {line + 1}: expected {_line(expected)}, found {_line(found)}"
            break
    elsewhere = _find(hunk.old, before)
    new_end = hunk.new_line + len(hunk.new)
    if hunk.new and (tuple(lines[hunk.new_line : new_end]) == hunk.new or (not elsewhere and _find(hunk.new, before))):
        message += "; the hunk seems to be applied already"
    elif elsewhere:
        message += f"; the same text stands at line {elsewhere}"
    return Problem(message=message, where=where)


def _line(line: bytes | None) -> str:
    """A line of a file for a message."""
    if line is None:
        return "the end of the file"
    return shown(line) if line.endswith(b"\n") else f"{shown(line)} without a newline"


def _find(block: tuple[bytes, ...], content: bytes) -> int:
    """The first line, from 1, at which whole lines stand in a file; 0 if they do not. Linear, as `bytes.find` is."""
    at = (b"\n" + content).find(b"\n" + b"".join(block)) if block else -1
    return content.count(b"\n", 0, at) + 1 if at >= 0 else 0


def _splice(lines: list[bytes], change: FileChange) -> bytes:
    """The file's new content; the hunks are known to fit."""
    pieces: list[bytes] = []
    at = 0
    for hunk in change.hunks:
        pieces += lines[at : hunk.old_line]
        pieces += hunk.new
        at = hunk.old_line + len(hunk.old)
    return b"".join(pieces + lines[at:])


def split_lines(content: bytes) -> list[bytes]:
    """The lines of a file, each with its newline if it has one. Only LF ends a line: `splitlines` would also cut at a lone CR."""
    pieces = content.split(b"\n")
    return [piece + b"\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def _capped(problems: list[Problem]) -> tuple[Problem, ...]:
    """The first problems, and how many more there are."""
    if len(problems) <= SHOWN_PROBLEMS:
        return tuple(problems)
    return (*problems[:SHOWN_PROBLEMS], Problem(message=f"and {len(problems) - SHOWN_PROBLEMS} more"))
