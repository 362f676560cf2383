"""Whether each declared host can still run the environment, by what the spec says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from envspec.diff.changes import Change, literal
from envspec.diff.needs import raised_needs
from envspec.drivers import is_older
from envspec.host_needs import least_driver
from envspec.wording import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.diff.changes import Level
    from envspec.diff.sides import Side
    from envspec.lock import Lock
    from envspec.spec import HostSpec

Qualifies = Literal["yes", "no", "unsure", "absent"]
"""`unsure`: the spec does not say what would be needed to tell; `build` asks the host. `absent`: that side does not declare the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVerdict:
    """A declared host on both sides."""

    name: str
    old: Qualifies
    new: Qualifies
    reasons: tuple[str, ...]
    """Why it does not qualify now, or why that is not known."""

    loses_code: bool = False
    """Whether a package had code for its GPUs and has none now."""


def judge_hosts(old: Side, new: Side, lost: Mapping[str, Sequence[str]]) -> tuple[HostVerdict, ...]:
    """Every host that either spec declares, sorted by name; none where there is no spec.

    Args:
        old: The old side; where its spec is not known, the new one's declarations stand for it.
        new: The new side.
        lost: Compute capability -> packages that had code for it and have none now.
    """
    after = {host.name: host for host in new.spec.hosts} if new.spec else {}
    before = {host.name: host for host in old.spec.hosts} if old.spec else after
    raised = raised_needs(old, new)
    found = []
    for name in sorted(before.keys() | after.keys()):
        was: Qualifies = "absent"
        now: Qualifies = "absent"
        reasons: tuple[str, ...] = ()
        if name in before and old.lock:
            was, _ = qualifies(before[name], old.lock)
        if name in after and new.lock:
            now, reasons = qualifies(after[name], new.lock)
            lacking = lost.get(after[name].compute, ())
            if now == "yes" and was != "absent" and (raised or lacking):
                now = "unsure"
            if lacking:
                reasons = (*reasons, f"{joined(lacking)} has no code for its compute {after[name].compute} any more")
            if now == "unsure" and raised:
                reasons = (*reasons, f"it must have {joined(raised)} now, which the spec does not say of a host")
        found.append(
            HostVerdict(
                name=name,
                old=was,
                new=now,
                reasons=reasons,
                loses_code=name in after and bool(lost.get(after[name].compute)),
            )
        )
    return tuple(found)


def qualifies(host: HostSpec, lock: Lock) -> tuple[Qualifies, tuple[str, ...]]:
    """Whether a host can run an environment, and why not or why that is not known.

    Args:
        host: As the spec declares it.
        lock: Of the environment.
    """
    against, open_ = [], []
    least = least_driver(lock)
    if least and host.driver and is_older(host.driver, least):
        against.append(f"it states driver {host.driver}, {least} or later is needed")
    elif least and not host.driver:
        open_.append(f"it states no driver, {least} or later is needed")
    if host.compute and lock.cuda_compute and host.compute not in lock.cuda_compute:
        against.append(f"its GPUs have compute {host.compute}, the lock is for {joined(lock.cuda_compute)}")
    if against:
        return "no", tuple(against)
    return ("unsure", tuple(open_)) if open_ else ("yes", ())


def changes_of_hosts(verdicts: Iterable[HostVerdict], old: Side, new: Side) -> list[Change]:
    """The hosts of which something else is to be said than before.

    Args:
        verdicts: On every host.
        old: The old side.
        new: The new side.
    """
    if old.lock is None or new.lock is None:
        return []
    moved = least_driver(old.lock) != least_driver(new.lock) or bool(raised_needs(old, new))
    return [change for verdict in verdicts for change in _of(verdict, moved=moved or verdict.loses_code)]


def _of(verdict: HostVerdict, *, moved: bool) -> list[Change]:
    host = f"host {literal(verdict.name)}"
    ways = {"yes": "qualifies", "no": "does not qualify", "unsure": "may qualify: not known"}

    def change(kind: str, level: Level, text: str) -> list[Change]:
        return [
            Change(
                kind=kind,
                level=level,
                subject=verdict.name,
                old=verdict.old,
                new=verdict.new,
                text=text,
                consequences=verdict.reasons,
            )
        ]

    if verdict.new == "absent":
        return change("host-listed", "note", f"{host} is no longer declared")
    if verdict.old == "absent":
        return change(
            "host-listed", "stop" if verdict.new == "no" else "note", f"{host} is new and {ways[verdict.new]}"
        )
    if verdict.new == "no":
        return [] if verdict.old == "no" else change("host-lost", "stop", f"{host} no longer qualifies")
    if verdict.old == "no":
        return change("host-gained", "note", f"{host} did not qualify and now {ways[verdict.new]}")
    if verdict.new == "unsure" and (moved or verdict.old == "yes"):
        return change("host-unsure", "look", f"whether {host} still qualifies is not known")
    return []
