"""Locks that name given wheels, for tests of what keeps and moves wheels."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from envspec.lock import Lock, LockedPackage, compute_env_id
from envspec.lock_toml import dump_lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.caches.protocol import CachedWheel


def lock_text(name: str, wheels: Iterable[CachedWheel], more: str = "") -> str:
    """The text of a lock.

    Args:
        name: Of the environment.
        wheels: Whose file names are those of wheels without build tags.
        more: Makes locks of the same wheels different ones.
    """
    packages = []
    for wheel in wheels:
        package, version, *_ = wheel.file.split("-")
        packages.append(
            LockedPackage(
                name=package,
                version=version,
                index="default",
                file=wheel.file,
                size=wheel.size,
                sha256=wheel.sha256,
                tree=wheel.sha256,
            )
        )
    lock = Lock(
        spec_sha256=hashlib.sha256(more.encode()).hexdigest(),
        env="",
        site="0" * 64,
        name=name,
        snapshot="",
        python="3.12",
        python_exact="",
        platform="linux-x86_64",
        glibc="2.35",
        libraries=(),
        cuda_toolkit="",
        cuda_compute=(),
        packages=tuple(sorted(packages, key=lambda each: each.name)),
    )
    return dump_lock(dataclasses.replace(lock, env=compute_env_id(lock)))
