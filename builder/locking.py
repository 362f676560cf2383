"""A spec -> a lock: resolved, fetched, patched, measured, checked, predicted, written.

What the lock before says is kept where the spec still allows it, and when neither the spec nor a patch has changed nothing is looked up at all.
A lock with an error in it is never written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.lock import (
    Lock,
    LockedHook,
    LockedPackage,
    compute_env_id,
    owners,
)
from envspec.lock_proof import declared, differences, locked_findings, override_texts
from envspec.spec import snapshot_text, spec_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.store import Store
    from builder.overlay import Series
    from builder.progress import Reporter
    from envspec.checks import Closure, Verdict
    from envspec.facts import Finding, WheelFacts
    from envspec.spec import Spec, Waiver


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """What is to be locked."""

    spec: Spec
    spec_name: str
    """Of the spec's file, for messages."""

    folder: Path
    """Where the spec lies; the paths of overlays are relative to it."""

    previous: Lock | None
    upgrade: frozenset[str]
    """Normalised names of packages that may move; the others move only if they must."""

    strict: bool = False
    """Whether a warning refuses the lock as an error does."""

    renew: bool = False
    """Whether the wheels of a lock that is current are measured and judged anew all the same."""

    store: Store
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOutcome:
    """A lock that may be written."""

    lock: Lock
    findings: tuple[Finding, ...]
    """Warnings and notes; none of them is an error."""

    waived: tuple[tuple[Finding, Waiver], ...]
    changed: bool
    """False if it is the lock before, which nothing was done for."""


class ChecksFailed(EnvspecError):  # noqa: N818 - it says what happened
    """The checks found errors, so that no lock is written.

    Attributes:
        findings: All of them, warnings and notes included, what explains most first.
    """

    def __init__(self, spec_name: str, findings: tuple[Finding, ...]) -> None:
        errors = [finding for finding in findings if finding.severity == "error"]
        super().__init__(
            f"{len(errors)} {'checks' if len(errors) != 1 else 'check'} failed; the lock was not written",
            input_name=spec_name,
            problems=tuple(
                Problem(
                    message="; ".join([finding.message, *finding.evidence[:3]]),
                    where=f"{finding.check}, {finding.subject}",
                    hint=finding.hint,
                )
                for finding in errors
            ),
            exit_code=FOUND_WRONG,
        )
        self.findings = findings


def stale_reasons(spec: Spec, lock: Lock, series: Mapping[str, Series]) -> tuple[str, ...]:
    """Why a lock does not describe a spec and its patches (any more); empty if it does. Looks at nothing else.

    Args:
        spec: The spec.
        lock: The lock beside it.
        series: Package -> patches on disk.
    """
    reasons: list[str] = []
    digest = spec_digest(spec)
    if digest != lock.spec_sha256:
        reasons.append(f"the spec has digest {digest[:12]}, the lock was made from {lock.spec_sha256[:12]} (`spec`)")
    reasons.extend(
        f"`{each.where}`: {each.message}" for each in differences(lock, declared(spec, lock), source="the spec has")
    )
    locked = {overlay.package: overlay for overlay in lock.overlays}
    reasons.extend(
        f"the overlay of `{package}` is {'not locked' if package in series else 'gone from the spec'}"
        for package in sorted(locked.keys() ^ series.keys())
    )
    for package, patches in sorted(series.items()):
        if package not in locked:
            continue
        before = [(patch.name, patch.sha256) for patch in locked[package].patches]
        now = [(patch.name, patch.sha256) for patch in patches.patches]
        if before != now:
            changed = sorted({name for name, _ in set(before) ^ set(now)}) or ["their order"]
            reasons.append(
                f"patches of `{package}` changed: {', '.join(changed)} (`name` or `sha256` of `overlay[{package}].patch`)"
            )
    return tuple(reasons)


def read_all_series(spec: Spec, folder: Path) -> dict[str, Series]:
    """The patches of every overlay of a spec.

    Raises:
        EnvspecError: A series or a patch cannot be read.
    """
    if not spec.overlays:
        return {}
    from builder.overlay import read_series  # noqa: PLC0415 - only where there is an overlay

    return {overlay.package: read_series(folder / overlay.series) for overlay in spec.overlays}


