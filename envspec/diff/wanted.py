"""What the specs of two sides say, and which changes of the lock that explains."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from envspec.diff.changes import Change, literal
from envspec.spec import snapshot_text, spec_digest
from envspec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from envspec.diff.pairs import Pair
    from envspec.diff.sides import Side
    from envspec.spec import HostSpec, IndexSpec, Requirement, Spec

SHOWN_NAMES = 8

_WEAK = ("snapshot", "python.version", "python.exact", "target.platform", "target.glibc")
"""Keys that may move any package; they explain what nothing nearer explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    """A key of the spec with another value."""

    key: str
    """`packages.torch`."""

    old: str
    new: str
    """Empty where the key is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """What explains the changes of packages."""

    known: bool
    """Whether both specs are known, or known to be the same in all that decides a lock."""

    of: Mapping[str, tuple[str, ...]]
    """Changed package -> what explains it at once: keys of the spec, or packages that changed; nothing if nothing does."""

    roots: Mapping[str, frozenset[str]]
    """Changed package -> the keys of the spec that explain it in the end."""


def spec_changes(old: Side, new: Side) -> tuple[SpecChange, ...] | None:
    """The keys of the spec that have other values; None if a spec is not known."""
    if old.lock is None:
        return ()
    if old.spec is None or new.spec is None:
        same = new.lock is not None and old.lock.spec_sha256 == new.lock.spec_sha256
        return () if same else None
    before, after = dict(_flat(old.spec)), dict(_flat(new.spec))
    return tuple(
        SpecChange(key=key, old=before.get(key, ""), new=after.get(key, ""))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    )


def find_reasons(pairs: Iterable[Pair], changes: tuple[SpecChange, ...] | None, old: Side, new: Side) -> Reasons:
    """What explains the packages that changed.

    A package is explained by the spec's own words on it (requirement, override, index), by a changed package that needs it, by a changed package
    that it needs, or, failing all that, by what moves everything: the snapshot, Python, the platform.

    Args:
        pairs: Of all packages that changed.
        changes: Of the spec; None if they are not known.
        old: The old side.
        new: The new side.
    """
    changed = {name for pair in pairs for name in pair.names}
    if changes is None:
        return Reasons(known=False, of={}, roots={})
    keys = {change.key for change in changes}
    moved_indexes = _index_keys(old, new)
    reasons: dict[str, tuple[str, ...]] = {}
    roots: dict[str, frozenset[str]] = {}
    for name in sorted(changed):
        own = [key for key in (f"packages.{name}", f"overrides.{name}") if key in keys]
        own += [key for key in moved_indexes.get(name, ()) if key in keys]
        if own:
            reasons[name], roots[name] = tuple(own), frozenset(own)
    _spread(changed, reasons, roots, lambda name: _below(name, old, new))
    _spread(changed, reasons, roots, lambda name: _above(name, old, new))
    weak = tuple(key for key in _WEAK if key in keys)
    for name in changed - reasons.keys():
        reasons[name], roots[name] = weak, frozenset(weak)
    return Reasons(known=True, of=reasons, roots=roots)


def _spread(
    changed: set[str],
    reasons: dict[str, tuple[str, ...]],
    roots: dict[str, frozenset[str]],
    onto: Callable[[str], tuple[str, ...]],
) -> None:
    """Give reasons to what lies beside the packages that have some, nearest first."""
    frontier = sorted(reasons)
    while frontier:
        found: dict[str, list[str]] = {}
        for name in frontier:
            for other in onto(name):
                if other in changed and other not in reasons:
                    found.setdefault(other, []).append(name)
        for name, others in found.items():
            reasons[name] = tuple(others)
            roots[name] = frozenset(key for other in others for key in roots[other])
        frontier = sorted(found)


def _above(name: str, old: Side, new: Side) -> tuple[str, ...]:
    return tuple(sorted({*old.requesters.get(name, ()), *new.requesters.get(name, ())}))


def _below(name: str, old: Side, new: Side) -> tuple[str, ...]:
    found: set[str] = set()
    for side in (old, new):
        package = side.packages.get(name)
        found.update(package.requires if package else ())
    return tuple(sorted(found))


def changes_of_spec(
    changes: tuple[SpecChange, ...] | None, reasons: Reasons, pairs: Iterable[Pair], sides: tuple[Side, Side]
) -> list[Change]:
    """What the spec says otherwise, with what that explains; and what it does not explain.

    Args:
        changes: Of the spec; None if they are not known.
        reasons: Of the packages that changed.
        pairs: The packages that changed: one that takes another's place counts once.
        sides: Old and new.
    """
    old, new = sides
    found = [*_stale(old, new)]
    if changes is None:
        problems = [
            f"{side.label}: {side.spec_problem or 'there is no spec beside the lock'}"
            for side in sides
            if side.spec is None
        ]
        found.append(
            Change(
                kind="spec-unknown",
                level="note",
                text="which changes of the spec explain those of the lock is not known",
                consequences=tuple(problems),
            )
        )
        return found
    explains: dict[str, list[str]] = {}
    for pair in pairs:
        for key in reasons.roots.get(pair.name, ()):
            explains.setdefault(key, []).append(pair.name)
    for change in changes:
        kind = "override" if change.key.startswith("overrides.") else "spec"
        if change.key.startswith("waivers"):
            continue  # the lock has them, see `rulings`
        named = sorted(explains.get(change.key, ()))
        effect = (f"explains {counted(len(named), 'package')}: {_names(named)}",) if named else ()
        found.append(
            Change(
                kind=kind,
                level="look" if kind == "override" else "note",
                subject=change.key,
                old=change.old,
                new=change.new,
                text=f"{literal(change.key)}: {_value(change.old)} -> {_value(change.new)}",
                consequences=effect,
            )
        )
    return found


def unexplained(
    reasons: Reasons, changes: tuple[SpecChange, ...] | None, old: Side, *, apart_from: Container[str]
) -> list[Change]:
    """The change that lists the packages which nothing explains; none if there is no such package.

    Args:
        reasons: Of the packages that changed.
        changes: Of the spec; None if they are not known.
        old: The old side.
        apart_from: Packages that a louder change says it of.
    """
    names = sorted(name for name, why in reasons.of.items() if not why and name not in apart_from)
    if not reasons.known or not names or old.lock is None:
        return []
    subject = "the spec did not change" if not changes else "no change of the spec explains it"
    return [
        Change(
            kind="unexplained",
            level="look",
            text=f"{counted(len(names), 'package')} changed, and {subject}: {_names(names)}",
            consequences=(
                "`envspec lock --upgrade` or a lock that was made from nothing does this; ask which, and why",
            ),
        )
    ]


def _stale(old: Side, new: Side) -> list[Change]:
    found = []
    if new.lock and new.spec and spec_digest(new.spec) != new.lock.spec_sha256:
        found.append(
            Change(
                kind="stale",
                level="stop",
                text=f"the lock of {new.label} was made from another spec than the one beside it",
                consequences=("what is reviewed here is not what the spec asks for: run `envspec lock`",),
            )
        )
    if old.lock and old.spec and spec_digest(old.spec) != old.lock.spec_sha256:
        found.append(
            Change(
                kind="spec-unknown",
                level="note",
                text=f"the lock of {old.label} was stale: reasons below may be missing",
            )
        )
    return found


def _index_keys(old: Side, new: Side) -> dict[str, tuple[str, ...]]:
    """Package -> keys of the indexes that name it on one side and not on the other."""
    found: dict[str, tuple[str, ...]] = {}
    before = old.spec.indexes if old.spec else ()
    after = new.spec.indexes if new.spec else ()
    if before == after:
        return found
    for name in old.packages.keys() | new.packages.keys():
        one, other = _indexes_naming(before, name), _indexes_naming(after, name)
        if one != other:
            found[name] = tuple(f"indexes.{index}" for index in sorted(one ^ other))
    return found


def _indexes_naming(indexes: tuple[IndexSpec, ...], name: str) -> frozenset[str]:
    return frozenset(index.name for index in indexes if any(fnmatchcase(name, each) for each in index.packages))


def _flat(spec: Spec) -> Iterable[tuple[str, str]]:
    """Every key of a spec with its value as text; a URL is never shown, only that it is another one."""
    yield "name", spec.name
    yield "snapshot", snapshot_text(spec.snapshot) or "none"
    yield from (("python.version", spec.python.version), ("python.exact", spec.python.exact))
    yield "python.archive", f"{spec.python.archive} {spec.python.archive_sha256[:12]}".strip()
    yield from (("target.platform", spec.target.platform), ("target.glibc", spec.target.glibc))
    yield from (("target.libraries", _list(spec.target.libraries)), ("target.jit", _list(spec.target.jit)))
    if spec.cuda:
        yield from (("cuda.toolkit", spec.cuda.toolkit), ("cuda.compute", _list(spec.cuda.compute)))
        yield "cuda.require-gpu-code", _list(spec.cuda.require_gpu_code)
    yield from ((f"packages.{each.name}", _requirement(each)) for each in spec.packages)
    yield from ((f"overrides.{each.name}", _requirement(each)) for each in spec.overrides)
    yield from ((f"overlays.{each.package}", each.series) for each in spec.overlays)
    for index in spec.indexes:
        yield f"indexes.{index.name}", _list(index.packages)
    yield from (("verify.imports", _list(spec.verify.imports)), ("verify.kernels", _list(spec.verify.kernels)))
    yield from ((f"policy.{rule.check}", rule.severity) for rule in spec.policy)
    for host in spec.hosts:
        yield f"hosts.{host.name}", _host(host)
    yield from ((f"caches.{cache.name}", f"host {cache.host}" if cache.host else cache.kind) for cache in spec.caches)


def _host(host: HostSpec) -> str:
    said = [
        ("compute", host.compute),
        ("gpus", str(host.gpus or "")),
        ("driver", host.driver),
        ("store", host.store),
        ("python", host.python),
        ("ssh", host.ssh if host.ssh != host.name else ""),
        ("fetch", host.fetch),
        ("reuse", _list(host.reuse)),
        ("groups", _list(host.groups)),
    ]
    return ", ".join(f"{key} {value}" for key, value in said if value) or "declared"


def _requirement(requirement: Requirement) -> str:
    extras = f"[{','.join(requirement.extras)}] " if requirement.extras else ""
    return f"{extras}{requirement.specifier or 'any version'}"


def _list(values: tuple[str, ...]) -> str:
    return ", ".join(values)


def _names(names: list[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _value(value: str) -> str:
    return literal(value) if value else "absent"
