"""Patches: what a series says otherwise, and what comes out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.diff.changes import Change, Excerpt, literal
from envspec.wording import counted

if TYPE_CHECKING:
    from envspec.diff.sides import Side
    from envspec.lock import LockedOverlay

MOST_EXCERPT_BYTES = 200_000
"""Of a text that is compared or shown; nobody reads a longer one in a review."""


def changes_of_overlays(old: Side, new: Side) -> list[Change]:
    """What became of the patches.

    Args:
        old: The old side.
        new: The new side.
    """
    found: list[Change] = []
    for package in sorted(old.overlays.keys() | new.overlays.keys()):
        before, after = old.overlays.get(package), new.overlays.get(package)
        if before and after:
            if before != after:
                found += _of_both(before, after, old, new)
        elif after:
            found.append(_added(after, new))
        elif before:
            found.append(
                Change(
                    kind="overlay-removed",
                    level="look",
                    package=package,
                    old=before.series,
                    text=f"{package} is no longer patched",
                    consequences=(
                        f"without {counted(len(before.patches), 'patch', 'patches')} that changed {counted(len(before.files), 'file')}",
                    ),
                )
            )
    return found


def _added(overlay: LockedOverlay, new: Side) -> Change:
    files = [literal(file.path) for file in overlay.files[:8]]
    if len(overlay.files) > len(files):
        files.append(f"{len(overlay.files) - len(files)} more")
    return Change(
        kind="overlay-added",
        level="look",
        package=overlay.package,
        new=overlay.series,
        text=f"{overlay.package} is patched: {counted(len(overlay.patches), 'patch', 'patches')} of {literal(overlay.series)}",
        consequences=(f"changes {', '.join(files)}",),
        excerpts=tuple(
            Excerpt(title=patch.name, text=_text(content), language="diff")
            for patch in overlay.patches
            if (content := new.patches.get((overlay.package, patch.name))) is not None
        ),
    )


def _of_both(before: LockedOverlay, after: LockedOverlay, old: Side, new: Side) -> list[Change]:
    found: list[Change] = []
    if before.base_sha256 != after.base_sha256:
        found.append(_base_moved(before, after, old, new))
    found += _patches(before, after, old, new)
    found += _files(before, after, old, new)
    return found or [_same_patches(before, after)]


def _same_patches(before: LockedOverlay, after: LockedOverlay) -> Change:
    """What to say where wheel, patches and files are the same, and the lock is not."""
    names = ("series", "version", "file", "size", "sha256", "tree", "files")
    fields = [name for name in names if getattr(before, name) != getattr(after, name)]
    is_wheel = before.sha256 != after.sha256 or before.tree != after.tree
    return Change(
        kind="record",
        level="stop" if is_wheel or "files" in fields else "look",
        package=after.package,
        old=", ".join(fields),
        new=", ".join(fields),
        text=f"the same patches on the same {after.package} are said to give another wheel"
        if is_wheel
        else f"the lock says something else of the patches of {after.package}: {', '.join(fields)}",
        consequences=("an envspec that writes wheels otherwise does this, and so does a hand that edits the lock",),
    )


def _base_moved(before: LockedOverlay, after: LockedOverlay, old: Side, new: Side) -> Change:
    one, other = old.packages[before.package].version, new.packages[after.package].version
    same = {patch.sha256 for patch in before.patches} == {patch.sha256 for patch in after.patches}
    lines = [f"the same {counted(len(after.patches), 'patch', 'patches')} apply to it, exactly"] if same else []
    own = {file.path: file.before for file in before.files}
    moved = [file.path for file in after.files if file.path in own and own[file.path] != file.before]
    if moved:
        shown = ", ".join(literal(path) for path in moved[:6]) + (
            f" and {len(moved) - 6} more" if len(moved) > 6 else ""
        )
        lines.append(f"files that they change are not what they were below them: {shown}")
        lines.append("that a patch still applies does not say that it still does what it was for")
    what = f"{other} in place of {one}" if one != other else "the same version, other bytes"
    return Change(
        kind="base-moved",
        level="look",
        package=after.package,
        old=before.base_sha256,
        new=after.base_sha256,
        text=f"the patches of {after.package} stand on another wheel: {what}",
        consequences=tuple(lines),
    )


def _patches(before: LockedOverlay, after: LockedOverlay, old: Side, new: Side) -> list[Change]:
    package = after.package
    was, now = (
        {patch.name: patch.sha256 for patch in before.patches},
        {patch.name: patch.sha256 for patch in after.patches},
    )
    found: list[Change] = []
    for name in sorted(was.keys() | now.keys()):
        one, other = old.patches.get((package, name)), new.patches.get((package, name))
        if was.get(name) == now.get(name):
            continue
        if name not in was:
            kind, says = "patch-added", "is new"
            excerpts = [] if other is None else [Excerpt(title=name, text=_text(other), language="diff")]
        elif name not in now:
            kind, says = "patch-removed", "is gone"
            excerpts = [] if one is None else [Excerpt(title=name, text=_text(one), language="diff")]
        else:
            kind, says = "patch-changed", "says something else"
            excerpts = [] if one is None or other is None else _diff(name, one, other, title=f"{name}, before and now")
        twin = next(
            (each for each, digest in was.items() if name not in was and digest == now[name] and each not in now), ""
        )
        if twin:
            kind, says, excerpts = "patch-order", f"is {literal(twin)} under another name", []
        elif name in was and name not in now and was[name] in now.values():
            continue
        lines = () if excerpts or twin else ("its text is not at hand: the lock has only its sha256",)
        found.append(
            Change(
                kind=kind,
                level="note" if twin else "look",
                package=package,
                subject=name,
                old=was.get(name, ""),
                new=now.get(name, ""),
                text=f"{package}: patch {literal(name)} {says}",
                consequences=lines,
                excerpts=tuple(excerpts),
            )
        )
    common = [name for name in was if name in now]
    if common != [name for name in now if name in was]:
        found.append(
            Change(
                kind="patch-order",
                level="look",
                package=package,
                text=f"the patches of {package} are applied in another order",
            )
        )
    return found


def _files(before: LockedOverlay, after: LockedOverlay, old: Side, new: Side) -> list[Change]:
    package = after.package
    was, now = {file.path: file for file in before.files}, {file.path: file for file in after.files}
    found = []
    for path in sorted(was.keys() | now.keys()):
        one, other = was.get(path), now.get(path)
        if one and other and one.after == other.after:
            continue
        excerpts: list[Excerpt] = []
        key = (package, path)
        if key in old.members and key in new.members:
            excerpts = _diff(path, old.members[key], new.members[key], title=f"{path}, as patched before and now")
        if one is None:
            says = "is changed by the patches, and was as the wheel has it"
            if other and not other.before:
                says = "is added by the patches"
        elif other is None:
            says = "is as the wheel has it, and was changed by the patches"
            if not one.before:
                says = "is gone: the patches no longer add it"
        elif not other.after:
            says = "is removed by the patches now"
        else:
            says = "comes out of the patches with other contents"
        found.append(
            Change(
                kind="patched-file",
                level="note",
                package=package,
                subject=path,
                old=one.after if one else "",
                new=other.after if other else "",
                text=f"{package}: {literal(path)} {says}",
                excerpts=tuple(excerpts),
            )
        )
    return found


def _diff(path: str, before: bytes | None, after: bytes | None, *, title: str) -> list[Excerpt]:
    if before == after:
        return []
    if max(len(before or b""), len(after or b"")) > MOST_EXCERPT_BYTES:
        return [Excerpt(title=title, text="(too long to be compared here)")]
    from envspec.patch_writing import FileEdit, render_diff  # noqa: PLC0415 - most reviews have no patch that changed

    text = render_diff([FileEdit(path=path, before=before, after=after, executable=False)])
    header, mark, rest = text.partition(
        b"\n--- "
    )  # what git says before it (ids of contents, a mode) says nothing here
    return [Excerpt(title=title, text=_text(mark.lstrip(b"\n") + rest if mark else header), language="diff")]


def _text(content: bytes) -> str:
    """Bytes as text, not endless; what a terminal or a page might act on is escaped where it is shown."""
    cut = content[:MOST_EXCERPT_BYTES].decode("utf-8", "replace")
    return cut if len(content) <= MOST_EXCERPT_BYTES else f"{cut}\n(cut off here: {len(content)} bytes)"
