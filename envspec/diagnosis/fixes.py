"""What mends a cause, checked before it is offered.

A version is offered only if an index was asked and the requirements of the venv hold with it; else the fix says what is wanted, and that no
version was looked up. The index is a port: `builder.offering` asks uv, tests answer from a table.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from packaging.requirements import InvalidRequirement, Requirement

from envspec.diagnosis.installed import parsed_version
from envspec.diagnosis.values import Fix
from envspec.forms import normalise_name
from envspec.wording import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envspec.diagnosis.grouping import Group
    from envspec.diagnosis.scene import Scene

DEBIAN = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libSM.so.6": "libsm6",
    "libX11.so.6": "libx11-6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libatomic.so.1": "libatomic1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgomp.so.1": "libgomp1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libibverbs.so.1": "libibverbs1",
    "libmlx5.so.1": "ibverbs-providers",
    "libmpi.so.40": "libopenmpi3",
    "libnuma.so.1": "libnuma1",
    "libomp.so.5": "libomp5",
    "libopenblas.so.0": "libopenblas0",
    "librdmacm.so.1": "librdmacm1",
    "libsndfile.so.1": "libsndfile1",
    "libsox.so.3": "libsox3",
    "libstdc++.so.6": "libstdc++6",
    "libtbb.so.12": "libtbb12",
    "libxcb.so.1": "libxcb1",
    "libz.so.1": "zlib1g",
}
"""Soname -> the package of Debian and Ubuntu that brings it (`apt-file search`, Debian 12)."""

REPAIR = "envspec build --repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A version that an index has."""

    version: str
    proof: str
    """How it was checked: `uv resolves it together with torch 2.11.0`."""


class Index(Protocol):
    """Where versions are looked up; it may be asked several times for one diagnosis, and may take seconds for each."""

    def best(self, name: str, requirements: Sequence[str]) -> Offer | None:
        """The newest version of a package that goes with some requirements; None if there is none, or nobody can be asked.

        Args:
            name: Normalised.
            requirements: PEP 508, those on the package itself included: `torchvision`, `torch==2.11.0`.
        """


class NoIndex:
    """Nobody is asked."""

    def best(self, name: str, requirements: Sequence[str]) -> Offer | None:  # noqa: ARG002 - the port's
        """None."""
        return None


def fix_of(group: Group, scene: Scene, index: Index) -> Fix | None:
    """What mends a cause; None if nothing is known."""
    root = group.root
    name = root.package
    if scene.is_locked and root.check in _BY_REBUILDING:
        env = scene.observation.locked.get("name", "")
        return Fix(
            text=f"make the environment{f' {env}' if env else ''} anew from its lock",
            command=REPAIR,
            proven_by="the lock names every file of it",
        )
    maker = _MAKERS.get(root.check)
    made = maker(group, scene, index) if maker is not None else None
    if made is not None:
        return made
    if root.finding.hint:
        return Fix(text=root.finding.hint)
    return Fix(text=f"install {scene.label(name)} anew") if name in scene.chosen else None


def _partner(group: Group, scene: Scene, index: Index) -> Fix | None:
    """A release that is built with this torch: for each package of the mismatch."""
    packages = group.root.finding.packages
    members = [each for each in packages if each != "torch"]
    torch = scene.true_version("torch")
    texts, specs, proofs = [], [], []
    for name in members:
        there = scene.wheels.get(name)
        tied = there is not None and any(_is_pin_on(line, "torch") for line in there.facts.requires_dist)
        offer = index.best(name, [name, f"torch=={_public(torch)}"]) if tied and torch else None
        if offer is not None and _public(offer.version) != _public(scene.true_version(name)):
            texts.append(f"use {name} {offer.version}, the release for torch {torch}")
            specs.append(f"{name}=={offer.version}")
            proofs.append(offer.proof)
    if len(specs) == len(members) and specs:
        return Fix(
            text="; ".join(texts),
            command=_install(scene, specs, "--no-deps"),
            proven_by="; ".join(dict.fromkeys(proofs)),
        )
    return Fix(text=group.root.finding.hint) if group.root.finding.hint else None


