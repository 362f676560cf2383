"""Where the wheels of a lock are today.

uv is asked which files the configured indexes have for each `name==version`, and a file is taken only if its sha256 is the locked one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.resolve_errors import failure_error
from builder.uv_compile import DEFAULT_INDEX, PYLOCK_OPTIONS, make_asker
from builder.uv_output import classify, parse_pylock, shown
from envspec.errors import FOUND_WRONG, EnvspecError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.uv import Uv
    from builder.uv_compile import Asker
    from builder.uv_output import OfferedWheel
    from envspec.lock import LockedPackage
    from envspec.spec import IndexSpec

FIRST_BATCH = 16  # wheels that are located on their own, so that fetching begins with the biggest
MOST_MISSING = 10  # wheels that are gone, before no more of them are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A wheel of the lock that was found again."""

    package: LockedPackage
    url: str = field(repr=False)
    """Where it is today, without credentials; never to be shown."""


def locate(
    wanted: Sequence[LockedPackage],
    *,
    python: str,
    platform: str,
    glibc: str,
    indexes: tuple[IndexSpec, ...],
    uv: Uv,
    environ: Mapping[str, str],
    cache_dir: Path,
    on_located: Callable[[Located], None] | None = None,
) -> dict[str, str]:
    """Where the configured indexes have exactly these wheels today.

    A wheel is found by its sha256 and by nothing else. No snapshot applies, as a mirror may not know when files were uploaded; a yanked
    wheel is found as well.

    Args:
        wanted: Wheels of the lock.
        python: The lock's Python: the full version if the lock names one, else the minor version.
        platform: The lock's.
        glibc: The lock's.
        indexes: The spec's.
        uv: The uv to ask.
        environ: Says, with uv.toml, where the indexes are.
        cache_dir: uv's cache.
        on_located: Called in the caller's thread for each wheel as it is found. If it is given, the biggest wheels are asked for on their
            own, beside the others, so that they are found first.

    Returns:
        sha256 -> URL.

    Raises:
        EnvspecError: A wheel is there with other bytes, or is not there; or an index cannot be asked.
    """
    _check_indexes(wanted, indexes)
    asker = make_asker(
        uv=uv,
        environ=environ,
        cache_dir=cache_dir,
        python=python,
        platform=platform,
        glibc=glibc,
        indexes=indexes,
        strangers=False,
    )
    ordered = sorted(wanted, key=lambda package: (-package.size, package.file))
    first = FIRST_BATCH if on_located else len(ordered)
    batches = [batch for batch in (ordered[:first], ordered[first:]) if batch]
    urls: dict[str, str] = {}
    problems: list[Problem] = []
    for located, wrong in _locate_batches(batches, asker):
        problems += wrong
        for one in located:
            urls[one.package.sha256] = one.url
            if on_located:
                on_located(one)
    if problems:
        raise EnvspecError(
            problems[0].message
            if len(problems) == 1
            else f"{len(problems)} wheels of the lock are not on the indexes as they were",
            hint=problems[0].hint if len(problems) == 1 else "",
            problems=tuple(sorted(problems, key=lambda problem: problem.message)) if len(problems) > 1 else (),
            exit_code=FOUND_WRONG,
        )
    return urls


def _check_indexes(wanted: Sequence[LockedPackage], indexes: Sequence[IndexSpec]) -> None:
    known = {DEFAULT_INDEX, *(index.name for index in indexes)}
    lost = [package for package in wanted if package.index not in known]
    if lost:
        raise EnvspecError(
            "the lock takes packages from an index that the spec does not have",
            problems=tuple(Problem(f"`{package.name}` comes from `{package.index}`") for package in lost),
            hint="run `envspec lock`",
            exit_code=FOUND_WRONG,
        )


def _locate_batches(
    batches: Sequence[Sequence[LockedPackage]], asker: Asker
) -> Iterator[tuple[list[Located], list[Problem]]]:
    """The answers for each batch, in the order in which they come."""
    if len(batches) == 1:  # in the caller's thread, where an interrupt ends uv too
        yield _locate_batch(batches[0], asker)
        return
    with ThreadPoolExecutor(max_workers=2) as threads:
        for done in as_completed([threads.submit(_locate_batch, batch, asker) for batch in batches]):
            yield done.result()


def _locate_batch(batch: Sequence[LockedPackage], asker: Asker) -> tuple[list[Located], list[Problem]]:
    """What was found of a batch, and what is wrong with the rest."""
    located: list[Located] = []
    problems: list[Problem] = []
    left = list(batch)
    while left:
        pins = [f"{package.name}==={_version_in_name(package)}" for package in left]
        ended, pylock = asker.compile(pins, ["--no-deps", *PYLOCK_OPTIONS])
        if ended.returncode == 0:
            offered = {package.name: package.wheels for package in parse_pylock(pylock)}
            for package in left:
                match _match(package, offered.get(package.name, ())):
                    case Located() as found:
                        located.append(found)
                    case Problem() as problem:
                        problems.append(problem)
            break
        failure = classify(ended.stderr, secrets=asker.credentials.secrets())
        gone = [package for package in left if package.name in failure.pins]
        if failure.kind not in {"unsatisfiable", "unknown-package", "sdist-only"} or not gone:
            raise failure_error(failure, asker=asker)
        problems += [_gone(package) for package in gone]
        if len(problems) >= MOST_MISSING:
            break
        left = [package for package in left if package not in gone]
    return located, problems


def _version_in_name(package: LockedPackage) -> str:
    """The version by which an index lists a file, which METADATA may put differently. With `===` it lets no local version in."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: PLC0415 - only who locates needs it

    try:
        return str(parse_wheel_filename(package.file)[1])
    except InvalidWheelFilename as error:
        raise EnvspecError(f"`{shown(package.file)}` in the lock is not the name of a wheel") from error


def _match(package: LockedPackage, offered: Sequence[OfferedWheel]) -> Located | Problem:
    for wheel in offered:
        if wheel.sha256 == package.sha256 or (wheel.file == package.file and not wheel.sha256):
            return Located(package=package, url=wheel.url)
    for wheel in offered:
        if wheel.file == package.file:
            return Problem(
                f"`{package.file}` has sha256 {wheel.sha256} on the index `{package.index}`, the lock has {package.sha256}"
                " [hash-changed]",
                hint="someone replaced the file: find out who and why before you run `envspec lock`",
            )
    return _gone(package)


def _gone(package: LockedPackage) -> Problem:
    return Problem(
        f"`{package.file}` is not on the index `{package.index}`: it was removed, or the index is another than at lock time [file-gone]",
        hint=f"use an index that has it, or put the file at wheels/{package.sha256}/{package.file} in the store",
    )
