"""Observations of small venvs, for tests of what is made of them.

    observation = make_observation(distribution("torch", "2.11.0", binaries=[...]), distribution("sgl", requires=["torch"]))

Without further arguments a distribution is whole and a venv is sound; each argument bends one thing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from envspec.binaries import Binary, BinaryFacts, Label
from envspec.facts import StartupHook
from envspec.layout import normalise_name
from envspec.observed import Observation, ObservedDistribution, ObservedFile, ObservedPython, PathEntry
from envspec.traced import Frame, Raised, Traced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envspec.facts import WheelFacts
    from envspec.traced import Ending

PREFIX = "/srv/venv"
SITE = "lib/python3.12/site-packages"
INSTALLED_NS = 1_700_000_000_000_000_000
LATER_NS = INSTALLED_NS + 3600 * 10**9
LIBRARIES = {
    name: f"/usr/lib/x86_64-linux-gnu/{name}"
    for name in ("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "libcuda.so.1")
}


def sha256_of(content: str) -> str:
    """The sha256 of a text."""
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()


def file(
    path: str,
    content: str = "x",
    *,
    recorded: str | None = "",
    size: int | None = None,
    mtime_ns: int = INSTALLED_NS,
    links: int = 1,
    kind: str = "file",
) -> ObservedFile:
    """A file.

    Args:
        path: Below site-packages, or in the venv if it begins with `bin/` or is `pyvenv.cfg`.
        content: As it is on disk.
        recorded: What RECORD has the digest of; empty for the same, None for nothing.
        size: In bytes, if not that of the content.
        mtime_ns: Time.
        links: Names of the inode.
        kind: As in `ObservedFile`.
    """
    whole = path if path.startswith("bin/") or path == "pyvenv.cfg" else f"{SITE}/{path}"
    there = kind == "file"
    said = content if recorded == "" else recorded
    return ObservedFile(
        path=whole,
        kind=kind,
        size=(len(content) if size is None else size) if there else -1,
        sha256=sha256_of(content) if there else "",
        executable=False,
        recorded="" if said is None else sha256_of(said),
        recorded_size=-1 if said is None else len(said),
        mtime_ns=mtime_ns,
        links=links,
    )


def distribution(
    name: str,
    version: str = "1.0",
    *,
    files: Sequence[ObservedFile] | None = None,
    more: Sequence[ObservedFile] = (),
    requires: Sequence[str] = (),
    binaries: Sequence[Binary] = (),
    labels: Sequence[Label] = (),
    hooks: Mapping[str, Sequence[str]] | None = None,
    folder_version: str | None = None,
    modules: Sequence[str] | None = None,
    tags: Sequence[str] = ("py3-none-any",),
    facts: BinaryFacts | None = None,
    **other: Any,
) -> ObservedDistribution:
    """A distribution; its module is its name."""
    module = normalise_name(name).replace("-", "_")
    said = version if folder_version is None else folder_version
    folder = f"{module}-{said}.dist-info"
    own = [file(f"{module}/__init__.py", f"# {name}")] if files is None else list(files)
    own += more
    own += [file(path, "\n".join(lines)) for path, lines in (hooks or {}).items()]
    measured = facts or BinaryFacts(binaries=tuple(binaries), labels=tuple(labels))
    own += [
        file(binary.path.removeprefix(f"{SITE}/"), f"{name} {binary.path}", size=4096)
        for binary in measured.binaries
        if binary.path not in {each.path for each in own}
    ]
    own += [file(f"{folder}/{each}", f"{name} {version} {each}") for each in ("METADATA", "WHEEL")]
    own.append(file(f"{folder}/RECORD", "", recorded=None))
    tops = {each.path.removeprefix(f"{SITE}/").partition("/")[0] for each in own if each.path.startswith(f"{SITE}/")}
    return ObservedDistribution(
        name=normalise_name(name),
        version=version,
        folder=f"{SITE}/{folder}",
        folder_version=said,
        installer="uv",
        requires_dist=tuple(requires),
        wheel_tags=tuple(tags),
        top_level=tuple(modules) if modules is not None else tuple(sorted(tops - {folder})),
        files=tuple(sorted(own)),
        hooks=tuple(
            StartupHook(path=path, sha256=sha256_of("\n".join(lines)), code=tuple(lines))
            for path, lines in (hooks or {}).items()
        ),
        binaries=measured,
        **other,
    )


def of_facts(facts: WheelFacts, **other: Any) -> ObservedDistribution:
    """The distribution of a wheel that was made for tests of checks (`tests.support.torch_stack`)."""
    return distribution(
        facts.name,
        facts.version,
        facts=facts.binaries,
        requires=facts.requires_dist,
        tags=facts.wheel_tags or ("py3-none-any",),
        more=[file(label.path, label.value) for label in facts.binaries.labels],
        **other,
    )


def make_observation(
    *distributions: ObservedDistribution,
    strays: Sequence[ObservedFile] = (),
    stray_binaries: Sequence[Binary] = (),
    stray_labels: Sequence[Label] = (),
    stray_hooks: Mapping[str, Sequence[str]] | None = None,
    python: Mapping[str, Any] | None = None,
    path: Sequence[PathEntry] | None = None,
    environ: Mapping[str, str] | None = None,
    libraries: Mapping[str, str] | None = None,
    host: Mapping[str, Any] | None = None,
    locked: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
    prefix: str = PREFIX,
) -> Observation:
    """A venv with these distributions."""
    interpreter: dict[str, Any] = {
        "executable": "/usr/bin/python3.12",
        "link": "/usr/bin/python3.12",
        "version": "3.12.3",
        "minor": "3.12",
        "home": "/usr/bin",
        "system_site_packages": False,
    }
    standard = PathEntry(path="/usr/lib/python3.12", source="standard library", exists=True, inside=False)
    site = PathEntry(path=f"{prefix}/{SITE}", source="venv", exists=True, inside=True)
    hooks = stray_hooks or {}
    return Observation(
        prefix=prefix,
        python=ObservedPython(**{**interpreter, **(python or {})}),
        distributions=tuple(sorted(distributions, key=lambda each: (each.name, each.folder))),
        strays=tuple(
            sorted([*strays, *(file(name, "\n".join(lines), recorded=None) for name, lines in hooks.items())])
        ),
        stray_binaries=BinaryFacts(binaries=tuple(stray_binaries), labels=tuple(stray_labels)),
        stray_hooks=tuple(
            StartupHook(path=name, sha256=sha256_of("\n".join(lines)), code=tuple(lines))
            for name, lines in hooks.items()
        ),
        path=(standard, site) if path is None else (*path, standard, site),
        environ=environ or {},
        libraries=LIBRARIES if libraries is None else libraries,
        host={"glibc": "2.36", "driver": "580.65.06", "machine": "x86_64", "hostname": "here", **(host or {})},
        locked=locked or {},
        texts=texts or {},
    )


def raised(
    kind: str,
    message: str,
    *frames: str,
    name: str = "",
    importing: Sequence[str] = (),
    path: str = "",
) -> Raised:
    """An exception; frames are paths below site-packages, or whole ones, from the outermost."""
    return Raised(
        type=kind,
        message=message,
        name=name,
        path=path,
        importing=tuple(importing),
        frames=tuple(
            Frame(each if each.startswith("/") else f"{PREFIX}/{SITE}/{each}", 1, "<module>", "") for each in frames
        ),
    )


def failed_run(
    target: str,
    *chain: Raised,
    swallowed: Sequence[Raised] = (),
    ending: Ending = "exception",
    messages: Sequence[str] = (),
    detail: str = "",
    **more: Any,
) -> Traced:
    """A run that failed."""
    return Traced(
        target=target,
        ending=ending,
        detail=detail,
        chain=tuple(chain),
        swallowed=tuple(swallowed),
        messages=tuple(messages),
        seconds=1.0,
        **more,
    )
