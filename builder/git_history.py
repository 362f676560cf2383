"""In which commit a version of a file stands, found by its content: a merge driver is told contents, and not whence they come.

git runs a merge driver before it writes any state of the merge: the work tree still has our side, the index too, and there is no `MERGE_HEAD` or
`CHERRY_PICK_HEAD` yet. What is there is the content of the three versions. A commit that has exactly this content at this path is as good as the
one that git means, as long as what is read beside the file fits it, which the caller has to see.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path, PurePosixPath

    from builder.git import Git

MOST_COMMITS = 64
"""That are looked at for one content."""

MOST_FILES = 4096
MOST_BYTES = 64 << 20
_STATE = ("HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "ORIG_HEAD")
_ANNOUNCED = re.compile(r"GITHEAD_([0-9a-f]{40,64})")


def find_worktree(git: Git, folder: Path) -> Git:
    """Git at the top of the work tree that a folder lies in.

    Raises:
        EnvspecError: It lies in none.
    """
    start = folder.resolve()
    for place in (start, *start.parents):
        if (place / ".git").exists():
            return git.at(place)
    raise EnvspecError(
        f"`{folder}` lies in no work tree of git", hint="change to a repository, or make one with `git init`"
    )


def candidates(git: Git, path: PurePosixPath, content: bytes, environ: Mapping[str, str]) -> Iterator[str]:
    """Commits that have a file with this content at this path, likely ones first, each once.

    Args:
        git: At the top of the work tree.
        path: Of the file, from there.
        content: Of the file.
        environ: Of this process; git tells the heads of a merge in it (`GITHEAD_<commit>`).

    Raises:
        EnvspecError: git cannot be asked for the path.
    """
    if not str(path).isprintable():  # git is asked line by line
        raise EnvspecError(f"the path {os.fspath(path)!a} has characters that cannot be printed")
    oid = git.run(["hash-object", "--no-filters", "--stdin"], input_bytes=content).decode().strip()
    announced = [found[1] for name in environ if (found := _ANNOUNCED.fullmatch(name))]
    likely = [*_STATE, *announced]
    seen: set[str] = set()
    yield from _having(git, path, oid, [*likely, *(f"{name}^" for name in likely), *_bases(git, announced)], seen)
    # Commits that brought the content, or took it away: then their parents had it.
    listed = git.ask(
        [
            "log",
            "--all",
            "--reflog",
            "-m",
            f"--max-count={MOST_COMMITS}",
            "--format=%H",
            f"--find-object={oid}",
            "--",
            os.fspath(path),
        ]
    )
    commits = dict.fromkeys(listed.stdout.decode().split())
    yield from _having(
        git, path, oid, [name for commit in commits for name in (commit, f"{commit}^", f"{commit}^2")], seen
    )


def crosses(git: Git, environ: Mapping[str, str]) -> bool:
    """Whether git is merging a head that has several nearest ancestors in common with ours, of which it makes one that is in no commit.

    Args:
        git: At the top of the work tree.
        environ: As for `candidates`.
    """
    announced = [found[1] for name in environ if (found := _ANNOUNCED.fullmatch(name))]
    return any(len(_bases(git, [head])) > 1 for head in announced)


def _bases(git: Git, heads: list[str]) -> list[str]:
    found = [git.ask(["merge-base", "--all", "HEAD", head]).stdout.decode().split() for head in heads]
    return [commit for commits in found for commit in commits]


def _having(git: Git, path: PurePosixPath, oid: str, names: list[str], seen: set[str]) -> Iterator[str]:
    """Those of some commits that have the object at the path."""
    if not names:
        return
    asked = "".join(f"{name}^{{commit}}\n{name}:{path}\n" for name in names)
    answers = git.run(["cat-file", "--batch-check=%(objectname)"], input_bytes=asked.encode()).decode().splitlines()
    for commit, blob in zip(answers[::2], answers[1::2], strict=True):
        if blob == oid and commit not in seen and " " not in commit:
            seen.add(commit)
            yield commit


def read_blob(git: Git, commit: str, path: PurePosixPath) -> bytes | None:
    """The content of a file in a commit; None if it has no such file.

    Args:
        git: At the top of the work tree.
        commit: Full id.
        path: From the top.
    """
    ended = git.ask(["cat-file", "blob", f"{commit}:{path}"])
    return ended.stdout if ended.returncode == 0 else None


def read_folder(git: Git, commit: str, folder: PurePosixPath) -> dict[str, bytes]:
    """The regular files right in a folder of a commit: name -> content.

    Args:
        git: At the top of the work tree.
        commit: Full id.
        folder: From the top.

    Raises:
        EnvspecError: There are too many, or they are too large.
    """
    listed = git.run(["ls-tree", "-z", "-l", f"{commit}:{'' if str(folder) == '.' else folder}"])
    found: dict[str, bytes] = {}
    size = 0
    for row in listed.split(b"\0")[:-1]:
        about, _, raw_name = row.partition(b"\t")
        mode, kind, oid, length = about.split()
        name = os.fsdecode(raw_name)
        if kind != b"blob" or mode == b"120000" or name in {"", ".", ".."} or "/" in name:
            continue
        size += int(length)
        if len(found) >= MOST_FILES or size > MOST_BYTES:
            raise EnvspecError(
                f"the folder `{folder}` of commit {commit[:12]} has more than {MOST_FILES} files or {MOST_BYTES} bytes"
            )
        found[name] = git.run(["cat-file", "blob", oid.decode()])
    return found
