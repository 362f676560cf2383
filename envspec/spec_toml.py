"""The text of a spec -> `Spec`. `docs/spec.md` is the reference of every key.

Every problem of a text is reported at once, each with its key path and line; unknown keys are problems and name the nearest known key.
Nothing here reads a file. Messages never repeat a URL, since it may hold a credential.

Example:
    >>> spec = parse_spec(text, input_name="ddtree.toml")  # doctest: +SKIP
    >>> spec.packages[0]  # doctest: +SKIP
    Requirement(name='pybase64', specifier='==1.4.3', extras=())
"""

from __future__ import annotations

import contextlib
import keyword
import re
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from envspec.caches import read_caches
from envspec.errors import EnvspecError
from envspec.forms import (
    COMPUTE,
    CUDA_TOOLKIT,
    DRIVER,
    GLIBC,
    NAME,
    PACKAGE_NAME,
    PLATFORM,
    PYTHON_EXACT,
    PYTHON_MINOR,
    RELATIVE_PATH,
    SEVERITY,
    SHA256,
    SONAME,
    WORD,
    Form,
    normalise_name,
    quoted,
)
from envspec.spec import (
    SPEC_FORMAT,
    CudaSpec,
    HostSpec,
    IndexSpec,
    OverlaySpec,
    PolicyRule,
    PythonSpec,
    Requirement,
    Spec,
    TargetSpec,
    VerifySpec,
    Waiver,
)
from envspec.toml_reading import kind_of, read_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.toml_reading import Table

DEFAULT_INDEX = "default"
"""The name that a lock gives to the index that uv is configured with; no index of a spec may have it."""

CONFLICT_HINT = "resolve the conflict by hand, then run `envspec lock`"

