"""What an export needs from outside of the lock: where its wheels are today, or a folder with all of them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.agent.files import hash_file
from builder.agent.store import process_mark, remove_dead_temporaries
from builder.building import check_overlays
from builder.supply import Supply
from builder.supplying import HostSupply
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.exports import Place, refuse_patched
from envspec.lock import parts

if TYPE_CHECKING:
    from pathlib import Path

    from builder.building import BuildRequest
    from builder.progress import Reporter


def locate_wheels(request: BuildRequest) -> dict[str, Place]:
    """Where the indexes have the wheels of a lock today, asked of uv.

    Args:
        request: Whose lock.

    Returns:
        sha256 -> place.

    Raises:
        EnvspecError: A wheel is patched, cannot be found, or lies at an address with something in it that may be a secret.
    """
    refuse_patched(request.lock)
    urls = Supply.of(request.spec, request.lock, request.store, request.environ).locate(request.lock.packages)
    plain = {sha256: url.partition("#")[0] for sha256, url in urls.items()}
    doubtful = [package.name for package in request.lock.packages if _may_hold_secret(plain[package.sha256])]
    if doubtful:
        raise EnvspecError(
            f"the index gives addresses that may hold a credential, for {len(doubtful)} packages",
            problems=tuple(Problem(f"the address of `{name}` has a query or a user") for name in doubtful[:5]),
            hint="give a folder for the wheels with `--wheelhouse DIR`, so that no address is written down",
        )
    return {sha256: Place(url=url) for sha256, url in plain.items()}


def _may_hold_secret(url: str) -> bool:
    pieces = urlsplit(url)
    return bool(pieces.query) or "@" in pieces.netloc


def fill_wheelhouse(request: BuildRequest, folder: Path, *, beside: Path, reporter: Reporter) -> dict[str, Place]:
    """Put every wheel of a lock, patched ones included, into one folder; what the store lacks is fetched.

    Args:
        request: Whose lock.
        folder: Gets the wheels under their own names; is made if it is not there. Other files in it stay.
        beside: Folder of the exported file.
        reporter: Where progress goes.

    Returns:
        sha256 -> place, relative to `beside`.

    Raises:
        EnvspecError: A wheel cannot be had, or is not the locked one.
    """
    series = check_overlays(request.lock, request.folder, request.lock_name)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = parts(request.lock)
    with HostSupply(request, series, reporter) as supply:
        futures = supply.ask([part.sha256 for part in wanted])
        with reporter.stage("copying", total=len(wanted), unit="wheels") as advance:
            for part in wanted:
                put_wheel(futures[part.sha256].result(), folder / part.file, part.sha256)
                advance(1)
    return {
        part.sha256: Place(path=os.path.relpath(folder / part.file, beside).replace(os.sep, "/")) for part in wanted
    }


def put_wheel(source: Path, target: Path, sha256: str) -> None:
    """Link or copy a wheel to its place, and see that it is the locked one.

    Raises:
        EnvspecError: It is not.
    """
    if target.is_symlink() or not target.is_file() or hash_file(os.fspath(target)) != sha256:
        remove_dead_temporaries(target.parent)
        beside = target.with_name(f".envspec-{process_mark()}-{sha256[:16]}")
        beside.unlink(missing_ok=True)
        try:
            try:
                os.link(source, beside)
            except OSError:  # another file system
                shutil.copyfile(source, beside)
            found = hash_file(os.fspath(beside))
            if found != sha256:
                raise EnvspecError(
                    f"the wheel {source.name} in the store has sha256 {found}, the lock has {sha256}",
                    input_name=os.fspath(source),
                    hint="remove that file: it is fetched again",
                    exit_code=FOUND_WRONG,
                )
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
