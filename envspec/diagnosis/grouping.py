"""Which symptom comes of which: one mistake is one cause, with everything that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from envspec.diagnosis.requirements import requirements_of
from envspec.forms import normalise_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.facts import Severity

ORDER = (
    *("interpreter-gone", "interpreter-minor", "python-home", "moved-venv", "reserved-path", "interpreter-problem"),
    *(
        "leftover",
        "lost-package",
        "version-inside",
        "cpu-build",
        "cuda-major-mismatch",
        "dual-cuda-runtime",
        "torch-abi-mismatch",
    ),
    *(
        "two-versions",
        "owned-twice",
        "not-a-library",
        "foreign-machine",
        "damaged-binary",
        "missing-file",
        "unreadable-file",
        "cut-off-file",
        "record-hash",
    ),
    *(
        "path-gone",
        "library-path",
        "shadowed-module",
        "outside-package",
        "requires-dist",
        "lock-step",
        "tag-mismatch",
        "requires-python",
        "driver-too-old",
        "driver-mismatch",
        "devices-hidden",
        "compiler-absent",
    ),
    *(
        "gpu-code-missing",
        "assembler-too-old",
        "metadata-version",
        "missing-library",
        "undefined-symbol",
        "glibc-too-old",
    ),
    *("libstdcxx-too-old", "host-library", "no-fitting-variant", "dead-extension", "driver-absent", "startup-hook"),
    *("stray-code", "poisoned-file", "edited-file", "drift", "stray-module", "assembler-path", "cuda-home"),
    *(
        "static-tls",
        "noexec",
        "stale-cache",
        "machine-limit",
        "module-missing",
        "generated-code",
        "name-missing",
        "binary-interface",
        "bad-bytecode",
        "no-record",
        "run-failed",
    ),
)
"""Ids of checks and rules, what lies deepest first: only an earlier one explains a later one."""

_RANK = {check: number for number, check in enumerate(ORDER)}
_MISMATCH = frozenset({"cuda-major-mismatch", "dual-cuda-runtime", "torch-abi-mismatch"})
_LINKING = frozenset(
    {
        *(
            "missing-library",
            "undefined-symbol",
            "no-fitting-variant",
            "host-library",
            "torch-abi-mismatch",
            "dead-extension",
        ),
        *("libstdcxx-too-old", "glibc-too-old"),
    }
)
_RUN = frozenset({"module-missing", "generated-code", "name-missing", "binary-interface", "bad-bytecode", "run-failed"})
_DAMAGE = frozenset(
    {
        *(
            "lost-package",
            "version-inside",
            "two-versions",
            "owned-twice",
            "not-a-library",
            "foreign-machine",
            "damaged-binary",
        ),
        *("missing-file", "unreadable-file", "cut-off-file", "record-hash", "stray-code", "edited-file", "drift"),
    }
)
_WHICH_VERSION = frozenset({"lost-package", "version-inside", "two-versions"})
_ABOUT_VERSIONS = frozenset(
    {
        "requires-dist",
        "edited-file",
        "owned-twice",
        "missing-file",
        "metadata-version",
        "lock-step",
        "drift",
        "record-hash",
        "stray-code",
    }
)
_OF_ANOTHER_PYTHON = frozenset(
    {
        "tag-mismatch",
        "requires-python",
        "dead-extension",
        "undefined-symbol",
        "module-missing",
        "run-failed",
        "interpreter-problem",
    }
)
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A cause in the making."""

    root: Symptom
    members: tuple[Symptom, ...] = ()
    """What follows from it."""

    @property
    def severity(self) -> Severity:
        """That of the gravest part."""
        return min((each.finding.severity for each in self.all), key=_SEVERITIES.index)

    @property
    def all(self) -> tuple[Symptom, ...]:
        """The root first."""
        return (self.root, *self.members)


def group(symptoms: Iterable[Symptom], scene: Scene) -> tuple[Group, ...]:
    """Put symptoms under those that explain them; the order of the symptoms does not matter."""
    ordered = sorted(symptoms, key=_order)
    roots: list[Symptom] = []
    members: dict[int, list[Symptom]] = {}
    root_of: list[int] = []
    for number, each in enumerate(ordered):
        above = next((other for other in range(number) if explains(ordered[other], each, scene)), None)
        root_of.append(number if above is None else root_of[above])
        if above is None:
            roots.append(each)
            members[number] = []
        else:
            members[root_of[number]].append(each)
    numbers = [number for number in range(len(ordered)) if root_of[number] == number]
    return tuple(Group(root=root, members=tuple(members[number])) for root, number in zip(roots, numbers, strict=True))


