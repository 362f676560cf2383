"""Merges two versions of a lock: made anew from the merged spec and the merged patches, with the wheels of both sides, or refused.

Nothing is taken from the work tree, which git has not merged yet when it asks. Spec and patches of each side come from a commit with that side's
lock; they are believed only if the lock is current with them. The merged lock is a whole `envspec lock`, checks included: no text is merged.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.git_history import candidates, crosses, read_blob, read_folder
from builder.locking import LockRequest, make_lock, read_all_series, stale_reasons
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.lock_merge import merge_pins, moved_pins
from envspec.lock_toml import dump_lock, parse_lock
from envspec.spec import spec_digest
from envspec.spec_toml import parse_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.agent.store import Store
    from builder.git import Git
    from builder.overlay import Series
    from builder.progress import Reporter
    from envspec.lock import Lock, LockedPackage
    from envspec.spec import Spec

_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """What git asks of a merge driver."""

    git: Git
    """At the top of the work tree."""

    path: PurePosixPath
    """Of the lock, from there."""

    base: bytes
    ours: bytes
    theirs: bytes
    store: Store
    environ: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedLock:
    """A lock that holds what both sides decided."""

    text: str
    lock: Lock
    new: tuple[str, ...]
    """Packages that neither side had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One version of lock, spec and patches that belong together."""

    name: str
    lock: Lock
    spec_text: bytes
    spec: Spec
    files: Mapping[str, bytes]
    """Path from the spec's folder -> content, of every folder with a series."""

    series: Mapping[str, Series]


class MergeRefused(EnvspecError):  # noqa: N818 - it says what happened
    """A lock was not merged; the hint says how a person does it."""


def merge_locks(request: MergeRequest, reporter: Reporter) -> MergedLock:
    """Merge.

    Raises:
        MergeRefused: The lock cannot be merged; it says why and what to do. Nothing was changed.
    """
    try:
        return _merge(request, reporter)
    except MergeRefused:
        raise
    except EnvspecError as error:
        raise _refused(request, error.message, problems=error.problems, detail=error.detail) from error


def _merge(request: MergeRequest, reporter: Reporter) -> MergedLock:
    if not request.base:
        raise _refused(request, "both sides added it", hint_first="decide which spec stays")
    if crosses(request.git, request.environ):
        raise _refused(request, "the histories cross: there are several nearest common ancestors")
    with tempfile.TemporaryDirectory(prefix="envspec-merge-") as scratch:
        sides = [
            _read_side(request, content, name, Path(scratch))
            for name, content in (("base", request.base), ("ours", request.ours), ("theirs", request.theirs))
        ]
        base, ours, theirs = sides
        pins = merge_pins(base.lock, ours.lock, theirs.lock)
        if pins.disputed:
            raise _refused(
                request,
                f"both sides moved {_count(len(pins.disputed), 'package')} to different wheels",
                problems=pins.disputed,
            )
        folder = _folder(request, Path(scratch), "merged")
        spec_text = _merge_text(request, f"the spec `{_spec_path(request).name}`", *(side.spec_text for side in sides))
        files = _merge_files(request, base, ours, theirs)
        _write(folder, files)
        spec = _parse_merged(request, spec_text)
        series = read_all_series(spec, folder)
        for side in (ours, theirs):
            is_all = spec_digest(spec) == side.lock.spec_sha256 and dict(series) == dict(side.series)
            if is_all and pins.agreed == side.lock.packages:
                return MergedLock(text=dump_lock(side.lock), lock=side.lock, new=())
        previous = replace(ours.lock, spec_sha256=_NO_DIGEST, packages=pins.agreed, overlays=())
        outcome = make_lock(
            LockRequest(
                spec=spec,
                spec_name=_spec_path(request).name,
                folder=folder,
                previous=previous,
                upgrade=frozenset(),
                store=request.store,
                environ=request.environ,
            ),
            reporter,
        )
    moved = moved_pins(pins, outcome.lock)
    if moved:
        raise _refused(
            request,
            f"the merged spec needs other wheels than both sides have of {_count(len(moved), 'package')}",
            problems=moved,
        )
    text = dump_lock(outcome.lock)
    parse_lock(text, input_name=request.path.name)  # what could not be read back must not be written
    known = {package.name for package in pins.agreed}
    return MergedLock(text=text, lock=outcome.lock, new=_new(outcome.lock.packages, known))


def _new(packages: tuple[LockedPackage, ...], known: set[str]) -> tuple[str, ...]:
    return tuple(package.name for package in packages if package.name not in known)


