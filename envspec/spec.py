"""What a person wants: the spec, `ddtree.toml`. See `docs/spec.md`.

`envspec.spec_toml` reads the text of a spec; here are only the values, and the digest of what a lock is decided from.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

SPEC_FORMAT = 1
SPEC_RECIPE = "spec 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that is wanted, or an override of what other packages ask for."""

    name: str
    """Normalised (PEP 503)."""

    specifier: str
    """PEP 440, in canonical form, clauses sorted as text: `==2.11.0`, `<3,>=2`; empty for any version."""

    extras: tuple[str, ...] = ()
    """Normalised, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSpec:
    """The Python of the environment."""

    version: str
    """The minor version: `3.12`."""

    exact: str = ""
    """A full version that every host must have: `3.12.3`; empty if any patch level will do."""

    archive: str = ""
    """Path of an archive with the Python for hosts that have none, relative to the spec; empty if there is none."""

    archive_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """The machines that the environment is for."""

    platform: str
    """`linux-x86_64` or `linux-aarch64`."""

    glibc: str
    """Of the oldest host: `2.35`."""

    libraries: tuple[str, ...] = ()
    """Sonames that every host offers beyond manylinux, sorted: `libnuma.so.1`."""

    jit: tuple[str, ...] = ()
    """Compilers that run on the hosts, sorted, of those in `envspec.jit`: `triton`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSpec:
    """The CUDA line of the environment."""

    toolkit: str
    """`13.0`."""

    compute: tuple[str, ...]
    """Compute capabilities that must be covered, in the spec's order: `("9.0", "12.0")`."""

    require_gpu_code: tuple[str, ...] = ()
    """Normalised names of the packages that must have code for each of them, sorted; of others a lack is a warning."""


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
class PolicyRule:
    """How severe the findings of a check are."""

    check: str
    severity: str
    """`error`: its warnings are errors too; `warning`: its errors are warnings; `info`: its warnings are notes, its errors stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A machine that gets the environment."""

    name: str
    ssh: str
    """A name of ssh_config."""

    compute: str = ""
    gpus: int = 0
    driver: str = ""
    """Of the NVIDIA driver that it has at least: `580.65.06`; empty if it is not stated."""

    store: str = ""
    """Empty for the default store."""

    python: str = ""
    """Path of the interpreter to use; empty for whichever is found."""

    reuse: tuple[str, ...] = ()
    """Paths of venvs on the host whose distributions are taken where they are the locked ones, in the spec's order."""

    fetch: str = ""
    """`host` if it fetches wheels from the index itself; empty if this machine sends them."""

    groups: tuple[str, ...] = ()
    """Names by which several hosts can be meant, sorted."""

    user: str = ""
    """Who logs in there; only inventories say it, else ssh_config does."""

    port: int = 0
    """Of sshd there; as `user`."""

    key: str = ""
    """File of the SSH key; as `user`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """A place that has wheels by their sha256 and is asked before the index."""

    name: str
    url: str = ""
    """Without credentials: `https://…`, `oci://…`, `s3://…`, `gs://…`, `az://…`, `ssh://…`; empty if it is a host of the spec."""

    host: str = ""
    """Name of a host of the spec whose store serves; empty if there is a URL."""

    endpoint: str = ""
    """Of a bucket: URL of a server that speaks S3 and is not Amazon's; empty for the usual one."""

    region: str = ""
    """Of a bucket; empty for what the environment says."""

    plain_http: bool = False
    """Whether a registry is spoken to without TLS; one on a loopback address always is."""

    to_hosts: bool = True
    """Whether hosts may be told of it, and fetch from it themselves."""

    @property
    def kind(self) -> str:
        """`http`, `oci`, `bucket` or `ssh`."""
        scheme = self.url.partition(":")[0]
        if not scheme or scheme == "ssh":
            return "ssh"
        return {"http": "http", "https": "http", "oci": "oci"}.get(scheme, "bucket")


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

    policy: tuple[PolicyRule, ...] = ()
    """Sorted by check."""

    hosts: tuple[HostSpec, ...] = ()
    caches: tuple[CacheSpec, ...] = ()
    """In the spec's order, which is the order in which they are asked."""


def snapshot_text(snapshot: datetime | None) -> str:
    """A snapshot in RFC 3339 and UTC, as locks have it; empty if there is none.

    Example:
        >>> snapshot_text(datetime(2026, 5, 20, tzinfo=timezone.utc))
        '2026-05-20T00:00:00Z'
    """
    if snapshot is None:
        return ""
    return snapshot.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def spec_digest(spec: Spec) -> str:
    """The sha256 of what a lock is decided from, in 64 hex digits: a lock is stale when it has another one.

    It does not depend on comments, the order of keys or the spelling of names, since `Spec` does not. A field with no value (None, an empty
    string or tuple, a zero) is not encoded, so that an optional field that a later version adds moves no digest. Left out is what no lock
    depends on: hosts, a Python that is sent to them, what they have to compile with, what is verified before activation, caches, and the URL of
    an index, since a lock is the same whichever mirror served it.
    """
    from envspec.canonical import canonical_json, record_sha256  # noqa: PLC0415 - who only reads a spec need not load hashing

    decisive = dataclasses.replace(
        spec,
        hosts=(),
        caches=(),
        python=dataclasses.replace(spec.python, archive="", archive_sha256=""),
        target=dataclasses.replace(spec.target, jit=()),
        verify=VerifySpec(),
        indexes=tuple(dataclasses.replace(index, url="") for index in spec.indexes),
    )
    return record_sha256(SPEC_RECIPE, [("spec", canonical_json(_encoded(decisive)).decode())])


def _encoded(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """A value of a spec as JSON, without the fields that have no value."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: _encoded(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {name: encoded for name, encoded in fields.items() if encoded not in (None, "", [], {}, 0)}
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    return snapshot_text(value) if isinstance(value, datetime) else value
