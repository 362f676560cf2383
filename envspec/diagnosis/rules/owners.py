"""Two packages for one file, and two versions of one package."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from envspec.checks.waivers import COLLISION_CHECKS
from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.files import is_code, is_of_the_system
from envspec.diagnosis.symptom import Stage, symptom
from envspec.generic_names import GENERIC_NAMES
from envspec.wording import counted, examples, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.facts import Severity
    from envspec.observed import ObservedDistribution, ObservedFile

    Owned = tuple[tuple[ObservedDistribution, ObservedFile], ...]

SIMILAR_WORDS = 0.6
"""How alike the first words of two names are, for one package to be taken for the other's successor: `sgl` and `sglang` have 0.67."""


@rule("owned-twice")
def owned_twice(scene: Scene) -> Iterable[Symptom]:
    """Every file belongs to one package, or is the same in all that have it.

    For each file it says whose bytes are on disk.

    Severity: error; warning if no code is concerned, or a lone file at the root of site-packages with a name that anyone could use
    (`build_backend.py`, `tests/`).

    Why: two packages with the same folder overwrite each other, and which of them wins depends on the installer and its threads.
    Mixed, neither is what was tested: a TypeError in a compiler, bad PTX, an `__init__.py` that asks for what the other release
    had. Uninstalling one deletes the files of the other.

    Example:
        error: opencv-python 4.12.0.88 and opencv-python-headless 4.12.0.88 both own 79 files and differ in 3: on disk are 2 of
        opencv-python-headless and 1 of opencv-python

    How to mend: keep one: uninstall both, and install that one anew, since uninstalling deletes the files that both have.
    """
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    differing: dict[tuple[str, ...], dict[str, Owned]] = defaultdict(dict)
    for path, owned in scene.rows.items():
        names = tuple(sorted({each.name for each, _ in owned}))
        if len(names) < 2:
            continue
        shared[names].append(path)
        if len({file.recorded for _, file in owned if file.recorded}) > 1 and not _is_decided(scene, path, owned):
            differing[names][path] = owned
    for names, paths in sorted(differing.items()):
        yield _collision(scene, names, shared[names], dict(sorted(paths.items())))


@rule("two-versions")
def two_versions(scene: Scene) -> Iterable[Symptom]:
    """A project has one `.dist-info` in site-packages.

    Severity: error.

    Why: an installation that was interrupted, or a folder that was copied from another venv, leaves two. Which of them pip,
    `importlib.metadata` and a package's own check of versions see depends on the order of the folder; the files are those of
    whoever came last.

    Example:
        error: torchvision is there twice, as 0.24.1 and 0.26.0; the files on disk are those of 0.24.1

    How to mend: remove both (`uv pip uninstall` until nothing is left), and install the version that is wanted.
    """
    for name, all_of in scene.by_name.items():
        if len(all_of) < 2 or not name or name.startswith("~"):
            continue
        chosen = scene.chosen[name]
        if all(is_of_the_system(each) for each in all_of) and len({each.version for each in all_of}) == 1:
            continue  # two forms of the same metadata
        versions = sorted({each.version or each.folder_version for each in all_of})
        counts = {each.folder: _right(each) for each in all_of}
        mixed = [each for each in all_of if each is not chosen and _only_theirs(each, chosen)]
        whose = chosen.version or chosen.folder_version
        state = f"the files on disk are those of {whose}" if not mixed else "the files on disk are mixed"
        yield symptom(
            "two-versions",
            "error",
            f"{name} is there {'twice' if len(all_of) == 2 else f'{len(all_of)} times'}, as {joined(versions)}; {state}",
            packages=[name],
            stage=Stage.IMPORT if mixed else Stage.USE,
            evidence=[
                f"{scene.shown(each.folder)}: {counts[each.folder]} of {counted(len(each.files), 'file')} on disk are as its RECORD says"
                for each in all_of
            ],
            path=scene.shown(all_of[0].folder),
            paths=[f"{each.folder}/" for each in all_of],
            modules=scene.modules_of_project(name) if mixed else (),
        )


def successor(one: str, other: str) -> bool:
    """Whether two packages seem to be one under an old and a new name.

    Example:
        >>> successor("sgl-kernel", "sglang-kernel")
        True
    """
    first, second = one.split("-"), other.split("-")
    if len(first) != len(second):
        return False
    return all(difflib.SequenceMatcher(None, a, b).ratio() >= SIMILAR_WORDS for a, b in zip(first, second, strict=True))


def _collision(scene: Scene, names: tuple[str, ...], shared: Sequence[str], paths: Mapping[str, Owned]) -> Symptom:
    whose = {path: _whose(owned) for path, owned in paths.items()}
    counts = Counter(whose.values())
    parts = [
        f"{count} of {name}" if name else f"{count} of neither"
        for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    ]
    code = [path for path in paths if is_code(path) or path.startswith("bin/")]
    lone = all(_is_lone(scene.shown(path)) for path in paths)
    severity: Severity = "error" if code and not lone else "warning"
    labels = joined([scene.label(name) for name in names])
    shown = [scene.shown(path) for path in paths]
    winner = max(sorted(counts), key=lambda name: counts[name])
    losers = [name for name in names if name != winner] or list(names)
    lead = next(
        (name for name in losers if not any(successor(name, other) for other in names if other > name)), losers[0]
    )
    return symptom(
        "owned-twice",
        severity,
        f"{labels} both own {counted(len(shared), 'file')} and differ in {len(paths)}: on disk "
        f"{'is' if len(paths) == 1 else 'are'} {joined(parts)}",
        packages=[lead, *(name for name in names if name != lead)],
        stage=Stage.IMPORT if severity == "error" else Stage.NEVER,
        evidence=[
            f"{path} is {f'that of {whose[full]}' if whose[full] else 'of neither'}"
            for full, path in zip(paths, shown, strict=True)
        ],
        hint=f"files that differ: {examples(shown)}",
        path=shown[0],
        paths=paths,
        sonames=[path.rpartition("/")[2] for path in shown if ".so" in path.rpartition("/")[2]],
    )


def _is_decided(scene: Scene, path: str, owned: Owned) -> bool:
    """Whether a waiver of the lock says whose file stays, and it did."""
    return any(
        waiver.check in COLLISION_CHECKS
        and waiver.owner == _whose(owned)
        and fnmatchcase(scene.shown(path), waiver.path)
        for waiver in scene.closure.spec.waivers
        if waiver.owner
    )


def _whose(owned: Owned) -> str:
    """The package whose bytes are on disk; empty if they are nobody's."""
    return next((each.name for each, file in owned if file.sha256 and file.sha256 == file.recorded), "")


def _is_lone(shown: str) -> bool:
    return shown.partition("/")[0].lower() in GENERIC_NAMES and not shown.startswith("bin/")


def _right(distribution: ObservedDistribution) -> int:
    return sum(
        file.kind == "file" and (not file.recorded or file.sha256 == file.recorded) for file in distribution.files
    )


def _only_theirs(other: ObservedDistribution, chosen: ObservedDistribution) -> bool:
    """Whether a file on disk is the other distribution's and not the chosen one's, metadata left out."""
    rows = {file.path: file for file in chosen.files}
    return any(
        file.kind == "file"
        and file.recorded == file.sha256 != ""
        and not file.path.startswith(f"{other.folder}/")
        and file.path in rows
        and rows[file.path].recorded not in ("", file.sha256)
        for file in other.files
    )
