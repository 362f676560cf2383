r"""Changed files -> the text of a unified diff, the same bytes whatever wrote or reads the files.

What git writes, and `envspec.patch` reads: `diff --git`, three lines of context, the nearest line above a hunk that begins with a letter.
Nothing of it depends on a version or a configuration of git.

Example:
    >>> edit = FileEdit(path="x.py", before=b"a = 1\n", after=b"a = 2\n", executable=False)
    >>> print(render_diff([edit]).decode(), end="")
    diff --git a/x.py b/x.py
    index 1337a530cbc1..e7cabca986b0 100644
    --- a/x.py
    +++ b/x.py
    @@ -1 +1 @@
    -a = 1
    +a = 2
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.line_diff import Run, changed_runs
from envspec.patch import split_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONTEXT_LINES = 3
BLOB_ID_CHARS = 12
"""Of git's names of the contents: enough to find them in a repository of any size."""

LONGEST_TITLE_BYTES = 80

_TITLE = re.compile(rb"[A-Za-z_$]")
_NO_BLOB = b"0" * BLOB_ID_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """What happened to one file."""

    path: str
    before: bytes | None
    """None if the file is added."""

    after: bytes | None
    """None if the file is removed."""

    executable: bool
    """Whether its mode is 100755; it has one mode on both sides."""


def render_diff(edits: Iterable[FileEdit]) -> bytes:
    """The unified diff of some files.

    Args:
        edits: Each path once; in any order.
    """
    return b"".join(_file(edit) for edit in sorted(edits, key=lambda edit: edit.path.encode()))


def _file(edit: FileEdit) -> bytes:
    path = edit.path.encode()
    mode = b"100755" if edit.executable else b"100644"
    parts = [b"diff --git a/%b b/%b\n" % (path, path)]
    blobs = b"index %b..%b" % (_blob_id(edit.before), _blob_id(edit.after))
    if edit.before is None:
        parts.append(b"new file mode %b\n%b\n" % (mode, blobs))
    elif edit.after is None:
        parts.append(b"deleted file mode %b\n%b\n" % (mode, blobs))
    else:
        parts.append(b"%b %b\n" % (blobs, mode))
    old, new = split_lines(edit.before or b""), split_lines(edit.after or b"")
    runs = changed_runs(old, new)
    if runs:
        end = b"\t" if b" " in path else b""  # as git does: a date might follow the path
        parts.append(b"--- a/%b%b\n" % (path, end) if edit.before is not None else b"--- /dev/null\n")
        parts.append(b"+++ b/%b%b\n" % (path, end) if edit.after is not None else b"+++ /dev/null\n")
        parts += _hunks(runs, old, new)
    return b"".join(parts)


def _hunks(runs: Sequence[Run], old: Sequence[bytes], new: Sequence[bytes]) -> list[bytes]:
    groups: list[list[Run]] = []
    for run in runs:
        if groups and run.old_start - groups[-1][-1].old_end <= 2 * CONTEXT_LINES:
            groups[-1].append(run)
        else:
            groups.append([run])
    parts: list[bytes] = []
    title = b""
    titled = 0  # lines in which a title was looked for
    for group in groups:
        before = min(CONTEXT_LINES, group[0].old_start)
        after = min(CONTEXT_LINES, len(old) - group[-1].old_end)
        old_start, old_end = group[0].old_start - before, group[-1].old_end + after
        new_start, new_end = group[0].new_start - before, group[-1].new_end + after
        for line in old[titled:old_start]:
            title = line if _TITLE.match(line) else title
        titled = old_start
        place = b"@@ -%b +%b @@" % (_range(old_start, old_end), _range(new_start, new_end))
        parts.append(b"%b%b\n" % (place, _shown_title(title)))
        at = old_start
        for run in group:
            parts += [_line(b" ", line) for line in old[at : run.old_start]]
            parts += [_line(b"-", line) for line in old[run.old_start : run.old_end]]
            parts += [_line(b"+", line) for line in new[run.new_start : run.new_end]]
            at = run.old_end
        parts += [_line(b" ", line) for line in old[at:old_end]]
    return parts


def _range(start: int, end: int) -> bytes:
    """Lines of one side, as the first line of a hunk has them: from 1, but 0 where there is none."""
    if end - start == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if end > start else start, end - start)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def _shown_title(line: bytes) -> bytes:
    """The end of a hunk's first line: printable, cut between characters; empty if there is nothing to show."""
    text = line[:LONGEST_TITLE_BYTES].decode("utf-8", "ignore")
    return f" {''.join(char for char in text if char.isprintable()).rstrip()}".rstrip().encode()


def _blob_id(content: bytes | None) -> bytes:
    """The beginning of git's name of a content."""
    if content is None:
        return _NO_BLOB
    digest = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False)
    return digest.hexdigest()[:BLOB_ID_CHARS].encode()
