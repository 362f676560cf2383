"""The rows about reviews: `envspec diff` of two locks in which every second package moved, beside Nix's comparison of two closures.

The locks are made of the committed one: its packages again and again under other names, with what they require, hooks and findings included. Nix
gets two closures with the same names, versions and references, in a store of its own that has their records and no files; it tells versions and
sizes, the review all that docs/review.md lists.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.commands import CannotMeasure, Command, run
from benchmarks.machine import load_average
from benchmarks.results import Goal, Row, side
from benchmarks.scratch import NAME
from builder import process
from envspec.lock import compute_env_id
from envspec.lock_toml import dump_lock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.commands import Usage
    from benchmarks.rows import Settings
    from benchmarks.scratch import Scratch
    from envspec.lock import Lock, LockedPackage

SIZES = ((200, 0.3), (2000, 2.0))
"""Packages, and the seconds that a review of so many may take."""

_NIX_DIGITS = "0123456789abcdfghijklmnpqrsvwxyz"
_NIX_CONFIG = "substituters =\nextra-experimental-features = nix-command\nbuild-users-group =\n"


def reviews(scratch: Scratch, settings: Settings) -> list[Row]:
    """A review of two locks, for each size."""
    rows = []
    for count, limit_s in SIZES:
        folder = scratch.work / f"review-{count}"
        folder.mkdir(exist_ok=True)
        old, new = make_locks(scratch.lock, count)
        for name, lock in (("old", old), ("new", new)):
            (folder / f"{name}.lock").write_text(dump_lock(lock), encoding="utf-8")
            shutil.copyfile(scratch.committed / f"{NAME}.toml", folder / f"{name}.toml")
        ours = Command(
            shown="envspec diff old.lock new.lock --store EMPTY",
            argv=(
                os.fspath(scratch.envspec_path),
                "diff",
                "old.lock",
                "new.lock",
                "--store",
                os.fspath(folder / "none"),
            ),
            environ=scratch.environ,
            cwd=folder,
        )
        peer = _closures(scratch, folder, old, new)
        load = load_average()
        taken: list[Usage] = []
        peer_taken: list[Usage] = []
        for number in range(settings.runs + 1):  # the first pass is not counted
            settings.tell(f"review of {count} packages, run {number} of {settings.runs}")
            taken.append(run(ours))
            if peer:
                peer_taken.append(run(peer))
        processor_s = sorted(usage.user_s + usage.system_s for usage in taken[1:])[len(taken[1:]) // 2]
        rows.append(
            Row(
                name=f"review, {count}",
                work=f"diff of two locks of {count} packages, half of them moved",
                goal=Goal(kind="seconds", limit=limit_s),
                load_before=load,
                page_cache="warm: one untimed pass of each side before",
                envspec=side([ours], taken[1:]),
                peer=side([peer], peer_taken[1:]) if peer else None,
                notes=(
                    f"median of the processor time {processor_s:.3f} s",
                    "no facts of the wheels: their files are not compared",
                ),
            )
        )
    return rows


def make_locks(lock: Lock, count: int) -> tuple[Lock, Lock]:
    """Two locks of so many packages, of which every second one is at another version in the second lock.

    Args:
        lock: What they are made of.
        count: How many packages each has.
    """
    base = lock.packages
    old: list[LockedPackage] = []
    new: list[LockedPackage] = []
    names = {
        (number // len(base), base[number % len(base)].name): f"{base[number % len(base)].name}-n{number // len(base)}"
        for number in range(count)
    }
    for number, ((generation, name), renamed) in enumerate(names.items()):
        package = base[number % len(base)]
        requires = tuple(sorted(names[generation, each] for each in package.requires if (generation, each) in names))
        for into, version in ((old, "1.0"), (new, "1.1" if number % 2 else "1.0")):
            into.append(_at(replace(package, name=renamed, requires=requires), version, name))
    return _whole(lock, old), _whole(lock, new)


def _at(package: LockedPackage, version: str, origin: str) -> LockedPackage:
    file = f"{package.name.replace('-', '_')}-{version}-py3-none-any.whl"
    digest = hashlib.sha256(f"{origin} {file}".encode()).hexdigest()
    return replace(package, version=version, file=file, sha256=digest, tree=digest)


def _whole(lock: Lock, packages: Iterable[LockedPackage]) -> Lock:
    ordered = tuple(sorted(packages, key=lambda package: package.name))
    site = hashlib.sha256("".join(package.tree for package in ordered).encode()).hexdigest()
    made = replace(lock, packages=ordered, overlays=(), waivers=(), site=site)
    return replace(made, env=compute_env_id(made))


def _closures(scratch: Scratch, folder: Path, old: Lock, new: Lock) -> Command | None:
    """Nix's comparison of the same packages; None if there is no Nix."""
    if shutil.which("nix", path=scratch.environ.get("PATH")) is None:
        return None
    root = folder / "nix"
    environ = {**scratch.environ, "NIX_CONFIG": _NIX_CONFIG}
    tops = [_nix_path(f"environment-{number}") for number in (0, 1)]
    if not root.exists():
        records: dict[str, list[str]] = {}
        for top, lock in zip(tops, (old, new), strict=True):
            paths = {package.name: _nix_path(f"{package.name}-{package.version}") for package in lock.packages}
            records[top] = sorted(paths.values())
            records.update({path: [] for path in paths.values()})
        text = "".join(
            f"{path}\n{hashlib.sha256(path.encode()).hexdigest()}\n100000\n\n{len(references)}\n"
            + "".join(f"{reference}\n" for reference in references)
            for path, references in records.items()
        )
        (root / "nix" / "store").mkdir(parents=True)
        loaded = process.run(["nix-store", "--store", f"local?root={root}", "--load-db"], env=environ, input_text=text)
        if loaded.returncode != 0:
            raise CannotMeasure(f"nix-store --load-db: {loaded.stderr[-300:]}")
    return Command(
        shown="nix store diff-closures OLD NEW",
        argv=("nix", "store", "diff-closures", "--store", f"local?root={root}", *tops),
        environ=environ,
        cwd=folder,
    )


def _nix_path(name: str) -> str:
    digest = hashlib.sha256(name.encode()).digest()
    return f"/nix/store/{''.join(_NIX_DIGITS[byte % 32] for byte in digest)}-{name}"
