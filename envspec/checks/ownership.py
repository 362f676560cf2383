"""Who owns each path of an environment: one wheel, and never one that belongs to the environment itself.

Installers write wheel after wheel, or several at once: where two have one path, which of them wins depends on the installer, and with some on
chance.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from envspec.checks.anomalies import Wording, findings_of_wheel
from envspec.checks.registry import check
from envspec.checks.waivers import findings_of_paths, shortcomings
from envspec.checks.wording import counted, evidence, examples, joined
from envspec.facts import Finding, InstalledFile
from envspec.tree import is_host_path, parent_dirs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envspec.checks.closure import Closure, ClosureWheel

    Owned = tuple[ClosureWheel, InstalledFile]

MANY_SHARED = 10
"""From this many shared paths on, two packages are taken for two issues of the same one."""

SIMILAR_WORDS = 0.6
"""How alike two words are, from 0 to 1, for one to be taken for the other's new name: `sgl` and `sglang` have 0.67."""


@check("file-collision")
def file_collision(closure: Closure) -> Iterable[Finding]:
    """Every file of the environment has one owner.

    Severity: error if the contents differ, or if one package has a file where another has a folder; warning for paths that
    differ only in upper and lower case; info for files that are alike in every package.

    Why: where two wheels hold different bytes for one path, the last one written wins. uv installs wheels side by side, so
    that the winner changes from one installation to the next, and uninstalling one package deletes the file of the other.
    What comes of it is a TypeError in a compiler or bad PTX, on one host of eight.

    Example:
        error: opencv-python and opencv-python-headless have different contents for 3 of 79 shared files:
        `cv2/cv2.abi3.so`, `cv2/typing/__init__.py` and `cv2/version.py`

    How to mend: keep one of the packages. If the file does not matter, decide which one stays:

        [[waivers]]
        check = "file-collision"
        package = "flashinfer-python"
        path = "build_backend.py"
        owner = "flashinfer-python"
        reason = "a build script that neither package imports"
    """
    owners = _owners(closure)
    contended = {path: owned for path, owned in owners.items() if len(owned) > 1}
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    differing: dict[tuple[str, ...], list[str]] = defaultdict(list)
    alike: dict[str, list[Owned]] = {}
    for path, owned in sorted(contended.items()):
        names = _names(owned)
        shared[names].append(path)
        if _differ(owned):
            if not path.startswith("bin/"):
                differing[names].append(path)
        else:
            alike[path] = owned

    for names, paths in sorted(differing.items()):
        hint = _collision_hint(names, [_shown(path, contended[path]) for path in shared[names]])
        yield from _collisions(
            closure,
            "file-collision",
            names,
            {_shown(path, contended[path]): contended[path] for path in paths},
            noun="file",
            shared=len(shared[names]),
            hint=hint,
        )
    yield from _file_against_folder(closure, owners)
    yield from _case_clashes(owners)
    if alike:
        packages = tuple(sorted({wheel.facts.name for owned in alike.values() for wheel, _ in owned}))
        paths = [_shown(path, owned) for path, owned in alike.items()]
        yield Finding(
            check="file-collision",
            severity="info",
            subject=counted(len(packages), "package"),
            message=f"{counted(len(paths), 'file')} with equal contents in several packages: {examples(paths)}",
            evidence=evidence(
                [f"{shown}: {joined(_names(alike[path]))}" for path, shown in zip(alike, paths, strict=True)]
            ),
            packages=packages,
        )


@check("script-collision")
def script_collision(closure: Closure) -> Iterable[Finding]:
    """Every command in `bin/` has one owner.

    Severity: error.

    Why: two wheels that both define a command `serve` install without a word, and which of them runs depends on the order.

    Example:
        error: vllm-router and sglang-router have different contents for 1 command: `bin/serve`

    How to mend: keep one of the packages, or name the one whose command stays as `owner` of a waiver for the path
    `bin/serve`.
    """
    groups: dict[tuple[str, ...], dict[str, list[Owned]]] = defaultdict(dict)
    for path, owned in sorted(_owners(closure).items()):
        if path.startswith("bin/") and len(owned) > 1 and _differ(owned):
            groups[_names(owned)][path] = owned
    for names, paths in sorted(groups.items(), key=lambda group: group[0]):
        yield from _collisions(
            closure,
            "script-collision",
            names,
            paths,
            noun="command",
            shared=len(paths),
            hint="keep one of the packages, or waive it with a `path` and the `owner` whose command stays",
        )


