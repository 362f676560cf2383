"""Observations and published wheels for tests of the pure parts of `envspec adopt`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from envspec.adoption.values import PublishedFile, PublishedWheel
from envspec.binaries import BinaryFacts, Label
from envspec.observed import Observation, ObservedDistribution, ObservedFile, ObservedPython

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SITE = "lib/python3.12/site-packages"


def sha256(content: bytes | str) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def published(
    name: str, version: str, files: Mapping[str, str], *, index: str = "default", file: str = "", **more: Any
) -> PublishedWheel:
    """A wheel: member -> content; its dist-info has a METADATA that names it."""
    stem = f"{name.replace('-', '_')}-{version}"
    every = {f"{stem}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n", **files}
    rows = [
        PublishedFile(f"{SITE}/{member}", member, sha256(content), len(content), executable=False, script=False)
        for member, content in every.items()
    ]
    return PublishedWheel(
        name=name,
        version=version,
        index=index,
        file=file or f"{stem}-py3-none-any.whl",
        sha256=sha256(f"{stem}{sorted(files.items())}"),
        size=100,
        dist_info=f"{SITE}/{stem}.dist-info",
        files=tuple(sorted(rows)),
        **more,
    )


def observed_file(path: str, content: str, recorded: str | None = None) -> ObservedFile:
    """An ordinary file; `recorded` is the content that RECORD has, None for none."""
    return ObservedFile(
        path=path,
        kind="file",
        size=len(content),
        sha256=sha256(content),
        executable=False,
        recorded="" if recorded is None else sha256(recorded),
        recorded_size=-1,
    )


def distribution(
    name: str, version: str, files: Mapping[str, str], *, folder_version: str = "", **more: Any
) -> ObservedDistribution:
    """A distribution as its installer left it: path below site-packages -> content; with METADATA and RECORD."""
    folder = f"{SITE}/{name.replace('-', '_')}-{folder_version or version}.dist-info"
    rows = [observed_file(f"{SITE}/{path}", content, content) for path, content in files.items()]
    rows.append(observed_file(f"{folder}/METADATA", f"Name: {name}\nVersion: {version}\n", ""))
    return ObservedDistribution(
        name=name,
        version=version,
        folder=folder,
        folder_version=folder_version or version,
        files=tuple(sorted(rows)),
        **more,
    )


def labelled(path: str, version: str) -> BinaryFacts:
    """Facts of a package whose `version.py` says a version."""
    return BinaryFacts(labels=(Label(path, "__version__", version),))


def observation(
    distributions: Sequence[ObservedDistribution] = (), strays: Mapping[str, str] | None = None, **more: Any
) -> Observation:
    """A venv of Python 3.12 on Linux; strays: path below the prefix -> content."""
    return Observation(
        **{
            "prefix": "/srv/venv",
            "python": ObservedPython(
                executable="/usr/bin/python3.12",
                link="/usr/bin/python3.12",
                version="3.12.3",
                minor="3.12",
                home="/usr/bin",
                system_site_packages=False,
            ),
            "distributions": tuple(distributions),
            "strays": tuple(observed_file(path, content) for path, content in sorted((strays or {}).items())),
            "stray_binaries": BinaryFacts(),
            "stray_hooks": (),
            "path": (),
            "environ": {},
            "libraries": {},
            "host": {"glibc": "2.36", "machine": "x86_64"},
            "locked": {},
            **more,
        }
    )
