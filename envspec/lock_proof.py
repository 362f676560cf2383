"""Does a lock say what follows from its spec and from what was measured in its wheels? Each field that does not is named.

A lock is text, and somebody may have edited it. `parse_lock` proves its form and that it does not contradict itself; what it says of the
spec and of the wheels can be worked out again, and is compared here field by field. Nothing is believed because it stands in the lock.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from envspec.errors import Problem
from envspec.forms import quoted
from envspec.layout import site_packages
from envspec.lock import Lock, LockedFinding, LockedHook, LockedNeeds, LockedOverlay, LockedPackage, PatchedFile
from envspec.spec import snapshot_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envspec.checks import Closure, Verdict
    from envspec.facts import Finding, WheelFacts
    from envspec.spec import IndexSpec, Spec

DEFAULT_INDEX = "default"
UNREPEATABLE = frozenset({"yanked", "hash-changed"})
"""Checks that judge by what the index said, or by the lock before: their findings cannot be worked out from wheels."""

_KEYS = {  # where the text of a lock has another name for a field
    "spec_sha256": "spec",
    "python": "python.version",
    "python_exact": "python.exact",
    "platform": "target.platform",
    "glibc": "target.glibc",
    "libraries": "target.libraries",
    "cuda_toolkit": "cuda.toolkit",
    "cuda_compute": "cuda.compute",
    "files": "change",
    "packages": "package",
    "overlays": "overlay",
    "waivers": "waiver",
    "findings": "finding",
    "hooks": "hook",
    "patches": "patch",
}
_NAMES = {"packages": "name", "overlays": "package", "files": "path", "hooks": "path"}  # items that go by a name


def declared(spec: Spec, lock: Lock) -> Lock:
    """The lock with everything that it takes over from its spec as the spec has it; the spec's digest stays.

    Args:
        spec: The spec.
        lock: The lock beside it.
    """
    series = {overlay.package: overlay.series for overlay in spec.overlays}
    return replace(
        lock,
        name=spec.name,
        snapshot=snapshot_text(spec.snapshot),
        python=spec.python.version,
        python_exact=spec.python.exact,
        platform=spec.target.platform,
        glibc=spec.target.glibc,
        libraries=spec.target.libraries,
        cuda_toolkit=spec.cuda.toolkit if spec.cuda else "",
        cuda_compute=spec.cuda.compute if spec.cuda else (),
        overrides=override_texts(spec),
        waivers=spec.waivers,
        packages=tuple(replace(each, index=index_name(spec.indexes, each.name)) for each in lock.packages),
        overlays=tuple(replace(each, series=series.get(each.package, each.series)) for each in lock.overlays),
    )


def override_texts(spec: Spec) -> tuple[str, ...]:
    """The overrides of a spec as a lock has them: PEP 508 requirements, sorted."""
    return tuple(
        sorted(
            f"{each.name}{'[' + ','.join(each.extras) + ']' if each.extras else ''}{each.specifier}"
            for each in spec.overrides
        )
    )


def index_name(indexes: tuple[IndexSpec, ...], package: str) -> str:
    """What a lock calls the index that a package has to come from.

    Args:
        indexes: Of the spec.
        package: Normalised name.
    """
    named = (each.name for each in indexes if any(fnmatchcase(package, pattern) for pattern in each.packages))
    return next(named, DEFAULT_INDEX)


def measured_packages(lock: Lock, facts: Mapping[str, WheelFacts]) -> Lock:
    """The lock with what each wheel alone says of itself as it was measured; wheels without facts stay as they are.

    Args:
        lock: The lock.
        facts: sha256 -> facts of the wheel.
    """
    patched = {overlay.package: facts.get(overlay.sha256) for overlay in lock.overlays}
    with_overlay = patched.keys()
    packages: list[LockedPackage] = []
    for package in lock.packages:
        base = facts.get(package.sha256)
        installed = patched[package.name] if package.name in with_overlay else base
        if base is not None:
            package = replace(  # noqa: PLW2901 - the same package, step by step
                package,
                name=base.name,
                version=base.version,
                file=base.filename,
                size=base.size,
                tree=base.tree,
                requires_python=base.requires_python,
            )
        if installed is not None:
            hooks = tuple(LockedHook(path=each.path, sha256=each.sha256, code=each.code) for each in installed.hooks)
            package = replace(package, hooks=hooks)  # noqa: PLW2901
        packages.append(package)
    bases = {package.name: package for package in lock.packages}
    overlays = tuple(
        _measured_overlay(overlay, facts.get(bases[overlay.package].sha256), patched[overlay.package], lock.python)
        for overlay in lock.overlays
    )
    return replace(lock, packages=tuple(packages), overlays=overlays)


def _measured_overlay(
    overlay: LockedOverlay, base: WheelFacts | None, patched: WheelFacts | None, python: str
) -> LockedOverlay:
    if patched is None:
        return overlay
    overlay = replace(overlay, version=patched.version, file=patched.filename, size=patched.size, tree=patched.tree)
    return overlay if base is None else replace(overlay, files=_changes(overlay, base, patched, python))


def _changes(overlay: LockedOverlay, base: WheelFacts, patched: WheelFacts, python: str) -> tuple[PatchedFile, ...]:
    """What differs between two wheels where they are installed; of what a wheel installs elsewhere, what the lock says stays."""
    folder = site_packages(python) + "/"
    before, after = ({each.path: each.sha256 for each in facts.files} for facts in (base, patched))
    elsewhere = [each for each in overlay.files if ".data/" in each.path]
    found = [
        PatchedFile(path=path.removeprefix(folder), before=before.get(path, ""), after=after.get(path, ""))
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
        and path.startswith(folder)
        and ".dist-info/" not in path  # written anew in any patched wheel, since its version is another one
    ]
    return tuple(sorted([*found, *elsewhere], key=lambda each: each.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the wheels of an environment say together."""

    site: str
    needs: LockedNeeds
    requires: Mapping[str, tuple[str, ...]]
    cuda: Mapping[str, str]
    gpu_code: Mapping[str, tuple[str, ...]]
    findings: tuple[LockedFinding, ...]