@check("reserved-path")
def reserved_path(closure: Closure) -> Iterable[Finding]:
    """No wheel writes what belongs to the environment itself.

    These are `bin/python*`, `bin/activate*`, `pyvenv.cfg` and `lib64`.

    Severity: error.

    Why: a wheel reaches them through `.data/data`, `.data/scripts` or a console script of that name. uv and pip both
    overwrite `activate` and `pyvenv.cfg` silently, and with them decide which interpreter and which packages run.

    Example:
        error: dd 1.0 has 2 files for paths that belong to the environment itself: `bin/activate` and `pyvenv.cfg`

    How to mend: do not use the wheel, or take the file out with an overlay.
    """
    wording = Wording(
        check="reserved-path",
        severity="error",
        one="file for a path that belongs to the environment itself",
        many="files for paths that belong to the environment itself",
        hint="do not use the wheel, or take the file out with an overlay",
    )
    for wheel in closure.wheels:
        details = {anomaly.path: anomaly.detail for anomaly in wheel.facts.anomalies if anomaly.kind == "reserved-path"}
        outside = (file.path for file in wheel.facts.files if not file.path.startswith(wheel.site_packages))
        details.update({path: f"`{path}` would be written" for path in outside if is_reserved(path)})
        yield from findings_of_wheel(closure, wheel, details, wording)


def is_reserved(path: str) -> bool:
    """Whether a path, or a folder that it would need, belongs to the environment; bytecode is `shipped-bytecode`'s."""
    pieces = path.split("/")
    above = ("/".join(pieces[:count]) for count in range(1, len(pieces) + 1))
    return any(piece != "__pycache__" and is_host_path(place) for piece, place in zip(pieces, above, strict=True))


def _owners(closure: Closure) -> dict[str, list[Owned]]:
    """Path in the environment -> the wheels that have it, each with its file."""
    owners: dict[str, list[Owned]] = {}
    for wheel in closure.wheels:
        for file in wheel.facts.files:
            owners.setdefault(file.path, []).append((wheel, file))
    return owners


def _names(owned: Sequence[Owned]) -> tuple[str, ...]:
    return tuple(sorted(wheel.facts.name for wheel, _ in owned))


def _shown(path: str, owned: Sequence[Owned]) -> str:
    return owned[0][0].shown_path(path)


def _differ(owned: Sequence[Owned]) -> bool:
    """Whether it matters which file stays; the executable bit is part of the tree digest too."""
    return len({(file.sha256, file.executable) for _, file in owned}) > 1


def _collisions(
    closure: Closure,
    check_id: str,
    names: tuple[str, ...],
    contended: dict[str, list[Owned]],
    *,
    noun: str,
    shared: int,
    hint: str,
) -> Iterator[Finding]:
    """The finding of all contended paths (as shown) of one set of packages, in the parts that waivers make of it."""
    packages = tuple(dict.fromkeys(names))
    askers = [
        f"{wheel.facts.name} is required by {joined(wheel.required_by)}"
        for wheel, _ in next(iter(contended.values()))
        if wheel.required_by
    ]
    details = {
        path: ", ".join(
            f"{wheel.facts.name} has sha256 {file.sha256[:12]}{' (executable)' if file.executable else ''}"
            for wheel, file in owned
        )
        for path, owned in contended.items()
    }
    template = Finding(
        check=check_id,
        severity="error",
        subject=joined(names),
        message="",
        hint=hint,
        packages=packages,
    )

    def message(paths: Sequence[str]) -> str:
        count = f"{len(paths)} of {shared} shared {noun}s" if len(paths) < shared else counted(shared, noun)
        return f"{joined(names)} have different contents for {count}: {examples(paths)}"

    for finding in findings_of_paths(closure.spec.waivers, template, details, message):
        lacks = dict.fromkeys(shortcomings(closure.spec.waivers, finding))
        yield replace(
            finding,
            message=finding.message + "".join(f"; the waiver has no effect, {lack}" for lack in lacks),
            evidence=(*finding.evidence, *askers),
        )


