"""`envspec overlay edit`, `save` and `rebase`: work on a patch series in a git work tree."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, check_path, read_inputs, store_root
from envspec.cli.output import make_reporter, say, say_json, tell
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.agent.store import Store
    from builder.overlay_editing import OverlayTask, Saved
    from builder.overlay_rebase import Rebased
    from builder.overlay_record import BaseRecord
    from builder.progress import Reporter
    from envspec.cli.options import Inputs
    from envspec.spec import Spec

PackageArgument = Annotated[str, Parameter(help="Whose overlay: a package that has a table in [overlays].")]
DirOption = Annotated[
    Path | None,
    Parameter(name="--dir", help="The work tree. Default: .overlay/PACKAGE beside the spec."),
]


def edit(
    package: PackageArgument,
    /,
    *,
    directory: DirOption = None,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Make a git work tree of the locked base wheel, with one commit a patch.

    Change it by any means of git: amend, reorder, drop and add commits. Each commit is a patch, its message stands above the diff. Then
    `envspec overlay save PACKAGE`.
    """
    from builder.overlay_editing import edit as edit_series  # noqa: PLC0415

    with _work(package, directory, spec, store, quiet=quiet) as work:
        from builder.overlay_supply import ignore_default_folder  # noqa: PLC0415

        ignore_default_folder(work.task, work.inputs.spec_path.parent)
        edited = edit_series(work.task)
    if as_json:
        say_json(
            {
                "package": work.task.package.name,
                "path": os.fspath(work.task.folder),
                "made": edited.made,
                "base": _base_json(edited.base),
                "patches": list(edited.patches),
                "left_out": list(edited.left_out),
            }
        )
        return 0
    say(f"path      {work.task.folder}  {'made' if edited.made else 'there already'}")
    say(f"base      {_base_text(work.task, edited.base)}")
    say(f"sha256    {edited.base.sha256}")
    say(f"patches   {len(edited.patches)}")
    for name in edited.patches:
        say(f"  {name}")
    if edited.left_out:
        say(
            f"left out  {len(edited.left_out)} {'files' if len(edited.left_out) != 1 else 'file'} that cannot be patched as text"
        )
    tell(f"hint: commit there with git, then run `envspec overlay save {work.task.package.name}`")
    return 0