def explains(one: Symptom, other: Symptom, scene: Scene) -> bool:
    """Whether the second symptom comes of the first."""
    a, b = one.check, other.check
    if _rank(one) >= _rank(other):
        return False
    if b == "name-missing" and _comes_of_callee(one, other, scene):
        return True
    if a == "interpreter-gone":
        return b in {"moved-venv", "interpreter-minor", "interpreter-problem", "python-home", "run-failed"}
    if a == "interpreter-minor":
        return b in _OF_ANOTHER_PYTHON
    if a in {"python-home", "reserved-path"} and b == "run-failed":
        return scene.traced is not None and scene.traced.ending == "not started"
    if a == "python-home":
        return b == "interpreter-problem"
    if a == "interpreter-problem":
        return b == "run-failed" and one.finding.severity == "error"
    if a == "moved-venv":
        return b == "interpreter-problem" and other.finding.severity != "error"
    if a == "reserved-path":
        return b in {"interpreter-problem", "edited-file", "drift"}
    if a == "library-path" and b == "driver-mismatch":
        return bool(one.sonames & other.sonames)
    if a in _MISMATCH:
        return _comes_of_mismatch(one, other)
    if a == "leftover":
        return _comes_of_interruption(one, other)
    if a == "cpu-build":
        return b in _MISMATCH | _LINKING | _RUN and other.package in one.finding.packages
    if a == "edited-file" and b == "torch-abi-mismatch":  # one of torch's own libraries is not torch's any more
        return scene.takes_from(other.paths, one.sonames)
    if a == "requires-dist":
        return _comes_of_requirement(one, other, scene)
    if a == "lock-step":
        return b == "requires-dist" and set(other.finding.packages) <= set(one.finding.packages)
    if a == "foreign-machine" and b in {"tag-mismatch", "dead-extension"}:
        return one.package == other.package
    if a == "tag-mismatch":
        return one.package == other.package and b in _OF_ANOTHER_PYTHON | _RUN
    if a == "dead-extension":
        return b in _RUN and bool(one.modules & other.modules)
    if a == "path-gone":
        return b in _RUN | {"lost-package", "missing-file"} and bool(one.modules & _tops(other))
    if a == "shadowed-module":
        if b not in _RUN:
            return False
        return bool(one.modules & _tops(other) or one.paths & other.paths) or (
            one.finding.severity == "error" and one.package in requirements_of(scene, other.package)
        )
    if a == "poisoned-file":
        return b in {"edited-file", "drift"} and one.package == other.package
    if a == "stray-code" and b == "stray-module":
        return bool(one.paths & other.paths)
    if a in {"static-tls", "noexec", "stale-cache", "machine-limit"}:
        return b in _RUN
    if a == "missing-library":
        return b in {"undefined-symbol", "no-fitting-variant"} and one.package == other.package
    return a in _DAMAGE and _comes_of_damage(one, other, scene)


def _comes_of_mismatch(one: Symptom, other: Symptom) -> bool:
    packages = one.finding.packages
    members = packages[:-1] if len(packages) > 1 and packages[-1] == "torch" else packages
    if other.check == "requires-dist":
        return set(other.finding.packages) <= set(packages) and bool(set(members) & set(other.finding.packages))
    if other.check == "library-path":
        return bool(one.sonames & other.sonames)
    if other.package not in members:
        return False
    return other.check in _LINKING | _RUN | {
        "two-versions",
        "edited-file",
        "drift",
        "stray-code",
        "metadata-version",
        "missing-file",
        "record-hash",
        "version-inside",
    }


def _comes_of_callee(one: Symptom, other: Symptom, scene: Scene) -> bool:
    """Whether a call that the callee does not take comes of what is wrong with a package that the caller requires."""
    if len(other.finding.packages) != 1 or one.finding.severity != "error":
        return False
    about = _DAMAGE | {"requires-dist", "shadowed-module"}
    return one.check in about and bool(set(one.finding.packages) & requirements_of(scene, other.package))


def _comes_of_interruption(one: Symptom, other: Symptom) -> bool:
    """What comes of a package whose installation was interrupted: it is not there, or in parts."""
    if not one.package:
        return False
    return one.package in other.finding.packages or (other.check in _RUN and bool(one.modules & _tops(other)))


