"""Two sides -> a review.

    review = make_review(Side(label="HEAD", lock=old), Side(label="the working tree", lock=new))
    [change.kind for change in review.changes]   # ["cuda-line", "driver", ...]: the most severe first

Pure: what it says depends on the sides alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from envspec.diff.changes import LEVELS, Change, Level, in_order
from envspec.diff.contents import changes_of_contents
from envspec.diff.cost import Cost, PackageSize, cost_of, sizes_of
from envspec.diff.gpus import changes_of_gpus, lost_code
from envspec.diff.hosts import HostVerdict, changes_of_hosts, judge_hosts
from envspec.diff.needs import changes_of_needs, needs_of_first
from envspec.diff.overlays import changes_of_overlays
from envspec.diff.packages import changes_of_packages, is_material
from envspec.diff.pairs import changed_pairs
from envspec.diff.rulings import changes_of_rulings
from envspec.diff.wanted import changes_of_spec, find_reasons, spec_changes, unexplained

if TYPE_CHECKING:
    from envspec.diff.sides import Side
    from envspec.lock import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """All that is to be said of a change of a lock."""

    lock_name: str
    """Of the lock's file: `ddtree.lock`."""

    old_label: str
    new_label: str
    old: Lock | None
    """None if there was no lock."""

    new: Lock
    changes: tuple[Change, ...]
    """The most severe first within each section, sections in their order."""

    hosts: tuple[HostVerdict, ...]
    """Every declared host, sorted by name."""

    hosts_known: bool
    """Whether the new spec, which declares them, is at hand."""

    cost: Cost
    sizes: tuple[PackageSize, ...]
    """Every package, the largest first."""

    @property
    def same_env(self) -> bool:
        """Whether the env id is the same: nothing is built anew."""
        return self.old is not None and self.old.env == self.new.env

    @property
    def same_site(self) -> bool:
        """Whether the tree is the same, file by file."""
        return self.old is not None and self.old.site == self.new.site

    def counts(self) -> dict[Level, int]:
        """Level -> number of changes."""
        found = Counter(change.level for change in self.changes)
        return {level: found[level] for level in LEVELS}


def make_review(old: Side, new: Side, *, lock_name: str) -> Review:
    """Compare two sides.

    Args:
        old: The old side; its lock may be None.
        new: The new side.
        lock_name: Of the lock's file.

    Raises:
        ValueError: The new side has no lock.
    """
    if new.lock is None:
        raise ValueError("there is nothing to review without a new lock")
    pairs = changed_pairs(old, new)
    wanted = spec_changes(old, new)
    reasons = find_reasons([pair for pair in pairs if is_material(pair)], wanted, old, new)
    hosts = judge_hosts(old, new, lost_code(pairs, old, new))
    changes = [*changes_of_spec(wanted, reasons, pairs, (old, new))]
    packages = changes_of_packages(pairs, reasons, old, new)
    loud = {change.package for change in packages if change.kind in ("reuploaded", "index-moved")}
    changes += unexplained(reasons, wanted, old, apart_from=loud)
    if old.lock is None:
        changes += needs_of_first(new.lock)
    else:
        changes += changes_of_needs(old.lock, new.lock, pairs)
        changes += changes_of_hosts(hosts, old, new)
        changes += changes_of_gpus(pairs, old, new)
        changes += _identity(old.lock, new.lock)
        changes += changes_of_contents(pairs, old, new)
    changes += packages
    changes += changes_of_overlays(old, new)
    changes += changes_of_rulings(old.lock, new.lock, pairs)
    if old.lock is not None and not changes:
        changes += _rest(old.lock, new.lock)
    return Review(
        lock_name=lock_name,
        old_label=old.label,
        new_label=new.label,
        old=old.lock,
        new=new.lock,
        changes=in_order(changes),
        hosts=hosts,
        hosts_known=new.spec is not None,
        cost=cost_of(old, new),
        sizes=sizes_of(pairs, old, new),
    )


def _rest(old: Lock, new: Lock) -> list[Change]:
    """What no other change tells: a lock that differs is never called unchanged."""
    names = [field.name for field in fields(new) if getattr(old, field.name) != getattr(new, field.name)]
    if not names:
        return []
    listed = ", ".join(names)
    text = f"nothing that is installed or needed changes, but the locks differ in: {listed}"
    return [Change(kind="record", level="look", old=listed, new=listed, text=text)]


def _identity(old: Lock, new: Lock) -> list[Change]:
    found = []
    if old.env == new.env and old.site != new.site:
        found.append(
            Change(
                kind="site",
                level="stop",
                old=old.site,
                new=new.site,
                text="the same wheels, patches and Python are said to give another tree",
                consequences=(
                    "one of the two locks was edited, or made by an envspec that lays wheels out in another way",
                ),
            )
        )
    elif old.env != new.env and old.site == new.site:
        found.append(
            Change(
                kind="site",
                level="note",
                old=old.site,
                new=new.site,
                text="another env id, but the same tree: no file that is installed differs",
            )
        )
    if old.name != new.name:
        found.append(
            Change(
                kind="name",
                level="look",
                old=old.name,
                new=new.name,
                text=f"the environment is called {new.name}, and was {old.name}",
                consequences=("its profile has another path: scripts that use the old one keep the old environment",),
            )
        )
    return found
