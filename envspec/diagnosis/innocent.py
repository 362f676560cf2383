"""What is not the cause: packages that somebody may suspect and that are present, whole and satisfied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from envspec.diagnosis.rules.files import edits_of, missing_of
from envspec.diagnosis.values import NotCause
from envspec.forms import normalise_name
from envspec.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.diagnosis.ranking import Run
    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.values import Cause

_SHORTEST_WORD = 3


def find_innocent(scene: Scene, run: Run, causes: Sequence[Cause]) -> tuple[NotCause, ...]:
    """The packages that are not the cause, those that are suspected most first.

    With a failed run: those that a message names, those that the traceback passed through, and what the package that was to be imported
    requires. Without one: all that are whole.
    """
    guilty = {name for cause in causes for name in cause.packages[:1]}
    guilty |= {name for cause in causes for name in cause.packages if cause.check in _GUILTY_TOGETHER}
    suspects = _suspects(scene, run)
    edited = {name for name, each in scene.chosen.items() if edits_of(scene, each)}
    found = []
    for name, why in suspects.items():
        if name in guilty or not is_whole(scene, name):
            continue
        state = "present and whole"
        if name in edited:
            state = "present; its edited files are not where it failed"
        pair = next((cause for cause in causes if cause.severity == "error" and name in cause.packages), None)
        if pair is not None:
            state += f", and what {pair.packages[0]} is measured by"
        found.append(
            NotCause(package=name, reason=printable(f"{scene.label(name)} is {state}{f' ({why})' if why else ''}"))
        )
    return tuple(found)


def is_whole(scene: Scene, name: str) -> bool:
    """Whether a package has all its files and its requirements."""
    there = scene.chosen.get(name)
    if there is None or missing_of(there) or len(scene.by_name.get(name, ())) > 1:
        return False
    return all(requirement in scene.wheels for requirement in _requires(scene, name))


def _suspects(scene: Scene, run: Run) -> Mapping[str, str]:
    """Package -> why it may be suspected, in the order in which they are."""
    suspects: dict[str, str] = {}
    if not run.witnesses:
        return dict.fromkeys(scene.chosen, "")
    modules = {module.lower(): names for module, names in scene.modules.items() if len(module) >= _SHORTEST_WORD}
    for witness in run.witnesses:
        if not witness.in_chain:
            continue
        for word in sorted(witness.telling.words):
            name = word.replace("_", "-")
            for each in (name if name in scene.chosen else "", *modules.get(word.partition(".")[0], ())):
                if each and each not in _COMMON_WORDS:
                    suspects.setdefault(each, "the message names it")
    for witness in run.witnesses:
        for name in witness.telling.passed:
            if name in scene.chosen:
                suspects.setdefault(
                    name, "the traceback passed through it" if witness.in_chain else "an error passed through it"
                )
    traced = scene.traced
    if traced is not None:
        target = scene.owner_of_module(traced.target) if "/" not in traced.target else ""
        tops = [target] if target in scene.chosen else [name for name, each in scene.chosen.items() if each.requested]
        for top in tops:
            for name in _requires(scene, top):
                if name in scene.chosen:
                    suspects.setdefault(name, f"{top} requires it")
    return suspects


def _requires(scene: Scene, name: str) -> Iterable[str]:
    """What a package requires on this machine, extras left out."""
    found = []
    there = scene.chosen.get(name)
    for line in there.requires_dist if there else ():
        try:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({**scene.closure.markers, "extra": ""}):
                found.append(normalise_name(requirement.name))
        except (InvalidRequirement, ValueError, RecursionError):
            continue
    return dict.fromkeys(found)


_GUILTY_TOGETHER = frozenset({"owned-twice", "lock-step", "name-missing"})
"""Checks whose packages are all concerned."""

_COMMON_WORDS = frozenset(
    {"attr", "build", "click", "file", "install", "packaging", "path", "pip", "rich", "six", "test", "typing"}
)
"""Names of packages that are words of messages as well."""