def _is_likely(wanted: str, other: Symptom, scene: Scene) -> bool:
    """Whether a module that is missing is that of a requirement that is missing too: of the only one, or of one with such a name."""
    asker = other.finding.packages[-1]
    absent = {name for name in requirements_of(scene, asker) if name not in scene.chosen}
    alike = any(top.replace("_", "-").lower() in wanted for top in _tops(other))
    return wanted in absent and other.package not in scene.chosen and (alike or len(absent) == 1)


def _comes_of_requirement(one: Symptom, other: Symptom, scene: Scene) -> bool:
    """What comes of a package that is not there, or is of another release."""
    packages = one.finding.packages
    if other.check == "stray-module":
        return other.package == packages[0] and packages[0] not in scene.chosen
    if other.check in {"missing-library", "undefined-symbol", "no-fitting-variant"}:
        is_of_it = any(
            scene.takes_from(other.paths, scene.sonames_of(name)) for name in packages if name != other.package
        )
        return (
            (other.package in packages[1:] and bool(one.modules))
            or (other.package in packages and is_of_it)
            or bool(one.sonames & other.sonames)
        )
    if other.check in {"module-missing", "name-missing", "run-failed"}:
        tops = _tops(other)
        if other.check == "module-missing" and len(packages) > 1 and _is_likely(packages[0], other, scene):
            return True
        return bool(tops & one.modules) or (other.package in packages and other.check == "name-missing")
    return False


def _comes_of_damage(one: Symptom, other: Symptom, scene: Scene) -> bool:
    a, b = one.check, other.check
    about = set(one.finding.packages)
    if a == "version-inside" and b in _MISMATCH:
        return one.package == other.finding.packages[-1] and _fitted_before(one.package, other, scene)
    if a == "lost-package" and b in _ABOUT_VERSIONS and about & set(other.finding.packages[:1]):
        return True
    if a == "version-inside" and b in _RUN and one.package in other.finding.packages:
        return True
    if a in _WHICH_VERSION and b in _ABOUT_VERSIONS:
        return one.package in other.finding.packages and (
            b not in {"edited-file", "stray-code"} or one.package == other.package
        )
    if b in _LINKING | {"damaged-binary"}:
        return (
            bool(one.sonames & other.sonames)
            or scene.takes_from(other.paths, one.sonames)
            or (other.package in about and a not in {"edited-file", "drift", "stray-code", "record-hash"})
            or bool(one.paths & other.paths)
        )
    if b in {"missing-file", "edited-file", "drift", "poisoned-file", "record-hash"}:
        return other.package in about and (bool(one.paths & other.paths) or a == "lost-package")
    if b in _RUN:
        return (
            bool(one.modules & other.modules)
            or bool(one.paths & other.paths)
            or (other.package in about and a not in {"edited-file", "drift", "stray-code"} and b != "run-failed")
        )
    return False


def _fitted_before(package: str, other: Symptom, scene: Scene) -> bool:
    """Whether the other packages of a mismatch go with the version that the metadata of a package still has."""
    there = scene.chosen.get(package)
    if there is None:
        return False
    for name in other.finding.packages[:-1]:
        wheel = scene.wheels.get(name)
        for line in wheel.facts.requires_dist if wheel else ():
            try:
                requirement = Requirement(line)
                if normalise_name(requirement.name) == package and not requirement.specifier.contains(
                    there.version, prereleases=True
                ):
                    return False
            except (InvalidRequirement, ValueError, RecursionError):
                continue
    return True


def _tops(symptom: Symptom) -> set[str]:
    return {module.partition(".")[0] for module in symptom.modules} | set(symptom.modules)


def _rank(symptom: Symptom) -> float:
    """How deep a symptom lies; that torch's files are of another release makes mismatches, that others' are comes of one.

    So it is with a single library of torch that was replaced.
    """
    if symptom.check == "version-inside" and symptom.package != "torch":
        return _RANK["torch-abi-mismatch"] + 0.5
    if symptom.check == "edited-file" and symptom.package == "torch" and symptom.sonames:
        return _RANK["torch-abi-mismatch"] - 0.5
    return _RANK.get(symptom.check, len(_RANK) - 1)


def _order(each: Symptom) -> tuple[float, int, str, str, str]:
    finding = each.finding
    return (_rank(each), _SEVERITIES.index(finding.severity), finding.check, finding.subject, finding.message)
