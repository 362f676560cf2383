"""An observation as rules want it: what interrupted installations left is no package, and bytecode without a source is a module."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envspec.observed import Observation, ObservedDistribution


def is_leftover(distribution: ObservedDistribution) -> bool:
    """Whether a metadata folder has the name that pip gives to what it is about to delete."""
    return distribution.name.startswith(("~", "-")) or distribution.folder.rpartition("/")[2].startswith(("~", "-"))


def with_bytecode(observation: Observation) -> Observation:
    """The observation with modules that are there as bytecode alone, beside where their sources were: Python imports them so.

    Args:
        observation: Everything that was seen.
    """
    alone = {file.path[:-1] for file in observation.strays if file.path.endswith(".pyc") and file.kind == "file"}
    if not alone:
        return observation
    distributions = tuple(
        replace(each, files=files)
        if len(files := tuple(file for file in each.files if file.kind != "missing" or file.path not in alone))
        < len(each.files)
        else each
        for each in observation.distributions
    )
    return replace(observation, distributions=distributions)


def without_leftovers(observation: Observation) -> tuple[Observation, tuple[ObservedDistribution, ...]]:
    """The observation without leftovers, and they. A file that only their RECORD names is one that no RECORD names.

    Args:
        observation: Everything that was seen.
    """
    leftovers = tuple(each for each in observation.distributions if is_leftover(each))
    if not leftovers:
        return observation, ()
    kept = tuple(each for each in observation.distributions if not is_leftover(each))
    owned = {file.path for each in kept for file in each.files} | {file.path for file in observation.strays}
    freed = {
        file.path: file._replace(recorded="", recorded_size=-1)
        for each in leftovers
        for file in each.files
        if file.kind in ("file", "link") and file.path not in owned and not file.path.startswith(f"{each.folder}/")
    }
    site = f"{observation.site_packages()}/"
    binaries, labels = list(observation.stray_binaries.binaries), list(observation.stray_binaries.labels)
    for each in leftovers:
        binaries += [binary for binary in each.binaries.binaries if binary.path in freed]
        labels += [label for label in each.binaries.labels if f"{site}{label.path}" in freed]
    seen = replace(
        observation,
        distributions=kept,
        strays=tuple(sorted((*observation.strays, *freed.values()), key=lambda file: file.path)),
        stray_binaries=replace(observation.stray_binaries, binaries=tuple(binaries), labels=tuple(labels))
        if freed
        else observation.stray_binaries,
    )
    return seen, leftovers
