"""A venv -> what an environment of envspec explains of it: asked, read, attributed, settled, proven.

Nothing of the venv runs, and nothing is written here; `builder.adopted_folder` writes what comes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from builder.published import Published
from builder.uv import find_uv
from builder.uv_compile import DEFAULT_INDEX
from builder.venv_files import read_contents
from envspec.adoption.attribution import attribute
from envspec.adoption.disk import Disk
from envspec.adoption.indexing import INDEX_NAME
from envspec.adoption.origins import Origins
from envspec.adoption.predicting import predict
from envspec.adoption.questions import is_local_install, stray_projects, versions_of
from envspec.adoption.requirements import find_needs, make_pins, target_markers
from envspec.adoption.settling import Contents, packages_to_search, settle, strays_of, wanted_contents
from envspec.adoption.sorting import MOST_TEXT_BYTES, sort_paths
from envspec.adoption.spec_text import AdoptedHost, SpecParts, is_pinnable, spec_text
from envspec.adoption.target import target_of
from envspec.adoption.values import Adoption, Attribution, Refusal
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.observed import ObservedDistribution
from envspec.spec import IndexSpec
from envspec.spec_toml import parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.agent.store import Store
    from builder.progress import Reporter
    from builder.published import Offer
    from builder.venv_files import ReadFiles
    from envspec.adoption.requirements import Needs
    from envspec.adoption.sorting import Sorted
    from envspec.adoption.target import AdoptedTarget
    from envspec.adoption.values import Fate, Overlay, PublishedWheel
    from envspec.observed import Observation

NEAR_VERSIONS = 6
"""Versions on either side of the stated one that are looked into, where a package has files that nothing explains."""

NEAR_VERSIONS_OF_EDITS = 2
"""The same where a package has edits that patches carry: what they were copied from is worth a note."""

MOST_SEARCHED = 40
"""Packages whose other versions are looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRequest:
    """What is to be adopted, and with what."""

    name: str
    """Of the spec."""

    host: str
    """Name of the host; empty for this machine."""

    folder: Path
    """That is to be written; absolute."""

    store: Store
    environ: Mapping[str, str]
    indexes: Mapping[str, str]
    """Name -> URL of indexes that are asked beside the default one."""

    wheelhouses: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What is to be written."""

    adoption: Adoption
    wheels: tuple[tuple[PublishedWheel, Path], ...]
    """Wheels that no index has, and where they lie."""


def adopt(
    request: AdoptRequest,
    observation: Observation,
    read: ReadFiles,
    reporter: Reporter,
) -> Adopted:
    """Find out what an environment would explain of a venv.

    Args:
        request: What is to be adopted.
        observation: Of the venv.
        read: Reads files of it.
        reporter: Where progress goes.

    Raises:
        EnvspecError: Nothing of it can be adopted, or an index cannot be asked.
    """
    request.store.ensure()
    published = Published(
        target_of(observation),
        uv=find_uv(request.environ),
        store=request.store,
        environ=request.environ,
        indexes=request.indexes,
        wheelhouses=(*request.wheelhouses, *_direct_wheels(observation, request.host)),
        reporter=reporter,
    )
    with published:
        return _Adopter(request, observation, read, reporter, published).adopt()


class _Adopter:
    def __init__(
        self,
        request: AdoptRequest,
        observation: Observation,
        read: ReadFiles,
        reporter: Reporter,
        published: Published,
    ) -> None:
        self._request = request
        self._observation = observation
        self._read = read
        self._reporter = reporter
        self._published = published
        self._target = published.target
        self._disk = Disk(observation)
        self._wheels: dict[tuple[str, str], PublishedWheel] = {}
        """All that were looked into, by index and file."""

        self._offers: dict[tuple[str, str], tuple[Offer, ...]] = {}
        self._contents: dict[str, bytes] = {}
        self._unread: dict[str, str] = {}
        self._base: dict[tuple[str, str], bytes] = {}
        """sha256 of a wheel and member -> content."""

    def adopt(self) -> Adopted:
        """Do all of it."""
        self._look_into(
            (each.name, version)
            for each in self._observation.distributions
            if not is_local_install(each)
            for version in versions_of(each)
        )
        pseudo: tuple[ObservedDistribution, ...] = ()
        attributions, fates, overlays, found = self._settled(pseudo)
        pseudo = self._search(attributions, fates)
        attributions, fates, overlays, found = self._settled(pseudo)
        wheels = {each.wheel.name: each.wheel for each in attributions if each.wheel is not None}
        wheels = {name: wheel for name, wheel in wheels.items() if is_pinnable(name, wheel.version)}
        if not wheels:
            raise EnvspecError(
                f"no package of `{self._observation.prefix}` is a published one",
                hint=self._why_none(),
                exit_code=FOUND_WRONG,
            )
        local = {name: wheel for name, wheel in wheels.items() if not wheel.index or self._is_passed_over(wheel)}
        wheels |= {name: replace(wheel, index=INDEX_NAME) for name, wheel in local.items()}
        return self._put_together(attributions, fates, overlays, found, wheels, local)

    def _why_none(self) -> str:
        links = sum(file.kind == "link" for file in self._disk.files.values())
        if 2 * links > len(self._disk.files):
            return (
                f"{links} of its {len(self._disk.files)} files are symbolic links, as uv makes them with `--link-mode symlink`, and may"
                " change at any time: install it again with `--link-mode copy`, and adopt that"
            )
        return "are the indexes those that it was made from? `--index NAME=URL` and `--wheelhouse FOLDER` name others"

    def _put_together(
        self,
        attributions: tuple[Attribution, ...],
        fates: tuple[Fate, ...],
        overlays: tuple[Overlay, ...],
        found: Sorted,
        wheels: Mapping[str, PublishedWheel],
        local: Mapping[str, PublishedWheel],
    ) -> Adopted:
        observation, request = self._observation, self._request
        parts = self._spec_parts(attributions, overlays, found, wheels)
        self._reporter.note("judging what was found as the lock will")
        spec = parse_spec(spec_text(parts), input_name=f"{request.name}.toml")
        prediction = predict(
            spec,
            observation,
            attributions,
            wheels,
            fates,
            {
                name: reason
                for (name, version), reason in self._published.yanked.items()
                if _is(wheels.get(name), version)
            },
        )
        text = spec_text(replace(parts, libraries=prediction.libraries))
        adoption = Adoption(
            name=request.name,
            prefix=observation.prefix,
            host=request.host,
            attributions=attributions,
            fates=fates,
            overlays=overlays,
            pins=parts.pins,
            conflicts=parts.needs.conflicts,
            collisions=parts.collisions,
            refusals=(*self._unresolvable(parts.needs), *prediction.refusals),
            local_wheels=tuple(sorted(wheel.file for wheel in local.values())),
            notes=(
                *self._target.notes,
                *_lacking(prediction.libraries, observation),
                *observation.notes,
                *self._published.problems,
                *_outside(observation),
            ),
            spec_text=text,
        )
        return Adopted(
            adoption=adoption,
            wheels=tuple((wheel, self._published.bring(wheel)) for wheel in local.values()),
        )

    def _spec_parts(
        self,
        attributions: tuple[Attribution, ...],
        overlays: tuple[Overlay, ...],
        found: Sorted,
        wheels: Mapping[str, PublishedWheel],
    ) -> SpecParts:
        """What the spec says, but for the libraries of the host, which only the checks tell."""
        observation, request, target = self._observation, self._request, self._target
        others = {each.name: each.version for each in observation.distributions if each.name not in wheels}
        needs = find_needs(wheels, others, target_markers(target.python_exact or target.python, target.platform))
        stand_ins = {
            name: version
            for name, version in others.items()
            if (name, version) in self._offers and self._offers[name, version][0].index == DEFAULT_INDEX
        }
        pins = make_pins(attributions, wheels, needs, stand_ins)
        urls = {**request.indexes, INDEX_NAME: (request.folder / "index").as_uri()}
        return SpecParts(
            name=request.name,
            target=target,
            libraries=(),
            pins=pins,
            needs=needs,
            overlays=overlays,
            indexes=tuple(
                IndexSpec(name=name, url=urls[name], packages=tuple(pin.name for pin in pins if pin.index == name))
                for name in sorted({pin.index for pin in pins if pin.index})
            ),
            collisions=tuple(found.collisions),
            host=_host_of(request.host, observation, target),
        )

    def _unresolvable(self, needs: Needs) -> list[Refusal]:
        """What others need and the set has not, and of which no index has a wheel either: nothing can be locked then."""
        refusals = []
        for name in sorted({conflict.name for conflict in needs.conflicts if not conflict.version}):
            if any(pin[0] == name for pin in self._offers) or self._published.newest(name):
                continue
            asked = next(conflict for conflict in needs.conflicts if conflict.name == name)
            refusals.append(
                Refusal(
                    check="sdist-only",
                    message=f"{asked.requester} asks for `{asked.line}`, and the index has no wheel of {name} for this target",
                    fix="build a wheel of it, and give its folder with `--wheelhouse`",
                )
            )
        return refusals

    def _is_passed_over(self, wheel: PublishedWheel) -> bool:
        """Whether a lock would take another wheel of the same version from the same index."""
        return any(
            self._published.preferred(offers)[:1] != [wheel.file]
            for offered in self._offers.values()
            if wheel.file in {offer.file for offer in offered}
            for offers in ([offer for offer in offered if offer.index == wheel.index],)
        )

    def _look_into(self, pins: Iterable[tuple[str, str]]) -> None:
        """Ask for versions, and load their wheels."""
        new = {pin for pin in pins if pin not in self._offers}
        if not new:
            return
        offers = self._published.offers(new)
        self._offers |= offers
        for wheel in self._published.load(offer for each in offers.values() for offer in each):
            self._wheels[wheel.index, wheel.file] = wheel

    def _settled(
        self, pseudo: Sequence[ObservedDistribution]
    ) -> tuple[tuple[Attribution, ...], tuple[Fate, ...], tuple[Overlay, ...], Sorted]:
        """Attribute and settle with all that is known now."""
        attributions = self._attributions(pseudo)
        found = sort_paths(self._disk, attributions)
        wheels = {each.wheel.name: each.wheel for each in attributions if each.wheel is not None}
        of_venv, of_base = wanted_contents(found)
        wanted = [each for each in of_venv if each[0] not in self._contents and each[0] not in self._unread]
        if wanted:
            with self._reporter.stage("reading edited files", total=len(wanted), unit="files") as advance:
                contents, unread = read_contents(self._observation.prefix, wanted, self._read)
                self._contents |= contents
                self._unread |= unread
                advance(len(wanted))
        members: dict[str, list[str]] = {}
        for package, member in of_base:
            if (wheels[package].sha256, member) not in self._base:
                members.setdefault(package, []).append(member)
        with self._reporter.stage("reading published files", total=len(members), unit="wheels") as advance:
            for package, names in sorted(members.items()):
                wheel = wheels[package]
                for member, content in self._published.read_members(wheel, names, MOST_TEXT_BYTES).items():
                    self._base[wheel.sha256, member] = content
                advance(1)
        contents_of = Contents(
            venv=self._contents,
            base={
                (name, member): content
                for name, wheel in wheels.items()
                for (sha256, member), content in self._base.items()
                if sha256 == wheel.sha256
            },
            unread=self._unread,
        )
        fates, overlays = settle(found, self._disk, contents_of, wheels, self._origins(wheels))
        return attributions, fates, overlays, found

    def _origins(self, wheels: Mapping[str, PublishedWheel]) -> Origins:
        return Origins(self._wheels.values(), {name: wheel.version for name, wheel in wheels.items()})

    def _attributions(self, pseudo: Sequence[ObservedDistribution]) -> tuple[Attribution, ...]:
        """The wheel of each distribution; of two of one name only the better explained has one."""
        by_name: dict[str, list[PublishedWheel]] = {}
        for wheel in self._wheels.values():
            by_name.setdefault(wheel.name, []).append(wheel)
        found: list[Attribution] = []
        for distribution in (*self._observation.distributions, *pseudo):
            candidates = by_name.get(distribution.name, ())
            if is_local_install(distribution):
                found.append(
                    Attribution(
                        distribution=distribution,
                        wheel=None,
                        reason=f"an editable install of `{_shown_place(distribution.direct_url.removeprefix('editable '))}`",
                        advice="build a wheel of it, and give its folder with `--wheelhouse`",
                    )
                )
                continue
            preferred = self._preferred(distribution.name)
            each = attribute(distribution, candidates, self._disk, preferred=preferred)
            found.append(each if each.wheel is not None else self._without_wheel(each))
        best: dict[str, Attribution] = {}
        for each in found:
            name = each.distribution.name
            if each.wheel is not None and (name not in best or each.same_files > best[name].same_files):
                best[name] = each
        nameless = {each.name for each in pseudo}
        return tuple(
            _without_metadata(each)
            if each.distribution.name in nameless
            else each
            if each.wheel is None or each is best[each.distribution.name]
            else replace(
                each,
                wheel=None,
                reason=f"a second dist-info of {each.distribution.name}; the files are those of the other one",
                advice="remove the folder",
            )
            for each in found
        )

    def _preferred(self, name: str) -> list[str]:
        return [
            file
            for pin, offers in sorted(self._offers.items())
            if pin[0] == name
            for file in self._published.preferred(offers)
        ]

    def _without_wheel(self, each: Attribution) -> Attribution:
        """Why a distribution has no published wheel, and what to do."""
        distribution = each.distribution
        stated = distribution.version or distribution.folder_version
        advice = "build a wheel of it, and give its folder with `--wheelhouse`"
        reason = each.reason
        if not any(pin[0] == distribution.name for pin in self._offers):
            reason = f"no index has a wheel of {distribution.name} {stated} for this target"
        if distribution.direct_url:
            reason = f"installed from `{_shown_place(distribution.direct_url)}`; {reason}"
        return replace(each, reason=reason, advice=advice)

    def _search(self, attributions: Sequence[Attribution], fates: Sequence[Fate]) -> tuple[ObservedDistribution, ...]:
        """Look into other versions of packages with paths that nothing explains, and into projects that strays may be of.

        Returns:
            Distributions without metadata: strays whose project is known.
        """
        unexplained = packages_to_search(fates)
        edited = sorted({fate.package for fate in fates if fate.kind == "patched"} - set(unexplained))
        steps = [(name, NEAR_VERSIONS) for name in unexplained] + [(name, NEAR_VERSIONS_OF_EDITS) for name in edited]
        by_name = {each.distribution.name: each for each in attributions}
        pins: set[tuple[str, str]] = set()
        with self._reporter.stage(
            "searching other versions", total=len(steps[:MOST_SEARCHED]), unit="packages"
        ) as advance:
            for name, most in steps[:MOST_SEARCHED]:
                each = by_name.get(name)
                if each is not None and not is_local_install(each.distribution):
                    version = each.wheel.version if each.wheel else each.distribution.version
                    index = each.wheel.index if each.wheel else DEFAULT_INDEX
                    for newer in (False, True):
                        near = self._published.next_versions(name, version, index, newer=newer, most=most)
                        pins |= {(name, other) for other in near}
                advance(1)
        strays = stray_projects(self._observation, strays_of(fates))
        for name, versions in strays.items():
            newest = self._published.newest(name)
            if newest:
                near = self._published.next_versions(name, newest, DEFAULT_INDEX, newer=False, most=NEAR_VERSIONS)
                pins |= {(name, version) for version in (*versions, newest, *near)}
        self._look_into(pins)
        return tuple(self._pseudo(name) for name in strays if any(each.name == name for each in self._wheels.values()))

    def _pseudo(self, name: str) -> ObservedDistribution:
        """Strays as the distribution that they may be: one without metadata."""
        return ObservedDistribution(name=name, version="", folder=f"{name} without metadata", folder_version="")


def _host_of(host: str, observation: Observation, target: AdoptedTarget) -> AdoptedHost | None:
    """The host that has the venv, as the spec names it; None for this machine."""
    if not host:
        return None
    gpus = [gpu for gpu in observation.host.get("gpus") or () if isinstance(gpu, dict)]
    return AdoptedHost(
        name=host,
        compute=target.compute[0] if gpus and len(target.compute) == 1 else "",
        gpus=len(gpus) if target.cuda_toolkit else 0,
        venv=observation.prefix,
    )


def _is(wheel: PublishedWheel | None, version: str) -> bool:
    return wheel is not None and wheel.version == version


def _outside(observation: Observation) -> list[str]:
    """What a process in the venv imports from elsewhere, and that is not adopted."""
    notes = []
    if observation.python.system_site_packages:
        notes.append(
            "the venv sees the packages of the system too (`include-system-site-packages`): they are not adopted"
        )
    notes += [
        f"`{entry.path}` is on Python's path by `{entry.source}`: what lies there is not adopted"
        for entry in observation.path
        if entry.exists and not entry.inside and entry.source not in ("system", "standard library", "venv")
    ]
    return notes


def _lacking(libraries: Iterable[str], observation: Observation) -> list[str]:
    """What is named in [target] libraries, and that the machine does not have."""
    return [
        f"`{soname}` is in [target] libraries, since binaries need it, but the machine of the venv does not have it: install it there"
        for soname in libraries
        if observation.libraries and soname not in observation.libraries
    ]


def _without_metadata(each: Attribution) -> Attribution:
    return replace(each, reason="copied here without its metadata") if each.wheel is not None else each


def _direct_wheels(observation: Observation, host: str) -> list[Path]:
    """Wheel files of this machine that distributions say they were installed from."""
    found = []
    for distribution in observation.distributions:
        parts = urlsplit(distribution.direct_url)
        if not host and parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.endswith(".whl"):
            path = Path(unquote(parts.path))
            if path.is_file() and not path.is_symlink():
                found.append(path)
    return found


def _shown_place(direct_url: str) -> str:
    """Where a distribution came from, without what may be a secret: host and query go."""
    parts = urlsplit(direct_url)
    return direct_url if parts.scheme == "file" and not parts.query else f"{parts.scheme or 'a'} URL"
