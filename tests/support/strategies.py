"""Hypothesis strategies for the values of envspec: each gives values that are valid, however odd."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from hypothesis import strategies as st

from envspec.lock import (
    Lock,
    LockedFinding,
    LockedHook,
    LockedOverlay,
    LockedPackage,
    LockedPatch,
    PatchedFile,
    compute_env_id,
)
from envspec.spec import (
    CudaSpec,
    HostSpec,
    IndexSpec,
    OverlaySpec,
    PythonSpec,
    Requirement,
    Spec,
    TargetSpec,
    VerifySpec,
    Waiver,
    snapshot_text,
)

NO_SURROGATES: Any = ("Cs",)

texts = st.text(st.characters(exclude_categories=NO_SURROGATES), max_size=30)
"""Any text that UTF-8 can hold: control characters, quotes, backslashes, characters beyond the BMP."""

filled_texts = texts.filter(lambda text: bool(text.strip()))
digests = st.integers(0, 2**32).map(lambda number: hashlib.sha256(str(number).encode()).hexdigest())
_syllables = st.text("abkz059", min_size=1, max_size=4)
names = st.lists(_syllables, min_size=1, max_size=3).map("-".join)
"""Normalised package names."""

words = names
versions = st.builds(
    "{}.{}{}{}".format,
    st.integers(0, 999),
    st.integers(0, 99),
    st.sampled_from(["", ".0", "a1", "rc2", ".post3", ".dev4"]),
    st.sampled_from(["", "+cu130", "+1.b"]),
)
sizes = st.integers(0, 2**63 - 1)
path_parts = st.text(
    st.characters(exclude_categories=NO_SURROGATES, exclude_characters="/\\\x7f" + "".join(map(chr, range(32)))),
    min_size=1,
    max_size=8,
).filter(lambda part: part not in (".", ".."))
paths = st.lists(path_parts, min_size=1, max_size=4).map("/".join)
"""Relative paths with `/`, of any characters that a file name may have."""

pythons = st.integers(10, 20).map("3.{}".format)
compute_lists = st.lists(
    st.sampled_from(["7.5", "8.0", "8.9", "9.0", "10.0", "12.0"]), unique=True, min_size=1, max_size=3
)
sonames = st.builds("lib{}.so{}".format, _syllables, st.sampled_from(["", ".1", ".12.4"]))
moments = st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(timezone.utc))  # noqa: DTZ001
platforms = st.sampled_from(["linux-x86_64", "linux-aarch64"])


def sorted_tuples(items: st.SearchStrategy[str], *, max_size: int = 4) -> st.SearchStrategy[tuple[str, ...]]:
    """Sorted tuples, each item once."""
    return st.lists(items, unique=True, max_size=max_size).map(lambda found: tuple(sorted(found)))


def wheel_name(name: str, version: str, build: str = "") -> str:
    """The name of a wheel file of a package."""
    return "-".join(part for part in (name.replace("-", "_"), version, build, "py3", "none", "any") if part) + ".whl"


@st.composite
def waiver_lists(draw: st.DrawFn) -> tuple[Waiver, ...]:
    """Waivers of which no two give one path to different owners."""
    waivers = st.builds(Waiver, check=words, package=names, path=st.one_of(st.just(""), paths), reason=filled_texts)
    owners: dict[str, str] = {}
    found = []
    for waiver in draw(st.lists(waivers, max_size=3)):
        owner = owners.setdefault(waiver.path, draw(st.one_of(st.just(""), names)) if waiver.path else "")
        found.append(replace(waiver, owner=owner))
    return tuple(found)


@st.composite
def _packages(draw: st.DrawFn, name: str, everyone: tuple[str, ...]) -> LockedPackage:
    version = draw(versions)
    hooks = st.builds(LockedHook, path=paths, sha256=digests, code=st.lists(texts, max_size=2).map(tuple))
    return LockedPackage(
        name=name,
        version=version,
        index=draw(st.sampled_from(["default", "pytorch-cu130"])),
        file=wheel_name(name, version, draw(st.sampled_from(["", "1", "2_cu13"]))),
        size=draw(sizes),
        sha256=draw(digests),
        tree=draw(digests),
        requires=draw(sorted_tuples(st.sampled_from(everyone))),
        requires_python=draw(st.sampled_from(["", ">=3.10", "!=3.14.1,>=3.10"])),
        hooks=tuple(draw(st.lists(hooks, max_size=2))),
    )


@st.composite
def _overlays(draw: st.DrawFn, package: LockedPackage) -> LockedOverlay:
    version = f"{package.version.partition('+')[0]}+ddtree.{draw(digests)[:8]}"
    changes = st.lists(
        st.builds(PatchedFile, path=paths, before=st.one_of(st.just(""), digests), after=digests),
        unique_by=lambda file: file.path,
        max_size=3,
    )
    return LockedOverlay(
        package=package.name,
        series=draw(paths),
        base_sha256=package.sha256,
        patches=tuple(draw(st.lists(st.builds(LockedPatch, name=path_parts, sha256=digests), max_size=3))),
        files=tuple(sorted(draw(changes), key=lambda file: file.path)),
        version=version,
        file=wheel_name(package.name, version),
        size=draw(sizes),
        sha256=draw(digests),
        tree=draw(digests),
    )


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    """Coherent locks: what `parse_lock` demands holds."""
    everyone = draw(sorted_tuples(names, max_size=5))
    packages = tuple(draw(_packages(name, everyone)) for name in everyone)
    python = draw(pythons)
    cuda = draw(st.one_of(st.none(), compute_lists))
    finding = st.builds(
        LockedFinding,
        check=words,
        severity=st.sampled_from(["error", "warning", "info"]),
        subject=texts,
        message=texts,
        waived=texts,
    )
    lock = Lock(
        spec_sha256=draw(digests),
        env="",
        site=draw(digests),
        name=draw(words),
        snapshot=draw(st.one_of(st.just(""), moments.map(snapshot_text))),
        python=python,
        python_exact=draw(st.sampled_from(["", f"{python}.3"])),
        platform=draw(platforms),
        glibc=f"2.{draw(st.integers(17, 60))}",
        libraries=draw(sorted_tuples(sonames)),
        cuda_toolkit="13.0" if cuda else "",
        cuda_compute=tuple(cuda or ()),
        packages=packages,
        overlays=tuple(draw(_overlays(package)) for package in packages if draw(st.booleans())),
        overrides=draw(sorted_tuples(st.builds("{}=={}".format, names, versions))),
        waivers=draw(waiver_lists()),
        findings=tuple(draw(st.lists(finding, max_size=2))),
    )
    return replace(lock, env=compute_env_id(lock))


specifiers = st.sampled_from(["", "==2.11.0", "==2.11.0+cu130", "<3,>=2", "!=1.5,>=1", "==1.*", "~=1.4"])
"""In the one form that envspec writes."""


def _requirements(*, min_size: int) -> st.SearchStrategy[tuple[Requirement, ...]]:
    requirement = st.builds(Requirement, name=names, specifier=specifiers, extras=sorted_tuples(names, max_size=2))
    return st.lists(requirement, unique_by=lambda wanted: wanted.name, min_size=min_size, max_size=4).map(
        lambda found: tuple(sorted(found, key=lambda wanted: wanted.name))
    )


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Specs as `parse_spec` gives them."""
    python = draw(pythons)
    compute = draw(st.one_of(st.none(), compute_lists))
    index_packages = draw(sorted_tuples(names))
    hosts = st.builds(
        HostSpec,
        name=words,
        ssh=words,
        compute=st.sampled_from(["", *(compute or ())]),
        gpus=st.integers(0, 16),
        store=st.sampled_from(["", "/opt/envspec", "/srv/a b"]),
    )
    modules = st.lists(st.sampled_from(["torch", "torch.cuda", "sgl_kernel", "a.b.c"]), unique=True, max_size=3)
    return Spec(
        name=draw(words),
        snapshot=draw(st.one_of(st.none(), moments)),
        python=PythonSpec(version=python, exact=draw(st.sampled_from(["", f"{python}.3"]))),
        target=TargetSpec(
            platform=draw(platforms), glibc=f"2.{draw(st.integers(17, 60))}", libraries=draw(sorted_tuples(sonames))
        ),
        cuda=CudaSpec(toolkit="13.0", compute=tuple(compute)) if compute else None,
        packages=draw(_requirements(min_size=1)),
        overrides=draw(_requirements(min_size=0)),
        overlays=tuple(
            OverlaySpec(package=name, series=draw(paths)) for name in draw(sorted_tuples(names, max_size=2))
        ),
        indexes=(
            IndexSpec(
                name=draw(words.filter(lambda name: name != "default")),
                url="https://index.example/simple",
                packages=index_packages,
            ),
        )
        if index_packages
        else (),
        verify=VerifySpec(
            imports=tuple(draw(modules)), kernels=draw(st.sampled_from([(), ("torch",), ("torch", "sgl_kernel")]))
        ),
        waivers=draw(waiver_lists()),
        hosts=tuple(
            sorted(draw(st.lists(hosts, unique_by=lambda host: host.name, max_size=2)), key=lambda host: host.name)
        ),
    )


