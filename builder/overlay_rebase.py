"""A patch series -> another version of its package, three-way: `envspec overlay rebase`.

The base wheel of the other version becomes a first commit of its own in the work tree, and git's own rebase carries the commits there.
Invariants:

- The series on disk is not touched.
- Until git has carried the last commit, `git rebase --abort` leads back to what was.
- A kill leaves a work tree that is as it was, or one in which git's rebase is under way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.git import MERGE_TREE_GIT, Git
from builder.overlay_editing import OverlayTask, base_files, check_on_disk
from builder.overlay_record import BaseRecord
from builder.overlay_series import read_series_on_disk
from builder.overlay_worktree import (
    WorkTree,
    base_message,
    base_ref,
    commit_stream,
    locked_work_tree,
    open_work_tree,
)
from envspec.series_plan import is_same_message, plan_series, subject_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envspec.series_plan import Change, PlannedPatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWheel:
    """The base wheel that the series is carried to."""

    version: str
    file: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RebasedPatch:
    """What became of a patch."""

    name: str
    subject: str
    result: Literal["carried", "upstream", "conflict", "later"]
    """`upstream`: the new base has it, so it was dropped. `later`: its turn comes when the conflict before it is resolved."""

    files: tuple[str, ...]
    """Those in conflict; of a later patch those that will be, as far as that can be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """What `rebase` did."""

    old: BaseRecord
    new: BaseRecord
    patches: tuple[RebasedPatch, ...]
    moved: bool
    """False if the series stands on that wheel already."""

    @property
    def conflicts(self) -> bool:
        """Whether a person has to resolve something."""
        return any(patch.result == "conflict" for patch in self.patches)


def check_ready(task: OverlayTask) -> None:
    """See that a work tree can be rebased, before a wheel is fetched for it.

    Raises:
        EnvspecError: As `rebase`.
    """
    with locked_work_tree(task.folder):
        _read(task)


def rebase(task: OverlayTask, target: TargetWheel) -> Rebased:
    """Carry the commits of a work tree to another base wheel.

    Raises:
        EnvspecError: The work tree is not settled, its commits are no series, or git fails for another reason than a conflict.
    """
    with locked_work_tree(task.folder):
        tree, old, changes, planned = _read(task)
        touched = frozenset(edit.path for change in changes for edit in change.edits)
        tree, new = _with_base(tree, task, target, touched)
        if new.sha256 == old.sha256:
            return Rebased(old=old, new=old, patches=(), moved=False)
        git = tree.git
        args = ["rebase", "--merge", "--empty=drop", "--no-verify", "--no-fork-point", "--onto", new.commit, old.commit]
        ended = git.ask(args)
        if ended.returncode != 0 and tree.operation() != "rebase":
            raise git.failure(args, ended)
        stopped = len(changes)
        if ended.returncode != 0:
            commit = git.run(["rev-parse", "--verify", "REBASE_HEAD"]).decode().strip()
            stopped = next((index for index, change in enumerate(changes) if commit.startswith(change.where)), 0)
        carried = _carried(tree, new, changes[:stopped])
        results = [
            _result(planned[index], change, "carried" if carried[index] else "upstream")
            for index, change in enumerate(changes[:stopped])
        ]
        if ended.returncode != 0:
            files = _paths(git.run(["diff", "--name-only", "--diff-filter=U", "-z"]))
            if not files:
                raise git.failure(args, ended)
            results.append(_result(planned[stopped], changes[stopped], "conflict", files))
            expected = _expected_conflicts(git, changes[stopped:], tree.head())
            results += [
                _result(planned[index], changes[index], "later", expected[index - stopped])
                for index in range(stopped + 1, len(changes))
            ]
    return Rebased(old=old, new=new, patches=tuple(results), moved=True)


def _read(task: OverlayTask) -> tuple[WorkTree, BaseRecord, tuple[Change, ...], tuple[PlannedPatch, ...]]:
    """A work tree in which all that could be saved is committed: its base, its commits, and the patches that they are."""
    tree = open_work_tree(task.git, task.folder, package=task.package.name, series=task.series)
    tree.check_settled()
    head = tree.head()
    old = tree.base(head)
    disk = read_series_on_disk(task.series_file)
    changes = tree.changes(old, head)
    planned = plan_series(disk.patches, changes)
    check_on_disk(task, disk, tree.state)
    return tree, old, changes, planned


def _with_base(
    tree: WorkTree, task: OverlayTask, target: TargetWheel, touched: frozenset[str]
) -> tuple[WorkTree, BaseRecord]:
    """The work tree with the target wheel as a first commit of its own; nothing else of it changes."""
    files, left_out, sha256 = base_files(target.path, touched)
    known = [base for base in tree.state.bases if base.sha256 == sha256]
    if known:
        return tree, known[0]
    ref = base_ref(sha256)
    message = base_message(task.package.name, target.version, target.file, sha256, len(left_out))
    stream = commit_stream(ref=ref, message=message, files=files) + b"done\n"
    tree.git.run(["fast-import", "--quiet", "--force", "--date-format=raw", "--done"], input_bytes=stream)
    base = BaseRecord(
        commit=tree.git.run(["rev-parse", "--verify", ref]).decode().strip(),
        version=target.version,
        file=target.file,
        sha256=sha256,
        rebased=True,
    )
    return tree.with_state(replace(tree.state, bases=(*tree.state.bases, base))), base


def _carried(tree: WorkTree, new: BaseRecord, changes: Sequence[Change]) -> list[bool]:
    """For each change whether it has a commit on the new base; one that has none changed nothing there."""
    messages = tree.messages(new, tree.head())
    found: list[bool] = []
    for change in changes:
        there = bool(messages) and is_same_message(messages[0], change.message)
        found.append(there)
        if there:
            messages = messages[1:]
    return found


def _expected_conflicts(git: Git, changes: Sequence[Change], head: str) -> list[tuple[str, ...]]:
    """The files in which each change will conflict, found by merging without a work tree.

    What a person will make of the first conflict is not known, so files that were in conflict before are not told again. Nothing is known where
    git is too old for it.
    """
    expected: list[tuple[str, ...]] = []
    if git.version < MERGE_TREE_GIT:
        return [()] * len(changes)
    tree = f"{head}^{{tree}}"
    told: set[str] = set()
    for change in changes:
        tree = git.run(["rev-parse", "--verify", tree]).decode().strip()
        ours = git.run(["commit-tree", tree, "-p", f"{change.where}^"]).decode().strip()
        ended = git.ask(["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, change.where])
        tree, _, rest = ended.stdout.decode("utf-8", "surrogateescape").partition("\0")
        if ended.returncode not in (0, 1) or not tree:
            return [*expected, *([()] * (len(changes) - len(expected)))]
        files = _paths(rest.encode("utf-8", "surrogateescape"))
        expected.append(tuple(path for path in files if path not in told))
        told.update(files)
    return expected


def _result(
    planned: PlannedPatch,
    change: Change,
    result: Literal["carried", "upstream", "conflict", "later"],
    files: tuple[str, ...] = (),
) -> RebasedPatch:
    return RebasedPatch(name=planned.name, subject=subject_of(change.message), result=result, files=files)


def _paths(raw: bytes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.decode("utf-8", "backslashreplace") for path in raw.split(b"\0") if path))
