"""Which published wheel is it? For each distribution of a venv the one that explains the most files, and of those the most bytes.

A wheel is only taken if it explains most of what it would put there: METADATA alone, which anybody can copy, makes no wheel.

Invariant: the result depends on the observation and the candidates alone, not on the order of either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envspec.adoption.values import Attribution
from envspec.adoption.versions import same_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envspec.adoption.disk import Disk
    from envspec.adoption.values import PublishedWheel
    from envspec.observed import ObservedDistribution

FEW_EDITS = 5
"""So many files of a package may differ, however small it is, if its METADATA is the wheel's."""


class Score(NamedTuple):
    """How well a wheel explains what lies in a venv; the greater, the better."""

    same_files: int
    same_bytes: int
    not_missing: int
    """Minus the number of files that are not there."""

    stated: bool
    """Whether the dist-info is the wheel's: name and version."""

    preference: int
    """Of an installer: 0 for the wheel that it would choose of this version, less for others."""

    file: str


def score(wheel: PublishedWheel, disk: Disk, distribution: ObservedDistribution, preference: int = 0) -> Score:
    """How well a wheel explains what lies at its paths."""
    same = [file for file in wheel.files if disk.digest(file.path) == file.sha256]
    missing = sum(not disk.is_there(file.path) for file in wheel.files)
    return Score(
        same_files=len(same),
        same_bytes=sum(max(file.size, 0) for file in same),
        not_missing=-missing,
        stated=wheel.dist_info == distribution.folder,
        preference=preference,
        file=wheel.file,
    )


def attribute(
    distribution: ObservedDistribution,
    candidates: Iterable[PublishedWheel],
    disk: Disk,
    *,
    preferred: Sequence[str] = (),
) -> Attribution:
    """The wheel that a distribution came from.

    Args:
        distribution: Of the venv.
        candidates: Wheels of the same name.
        disk: What lies where.
        preferred: File names of wheels that an installer would choose, the best first.
    """
    rank = {file: -position for position, file in enumerate(preferred)}
    named = [wheel for wheel in candidates if wheel.name == distribution.name]
    scores = {wheel.file: score(wheel, disk, distribution, rank.get(wheel.file, -len(rank))) for wheel in named}
    best = max(named, key=lambda wheel: scores[wheel.file], default=None)
    if best is None:
        return Attribution(distribution=distribution, wheel=None, reason="no published wheel of it is known")
    found = scores[best.file]
    is_it = _is_it(best, disk)
    return Attribution(
        distribution=distribution,
        wheel=best if is_it else None,
        same_files=found.same_files,
        same_bytes=found.same_bytes,
        of_files=len(best.files),
        of_bytes=sum(max(file.size, 0) for file in best.files),
        reason=_oddity(best, distribution)
        if is_it
        else f"{found.same_files} of the {len(best.files)} files of the published wheel `{best.file}` are here",
    )


def _is_it(wheel: PublishedWheel, disk: Disk) -> bool:
    """Whether a wheel explains most of its own files."""
    prefix = f"{wheel.dist_info}/"
    # That an empty `__init__.py` is empty says nothing.
    outside = [file for file in wheel.files if not file.path.startswith(prefix) and file.size != 0]
    same = sum(disk.digest(file.path) == file.sha256 for file in outside)
    metadata = any(file.path == f"{prefix}METADATA" and disk.digest(file.path) == file.sha256 for file in wheel.files)
    if not outside:
        return metadata
    if 2 * same >= len(outside):
        return True
    return metadata and len(outside) - same <= FEW_EDITS


def _oddity(wheel: PublishedWheel, distribution: ObservedDistribution) -> str:
    """What a person should know of how a wheel and a dist-info differ; empty if they do not."""
    stated = distribution.version or distribution.folder_version
    if stated and not same_version(stated, wheel.version):
        return f"the dist-info says {stated}, the files are those of {wheel.version}"
    if distribution.version and not same_version(distribution.folder_version, distribution.version):
        return f"METADATA says {distribution.version}, its folder {distribution.folder_version}"
    return ""