_PACKAGE_PATTERN = Form(
    PACKAGE_NAME.pattern + r"(?:[._-]\*)?", "the name of a package, or a pattern such as `nvidia-*`"
)
_MODULE = Form(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*", "a module such as `torch.cuda`")
_URL = Form(r"(?s).+", "the URL of an index")
_PATTERN_OF_PATH = Form(r"[^\x00-\x1f\x7f]*", "a pattern of paths such as `bin/*`")
_REASON = Form(r"(?s).*\S.*", "the reason why the finding may be")
_HOST_NAME = Form(r"[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a host")
_SSH_NAME = Form(
    r"[A-Za-z0-9_][A-Za-z0-9._-]*",
    "a `Host` of ssh_config such as `gpu-1`",
    "put the user, address, port and jump host into ssh_config and name that entry here",
)
_JIT = Form(r"triton|flashinfer|inductor", "`triton`, `flashinfer` or `inductor`")
_SERIES = Form(rf"(?:\./)?{RELATIVE_PATH.pattern}", "a relative path with `/`, without `..`")
_STORE = Form(rf"/{RELATIVE_PATH.pattern}", "an absolute path such as `/opt/envspec`")
_ARCHIVE = Form(
    rf"{RELATIVE_PATH.pattern}\.tar\.(?:gz|xz|bz2)", "the relative path of a `.tar.gz`, `.tar.xz` or `.tar.bz2`"
)
_FETCH = Form(r"host", "`host`, or no such key")
_VENV = Form(rf"/{RELATIVE_PATH.pattern}", "the absolute path of a venv such as `/opt/venv`")
_PYTHON_PATH = Form(rf"/{RELATIVE_PATH.pattern}", "the absolute path of an interpreter such as `/usr/bin/python3.12`")
_SPECIFIER_HINT = "write a PEP 440 specifier such as `==2.11.0` or `>=2,<3`; `*` takes any version"
_NOT_A_VERSION = "a URL or path is not a version: a lock names each wheel by index, version and sha256, so that any mirror can serve it"
_PLACES = ("url", "path", "git")  # keys that other tools know for what has no version
_NOT_A_VERSION_HINT = "offer the wheel on an index, and name that in [indexes]"


def parse_spec(text: str, *, input_name: str) -> Spec:
    """The spec of a text.

    Args:
        text: TOML in the format of `docs/spec.md`.
        input_name: For errors: `ddtree.toml`.

    Raises:
        EnvspecError: The text is not TOML, has merge-conflict markers, is of another format, or breaks rules; `problems` has each one.
    """
    document = read_document(text, input_name=input_name, kind="spec", conflict_hint=CONFLICT_HINT)
    root = document.root
    _read_format(root, input_name)
    name = root.string("name", NAME)
    snapshot = _read_snapshot(root)
    python = _read_python(root.table("python", required=True))
    target = _read_target(root.table("target", required=True))
    cuda_if_any = _read_cuda(root.table("cuda"))
    cuda = cuda_if_any if "cuda" in root else None
    packages = _read_requirements(root.table("packages", required=True))
    if not packages and document.is_sound:
        root.note("packages", "names no package")
    spec = Spec(
        name=name,
        snapshot=snapshot,
        python=python,
        target=target,
        cuda=cuda,
        packages=packages,
        overrides=_read_requirements(root.table("overrides")),
        overlays=_read_overlays(root.table("overlays")),
        indexes=_read_indexes(root.table("indexes")),
        verify=_read_verify(root.table("verify")),
        waivers=read_waivers(root.tables("waivers")),
        policy=_read_policy(root.table("policy")),
        hosts=_read_hosts(root.table("hosts"), cuda),
        caches=read_caches(root.tables("caches"), hosts=_host_names(root)),
    )
    root.close()
    document.raise_problems()
    return spec


def _read_format(root: Table, input_name: str) -> None:
    """Raise at once on another format, since whatever else is said of it would be noise."""
    value = root.get("envspec")
    if value is None:
        root.note("envspec", f"is missing: a spec begins with `envspec = {SPEC_FORMAT}`")
    elif isinstance(value, bool) or not isinstance(value, int):
        root.note("envspec", f"expected the integer {SPEC_FORMAT}, got {kind_of(value)}")
    elif value != SPEC_FORMAT:
        raise EnvspecError(
            f"the spec has format {root.integer('envspec')}, this envspec supports {SPEC_FORMAT}",
            input_name=input_name,
            hint="use an envspec that supports this format",
        )


def _read_snapshot(root: Table) -> datetime | None:
    value = root.get("snapshot")
    if value is None:
        return None
    form = "2026-05-20T00:00:00Z"
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            try:
                return value.astimezone(timezone.utc)
            except OverflowError:
                root.note("snapshot", "is outside of the years that can be told in UTC")
                return None
        form = f"{value.isoformat()}Z"
    elif isinstance(value, date):
        form = f"{value.isoformat()}T00:00:00Z"
    kind = "a date-time without an offset" if isinstance(value, datetime) else kind_of(value)
    root.note(
        "snapshot", f"expected a date-time with an offset, got {kind}", f"write `snapshot = {form}`, without quotes"
    )
    return None


def _read_python(table: Table) -> PythonSpec:
    version = table.string("version", PYTHON_MINOR)
    exact = table.string("exact", PYTHON_EXACT, default="")
    if version and exact and not exact.startswith(f"{version}."):
        table.note("exact", f"`{exact}` is not a Python {version}, which `version` asks for")
    archive = table.string("archive", _ARCHIVE, default="")
    archive_sha256 = table.string("archive-sha256", SHA256, default="")
    if bool(archive) != bool(archive_sha256):
        table.note("archive", "`archive` and `archive-sha256` need each other")
    table.close()
    return PythonSpec(version=version, exact=exact, archive=archive, archive_sha256=archive_sha256)


def _read_target(table: Table) -> TargetSpec:
    target = TargetSpec(
        platform=table.string("platform", PLATFORM),
        glibc=table.string("glibc", GLIBC),
        libraries=tuple(sorted(table.strings("libraries", SONAME))),
        jit=tuple(sorted(table.strings("jit", _JIT))),
    )
    table.close()
    return target


def _read_cuda(table: Table) -> CudaSpec:
    required = {normalise_name(name) for name in table.strings("require-gpu-code", PACKAGE_NAME)}
    cuda = CudaSpec(
        toolkit=table.string("toolkit", CUDA_TOOLKIT),
        compute=table.strings("compute", COMPUTE, required=True),
        require_gpu_code=tuple(sorted(required)),
    )
    table.close()
    return cuda


def _read_requirements(table: Table) -> tuple[Requirement, ...]:
    found = []
    for name, key, value in _named(table):
        if isinstance(value, str):
            found.append(Requirement(name=name, specifier=_read_specifier(table, key, value)))
        elif isinstance(value, dict):
            inner = table.table(key)
            for place in _PLACES:
                if place in inner:
                    inner.note(place, _NOT_A_VERSION, _NOT_A_VERSION_HINT)
            specifier = _read_specifier(inner, "version", inner.string("version", default=""))
            extras = {normalise_name(extra) for extra in inner.strings("extras", PACKAGE_NAME)}
            inner.close(but=_PLACES)
            found.append(Requirement(name=name, specifier=specifier, extras=tuple(sorted(extras))))
        else:
            hint = "put it in quotes" if isinstance(value, int | float) and not isinstance(value, bool) else ""
            table.note(key, f"expected a specifier or a table, got {kind_of(value)}", hint or _SPECIFIER_HINT)
    return tuple(sorted(found, key=lambda requirement: requirement.name))


def _read_specifier(table: Table, key: str, value: str) -> str:
    try:
        return canonical_specifier(value)
    except ValueError as exc:
        message = str(exc)
    hint = _NOT_A_VERSION_HINT if message == _NOT_A_VERSION else _SPECIFIER_HINT
    with contextlib.suppress(ValueError):
        hint = f"write `{canonical_specifier(f'=={value}')}`"  # a bare version, the most frequent slip
    table.note(key, message, hint)
    return ""


def canonical_specifier(text: str) -> str:
    """A PEP 440 specifier in the one form that envspec writes: no spaces, canonical versions, clauses sorted; empty for any version.

    Raises:
        ValueError: The text is no specifier; the message says why.

    Example:
        >>> canonical_specifier(" >= 2.0, < 3 "), canonical_specifier("*")
        ('<3,>=2.0', '')
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - too slow to import for every start
    from packaging.version import Version  # noqa: PLC0415

    text = text.strip()
    if text in ("", "*"):
        return ""
    if "/" in text or "@" in text or text.endswith(".whl"):
        raise ValueError(_NOT_A_VERSION)
    if "===" in text:
        raise ValueError(f"`===` compares text and not versions, got {quoted(text)}")
    try:
        clauses = list(SpecifierSet(text))
    except InvalidSpecifier:
        raise ValueError(f"expected a PEP 440 specifier, got {quoted(text)}") from None
    written = set()
    for clause in clauses:
        prefix, star, _ = clause.version.partition(".*")
        written.add(f"{clause.operator}{Version(prefix)}{star}")
    return ",".join(sorted(written))


def _named(table: Table) -> Iterable[tuple[str, str, Any]]:
    """Each entry of a table whose keys are package names: normalised name, key, value. A second spelling of a name is a problem."""
    keys: dict[str, str] = {}
    for key, value in table.items():
        mismatch = PACKAGE_NAME.mismatch(key)
        if mismatch:
            table.note(key, mismatch)
            continue
        name = normalise_name(key)
        if name in keys:
            table.note(key, f"is the same package as `{keys[name]}`")
            continue
        keys[name] = key
        yield name, key, value


def _read_overlays(table: Table) -> tuple[OverlaySpec, ...]:
    found = []
    for name, key, _ in _named(table):
        inner = table.table(key)
        found.append(OverlaySpec(package=name, series=inner.string("series", _SERIES).removeprefix("./")))
        inner.close()
    return tuple(sorted(found, key=lambda overlay: overlay.package))


def _read_indexes(table: Table) -> tuple[IndexSpec, ...]:
    found = []
    claims: list[tuple[str, str]] = []  # pattern, name of the index
    for key, inner in table.children():
        mismatch = NAME.mismatch(key)
        if mismatch:
            table.note(key, mismatch)
        elif key == DEFAULT_INDEX:
            table.note(key, f"the name `{DEFAULT_INDEX}` is reserved for the index that uv is configured with")
        url = _read_index_url(inner, key)
        patterns: list[str] = []
        for written in inner.strings("packages", _PACKAGE_PATTERN, required=True):
            pattern = normalise_name(written)
            rival = next((index for other, index in claims if index != key and _overlap(pattern, other)), "")
            if pattern in patterns:
                inner.note("packages", f"`{pattern}` is named twice")
            elif rival:
                inner.note("packages", f"`{pattern}` comes from the index `{rival}` already")
            claims.append((pattern, key))
            patterns.append(pattern)
        inner.close()
        found.append(IndexSpec(name=key, url=url, packages=tuple(sorted(patterns))))
    return tuple(sorted(found, key=lambda index: index.name))


def _overlap(pattern: str, other: str) -> bool:
    """Whether some package matches both patterns."""
    stem, other_stem = pattern.removesuffix("*"), other.removesuffix("*")
    covers, other_covers = stem != pattern, other_stem != other
    if covers and other_stem.startswith(stem):
        return True
    return stem.startswith(other_stem) if other_covers else pattern == other


def _read_index_url(table: Table, index: str) -> str:
    from urllib.parse import urlsplit  # noqa: PLC0415 - too slow to import for every start

    url = table.string("url", _URL)
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        has_place = bool(parts.path if parts.scheme == "file" else parts.hostname) and parts.port != 0
    except ValueError:  # a broken IPv6 address, a port that is no number
        has_place = False
        parts = urlsplit("")
    if "@" in parts.netloc or parts.query or parts.fragment:
        variable = "UV_INDEX_" + re.sub("[^A-Z0-9]", "_", index.upper())
        table.note(
            "url",
            "carries credentials, or a query that may hold some, and a spec is read by everybody",
            f"set {variable}_USERNAME and {variable}_PASSWORD where `envspec` runs, or use netrc",
        )
    elif parts.scheme not in ("http", "https", "file") or not has_place or not re.fullmatch(r"[!-\[\]-~]+", url):
        table.note("url", "expected a URL with http, https or file")
    return url


def _read_verify(table: Table) -> VerifySpec:
    verify = VerifySpec(imports=table.strings("imports", _MODULE), kernels=table.strings("kernels", WORD))
    for index, module in enumerate(verify.imports):
        word = next((part for part in module.split(".") if keyword.iskeyword(part)), "")
        if word:
            table.note_item("imports", index, f"`{module}` cannot be imported: `{word}` is a keyword of Python")
    table.close()
    return verify


def read_waivers(tables: Iterable[Table]) -> tuple[Waiver, ...]:
    """The waivers of a spec or a lock, in their order; problems are noted."""
    waivers = []
    owner_of: dict[str, str] = {}
    for table in tables:
        waiver = Waiver(
            check=table.string("check", WORD),
            package=normalise_name(table.string("package", PACKAGE_NAME)),
            path=table.string("path", _PATTERN_OF_PATH, default=""),
            owner=normalise_name(table.string("owner", PACKAGE_NAME, default="")),
            reason=table.string("reason", _REASON),
        )
        if waiver.owner and not waiver.path:
            table.note("owner", "says whose file stays, but `path` does not say which file")
        elif waiver.owner and owner_of.setdefault(waiver.path, waiver.owner) != waiver.owner:
            table.note(
                "owner",
                f"`{waiver.owner}` cannot own {quoted(waiver.path)}, which `{owner_of[waiver.path]}` owns already",
            )
        table.close()
        waivers.append(waiver)
    return tuple(waivers)


def _read_policy(table: Table) -> tuple[PolicyRule, ...]:
    rules = []
    for key in sorted(name for name, _ in table.items()):
        mismatch = WORD.mismatch(key)
        if mismatch:
            table.note(key, mismatch)
        rules.append(PolicyRule(check=key, severity=table.string(key, SEVERITY)))
    return tuple(rules)


def _host_names(root: Table) -> frozenset[str]:
    hosts = root.get("hosts")
    return frozenset(hosts) if isinstance(hosts, dict) else frozenset()


def _read_hosts(table: Table, cuda: CudaSpec | None) -> tuple[HostSpec, ...]:
    found = []
    for key, inner in table.children():
        mismatch = _HOST_NAME.mismatch(key)
        if mismatch:
            table.note(key, mismatch)
        host = HostSpec(
            name=key,
            ssh=inner.string("ssh", _SSH_NAME, default=key),
            compute=inner.string("compute", COMPUTE, default=""),
            gpus=inner.integer("gpus", default=0),
            driver=inner.string("driver", DRIVER, default=""),
            store=inner.string("store", _STORE, default=""),
            python=inner.string("python", _PYTHON_PATH, default=""),
            reuse=inner.strings("reuse", _VENV),
            fetch=inner.string("fetch", _FETCH, default=""),
            groups=tuple(sorted(set(inner.strings("groups", WORD)))),
        )
        if host.driver and cuda is None:
            inner.note("driver", f"has `{host.driver}`, but the spec has no [cuda]")
        if host.compute and cuda is None:
            inner.note("compute", f"has `{host.compute}`, but the spec has no [cuda]")
        elif host.compute and cuda is not None and cuda.compute and host.compute not in cuda.compute:
            listed = ", ".join(cuda.compute)
            inner.note(
                "compute", f"`{host.compute}` is not in cuda.compute ({listed})", "add it there, so that it is covered"
            )
        inner.close()
        found.append(host)
    return tuple(sorted(found, key=lambda host: host.name))