def _requirement(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The version that everybody who requires a package accepts."""
    packages = group.root.finding.packages
    wanted = packages[0] if packages[0] not in scene.wheels or len(packages) > 2 else packages[-1]
    asks = _asked_of(scene, wanted)
    requirers = [each for each in packages if each != wanted]
    if wanted not in scene.wheels:
        pins = _pins(scene, wanted)
        offer = index.best(wanted, [*asks, *pins] or [wanted])
        if offer is not None:
            return Fix(
                text=f"install {wanted} {offer.version}, which {joined(requirers[:3])} require{'s' if len(requirers) == 1 else ''}",
                command=_install(scene, [f"{wanted}=={offer.version}"]),
                proven_by=offer.proof,
            )
        stated = asks[0] if asks else wanted
        return Fix(
            text=f"install {wanted}, as `{stated}` of {requirers[0] if requirers else 'the run'} asks (no version was looked up)"
        )
    offer = index.best(wanted, asks) if asks else None
    if offer is not None and _public(offer.version) != _public(scene.true_version(wanted)):
        return Fix(
            text=f"use {wanted} {offer.version}, which all that require it accept",
            command=_install(scene, [f"{wanted}=={offer.version}"]),
            proven_by=offer.proof,
        )
    requirer = requirers[0] if requirers else ""
    there = scene.true_version(wanted)
    offer = index.best(requirer, [requirer, f"{wanted}=={_public(there)}"]) if requirer and there else None
    if offer is not None and _public(offer.version) != _public(scene.true_version(requirer)):
        return Fix(
            text=f"use {requirer} {offer.version}, which accepts {wanted} {there}",
            command=_install(scene, [f"{requirer}=={offer.version}"]),
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


def _missing_module(group: Group, scene: Scene, index: Index) -> Fix | None:
    name = group.root.package
    module = next(iter(sorted(group.root.modules)), "")
    if "Python" in group.root.finding.message and name not in group.root.finding.message.partition(":")[0]:
        return None
    if name in scene.wheels:
        return Fix(text=f"use releases of {joined(list(group.root.finding.packages[:2]))} that fit each other")
    if "built without" in group.root.finding.message or "do not have it" in group.root.finding.message:
        return Fix(text=f"use a Python that has `{module}`, or a release of the package that does without")
    offer = index.best(name, [name, *_pins(scene, name)])
    if offer is None:
        return Fix(text=f"install {name}, which publishes `{module}` (no version was looked up)")
    return Fix(
        text=f"install {name} {offer.version}, which publishes `{module}`",
        command=_install(scene, [f"{name}=={offer.version}"]),
        proven_by=offer.proof,
    )


def _again(group: Group, scene: Scene, index: Index) -> Fix | None:
    """The same version once more."""
    name = group.root.package
    there = scene.chosen.get(name)
    if there is None:
        return None
    version = there.version or there.folder_version
    if there.direct_url:
        return Fix(text=f"install {name} {version} anew from where it came: {there.direct_url}")
    offer = index.best(name, [f"{name}=={_public(version)}"]) if parsed_version(version) else None
    return Fix(
        text=f"install {name} {version} anew over what is there",
        command=_install(scene, [f"{name}=={offer.version if offer else version}"], "--reinstall", "--no-deps"),
        proven_by="the index has this version" if offer else "",
    )


def _edited(group: Group, scene: Scene, index: Index) -> Fix | None:
    again = _again(group, scene, index)
    if again is None:
        return None
    return Fix(
        text=f"look at the edit; to take it back, {again.text} (its base is {scene.label(group.root.package)})",
        command=again.command,
        proven_by=again.proven_by,
    )


def _as_shipped(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Of a file that is wrong in the wheel itself another release is wanted, else the same one anew."""
    there = scene.chosen.get(group.root.package)
    rows = [file for file in there.files if file.path in group.root.paths] if there else []
    if rows and all(file.recorded == file.sha256 for file in rows):
        links = [
            f"`ln -sf {shlex.quote(target)} {shlex.quote(f'{scene.observation.prefix}/{path}')}`"
            for path in sorted(group.root.paths)
            if re.fullmatch(r"[\w.+-]+\.so[.0-9]*", target := scene.observation.texts.get(path, "").strip())
        ]
        by_hand = f", or make the link by hand: {links[0]}" if links else ""
        return Fix(text=f"the wheel itself is wrong: use another build of {scene.label(group.root.package)}{by_hand}")
    return _again(group, scene, index)


def _mixed(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Of a package whose files and metadata are of two releases: the one that fits the others."""
    name = group.root.package
    asks = _asked_of(scene, name)
    inside = scene.true_version(name)
    there = scene.chosen[name].version
    fits = [version for version in (inside, there) if asks and all(_allows(ask, version) for ask in asks)]
    wanted = fits[0] if fits else there
    offer = index.best(name, [f"{name}=={_public(wanted)}"])
    reason = f", as {asks[0].removeprefix(name)} is required of it" if fits and asks else ""
    return Fix(
        text=f"install {name} {wanted} anew{reason}, so that files and metadata are of one release",
        command=_install(scene, [f"{name}=={offer.version if offer else _public(wanted)}"], "--reinstall"),
        proven_by="the index has this version, and the requirements hold with it" if offer and fits else "",
    )


def _one_of_two(group: Group, scene: Scene, index: Index) -> Fix | None:
    """Keep the one that others require."""
    names = group.root.finding.packages
    required = [name for name in names if _asked_of(scene, name)]
    kept = required[0] if len(required) == 1 else (names[-1] if not required else required[-1])
    others = [name for name in names if name != kept]
    version = scene.true_version(kept)
    offer = index.best(kept, [f"{kept}=={_public(version)}"]) if version else None
    python = _python(scene)
    remove = f"uv pip uninstall --python {python} {' '.join(map(shlex.quote, names))}"
    return Fix(
        text=f"keep {kept} and remove {joined(others)}: uninstall both and install {kept} {version} anew, since they share files",
        command=f"{remove} && {_install(scene, [f'{kept}=={version}'], '--no-deps')}",
        proven_by="the index has this version" if offer else "",
    )


def _two_versions(group: Group, scene: Scene, index: Index) -> Fix | None:
    name = group.root.package
    asks = _asked_of(scene, name)
    versions = [each.version for each in scene.by_name.get(name, ()) if each.version]
    fits = [version for version in versions if all(_allows(ask, version) for ask in asks)]
    wanted = fits[-1] if fits else scene.chosen[name].version
    offer = index.best(name, [f"{name}=={_public(wanted)}"]) if parsed_version(wanted) else None
    return Fix(
        text=f"remove both metadata folders of {name}, and install {wanted} anew",
        command=_install(scene, [f"{name}=={wanted}"], "--reinstall", "--no-deps"),
        proven_by="the index has this version" if offer else "",
    )


def _host_library(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    sonames = sorted(group.root.sonames)
    known = sorted({DEBIAN[soname] for soname in sonames if soname in DEBIAN})
    if not known:
        return Fix(text=f"install what brings {joined([f'`{each}`' for each in sonames[:3]])} on this machine")
    return Fix(
        text=f"install {joined(known)} on this machine (Debian and Ubuntu)",
        command=f"apt-get install {' '.join(known)}",
    )


def _linked(group: Group, scene: Scene, index: Index) -> Fix | None:
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
    offer = index.best(name, [name, *_pins(scene, name)])
    newest = f"; the newest that the index has for this machine is {offer.version}" if offer else ""
    return Fix(text=f"use a release of {name}{beside}{newest}")


def _other_build(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    spec = scene.closure.spec
    what = {
        "glibc-too-old": f"for glibc {spec.target.glibc} or older, or move to a newer system",
        "libstdcxx-too-old": "for an older libstdc++, or install a newer one on this machine (`libstdc++6`)",
        "gpu-code-missing": f"that has code for compute capability {joined(spec.cuda.compute if spec.cuda else ())}",
        "dead-extension": f"for Python {spec.python.version}",
        "requires-python": f"for Python {spec.python.exact or spec.python.version}, or make the venv with a Python that it accepts",
        "tag-mismatch": f"for Python {spec.python.version} on {spec.target.platform}",
        "undefined-symbol": f"for Python {spec.python.version} and the libraries that are there",
        "executable-stack": "that asks for no executable stack",
        "no-fitting-variant": "with a variant for this machine, or install the libraries that one of its variants needs",
    }[group.root.check]
    return Fix(text=f"use a release of {group.root.package} {what}")


def _lock_step(group: Group, scene: Scene, index: Index) -> Fix | None:
    names = group.root.finding.packages
    wanted = _public(scene.true_version(names[0]))
    others = [name for name in names[1:] if _public(scene.true_version(name)) != wanted]
    offers = [index.best(name, [f"{name}=={wanted}"]) for name in others]
    if others and all(offers):
        specs = [f"{name}=={wanted}" for name in others]
        return Fix(
            text=f"use {joined(others)} {wanted}, the version of {names[0]}",
            command=_install(scene, specs, "--no-deps"),
            proven_by="the index has them",
        )
    return Fix(text=f"bring {joined(list(names))} to one version: the newest that all of them have")


def _never_right(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    return Fix(
        text=f"nothing breaks by it; use a build of {group.root.package} whose RECORD is right, so that edits can be told"
    )


def _look(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    place = group.root.finding.evidence[0] if group.root.finding.evidence else group.root.finding.path
    return Fix(text=f"look at {place}: no file, version or requirement of the venv explains it") if place else None


def _reserved(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    return Fix(
        text=f"make the venv anew without {group.root.package}, whose wheel writes over what belongs to the venv"
    )


def _unset(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    found = re.match(r"([A-Z_]{4,}) ", group.root.finding.message)
    setting = next(
        (line.partition("=")[0] for line in group.root.finding.evidence if re.match(r"[A-Z_]{4,}=", line)), ""
    )
    variable = found[1] if found else setting
    if not variable:
        return Fix(text="see which variable or file puts the other folder first, and take it out")
    return Fix(text=f"unset {variable} for this process", command=f"env -u {variable} {_python(scene)} ...")


def _interpreter(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    if scene.is_locked:
        return Fix(text="make the environment anew from its lock, with a Python that is there", command=REPAIR)
    minor = scene.observation.python.minor
    return Fix(
        text=f"put Python {minor} back where it was, or make the venv anew with one that is there: `envspec adopt` writes down what is in it"
    )


def _moved(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    if scene.is_locked:
        return Fix(text="make the environment anew from its lock", command=REPAIR)
    return Fix(
        text="make the venv anew at this place and install the same packages (`envspec adopt` writes them down), or move it back; "
        "until then start programs as `bin/python -m NAME`"
    )


def _remove(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    path = group.root.finding.path
    return Fix(text=f"find out where `{path}` comes from; if nobody wants it, remove it")


def _rename(group: Group, scene: Scene, index: Index) -> Fix | None:
    if group.root.finding.message.startswith("PYTHONPATH"):
        return _unset(group, scene, index)
    return Fix(text=f"rename `{group.root.finding.path}`, or take its folder out of sys.path")


def _copied(group: Group, scene: Scene, index: Index) -> Fix | None:
    name = group.root.package
    version = scene.true_version(name)
    offer = index.best(name, [f"{name}=={_public(version)}" if version else name])
    if offer is None or not version:
        return Fix(
            text=f"install {name} {version}".rstrip()
            + " over the copy, so that its metadata and requirements are known"
        )
    return Fix(
        text=f"install {name} {version} over the copy, so that its metadata and requirements are known",
        command=_install(scene, [f"{name}=={offer.version}"]),
        proven_by="the index has this version",
    )


def _asked_of(scene: Scene, wanted: str) -> list[str]:
    """What the packages of the venv require of one, without markers and extras, each once, sorted."""
    found: set[str] = set()
    for wheel in scene.closure.wheels:
        for line in wheel.facts.requires_dist:
            try:
                requirement = Requirement(line)
                applies = requirement.marker is None or requirement.marker.evaluate(
                    {**scene.closure.markers, "extra": ""}
                )
            except (InvalidRequirement, ValueError, RecursionError):
                continue
            if normalise_name(requirement.name) == wanted and applies and requirement.url is None:
                found.add(f"{wanted}{requirement.specifier}")
    return sorted(found)


def _pins(scene: Scene, wanted: str) -> list[str]:
    """Torch as it is, where the package may need it: a version that would bring another one is no fix."""
    torch = scene.true_version("torch") if wanted != "torch" else ""
    return [f"torch=={_public(torch)}"] if parsed_version(torch) and wanted in _BUILT_ON_TORCH else []


_BUILT_ON_TORCH = frozenset(
    {
        "torchvision",
        "torchaudio",
        "torchcodec",
        "xformers",
        "flash-attn",
        "sgl-kernel",
        "sglang-kernel",
        "vllm",
        "torchao",
    }
)


def _is_pin_on(line: str, name: str) -> bool:
    try:
        requirement = Requirement(line)
    except (InvalidRequirement, RecursionError):
        return False
    return normalise_name(requirement.name) == name and any(
        each.operator in ("==", "===") for each in requirement.specifier
    )


def _allows(requirement: str, version: str) -> bool:
    try:
        return Requirement(requirement).specifier.contains(version, prereleases=True)
    except (InvalidRequirement, ValueError, RecursionError):
        return False


def _public(version: str) -> str:
    found = parsed_version(version)
    return found.public if found else version


def _install(scene: Scene, specs: Sequence[str], *options: str) -> str:
    return " ".join(["uv pip install --python", _python(scene), *options, *map(shlex.quote, specs)])


def _python(scene: Scene) -> str:
    return shlex.quote(f"{scene.observation.prefix.rstrip('/')}/bin/python")


_BY_REBUILDING = frozenset(
    {
        *(
            "cuda-major-mismatch",
            "dual-cuda-runtime",
            "torch-abi-mismatch",
            "requires-dist",
            "lost-package",
            "missing-file",
            "drift",
        ),
        *(
            "version-inside",
            "two-versions",
            "owned-twice",
            "not-a-library",
            "foreign-machine",
            "damaged-binary",
            "record-hash",
        ),
        *(
            "missing-library",
            "undefined-symbol",
            "lock-step",
            "metadata-version",
            "stray-code",
            "stray-module",
            "poisoned-file",
        ),
        *("edited-file", "reserved-path", "module-missing", "interpreter-problem"),
    }
)
"""Checks that find what a build from the lock makes good."""

_MAKERS: dict[str, Callable[[Group, Scene, Index], Fix | None]] = {
    "cuda-major-mismatch": _partner,
    "damaged-binary": _again,
    "dead-extension": _other_build,
    "dual-cuda-runtime": _partner,
    "edited-file": _edited,
    "foreign-machine": _as_shipped,
    "host-library": _host_library,
    "interpreter-gone": _interpreter,
    "interpreter-minor": _interpreter,
    "executable-stack": _other_build,
    "glibc-too-old": _other_build,
    "gpu-code-missing": _other_build,
    "library-path": _unset,
    "libstdcxx-too-old": _other_build,
    "lock-step": _lock_step,
    "missing-library": _linked,
    "no-fitting-variant": _other_build,
    "requires-python": _other_build,
    "reserved-path": _reserved,
    "run-failed": _look,
    "tag-mismatch": _other_build,
    "undefined-symbol": _other_build,
    "assembler-path": _unset,
    "cuda-home": _unset,
    "python-home": _unset,
    "lost-package": _again,
    "metadata-version": _again,
    "missing-file": _again,
    "module-missing": _missing_module,
    "moved-venv": _moved,
    "not-a-library": _as_shipped,
    "owned-twice": _one_of_two,
    "poisoned-file": _edited,
    "record-hash": _never_right,
    "requires-dist": _requirement,
    "shadowed-module": _rename,
    "startup-hook": _remove,
    "stray-code": _remove,
    "stray-module": _copied,
    "torch-abi-mismatch": _partner,
    "two-versions": _two_versions,
    "version-inside": _mixed,
}