def save(
    package: PackageArgument,
    /,
    *,
    directory: DirOption = None,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Write the commits of the work tree back as the patch series.

    A patch whose commit did not change keeps its bytes. The series on disk is the old one or the new one at every instant.
    """
    from builder.overlay_editing import save as save_series  # noqa: PLC0415

    with _work(package, directory, spec, store, quiet=quiet) as work:
        saved = save_series(work.task)
    following = _following(work, saved)
    if as_json:
        say_json(
            {
                "package": work.task.package.name,
                "path": os.fspath(work.task.folder),
                "series": os.fspath(work.task.series_file),
                "base": _base_json(saved.base),
                "written": saved.written,
                "patches": [
                    {"name": patch.name, "status": patch.status, "old_name": patch.old_name or None}
                    for patch in saved.patches
                ],
                "next": list(following),
            }
        )
        return 0
    for patch in saved.patches:
        renamed = f"  was {patch.old_name}" if patch.old_name not in ("", patch.name) else ""
        note = "  changed by someone else: no part of the series, not removed" if patch.status == "kept" else ""
        say(f"{patch.status:9}  {patch.name}{renamed}{note}")
    say(f"series     {work.task.series_file}  {'written' if saved.written else 'unchanged'}")
    for step in following:
        tell(f"next: {step}")
    return 0


def rebase(
    package: PackageArgument,
    /,
    *,
    to: Annotated[str, Parameter(name="--to", help="The version to carry the series to.")],
    directory: DirOption = None,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Carry the commits of the work tree to another version of the package, three-way.

    Makes the work tree first if there is none. The series on disk stays as it is until `envspec overlay save PACKAGE`. Conflicts are told by
    patch and file, exit code 1, and left in the work tree: resolve, `git add`, `git rebase --continue`; `--skip` drops the patch, `--abort`
    leads back.
    """
    from builder.overlay_editing import edit as edit_series  # noqa: PLC0415
    from builder.overlay_rebase import check_ready  # noqa: PLC0415
    from builder.overlay_rebase import rebase as rebase_series  # noqa: PLC0415
    from builder.overlay_supply import fetch_target, ignore_default_folder  # noqa: PLC0415

    with _work(package, directory, spec, store, quiet=quiet) as work:
        is_there = work.task.folder.exists()
        if is_there:
            check_ready(work.task)
        target, late = fetch_target(
            work.task.package.name,
            to,
            spec=work.spec,
            store=work.store,
            environ=os.environ,
            reporter=work.reporter,
        )
        if not is_there:
            ignore_default_folder(work.task, work.inputs.spec_path.parent)
            edit_series(work.task)
        rebased = rebase_series(work.task, target)
    if as_json:
        say_json(
            {
                "package": work.task.package.name,
                "path": os.fspath(work.task.folder),
                "from": _base_json(rebased.old),
                "to": _base_json(rebased.new),
                "after_snapshot": late,
                "moved": rebased.moved,
                "conflicts": rebased.conflicts,
                "patches": [
                    {"name": patch.name, "subject": patch.subject, "result": patch.result, "files": list(patch.files)}
                    for patch in rebased.patches
                ],
            }
        )
    else:
        _say_rebased(work.task, rebased)
    _tell_rebased(work, rebased, late=late)
    return FOUND_WRONG if rebased.conflicts else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the three verbs work with."""

    inputs: Inputs
    spec: Spec
    store: Store
    task: OverlayTask
    reporter: Reporter


@contextlib.contextmanager
def _work(
    package: str, directory: Path | None, spec: Path | None, store: Path | None, *, quiet: bool
) -> Iterator[_Work]:
    """What is worked on, with the wheels of the store kept from gc while the context lasts."""
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.overlay_supply import make_task  # noqa: PLC0415

    inputs = read_inputs(spec)
    if directory is not None:
        check_path(directory, "the work tree")
    wanted, locked = inputs.parse_spec(), inputs.parse_lock()
    place = Store(store_root(store))
    reporter = make_reporter(quiet=quiet)
    task = make_task(
        package,
        spec=wanted,
        spec_path=inputs.spec_path,
        lock=locked,
        work_tree=directory,
        store=place,
        environ=os.environ,
        reporter=reporter,
    )
    place.ensure()
    with place.lock("gc", shared=True):
        yield _Work(inputs=inputs, spec=wanted, store=place, task=task, reporter=reporter)


def _say_rebased(task: OverlayTask, rebased: Rebased) -> None:
    if not rebased.moved:
        say(f"base      {_base_text(task, rebased.new)}  the series stands on it already")
        return
    say(f"path      {task.folder}")
    say(f"from      {_base_text(task, rebased.old)}")
    say(f"to        {_base_text(task, rebased.new)}")
    for patch in rebased.patches:
        note = f"  {task.package.name} {rebased.new.version} has it: dropped" if patch.result == "upstream" else ""
        say(f"{patch.result:8}  {patch.name}{note}")
        for file in patch.files:
            say(f"  {file}{'  will be in conflict' if patch.result == 'later' else ''}")


def _tell_rebased(work: _Work, rebased: Rebased, *, late: bool) -> None:
    name = work.task.package.name
    if rebased.conflicts:
        stopped = next(patch for patch in rebased.patches if patch.result == "conflict")
        tell(f"conflict: {stopped.name} does not merge with {name} {rebased.new.version}")
        tell(
            f"hint: in {work.task.folder}: resolve, `git add`, `git rebase --continue` (`--skip` drops the patch, `--abort` leads back);"
            f" then `envspec overlay save {name}`"
        )
    elif rebased.moved:
        tell(f"next: look at it with git, then run `envspec overlay save {name}`; the series on disk is as it was")
    if late and rebased.moved:
        tell(
            f"hint: {name} {rebased.new.version} was published after `snapshot` of {work.inputs.spec_name}: move that before `envspec lock`"
        )


def _following(work: _Work, saved: Saved) -> tuple[str, ...]:
    """What is to be done next."""
    package = work.task.package
    steps = []
    if saved.base.sha256 != package.sha256:
        steps.append(
            f'`{package.name} = "=={saved.base.version}"` in [packages] of {work.inputs.spec_name}, since the series is for that version now'
        )
    if saved.written or steps:
        steps.append("`envspec lock`")
    return tuple(steps)


def _base_text(task: OverlayTask, base: BaseRecord) -> str:
    return f"{task.package.name} {base.version}  {base.file}"


def _base_json(base: BaseRecord) -> dict[str, Any]:
    return {"version": base.version, "file": base.file, "sha256": base.sha256, "commit": base.commit}
