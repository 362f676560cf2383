r"""The text of a unified diff -> what it does to each file. `envspec.patch` is the door; `docs/overlays.md` has the format.

It reads what `git diff`, `git format-patch`, GNU diff and difflib write, and refuses by name what does not say in the open how a file ends up:
renames, copies, mode changes, binary deltas, combined diffs, links.

Invariants:
- A line ends in LF only: a CR belongs to the line. A missing last newline stays missing.
- The counts in a hunk's first line are right, hunks follow each other without overlap, and their old and new line numbers agree.
- No line is passed over in silence, but for the free text before the first file and after git's closing `-- `.
- The work is linear in the length of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from envspec.errors import Problem
from envspec.printable import printable_line

MAX_PATH_BYTES = 4096

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: [^\n]*)?\n")
_MODE = re.compile(rb"(new file|deleted file|old|new) mode (\d{1,9})\n")
_INDEX = re.compile(rb"index [0-9a-f]{4,64}\.\.[0-9a-f]{4,64}(?: (\d{1,9}))?\n")
_BINARY = re.compile(rb"Binary files .* differ\n")
_BETWEEN_FILES = re.compile(rb"(?:diff -[^\n]*|Index: [^\n]*|=+)\n")
_DRIVE = re.compile(r"[A-Za-z]:")
_FILE_MODES = {b"100644": False, b"100755": True}
_OTHER_MODES = {
    b"120000": "a symbolic link",
    b"160000": "a git submodule",
    b"040000": "a directory",
    b"40000": "a directory",
}
_REFUSED_LINES = (
    (b"rename ", "it renames a file", "`git diff --no-renames` writes a deletion and an addition"),
    (b"copy ", "it copies a file", "`git diff --no-renames` writes an addition"),
    (b"similarity index ", "it renames or copies a file", "`git diff --no-renames` writes deletions and additions"),
    (b"dissimilarity index ", "it rewrites a file", "use `git diff --no-break-rewrites`"),
    (
        b"GIT binary patch",
        "it is a binary patch",
        "only text can be reviewed; binary content belongs into a wheel of its own",
    ),
    (
        b"Binary files ",
        "it is a binary patch",
        "only text can be reviewed; binary content belongs into a wheel of its own",
    ),
)
_COMBINED = (b"diff --cc ", b"diff --combined ", b"@@@ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One contiguous change of a file."""

    old_line: int
    """Index of its first line in the old file, from 0; if it has no old line, of the line that the new ones go before."""

    new_line: int
    """The same in the new file."""

    old: tuple[bytes, ...]
    """Its lines in the old file, context included, each with its newline if it has one."""

    new: tuple[bytes, ...]
    """Its lines in the new file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """What a patch does to one file."""

    path: str
    """With `/`, without the first component that the patch's paths have."""

    kind: Literal["add", "modify", "delete"]
    executable: bool
    """Of a file that is added: whether its mode is 100755."""

    hunks: tuple[Hunk, ...]
    """In the file's order, without overlap; empty where an empty file is added or deleted."""


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """A part of a patch that cannot be accepted."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse_diff(content: bytes) -> tuple[list[FileChange], list[Problem]]:
    """Every file of a diff that can be read, and what is wrong with the others.

    Args:
        content: The whole text. Anything may come before the first line that begins with `diff --git ` or `--- `.

    Returns:
        The changes in the diff's order, and the problems, each with its line.
    """
    return _Parser(content).parse()


class _Parser:
    """A cursor over the lines of a diff."""

    def __init__(self, content: bytes) -> None:
        pieces = content.split(b"\n")
        self.lines = [piece + b"\n" for piece in pieces[:-1]]
        self.rest = pieces[-1]
        self.at = 0

    def parse(self) -> tuple[list[FileChange], list[Problem]]:
        """Read the whole diff; after a part that is refused, go on at the next `diff --git `."""
        files: list[FileChange] = []
        problems: list[Problem] = []
        if self.rest:
            problems.append(
                Problem(
                    message="the last line has no newline: the patch is cut off", where=self._place(len(self.lines))
                )
            )
        try:
            self._skip_free_text()
        except _Refused as refused:
            problems.append(self._problem(refused))
            self._skip_to_next_file()
        while self.at < len(self.lines):
            try:
                change = self._part()
            except _Refused as refused:
                problems.append(self._problem(refused))
                self._skip_to_next_file()
            else:
                if change is not None:
                    files.append(change)
        return files, problems

    def _place(self, index: int) -> str:
        return f"line {index + 1}"

    def _problem(self, refused: _Refused) -> Problem:
        where = self._place(min(self.at, max(len(self.lines) - 1, 0)))
        return Problem(message=refused.message, where=where, hint=refused.hint)

    def _peek(self) -> bytes:
        """The current line; empty at the end."""
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def _skip_free_text(self) -> None:
        while self.at < len(self.lines):
            line = self._peek()
            if line.startswith((b"diff --git ", b"--- ", *_COMBINED)):
                return
            if _BINARY.fullmatch(line):
                raise _Refused(*_REFUSED_LINES[-1][1:])
            if _HUNK.fullmatch(line):
                raise _Refused(f"{shown(line)} begins a hunk, and no line says of which file")
            self.at += 1

    def _skip_to_next_file(self) -> None:
        self.at += 1
        while self.at < len(self.lines) and not self._peek().startswith(b"diff --git "):
            self.at += 1

    def _part(self) -> FileChange | None:
        """What stands at the cursor: a file, or a line between files that means nothing."""
        line = self._peek()
        if line.startswith(b"diff --git "):
            return self._git_file()
        if line.startswith(b"--- "):
            kind, path = self._paths()
            return self._change(kind, path, executable=False)
        if line.startswith(_COMBINED):
            raise _Refused("it is a combined diff, of a merge", "make the diff against one parent")
        if line == b"-- \n":
            self._closing()
        elif line == b"\n" or _BETWEEN_FILES.fullmatch(line):
            self.at += 1
        else:
            for start, message, hint in _REFUSED_LINES:
                if line.startswith(start):
                    raise _Refused(message, hint)
            raise _Refused(
                f"{shown(line)} belongs to no hunk: a hunk before it has more lines than it says, or text follows the patch"
            )
        return None

    def _closing(self) -> None:
        """Skip git's closing lines: `-- ` and its version."""
        while self.at < len(self.lines):
            if self._peek().startswith((b"diff ", b"--- ", b"@@ ")):
                raise _Refused("after the closing line `-- ` comes another patch", "a file holds one patch")
            self.at += 1

    def _git_file(self) -> FileChange:
        """A file that begins with `diff --git`."""
        path = _git_path(self._peek())
        self.at += 1
        kind: Literal["add", "modify", "delete"] = "modify"
        executable = False
        while True:
            line = self._peek()
            if mode := _MODE.fullmatch(line):
                if mode[1] in (b"old", b"new"):
                    raise _Refused(f"it changes the mode of `{path}`", "the executable bit is the base wheel's")
                executable = _mode(mode[2], path)
                kind = "add" if mode[1] == b"new file" else "delete"
            elif index := _INDEX.fullmatch(line):
                if index[1] is not None:
                    _mode(index[1], path)
            else:
                break
            self.at += 1
        for start, message, hint in _REFUSED_LINES:
            if line.startswith(start):
                raise _Refused(f"{message}: `{path}`", hint)
        if line.startswith(b"--- "):
            stated = self._paths()
            if stated != (kind, path):
                raise _Refused(
                    f"its lines disagree: {kind} `{path}` by `diff --git`, {stated[0]} `{stated[1]}` by `---` and `+++`"
                )
            return self._change(kind, path, executable=executable)
        if kind == "modify":
            raise _Refused(f"it changes nothing in `{path}`{f': {shown(line)} follows' if line else ''}")
        return FileChange(path=path, kind=kind, executable=executable and kind == "add", hunks=())

    def _paths(self) -> tuple[Literal["add", "modify", "delete"], str]:
        """What the lines `---` and `+++` say."""
        old_raw = self._peek()
        self.at += 1
        new_raw = self._peek()
        if not new_raw.startswith(b"+++ "):
            raise _Refused(
                f"after {shown(old_raw)} comes {shown(new_raw)} in place of a line `+++ `: it is not a unified diff"
            )
        old, new = (_stated_path(raw[4:-1].partition(b"\t")[0]) for raw in (old_raw, new_raw))
        self.at += 1
        if old is None:
            if new is None:
                raise _Refused("both files are `/dev/null`")
            return "add", new
        if new is None:
            return "delete", old
        if old != new:
            raise _Refused(
                f"it renames `{old}` to `{new}`", "write a deletion and an addition: `git diff --no-renames`"
            )
        return "modify", old

    def _change(self, kind: Literal["add", "modify", "delete"], path: str, *, executable: bool) -> FileChange:
        """The hunks of a file, which must be at the cursor."""
        hunks: list[Hunk] = []
        while self._peek().startswith(b"@@"):
            hunk = self._hunk()
            _follow(hunks, hunk)
            if (kind == "add" and hunk.old) or (kind == "delete" and hunk.new) or (kind != "modify" and hunks):
                raise _Refused(
                    f"`{path}` is to be {'added' if kind == 'add' else 'deleted'}, but a hunk says otherwise"
                )
            hunks.append(hunk)
        if not hunks:
            raise _Refused(f"`{path}` has no hunk: {shown(self._peek())} stands where one should begin")
        return FileChange(path=path, kind=kind, executable=executable and kind == "add", hunks=tuple(hunks))

    def _hunk(self) -> Hunk:
        """One hunk, from its `@@` line to the last line that its counts cover."""
        first = self._peek()
        numbers = _HUNK.fullmatch(first)
        if first.startswith(_COMBINED):
            raise _Refused("it is a combined diff, of a merge", "make the diff against one parent")
        if numbers is None:
            raise _Refused(f"the first line of a hunk cannot be read: {shown(first)}")
        old_start, old_count, new_start, new_count = (
            1 if number is None else int(number) for number in numbers.groups()
        )
        if (old_count and not old_start) or (new_count and not new_start):
            raise _Refused(f"the first line of a hunk names a line 0: {shown(first)}")
        self.at += 1
        old: list[bytes] = []
        new: list[bytes] = []
        sides: tuple[list[bytes], ...] = ()  # those that the line before belongs to
        while len(old) < old_count or len(new) < new_count or self._peek().startswith(b"\\ "):
            line = self._peek()
            if line.startswith(b"\\ "):
                _strip_newline(sides)
                sides = ()
            else:
                sides = _sides(line, old, new)
                for side in sides:
                    side.append(b"\n" if line == b"\n" else line[1:])
            if len(old) > old_count or len(new) > new_count:
                raise _Refused(f"the hunk has more lines than {shown(first)} says")
            self.at += 1
        if not all(line.endswith(b"\n") for side in (old, new) for line in side[:-1]):
            raise _Refused("a line without a newline is not the last one of the file")
        if old == new:
            raise _Refused("the hunk changes nothing")
        return Hunk(
            old_line=old_start - 1 if old_count else old_start,
            new_line=new_start - 1 if new_count else new_start,
            old=tuple(old),
            new=tuple(new),
        )


