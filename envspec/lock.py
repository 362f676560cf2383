"""What was decided: the lock, `ddtree.lock`. See `docs/lock-format.md`."""

from __future__ import annotations

from dataclasses import dataclass

from envspec.canonical import record_sha256, short_id
from envspec.spec import Waiver  # noqa: TC001 - part of the public value

LOCK_FORMAT = 1
ENV_RECIPE = "env 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedHook:
    """A start-up hook that the environment has; see `envspec.facts.StartupHook`."""

    path: str
    sha256: str
    code: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedNeeds:
    """What the binaries of an environment need of a host, as it was measured; each is empty if they need nothing of the kind."""

    glibc: str = ""
    """`2.34`."""

    libstdcxx: str = ""
    """The highest version of `GLIBCXX_` symbols: `3.4.22`."""

    cxxabi: str = ""
    """The highest version of `CXXABI_` symbols: `1.3.11`."""

    libraries: tuple[str, ...] = ()
    """Sonames beyond glibc, GCC and the driver, sorted: `libnuma.so.1`."""

    driver: str = ""
    """The least version of the NVIDIA driver: `580`."""

    driver_api: str = ""
    """CUDA version of the newest function of the driver's library that a binary binds: `12.4`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One wheel of the environment, as an index offers it (before any overlay)."""

    name: str
    """Normalised (PEP 503)."""

    version: str
    """Verbatim from METADATA."""

    index: str
    """Name of the index in the spec, or `default`. Never a URL."""

    file: str
    """Name of the wheel file."""

    size: int
    sha256: str
    tree: str
    """Tree digest of the wheel as it is installed; of the base wheel where there is an overlay."""

    requires: tuple[str, ...] = ()
    """Names of the locked packages that it needs on this target, sorted."""

    requires_python: str = ""
    cuda: str = ""
    """The CUDA that its binaries were built for, as precisely as they say: `13.0`, `12`; empty if they say nothing."""

    gpu_code: tuple[str, ...] = ()
    """Targets for which it carries GPU code, sorted: `compute_90`, `sm_90a`."""

    hooks: tuple[LockedHook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPatch:
    """One patch of a series."""

    name: str
    """File name beside the series file."""

    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedFile:
    """One file that an overlay changes."""

    path: str
    """Member of the wheel."""

    before: str
    """sha256 in the base wheel; empty if the overlay adds the file."""

    after: str
    """sha256 in the patched wheel; empty if the overlay removes the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedOverlay:
    """A patch series on one package and the patched wheel that comes of it."""

    package: str
    series: str
    """Path of the series file, relative to the spec."""

    base_sha256: str
    patches: tuple[LockedPatch, ...]
    """In the order of the series."""

    files: tuple[PatchedFile, ...]
    """Sorted by path."""

    version: str
    """Of the patched wheel, with the local part: `0.5.11+ddtree.1a2b3c4d`."""

    file: str
    size: int
    sha256: str
    tree: str
    """Tree digest of the patched wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedFinding:
    """A finding that was let through, so that a review sees it."""

    check: str
    severity: str
    subject: str
    message: str
    waived: str = ""
    """The waiver's reason; empty if the finding needs no waiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A whole lock."""

    spec_sha256: str
    """Of the canonical form of the spec (`envspec.spec.spec_digest`)."""

    env: str
    """The env id."""

    site: str
    """The site digest."""

    name: str
    snapshot: str
    """RFC 3339 in UTC; empty if there is none."""

    python: str
    """The minor version."""

    python_exact: str
    """Empty if any patch level will do."""

    platform: str
    glibc: str
    """Of the oldest host, as the spec declares it."""

    libraries: tuple[str, ...]
    cuda_toolkit: str
    """Empty if the spec has no [cuda]."""

    cuda_compute: tuple[str, ...]
    needs: LockedNeeds = LockedNeeds()
    packages: tuple[LockedPackage, ...]
    """Sorted by name."""

    overlays: tuple[LockedOverlay, ...] = ()
    """Sorted by package."""

    overrides: tuple[str, ...] = ()
    """As PEP 508 requirements, sorted."""

    waivers: tuple[Waiver, ...] = ()
    """In the spec's order."""

    findings: tuple[LockedFinding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One wheel whose tree is part of the environment: the patched one where there is an overlay."""

    package: str
    file: str
    size: int
    sha256: str
    tree: str


def parts(lock: Lock) -> tuple[Part, ...]:
    """The wheels that make up the environment, sorted by package."""
    patched = {overlay.package: overlay for overlay in lock.overlays}
    return tuple(
        Part(package=package.name, file=source.file, size=source.size, sha256=source.sha256, tree=source.tree)
        for package in lock.packages
        for source in (patched.get(package.name, package),)
    )


def owners(waivers: tuple[Waiver, ...]) -> dict[str, str]:
    """Pattern of a colliding path -> package whose file stays, from the waivers that name an owner."""
    return {waiver.path: waiver.owner for waiver in waivers if waiver.owner}


def compute_env_id(lock: Lock) -> str:
    """The env id: digest of every input that decides the tree, labelled, and of nothing else.

    These are the Python minor version (it is in the paths), the sha256 of every wheel, the paths that two wheels contend for with their owners,
    and the recipe. The store path is named by it. `docs/lock-format.md` has test vectors.
    """
    fields = [("python", lock.python), ("platform", lock.platform)]
    fields += [("wheel", f"{part.package} {part.sha256}") for part in parts(lock)]
    fields += [("owner", f"{owner} {pattern}") for pattern, owner in sorted(owners(lock.waivers).items())]
    return short_id(record_sha256(ENV_RECIPE, fields))
