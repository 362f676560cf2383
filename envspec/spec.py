"""What a person wants: the spec, `ddtree.toml`. See `docs/spec.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

SPEC_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that is wanted, or an override of what other packages ask for."""

    name: str
    """Normalised (PEP 503)."""

    specifier: str
    """PEP 440, in canonical form: `==2.11.0`, `>=2,<3`; empty for any version."""

    extras: tuple[str, ...] = ()
    """Normalised, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSpec:
    """The Python of the environment."""

    version: str
    """The minor version: `3.12`."""

    exact: str = ""
    """A full version that every host must have: `3.12.3`; empty if any patch level will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """The machines that the environment is for."""

    platform: str
    """`linux-x86_64` or `linux-aarch64`."""

    glibc: str
    """Of the oldest host: `2.35`."""

    libraries: tuple[str, ...] = ()
    """Sonames that every host offers beyond manylinux, sorted: `libnuma.so.1`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSpec:
    """The CUDA line of the environment."""

    toolkit: str
    """`13.0`."""

    compute: tuple[str, ...]
    """Compute capabilities that must be covered, in the spec's order: `("9.0", "12.0")`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySpec:
    """A patch series on one package."""

    package: str
    """Normalised name."""

    series: str
    """Path of the series file, relative to the spec, with `/`; never absolute, never above the spec's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """An index beside the default one; a package comes from it only if it is named here."""

    name: str
    url: str
    """Without credentials: those belong to uv's environment variables, its configuration, or netrc."""

    packages: tuple[str, ...]
    """Normalised names, or patterns such as `nvidia-*`, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySpec:
    """What is proven before an environment goes live."""

    imports: tuple[str, ...] = ()
    """Modules that must import, in the spec's order."""

    kernels: tuple[str, ...] = ()
    """Probes that run on the GPU, in the spec's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """A finding that a person accepts, with the reason."""

    check: str
    package: str
    """Normalised name."""

    path: str = ""
    """Pattern (fnmatch) of the finding's path; empty if the whole package is meant."""

    owner: str = ""
    """For a collision: the normalised name of the package whose file stays."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A machine that gets the environment."""

    name: str
    ssh: str
    """A name of ssh_config."""

    compute: str = ""
    gpus: int = 0
    store: str = ""
    """Empty for the default store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A whole spec."""

    name: str
    snapshot: datetime | None
    """Nothing published later is considered; aware, in UTC. None if there is no limit."""

    python: PythonSpec
    target: TargetSpec
    cuda: CudaSpec | None
    packages: tuple[Requirement, ...]
    """Sorted by name, as are all tuples below."""

    overrides: tuple[Requirement, ...] = ()
    overlays: tuple[OverlaySpec, ...] = ()
    indexes: tuple[IndexSpec, ...] = ()
    verify: VerifySpec = VerifySpec()
    waivers: tuple[Waiver, ...] = ()
    """In the spec's order."""

    hosts: tuple[HostSpec, ...] = ()
