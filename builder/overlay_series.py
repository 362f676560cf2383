"""A patch series on disk: read as it is, also where a `save` was killed, and replaced so that it is the old one or the new one at every instant.

`envspec.series_steps` says in which steps; each of them is one file that is written beside its place and renamed, or removed.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.agent.store import remove_dead_temporaries, sync_folder, write_atomically
from builder.overlay import Series, read_series
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.patch_format import shown
from envspec.series_plan import OldPatch, PlannedPatch, plan_series_text
from envspec.series_steps import is_left_over, replacement_steps, settled_name

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPatch:
    """What became of a patch."""

    name: str
    status: Literal["unchanged", "changed", "new", "removed", "kept"]
    """`kept`: it is no part of the series any more, but was changed by someone else, so its file stays."""

    old_name: str = ""
    """The name before; empty for a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesOnDisk:
    """The series as it lies on disk."""

    series: Series
    text: bytes | None
    """Of the series file; None if there is none."""

    patches: tuple[OldPatch, ...]
    """Under the names that they are to have."""

    names: tuple[str, ...]
    """The names that the series file has; others only where a `save` was killed."""

    @property
    def digests(self) -> tuple[tuple[str, str], ...]:
        """Name and sha256 of each patch."""
        return tuple((patch.name, one.sha256) for patch, one in zip(self.patches, self.series.patches, strict=True))


def read_series_on_disk(series_file: Path) -> SeriesOnDisk:
    """The series as it is; an empty one if its file is not there yet.

    Args:
        series_file: The series file.

    Raises:
        EnvspecError: It cannot be read.
    """
    if not series_file.exists() and not series_file.is_symlink():
        return SeriesOnDisk(series=Series(name="", patches=(), digest=""), text=None, patches=(), names=())
    series = read_series(series_file)  # which sees that it is a file
    text = series_file.read_bytes()
    names = tuple(patch.name for patch in series.patches)
    patches = tuple(OldPatch(name=settled_name(patch.name), content=patch.content) for patch in series.patches)
    return SeriesOnDisk(series=series, text=text, patches=patches, names=names)


def write_series(
    series_file: Path, disk: SeriesOnDisk, planned: tuple[PlannedPatch, ...], written_by_us: frozenset[tuple[str, str]]
) -> tuple[tuple[SavedPatch, ...], bool]:
    """Bring the new series to the disk; what became of each patch, and whether anything was written.

    Args:
        series_file: The series file.
        disk: The series so far.
        planned: The new one.
        written_by_us: Name and sha256 of what `edit` found and `save` wrote.

    Raises:
        EnvspecError: A file that is no part of the series has the name of a new patch; nothing was written.
    """
    folder = series_file.parent
    folder.mkdir(parents=True, exist_ok=True)
    remove_dead_temporaries(folder)
    raw_names = {patch.name: name for patch, name in zip(disk.patches, disk.names, strict=True)}
    names = [(raw_names.get(patch.old_name, ""), patch.name) for patch in planned]
    text = plan_series_text((disk.text or b"").decode(), names).encode()
    left_over = {path.name for path in folder.glob("_saving-*") if is_left_over(path.name, path.read_bytes())}
    there: dict[str, bytes] = {}
    for name in {*(patch.name for patch in planned), *disk.names, *left_over, *(name for name, _ in written_by_us)}:
        path = folder / name
        if path.is_file():
            there[name] = path.read_bytes()
    removable = left_over | {name for name, content in there.items() if (name, sha256_of(content)) in written_by_us}
    strangers = [
        patch.name
        for patch in planned
        if patch.name not in removable.union(disk.names) and there.get(patch.name, patch.content) != patch.content
    ]
    if strangers:
        raise EnvspecError(
            "files are in the way that are no part of the series; nothing was written",
            input_name=os.fspath(folder),
            problems=tuple(Problem(message=shown(name)) for name in strangers),
            hint="move them away",
            exit_code=FOUND_WRONG,
        )
    steps = replacement_steps(
        series_name=series_file.name,
        text_before=disk.text,
        text=text,
        named_before=frozenset(disk.names),
        there=there,
        patches=[(patch.name, patch.content) for patch in planned],
        removable=removable,
    )
    for step in steps:
        if step.content is not None:
            write_atomically(folder / step.name, step.content)
        else:
            (folder / step.name).unlink(missing_ok=True)
    sync_folder(folder)
    saved = [SavedPatch(name=patch.name, status=patch.status, old_name=patch.old_name) for patch in planned]
    used = {patch.old_name for patch in planned}
    for patch, raw_name in zip(disk.patches, disk.names, strict=True):
        if patch.name not in used:
            gone = raw_name in removable
            saved.append(SavedPatch(name=patch.name, status="removed" if gone else "kept", old_name=patch.name))
    return tuple(saved), bool(steps)


def sha256_of(content: bytes) -> str:
    """Of a patch, in hex."""
    return hashlib.sha256(content).hexdigest()
