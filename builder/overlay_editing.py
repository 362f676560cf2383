"""A patch series -> a git work tree, and back: `envspec overlay edit` and `save`.

Invariants:
- A series that goes through a work tree in which nothing is changed comes out byte for byte as it was: `edit` proves it before it gives the work
  tree its name.
- The series on disk is the old one or the new one at every instant (`envspec.series_steps`).
- What `save` writes has been applied to the base wheel itself, and gave what is committed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.agent.files import hash_file
from builder.agent.store import remove_dead_temporaries, remove_readonly_tree, rename_new, sync_folder
from builder.base_wheel import TextFile, read_text_files, work_path_problem
from builder.git import Git, write_local_config
from builder.overlay import Series, parse_patches
from builder.overlay_record import BaseRecord, WorkTreeState, write_state
from builder.overlay_series import SavedPatch, SeriesOnDisk, read_series_on_disk, sha256_of, write_series
from builder.overlay_worktree import (
    BRANCH,
    WorkTree,
    base_message,
    base_ref,
    commit_stream,
    locked_work_tree,
    open_work_tree,
)
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.patch import Patch, apply_patches, parse_patch
from envspec.patch_format import shown
from envspec.series_plan import OldPatch, PlannedPatch, message_of, plan_series

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envspec.lock import LockedPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayTask:
    """Whose series is worked on, and where."""

    package: LockedPackage
    """As the lock has it: the base wheel."""

    series: str
    """Path of the series file, as the spec has it."""

    series_file: Path
    folder: Path
    """The work tree."""

    git: Git
    base_wheel: Callable[[], Path]
    """Brings the locked base wheel into the wheelhouse, if it is not there."""

    find_wheel: Callable[[str], Path | None]
    """sha256 -> a wheel of the wheelhouse; None if it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A work tree to work in."""

    base: BaseRecord
    patches: tuple[str, ...]
    """Names, in the order of the series."""

    left_out: tuple[str, ...]
    """Members of the base wheel that are not in the work tree."""

    made: bool
    """Whether it was made now; else it was there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What `save` did."""

    base: BaseRecord
    patches: tuple[SavedPatch, ...]
    """In the order of the series; then those that are gone."""

    written: bool
    """Whether anything on disk changed."""


def edit(task: OverlayTask) -> Edited:
    """Make the work tree of a series, or find that it is there.

    A work tree in which nothing was done since the last `edit` or `save` is made anew if series or base have changed.

    Raises:
        EnvspecError: The series does not fit the base wheel, or the folder is taken, or work in it is not saved.
    """
    disk = read_series_on_disk(task.series_file)
    base_wheel = task.base_wheel()
    with locked_work_tree(task.folder):
        if task.folder.is_symlink() or task.folder.exists():
            there = _usable(task, disk)
            if there is not None:
                _, _, left_out = read_text_files(base_wheel, wanted=_touched(disk.series))
                return Edited(
                    base=there, patches=tuple(patch.name for patch in disk.patches), left_out=left_out, made=False
                )
        base, left_out = _make(task, disk, base_wheel)
    return Edited(base=base, patches=tuple(patch.name for patch in disk.patches), left_out=left_out, made=True)


def save(task: OverlayTask) -> Saved:
    """Write the commits of the work tree back as the series.

    Raises:
        EnvspecError: Something is not committed, a commit cannot be a patch, or series or base are not those of the work tree; nothing was
            written.
    """
    with locked_work_tree(task.folder):
        tree = open_work_tree(task.git, task.folder, package=task.package.name, series=task.series)
        tree.check_settled()
        head = tree.head()
        base = tree.base(head)
        check_base(tree, base, task.package)
        disk = read_series_on_disk(task.series_file)
        changes = tree.changes(base, head)
        if not changes:
            raise EnvspecError(
                "there is no commit after that of the base wheel: the series would be empty",
                input_name=os.fspath(task.folder),
                hint=f"to have no overlay, take [overlays.{task.package.name}] out of the spec",
                exit_code=FOUND_WRONG,
            )
        planned = plan_series(disk.patches, changes)
        plan = tuple((patch.name, sha256_of(patch.content)) for patch in planned)
        if disk.digests != plan:
            check_on_disk(task, disk, tree.state)
        _prove(task, tree, head, base, planned)
        before = tree.state
        tree = tree.with_state(replace(before, saving=plan))
        ours = frozenset((*before.patches, *(before.saving or ())))
        saved, written = write_series(task.series_file, disk, planned, ours)
        tree.with_state(replace(tree.state, patches=plan, saving=None, tip=head))
    return Saved(base=base, patches=saved, written=written)


def check_base(tree: WorkTree, base: BaseRecord, package: LockedPackage) -> None:
    """See that a work tree stands on the locked base wheel, or on one that `rebase` brought.

    Raises:
        EnvspecError: The lock has moved on.
    """
    if base.sha256 != package.sha256 and not base.rebased:
        raise EnvspecError(
            f"the work tree stands on {base.file} with sha256 {base.sha256}, the lock has {package.file} with {package.sha256}",
            input_name=os.fspath(tree.path),
            hint=f"carry the commits over: `envspec overlay rebase {package.name} --to {package.version}`",
            exit_code=FOUND_WRONG,
        )


def check_on_disk(task: OverlayTask, disk: SeriesOnDisk, state: WorkTreeState) -> None:
    """See that the series on disk is that of the work tree, or what a killed `save` made of it.

    Raises:
        EnvspecError: Someone else changed it.
    """
    if disk.digests in {state.patches, state.saving}:
        return
    changed = sorted({name for name, _ in set(disk.digests) ^ set(state.patches)}) or ["their order"]
    raise EnvspecError(
        "the series on disk has changed since the work tree was made; nothing was written",
        input_name=os.fspath(task.series_file),
        problems=tuple(Problem(message=shown(name)) for name in changed),
        hint="put it back as it was; or make another work tree with `envspec overlay edit --dir DIR` and `git cherry-pick` the commits there",
        exit_code=FOUND_WRONG,
    )


def base_files(base_wheel: Path, touched: frozenset[str]) -> tuple[dict[str, TextFile], tuple[str, ...], str]:
    """The files of a base wheel that go into a work tree, the members that do not, and the wheel's sha256.

    Args:
        base_wheel: The wheel.
        touched: What the patches change.
    """
    refused = [(path, problem) for path in sorted(touched) if (problem := work_path_problem(path))]
    if refused:
        raise EnvspecError(
            "the series changes files that cannot be worked on in a git work tree",
            problems=tuple(Problem(message=f"{shown(path)} {problem}") for path, problem in refused),
            hint="change these by hand",
        )
    _, files, left_out = read_text_files(base_wheel, wanted=touched)
    return files, left_out, hash_file(os.fspath(base_wheel))


def _usable(task: OverlayTask, disk: SeriesOnDisk) -> BaseRecord | None:
    """The base of a work tree that is there and right; None if it is to be made anew, since nothing in it would be lost."""
    if task.folder.is_dir() and not task.folder.is_symlink() and not any(task.folder.iterdir()):
        return None
    if not (task.folder / ".git" / "envspec.json").exists():
        raise EnvspecError(
            f"`{task.folder}` is there and no work tree of envspec",
            hint="name another folder with `--dir DIR`",
        )
    tree = open_work_tree(task.git, task.folder, package=task.package.name, series=task.series)
    head = tree.head()
    pristine = head == tree.state.tip and not tree.operation() and not tree.changed_files()
    same_series = disk.digests in {tree.state.patches, tree.state.saving}
    if same_series:
        base = tree.base(head)
        if base.sha256 == task.package.sha256 or base.rebased:
            return base
    if pristine:
        return None
    what = "the series on disk has" if not same_series else "the lock has"
    raise EnvspecError(
        f"{what} changed since the work tree was made, and the work tree has work that is not saved",
        input_name=os.fspath(task.folder),
        hint="make another one with `--dir DIR`, fetch the commits from this one there (`git fetch`, `git cherry-pick`), and remove this one",
        exit_code=FOUND_WRONG,
    )


def _make(task: OverlayTask, disk: SeriesOnDisk, base_wheel: Path) -> tuple[BaseRecord, tuple[str, ...]]:
    """Make the work tree beside its place, prove it, and give it its name."""
    patches = parse_patches(disk.series)
    package = task.package
    files, left_out, sha256 = base_files(base_wheel, _touched(disk.series))
    message = base_message(package.name, package.version, package.file, sha256, len(left_out))
    stream = [commit_stream(ref=BRANCH, message=message, files=files, note_ref=base_ref(sha256))]
    stream += _patch_commits(disk.patches, patches, files)
    parent = task.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    remove_dead_temporaries(parent)
    temporary = parent / f".envspec-{os.getpid()}-{task.folder.name}"
    try:
        temporary.mkdir()
        git = task.git.at(temporary)
        git.run(["init", "--quiet", "--template="])
        write_local_config(git)
        git.run(["symbolic-ref", "HEAD", BRANCH])
        git.run(["fast-import", "--quiet", "--date-format=raw", "--done"], input_bytes=b"".join([*stream, b"done\n"]))
        git.run(["reset", "--quiet", "--hard"])
        base = BaseRecord(
            commit=git.run(["rev-parse", base_ref(sha256)]).decode().strip(),
            version=package.version,
            file=package.file,
            sha256=sha256,
            rebased=False,
        )
        state = WorkTreeState(
            package=package.name,
            series=task.series,
            bases=(base,),
            patches=disk.digests,
            saving=None,
            tip=git.run(["rev-parse", "HEAD"]).decode().strip(),
        )
        write_state(temporary, state)
        _prove_round_trip(WorkTree(git=git, state=state), base, disk)
        if task.folder.exists():  # pristine, or empty
            old = parent / f".envspec-{os.getpid()}-old-{task.folder.name}"
            task.folder.rename(old)
            remove_readonly_tree(old)
        if not rename_new(temporary, task.folder):
            raise EnvspecError(f"`{task.folder}` was made by someone else just now", hint="look at it, and try again")
        sync_folder(parent)
    finally:
        remove_readonly_tree(temporary)
    return base, left_out


def _patch_commits(old: tuple[OldPatch, ...], patches: tuple[Patch, ...], files: Mapping[str, TextFile]) -> list[bytes]:
    """The commits of the patches, one on top of the other.

    Raises:
        EnvspecError: They do not fit the base wheel (exit code `FOUND_WRONG`).
    """

    def read(path: str) -> bytes | None:
        return files[path].content if path in files else None

    apply_patches(patches, read, input_name="the series")  # tells of every patch that does not fit
    now: dict[str, TextFile | None] = {
        path: files.get(path) for patch in patches for path in (file.path for file in patch.files)
    }
    commits: list[bytes] = []
    for source, patch in zip(old, patches, strict=True):
        message = message_of(source)
        if b"\0" in message:
            raise EnvspecError("there is a NUL byte in the text above the diff", input_name=patch.name)
        contents = {path: file.content if file else None for path, file in now.items()}
        after = apply_patches((patch,), contents.get, input_name=patch.name)
        changed: dict[str, TextFile | None] = {}
        for change in patch.files:
            content, before = after[change.path], now[change.path]
            executable = before.executable if before is not None else change.executable
            changed[change.path] = None if content is None else TextFile(content=content, executable=executable)
        now |= changed
        # What is removed comes first: a folder may take the place of a file.
        ordered = dict(sorted(changed.items(), key=lambda item: (item[1] is not None, item[0])))
        commits.append(commit_stream(ref=BRANCH, message=message, files=ordered))
    return commits


def _prove_round_trip(tree: WorkTree, base: BaseRecord, disk: SeriesOnDisk) -> None:
    """See that saving the work tree now would change nothing."""
    planned = plan_series(disk.patches, tree.changes(base, tree.state.tip))
    if [(patch.name, patch.content) for patch in planned] != [(patch.name, patch.content) for patch in disk.patches]:
        raise EnvspecError("the series cannot be brought into a git work tree and back without a change")


def _prove(task: OverlayTask, tree: WorkTree, head: str, base: BaseRecord, planned: tuple[PlannedPatch, ...]) -> None:
    """Apply the new patches to the base wheel itself and see that what is committed comes out."""
    patches = tuple(parse_patch(patch.content, input_name=patch.name) for patch in planned)
    touched = frozenset(file.path for patch in patches for file in patch.files)
    wheel = task.base_wheel() if base.sha256 == task.package.sha256 else task.find_wheel(base.sha256)
    files, _, sha256 = base_files(wheel, touched) if wheel is not None else ({}, (), "")
    if sha256 != base.sha256:
        raise EnvspecError(
            f"the base wheel {base.file} with sha256 {base.sha256} is not in the store any more",
            hint=f"`envspec overlay rebase {task.package.name} --to {base.version}` fetches it; if a file of another content is in its"
            " place, remove that",
        )
    after = apply_patches(patches, lambda path: files[path].content if path in files else None, input_name=base.file)
    committed = tree.read_files(head, list(after))
    wrong = [path for path, content in after.items() if committed[path] != content]
    if wrong:
        raise EnvspecError(
            "the patches do not give what is committed",
            problems=tuple(Problem(message=shown(path)) for path in wrong),
            hint="is a file that was added there in the base wheel, and left out of the work tree?",
            exit_code=FOUND_WRONG,
        )


def _touched(series: Series) -> frozenset[str]:
    return frozenset(file.path for patch in parse_patches(series) for file in patch.files)
