"""Whether a wheel is what its file name says, and what the last lock said of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_version

from envspec.checks.registry import check
from envspec.checks.wording import examples
from envspec.facts import Finding, Severity
from envspec.layout import normalise_name, split_wheel_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks.closure import Closure, ClosureWheel

_OLD_PLATFORMS = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
"""PEP 600 names the older platforms anew; a wheel may use either name."""


@check("tag-mismatch")
def tag_mismatch(closure: Closure) -> Iterable[Finding]:
    """The tags of a wheel's file name fit the target, and WHEEL states the same tags.

    Compressed sets are expanded before they are compared, on both sides.

    Severity: error if the file name does not fit the target, or is no wheel's name; warning if WHEEL states none of its
    tags; info if it states only some, or others besides.

    Why: installers look at the file name alone. A wheel that was built for another machine and renamed installs, and fails
    at import with `cannot open shared object file`.

    Example:
        error: kernels 1.0 is built for `cp311-cp311-manylinux_2_28_aarch64`, which the target does not install

    How to mend: lock the wheel of the right platform and Python. If no index has one, the target in the spec is older than
    what the package is built for.
    """
    accepted = frozenset(_in_new_words(tag) for tag in closure.accepted_tags)
    for wheel in closure.wheels:
        stated = split_wheel_name(wheel.facts.filename)
        if stated is None:
            yield _finding("tag-mismatch", "error", wheel, f"`{wheel.facts.filename}` is not the name of a wheel file")
            continue
        tags = _expanded(stated[3])
        if accepted.isdisjoint(tags):
            python, platform = closure.spec.python.version, closure.spec.target.platform
            target = "this interpreter" if closure.is_installed else "the target"
            yield _finding(
                "tag-mismatch",
                "error",
                wheel,
                f"{wheel.label} is built for `{stated[3]}`, which {target} does not install",
                evidence=(f"the target is Python {python} on {platform}, glibc {closure.spec.target.glibc}",),
                hint="lock a wheel for this Python and platform",
            )
        inside = {tag for line in wheel.facts.wheel_tags for tag in _expanded(line)}
        if inside and inside != tags:
            evidence = (f"file name: {', '.join(sorted(tags))}", f"WHEEL: {', '.join(sorted(inside))}")
            yield _finding(
                "tag-mismatch",
                "warning" if inside.isdisjoint(tags) else "info",
                wheel,
                f"{wheel.label} has other tags in its file name than in WHEEL: {examples(sorted(inside ^ tags))}",
                evidence=evidence,
                hint="see where the wheel comes from: somebody may have renamed it" if inside.isdisjoint(tags) else "",
            )


@check("local-version-mismatch")
def local_version_mismatch(closure: Closure) -> Iterable[Finding]:
    """The local part of a version (`+cu130`) is the same in the file name and in METADATA.

    Severity: warning.

    Why: a wheel that was renamed to carry `+cu130` installs as a version without it. Installers then find another version
    than they asked for, and install it again at every run. The identity of an environment is the sha256, so that a build
    does not do so.

    Example:
        warning: kernels 1.0 has version `1.0+cu130` in its file name and `1.0` in METADATA

    How to mend: nothing for this environment; report it to whoever built the wheel.
    """
    for wheel in closure.wheels:
        versions = _versions(wheel)
        if versions is None:
            continue
        stated, actual = versions
        if _canonical(stated) != _canonical(actual) and _public(stated) == _public(actual):
            yield _finding(
                "local-version-mismatch",
                "warning",
                wheel,
                f"{wheel.label} has version `{stated}` in its file name and `{actual}` in METADATA",
                hint="report it to whoever built the wheel; its sha256 identifies it here",
            )


@check("version-mismatch")
def version_mismatch(closure: Closure) -> Iterable[Finding]:
    """Name and version are the same in the file name and in METADATA.

    Severity: error.

    Why: the resolver decides by one, `pip list` and `importlib.metadata` show the other. uv refuses such a wheel, pip
    installs it.

    Example:
        error: kernels 1.0 has version `2.0` in its file name and `1.0` in METADATA

    How to mend: use a wheel that was not renamed.
    """
    for wheel in closure.wheels:
        split = split_wheel_name(wheel.facts.filename)
        if split is not None and normalise_name(split[0]) != wheel.facts.name:
            yield _finding(
                "version-mismatch",
                "error",
                wheel,
                f"{wheel.label} has the name `{normalise_name(split[0])}` in its file name and `{wheel.facts.name}` in METADATA",
                hint="use a wheel that was not renamed",
            )
        versions = _versions(wheel)
        if versions is not None and _public(versions[0]) != _public(versions[1]):
            yield _finding(
                "version-mismatch",
                "error",
                wheel,
                f"{wheel.label} has version `{versions[0]}` in its file name and `{versions[1]}` in METADATA",
                hint="use a wheel that was not renamed",
            )


@check("hash-changed")
def hash_changed(closure: Closure) -> Iterable[Finding]:
    """A file name stands for the same bytes as in the last lock.

    Severity: error.

    Why: a file that was uploaded again under its old name is not the one that was reviewed and measured. Indexes of single
    projects allow it, and a replaced wheel is also what an attack looks like.

    Example:
        error: sglang-kernel 0.4.5: `sglang_kernel-0.4.5-cp310-abi3-manylinux2014_x86_64.whl` is another file than in the
        last lock

    How to mend: ask the project whether it replaced the file. If it did, waive the check for one lock, which then records
    the new sha256, and remove the waiver.
    """
    before = {package.file: package for package in closure.previous}
    for wheel in closure.wheels:
        file = wheel.base_file or wheel.facts.filename
        sha256 = wheel.base_sha256 or wheel.facts.sha256
        known = before.get(file)
        if known is not None and known.sha256 != sha256:
            yield _finding(
                "hash-changed",
                "error",
                wheel,
                f"{wheel.label}: `{file}` is another file than in the last lock",
                evidence=(f"last lock: sha256 {known.sha256}", f"now: sha256 {sha256} from index {wheel.index}"),
                hint="ask the project whether it replaced the file before waiving this for one lock",
            )


@check("yanked")
def yanked(closure: Closure) -> Iterable[Finding]:
    """No file was withdrawn (yanked) by its project.

    Severity: error.

    Why: an exact pin selects a withdrawn file all the same, with no more than a warning that scrolls by. The reason is
    mostly serious: pydantic-core 2.41.3 was a corrupted upload, torchaudio 2.0.0 asked for the wrong torch.

    Example:
        error: pydantic-core 2.41.3 was withdrawn by its project: corrupted wheel got uploaded

    How to mend: choose another version. If it has to be this one, waive the check for the package and say why.
    """
    for wheel in closure.wheels:
        if wheel.yanked:
            askers = (f"required by {', '.join(wheel.required_by)}",) if wheel.required_by else ()
            yield _finding(
                "yanked",
                "error",
                wheel,
                f"{wheel.label} was withdrawn by its project: {wheel.yanked.strip().rstrip('.')}",
                evidence=(wheel.facts.filename, *askers),
                hint="choose another version, or waive it with the reason for keeping it",
            )


def _finding(
    check_id: str,
    severity: Severity,
    wheel: ClosureWheel,
    message: str,
    *,
    evidence: tuple[str, ...] = (),
    hint: str = "",
) -> Finding:
    return Finding(
        check=check_id,
        severity=severity,
        subject=wheel.label,
        message=message,
        evidence=evidence,
        hint=hint,
        packages=(wheel.facts.name,),
    )


def _expanded(tag: str) -> set[str]:
    """Every single tag of a compressed set; the text itself if it has not three parts."""
    parts = tag.split("-")
    if len(parts) != 3:
        return {tag}
    pythons, abis, platforms = (frozenset(part.split(".")) for part in parts)
    return {_in_new_words("-".join(words)) for words in itertools.product(pythons, abis, platforms)}


def _in_new_words(tag: str) -> str:
    head, _, platform = tag.rpartition("-")
    family, underscore, machine = platform.partition("_")
    return f"{head}-{_OLD_PLATFORMS[family]}{underscore}{machine}" if family in _OLD_PLATFORMS else tag


def _versions(wheel: ClosureWheel) -> tuple[str, str] | None:
    """The versions of the file name and of METADATA, verbatim; None if either is missing."""
    split = split_wheel_name(wheel.facts.filename)
    return (split[1], wheel.facts.version) if split is not None and wheel.facts.version else None


def _canonical(version: str) -> str:
    """A version such that equal ones (PEP 440) have equal texts; a file name writes `_` for `-`."""
    try:
        return canonicalize_version(version.replace("_", "-"))
    except ValueError:  # a number of more digits than Python converts
        return version


def _public(version: str) -> str:
    return _canonical(version.partition("+")[0])
