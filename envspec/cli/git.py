"""`envspec git`: what makes git show changes of locks as reviews, and merge locks without ever writing a wrong one."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.cli.options import JsonOption, StoreOption, is_spec_head, store_root
from envspec.cli.output import make_reporter, say, say_json, tell
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from builder.git_setup import Setup

_FILES_OF_DIFF = 7  # path, then file, id and mode of both sides


def install(*, as_json: JsonOption = False) -> int:
    """Set up the diff driver and the merge driver for the locks of this repository.

    Writes .gitattributes, to be committed, and the configuration of this clone. Run it in each clone; a second time changes nothing.
    """
    from builder.git import find_git  # noqa: PLC0415
    from builder.git_history import find_worktree  # noqa: PLC0415
    from builder.git_setup import find_specs  # noqa: PLC0415
    from builder.git_setup import install as set_up  # noqa: PLC0415

    git = find_worktree(find_git(os.environ), Path.cwd())
    specs = find_specs(git, is_spec_head)
    if not specs:
        raise EnvspecError(
            "there is no spec in this repository: no *.toml starts with `envspec = 1`",
            input_name=os.fspath(git.folder),
            hint="write one first",
            exit_code=FOUND_WRONG,
        )
    program = f"{shlex.quote(sys.executable)} -P -m envspec"  # -P: nothing of the repository is imported
    setup = set_up(git, [spec.with_suffix(".lock") for spec in specs], program)
    _report(setup, git.folder, as_json=as_json)
    if not as_json and setup.attributes_changed:
        tell("hint: commit .gitattributes; everybody else runs `envspec git install` once in their clone")
    return 0


def uninstall(*, as_json: JsonOption = False) -> int:
    """Take the drivers out of .gitattributes and of the configuration of this clone."""
    from builder.git import find_git  # noqa: PLC0415
    from builder.git_history import find_worktree  # noqa: PLC0415
    from builder.git_setup import uninstall as take_out  # noqa: PLC0415

    git = find_worktree(find_git(os.environ), Path.cwd())
    _report(take_out(git), git.folder, as_json=as_json)
    return 0


def _report(setup: Setup, folder: Path, *, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "repository": os.fspath(folder),
                "locks": list(setup.locks),
                "attributes_changed": setup.attributes_changed,
                "config_changed": setup.config_changed,
            }
        )
        return
    for lock in setup.locks:
        say(f"{lock}  diff and merge by envspec")
    say(f".gitattributes  {'written' if setup.attributes_changed else 'unchanged'}")
    say(f"configuration   {'written' if setup.config_changed else 'unchanged'}")


def merge_driver(
    base: Annotated[Path, Parameter(help="File with the version that both sides come from.")],
    ours: Annotated[Path, Parameter(help="File with our version; gets the merged lock.")],
    theirs: Annotated[Path, Parameter(help="File with their version.")],
    path: Annotated[str, Parameter(help="Of the lock in the repository.")],
    /,
    *,
    store: StoreOption = None,
) -> int:
    """Merge a lock for git: made anew from the merged spec with the wheels of both sides, or refused.

    git calls it with three files. If it refuses, our version stays, git marks a conflict, and the message says what to do.
    """
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.git import find_git  # noqa: PLC0415
    from builder.git_history import find_worktree  # noqa: PLC0415
    from builder.lock_merging import MergeRequest, merge_locks  # noqa: PLC0415

    git = find_worktree(find_git(os.environ), Path.cwd())
    merged = merge_locks(
        MergeRequest(
            git=git,
            path=PurePosixPath(path),
            base=base.read_bytes(),
            ours=ours.read_bytes(),
            theirs=theirs.read_bytes(),
            store=Store(store_root(store)),
            environ=os.environ,
        ),
        make_reporter(quiet=False),
    )
    ours.write_text(merged.text, encoding="utf-8", newline="")
    new = f", {len(merged.new)} that neither side had: {', '.join(merged.new)}" if merged.new else ""
    tell(f"{path}  merged: {len(merged.lock.packages)} packages{new}")
    return 0


def diff_driver(
    *arguments: Annotated[str, Parameter(help="As git gives them: path, file, id, mode, file, id, mode.")],
) -> int:
    """Show a change of a lock for `git diff`: as `envspec diff` does, or line by line where that cannot read a side."""
    if len(arguments) < _FILES_OF_DIFF:  # a file that is not merged: git gives its path alone
        say(f"* Unmerged path {arguments[0]}" if arguments else "")
        return 0
    path, old, _, _, new = arguments[:5]
    if _has_diff() and os.devnull not in {old, new}:
        from envspec.cli.app import run  # noqa: PLC0415 - a verb calls another

        say(f"envspec diff {path}")
        sys.stdout.flush()
        if run(["diff", old, new]) <= FOUND_WRONG:
            return 0
    before, after = (Path(name).read_text(encoding="utf-8", errors="replace").splitlines() for name in (old, new))
    for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm=""):
        say(line)
    return 0


def _has_diff() -> bool:
    from envspec.cli.app import VERBS  # noqa: PLC0415

    return "diff" in VERBS