def _sides(line: bytes, old: list[bytes], new: list[bytes]) -> tuple[list[bytes], ...]:
    """The sides of a hunk that a line belongs to. An empty line is an empty context line without its space, as GNU diff may write it."""
    start = line[:1]
    if start in (b" ", b"\n"):
        return (old, new)
    if start == b"-":
        return (old,)
    if start == b"+":
        return (new,)
    if not line:
        raise _Refused("the hunk is cut off: it has fewer lines than it says")
    raise _Refused(f"{shown(line)} is no line of a hunk, which has fewer lines than it says")


def _strip_newline(sides: tuple[list[bytes], ...]) -> None:
    r"""Do what the line `\ No newline at end of file` says of the line before it."""
    if not sides:
        raise _Refused(r"a line `\ No newline at end of file` stands where there is no line before it")
    for side in sides:
        side[-1] = side[-1][:-1]
        if not side[-1]:
            raise _Refused("an empty line without a newline is no line")


def _follow(hunks: list[Hunk], hunk: Hunk) -> None:
    """Check a hunk's place against that of the hunks before it."""
    old_end = new_end = 0
    if hunks:
        last = hunks[-1]
        old_end, new_end = last.old_line + len(last.old), last.new_line + len(last.new)
        if any(side and not side[-1].endswith(b"\n") for side in (last.old, last.new)):
            raise _Refused("a hunk follows the one that holds the end of the file")
    if hunk.old_line < old_end:
        raise _Refused(f"the hunk at line {hunk.old_line + 1} overlaps the one before it, or comes too late")
    if hunk.new_line - new_end != hunk.old_line - old_end:
        expected = new_end + hunk.old_line - old_end
        raise _Refused(f"the hunk's new lines begin at index {hunk.new_line} where the hunks before it give {expected}")


