"""Brings about what a plan is made of: wheels from the wheelhouse or the network, patched where there is an overlay, handed to the maker.

A wheel goes on to the workers the moment it is there, while others are still being fetched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.agent.realise import PlanPart, WheelDamaged
from builder.agent.store import make_folder, remove_readonly_tree, sync_folder
from builder.progress import SharedStage
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.agent.objects import ObjectMaker
    from builder.agent.realise import Plan
    from builder.agent.store import Store
    from builder.building import BuildRequest
    from builder.overlay import Series
    from builder.progress import Reporter
    from envspec.lock import LockedOverlay, LockedPackage

LARGE_WHEELS = 16

Use = Callable[[Path, bool], None]
"""What to do with a wheel: its path, and whether its sha256 was checked just now."""


def base_part(package: LockedPackage) -> PlanPart:
    """The part that a wheel is as its index offers it."""
    return PlanPart(package=package.name, file=package.file, sha256=package.sha256, tree=package.tree)


def provide(
    request: BuildRequest, plan: Plan, series: Mapping[str, Series], maker: ObjectMaker, reporter: Reporter
) -> None:
    """Hand every part to the maker: those whose wheels are there at once, the others as they arrive."""
    store = request.store
    overlays = {overlay.package: overlay for overlay in request.lock.overlays}
    packages = {package.name: package for package in request.lock.packages}
    wanted: list[LockedPackage] = []
    then: dict[str, list[Use]] = {}

    def have_or_fetch(package: LockedPackage, use: Use) -> None:
        wheel = store.wheel(package.sha256, package.file)
        if is_there(wheel, package.size):
            use(wheel, False)  # noqa: FBT003 - of the kind `Use`
            return
        if package.sha256 not in then:
            wanted.append(package)
        then.setdefault(package.sha256, []).append(use)

    for part in plan.parts:
        package = packages[part.package]
        overlay = overlays.get(part.package)
        if overlay is None:
            if maker.is_tree_there(part):
                maker.add(part, None)
            else:
                have_or_fetch(package, _adder(maker, part))
        elif maker.is_tree_there(part):
            maker.add(replace(part, donor=""), None)
        else:
            base = base_part(package)
            if maker.is_tree_there(base):
                maker.add(base, None)
            else:
                have_or_fetch(package, _adder(maker, base))
            patched = store.wheel(overlay.sha256, overlay.file)
            if is_there(patched, overlay.size):
                maker.add(part, patched)
            else:
                have_or_fetch(package, _patcher(store, maker, part, overlay, series[part.package]))
    if wanted:
        _fetch(request, wanted, then, maker, reporter)


def is_there(wheel: Path, size: int) -> bool:
    """Whether a wheel is in the wheelhouse; its sha256 is checked by the worker that reads it."""
    return wheel.is_file() and wheel.stat().st_size == size


def _adder(maker: ObjectMaker, part: PlanPart) -> Use:
    return lambda wheel, checked: maker.add(part, wheel, checked=checked)


def _patcher(store: Store, maker: ObjectMaker, part: PlanPart, overlay: LockedOverlay, series: Series) -> Use:
    def patch(base_wheel: Path, _checked: bool) -> None:  # noqa: FBT001 - of the kind `Use`
        maker.add(part, ensure_patched(store, base_wheel, overlay, series))

    return patch


def ensure_patched(store: Store, base_wheel: Path, overlay: LockedOverlay, series: Series) -> Path:
    """The patched wheel of an overlay in the wheelhouse.

    Args:
        store: The store.
        base_wheel: The base wheel.
        overlay: What was locked of it.
        series: The patches, checked against the lock.

    Raises:
        WheelDamaged: The base wheel is not the locked one.
        EnvspecError: The patches do not apply, or the result is not the locked one.
    """
    from builder.agent.files import hash_file  # noqa: PLC0415 - only where there is an overlay
    from builder.overlay import build_patched_wheel  # noqa: PLC0415

    target = store.wheel(overlay.sha256, overlay.file)
    if is_there(target, overlay.size):
        return target
    if (found := hash_file(os.fspath(base_wheel))) != overlay.base_sha256:
        raise WheelDamaged(base_wheel, f"`{base_wheel.name}` has sha256 {found}, the lock has {overlay.base_sha256}")
    with overlay_folder(store, overlay.sha256) as folder:
        patched = build_patched_wheel(base_wheel, series, destination_dir=folder)
        if (patched.sha256, patched.file) != (overlay.sha256, overlay.file):
            raise EnvspecError(
                f"the overlay of `{overlay.package}` gives {patched.file} with sha256 {patched.sha256}, "
                f"the lock has {overlay.file} with {overlay.sha256}",
                hint="lock again with this version of envspec",
                exit_code=FOUND_WRONG,
            )
        place_wheel(patched.path, target)
    return target


@contextlib.contextmanager
def overlay_folder(store: Store, sha256: str) -> Iterator[Path]:
    """An empty folder in which a patched wheel is made, under a lock of its own. Nothing of it stays, whatever happens.

    Args:
        store: The store.
        sha256: Of the wheel that the lock is named by.
    """
    lock_name = f"overlay-{sha256[:40]}"
    with store.lock(lock_name):
        folder = store.temporary(lock_name)
        try:
            yield folder
        finally:
            remove_readonly_tree(folder)


def place_wheel(source: Path, target: Path) -> None:
    """Move a finished wheel to its place in the wheelhouse, read-only and on the disk before it has its name."""
    make_folder(target.parent)
    source.chmod(0o444)
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # the wheelhouse may lie on another disk than the rest of the store
            raise
        _copy_durably(source, target)
    sync_folder(target.parent)


def _copy_durably(source: Path, target: Path) -> None:
    """Copy a wheel to another file system: there under another name first. The caller holds the lock of the wheel."""
    import shutil  # noqa: PLC0415 - beside its only use

    beside = target.with_name(f".{target.name}")
    with source.open("rb") as reader, beside.open("wb") as writer:
        shutil.copyfileobj(reader, writer)
        writer.flush()
        os.fsync(writer.fileno())
    beside.chmod(0o444)
    beside.replace(target)


def _fetch(
    request: BuildRequest,
    wanted: list[LockedPackage],
    then: Mapping[str, list[Use]],
    maker: ObjectMaker,
    reporter: Reporter,
) -> None:
    """Locate and fetch wheels; the largest are located on their own, so that they are on their way while the others are looked up."""
    from builder.supply import Supply  # noqa: PLC0415 - httpx and uv only where something is missing

    ordered = sorted(wanted, key=lambda package: -package.size)
    batches = [batch for batch in (ordered[:LARGE_WHEELS], ordered[LARGE_WHEELS:]) if batch]
    total = sum(package.size for package in wanted)
    supply = Supply.of(request.spec, request.lock, request.store, request.environ)

    errors: list[BaseException] = []

    def arrived(sha256: str, wheel: Path) -> None:
        if errors:  # the other batch failed: this one need not go on
            raise errors[0]
        for use in then[sha256]:
            use(wheel, True)  # noqa: FBT003 - of the kind `Use`

    with reporter.stage("fetching", total=total, unit="bytes") as advance:
        shared = SharedStage(reporter, advance)

        def fetch(batch: list[LockedPackage]) -> None:
            try:
                supply.fetch(batch, shared, arrived)
            except BaseException as error:  # noqa: BLE001 - carried to the main thread
                errors.append(error)
                maker.fail(error)

        threads = [threading.Thread(target=fetch, args=(batch,), daemon=True) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