def _collision_hint(names: Sequence[str], shared: Sequence[str]) -> str:
    """What to do about two packages with the same paths, from what their names and paths have in common."""
    top, count = Counter(path.split("/", 1)[0] for path in shared).most_common(1)[0]
    if len(names) == 2 and count >= MANY_SHARED and 2 * count >= len(shared):
        first, second = names
        if _is_new_name(first, second):
            return (
                f"{first} and {second} are one package under an old and a new name, both install `{top}`: keep the successor"
                " package and exclude the other by an override"
            )
        if _have_words_in_common(first, second):
            return f"{first} and {second} both install `{top}`: keep one and exclude the other by an override"
    return "keep one of the packages, or waive it with a `path` and the `owner` whose file stays"


def _is_new_name(first: str, second: str) -> bool:
    """Whether one name may be the other one's after a renaming: one word differs, and the two are much alike.

    Words that differ only in a number, such as `cu12` and `cu13`, name variants and not a renaming.
    """
    words = list(zip(first.split("-"), second.split("-"), strict=False))
    differing = [(one, other) for one, other in words if one != other]
    if first.count("-") != second.count("-") or len(differing) != 1:
        return False
    one, other = differing[0]
    if re.sub(r"\d+", "", one) == re.sub(r"\d+", "", other):
        return False
    return difflib.SequenceMatcher(a=one, b=other, autojunk=False).ratio() >= SIMILAR_WORDS


def _have_words_in_common(first: str, second: str) -> bool:
    one, other = set(first.split("-")), set(second.split("-"))
    return 2 * len(one & other) >= min(len(one), len(other))


def _file_against_folder(closure: Closure, owners: dict[str, list[Owned]]) -> Iterator[Finding]:
    clashes = sorted(parent_dirs(owners) & owners.keys())
    if not clashes:
        return
    below: dict[str, set[str]] = {path: set() for path in clashes}
    for path, owned in owners.items():
        for folder in parent_dirs([path]) & below.keys():
            below[folder].update(_names(owned))
    for path in clashes:
        shown = _shown(path, owners[path])
        having, inside = _names(owners[path]), tuple(sorted(below[path]))
        packages = tuple(sorted({*having, *inside}))
        finding = Finding(
            check="file-collision",
            severity="error",
            subject=joined(packages),
            message=f"`{shown}` is a file in {joined(having)} and a folder in {joined(inside)}",
            hint="keep one of the packages; no waiver can put a file in place of a folder",
            packages=packages,
        )
        lacks = dict.fromkeys(shortcomings(closure.spec.waivers, finding))
        yield replace(
            finding, message=finding.message + "".join(f"; the waiver has no effect, {lack}" for lack in lacks)
        )


def _case_clashes(owners: dict[str, list[Owned]]) -> Iterator[Finding]:
    by_folded: dict[str, list[str]] = defaultdict(list)
    for path in owners:
        by_folded[path.casefold()].append(path)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for _, paths in sorted(by_folded.items()):
        if len(paths) > 1:
            packages = {name for path in paths for name in _names(owners[path])}
            shown = " / ".join(_shown(path, owners[path]) for path in sorted(paths))
            groups[tuple(sorted(packages))].append(shown)
    for packages_of_group, pairs in sorted(groups.items()):
        yield Finding(
            check="file-collision",
            severity="warning",
            subject=joined(packages_of_group),
            message=f"{counted(len(pairs), 'path')} of {joined(packages_of_group)} differ only in case: {examples(pairs)}",
            evidence=evidence(pairs),
            hint="keep the environment on a file system that tells upper from lower case",
            packages=packages_of_group,
        )
