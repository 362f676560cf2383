"""What mends releases that do not go with each other, and packages that are another build or come from elsewhere.

That a newer release does without a name is nowhere written down, so such a version is told and not put into a command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.diagnosis import package_fixes as packages
from envspec.diagnosis.installed import parsed_version
from envspec.diagnosis.offers import (
    BUILT_ON_TORCH,
    Index,
    Offer,
    asked_of,
    fitting,
    install_command,
    pins_of,
    public,
    python_of,
)
from envspec.diagnosis.values import Fix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diagnosis.grouping import Group
    from envspec.diagnosis.scene import Scene

DROPPED = {("setuptools", "pkg_resources"): "82"}
"""Project and module -> the release that no longer has it."""

_GENERATED_FOR = re.compile(r" was compiled for \S+ (\d[\d.]*\d)")
_TAKEN = re.compile(r" (?:takes|calls) `([^`]+)`")


def name_missing(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Another release of whoever takes a name, or calls what is not so any more."""
    names = group.root.finding.packages
    giver, taker = names[0], names[-1]
    found = _TAKEN.search(group.root.finding.message)
    name = found[1] if found else "the name"
    if giver == taker:
        if "made for another release of what it calls" not in group.root.finding.message:
            taken_by_run = group.root.finding.message.startswith("the run ")
            if not taken_by_run:  # its own name: it is not whole
                return packages.again(group, scene, index)
            return Fix(
                text=f"do without `{name}`, or use a {giver} before {public(scene.true_version(giver))} that has it"
            )
        newest = _newest_with_all(taker, scene, index)
        return Fix(
            text=f"use a release of {taker} that was made with the packages that it calls{_told(newest, 'its newest')}"
        )
    newest = fitting(index, taker, [taker, f"{giver}=={public(scene.true_version(giver))}"], scene)
    told = _told(newest, f"the newest that goes with {scene.label(giver)}") if _is_newer(newest, taker, scene) else ""
    moved = _moved_to(group, scene)
    also = f", install {moved}, to which it moved, and import it from there" if moved else ""
    return Fix(text=f"use a release of {taker} that does without `{name}`{told}, or a {giver} that still has it{also}")


def dropped_module(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The last release of a package that had a module."""
    if any(line.startswith("PYTHONSAFEPATH is set") for line in group.root.finding.evidence):
        return Fix(
            text="unset PYTHONSAFEPATH for this process, if the module lies beside the script",
            command=f"env -u PYTHONSAFEPATH {python_of(scene)} ...",
        )
    giver = group.root.package
    module = next(iter(sorted(group.root.modules)), "").partition(".")[0]
    before = DROPPED.get((giver, module))
    asker = group.root.finding.packages[-1]
    if before is None or giver not in scene.wheels:
        return packages.missing_module(group, scene, index)
    offer = index.best(giver, [f"{giver}<{before}", *asked_of(scene, giver)])
    text = f"{giver} {before} and later have no `{module}`: use a release of {asker} that does without it, or {giver} before {before}"
    if offer is None:
        return Fix(text=text)
    return Fix(text=text, command=install_command(scene, [f"{giver}=={offer.version}"]), proven_by=offer.proof)


def generated_code(group: Group, scene: Scene, index: Index) -> Fix | None:
    """A runtime that is new enough, or code that is."""
    names = group.root.finding.packages
    found = _GENERATED_FOR.search(group.root.finding.message)
    if found is None:
        user = names[0]
        newest = index.best(user, [user])
        told = _told(newest, "the newest") if _is_newer(newest, user, scene) else ""
        return Fix(
            text=f"use a release of {user} whose code was generated anew{told}; else protobuf before 4, which reads it"
        )
    runtime = names[0]
    major = int(found[1].partition(".")[0])
    asks = [f"{runtime}>={found[1]},<{major + 2}", *asked_of(scene, runtime)]
    offer = index.best(runtime, asks)
    if offer is None or public(offer.version) == public(scene.true_version(runtime)):
        return Fix(
            text=f"use {runtime} {found[1]} or later of the same major, or generate the code anew with the protoc of this {runtime}"
        )
    return Fix(
        text=f"use {runtime} {offer.version}, which reads code of {found[1]}, or generate the code anew with an older protoc",
        command=install_command(scene, [f"{runtime}=={offer.version}"]),
        proven_by=offer.proof,
    )


def other_build(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    """The same version, built for CUDA."""
    name = group.root.package
    anchor = scene.closure.causes.anchor
    backend = f"cu{''.join(anchor.release.split('.')[:2])}" if anchor is not None and name != "torch" else "auto"
    version = public(scene.true_version(name))
    specs = [f"{name}=={version}"]
    options = ["--torch-backend", backend, "--reinstall-package", name]
    return Fix(
        text=f"install {name} {version} built for CUDA over the one that is built without",
        command=install_command(scene, specs, *options),
    )


def into_the_venv(group: Group, scene: Scene, index: Index) -> Fix | None:
    """A package that came from elsewhere, of the venv's own."""
    name = group.root.package
    offer = fitting(index, name, [name, *asked_of(scene, name), *pins_of(scene, name)], scene)
    which = f" {offer.version}" if offer else ""
    beside = (
        f" that goes with {scene.label('torch')}"
        if not offer and name in BUILT_ON_TORCH and "torch" in scene.chosen
        else ""
    )
    away = group.root.finding.message.partition(", which ")[2].partition(", and is ")[0]
    return Fix(
        text=f"install {name}{which}{beside} into the venv, and take the folder away that {away}",
        command=install_command(scene, [f"{name}=={offer.version}"]) if offer else "",
        proven_by=offer.proof if offer else "",
    )


def interrupted(group: Group, scene: Scene, index: Index) -> Fix | None:
    """A package whose installation was interrupted, once more."""
    name = group.root.package
    there = next((each for each in scene.leftovers if each.name == name), None)
    folder = group.root.finding.path.rpartition("/")[2]
    if not name or there is None:
        return Fix(text=f"delete `{folder}`, and the folder beside it whose name begins with `~`")
    asks = asked_of(scene, name)
    offer = fitting(index, name, [*asks, *pins_of(scene, name)] or [name], scene)
    version = offer.version if offer else ""
    return Fix(
        text=f"install {name}{f' {version}' if version else ''} anew, and delete what begins with `~` in {scene.site}",
        command=install_command(scene, [f"{name}=={version}"], "--reinstall-package", name) if version else "",
        proven_by=offer.proof if offer else "",
    )


def _newest_with_all(name: str, scene: Scene, index: Index) -> Offer | None:
    newest = fitting(index, name, [name], scene)
    return newest if _is_newer(newest, name, scene) else None


def _is_newer(offer: Offer | None, name: str, scene: Scene) -> bool:
    there, offered = parsed_version(scene.true_version(name)), parsed_version(offer.version) if offer else None
    return there is not None and offered is not None and offered > there


def _told(offer: Offer | None, what: str) -> str:
    return f" ({what} is {offer.version})" if offer is not None else ""


def _moved_to(group: Group, scene: Scene) -> str:
    """The package to which a name was moved, as the message says, if it is not there."""
    said: Sequence[str] = group.root.finding.evidence[:1]
    found = re.search(r"moved to the [`'\"]?([\w-]+)[`'\"]? package", " ".join(said))
    return found[1] if found and found[1] not in scene.chosen else ""