def _read_side(request: MergeRequest, content: bytes, name: str, scratch: Path) -> _Side:
    """A side with the spec and the patches that belong to its lock."""
    shown = f"{request.path} ({name})"
    try:
        lock = parse_lock(content.decode("utf-8"), input_name=shown)
    except UnicodeDecodeError as error:
        raise EnvspecError(f"byte {error.start} is not UTF-8", input_name=shown) from error
    reasons: tuple[str, ...] = ()
    for number, commit in enumerate(candidates(request.git, request.path, content, request.environ)):
        spec_text = read_blob(request.git, commit, _spec_path(request))
        if spec_text is None:
            continue
        try:
            spec = parse_spec(spec_text.decode("utf-8"), input_name=f"{_spec_path(request)} ({name})")
            files = _overlay_files(request, commit, spec)
            folder = _folder(request, scratch, f"{name}-{number}")
            _write(folder, files)
            series = read_all_series(spec, folder)
        except (EnvspecError, UnicodeDecodeError):
            continue  # this commit has no spec that its lock could have been made from
        stale = stale_reasons(spec, lock, series)
        if not stale:
            return _Side(name=name, lock=lock, spec_text=spec_text, spec=spec, files=files, series=series)
        reasons = reasons or stale
    if reasons:
        raise _refused(
            request,
            f"the lock of {name} does not describe the spec and the patches beside it",
            problems=tuple(Problem(reason) for reason in reasons),
        )
    raise _refused(request, f"no commit has the lock of {name} beside a spec")


def _overlay_files(request: MergeRequest, commit: str, spec: Spec) -> dict[str, bytes]:
    """The files of each folder with a series, by their path from the spec's folder."""
    found: dict[str, bytes] = {}
    for folder in sorted({PurePosixPath(overlay.series).parent for overlay in spec.overlays}):
        for name, content in read_folder(request.git, commit, request.path.parent / folder).items():
            found[str(folder / name)] = content
    return found


def _merge_files(request: MergeRequest, base: _Side, ours: _Side, theirs: _Side) -> dict[str, bytes]:
    """The merged files of overlays; of two changes to one file only a series is merged as text."""
    merged: dict[str, bytes] = {}
    series = {overlay.series for side in (base, ours, theirs) for overlay in side.spec.overlays}
    for path in sorted(ours.files.keys() | theirs.files.keys()):
        old, left, right = base.files.get(path), ours.files.get(path), theirs.files.get(path)
        if right in (left, old):
            content = left
        elif left == old:
            content = right
        elif path in series and old is not None and left is not None and right is not None:
            content = _merge_text(request, f"the series `{path}`", old, left, right)
        else:
            raise _refused(request, f"both sides changed `{path}`")
        if content is not None:
            merged[path] = content
    return merged


def _merge_text(request: MergeRequest, shown: str, old: bytes, left: bytes, right: bytes) -> bytes:
    if right in (left, old):
        return left
    if left == old:
        return right
    with tempfile.TemporaryDirectory(prefix="envspec-merge-") as scratch:
        paths = [Path(scratch) / name for name in ("ours", "base", "theirs")]
        for path, content in zip(paths, (left, old, right), strict=True):
            path.write_bytes(content)
        ended = request.git.ask(["merge-file", "-p", *map(str, paths)])
    if ended.returncode != 0:
        raise _refused(request, f"{shown} conflicts itself", hint_first=f"resolve {shown}")
    return ended.stdout


def _parse_merged(request: MergeRequest, text: bytes) -> Spec:
    try:
        return parse_spec(text.decode("utf-8"), input_name=f"{_spec_path(request)} (merged)")
    except EnvspecError as error:
        raise _refused(
            request, "the merged spec is not one", problems=error.problems or (Problem(error.message),)
        ) from error


def _spec_path(request: MergeRequest) -> PurePosixPath:
    return request.path.with_suffix(".toml")


def _folder(request: MergeRequest, scratch: Path, name: str) -> Path:
    """An empty folder for a spec's files; it is called as the spec's folder is, since that may be the name of a series."""
    spec_folder = request.git.folder / request.path.parent
    folder = scratch / name / spec_folder.name
    folder.mkdir(parents=True)
    return folder


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _refused(
    request: MergeRequest, why: str, *, problems: tuple[Problem, ...] = (), hint_first: str = "", detail: str = ""
) -> MergeRefused:
    name, spec = request.path, _spec_path(request)
    first = hint_first or f"resolve `{spec}` where it conflicts"
    return MergeRefused(
        f"`{name}` was not merged: {why}",
        problems=problems,
        detail=detail,
        hint=f"{first}; take one side's lock (`git checkout --ours -- {name}`, or `--theirs`), run `envspec lock`, "
        f"and `git add {spec} {name}`",
        exit_code=FOUND_WRONG,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
