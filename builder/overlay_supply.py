"""What work on a series needs of spec, lock, store and indexes: the base wheel that is locked, or that of another version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from builder.agent.files import hash_file
from builder.git import find_git
from builder.overlay_editing import OverlayTask
from builder.overlay_rebase import TargetWheel
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.layout import normalise_name
from envspec.patch_format import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.agent.store import Store
    from builder.progress import Reporter
    from envspec.lock import Lock, LockedPackage
    from envspec.spec import Spec

DEFAULT_FOLDER = ".overlay"
"""Beside the spec; work trees lie in it under the names of their packages."""


def make_task(
    package: str,
    *,
    spec: Spec,
    spec_path: Path,
    lock: Lock,
    work_tree: Path | None,
    store: Store,
    environ: Mapping[str, str],
    reporter: Reporter,
) -> OverlayTask:
    """What is worked on.

    Args:
        package: As the user wrote it.
        spec: Has the overlay.
        spec_path: The series lies below its folder.
        lock: Names the base wheel.
        work_tree: Where it lies or is to lie; None for the default place.
        store: Its wheelhouse has the base wheel, or gets it.
        environ: Says where git and uv are, and with uv.toml, where the indexes are.
        reporter: Where progress goes.

    Raises:
        EnvspecError: The spec has no overlay for the package, the lock has no wheel of it, or there is no git.
    """
    name = normalise_name(package)
    overlay = next((one for one in spec.overlays if one.package == name), None)
    if overlay is None:
        having = ", ".join(f"`{one.package}`" for one in spec.overlays)
        raise EnvspecError(
            f"the spec has no overlay for {shown(name)}",
            input_name=f"{spec_path.name} [overlays]",
            hint=f"it has one for {having}"
            if having
            else f'give it one: `[overlays.{name}]` with `series = "overlays/NAME/series"`',
        )
    locked = next((one for one in lock.packages if one.name == name), None)
    if locked is None:
        raise EnvspecError(
            f"`{name}` is not in the lock",
            input_name=spec_path.with_suffix(".lock").name,
            hint="add it to [packages], and run `envspec lock` before it has an overlay",
        )
    folder = work_tree if work_tree is not None else _default_work_tree(spec_path.parent, name)

    def base_wheel() -> Path:
        return _ensure_locked(locked, spec=spec, lock=lock, store=store, environ=environ, reporter=reporter)

    def find_wheel(sha256: str) -> Path | None:
        return next(iter(sorted((store.wheels / sha256).glob("*.whl"))), None)

    return OverlayTask(
        package=locked,
        series=overlay.series,
        series_file=spec_path.parent.absolute() / overlay.series,
        folder=Path(os.path.abspath(folder)),  # noqa: PTH100 - links stay as they are
        git=find_git(environ),
        base_wheel=base_wheel,
        find_wheel=find_wheel,
    )


def ignore_default_folder(task: OverlayTask, spec_folder: Path) -> None:
    """Keep work trees out of the version control of the project, if they lie in the default folder."""
    parent = spec_folder.absolute() / DEFAULT_FOLDER
    if task.folder.parent == parent and not (parent / ".gitignore").exists():
        parent.mkdir(exist_ok=True)
        (parent / ".gitignore").write_text("*\n", encoding="utf-8")


def fetch_target(
    package: str, version: str, *, spec: Spec, store: Store, environ: Mapping[str, str], reporter: Reporter
) -> tuple[TargetWheel, bool]:
    """The wheel of another version, in the wheelhouse.

    Args:
        package: Normalised name.
        version: As the user wrote it.
        spec: Says the target, the snapshot and the indexes.
        store: Its wheelhouse gets the wheel.
        environ: Says where uv and the indexes are.
        reporter: Where progress goes.

    Returns:
        The wheel, and whether it was published after the snapshot of the spec.

    Raises:
        EnvspecError: There is none, or it cannot be fetched.
    """
    from builder.credentials import read_credentials  # noqa: PLC0415 - uv and httpx only where something is looked for
    from builder.fetch import WantedWheel, fetch_wheels  # noqa: PLC0415
    from builder.resolve_one import resolve_one  # noqa: PLC0415
    from builder.uv import find_uv  # noqa: PLC0415

    try:
        wanted = str(Version(version))
    except InvalidVersion:
        raise EnvspecError(f"{shown(version)} is not a version", hint="such as `0.5.12`") from None
    reporter.note(f"looking for {package} {wanted}")
    wheel, late = resolve_one(spec, package, wanted, uv=find_uv(environ), environ=environ, cache_dir=store.uv_cache)
    fetch_wheels(
        [WantedWheel(file=wheel.file, sha256=wheel.sha256, size=wheel.size, url=wheel.url)],
        wheels_dir=store.wheels,
        credentials=read_credentials(environ, spec.indexes),
        reporter=reporter,
    )
    path = store.wheel(wheel.sha256, wheel.file)
    _check(path, wheel.sha256)
    return TargetWheel(version=wheel.version, file=wheel.file, path=path), late


def _ensure_locked(
    locked: LockedPackage,
    *,
    spec: Spec,
    lock: Lock,
    store: Store,
    environ: Mapping[str, str],
    reporter: Reporter,
) -> Path:
    path = store.wheel(locked.sha256, locked.file)
    if not path.is_file() or path.stat().st_size != locked.size:
        from builder.supply import Supply  # noqa: PLC0415 - uv and httpx only where something is missing

        Supply.of(spec, lock, store, environ).fetch([locked], reporter, lambda _sha256, _path: None)
    _check(path, locked.sha256)
    return path


def _check(path: Path, sha256: str) -> None:
    found = hash_file(os.fspath(path))
    if found != sha256:
        raise EnvspecError(
            f"`{path.name}` in the store has sha256 {found}, it is to have {sha256}",
            input_name=os.fspath(path),
            hint="remove the file: it is fetched anew",
            exit_code=FOUND_WRONG,
        )


def _default_work_tree(spec_folder: Path, name: str) -> Path:
    return spec_folder / DEFAULT_FOLDER / name