def judge(closure: Closure, verdict: Verdict, site: str) -> Judgement:
    """What a lock has to say of its wheels together.

    Args:
        closure: Of the wheels.
        verdict: On the closure.
        site: The digest that their trees give.
    """
    # Heavy, and only where every wheel was measured.
    from envspec.checks.needs import cuda_of, gpu_code_of, needs_of  # noqa: PLC0415
    from envspec.checks.requirements import required_names  # noqa: PLC0415

    return Judgement(
        site=site,
        needs=needs_of(closure),
        requires=required_names(closure),
        cuda={wheel.facts.name: cuda_of(wheel, closure) for wheel in closure.wheels},
        gpu_code={wheel.facts.name: gpu_code_of(wheel) for wheel in closure.wheels},
        findings=locked_findings(verdict),
    )


def judged_lock(lock: Lock, judgement: Judgement) -> Lock:
    """The lock with what all its wheels say together.

    Args:
        lock: The lock.
        judgement: On its wheels.
    """
    kept = [finding for finding in lock.findings if finding.check in UNREPEATABLE]
    found = [finding for finding in judgement.findings if finding.check not in UNREPEATABLE]
    return replace(
        lock,
        site=judgement.site,
        needs=judgement.needs,
        packages=tuple(
            replace(
                package,
                requires=judgement.requires.get(package.name, ()),
                cuda=judgement.cuda.get(package.name, ""),
                gpu_code=judgement.gpu_code.get(package.name, ()),
            )
            for package in lock.packages
        ),
        findings=_ordered([*found, *kept]),
    )


def locked_findings(verdict: Verdict) -> tuple[LockedFinding, ...]:
    """The findings of a verdict that a lock keeps, in its order."""
    kept = [_locked(finding, "") for finding in verdict.findings if finding.severity != "info"]
    return _ordered([*kept, *(_locked(finding, waiver.reason) for finding, waiver in verdict.waived)])


def _locked(finding: Finding, waived: str) -> LockedFinding:
    return LockedFinding(
        check=finding.check,
        severity=finding.severity,
        subject=finding.subject,
        message=finding.message,
        waived=waived,
    )


def _ordered(findings: list[LockedFinding]) -> tuple[LockedFinding, ...]:
    return tuple(sorted(findings, key=lambda each: (each.check, each.subject, each.message)))


def differences(lock: Lock, expected: Lock, *, source: str) -> tuple[Problem, ...]:
    """Each field of a lock that is not as expected.

    Args:
        lock: As it stands in the file.
        expected: As it has to be.
        source: Who says so, for messages: `the spec has`.
    """
    return tuple(
        Problem(f"the lock has {_shown(found)}, {source} {_shown(wanted)}", where=path)
        for path, found, wanted in _walk("", lock, expected)
    )


def _walk(path: str, found: object, expected: object) -> Iterator[tuple[str, object, object]]:
    if found == expected:
        return
    if dataclasses.is_dataclass(found) and type(found) is type(expected):
        for field in dataclasses.fields(found):
            inner = _KEYS.get(field.name, field.name)
            # `libraries` and `python` have other names at the top only.
            key = inner if not path or "." not in inner else field.name
            below = f"{path}.{key}" if path else key
            yield from _items(field.name, below, getattr(found, field.name), getattr(expected, field.name))
        return
    yield path, found, expected


def _items(name: str, path: str, found: object, expected: object) -> Iterator[tuple[str, object, object]]:
    """The differences of a field, which may be a tuple of tables."""
    both = [*found, *expected] if isinstance(found, tuple) and isinstance(expected, tuple) else []
    if not both or not dataclasses.is_dataclass(both[0]) or not isinstance(found, tuple):
        yield from _walk(path, found, expected)
        return
    label = _NAMES.get(name)
    sides: list[dict[str, object]] = []
    for side in (found, expected):
        assert isinstance(side, tuple)  # noqa: S101 - as above
        sides.append({str(getattr(each, label)) if label else str(number): each for number, each in enumerate(side)})
    # By name where the names are the same ones, else by place: then a name is what differs.
    if label and sides[0].keys() != sides[1].keys() and len(sides[0]) == len(sides[1]):
        sides = [{str(number): each for number, each in enumerate(side.values())} for side in sides]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = sides[0].get(key), sides[1].get(key)
        if one is None or other is None:
            yield f"{path}[{key}]", one, other
        else:
            yield from _walk(f"{path}[{key}]", one, other)


def _shown(value: object) -> str:
    if value is None:
        return "no such table"
    if isinstance(value, str):
        return quoted(value) if value else "nothing"
    if isinstance(value, tuple):
        return (
            "[" + ", ".join(_shown(each) for each in value[:8]) + (", …" if len(value) > 8 else "") + "]"
            if value
            else "nothing"
        )
    if isinstance(value, int):
        return f"`{value}`"
    return "such a table"