def toml_string(text: str) -> str:
    """A basic string of TOML, in another way than `envspec.toml_writing` writes it."""
    return '"' + "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08X}" for c in text) + '"'


def toml_inline(value: Any) -> str:
    """Any value of JSON's kinds, or a moment, as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_string(key)} = {toml_inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_inline(item) for item in value) + "]"
    if isinstance(value, datetime):
        return value.isoformat()
    return toml_string(value) if isinstance(value, str) else str(value).lower()


@st.composite
def spec_texts(draw: st.DrawFn, spec: Spec) -> str:
    """Texts that all mean one spec: the order of keys, the spelling of names, comments, spaces and kinds of tables differ."""

    def spelled(name: str) -> str:
        return "".join(
            draw(st.sampled_from("-_.")) if c == "-" else draw(st.sampled_from([c, c.upper()])) for c in name
        )

    def shuffled(items: Any) -> list[Any]:
        return draw(st.permutations(list(items)))

    def filled(**values: Any) -> dict[str, Any]:
        return {key: values[key] for key in shuffled(values) if values[key] not in ("", (), [], {}, None, 0)}

    def requirements(wanted: tuple[Requirement, ...]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for requirement in shuffled(wanted):
            version = ", ".join(shuffled(requirement.specifier.split(","))) or draw(st.sampled_from(["", "*"]))
            extras = shuffled([spelled(extra) for extra in requirement.extras])
            as_table = bool(extras) or draw(st.booleans())
            written[spelled(requirement.name)] = filled(version=version, extras=extras) if as_table else version
        return written

    def waiver(value: Waiver) -> dict[str, Any]:
        return filled(
            check=value.check,
            package=spelled(value.package),
            path=value.path,
            owner=spelled(value.owner),
            reason=value.reason,
        )

    top = filled(name=spec.name, snapshot=spec.snapshot, envspec=1)
    tables = filled(
        python=filled(version=spec.python.version, exact=spec.python.exact),
        target=filled(
            platform=spec.target.platform, glibc=spec.target.glibc, libraries=shuffled(spec.target.libraries)
        ),
        cuda=filled(toolkit=spec.cuda.toolkit, compute=spec.cuda.compute) if spec.cuda else {},
        packages=requirements(spec.packages),
        overrides=requirements(spec.overrides),
        overlays={spelled(overlay.package): {"series": overlay.series} for overlay in shuffled(spec.overlays)},
        indexes={
            index.name: filled(url=index.url, packages=shuffled(map(spelled, index.packages))) for index in spec.indexes
        },
        verify=filled(imports=spec.verify.imports, kernels=spec.verify.kernels),
        waivers=[waiver(value) for value in spec.waivers],
        hosts={
            host.name: filled(
                ssh="" if host.ssh == host.name else host.ssh, compute=host.compute, gpus=host.gpus, store=host.store
            )
            for host in shuffled(spec.hosts)
        },
    )
    noise = st.sampled_from(["", "\n", "# a comment, [not] = 'a table'\n", "  \t\n"])

    def pair(key: str, value: Any) -> str:
        return f"{draw(noise)}{key} ={draw(st.sampled_from(['', ' ']))}{toml_inline(value)}{draw(st.sampled_from(['', ' # why']))}\n"

    head, body = "", ""
    for key, value in top.items():
        head += pair(key, value)
    for key, value in tables.items():
        way = draw(st.sampled_from(["inline", "dotted", "table", "deep"]))
        if isinstance(value, list):
            if way == "inline":
                head += pair(key, value)
            else:
                body += "".join(f"[[{key}]]\n" + "".join(pair(inner, item[inner]) for inner in item) for item in value)
        elif way == "inline":
            head += pair(key, value)
        elif way == "dotted":
            head += "".join(pair(f"{key} . {toml_string(inner)}", value[inner]) for inner in value)
        else:
            deep = {inner: child for inner, child in value.items() if way == "deep" and isinstance(child, dict)}
            body += f"[{key}]\n" + "".join(
                pair(toml_string(inner), value[inner]) for inner in value if inner not in deep
            )
            for inner, child in deep.items():
                body += f"[{key}.{toml_string(inner)}]\n" + "".join(
                    pair(grandchild, child[grandchild]) for grandchild in child
                )
    return head + body
