"""Why a venv does not work.

    diagnosis = diagnose(observation, traced)
    diagnosis.causes[0].message

The checks of locks run over a closure that is made of the venv, the rules about venvs over what was seen of it. Findings are grouped into
causes, the causes ranked by how directly they explain a failed run, else by how early something fails by them, and each gets a fix. Pure: an
index is asked through a port, if one is given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envspec.checks import apply_waivers, registered_checks
from envspec.checks.waivers import resolving
from envspec.cuda import major_of_soname, readable_symbol
from envspec.diagnosis.fixes import fix_of
from envspec.diagnosis.grouping import ORDER, Group, group
from envspec.diagnosis.innocent import find_innocent
from envspec.diagnosis.installed import LEFT_OUT, closure_of, in_order
from envspec.diagnosis.leftovers import with_bytecode, without_leftovers
from envspec.diagnosis.offers import Index, NoIndex
from envspec.diagnosis.ranking import DIRECT, SWALLOWED, Match, Run
from envspec.diagnosis.requirements import merged_requirements
from envspec.diagnosis.rules import registered_rules
from envspec.diagnosis.rules.files import module_of
from envspec.diagnosis.scene import Scene
from envspec.diagnosis.symptom import Stage, Symptom
from envspec.diagnosis.values import Cause, Diagnosis, Fix
from envspec.wording import SHOWN_EVIDENCE, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.checks import Closure
    from envspec.diagnosis.values import Explains
    from envspec.facts import Finding, Severity
    from envspec.observed import Observation
    from envspec.spec import Waiver
    from envspec.traced import Traced

_STAGES = {
    "assembler-too-old": Stage.USE,
    "dead-extension": Stage.USE,
    "driver-too-old": Stage.USE,
    "executable-stack": Stage.USE,
    "gpu-code-missing": Stage.USE,
    "libstdcxx-too-old": Stage.USE,
    "record-hash": Stage.USE,
    "requires-python": Stage.USE,
    "reserved-path": Stage.INTERPRETER,
    "startup-hook": Stage.START,
    "tag-mismatch": Stage.USE,
}
"""How early something fails by the findings of a check; the others keep a module from being imported."""

_SEVERITIES = ("error", "warning", "info")
_REMARKS_ALONE = frozenset(
    {"edited-file", "drift", "poisoned-file", "stray-module", "no-record", "version-inside", "record-hash"}
)
"""What is a remark where something else explains a failed run: most such things are wanted."""


def diagnose(
    observation: Observation,
    traced: Traced | None = None,
    *,
    host: str = "",
    waivers: Sequence[Waiver] = (),
    index: Index | None = None,
) -> Diagnosis:
    """The whole answer.

    Args:
        observation: What was seen of the venv.
        traced: How a run in it went; None if nothing was run.
        host: Name of the host that it lies on; empty for this machine.
        waivers: Of the lock that the venv was built from, if it is known: what a person accepted is no cause.
        index: Where versions for fixes are looked up; None for nowhere.
    """
    observation, leftovers = without_leftovers(with_bytecode(in_order(observation)))
    closure = closure_of(observation, waivers).in_order()
    scene = Scene(observation=observation, closure=closure, traced=traced, leftovers=leftovers)
    groups = group(merged_requirements(find_symptoms(scene, waivers), scene), scene)
    run = Run(scene=scene)
    matched = [(each, run.match(each)) for each in groups]
    direct = _threshold(matched)
    explained = any(match.score >= direct for each, match in matched if each.root.check != "run-failed")
    causes: list[tuple[tuple[object, ...], Cause]] = []
    remarks: list[str] = []
    for each, match in matched:
        if each.root.check == "run-failed" and explained:
            continue
        cause = _cause(each, match, scene, direct=direct if traced and traced.failed else 2.0)
        if cause is None:
            remarks += [_remark(symptom, scene) for symptom in each.all]
        elif explained and cause.explains != "failure" and all(part.check in _REMARKS_ALONE for part in each.all):
            remarks.append(_remark(each.root, scene))
        else:
            causes.append((_order(each, match, cause, scene), cause))
    causes.sort(key=lambda pair: pair[0])
    ranked = tuple(
        replace(cause, fix=_safe_fix(fix_of(_group_of(cause, groups), scene, index or NoIndex())))
        for _, cause in causes
    )
    return Diagnosis(
        prefix=printable(observation.prefix),
        host=host,
        causes=ranked,
        not_causes=find_innocent(scene, run, ranked),
        remarks=tuple(dict.fromkeys(remarks)),
        traced=traced,
        notes=tuple(map(printable, observation.notes)),
    )


def find_symptoms(scene: Scene, waivers: Sequence[Waiver] = ()) -> list[Symptom]:
    """Everything that checks and rules find, ungrouped; what a waiver resolves is left out."""
    closure = scene.closure  # in its order already: another one would open every library once more
    found = [
        finding
        for check in registered_checks()
        if check.judge is not None and check.id not in LEFT_OUT
        for finding in check.judge(closure)
    ]
    judged = apply_waivers(found, waivers).findings
    symptoms = [
        _with_clues(replace(finding, severity=_severity_here(finding, scene)), scene)
        for finding in judged
        if finding.check not in _ABOUT_WAIVERS and finding.severity != "info"
    ]
    symptoms += [
        symptom
        for rule in registered_rules()
        for symptom in rule.judge(scene)
        if not resolving(waivers, symptom.finding)
    ]
    return symptoms


_SEVERITY_HERE: dict[str, Severity] = {"record-hash": "warning", "requires-python": "warning"}
"""Check -> severity of its findings in a venv: what makes a wheel suspicious breaks nothing once it is installed."""

_SMALL_PART = 3
"""Less than one in so many of a package's objects is a part that it may do without: numba has thread pools for TBB and OpenMP."""


