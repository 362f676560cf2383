"""Unmet requirements: of all that ask for one package one symptom, with what is there instead of it, if anything is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from envspec.diagnosis.installed import inner_version, parsed_version
from envspec.diagnosis.symptom import Stage
from envspec.forms import normalise_name
from envspec.wording import counted, evidence, examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom


def merged_requirements(symptoms: Sequence[Symptom], scene: Scene) -> list[Symptom]:
    """The symptoms with all unmet requirements on one package made into one.

    Left out is what is met all the same: by a package of a folder outside of the venv that the venv sees, by an egg, by a build whose label
    (`+cu130`) only its own files have.
    """
    groups: dict[str, list[Symptom]] = {}
    kept: list[Symptom] = []
    for each in symptoms:
        packages = each.finding.packages
        if each.check != "requires-dist" or len(packages) < 2:
            kept.append(each)
        elif not _is_met(each, scene):
            groups.setdefault(packages[1], []).append(each)
    kept += [_one_requirement(wanted, found, scene) for wanted, found in sorted(groups.items())]
    return kept


def requirements_of(scene: Scene, package: str) -> set[str]:
    """The packages that a package of the venv requires, extras left out."""
    return {
        normalise_name(requirement.name)
        for requirement in _requirements(scene, package)
        if requirement.marker is None or "extra" not in str(requirement.marker)
    }


def _requirements(scene: Scene, package: str) -> list[Requirement]:
    there = scene.chosen.get(package)
    found = []
    for line in there.requires_dist if there else ():
        try:
            found.append(Requirement(line))
        except (InvalidRequirement, RecursionError):
            continue
    return found


def _is_met(unmet: Symptom, scene: Scene) -> bool:
    requirer, wanted = unmet.finding.packages[:2]
    asks = [each for each in _requirements(scene, requirer) if normalise_name(each.name) == wanted]
    if wanted in scene.chosen:
        label = inner_version(scene.chosen[wanted])
        stated = parsed_version(scene.chosen[wanted].version)
        inside = parsed_version(label.value) if label is not None else None
        return (
            bool(asks)
            and inside is not None
            and stated is not None
            and inside.public == stated.public
            and all(each.specifier.contains(inside, prereleases=True) for each in asks)
        )
    if wanted in scene.wheels:
        return False
    outside = scene.outside.get(wanted)
    if outside is None:  # the system has it, or a checkout: in which version is not seen
        return bool(set(scene.modules_of_project(wanted)) & scene.foreign_modules)
    version = parsed_version(outside[0])
    return version is None or all(each.specifier.contains(version, prereleases=True) for each in asks)


def _one_requirement(wanted: str, found: Sequence[Symptom], scene: Scene) -> Symptom:
    first = found[0]
    requirers = list(dict.fromkeys(each.finding.packages[0] for each in found))
    asks = [each.finding.message.rpartition(", the venv has ")[0] for each in found]
    lines = list(dict.fromkeys(line for each in found for line in each.finding.evidence))
    more = f" (and {len(asks) - 1} more do)" if len(asks) > 1 else ""
    severity, stage = first.finding.severity, first.stage
    outside = scene.outside.get(wanted)
    if wanted in scene.chosen:
        if len(found) == 1:
            return first
        rest = f" and {len(asks) - 2} more" if len(asks) > 2 else ""
        message = f"{scene.label(wanted)} is not what {len(requirers)} packages require: {asks[0]}, {asks[1]}{rest}"
    elif wanted in scene.wheels:  # its import works, as long as nobody asks for its version
        files = files_of_copy(scene, wanted)
        severity, stage = "warning", Stage.USE
        message = f"{wanted} has {counted(len(files), 'file')} in the venv and no metadata, so no version of it is known: {asks[0]}{more}"
        lines = [f"no RECORD names {examples(files)}", *lines]
    elif outside is not None:
        message = f"{wanted} {outside[0]} of `{outside[1].path}` ({outside[1].source}) is the one that the venv sees: {asks[0]}{more}"
    else:
        message = f"{wanted} is not in the venv: {asks[0]}{more}"
    return replace(
        first,
        finding=replace(
            first.finding,
            severity=severity,
            subject=wanted,
            message=message,
            packages=(wanted, *requirers),
            evidence=evidence(lines),
        ),
        stage=stage,
        modules=frozenset(scene.modules_of_project(wanted)),
    )


def files_of_copy(scene: Scene, project: str) -> list[str]:
    """The files of a package without metadata, as findings show them."""
    from envspec.diagnosis.installed import name_of_stray  # noqa: PLC0415 - only where there is one

    shown = [scene.shown(path) for path in scene.strays if path.startswith(f"{scene.site}/")]
    return sorted(path for path in shown if name_of_stray(path) == project)
