"""The steps between a spec and a lock, with what each leaves for the next.

This is the part of locking that has effects and needs heavy modules; `builder.locking` calls it only when something has to be decided.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

from builder.caches.opening import configured_caches
from builder.credentials import read_credentials
from builder.fetch import WantedWheel, fetch_wheels
from builder.locking import LockRequest, locked_package, site_of
from builder.measure import measure_wheel, read_facts, write_facts
from builder.overlay import build_patched_wheel
from builder.provision import overlay_folder, place_wheel
from builder.resolve import ResolvedWheel, resolve
from builder.supply import Supply, wheels_from_caches
from builder.uv import find_uv
from envspec.checks import Closure, ClosureWheel
from envspec.checks.needs import cuda_of, gpu_code_of
from envspec.checks.requirements import required_names
from envspec.errors import EnvspecError
from envspec.lock import LockedOverlay, LockedPackage
from envspec.spec import spec_digest
from envspec.tags import target_tags
from envspec.tree import Entry, manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.overlay import PatchedWheel, Series
    from builder.progress import Advance, Reporter
    from envspec.facts import WheelFacts
    from envspec.spec import Spec

SMALL_BYTES = 64 << 20
"""Below so many bytes of wheels in all, measuring in this process is quicker than starting others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A wheel that was decided upon."""

    name: str
    index: str
    file: str
    sha256: str
    size: int | None
    yanked: str
    required_by: tuple[str, ...]
    resolved: ResolvedWheel | None
    """With the place where it lies; None if the lock before named it and nothing was resolved."""


class Decision:
    """One run of locking; its methods are called in the order in which they stand."""

    def __init__(self, request: LockRequest, series: Mapping[str, Series], reporter: Reporter) -> None:
        """Begin.

        Args:
            request: What is to be locked; the caller holds `locks/gc` shared.
            series: Package -> patches on disk.
            reporter: Where progress goes.
        """
        self._request = request
        self._series = series
        self._reporter = reporter
        self._python = request.spec.python.version
        self._chosen: dict[str, _Chosen] = {}
        self._facts: dict[str, WheelFacts] = {}
        self._patched: dict[str, tuple[PatchedWheel, WheelFacts]] = {}

    def resolve(self) -> None:
        """Choose the wheels: those of the lock before if only patches changed, else what uv resolves."""
        request, previous = self._request, self._request.previous
        if previous is not None and not request.upgrade and spec_digest(request.spec) == previous.spec_sha256:
            required_by = _turned({package.name: package.requires for package in previous.packages})
            for package in previous.packages:
                self._chosen[package.name] = _Chosen(
                    name=package.name,
                    index=package.index,
                    file=package.file,
                    sha256=package.sha256,
                    size=package.size,
                    yanked="",  # judged when it was chosen
                    required_by=required_by.get(package.name, ()),
                    resolved=None,
                )
            return
        self._reporter.note("resolving")
        resolution = resolve(
            request.spec,
            uv=find_uv(request.environ),
            environ=request.environ,
            cache_dir=request.store.uv_cache,
            preferences={} if previous is None else {package.name: package.version for package in previous.packages},
            upgrade=request.upgrade,
        )
        missing = {overlay.package for overlay in request.spec.overlays} - {wheel.name for wheel in resolution.wheels}
        if missing:
            raise EnvspecError(
                f"there is an overlay for `{min(missing)}`, which is not among the {len(resolution.wheels)} packages",
                input_name=f"{request.spec_name} [overlays]",
                hint="remove the overlay, or add the package to [packages]",
            )
        for wheel in resolution.wheels:
            yanked = resolution.yanked.get(wheel.name)
            self._chosen[wheel.name] = _Chosen(
                name=wheel.name,
                index=wheel.index,
                file=wheel.file,
                sha256=wheel.sha256,
                size=wheel.size,
                yanked="" if yanked is None else yanked or "no reason given",
                required_by=resolution.required_by.get(wheel.name, ()),
                resolved=wheel,
            )

    def fetch_and_measure(self) -> None:
        """Bring the wheels into the wheelhouse and measure each as it arrives."""
        store = self._request.store
        missing: list[_Chosen] = []
        unmeasured: list[_Chosen] = []
        for chosen in self._chosen.values():
            facts = read_facts(store.facts, chosen.sha256, self._python)
            if facts is not None and facts.filename != chosen.file:
                facts = None  # the same bytes under another name
            if facts is not None:
                self._facts[chosen.name] = facts
            wheel = store.wheel(chosen.sha256, chosen.file)
            there = wheel.is_file() and (chosen.size is None or wheel.stat().st_size == chosen.size)
            # A wheel that was measured is needed again only as the base of an overlay.
            if not there and (facts is None or chosen.name in self._series):
                missing.append(chosen)
            if facts is None and there:
                unmeasured.append(chosen)
        weight = sum(chosen.size or 0 for chosen in [*missing, *unmeasured] if chosen.name not in self._facts)
        measuring = _Measuring(store.facts, self._python, weight)
        try:
            count = len(unmeasured) + sum(chosen.name not in self._facts for chosen in missing)
            with self._reporter.stage("measuring", total=count, unit="wheels") as advance:
                for chosen in unmeasured:
                    measuring.add(chosen, store.wheel(chosen.sha256, chosen.file), advance, is_hashed=False)
                self._fetch(missing, measuring, advance)
                self._facts.update(measuring.results())
        finally:
            measuring.close()

    def _fetch(self, missing: list[_Chosen], measuring: _Measuring, advance: Advance) -> None:
        if not missing:
            return
        store = self._request.store
        by_sha256 = {chosen.sha256: chosen for chosen in missing}

        def arrived(sha256: str, wheel: Path) -> None:
            chosen = by_sha256[sha256]
            if chosen.name not in self._facts:
                measuring.add(chosen, wheel, advance, is_hashed=True)

        if missing[0].resolved is None and self._request.previous is not None:
            supply = Supply.of(self._request.spec, self._request.previous, store, self._request.environ)
            names = {chosen.name for chosen in missing}
            supply.fetch(
                [package for package in self._request.previous.packages if package.name in names],
                self._reporter,
                arrived,
            )
            return
        wanted = [
            WantedWheel(file=chosen.file, sha256=chosen.sha256, size=chosen.size, url=chosen.resolved.url)
            for chosen in missing
            if chosen.resolved is not None
        ]
        spec, environ = self._request.spec, self._request.environ

        def arrived_wheel(wheel: WantedWheel, path: Path) -> None:
            arrived(wheel.sha256, path)

        left = wheels_from_caches(
            configured_caches(spec, environ),
            wanted,
            spec=spec,
            store=store,
            environ=environ,
            reporter=self._reporter,
            on_arrived=arrived_wheel,
        )
        fetch_wheels(
            left,
            wheels_dir=store.wheels,
            credentials=read_credentials(environ, spec.indexes),
            reporter=self._reporter,
            on_arrived=arrived_wheel,
        )

    def patch(self) -> None:
        """Make the patched wheels and measure them."""
        store = self._request.store
        for package, series in sorted(self._series.items()):
            chosen = self._chosen[package]
            self._reporter.note(f"patching {chosen.file}")
            with overlay_folder(store, chosen.sha256) as folder:
                patched = build_patched_wheel(store.wheel(chosen.sha256, chosen.file), series, destination_dir=folder)
                target = store.wheel(patched.sha256, patched.file)
                place_wheel(patched.path, target)
            facts = read_facts(store.facts, patched.sha256, self._python)
            if facts is None:
                facts = measure_wheel(target, filename=patched.file, sha256=patched.sha256, python=self._python)
                write_facts(store.facts, facts)
            self._patched[package] = (patched, facts)

    def closure(self) -> Closure:
        """The set that is to be judged."""
        spec = self._request.spec
        wheels: list[ClosureWheel] = []
        for name, chosen in sorted(self._chosen.items()):
            patched = self._patched.get(name)
            wheels.append(
                ClosureWheel(
                    facts=patched[1] if patched else self._facts[name],
                    index=chosen.index,
                    yanked=chosen.yanked,
                    required_by=chosen.required_by,
                    base_file=chosen.file if patched else "",
                    base_sha256=chosen.sha256 if patched else "",
                )
            )
        return Closure(
            spec=spec,
            wheels=tuple(wheels),
            accepted_tags=accepted_tags(spec),
            previous=self._request.previous.packages if self._request.previous else (),
        )

    def locked_packages(self, closure: Closure) -> tuple[LockedPackage, ...]:
        """What the lock says of the wheels.

        Args:
            closure: Of this decision.
        """
        installed = {wheel.facts.name: wheel for wheel in closure.wheels}
        requires = required_names(closure)
        return tuple(
            locked_package(
                self._facts[name],
                index=chosen.index,
                requires=requires.get(name, ()),
                installed=self._patched[name][1] if name in self._patched else None,
                cuda=cuda_of(installed[name], closure),
                gpu_code=gpu_code_of(installed[name]),
            )
            for name, chosen in sorted(self._chosen.items())
        )

    def locked_overlays(self) -> tuple[LockedOverlay, ...]:
        """What the lock says of the overlays."""
        paths = {overlay.package: overlay.series for overlay in self._request.spec.overlays}
        return tuple(
            LockedOverlay(
                package=package,
                series=paths[package],
                base_sha256=self._chosen[package].sha256,
                patches=patched.patches,
                files=patched.files,
                version=patched.version,
                file=patched.file,
                size=patched.size,
                sha256=patched.sha256,
                tree=facts.tree,
            )
            for package, (patched, facts) in sorted(self._patched.items())
        )

    def predict_site(self) -> str:
        """The site digest, from the wheels alone."""
        installed = {
            name: self._patched[name][1] if name in self._patched else self._facts[name] for name in self._chosen
        }
        return site_of([(name, manifest_of(facts)) for name, facts in installed.items()], self._request.spec.waivers)


class _Measuring:
    """Measures wheels beside each other: in other processes if there is much to measure."""

    def __init__(self, facts_dir: Path, python: str, weight_bytes: int) -> None:
        self._facts_dir = facts_dir
        self._python = python
        self._pool: ProcessPoolExecutor | None = None
        if weight_bytes > SMALL_BYTES:
            self._pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))
        self._futures: dict[str, Future[None]] = {}
        self._chosen: dict[str, _Chosen] = {}
        self._guard = threading.Lock()

    def add(self, chosen: _Chosen, wheel: Path, advance: Advance, *, is_hashed: bool) -> None:
        """Measure a wheel; may be called from any thread.

        Args:
            chosen: What it is.
            wheel: The file.
            advance: Told when it is done.
            is_hashed: Whether it was compared with its sha256 just now, as it was downloaded.
        """
        with self._guard:
            self._chosen[chosen.name] = chosen
            if self._pool is None:
                _measure(wheel, chosen.file, chosen.sha256, self._python, self._facts_dir, is_hashed=is_hashed)
                advance(1)
                return
            future = self._pool.submit(
                _measure, wheel, chosen.file, chosen.sha256, self._python, self._facts_dir, is_hashed=is_hashed
            )
            future.add_done_callback(lambda _: advance(1))
            self._futures[chosen.name] = future

    def results(self) -> dict[str, WheelFacts]:
        """Wait for all, and return name -> facts."""
        for future in self._futures.values():
            future.result()
        found: dict[str, WheelFacts] = {}
        for name, chosen in self._chosen.items():
            facts = read_facts(self._facts_dir, chosen.sha256, self._python)
            if facts is None:
                raise EnvspecError(
                    f"the facts of {chosen.file} vanished from the store while locking", hint="lock again"
                )
            found[name] = facts
        return found

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _measure(wheel: Path, file: str, sha256: str, python: str, facts_dir: Path, *, is_hashed: bool) -> None:
    if not is_hashed:
        with wheel.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != sha256:
            raise EnvspecError(
                f"the wheel {file} in the store has sha256 {found}, its place there says {sha256}",
                input_name=os.fspath(wheel),
                hint="remove that file: it is fetched again",
            )
    write_facts(facts_dir, measure_wheel(wheel, filename=file, sha256=sha256, python=python))


def accepted_tags(spec: Spec) -> tuple[str, ...]:
    """Every tag that the target of a spec installs."""
    tags = target_tags(python=spec.python.version, platform=spec.target.platform, glibc=spec.target.glibc)
    return tuple(str(tag) for tag in tags)


def manifest_of(facts: WheelFacts) -> str:
    """The manifest of what a wheel puts into an environment."""
    return manifest(Entry(file.path, "file", file.sha256, file.size, file.executable) for file in facts.files)


def _turned(relation: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The inverse of a relation between names, sorted."""
    turned: dict[str, set[str]] = {}
    for left, rights in relation.items():
        for right in rights:
            turned.setdefault(right, set()).add(left)
    return {name: tuple(sorted(names)) for name, names in turned.items()}
