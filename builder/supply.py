"""Brings locked wheels into the wheelhouse: from the caches in their order, then from where uv says that the index has them today.

Their sha256 decides, wherever they come from. Where caches have everything, neither uv nor an index is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.caches.opening import configured_caches
from builder.credentials import Credentials, read_credentials
from builder.fetch import WantedWheel, fetch_from, fetch_wheels
from builder.locate import locate
from builder.progress import SharedStage, remark
from builder.uv import find_uv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from builder.agent.store import Store
    from builder.progress import Reporter
    from envspec.lock import Lock, LockedPackage
    from envspec.spec import CacheSpec, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Where locked wheels come from."""

    spec: Spec
    lock: Lock
    store: Store
    environ: Mapping[str, str] = field(repr=False)
    caches: tuple[CacheSpec, ...]
    """In the order in which they are asked."""

    @classmethod
    def of(cls, spec: Spec, lock: Lock, store: Store, environ: Mapping[str, str]) -> Supply:
        """The supply of a lock.

        Raises:
            EnvspecError: The user's configuration cannot be read.
        """
        return cls(spec=spec, lock=lock, store=store, environ=environ, caches=configured_caches(spec, environ))

    @property
    def credentials(self) -> Credentials:
        """For the files of the indexes.

        Raises:
            EnvspecError: The user's configuration of uv cannot be read.
        """
        return read_credentials(self.environ, self.spec.indexes)

    def fetch(
        self, packages: Sequence[LockedPackage], reporter: Reporter, on_arrived: Callable[[str, Path], None]
    ) -> None:
        """Bring wheels into the wheelhouse.

        Args:
            packages: Which.
            reporter: Where progress goes, and what is said of caches that fail.
            on_arrived: Told the sha256 and the path of each wheel as it is in place, from any thread.

        Raises:
            EnvspecError: A wheel cannot be found or fetched, or is not the locked one.
        """
        total = sum(package.size for package in packages)
        with reporter.stage("fetching", total=total, unit="bytes") as advance:
            shared = SharedStage(reporter, advance)
            left = self.fetch_from_caches(packages, shared, on_arrived) if self.caches else tuple(packages)
            if left:
                self._fetch_from_indexes(left, shared, on_arrived)

    def fetch_from_caches(
        self, packages: Sequence[LockedPackage], reporter: Reporter, on_arrived: Callable[[str, Path], None]
    ) -> tuple[LockedPackage, ...]:
        """Bring wheels into the wheelhouse, as far as caches have them (as `fetch`).

        Returns:
            Those that no cache gave.
        """
        wanted = [
            WantedWheel(file=package.file, sha256=package.sha256, size=package.size, url="") for package in packages
        ]
        left = wheels_from_caches(
            self.caches,
            wanted,
            spec=self.spec,
            store=self.store,
            environ=self.environ,
            reporter=reporter,
            on_arrived=lambda wheel, path: on_arrived(wheel.sha256, path),
        )
        missing = {wheel.sha256 for wheel in left}
        return tuple(package for package in packages if package.sha256 in missing)

    def locate(self, packages: Sequence[LockedPackage]) -> dict[str, str]:
        """Where wheels are on indexes today: sha256 -> URL without credentials, never to be shown.

        Raises:
            EnvspecError: One cannot be found, or there is no uv.
        """
        return locate(
            packages,
            python=self.lock.python_exact or self.lock.python,
            platform=self.lock.platform,
            glibc=self.lock.glibc,
            indexes=self.spec.indexes,
            uv=find_uv(self.environ),
            environ=self.environ,
            cache_dir=self.store.uv_cache,
        )

    def _fetch_from_indexes(
        self, packages: Sequence[LockedPackage], reporter: Reporter, on_arrived: Callable[[str, Path], None]
    ) -> None:
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


def wheels_from_caches(
    caches: Sequence[CacheSpec],
    wanted: Sequence[WantedWheel],
    *,
    spec: Spec,
    store: Store,
    environ: Mapping[str, str],
    reporter: Reporter,
    on_arrived: Callable[[WantedWheel, Path], None],
) -> tuple[WantedWheel, ...]:
    """Bring wheels into the wheelhouse, as far as caches have them.

    Args:
        caches: In the order in which they are asked.
        wanted: Which; those whose size nobody knows are not asked for.
        spec: Whose hosts caches may be.
        store: Whose wheelhouse.
        environ: Where credentials are looked for.
        reporter: Where progress goes, and what is said of caches that fail.
        on_arrived: Told each wheel and its path as it is in place, from any thread.

    Returns:
        Those that no cache gave.

    Raises:
        EnvspecError: A wheel cannot be written.
    """
    if not caches:
        return tuple(wanted)
    from builder.caches.sources import CacheSources  # noqa: PLC0415 - only where there are caches

    with CacheSources(caches, spec, environ, lambda text: remark(reporter, text)) as sources:
        left = fetch_from(
            sources.bring,
            [wheel for wheel in wanted if wheel.size is not None],
            wheels_dir=store.wheels,
            reporter=reporter,
            on_arrived=on_arrived,
        )
    return (*left, *(wheel for wheel in wanted if wheel.size is None))
