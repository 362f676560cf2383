"""Commits on a base -> the patch series that says the same: what becomes of each patch, under which name.

A patch whose message and effect are those of a commit keeps its bytes, whoever wrote it; of one whose effect changed only the diff is written
anew. So a series that goes through a work tree and back comes out as it was.

Invariants:
- Every patch of a plan parses, and does to the commit's parent exactly what the commit did. What a patch cannot say is refused.
- The plan depends on the series and on the commits' messages and contents: not on their ids, authors, times, or the git that made them.

Example:
    planned = plan_series((), (Change(where="1a2b3c4", message=b"x: be two", edits=(edit,)),))
    planned[0].name  # "0001-x-be-two.patch"
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.patch import SHOWN_PROBLEMS, Patch, apply_patch, parse_patch
from envspec.patch_format import shown, split_header
from envspec.patch_writing import FileEdit, render_diff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_SLUG = 64

_NUMBERED = re.compile(r"(\d{4})-(.*)")
_UNFINISHED = (b"fixup! ", b"squash! ", b"amend! ")


@dataclass(frozen=True, slots=True, kw_only=True)
class OldPatch:
    """A patch of the series as it is."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one commit does."""

    where: str
    """For messages: the commit's short id."""

    message: bytes
    edits: tuple[FileEdit, ...]
    """Each path once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPatch:
    """A patch of the series as it is to be."""

    name: str
    content: bytes
    status: Literal["unchanged", "changed", "new"]
    """Of the content, beside that of the patch that it comes from."""

    old_name: str
    """Of the patch that it comes from; empty if it is new."""


@dataclass(slots=True)
class _Draft:
    """A change and the old patch that it goes back to."""

    change: Change
    old: OldPatch | None = None
    same_effect: bool = False


def message_of(patch: OldPatch) -> bytes:
    """The commit message of a patch: what stands above its diff, or its name without number if nothing does."""
    header = split_header(patch.content)[0].strip(b"\n")
    if header.strip():
        return header.rstrip() + b"\n"
    numbered = _NUMBERED.fullmatch(patch.name)
    return (numbered[2] if numbered else patch.name).removesuffix(".patch").encode() + b"\n"


def subject_of(message: bytes) -> str:
    """The first line of a message that is not blank."""
    return next((line.strip() for line in message.decode("utf-8", "replace").split("\n") if line.strip()), "")


def is_same_message(left: bytes, right: bytes) -> bool:
    """Whether two messages differ in nothing, or in what git may take off: spaces at ends of lines, blank lines beyond one."""
    return _cleaned(left) == _cleaned(right)


def plan_series(old: Sequence[OldPatch], changes: Sequence[Change]) -> tuple[PlannedPatch, ...]:
    """The series that some commits are.

    Args:
        old: The series so far; every patch of it can be read.
        changes: In the commits' order.

    Raises:
        EnvspecError: A commit does what no patch can say (exit code `FOUND_WRONG`); every reason is told.
    """
    drafts = _matched(old, changes)
    contents: list[tuple[bytes, Literal["unchanged", "changed", "new"]]] = []
    problems: list[Problem] = []
    for draft in drafts:
        found = _unsayable(draft)
        if found:
            problems += found
            continue
        header, diff = _header_and_diff(draft)
        content = header + diff
        problems += _misunderstood(draft.change, header, content)
        contents.append(
            (content, "new" if draft.old is None else "unchanged" if content == draft.old.content else "changed")
        )
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        raise EnvspecError(
            "commits cannot be written as patches; nothing was written",
            problems=(*problems[:SHOWN_PROBLEMS], *([Problem(message=f"and {more} more")] if more > 0 else [])),
            exit_code=FOUND_WRONG,
        )
    return tuple(
        PlannedPatch(name=name, content=content, status=status, old_name=draft.old.name if draft.old else "")
        for draft, name, (content, status) in zip(drafts, _names(drafts, old), contents, strict=True)
    )


def plan_series_text(text: str, names: Sequence[tuple[str, str]]) -> str:
    """The series file that lists some patches, with the comments of the one before.

    What stands above the first patch, and below the last, stays there; any other comment goes with the patch below it.

    Args:
        text: The series file so far; empty if there is none.
        names: Old and new name of each patch, in order; the old one is empty for a patch that is new.
    """
    above: list[str] = []
    listed: dict[str, tuple[list[str], str]] = {}
    pending: list[str] = []
    for line in text.removesuffix("\n").split("\n") if text else []:
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            pending.append(line)
            continue
        if not listed:
            above, pending = pending, []
        listed[words[0]] = (pending, line)
        pending = []
    if not listed:
        above, pending = pending, []
    if [old for old, _ in names] == list(listed) and all(old == new for old, new in names):
        return text
    lines = [*above]
    for old, new in names:
        comments, line = listed.get(old, ([], new))
        lines += comments
        lines.append(line.replace(old, new, 1) if old else new)
    return "\n".join([*lines, *pending, ""])


def _matched(old: Sequence[OldPatch], changes: Sequence[Change]) -> list[_Draft]:
    """For each change the patch that it goes back to: of the same message, else of the same effect, else of the same first line."""
    drafts = [_Draft(change) for change in changes]
    left = list(old)
    parsed: dict[str, Patch] = {patch.name: parse_patch(patch.content, input_name=patch.name) for patch in old}

    def same_message(change: Change, patch: OldPatch) -> bool:
        return is_same_message(change.message, message_of(patch))

    def same_effect(change: Change, patch: OldPatch) -> bool:
        return _does(parsed[patch.name], change)

    def same_subject(change: Change, patch: OldPatch) -> bool:
        return bool(subject_of(change.message)) and subject_of(change.message) == subject_of(message_of(patch))

    def match(*alike: Callable[[Change, OldPatch], bool]) -> None:
        for draft in drafts:
            if draft.old is None:
                draft.old = next((patch for patch in left if all(is_so(draft.change, patch) for is_so in alike)), None)
                if draft.old is not None:
                    left.remove(draft.old)

    match(same_message, same_effect)
    match(same_message)
    match(same_effect)
    match(same_subject)
    for draft in drafts:
        draft.same_effect = draft.old is not None and same_effect(draft.change, draft.old)
    return drafts


def _does(patch: Patch, change: Change) -> bool:
    """Whether a patch does what a change does."""
    edits = {edit.path: edit for edit in change.edits}
    if {file.path for file in patch.files} != edits.keys():
        return False
    if any(file.kind == "add" and file.executable != edits[file.path].executable for file in patch.files):
        return False
    try:
        after = apply_patch(patch, lambda path: edits[path].before)
    except EnvspecError:
        return False
    return after == {path: edit.after for path, edit in edits.items()}


def _unsayable(draft: _Draft) -> list[Problem]:
    """What a patch cannot say of a change."""
    change = draft.change
    where = f"{change.where} {shown(subject_of(change.message) or 'without a message')}"
    problems: list[Problem] = []
    if not change.edits:
        problems.append(Problem(message="it changes nothing", where=where, hint="drop the commit: `git rebase -i`"))
    if change.message.lstrip().startswith(_UNFINISHED):
        hint = "fold it into the commit that it mends: `git rebase -i --autosquash`"
        problems.append(Problem(message="it is meant for another commit", where=where, hint=hint))
    if not change.message.strip():
        hint = "say what the patch is for: `git commit --amend`, or `git rebase -i` and `reword`"
        problems.append(Problem(message="it has no message", where=where, hint=hint))
    if not draft.same_effect:
        problems += [
            Problem(message=f"{shown(edit.path)} is binary", where=where, hint="binary content belongs into a wheel")
            for edit in change.edits
            if b"\0" in (edit.before or b"") + (edit.after or b"")
        ]
        problems += [
            Problem(message=f"{shown(edit.path)} has the marks of a conflict", where=where, hint="resolve it")
            for edit in change.edits
            if _conflict_marks(edit.after) > _conflict_marks(edit.before)
        ]
    return problems


def _conflict_marks(content: bytes | None) -> int:
    """How many conflicts git has left in a file."""
    lines = (content or b"").split(b"\n")
    return min(sum(line.startswith(mark) for line in lines) for mark in (b"<<<<<<< ", b">>>>>>> "))


def _cleaned(message: bytes) -> bytes:
    """A message without what git may take off: spaces at the ends of lines, blank lines around it, a second blank line after one."""
    lines = b"\n".join(line.rstrip() for line in message.split(b"\n"))
    return re.sub(rb"\n{3,}", b"\n\n", lines).strip(b"\n")


def _header_and_diff(draft: _Draft) -> tuple[bytes, bytes]:
    """The text of the patch; what did not change of the old one stays as it is."""
    header, diff = split_header(draft.old.content) if draft.old is not None else (b"", b"")
    if draft.old is None or not is_same_message(draft.change.message, message_of(draft.old)):
        header = draft.change.message.strip(b"\n").rstrip() + b"\n\n"
    return header, diff if draft.same_effect else render_diff(draft.change.edits)


def _misunderstood(change: Change, header: bytes, content: bytes) -> list[Problem]:
    """Why a patch would not be read as what the change does."""
    where = f"{change.where} {shown(subject_of(change.message))}"
    if split_header(content)[0] != header:
        message = "a line of its message begins as a diff does, with `diff --git ` or `--- `"
        return [Problem(message=message, where=where, hint="reword it: `git rebase -i` and `reword`")]
    try:
        patch = parse_patch(content, input_name=where)
    except EnvspecError as error:
        found = error.problems or (Problem(message=error.message),)
        return [replace(problem, where=where) for problem in found]
    return [] if _does(patch, change) else [Problem(message="its patch would not do what the commit does", where=where)]


def _names(drafts: list[_Draft], old: Sequence[OldPatch]) -> list[str]:
    """The names of the patches: those that they have, as long as the numbers ascend or the order is the old one."""
    numbered = not old or any(_NUMBERED.fullmatch(patch.name) for patch in old)
    taken = {draft.old.name for draft in drafts if draft.old is not None}
    names: list[str] = []
    number = 0
    for draft in drafts:
        if draft.old is not None:
            name = draft.old.name
        else:
            slug = _slug(draft.change.message)
            name = _free(f"{number + 1:04d}-{slug}" if numbered else slug, taken)
        found = _NUMBERED.fullmatch(name)
        number = int(found[1]) if found else number
        names.append(name)
    numbers = [int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name))]
    kept = [patch.name for patch in old if patch.name in names]
    if names == kept or all(left < right for left, right in pairwise(numbers)):
        return names
    return [
        f"{place:04d}-{found[2]}" if (found := _NUMBERED.fullmatch(name)) else name
        for place, name in enumerate(names, start=1)
    ]


def _slug(message: bytes) -> str:
    """A file name's middle, from a message's first line."""
    words = re.findall(r"[a-z0-9]+", subject_of(message).lower())
    slug = ""
    for word in words:
        if slug and len(slug) + 1 + len(word) > LONGEST_SLUG:
            break
        slug = f"{slug}-{word}" if slug else word[:LONGEST_SLUG]
    return slug or "patch"


def _free(stem: str, taken: set[str]) -> str:
    """A file name that is not taken; it is then."""
    name, count = f"{stem}.patch", 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}.patch"
    taken.add(name)
    return name