def _mode(mode: bytes, path: str) -> bool:
    """Whether a mode is that of an executable file."""
    executable = _FILE_MODES.get(mode)
    if executable is None:
        what = _OTHER_MODES.get(mode, "neither 100644 nor 100755")
        raise _Refused(f"`{path}` has the mode {mode.decode()}: {what}")
    return executable


def _git_path(line: bytes) -> str:
    """The path in `diff --git a/PATH b/PATH`. The two have one length, so they part in the middle, spaces or not."""
    words = line[len(b"diff --git ") : -1]
    middle = len(words) // 2
    old, new = words[:middle], words[middle + 1 :]
    if b'"' in words:
        _refuse_quoted(words)
    if words[middle : middle + 1] != b" " or old.partition(b"/")[2] != new.partition(b"/")[2]:
        raise _Refused(
            f"the two paths are not one path below `a/` and `b/`: {shown(words)}",
            "`git diff --no-renames` with git's own prefixes",
        )
    if old == new:
        raise _Refused(
            f"the paths have no prefixes: {shown(words)}",
            "the first component is always taken off: do not use `--no-prefix`",
        )
    return _checked_path(new)


def _stated_path(raw: bytes) -> str | None:
    """The path of a line `---` or `+++`; None for /dev/null."""
    if raw == b"/dev/null":
        return None
    if raw.startswith(b'"'):
        _refuse_quoted(raw)
    return _checked_path(raw)


