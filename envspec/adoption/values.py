"""What is adopted, and from what: published wheels as their RECORDs have them, and what became of every path of a venv.

Names, versions and paths come from a venv, a host or an index: nothing is known about them but that they are text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from envspec.observed import ObservedDistribution

Kind = Literal["same", "made", "patched", "deleted", "foreign", "unexplained", "restored"]
"""What becomes of a path of the venv in an environment that is built from the spec.

- `same`: a published wheel has these bytes at this path; the build puts them there.
- `patched`: the patch series makes these bytes; `deleted`: it removes the file, which is not in the venv either.
- `made`: installers and tools write it for themselves (RECORD, console scripts, the metadata of a patched wheel); a build writes its own.
- `foreign`: a published wheel has these bytes, but not the one that is locked; the build puts others there.
- `unexplained`: nobody publishes these bytes; the build has them not.
- `restored`: it is not in the venv, but in the wheel; the build has it.
"""

EXPLAINED: frozenset[Kind] = frozenset({"same", "made", "patched", "deleted"})


class PublishedFile(NamedTuple):
    """One file of a published wheel, as the wheel's own RECORD has it."""

    path: str
    """In an environment: `lib/python3.12/site-packages/torch/version.py`."""

    member: str
    """In the wheel: `torch/version.py`."""

    sha256: str
    """In hexadecimal."""

    size: int
    executable: bool
    script: bool
    """Whether an installer rewrites its first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWheel:
    """A wheel that an index, or a folder of wheels, offers."""

    name: str
    """Normalised (PEP 503)."""

    version: str
    """By which the index lists it, local part included."""

    index: str
    """What the spec calls the index; `default` for uv's own; empty for a wheel of a folder."""

    file: str
    sha256: str
    size: int
    dist_info: str
    """Its metadata folder, relative to an environment's root."""

    files: tuple[PublishedFile, ...]
    """Sorted by path; without what installers write anew."""

    scripts: tuple[tuple[str, str], ...] = ()
    """Console scripts that an installer makes for it: `bin/NAME`, and the sha256 of what a build writes there."""

    requires_python: str = ""
    requires_dist: tuple[str, ...] = ()
    provides_extra: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """It for a person: `torchvision 0.24.1`."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which published wheel a distribution of the venv is."""

    distribution: ObservedDistribution
    wheel: PublishedWheel | None
    """None if no published wheel explains it."""

    same_files: int = 0
    same_bytes: int = 0
    of_files: int = 0
    """Files that the wheel has."""

    of_bytes: int = 0
    reason: str = ""
    """Why there is no wheel; or, if there is one, what is odd about it: `the dist-info says 0.26.0`."""

    advice: str = ""
    """What to do where there is no wheel."""


class Fate(NamedTuple):
    """What becomes of one path."""

    path: str
    """Relative to the venv's prefix."""

    kind: Kind
    size: int
    """In the venv; 0 of what is not there."""

    package: str
    """Normalised name of the distribution that it belongs to; empty if to none."""

    reason: str = ""
    """One line: for everything but `same`."""

    advice: str = ""
    """What to do, of what is not explained."""

    wheel: str = ""
    """File name of the wheel that has these bytes, of `foreign`; of a patch whose outcome is another wheel's file too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A file that a patch may bring about: base and venv differ there."""

    package: str
    path: str
    """In the venv."""

    member: str
    """In the base wheel."""

    base_sha256: str
    """Empty if the base has no such file."""

    base_size: int
    sha256: str
    """In the venv; empty if it is not there."""

    size: int
    executable: bool
    """Whether the file that a patch adds may be executed; of a changed one, as the base has it."""

    @property
    def deed(self) -> str:
        """`added`, `changed` or `removed`."""
        return "added" if not self.base_sha256 else "changed" if self.sha256 else "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The patch series of one package."""

    package: str
    version: str
    """Of the base wheel."""

    base_file: str
    base_sha256: str
    patch_name: str
    patch: bytes
    files: tuple[tuple[str, str], ...]
    """Member and what was done with it: `added`, `changed`, `removed`; sorted."""

    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A package of the spec."""

    name: str
    version: str
    wanted: bool
    """Whether somebody asked for it, or nobody needs it; else others need it."""

    index: str = ""
    """What the spec calls its index; empty for the default one."""

    stands_in: bool = False
    """Whether the venv has other bytes under this name and version, which nobody publishes; others need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A requirement that the venv does not keep."""

    requester: str
    """`torchvision 0.24.1`."""

    line: str
    """As METADATA has it."""

    name: str
    """Of the package that is asked for, normalised."""

    version: str
    """That the spec pins; empty if it pins none."""

    there: str = ""
    """That the venv has, where the spec pins none; empty if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """A path that several of the wheels have with different contents."""

    path: str
    """Relative to site-packages, or to the prefix where it lies outside."""

    owner: str
    """The package whose bytes the venv has there."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A finding by which `envspec lock` will refuse the spec."""

    check: str
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """All that adopting a venv gives, before it is written."""

    name: str
    prefix: str
    host: str
    """Name of the host; empty for this machine."""

    attributions: tuple[Attribution, ...]
    fates: tuple[Fate, ...]
    """Sorted by path."""

    overlays: tuple[Overlay, ...]
    pins: tuple[Pin, ...]
    conflicts: tuple[Conflict, ...]
    collisions: tuple[Collision, ...]
    refusals: tuple[Refusal, ...] = ()
    local_wheels: tuple[str, ...] = ()
    """File names of wheels that no index has, and that the written folder carries."""

    notes: tuple[str, ...] = ()
    """What could not be looked at, or was assumed."""

    spec_text: str = ""