def make_lock(request: LockRequest, reporter: Reporter) -> LockOutcome:
    """Decide an environment.

    Raises:
        ChecksFailed: The set does not fit together; every reason is listed.
        EnvspecError: It cannot be resolved, fetched or patched.
    """
    spec, previous = request.spec, request.previous
    series = read_all_series(spec, request.folder)
    is_kept = previous is not None and not request.upgrade and not request.renew
    if is_kept and previous is not None and not stale_reasons(spec, previous, series):
        _refuse_hosts(request, previous)
        return LockOutcome(lock=previous, findings=(), waived=(), changed=False)

    # Heavy, and not for a lock that is current.
    from builder.deciding import Decision  # noqa: PLC0415
    from envspec.checks.needs import needs_of  # noqa: PLC0415

    request.store.ensure()
    with request.store.lock("gc", shared=True):
        request.store.sweep()
        decision = Decision(request, series, reporter)
        decision.resolve()
        decision.fetch_and_measure()
        decision.patch()
        closure = decision.closure()
        verdict = judged(closure, strict=request.strict)
        if verdict.errors:
            raise ChecksFailed(request.spec_name, verdict.findings)
        packages, overlays = decision.locked_packages(closure), decision.locked_overlays()
        site = decision.predict_site()
    lock = Lock(
        spec_sha256=spec_digest(spec),
        env="",
        site=site,
        name=spec.name,
        snapshot=snapshot_text(spec.snapshot),
        python=spec.python.version,
        python_exact=spec.python.exact,
        platform=spec.target.platform,
        glibc=spec.target.glibc,
        libraries=spec.target.libraries,
        cuda_toolkit=spec.cuda.toolkit if spec.cuda else "",
        cuda_compute=spec.cuda.compute if spec.cuda else (),
        needs=needs_of(closure),
        packages=packages,
        overlays=overlays,
        overrides=override_texts(spec),
        waivers=spec.waivers,
        findings=locked_findings(verdict),
    )
    lock = replace(lock, env=compute_env_id(lock))
    return LockOutcome(lock=lock, findings=verdict.findings, waived=verdict.waived, changed=lock != previous)


def _refuse_hosts(request: LockRequest, lock: Lock) -> None:
    """See that the hosts of a spec fit a lock that is current: they are no part of it, so that nothing else would.

    Raises:
        ChecksFailed: The driver of a host is too old.
    """
    if not any(host.driver for host in request.spec.hosts):
        return
    from envspec.checks import apply_waivers  # noqa: PLC0415 - seldom needed
    from envspec.checks.driver import drivers_below_needs  # noqa: PLC0415

    verdict = apply_waivers(
        drivers_below_needs(request.spec.hosts, lock.needs.driver), request.spec.waivers, policy=request.spec.policy
    )
    errors = tuple(finding for finding in verdict.errors if finding.check == "driver-too-old")
    if errors:
        raise ChecksFailed(request.spec_name, errors)


def judged(closure: Closure, *, strict: bool) -> Verdict:
    """The verdict on an environment.

    Args:
        closure: Of the environment.
        strict: Whether warnings count as errors.
    """
    from envspec.checks import run_checks, strictly  # noqa: PLC0415 - not for a lock that is current

    verdict = run_checks(closure)
    return strictly(verdict) if strict else verdict


def locked_package(
    facts: WheelFacts,
    *,
    index: str,
    requires: tuple[str, ...],
    installed: WheelFacts | None = None,
    cuda: str = "",
    gpu_code: tuple[str, ...] = (),
) -> LockedPackage:
    """What a lock says of a wheel.

    Args:
        facts: Of the wheel as the index offers it.
        index: Name of that index.
        requires: Names of the locked packages that it needs.
        installed: Facts of the patched wheel where there is an overlay: start-up hooks are the installed wheel's.
        cuda: What its binaries were built for.
        gpu_code: Targets of its GPU code.
    """
    return LockedPackage(
        name=facts.name,
        version=facts.version,
        index=index,
        file=facts.filename,
        size=facts.size,
        sha256=facts.sha256,
        tree=facts.tree,
        requires=requires,
        requires_python=facts.requires_python,
        cuda=cuda,
        gpu_code=gpu_code,
        hooks=tuple(
            LockedHook(path=hook.path, sha256=hook.sha256, code=hook.code) for hook in (installed or facts).hooks
        ),
    )


def site_of(manifests: list[tuple[str, str]], waivers: tuple[Waiver, ...]) -> str:
    """The site digest that the trees of an environment give.

    Args:
        manifests: Package and manifest of its tree.
        waivers: Of the spec: they name owners.

    Raises:
        EnvspecError: Two trees contend for a path without an owner (the checks report this before).
    """
    from envspec.compose import CollisionError, compose  # noqa: PLC0415 - not for a lock that is current

    try:
        return compose(sorted(manifests), owners(waivers)).site
    except CollisionError as error:
        raise EnvspecError(f"the wheels do not fit together: {error}", exit_code=FOUND_WRONG) from error
