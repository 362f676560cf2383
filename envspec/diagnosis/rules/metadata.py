"""Which version a package is: by its folder, by its metadata, by what lies in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.checks.causes import cuda_traces
from envspec.cuda import most_precise
from envspec.diagnosis.installed import inner_version, is_foreign_version, name_of_folder, parsed_version, same_release
from envspec.diagnosis.offers import asked_of
from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.files import edits_of, is_code, is_mixed, missing_of, module_of
from envspec.diagnosis.symptom import Stage, symptom
from envspec.wording import counted, examples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.observed import ObservedDistribution


@rule("metadata-version")
def metadata_version(scene: Scene) -> Iterable[Symptom]:
    """The folder of a package's metadata is named after what METADATA says.

    Severity: error if the project or the release differs; warning if only the local part (`+cu130`) does, and if METADATA cannot be
    read.

    Why: installers go by the folder, Python by METADATA. Where they differ, one was copied over the other, or a wheel was renamed
    to carry `+cu130`: uv then installs it again at every run.

    Example:
        warning: kernels 1.0: its folder is named `1.0+cu130`, METADATA says `1.0`

    How to mend: install the package anew from a wheel that was not renamed.
    """
    linked = [each for each in scene.observation.distributions if _is_linked(each)]
    folders = {each.folder for each in linked}
    if linked:
        names = [each.name for each in linked]
        yield symptom(
            "metadata-version",
            "info",
            f"{counted(len(names), 'package')} {'is' if len(names) == 1 else 'are'} made of links to files outside of the venv, which are "
            f"not followed: {examples(names)}",
            stage=Stage.NEVER,
            evidence=[scene.shown(each.folder) for each in linked],
        )
    for distribution in scene.observation.distributions:
        if distribution.folder in folders:
            continue
        folder, stated = distribution.folder_version, distribution.version
        named = name_of_folder(distribution.folder)
        label = f"{distribution.name} {stated or folder}".strip()
        if not distribution.folder or distribution.folder.endswith(".egg-info"):
            continue
        problems = [problem for problem in distribution.problems if "METADATA" in problem]
        if problems:
            yield symptom(
                "metadata-version",
                "warning",
                f"{label}: {problems[0]}",
                packages=[distribution.name],
                stage=Stage.USE,
                evidence=[f"{scene.shown(distribution.folder)}: {problem}" for problem in problems],
                path=scene.shown(distribution.folder),
                paths=[f"{distribution.folder}/METADATA"],
            )
        elif named and named != distribution.name:
            yield symptom(
                "metadata-version",
                "error",
                f"{label}: its folder is named after `{named}`",
                packages=[distribution.name, named],
                stage=Stage.USE,
                evidence=[f"{scene.shown(distribution.folder)}/METADATA says {distribution.name} {stated}"],
                path=scene.shown(distribution.folder),
                paths=[f"{distribution.folder}/"],
            )
        elif folder and stated and not _equal(folder.replace("_", "+"), stated) and not _equal(folder, stated):
            yield symptom(
                "metadata-version",
                "warning" if same_release(folder.replace("_", "+"), stated) else "error",
                f"{label}: its folder is named `{folder}`, METADATA says `{stated}`",
                packages=[distribution.name],
                stage=Stage.USE,
                evidence=[f"{scene.shown(distribution.folder)}/METADATA says Version: {stated}"],
                path=scene.shown(distribution.folder),
                paths=[f"{distribution.folder}/"],
            )


@rule("version-inside")
def version_inside(scene: Scene) -> Iterable[Symptom]:
    """What lies in a package is of the version that its metadata says.

    A `version.py` in it tells; else half of its code, if RECORD has other digests for it.

    Severity: error; info where both are as they were installed: then the package itself is not exact. Where another package owns the
    file too, and has put its own there, it is `owned-twice`.

    Why: who copies the folder of a package over that of another release leaves the old `.dist-info` behind. `pip list`, resolvers and
    every check of requirements go on with a version that is not there any more.

    Example:
        error: torch is 2.9.1 by its metadata, and 2.11.0+cu130 by what lies in it

    How to mend: install the version that is wanted anew, so that files and metadata are of one release.
    """
    for name, distribution in scene.chosen.items():
        label = inner_version(distribution)
        if label is None or not distribution.version or same_release(label.value, distribution.version):
            if not scene.is_locked and is_mixed(scene, distribution):
                yield _other_files(scene, distribution)
            continue
        if _is_anothers(scene, distribution, f"{scene.site}/{label.path}"):
            continue
        foreign = is_foreign_version(distribution, label, scene.site)
        changed = [file for file in distribution.files if file.is_edited]
        wheel = scene.wheels.get(name)
        traces = cuda_traces(wheel, scene.closure.links) if wheel is not None else ()
        yield symptom(
            "version-inside",
            "error" if foreign else "info",
            f"{name} is {distribution.version} by its metadata, and {label.value} by what lies in it",
            packages=[name],
            stage=Stage.IMPORT if foreign else Stage.NEVER,
            evidence=[
                f"{scene.shown(distribution.folder)}/METADATA says Version: {distribution.version}",
                f"{label.path} says `{label.key} = '{label.value}'`",
                *(
                    [f"{counted(len(changed), 'file')} of {len(distribution.files)} are not those of RECORD"]
                    if changed
                    else []
                ),
                *([f"its binaries are built for CUDA {most_precise(traces)}"] if traces else []),
            ],
            path=label.path,
            paths=[file.path for file in changed] if foreign else (),
        )


@rule("no-record")
def no_record(scene: Scene) -> Iterable[Symptom]:
    """Every package has a RECORD of its files.

    Severity: info.

    Why: without it nobody can say whether a file is there and is the right one, and pip cannot uninstall the package. Old
    `.egg-info` folders and packages of a Linux distribution have none; some wheels have one whose paths all begin with `/`.

    Example:
        info: legacy 1.0: RECORD is missing, so its files cannot be judged

    How to mend: install the package anew from a wheel.
    """
    for name, distribution in scene.chosen.items():
        problems = [problem for problem in distribution.problems if "RECORD" in problem]
        outside = sum(file.path.startswith("/") for file in distribution.files)
        if outside and outside >= len(distribution.files) - outside:
            problems.append(f"RECORD names {counted(outside, 'file')} by absolute paths, which are none of the venv's")
        if problems:
            yield symptom(
                "no-record",
                "info",
                f"{scene.label(name)}: {problems[0]}, so its files cannot be judged",
                packages=[name],
                stage=Stage.NEVER,
                evidence=[f"{scene.shown(distribution.folder)}: {problem}" for problem in problems],
                path=scene.shown(distribution.folder),
            )


@rule("leftover")
def leftover(scene: Scene) -> Iterable[Symptom]:
    """No folder of an interrupted installation is left.

    Severity: error if the package that it was is gone since and others require it, or if parts of it are there; else info.

    Why: pip renames what it replaces to a name with `~` before it deletes it. Where it was stopped, the folder stays, and pip warns of
    an invalid distribution for ever; the package that it was may be only half there, or not at all.

    Example:
        error: an installation of torch was interrupted: `~orch-2.9.1.dist-info` is what was moved aside, and torch has files but no
        metadata

    How to mend: delete what begins with `~`, and install the package that it was anew.
    """
    for distribution in scene.leftovers:
        folder, name = distribution.folder.rpartition("/")[2], distribution.name
        modules = [module.removesuffix(".py") for module in distribution.top_level] or scene.modules_of_project(name)
        half = [module for module in modules if module in scene.stray_modules]
        is_missed = name not in scene.chosen and (bool(half) or bool(asked_of(scene, name)))
        files = [file for module in half for file in scene.stray_modules[module]]
        state = "has files but no metadata" if half else "is not in the venv"
        yield symptom(
            "leftover",
            "error" if is_missed else "info",
            f"an installation of {name} was interrupted: `{folder}` is what was moved aside, and {name} {state}"
            if is_missed
            else f"`{folder}` is left of an interrupted installation",
            packages=[name] if is_missed else [],
            stage=Stage.IMPORT if is_missed else Stage.NEVER,
            evidence=[
                f"{scene.shown(distribution.folder)} is the metadata of {name} {distribution.version or distribution.folder_version}",
                *(f"{scene.shown(file.path)} is in no RECORD" for file in files),
                *(f"`{ask}` is required of it" for ask in (asked_of(scene, name) if is_missed else ())),
            ],
            path=scene.shown(distribution.folder),
            paths=[f"{distribution.folder}/", *(file.path for file in files)],
            modules=modules if is_missed else (),
        )


def _other_files(scene: Scene, distribution: ObservedDistribution) -> Symptom:
    """A package whose code is not that of its metadata, and that does not say what it is."""
    edited = [file for file in edits_of(scene, distribution) if is_code(file.path)]
    gone = [file for file in missing_of(distribution) if is_code(file.path)]
    code = [file for file in distribution.files if is_code(file.path)]
    missing = f", and {len(gone)} {'is' if len(gone) == 1 else 'are'} missing" if gone else ""
    return symptom(
        "version-inside",
        "error",
        f"{scene.label(distribution.name)} is not what lies in it: {len(edited)} of its {counted(len(code), 'file')} of code are not those of "
        f"that release{missing}",
        packages=[distribution.name],
        stage=Stage.IMPORT,
        evidence=[
            f"{scene.shown(distribution.folder)}/METADATA says Version: {distribution.version}",
            *(f"{scene.shown(file.path)} is not as RECORD says" for file in edited),
            *(f"{scene.shown(file.path)} is not there" for file in gone),
        ],
        path=scene.shown((*edited, *gone)[0].path),
        paths=[file.path for file in (*edited, *gone)],
        modules=[module for file in gone if (module := module_of(scene, file.path))],
    )


def _is_anothers(scene: Scene, distribution: ObservedDistribution, path: str) -> bool:
    """Whether a file is there as another package has it."""
    rows = scene.rows.get(path, ())
    return any(row.recorded == row.sha256 for each, row in rows if each.name != distribution.name and row.sha256)


def _is_linked(distribution: ObservedDistribution) -> bool:
    """Whether the metadata is a link (`uv --link-mode symlink`)."""
    return any(file.kind == "link" and file.path == f"{distribution.folder}/METADATA" for file in distribution.files)


def _equal(one: str, other: str) -> bool:
    first, second = parsed_version(one), parsed_version(other)
    return one == other if first is None or second is None else first == second