def _severity_here(finding: Finding, scene: Scene) -> Severity:
    """How grave a finding of a check is in a venv."""
    if finding.check == "requires-dist" and len(finding.packages) == 1:
        return "info"  # it cannot be read, as some of ten years ago cannot: nothing fails by it
    if finding.check == "tag-mismatch" and not any(
        scene.wheels[name].facts.binaries.binaries for name in finding.packages if name in scene.wheels
    ):
        return "info"  # sources run wherever they lie
    if finding.check == "host-library" and finding.severity == "error":
        links = scene.closure.links
        lacking = {
            absent.path for soname, found in scene.closure.causes.host for absent in found if soname in finding.message
        }
        for name in finding.packages:
            must_load = [
                path
                for path, role in links.roles.items()
                if role in ("extension", "torch") and links.wheel_of[path].facts.name == name
            ]
            if not must_load or len(lacking & set(must_load)) * _SMALL_PART >= len(must_load):
                return "error"
        return "warning"
    return _SEVERITY_HERE.get(finding.check, finding.severity)


_ABOUT_WAIVERS = frozenset({"unused-waiver", "unknown-policy"})


def _with_clues(finding: Finding, scene: Scene) -> Symptom:
    """The finding of a check with what ties it to a failure."""
    closure: Closure = scene.closure
    links = closure.links
    sonames: set[str] = set()
    symbols: set[str] = set()
    paths = {f"{scene.site}/{finding.path}"} if finding.path else set()
    if finding.check in _BY_LINKER:
        for name in finding.packages:
            troubles = links.fatal.get(name)
            if troubles is None or (name == "torch" and len(finding.packages) > 1):
                continue
            sonames |= {each.soname for each in troubles.missing}
            symbols |= {each.reference.name for each in troubles.unbound}
            paths |= {each.path for each in troubles.missing}
            paths |= {each.path for each in troubles.unbound} | {each.path for each in troubles.versions}
        if finding.check in ("cuda-major-mismatch", "dual-cuda-runtime"):
            sonames |= _toolkit_needs(finding.packages, scene)
        if finding.check == "host-library":
            host = {soname for soname, _ in closure.causes.host}
            sonames = {
                soname
                for soname in host
                if soname in finding.message or any(soname in line for line in finding.evidence)
            }
    modules: set[str] = set()
    if finding.check in ("foreign-machine", "damaged-binary", "record-hash", "dead-extension"):
        shown = {line.partition(": ")[0] for line in finding.evidence}
        modules = {module for path in shown if (module := module_of(scene, f"{scene.site}/{path}"))}
        paths |= {f"{scene.site}/{path}" for path in shown}
        sonames |= {path.rpartition("/")[2] for path in shown if ".so" in path}
    return Symptom(
        finding=finding,
        stage=_STAGES.get(finding.check, Stage.IMPORT),
        paths=frozenset(paths),
        modules=frozenset(modules),
        sonames=frozenset(sonames),
        symbols=frozenset(symbols) | {readable_symbol(name) for name in symbols},
    )


def _toolkit_needs(packages: Sequence[str], scene: Scene) -> set[str]:
    """Libraries of CUDA that the packages of a mismatch need, of another CUDA than torch's."""
    anchor = scene.closure.causes.anchor
    return {
        soname
        for name in packages
        if name != "torch" and name in scene.wheels
        for binary in scene.wheels[name].facts.binaries.binaries
        for soname in binary.needed
        if (major := major_of_soname(soname)) is not None and (anchor is None or major != anchor.major)
    }