def _refuse_quoted(raw: bytes) -> None:
    raise _Refused(
        f"the path {shown(raw)} is quoted", "`git -c core.quotePath=false diff` writes letters beyond ASCII plainly"
    )


def _checked_path(raw: bytes) -> str:
    """A path of a patch without its first component, if it is one that a patch may change."""
    if len(raw) > MAX_PATH_BYTES:
        raise _Refused(f"a path has {len(raw)} bytes")
    try:
        whole = raw.decode()
    except UnicodeDecodeError:
        raise _Refused(f"the path {shown(raw)} is not UTF-8") from None
    prefix, slash, path = whole.partition("/")
    if not prefix:
        reason = "is absolute"
    elif not slash:
        reason = "has no first component to take off, such as `a/`"
    elif prefix == "..":
        reason = "leaves the wheel or is not in its plain form"
    else:
        reason = path_problem(path)
        if not reason:
            return path
    raise _Refused(f"the path {shown(raw)} {reason}")


def path_problem(path: str) -> str:
    """Why a patch may not change a member of a wheel; empty if it may.

    Args:
        path: Of the member, as the wheel names it.
    """
    parts = path.split("/")
    folders = parts[:-1]  # `x.data` may be the name of a file
    if not path.isprintable() or "\\" in path:
        return "has a backslash or a control character"
    if any(part in ("", ".", "..") for part in parts) or _DRIVE.match(path):
        return "leaves the wheel or is not in its plain form"
    if parts[-1].lower().endswith(".dist-info") or any(f.lower().endswith((".dist-info", ".data")) for f in folders):
        return "is in a `.dist-info` or `.data` folder, which envspec writes itself"
    if "__pycache__" in parts:
        return "is in `__pycache__`, which no digest covers"
    return ""


def split_header(content: bytes) -> tuple[bytes, bytes]:
    """The free text above the first file of a patch, and the diff.

    Lines such as `Index: PATH` that stand directly above a `---` belong to the diff.
    """
    lines = content.split(b"\n")
    start = 0
    while start < len(lines) and not lines[start].startswith((b"diff --git ", b"--- ", *_COMBINED)):
        start += 1
    while start and start < len(lines) and _BETWEEN_FILES.fullmatch(lines[start - 1] + b"\n"):
        start -= 1
    header = b"".join(line + b"\n" for line in lines[:start])
    return (header, content[len(header) :]) if start < len(lines) else (content, b"")


def shown(text: bytes | str) -> str:
    """A line or a word for a message: printable, in backticks, not too long."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    decoded = raw[:600].removesuffix(b"\n").decode("utf-8", "backslashreplace")
    return f"`{printable_line(decoded[:120])}{'...' if len(decoded) > 120 else ''}`"
