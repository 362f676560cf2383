"""Packages: added, removed, moved; and the same version with other bytes, tags or another index."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from envspec.diff.changes import Change, Level, literal
from envspec.diff.pairs import heads_of
from envspec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diff.pairs import Pair
    from envspec.diff.sides import Side
    from envspec.diff.wanted import Reasons
    from envspec.lock import LockedHook, LockedPackage

Order = Literal["newer", "older", "local", "same", "unknown"]


_SHOWN_NAMES = 8
_MEASURED = ("size", "requires_python", "cuda", "gpu_code")
"""Fields of a package that depend on the wheel alone."""


def is_material(pair: Pair) -> bool:
    """Whether another wheel is installed, or it comes from elsewhere; else only what the lock says of it is another thing."""
    if pair.old is None or pair.new is None:
        return True
    return _identity(pair.old) != _identity(pair.new)


def changes_of_packages(pairs: Sequence[Pair], reasons: Reasons, old: Side, new: Side) -> list[Change]:
    """What became of each package.

    Args:
        pairs: The packages that changed.
        reasons: What explains them.
        old: The old side.
        new: The new side.
    """
    found: list[Change] = []
    for pair in pairs:
        found += _hooks(pair, old, new)
        if pair.old and pair.new and pair.old.name == pair.new.name:
            found += _of_same(pair.old, pair.new, reasons, (old, new))
        else:
            found.append(_come_or_gone(pair, reasons, old, new))
    return [*found, *_said_more(pairs)]


def order_of(old: str, new: str) -> Order:
    """How a version stands to the one before it.

    Example:
        >>> order_of("2.10.0", "2.9.1"), order_of("2.11.0+cu128", "2.11.0+cu130")
        ('older', 'local')
    """
    if old == new:
        return "same"
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415 - slow to import, and many reviews need none

    try:
        before, after = Version(old), Version(new)
    except InvalidVersion:
        return "unknown"
    if before == after:
        return "same"
    if before.public == after.public:
        return "local"
    return "newer" if after > before else "older"


def _identity(package: LockedPackage) -> tuple[str, ...]:
    return (package.version, package.file, package.sha256, package.tree, package.index)


def _come_or_gone(pair: Pair, reasons: Reasons, old: Side, new: Side) -> Change:
    side = new if pair.new else old
    name = pair.name
    before, after = pair.old, pair.new
    if before and after:
        kind = "replaced"
        text = f"{before.name} {before.version} is replaced by {after.name} {after.version}"
    elif after:
        kind, text = "added", f"{after.name} {after.version} is new"
    else:
        kind, text = "removed", f"{before.name} {before.version} is gone" if before else ""
    consequences = [f"it comes from the index {literal(after.index)}"] if after and after.index != "default" else []
    heads = heads_of(name, side)
    orphan = after is not None and not heads and side.spec is not None
    if orphan:
        consequences.append("neither the spec nor a package of the lock asks for it")
    return Change(
        kind=kind,
        level="look" if orphan else "note",
        package=name,
        subject=before.name if before and after else "",
        old=before.version if before else "",
        new=after.version if after else "",
        text=text,
        consequences=tuple(consequences),
        requesters=_requesters(name, side),
        heads=heads,
        because=reasons.of.get(name, ()),
    )


def _of_same(before: LockedPackage, after: LockedPackage, reasons: Reasons, sides: tuple[Side, Side]) -> list[Change]:
    name, side = after.name, sides[1]
    found: list[Change] = []
    because = reasons.of.get(name, ())

    def change(kind: str, level: Level, text: str, *consequences: str, old: str, new: str) -> None:
        found.append(
            Change(
                kind=kind,
                level=level,
                package=name,
                old=old,
                new=new,
                text=text,
                consequences=consequences,
                requesters=_requesters(name, side),
                heads=heads_of(name, side),
                because=because,
            )
        )

    if before.index != after.index:
        unexplained = reasons.known and not any(key.startswith("indexes.") for key in because)
        change(
            "index-moved",
            "stop" if unexplained else "look",
            f"{name} comes from the index {literal(after.index)}, and came from {literal(before.index)}",
            "the two may serve other files under one name and version"
            if before.sha256 != after.sha256
            else "the wheel is the same, byte for byte",
            *(["no change of the spec asks for it"] if unexplained else []),
            old=before.index,
            new=after.index,
        )
    order = order_of(before.version, after.version)
    versions = {"old": before.version, "new": after.version}
    if order in ("newer", "older", "unknown"):
        text = f"{name} goes from {before.version} to {after.version}"
        if order == "newer":
            change("upgraded", "note", text, **versions)
        else:
            said = "which is older" if order == "older" else "and which of the two is newer cannot be told"
            change("downgraded", "look", f"{text}, {said}", **versions)
    elif before.sha256 != after.sha256:
        digests = f"sha256 {literal(before.sha256[:16])} before, {literal(after.sha256[:16])} now"
        if before.file == after.file:
            change(
                "reuploaded",
                "stop",
                f"{name} {after.version} has other bytes under the same file name",
                digests,
                f"{literal(after.file)}, from the index {literal(after.index)}"
                + ("" if before.index == after.index else f"; it came from {literal(before.index)}"),
                "an honest index never does this: find out who uploaded it, and what differs, before you merge",
                old=before.sha256,
                new=after.sha256,
            )
        else:
            kind, said = _other_file(before, after, order)
            change(kind, "look", f"{name} {after.version}: {said}", digests, old=before.file, new=after.file)
    elif before.tree != after.tree:
        change(
            "other-tree",
            "look",
            f"{name} {after.version}: the same wheel is installed as another tree",
            "paths hold the version of Python; else envspec lays wheels out in another way than before",
            old=before.tree,
            new=after.tree,
        )
    if before.sha256 == after.sha256:
        fields = [field for field in _MEASURED if getattr(before, field) not in ("", (), getattr(after, field))]
        if fields:
            lines = [
                f"{field}: {literal(_said(before, field))} before, {literal(_said(after, field))} now"
                for field in fields
            ]
            change(
                "record",
                "stop",
                f"{name} {after.version}: the lock says something else of the same wheel",
                *lines,
                "an envspec that measures otherwise does this, and so does a hand that edits the lock",
                old=", ".join(fields),
                new=", ".join(fields),
            )
    if not found and before.requires != after.requires:
        come = [each for each in after.requires if each not in before.requires]
        gone = [each for each in before.requires if each not in after.requires]
        words = "; ".join(
            filter(
                None,
                (f"needs {', '.join(come)} now" if come else "", f"no longer needs {', '.join(gone)}" if gone else ""),
            )
        )
        change("requirements", "note", f"{name} {after.version} {words}", old=", ".join(gone), new=", ".join(come))
    return found


def _other_file(before: LockedPackage, after: LockedPackage, order: Order) -> tuple[str, str]:
    if order == "local":
        return (
            "other-build",
            f"another build of the release, {literal(after.version)} in place of {literal(before.version)}",
        )
    one, other = before.file.removesuffix(".whl").split("-"), after.file.removesuffix(".whl").split("-")
    if one[-3:] == other[-3:]:
        tags = [piece[2] if len(piece) == 6 else "none" for piece in (one, other)]
        return (
            "other-build",
            f"another build of the same version, build tag {literal(tags[1])} in place of {literal(tags[0])}",
        )
    return (
        "other-wheel",
        f"another wheel of the same version, for {literal('-'.join(other[-3:]))} in place of {literal('-'.join(one[-3:]))}",
    )


def _said_more(pairs: Sequence[Pair]) -> list[Change]:
    """What the lock says of a wheel that it said nothing of before: one change, since a newer envspec says it of many at once."""
    names: list[str] = []
    fields: set[str] = set()
    for pair in pairs:
        before, after = pair.old, pair.new
        if before and after and before.sha256 == after.sha256:
            more = {field for field in _MEASURED if not getattr(before, field) and getattr(after, field)}
            names += [after.name] if more else []
            fields |= more
    if not names:
        return []
    listed = ", ".join(sorted(fields))
    shown = ", ".join(names[:_SHOWN_NAMES]) + (
        f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    )
    text = f"the lock says {listed} of {counted(len(names), 'wheel')} that it did not say it of before: {shown}"
    consequence = "an envspec that measures more does this; the wheels are the same"
    return [Change(kind="record", level="note", new=listed, text=text, consequences=(consequence,))]


def _said(package: LockedPackage, field: str) -> str:
    value = getattr(package, field)
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _hooks(pair: Pair, old: Side, new: Side) -> list[Change]:
    before = {hook.path: hook for hook in pair.old.hooks} if pair.old else {}
    after = {hook.path: hook for hook in pair.new.hooks} if pair.new else {}
    label = f"{pair.new.name} {pair.new.version}" if pair.new else pair.name
    found = []
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if other is None:
            text = f"{pair.old.name if pair.old else pair.name} no longer runs or reads {literal(path)} at the start of Python"
            found.append(
                Change(kind="hook-removed", level="note", package=pair.name, subject=path, old=path, text=text)
            )
        elif one is None or (one.sha256, one.code) != (other.sha256, other.code):
            found.append(_hook(label, one, other, pair.name, _waived(pair.name, path, old, new)))
    return found


def _waived(package: str, path: str, old: Side, new: Side) -> str:
    """The reason of a waiver that both locks have for a hook: somebody read such a file before this change."""
    reasons = [
        {
            waiver.reason
            for waiver in (side.lock.waivers if side.lock else ())
            if waiver.check == "startup-hook" and waiver.package == package and fnmatchcase(path, waiver.path or "*")
        }
        for side in (old, new)
    ]
    return min(reasons[0] & reasons[1], default="")


def _hook(label: str, before: LockedHook | None, after: LockedHook, name: str, waived: str) -> Change:
    says = "runs code at every start of Python" if after.code else "adds paths to import from at every start of Python"
    same_code = before is not None and before.code == after.code
    lines = [f"runs: {literal(line)}" for line in after.code]
    if before and not same_code:
        lines += [f"ran before: {literal(line)}" for line in before.code]
    if after.code and not same_code:
        lines.append("it runs in every process of the environment, before any program does: read the lines")
    elif same_code and after.code:
        lines.append("the lines that run are the same, the rest of the file is not")
    if waived:
        lines.append(f"waived before and now: {literal(waived)}")
    return Change(
        kind="hook-changed" if before else "hook-added",
        level="stop" if after.code and not same_code else "look",
        package=name,
        subject=after.path,
        old=before.sha256 if before else "",
        new=after.sha256,
        text=f"{label}: {literal(after.path)} {'is not as it was, and ' if before else 'is new, and '}{says}",
        consequences=tuple(lines),
    )


def _requesters(name: str, side: Side) -> tuple[str, ...]:
    asked = ("[packages]",) if name in side.wanted else ()
    return (*asked, *side.requesters.get(name, ()))
