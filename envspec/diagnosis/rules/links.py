"""Packages that are links: into a cache that was cleaned, to a folder that is not mounted."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from envspec.diagnosis.rules.files import LISTED, absent_line, is_code, is_lost, missing_of, names_of
from envspec.diagnosis.symptom import Stage, symptom
from envspec.wording import counted, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.observed import ObservedDistribution


def is_dead(distribution: ObservedDistribution) -> bool:
    """Whether a package of which nothing is left was links to somewhere else."""
    payload = [file for file in missing_of(distribution) if not file.path.startswith(f"{distribution.folder}/")]
    return is_lost(distribution) and all(file.target for file in payload)


def dead_links(scene: Scene) -> Iterator[Symptom]:
    """All packages that were links into a place that is gone, as one; those whose folder is such a link, each."""
    for name, each in scene.chosen.items():
        above = [
            link
            for file in each.files
            if file.kind == "unreadable" and (link := scene.link_above(file.path)) is not None
        ]
        gone = {link.path: link for link in above if link.kind == "missing"}
        for path, link in gone.items():
            yield symptom(
                "lost-package",
                "error",
                f"{scene.label(name)} lies behind the link `{scene.shown(path)}`, which leads to `{link.target}`, and that is gone",
                packages=[name],
                stage=Stage.IMPORT,
                evidence=[absent_line(scene, link)],
                path=scene.shown(path),
                paths=[path, f"{path}/"],
                modules=scene.modules_of_project(name),
            )
    dead = {name: each for name, each in scene.chosen.items() if is_dead(each)}
    if not dead:
        return
    files = [file for each in dead.values() for file in missing_of(each) if file.target]
    files.sort(key=lambda file: (not is_code(file.path), file.path))
    place = (
        posixpath.commonpath([file.target for file in files]) if all(f.target.startswith("/") for f in files) else ""
    )
    labels = [scene.label(name) for name in dead]
    shown = joined(labels) if len(labels) <= LISTED else f"{joined(labels[:LISTED])} and {len(labels) - LISTED} more"
    yield symptom(
        "lost-package",
        "error",
        f"the files of {counted(len(dead), 'package')} are links to what is gone{f', below `{place}`' if place else ''}: {shown}",
        packages=list(dead),
        stage=Stage.IMPORT,
        evidence=[absent_line(scene, file) for file in files],
        path=scene.shown(files[0].path),
        paths=[
            *(file.path for file in files),
            *(f"{scene.site}/{module}/" for each in dead.values() for module in each.top_level),
        ],
        modules=[module for name in dead for module in scene.modules_of_project(name)],
        sonames=names_of(files),
    )
