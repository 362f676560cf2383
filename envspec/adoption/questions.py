"""Which published versions are worth a look, for a distribution, and for modules that no distribution owns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.layout import normalise_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.binaries import Label
    from envspec.observed import Observation, ObservedDistribution

MOST_STRAY_PROJECTS = 20
_VERSION_KEYS = ("__version__", "version", "__version", "VERSION")
_MODULE = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?:\.py|(?:\.[A-Za-z0-9_-]+)*\.so)?")


def versions_of(distribution: ObservedDistribution) -> tuple[str, ...]:
    """The versions that a distribution claims or shows, each with and without its local part, the likeliest first.

    METADATA, the folder's name and the package's own `version.py` may each say something else where files were copied.
    """
    stated = [distribution.version, distribution.folder_version]
    stated += _labelled(distribution.binaries.labels, distribution.top_level)
    return _with_public_parts(stated)


def _labelled(labels: Iterable[Label], top_level: Iterable[str]) -> list[str]:
    """What `version.py` of a package says, of those at the root of its folders."""
    roots = set(top_level)
    return [
        label.value
        for label in labels
        if label.key in _VERSION_KEYS and label.path.count("/") == 1 and label.path.partition("/")[0] in roots
    ]


def _with_public_parts(versions: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for version in versions:
        if version and len(version) < 100:
            found[version] = None
            found[version.partition("+")[0]] = None
    return tuple(found)


def is_local_install(distribution: ObservedDistribution) -> bool:
    """Whether a distribution is an editable install: its files are elsewhere."""
    return distribution.direct_url.startswith("editable ")


def stray_projects(observation: Observation, paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names of projects that modules without a distribution may be of -> versions that they show.

    Args:
        observation: Of the venv.
        paths: Of strays that nothing explains.
    """
    site = f"{observation.site_packages()}/"
    known = {each.name for each in observation.distributions}
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(paths):
        if not path.startswith(site) or len(found) >= MOST_STRAY_PROJECTS:
            continue
        top = path[len(site) :].partition("/")[0]
        match = _MODULE.fullmatch(top)
        if match is None or top.endswith((".dist-info", ".egg-info")):
            continue
        name = normalise_name(match[1])
        if name not in known and name not in found:
            found[name] = _with_public_parts(_labelled(observation.stray_binaries.labels, [match[1]]))
    return found
