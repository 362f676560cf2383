"""Brings locked wheels into the wheelhouse: uv says where they are today, httpx fetches them, their sha256 decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.credentials import Credentials, read_credentials
from builder.fetch import WantedWheel, fetch_wheels
from builder.locate import locate
from builder.uv import Uv, find_uv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from builder.agent.store import Store
    from builder.progress import Reporter
    from envspec.lock import Lock, LockedPackage
    from envspec.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Where locked wheels come from."""

    spec: Spec
    lock: Lock
    store: Store
    uv: Uv
    environ: Mapping[str, str] = field(repr=False)
    credentials: Credentials = field(repr=False)

    @classmethod
    def of(cls, spec: Spec, lock: Lock, store: Store, environ: Mapping[str, str]) -> Supply:
        """The supply of a lock.

        Raises:
            EnvspecError: There is no uv.
        """
        return cls(
            spec=spec,
            lock=lock,
            store=store,
            uv=find_uv(environ),
            environ=environ,
            credentials=read_credentials(environ, spec.indexes),
        )

    def fetch(
        self, packages: Sequence[LockedPackage], reporter: Reporter, on_arrived: Callable[[str, Path], None]
    ) -> None:
        """Bring wheels into the wheelhouse.

        Args:
            packages: Which.
            reporter: Where progress goes.
            on_arrived: Told the sha256 and the path of each wheel as it is in place, from any thread.

        Raises:
            EnvspecError: A wheel cannot be found or fetched, or is not the locked one.
        """
        urls = self.locate(packages)
        fetch_wheels(
            [
                WantedWheel(file=package.file, sha256=package.sha256, size=package.size, url=urls[package.sha256])
                for package in packages
            ],
            wheels_dir=self.store.wheels,
            credentials=self.credentials,
            reporter=reporter,
            on_arrived=lambda wheel, path: on_arrived(wheel.sha256, path),
        )

    def locate(self, packages: Sequence[LockedPackage]) -> dict[str, str]:
        """Where wheels are today: sha256 -> URL without credentials, never to be shown.

        Raises:
            EnvspecError: One cannot be found.
        """
        return locate(
            packages,
            python=self.lock.python_exact or self.lock.python,
            platform=self.lock.platform,
            glibc=self.lock.glibc,
            indexes=self.spec.indexes,
            uv=self.uv,
            environ=self.environ,
            cache_dir=self.store.uv_cache,
        )
