"""A lock -> files that other tools read: pylock.toml (PEP 751), requirements with hashes, a CycloneDX bill of materials.

Pure: where a wheel is to be had is the caller's to say. The same lock and the same places give the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.errors import EnvspecError
from envspec.lock import parts
from envspec.toml_writing import key_lines, string

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.lock import Lock

PYLOCK_NAME = re.compile(r"pylock(?:\.[^.]+)?\.toml")
"""What PEP 751 allows as the name of a file; installers look at it."""

_MACHINES = {"linux-x86_64": "x86_64", "linux-aarch64": "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a wheel is to be had; one of the two is empty."""

    url: str = ""
    path: str = ""
    """Relative to the exported file, with `/`."""


def pylock_text(lock: Lock, places: Mapping[str, Place]) -> str:
    """A pylock.toml of a lock: the wheels that make up the environment, patched ones included.

    Args:
        lock: The lock.
        places: sha256 of each wheel of `parts(lock)` -> where it is.
    """
    requires_python = f"=={lock.python_exact}" if lock.python_exact else f"=={lock.python}.*"
    marker = f"implementation_name == 'cpython' and sys_platform == 'linux' and platform_machine == '{_MACHINES[lock.platform]}'"
    lines = key_lines(
        ("lock-version", "1.0"),
        ("environments", (marker,)),
        ("requires-python", requires_python),
        ("created-by", "envspec"),
    )
    versions = _versions(lock)
    packages = {package.name: package for package in lock.packages}
    for part in parts(lock):
        package = packages[part.package]
        place = places[part.sha256]
        lines += ["", "[[packages]]"]
        lines += key_lines(
            ("name", part.package), ("version", versions[part.package]), ("requires-python", package.requires_python)
        )
        if package.requires:
            needed = ", ".join("{name = " + string(name) + "}" for name in package.requires)
            lines.append(f"dependencies = [{needed}]")
        lines += ["", "[[packages.wheels]]"]
        lines += key_lines(("name", part.file), ("url", place.url), ("path", place.path), ("size", part.size))
        lines.append("hashes = {sha256 = " + string(part.sha256) + "}")
    lines += ["", "[tool.envspec]", *key_lines(("env", lock.env), ("site", lock.site))]
    return "\n".join([*lines, ""])


def requirements_text(lock: Lock, *, wheelhouse: str | None) -> str:
    """Requirements of a lock, each with the sha256 of its wheel.

    Args:
        lock: The lock.
        wheelhouse: Folder with all its wheels, relative to the exported file; None if they come from the index that the installer knows.

    Raises:
        EnvspecError: A patched wheel is on no index, and there is no wheelhouse.
    """
    if wheelhouse is None:
        refuse_patched(lock)
    lines = [
        f"# Exported by envspec from the lock of {lock.name}: CPython {lock.python_exact or lock.python} on {lock.platform}.",
        f"# env {lock.env}",
    ]
    if lock.overrides:
        lines.append(
            f"# Install with --no-deps: overrides replace what packages ask for ({', '.join(lock.overrides)})."
        )
    if wheelhouse is not None:
        place = f"./{wheelhouse}" if wheelhouse.startswith("-") else wheelhouse
        lines += ["--no-index", f"--find-links {place}"]
    lines.append("--only-binary :all:")
    versions = _versions(lock)
    for part in parts(lock):
        lines += [f"{part.package}=={versions[part.package]} \\", f"    --hash=sha256:{part.sha256}"]
    return "\n".join([*lines, ""])


def refuse_patched(lock: Lock) -> None:
    """See that every wheel is one that an index has.

    Raises:
        EnvspecError: One is patched.
    """
    patched = [overlay.package for overlay in lock.overlays]
    if patched:
        names = ", ".join(f"`{name}`" for name in patched)
        raise EnvspecError(
            f"{names} {'is' if len(patched) == 1 else 'are'} patched, and no index has a patched wheel",
            hint="give a folder for the wheels with `--wheelhouse DIR`",
        )


def _versions(lock: Lock) -> dict[str, str]:
    """Package -> version of the wheel that is installed."""
    return {
        **{package.name: package.version for package in lock.packages},
        **{overlay.package: overlay.version for overlay in lock.overlays},
    }
