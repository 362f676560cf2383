"""Takes what a bundle has to where a build looks for it: the spec into a folder, the wheels into the wheelhouse."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.agent.taking import take_wheel
from builder.image.bundle_reading import check_spec_size, checked, damaged, open_bundle, write_spec_file
from builder.provision import is_there
from envspec.bundles import SPEC_FOLDER, WHEELS_FOLDER, BundleIndex
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.lock import parts

if TYPE_CHECKING:
    from pathlib import Path

    from builder.building import BuildRequest
    from builder.progress import Reporter


def take_spec(bundle: Path, folder: Path) -> BundleIndex:
    """Write the spec of a bundle, its lock, its patches and the archive with its Python.

    Args:
        bundle: The bundle.
        folder: An empty folder of this process.

    Raises:
        EnvspecError: It is no bundle, or damaged.
    """
    name = os.fspath(bundle)
    with open_bundle(bundle) as opened:
        check_spec_size(opened.index, name)
        for member, chunks in opened.members():
            if not member.path.startswith(SPEC_FOLDER):
                break
            write_spec_file(folder, member, chunks, name)
        return opened.index


def take_wheels(bundle: Path, request: BuildRequest, reporter: Reporter) -> None:
    """Put the wheels of a lock into the wheelhouse; the whole bundle is read and checked.

    Args:
        bundle: The bundle.
        request: Whose lock.
        reporter: Where progress goes.

    Raises:
        EnvspecError: It is damaged, has what the lock does not name, or lacks what it does.
    """
    name, store, lock = os.fspath(bundle), request.store, request.lock
    named = {part.sha256: (part.file, part.size) for part in parts(lock)}
    named.update({package.sha256: (package.file, package.size) for package in lock.packages})
    with open_bundle(bundle) as opened:
        index = opened.index
        if (index.env, index.site) != (lock.env, lock.site):
            raise damaged(f"the index of the bundle names env {index.env[:64]}, its lock has {lock.env}", name)
        _check_wheels(index, named, name)
        total = sum(member.size for member in index.members)
        with reporter.stage("reading the bundle", total=total, unit="bytes") as advance:
            for member, chunks in opened.members():
                content = checked(member, chunks, name)
                if member.wheel is not None and not is_there(store.wheel(*member.wheel), member.size):
                    take_wheel(store, *member.wheel, member.size, content, source=name)
                else:
                    for _ in content:
                        pass
                advance(member.size)


def _check_wheels(index: BundleIndex, named: dict[str, tuple[str, int]], name: str) -> None:
    wheels = {member.sha256: member for member in index.members if member.path.startswith(WHEELS_FOLDER)}
    problems = [
        Problem(f"the lock does not name it, or has another size or file name of {sha256}", where=member.path)
        for sha256, member in wheels.items()
        if member.wheel is None or named.get(sha256) != (member.wheel[1], member.size)
    ]
    problems += [
        Problem("the lock names it, and the bundle does not have it", where=file)
        for sha256, (file, _) in named.items()
        if sha256 not in wheels
    ]
    if problems:
        raise EnvspecError(
            "the wheels of the bundle are not those of its lock",
            input_name=name,
            problems=tuple(problems[:20]),
            hint="make it anew with `envspec export --format bundle`",
            exit_code=FOUND_WRONG,
        )
