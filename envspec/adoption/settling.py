"""What digests left open, settled with contents: edits become patches, or are named with the wheel that has their bytes."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envspec.adoption.patching import TextEdit, is_text, make_overlay
from envspec.adoption.scripts import is_console_script, is_script_of
from envspec.adoption.sorting import SCRIPT_ADVICE, SCRIPT_CHANGED, is_binary_name
from envspec.adoption.values import Fate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.adoption.disk import Disk
    from envspec.adoption.origins import Origins
    from envspec.adoption.sorting import Script, Sorted
    from envspec.adoption.values import Edit, Kind, Overlay, PublishedWheel

_VERSION_LINE = re.compile(rb"^Version:[^\n]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What was read of a venv and of its base wheels."""

    venv: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content."""

    base: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    """Package and member -> content."""

    unread: Mapping[str, str] = field(default_factory=dict)
    """Path -> why its content, or that of its base, is not known."""


def wanted_contents(found: Sorted) -> tuple[list[tuple[str, str, int]], list[tuple[str, str]]]:
    """What has to be read: path, sha256 and size in the venv; package and member of base wheels."""
    every = [edit for edit in (*found.edits, *found.metadata) if not is_binary_name(edit.path)]
    of_venv = [(edit.path, edit.sha256, edit.size) for edit in every if edit.sha256]
    of_venv += [(script.path, script.sha256, script.size) for script in found.scripts]
    of_base = [(edit.package, edit.member) for edit in every if edit.base_sha256]
    return of_venv, of_base + [(script.package, script.member) for script in found.scripts if script.member]


def settle(
    found: Sorted, disk: Disk, contents: Contents, wheels: Mapping[str, PublishedWheel], origins: Origins
) -> tuple[tuple[Fate, ...], tuple[Overlay, ...]]:
    """What becomes of every path, and the patches.

    Args:
        found: Of `sort_paths`.
        disk: What lies where.
        contents: Of what `wanted_contents` names; what is missing is named as not looked at.
        wheels: Package -> the wheel that the spec pins.
        origins: Of all wheels that were looked at.

    Returns:
        The fates, sorted by path, and the overlays, sorted by package.
    """
    lost = [(disk.digest(fate.path), fate.path, fate.package) for fate in found.fates if fate.kind == "unexplained"]
    origins.weigh([*lost, *((edit.sha256, edit.path, edit.package) for edit in (*found.edits, *found.metadata))])
    fates = [
        _traced(fate, disk.digest(fate.path), origins) if fate.kind == "unexplained" else fate for fate in found.fates
    ]
    by_package: dict[str, list[TextEdit]] = defaultdict(list)
    for edit in found.edits:
        settled = _text_edit(edit, contents, origins)
        if isinstance(settled, TextEdit):
            by_package[edit.package].append(settled)
        else:
            fates.append(settled)
    overlays: list[Overlay] = []
    for package, edits in sorted(by_package.items()):
        overlay, left_out = make_overlay(wheels[package], edits)
        fates += [_fate(each, left_out.get(each.edit.path, ""), origins) for each in edits]
        if overlay is not None:
            overlays.append(overlay)
    patched = {f"{wheels[overlay.package].dist_info}/": overlay.package for overlay in overlays}
    fates += [_script_fate(script, contents) for script in found.scripts]
    fates += [_metadata_fate(edit, contents, origins) for edit in found.metadata]
    fates = [_in_patched_wheel(fate, patched) for fate in fates]
    return tuple(sorted(fates)), tuple(overlays)


def _text_edit(edit: Edit, contents: Contents, origins: Origins) -> TextEdit | Fate:
    """An edit with its contents, or what becomes of it without a patch."""
    if is_binary_name(edit.path):
        return _not_patched(edit, "binary files are not patched", origins)
    problem = contents.unread.get(edit.path, "")
    after = contents.venv.get(edit.path) if edit.sha256 else None
    before = contents.base.get((edit.package, edit.member)) if edit.base_sha256 else None
    if not problem and edit.sha256 and (after is None or hashlib.sha256(after).hexdigest() != edit.sha256):
        problem = "its content could not be read as it was observed"
    if not problem and edit.base_sha256 and (before is None or hashlib.sha256(before).hexdigest() != edit.base_sha256):
        problem = "the published file could not be read as its RECORD has it"
    if problem:
        return _not_patched(edit, problem, origins)
    if not is_text(before) or not is_text(after):
        return _not_patched(edit, "binary files are not patched", origins)
    origin = origins.find(edit.sha256, edit.path, edit.package) if edit.sha256 else None
    note = f"byte for byte `{origin[1].member}` of {origin[0].label}" if origin is not None else ""
    return TextEdit(edit=edit, before=before, after=after, note=note)


def _fate(each: TextEdit, problem: str, origins: Origins) -> Fate:
    edit = each.edit
    if problem:
        return _not_patched(edit, problem, origins)
    origin = origins.find(edit.sha256, edit.path, edit.package) if edit.sha256 else None
    deed = {"added": "a new file", "changed": "an edited file", "removed": "a file that is not there any more"}[
        edit.deed
    ]
    reason = f"{deed}, by the patch of {edit.package}{f'; {each.note}' if each.note else ''}"
    kind: Kind = "deleted" if edit.deed == "removed" else "patched"
    return Fate(edit.path, kind, edit.size, edit.package, reason, "", origin[0].file if origin is not None else "")


def _not_patched(edit: Edit, problem: str, origins: Origins) -> Fate:
    if not edit.sha256:
        return Fate(
            edit.path, "restored", 0, edit.package, f"it is not in the venv, and the build puts it back: {problem}"
        )
    what = f"it is not what the published {edit.package} has there" if edit.base_sha256 else "nobody publishes it here"
    advice = "make a wheel of the package with this file, and give its folder with `--wheelhouse`"
    fate = Fate(edit.path, "unexplained", edit.size, edit.package, f"{what}; {problem}", advice)
    return _traced(fate, edit.sha256, origins)


def _traced(fate: Fate, sha256: str, origins: Origins) -> Fate:
    """The fate of an unexplained path, with the wheel that its bytes are from if there is one."""
    found = origins.find(sha256, fate.path, fate.package) if sha256 else None
    if found is None:
        return fate
    wheel, row = found
    what = "these are the bytes" if row.path == fate.path else f"these are the bytes of `{row.member}`"
    reason = f"{what} of {wheel.label} (`{wheel.file}`)"
    advice = (
        f"pin {wheel.name} to {wheel.version} if that is what is wanted; the build has the file of the pinned version"
    )
    return fate._replace(kind="foreign", reason=reason, advice=advice, wheel=wheel.file)


def _metadata_fate(edit: Edit, contents: Contents, origins: Origins) -> Fate:
    """METADATA that differs: made anew if it differs in the version alone, as that of a patched wheel does."""
    venv, base = contents.venv.get(edit.path), contents.base.get((edit.package, edit.member))
    if venv is not None and base is not None and _VERSION_LINE.sub(b"", venv, 1) == _VERSION_LINE.sub(b"", base, 1):
        return Fate(
            edit.path, "made", edit.size, edit.package, "metadata that differs in the version's local part only"
        )
    reason = "METADATA was edited: patches do not reach it, the build has what was published"
    advice = "what was meant by a changed requirement belongs into [overrides]"
    return _traced(Fate(edit.path, "unexplained", edit.size, edit.package, reason, advice), edit.sha256, origins)


def _script_fate(script: Script, contents: Contents) -> Fate:
    content = contents.venv.get(script.path)
    original = contents.base.get((script.package, script.member))
    if content is not None and original is not None and is_script_of(content, original):
        return Fate(script.path, "made", script.size, script.package, "a script of the wheel, with its own interpreter")
    if content is not None and any(is_console_script(content, target) for target in script.targets):
        reason = "a console script as installers write them"
        return Fate(script.path, "made", script.size, script.package, reason)
    return Fate(script.path, "unexplained", script.size, script.package, SCRIPT_CHANGED, SCRIPT_ADVICE)


def _in_patched_wheel(fate: Fate, patched: Mapping[str, str]) -> Fate:
    """Metadata of a package with patches lies in a folder that is named by the patched version."""
    if fate.kind != "same":
        return fate
    if any(fate.path.startswith(folder) for folder in patched):
        return fate._replace(kind="made", reason="the patched wheel has it in a folder that its own version names")
    return fate


def count(fates: Iterable[Fate]) -> dict[str, tuple[int, int]]:
    """Kind -> files and bytes."""
    counts: dict[str, tuple[int, int]] = {}
    for fate in fates:
        files, size = counts.get(fate.kind, (0, 0))
        counts[fate.kind] = (files + 1, size + fate.size)
    return counts


def packages_to_search(fates: Sequence[Fate]) -> tuple[str, ...]:
    """Packages with paths that nobody explains: other versions of them are worth a look."""
    return tuple(sorted({fate.package for fate in fates if fate.kind == "unexplained" and fate.package}))


def strays_of(fates: Sequence[Fate]) -> tuple[str, ...]:
    """Paths of no package that the build will not have."""
    return tuple(fate.path for fate in fates if fate.kind in ("unexplained", "foreign") and not fate.package)
