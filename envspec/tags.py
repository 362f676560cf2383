"""Which wheels a target can install, and which of several it would choose.

The tags follow the specification of platform compatibility tags (PEP 425, 600, 656 and their page on packaging.python.org, read 2026-11-30) for
CPython on glibc. They depend on nothing but the target: neither the interpreter nor the C library that runs this code plays a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packaging.tags import Tag

OLDEST_GLIBC_MINOR = {"linux-x86_64": 5, "linux-aarch64": 17}
"""The first glibc 2.N that manylinux defines for each platform."""

LEGACY_MANYLINUX = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Names that manylinux had before PEP 600, by their glibc 2.N."""


def target_tags(*, python: str, platform: str, glibc: str) -> tuple[Tag, ...]:
    """The tags that a target accepts, the best first.

    Args:
        python: Version of CPython: `3.12`; a patch level is ignored, as tags know none.
        platform: `linux-x86_64` or `linux-aarch64`.
        glibc: Version of the target's glibc: `2.35`.

    Raises:
        EnvspecError: The platform or a version is none that is known.
    """
    from packaging.tags import compatible_tags, cpython_tags  # noqa: PLC0415 - only who resolves needs it

    major, minor = _version(python, "Python", form="3.12")[:2]
    interpreter = f"cp{major}{minor}"
    platforms = tuple(platform_tags(platform=platform, glibc=glibc))
    own = cpython_tags(python_version=(major, minor), abis=[interpreter], platforms=platforms)
    pure = compatible_tags(python_version=(major, minor), interpreter=interpreter, platforms=platforms)
    return (*own, *pure)


def platform_tags(*, platform: str, glibc: str) -> Iterator[str]:
    """The platform parts of the tags that a target accepts, the best first: `manylinux_2_35_x86_64`, ..., `linux_x86_64`.

    Args:
        platform: `linux-x86_64` or `linux-aarch64`.
        glibc: Version of the target's glibc: `2.35`.

    Raises:
        EnvspecError: The platform or the version is none that is known.
    """
    if platform not in OLDEST_GLIBC_MINOR:
        known = " and ".join(f"`{name}`" for name in OLDEST_GLIBC_MINOR)
        raise EnvspecError(f"platform `{platform}` is unknown; {known} are known")
    machine = platform.removeprefix("linux-")
    major, minor = _version(glibc, "glibc", form="2.35")[:2]
    if major != 2:
        raise EnvspecError(f"glibc `{glibc}` is unknown; manylinux is defined for glibc 2.N")
    for older in range(minor, OLDEST_GLIBC_MINOR[platform] - 1, -1):
        yield f"manylinux_2_{older}_{machine}"
        if older in LEGACY_MANYLINUX:
            yield f"{LEGACY_MANYLINUX[older]}_{machine}"
    yield f"linux_{machine}"


def best_wheel(filenames: Iterable[str], tags: Sequence[Tag]) -> str | None:
    """The wheel that an installer takes: the one of the best tag; among equals, that of the highest build tag.

    Args:
        filenames: Names of wheels of one version, in any order.
        tags: What the target accepts, the best first: `target_tags`.

    Returns:
        One of the names; None if the target accepts none. A name that is no wheel's is passed over.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: PLC0415 - as above

    rank = {tag: position for position, tag in enumerate(tags)}
    best: tuple[tuple[int, tuple[int, str], str], str] | None = None
    for filename in filenames:
        try:
            _, _, build, own = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            continue
        position = min((rank[tag] for tag in own if tag in rank), default=None)
        if position is None:
            continue
        build_number, build_text = build or (-1, "")  # no build tag sorts before build tag 0
        # The name decides last, so that the order of the names never does.
        key = (-position, (build_number, build_text), filename)
        if best is None or key > best[0]:
            best = key, filename
    return best[1] if best else None


def _version(text: str, what: str, *, form: str) -> tuple[int, ...]:
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise EnvspecError(f"version `{text}` of {what} is not of the form `{form}`")
    return tuple(int(part) for part in parts)
