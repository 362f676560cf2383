"""What mends packages: another release, the same one once more, one of two."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from envspec.diagnosis.installed import parsed_version
from envspec.diagnosis.offers import (
    Index,
    Offer,
    allows,
    asked_of,
    fitting,
    install_command,
    is_pin_on,
    may_name,
    name_of_requirement,
    pins_of,
    public,
    python_of,
)
from envspec.diagnosis.values import Fix
from envspec.wording import joined

UNKNOWN_OWNER = "whose it is, no metadata says"
"""What is said of a copied module whose project is not known."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diagnosis.grouping import Group
    from envspec.diagnosis.scene import Scene
    from envspec.observed import ObservedDistribution


def partner(group: Group, scene: Scene, index: Index) -> Fix | None:
    """A release that is built with this torch: for each package of the mismatch."""
    packages = group.root.finding.packages
    members = [each for each in packages if each != "torch"]
    torch = scene.true_version("torch")
    texts, specs, proofs = [], [], []
    for name in members:
        there = scene.wheels.get(name)
        tied = there is not None and any(is_pin_on(line, "torch") for line in there.facts.requires_dist)
        offer = fitting(index, name, [name, f"torch=={public(torch)}"], scene) if tied and torch else None
        if offer is not None and public(offer.version) != public(scene.true_version(name)):
            texts.append(f"use {name} {offer.version}, the release for torch {torch}")
            specs.append(f"{name}=={offer.version}")
            proofs.append(offer.proof)
    is_stated = any(
        spec == f"{name}=={scene.chosen[name].version}" for name in members if name in scene.chosen for spec in specs
    )
    if len(specs) == len(members) and specs:
        return Fix(
            text="; ".join(texts),
            command=install_command(scene, specs, *(["--reinstall"] if is_stated else []), "--no-deps"),
            proven_by="; ".join(dict.fromkeys(proofs)),
        )
    return Fix(text=group.root.finding.hint) if group.root.finding.hint else None


