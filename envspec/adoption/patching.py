"""The edits of one package -> one patch that is proven to bring them about.

What is written has been read and applied by the same code that `envspec lock` uses, and gave the venv's bytes. A file for which that fails is
left out and named; it never happens to text, but whoever made the venv decides what is in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.adoption.values import Overlay
from envspec.errors import EnvspecError
from envspec.patch import MAX_PATCH_BYTES, apply_patch, parse_patch
from envspec.patch_writing import FileEdit, render_diff
from envspec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envspec.adoption.values import Edit, PublishedWheel

PATCH_NAME = "0001-adopted-from-a-venv.patch"
HEADER_ROOM_BYTES = 1 << 20
"""Of a patch, kept for its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEdit:
    """An edit with both contents."""

    edit: Edit
    before: bytes | None
    after: bytes | None
    note: str = ""
    """What else is known of the outcome: that another published wheel has the same file."""


def is_text(content: bytes | None) -> bool:
    """Whether a patch may carry a content: it has no NUL byte."""
    return content is None or b"\0" not in content


def make_overlay(wheel: PublishedWheel, edits: Sequence[TextEdit]) -> tuple[Overlay | None, dict[str, str]]:
    """One patch with all edits of a package that a patch can bring about.

    Args:
        wheel: The base.
        edits: With contents; no path twice.

    Returns:
        The overlay, None if nothing is left of it; and path in the venv -> reason, of what was left out.
    """
    left_out: dict[str, str] = {}
    good: list[TextEdit] = []
    room = MAX_PATCH_BYTES - HEADER_ROOM_BYTES
    for each in sorted(edits, key=lambda each: (each.edit.size, each.edit.member)):
        diff = render_diff([_file_edit(each)])
        if not is_text(each.before) or not is_text(each.after):
            left_out[each.edit.path] = "binary files are not patched"
        elif not _holds(diff, [each]):
            left_out[each.edit.path] = "no patch brings it about"
        elif len(diff) > room:
            left_out[each.edit.path] = f"the patch would have more than {MAX_PATCH_BYTES} bytes"
        else:
            room -= len(diff)
            good.append(each)
    good.sort(key=lambda each: each.edit.member.encode())
    if not good:
        return None, left_out
    patch = _header(wheel, good) + render_diff(_file_edit(each) for each in good)
    if not _holds(patch, good):
        return None, left_out | {each.edit.path: "no patch brings it about" for each in good}
    return (
        Overlay(
            package=wheel.name,
            version=wheel.version,
            base_file=wheel.file,
            base_sha256=wheel.sha256,
            patch_name=PATCH_NAME,
            patch=patch,
            files=tuple((each.edit.member, each.edit.deed) for each in good),
            notes=tuple(f"`{each.edit.member}`: {each.note}" for each in good if each.note),
        ),
        left_out,
    )


def _holds(patch: bytes, edits: Sequence[TextEdit]) -> bool:
    """Whether a patch gives exactly these files."""
    before: Mapping[str, bytes | None] = {each.edit.member: each.before for each in edits}
    try:
        after = apply_patch(parse_patch(patch, input_name=PATCH_NAME), before.get)
    except EnvspecError:
        return False
    if after.keys() != before.keys():
        return False
    return all(after[each.edit.member] == each.after and _digest(each.after) == each.edit.sha256 for each in edits)


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _file_edit(each: TextEdit) -> FileEdit:
    return FileEdit(path=each.edit.member, before=each.before, after=each.after, executable=each.edit.executable)


def _header(wheel: PublishedWheel, edits: Sequence[TextEdit]) -> bytes:
    """What stands above the diff. Each line of a path is indented: none of them can begin a file of the patch."""
    lines = [
        f"{wheel.name}: {counted(len(edits), 'file')} as a venv had {'it' if len(edits) == 1 else 'them'}",
        "",
        "Written by `envspec adopt`. The venv had other bytes in these files than the published wheel has:",
        "",
    ]
    for each in edits:
        lines.append(f"  {each.edit.deed} {each.edit.path}")
        lines.append(f"    sha256 {each.edit.base_sha256[:16] or 'none'} -> {each.edit.sha256[:16] or 'none'}")
        if each.note:
            lines.append(f"    {each.note}")
    lines += [
        "",
        f"Base:  {wheel.label}, {wheel.file}",
        f"       sha256 {wheel.sha256}",
        "",
        "To do: say here what each change is for and when to drop it; `envspec overlay edit` splits the patch.",
        "",
        "",
    ]
    return "\n".join(lines).encode("utf-8", "backslashreplace")