_BY_LINKER = frozenset(
    {
        *(
            "cuda-major-mismatch",
            "dual-cuda-runtime",
            "torch-abi-mismatch",
            "missing-library",
            "undefined-symbol",
            "host-library",
        ),
        "no-fitting-variant",
    }
)


def _remark(symptom: Symptom, scene: Scene) -> str:
    """What was noticed, with all files: whoever edited them knows them again."""
    message, _, rest = symptom.finding.message.partition(": `")
    shown = sorted(scene.shown(path) for path in symptom.paths)
    if symptom.check not in _REMARKS_ALONE or " more" not in rest:
        return printable(symptom.finding.message)
    more = f" and {len(shown) - SHOWN_EVIDENCE} more" if len(shown) > SHOWN_EVIDENCE else ""
    return f"{printable(message)}: {', '.join(f'`{printable(path)}`' for path in shown[:SHOWN_EVIDENCE])}{more}"


def _threshold(matched: Sequence[tuple[Group, Match]]) -> float:
    """The score from which on a cause explains the failure.

    Where nothing goes with the exceptions that ended the run, one that was swallowed on the way is as good as any, if it goes with something
    that is broken in any case: the message that came later was a guess.
    """
    known = [(each, match.score) for each, match in matched if each.root.check != "run-failed"]
    if any(score >= DIRECT for _, score in known):
        return DIRECT
    broken = [score for each, score in known if each.severity == "error" and score >= SWALLOWED]
    return max(broken, default=DIRECT)


def _cause(each: Group, match: Match, scene: Scene, *, direct: float) -> Cause | None:
    """The cause that a group is; None if it is only worth a remark.

    Args:
        each: The group.
        match: How it goes with the run.
        scene: Of the venv.
        direct: The score from which on it explains the failure; more than 1 if nothing failed.
    """
    root = each.root
    severity = each.severity
    explains: Explains = "nothing yet"
    if match.score >= direct:
        explains, severity = "failure", "error"
    elif severity == "error" and min(part.stage for part in each.all) <= Stage.IMPORT:
        explains = "possible failure"
    if severity == "info":
        return None
    finding = root.finding
    evidence = list(finding.evidence)
    for name in finding.packages:
        wheel = scene.wheels.get(name)
        there = scene.chosen.get(name)
        if wheel is not None and there is not None:
            folder = there.folder.rpartition("/")[2]
            evidence = [line.replace(f"{wheel.facts.filename} METADATA", f"{folder}/METADATA") for line in evidence]
    stated = [line for line in evidence if " requires `" in line]
    evidence = [
        line
        for line in evidence
        if " METADATA: Requires-Dist: " not in line
        or not any(f"`{line.rpartition('Requires-Dist: ')[2]}`" in other for other in stated)
    ]
    follows = [part.finding.message for part in each.members if part.check != "run-failed"]
    if explains == "failure":
        follows += [line for line in match.exceptions if line not in evidence]
    return Cause(
        check=root.check,
        severity=severity,
        packages=tuple(map(printable, finding.packages)),
        message=printable(finding.message),
        evidence=tuple(map(printable, evidence)),
        follows=tuple(map(printable, dict.fromkeys(follows))),
        explains=explains,
        findings=tuple(part.finding for part in each.all),
    )


def _order(each: Group, match: Match, cause: Cause, scene: Scene) -> tuple[object, ...]:
    """The most direct explanation first; else what is gravest, fails earliest, and concerns most packages."""
    direct = -match.score if cause.explains == "failure" else 0.0
    rank = ORDER.index(cause.check) if cause.check in ORDER else len(ORDER)
    return (
        direct,
        _SEVERITIES.index(cause.severity),
        min(part.stage for part in each.all),
        -_requirers(cause.packages[:1], scene),
        rank,
        cause.message,
    )


def _requirers(packages: Sequence[str], scene: Scene) -> int:
    """How many packages require one: the more, the earlier an import meets it."""
    name = packages[0] if packages else ""
    lines = [line for wheel in scene.closure.wheels for line in wheel.facts.requires_dist] if name else []
    return sum(line.lower().replace("_", "-").startswith(name) for line in lines)


def _group_of(cause: Cause, groups: Sequence[Group]) -> Group:
    return next(each for each in groups if each.root.finding is cause.findings[0])


def _safe_fix(fix: Fix | None) -> Fix | None:
    return fix and replace(
        fix, text=printable(fix.text), command=printable(fix.command), proven_by=printable(fix.proven_by)
    )
