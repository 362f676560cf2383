"""Waivers: which finding a person has accepted.

A waiver names a check, a package and, where the finding has one, a pattern (fnmatch) of its path. Two files that contend for one path are not
waived by saying that it does not matter: one of them must win on every host, so that waiver names its `path` and its `owner`.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from envspec.checks.wording import evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from envspec.facts import Finding
    from envspec.spec import Waiver

COLLISION_CHECKS = frozenset({"file-collision", "script-collision"})


def covers(waiver: Waiver, check: str, packages: Collection[str], path: str) -> bool:
    """Whether a waiver is meant for this finding, whether or not it resolves it."""
    return waiver.check == check and waiver.package in packages and (not waiver.path or fnmatchcase(path, waiver.path))


def resolves(waiver: Waiver, finding: Finding) -> bool:
    """Whether a waiver takes a finding away."""
    return covers(waiver, finding.check, finding.packages, finding.path) and not shortcoming(waiver, finding)


def resolving(waivers: Sequence[Waiver], finding: Finding) -> list[int]:
    """The numbers of the waivers that take a finding away, the one that counts first.

    Where they name owners, that is the pattern that sorts first, as `envspec.compose.owner_of` has it; else the first of the spec.
    """
    numbers = [number for number, waiver in enumerate(waivers) if resolves(waiver, finding)]
    if finding.check in COLLISION_CHECKS:
        numbers.sort(key=lambda number: waivers[number].path)
    return numbers


def shortcoming(waiver: Waiver, finding: Finding) -> str:
    """Why a waiver that covers a finding does not resolve it; empty if it does."""
    if finding.check not in COLLISION_CHECKS or finding.severity != "error":
        return ""
    if not finding.path:
        return "a file cannot stand in place of a folder, so one of the packages has to go"
    if not waiver.owner:
        return "it names no `owner`, the package whose file stays"
    if not waiver.path:
        return "it names no `path` beside its `owner`"
    if waiver.owner not in finding.packages:
        return f"its owner `{waiver.owner}` is none of the packages that have the file"
    return ""


def findings_of_paths(
    waivers: Iterable[Waiver],
    finding: Finding,
    details: Mapping[str, str],
    message: Callable[[Sequence[str]], str],
) -> Iterator[Finding]:
    """One finding for all paths at which the same thing was found, or several where waivers resolve only some of them.

    The path of each is its first one; a waiver that resolves the finding at that path resolves it at all of its paths.

    Args:
        waivers: Of the spec.
        finding: What is found, without message, evidence and path.
        details: Path -> what is found there; may be empty.
        message: The message for some of the paths, which are sorted.
    """
    for paths in _by_waiver(waivers, finding, sorted(details)):
        lines = [f"{path}: {details[path]}" for path in paths]
        yield replace(finding, message=message(paths), evidence=evidence(lines), path=paths[0])


def _by_waiver(waivers: Iterable[Waiver], finding: Finding, paths: Sequence[str]) -> list[list[str]]:
    candidates = [waiver for waiver in waivers if waiver.check == finding.check and waiver.package in finding.packages]
    if not candidates:
        return [list(paths)] if paths else []
    groups: dict[int | None, list[str]] = {}
    for path in paths:
        first = next(iter(resolving(candidates, replace(finding, path=path))), None)
        groups.setdefault(first, []).append(path)
    return list(groups.values())


def shortcomings(waivers: Iterable[Waiver], finding: Finding) -> tuple[str, ...]:
    """What the waivers that cover a finding lack to resolve it."""
    covering = (waiver for waiver in waivers if covers(waiver, finding.check, finding.packages, finding.path))
    return tuple(lack for waiver in covering if (lack := shortcoming(waiver, finding)))
