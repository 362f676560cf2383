"""A lock -> the verdict of all checks on it.

Facts come from the store, where they lie by the sha256 of each wheel; wheels that were never measured here are brought and measured first. The
lock is not decided anew: what it names is what is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.deciding import Decision, accepted_tags
from builder.locking import LockRequest, judged, read_all_series, stale_reasons
from builder.measure import read_facts
from envspec.checks import Closure, ClosureWheel
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.lock import parts

if TYPE_CHECKING:
    from builder.progress import Reporter
    from envspec.checks import Verdict
    from envspec.lock import Lock


def check_lock(request: LockRequest, reporter: Reporter) -> Verdict:
    """Judge a lock.

    Args:
        request: With the lock as `previous`.
        reporter: Where progress goes.

    Raises:
        EnvspecError: There is no lock, it is stale, or a wheel cannot be brought.
    """
    lock = request.previous
    if lock is None:
        raise EnvspecError(
            "there is no lock to check", input_name=request.spec_name, hint="make one with `envspec lock`"
        )
    series = read_all_series(request.spec, request.folder)
    stale = stale_reasons(request.spec, lock, series)
    if stale:
        raise EnvspecError(
            "the lock is stale, so that it is not what would be built",
            input_name=request.spec_name,
            problems=tuple(Problem(message=reason) for reason in stale),
            hint="run `envspec lock`, which checks what it writes",
            exit_code=FOUND_WRONG,
        )
    closure = _from_cache(request, lock)
    if closure is None:
        request.store.ensure()
        with request.store.lock("gc", shared=True):
            request.store.sweep()
            decision = Decision(request, series, reporter)
            decision.resolve()
            decision.fetch_and_measure()
            decision.patch()
            closure = decision.closure()
    return judged(closure, strict=request.strict)


def _from_cache(request: LockRequest, lock: Lock) -> Closure | None:
    """The closure of a lock all of whose wheels are measured; None if one is not."""
    overlays = {overlay.package: overlay for overlay in lock.overlays}
    packages = {package.name: package for package in lock.packages}
    requesters: dict[str, set[str]] = {}
    for package in lock.packages:
        for name in package.requires:
            requesters.setdefault(name, set()).add(package.name)
    wheels = []
    for part in parts(lock):
        facts = read_facts(request.store.facts, part.sha256, lock.python)
        if facts is None or facts.filename != part.file:
            return None
        base = packages[part.package]
        patched = part.package in overlays
        wheels.append(
            ClosureWheel(
                facts=facts,
                index=base.index,
                required_by=tuple(sorted(requesters.get(part.package, ()))),
                base_file=base.file if patched else "",
                base_sha256=base.sha256 if patched else "",
            )
        )
    return Closure(
        spec=request.spec, wheels=tuple(wheels), accepted_tags=accepted_tags(request.spec), previous=lock.packages
    )
