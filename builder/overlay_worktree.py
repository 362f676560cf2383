"""The git work tree of a patch series: the base wheel's text as the first commit, then one commit a patch.

`<work tree>/.git/envspec.json` says what the work tree was made of. The commits are the user's: they may be amended, reordered, dropped and
added to, by any means of git. Invariants:

- A work tree is complete under its name or not there. It is made beside that and renamed.
- The first commit's id depends on the base wheel alone.
- What is read of it is read from git's objects, never from files that are only checked out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.base_wheel import MAX_TEXT_BYTES, work_path_problem
from builder.git import IDENTITY, MOMENT, NOT_LOOKED_AT, Git
from builder.overlay_record import BaseRecord, WorkTreeState, parse_state, write_state
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.patch_format import shown
from envspec.patch_writing import FileEdit
from envspec.printable import printable_line
from envspec.series_plan import Change, subject_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.base_wheel import TextFile

BRANCH = "refs/heads/overlay"
SHOWN_FILES = 20

_OPERATIONS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "MERGE_HEAD": "merge",
}
_MODES = {"100644": False, "100755": True}
_OTHER_MODES = {"120000": "a symbolic link", "160000": "a git repository of its own"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTree:
    """A work tree that was opened."""

    git: Git
    state: WorkTreeState

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.git.folder

    def with_state(self, state: WorkTreeState) -> WorkTree:
        """The work tree with another state, which is on the disk then."""
        write_state(self.path, state)
        return replace(self, state=state)

    def head(self) -> str:
        """The id of the commit that is checked out."""
        return self.git.run(["rev-parse", "--verify", "HEAD^{commit}"]).decode().strip()

    def changed_files(self) -> tuple[str, ...]:
        """What is not committed, bytecode and caches left out."""
        tracked = self.git.run(
            ["status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=none", "--no-renames"]
        )
        excludes = [f"--exclude={name}" for name in NOT_LOOKED_AT]
        others = self.git.run(["ls-files", "-z", "--others", *excludes])
        entries = [f"{printable_line(_text(entry[3:]))}" for entry in tracked.split(b"\0") if entry]
        return (*entries, *(f"{printable_line(_text(entry))} (new)" for entry in others.split(b"\0") if entry))

    def operation(self) -> str:
        """The git command that is under way, such as `rebase`; empty if none is."""
        return next((verb for name, verb in _OPERATIONS.items() if (self.path / ".git" / name).exists()), "")

    def check_settled(self) -> None:
        """See that nothing is half done in it.

        Raises:
            EnvspecError: A rebase or the like is under way, or something is not committed.
        """
        operation = self.operation()
        if operation:
            raise EnvspecError(
                f"a {operation} is under way in the work tree",
                input_name=os.fspath(self.path),
                hint=f"resolve what is left, `git add`, and `git {operation} --continue`; or `git {operation} --abort`",
                exit_code=FOUND_WRONG,
            )
        changed = self.changed_files()
        if changed:
            more = len(changed) - SHOWN_FILES
            raise EnvspecError(
                f"{len(changed)} {'files are' if len(changed) != 1 else 'file is'} not committed in the work tree",
                input_name=os.fspath(self.path),
                problems=tuple(
                    Problem(message=name)
                    for name in [*changed[:SHOWN_FILES], *([f"and {more} more"] if more > 0 else [])]
                ),
                hint="commit them (`git add`, then `git commit`, or `git commit --amend` to change the last patch), or put them away"
                " with `git stash -u`",
                exit_code=FOUND_WRONG,
            )

    def base(self, commit: str) -> BaseRecord:
        """The base wheel that a commit stands on.

        Raises:
            EnvspecError: The commit stands on none that envspec made.
        """
        roots = set(self.git.run(["rev-list", "--max-parents=0", commit]).decode().split())
        known = [base for base in self.state.bases if base.commit in roots]
        if len(known) != 1 or len(roots) != 1:
            raise EnvspecError(
                "the commits do not stand on the commit of the base wheel"
                if not known
                else "the commits stand on several first commits",
                input_name=os.fspath(self.path),
                hint=f"bring them there: `git rebase --onto {self.state.bases[-1].commit[:12]} COMMIT-BEFORE-YOURS`",
                exit_code=FOUND_WRONG,
            )
        return known[0]

    def changes(self, base: BaseRecord, head: str) -> tuple[Change, ...]:
        """What each commit after the base does.

        Raises:
            EnvspecError: A commit is a merge, or does what an overlay may not do (exit code `FOUND_WRONG`); every reason is told.
        """
        listed = self.git.run(["rev-list", "--reverse", "--topo-order", "--parents", f"{base.commit}..{head}"])
        commits = [line.split() for line in listed.decode().splitlines()]
        merges = [words[0] for words in commits if len(words) != 2]
        if merges:
            raise EnvspecError(
                f"{'commits are merges' if len(merges) > 1 else 'a commit is a merge'}: {', '.join(merge[:12] for merge in merges[:5])}",
                input_name=os.fspath(self.path),
                hint=f"a series is one line of commits: `git rebase {base.commit[:12]}` makes one",
                exit_code=FOUND_WRONG,
            )
        messages = self._messages([commit for commit, _ in commits])
        problems: list[Problem] = []
        changes: list[Change] = []
        for (commit, parent), message in zip(commits, messages, strict=True):
            where = f"{commit[:12]} {shown(subject_of(message) or 'without a message')}"
            edits, found = self._edits(parent, commit)
            problems += [replace(problem, where=where) for problem in found]
            changes.append(Change(where=commit[:12], message=message, edits=edits))
        if problems:
            more = len(problems) - SHOWN_FILES
            raise EnvspecError(
                "commits do what an overlay may not do; nothing was written",
                input_name=os.fspath(self.path),
                problems=(*problems[:SHOWN_FILES], *([Problem(message=f"and {more} more")] if more > 0 else [])),
                hint="change the commits: `git rebase -i` and `edit`",
                exit_code=FOUND_WRONG,
            )
        return tuple(changes)

    def messages(self, base: BaseRecord, head: str) -> list[bytes]:
        """The messages of the commits after a base, in UTF-8."""
        return self._messages(
            self.git.run(["rev-list", "--reverse", "--topo-order", f"{base.commit}..{head}"]).decode().split()
        )

    def read_files(self, commit: str, paths: Sequence[str]) -> dict[str, bytes | None]:
        """Files as a commit has them; None for one that it has not.

        Args:
            commit: Which.
            paths: Below the work tree, none with a line end.
        """
        found = self._objects([f"{commit}:{path}" for path in paths])
        return dict(zip(paths, found, strict=True))

    def _messages(self, commits: Sequence[str]) -> list[bytes]:
        messages = []
        for content in self._objects(commits):
            headers, _, message = (content or b"").partition(b"\n\n")
            encoding = re.search(rb"^encoding (\S+)$", headers, re.MULTILINE)
            if encoding is not None:
                with contextlib.suppress(LookupError, UnicodeDecodeError):
                    message = message.decode(encoding[1].decode("ascii", "replace")).encode()
            messages.append(message)
        return messages

    def _edits(self, parent: str, commit: str) -> tuple[tuple[FileEdit, ...], list[Problem]]:
        """What a commit does to each file, and what it may not do."""
        raw = self.git.run(
            [
                "diff-tree",
                "-r",
                "-z",
                "--raw",
                "--no-renames",
                "--no-abbrev",
                "--ignore-submodules=none",
                parent,
                commit,
            ]
        )
        fields = raw.split(b"\0")[:-1]
        problems: list[Problem] = []
        wanted: list[tuple[str, bool, str, str]] = []
        for meta, raw_path in zip(fields[::2], fields[1::2], strict=True):
            old_mode, new_mode, old_id, new_id, status = meta.decode().removeprefix(":").split()
            path = _text(raw_path)
            problem = _mode_problem(old_mode, new_mode, status) or work_path_problem(path)
            if problem:
                problems.append(Problem(message=f"{shown(raw_path)} {problem}"))
            else:
                wanted.append((path, _MODES[old_mode if status == "D" else new_mode], old_id, new_id))
        sizes = self._sizes([one for _, _, *ids in wanted for one in ids])
        large = [path for path, _, *ids in wanted if any(sizes[one] > MAX_TEXT_BYTES for one in ids)]
        if large:
            problems += [
                Problem(message=f"{shown(path)} has more than the {MAX_TEXT_BYTES} bytes that a patched file may have")
                for path in large
            ]
        if problems:
            return (), problems
        contents = self._objects([one for _, _, *ids in wanted for one in ids])
        return tuple(
            FileEdit(path=path, before=before, after=after, executable=executable)
            for (path, executable, _, _), before, after in zip(wanted, contents[::2], contents[1::2], strict=True)
        ), []

    def _sizes(self, ids: Sequence[str]) -> dict[str, int]:
        answer = self.git.run(
            ["cat-file", "--batch-check=%(objectsize)"], input_bytes="".join(f"{one}\n" for one in ids).encode()
        )
        lines = answer.decode().splitlines()
        return {one: int(line) if line.isdecimal() else 0 for one, line in zip(ids, lines, strict=True)}

    def _objects(self, names: Sequence[str]) -> list[bytes | None]:
        """The contents of objects; None for one that is not there (such as git's null id)."""
        if not names:
            return []
        answer = self.git.run(
            ["cat-file", "--batch=%(objectsize)"], input_bytes="".join(f"{name}\n" for name in names).encode()
        )
        contents: list[bytes | None] = []
        at = 0
        for _ in names:
            end = answer.index(b"\n", at)
            line = answer[at:end]
            at = end + 1
            if not line.isdigit():
                contents.append(None)
                continue
            contents.append(answer[at : at + int(line)])
            at += int(line) + 1
        return contents


def open_work_tree(git: Git, folder: Path, *, package: str, series: str) -> WorkTree:
    """The work tree of a series.

    Args:
        git: Any git.
        folder: Where it lies.
        package: Whose series it must be of.
        series: Path of the series file, as the spec has it.

    Raises:
        EnvspecError: There is none, or it is of another series.
    """
    path = folder / ".git" / "envspec.json"
    try:
        state = parse_state(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise EnvspecError(
            f"there is no work tree of `{package}` at `{folder}`",
            hint=f"make one with `envspec overlay edit {package}`, or name its folder with `--dir DIR`",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, EnvspecError) as error:
        raise EnvspecError(
            "the record of the work tree cannot be read",
            input_name=os.fspath(path),
            hint="what is committed there is not lost: make another work tree with `--dir`, and `git fetch` the commits from this one",
        ) from error
    if (state.package, state.series) != (package, series):
        raise EnvspecError(
            f"the work tree is of `{state.package}` with `{printable_line(state.series)}`, not of `{package}` with `{series}`",
            input_name=os.fspath(folder),
            hint="name another folder with `--dir DIR`",
        )
    return WorkTree(git=git.at(folder), state=state)


@contextlib.contextmanager
def locked_work_tree(folder: Path) -> Iterator[None]:
    """Keep other envspec commands out of a work tree that is there.

    Raises:
        EnvspecError: Another one works in it.
    """
    if not (folder / ".git" / "envspec.json").exists():
        yield
        return
    fd = os.open(folder / ".git" / "envspec.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvspecError(
                "another `envspec overlay` works in this work tree",
                input_name=os.fspath(folder),
                hint="wait until it has ended",
            ) from None
        yield
    finally:
        os.close(fd)


def commit_stream(
    *, ref: str, message: bytes, files: Mapping[str, TextFile | None], parent: str = "", note_ref: str = ""
) -> bytes:
    """One commit for `git fast-import`.

    Args:
        ref: The branch that it goes to.
        message: Its message, byte for byte.
        files: Path -> file; None for one that is removed. Paths have no line end and begin with no quotation mark.
        parent: A commit; empty to go on from the ref as the same stream left it, or to begin a history.
        note_ref: A further ref that the commit gets.
    """
    who = b"%b <%b> %b" % (IDENTITY[0].encode(), IDENTITY[1].encode(), MOMENT.encode())
    parts = [b"commit %b\nmark :1\nauthor %b\ncommitter %b\n" % (ref.encode(), who, who)]
    parts.append(b"data %d\n%b\n" % (len(message), message))
    if parent:
        parts.append(b"from %b\n" % parent.encode())
    for path, file in files.items():
        if file is None:
            parts.append(b"D %b\n" % path.encode())
            continue
        mode = b"100755" if file.executable else b"100644"
        parts += [b"M %b inline %b\ndata %d\n" % (mode, path.encode(), len(file.content)), file.content, b"\n"]
    if note_ref:
        parts.append(b"reset %b\nfrom :1\n\n" % note_ref.encode())
    return b"".join(parts)


def base_message(package: str, version: str, file: str, sha256: str, left_out: int) -> bytes:
    """The message of a base wheel's commit."""
    lines = [f"{package} {version}, the base wheel", "", f"file:     {file}", f"sha256:   {sha256}"]
    if left_out:
        lines.append(f"left out: {left_out} {'files' if left_out != 1 else 'file'} that cannot be patched as text")
    return "\n".join([*lines, ""]).encode()


def base_ref(sha256: str) -> str:
    """The ref that keeps a base wheel's commit."""
    return f"refs/envspec/bases/{sha256}"


def _mode_problem(old_mode: str, new_mode: str, status: str) -> str:
    for mode in (old_mode, new_mode):
        if mode not in _MODES and mode != "000000":
            return f"is {_OTHER_MODES.get(mode, f'of the mode {mode}')}"
    if status == "M" and old_mode != new_mode:
        return f"has its mode changed from {old_mode} to {new_mode}: the executable bit is the base wheel's"
    return ""


def _text(raw: bytes) -> str:
    """A path as text; bytes that are not UTF-8 become what no path of an overlay may have."""
    return raw.decode("utf-8", "surrogateescape")