def requirement(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The version that everybody who requires a package accepts."""
    packages = group.root.finding.packages
    wanted = packages[0] if packages[0] not in scene.chosen or len(packages) > 2 else packages[-1]
    asks = asked_of(scene, wanted)
    requirers = [each for each in packages if each != wanted]
    if wanted not in scene.wheels:
        pins = pins_of(scene, wanted)
        offer = fitting(index, wanted, [*asks, *pins] or [wanted], scene)
        if offer is not None:
            return Fix(
                text=f"install {wanted} {offer.version}, which {joined(requirers[:3])} require{'s' if len(requirers) == 1 else ''}",
                command=install_command(scene, [f"{wanted}=={offer.version}"]),
                proven_by=offer.proof,
            )
        stated = asks[0] if asks else wanted
        return Fix(
            text=f"install {wanted}, as `{stated}` of {requirers[0] if requirers else 'the run'} asks (no version was looked up)"
        )
    offer = index.best(wanted, asks) if asks else None
    if wanted not in scene.chosen:  # its files are there
        return _with_metadata(wanted, asks, offer, scene)
    if offer is not None and public(offer.version) != public(scene.true_version(wanted)):
        return Fix(
            text=f"use {wanted} {offer.version}, which all that require it accept",
            command=install_command(scene, [f"{wanted}=={offer.version}"]),
            proven_by=offer.proof,
        )
    requirer = requirers[0] if requirers else ""
    there = scene.true_version(wanted)
    offer = index.best(requirer, [requirer, f"{wanted}=={public(there)}"]) if requirer and there else None
    if offer is not None and public(offer.version) != public(scene.true_version(requirer)):
        return Fix(
            text=f"use {requirer} {offer.version}, which accepts {wanted} {there}",
            command=install_command(scene, [f"{requirer}=={offer.version}"]),
            proven_by=offer.proof,
        )
    stated = joined([f"`{ask}`" for ask in asks[:3]])
    return (
        Fix(
            text=f"choose a version of {wanted} that {stated} allow{'s' if len(asks) == 1 else ''} (none was looked up)"
        )
        if asks
        else None
    )


def _with_metadata(wanted: str, asks: Sequence[str], offer: Offer | None, scene: Scene) -> Fix:
    """A package whose files lie there without metadata: which release they are of is not known."""
    folders = joined([f"`{module}`" for module in scene.modules_of_project(wanted)[:2]])
    if offer is None:
        stated = joined([f"`{ask}`" for ask in asks[:3]])
        return Fix(
            text=f"install {wanted} over its files, in the release that they are of, so that it has metadata ({stated})"
        )
    return Fix(
        text=f"install {wanted} {offer.version} over its files, so that it has metadata; if they are of another release, remove {folders} "
        "first",
        command=install_command(scene, [f"{wanted}=={offer.version}"]),
        proven_by=offer.proof,
    )


def missing_module(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The package that publishes a module."""
    name = group.root.package
    module = next(iter(sorted(group.root.modules)), "")
    if "do not have it" in group.root.finding.message:
        stand_in = (
            "; setuptools brings a stand-in of it"
            if module.partition(".")[0] == "distutils" and "setuptools" not in scene.chosen
            else ""
        )
        newest = index.best(name, [name]) if name else None
        told = (
            f" (the newest is {newest.version})"
            if newest and public(newest.version) != public(scene.true_version(name))
            else ""
        )
        who = f"a release of {name}" if name else "code"
        return Fix(text=f"use {who} that does without `{module}`{told}, or a Python that has it{stand_in}")
    if "built without" in group.root.finding.message:
        return Fix(
            text=f"use a Python that was built with it, or a release of {name or 'the package'} that does without"
        )
    if name in scene.wheels:
        return Fix(text=f"use releases of {joined(list(group.root.finding.packages[:2]))} that fit each other")
    offer = fitting(index, name, [name, *pins_of(scene, name)], scene)
    is_named = " is not installed, of which " in group.root.finding.message  # by the run itself
    if not is_named and not may_name(scene, module, name):
        there = f" {offer.version}, which the index has" if offer else ""
        return Fix(
            text=f"install the package that publishes `{module}`: by its name it may be {name}{there}; look first, since no package "
            "here asks for it"
        )
    extra = _extra_of(group.root.finding.packages[-1], name, scene)
    also = f"; `{extra}` asks for it" if extra else ""
    if offer is None:
        return Fix(text=f"install {name}, which publishes `{module}`{also} (no version was looked up)")
    return Fix(
        text=f"install {name} {offer.version}, which publishes `{module}`{also}",
        command=install_command(scene, [f"{name}=={offer.version}"]),
        proven_by=offer.proof,
    )


def _extra_of(requirer: str, wanted: str, scene: Scene) -> str:
    """The extra by which a package asks for another one: `uvicorn[standard]`; empty if none does."""
    there = scene.chosen.get(requirer)
    for line in there.requires_dist if there else ():
        found = re.search(r"""extra == ["']([\w.-]+)["']""", line)
        if found and name_of_requirement(line) == wanted:
            return f"{requirer}[{found[1]}]"
    return ""


def again(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The same version once more."""
    name = group.root.package
    there = scene.chosen.get(name)
    if there is None:
        return None
    if len(group.root.finding.packages) > 1 and group.root.check == "lost-package":
        return _all_again(group.root.finding.packages, scene, index)
    version = there.version or there.folder_version
    if there.direct_url:
        return Fix(text=f"install {name} {version} anew from where it came: {there.direct_url}")
    offer = index.best(name, [f"{name}=={public(version)}"]) if parsed_version(version) else None
    return Fix(
        text=f"install {name} {version} anew over what is there",
        command=install_command(scene, [f"{name}=={offer.version if offer else version}"], "--reinstall", "--no-deps"),
        proven_by="the index has this version" if offer else "",
    )


def _all_again(names: Sequence[str], scene: Scene, index: Index) -> Fix:
    """The same versions of several packages once more."""
    specs = [f"{name}=={public(version)}" for name in names if parsed_version(version := scene.true_version(name))]
    offers = [index.best(spec.partition("==")[0], [spec]) for spec in specs]
    return Fix(
        text=f"install the {len(names)} packages anew, as copies or hard links (`--link-mode`)",
        command=install_command(scene, specs, "--reinstall", "--no-deps") if specs else "",
        proven_by="the index has these versions" if specs and all(offers) else "",
    )


def edited(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The edit is for a person to judge; its base is what can be had back."""
    base = again(group, scene, index)
    if base is None:
        return None
    return Fix(
        text=f"look at the edit; to take it back, {base.text} (its base is {scene.label(group.root.package)})",
        command=base.command,
        proven_by=base.proven_by,
    )


def as_shipped(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Of a file that is wrong in the wheel itself another release is wanted, else the same one anew."""
    there = scene.chosen.get(group.root.package)
    rows = [file for file in there.files if file.path in group.root.paths] if there else []
    is_other = group.root.check == "foreign-machine" and there is not None and _is_for_another(there, scene)
    if rows and not is_other and all(file.recorded == file.sha256 for file in rows):
        links = [
            f"`ln -sf {shlex.quote(target)} {shlex.quote(f'{scene.observation.prefix}/{path}')}`"
            for path in sorted(group.root.paths)
            if re.fullmatch(r"[\w.+-]+\.so[.0-9]*", target := scene.observation.texts.get(path, "").strip())
        ]
        by_hand = f", or make the link by hand: {links[0]}" if links else ""
        return Fix(text=f"the wheel itself is wrong: use another build of {scene.label(group.root.package)}{by_hand}")
    return again(group, scene, index)


def _is_for_another(distribution: ObservedDistribution, scene: Scene) -> bool:
    """Whether a wheel says itself that it is for another machine, so that its binaries are no fault of it."""
    machine = scene.closure.spec.target.platform.partition("-")[2]
    platforms = [tag.rpartition("-")[2] for tag in distribution.wheel_tags]
    return bool(platforms) and not any(platform == "any" or platform.endswith(machine) for platform in platforms)


def mixed(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Of a package whose files and metadata are of two releases: the one that fits the others."""
    name = group.root.package
    asks = asked_of(scene, name)
    inside = scene.true_version(name)
    there = scene.chosen[name].version
    fits = [version for version in (there, inside) if asks and all(allows(ask, version) for ask in asks)]
    wanted = fits[0] if fits else there
    offer = index.best(name, [f"{name}=={public(wanted)}"])
    specifier = asks[0].removeprefix(name) if fits else ""
    reason = f", as {specifier} is required of it" if specifier else ""
    return Fix(
        text=f"install {name} {wanted} anew{reason}, so that files and metadata are of one release",
        command=install_command(scene, [f"{name}=={offer.version if offer else public(wanted)}"], "--reinstall"),
        proven_by="the index has this version, and the requirements hold with it" if offer and fits else "",
    )


def one_of_two(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Keep the one that others require."""
    names = group.root.finding.packages
    required = [name for name in names if asked_of(scene, name)]
    kept = required[0] if len(required) == 1 else (names[-1] if not required else required[-1])
    others = [name for name in names if name != kept]
    version = scene.true_version(kept)
    offer = index.best(kept, [f"{kept}=={public(version)}"]) if version else None
    python = python_of(scene)
    remove = f"uv pip uninstall --python {python} {' '.join(map(shlex.quote, names))}"
    return Fix(
        text=f"keep {kept} and remove {joined(others)}: uninstall both and install {kept} {version} anew, since they share files",
        command=f"{remove} && {install_command(scene, [f'{kept}=={version}'], '--no-deps')}",
        proven_by="the index has this version" if offer else "",
    )


def two_versions(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The version that those accept who require the package."""
    name = group.root.package
    asks = asked_of(scene, name)
    versions = [each.version for each in scene.by_name.get(name, ()) if each.version]
    fits = [version for version in versions if all(allows(ask, version) for ask in asks)]
    wanted = fits[-1] if fits else scene.chosen[name].version
    offer = index.best(name, [f"{name}=={public(wanted)}"]) if parsed_version(wanted) else None
    return Fix(
        text=f"remove both metadata folders of {name}, and install {wanted} anew",
        command=install_command(scene, [f"{name}=={wanted}"], "--reinstall", "--no-deps"),
        proven_by="the index has this version" if offer else "",
    )


def linked(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Of a package whose libraries do not find what they need."""
    name = group.root.package
    providers = sorted(
        {
            owner.facts.name
            for soname in sorted(group.root.sonames)
            for _, owner in scene.closure.links.providers(soname)
            if owner.facts.name != name
        }
    )
    beside = f" that goes with {joined([scene.label(each) for each in providers[:2]])}" if providers else ""
    offer = index.best(name, [name, *pins_of(scene, name)])
    newest = f"; the newest that the index has for this machine is {offer.version}" if offer else ""
    return Fix(text=f"use a release of {name}{beside}{newest}")


def lock_step(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The version of the one that others ask for."""
    names = group.root.finding.packages
    wanted = public(scene.true_version(names[0]))
    others = [name for name in names[1:] if public(scene.true_version(name)) != wanted]
    offers = [index.best(name, [f"{name}=={wanted}"]) for name in others]
    if others and all(offers):
        specs = [f"{name}=={wanted}" for name in others]
        return Fix(
            text=f"use {joined(others)} {wanted}, the version of {names[0]}",
            command=install_command(scene, specs, "--no-deps"),
            proven_by="the index has them",
        )
    return Fix(text=f"bring {joined(list(names))} to one version: the newest that all of them have")


def copied(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The package whose module was copied."""
    name = group.root.package
    version = scene.true_version(name)
    if group.root.finding.message.endswith(UNKNOWN_OWNER):
        return Fix(text="find out which project it is of, and install that over the copy; or remove it")
    offer = index.best(name, [f"{name}=={public(version)}" if version else name])
    if offer is None or not version:
        return Fix(
            text=f"install {name} {version}".rstrip()
            + " over the copy, so that its metadata and requirements are known"
        )
    return Fix(
        text=f"install {name} {version} over the copy, so that its metadata and requirements are known",
        command=install_command(scene, [f"{name}=={offer.version}"]),
        proven_by="the index has this version",
    )
