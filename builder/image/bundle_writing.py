"""A lock -> a bundle: spec, lock, patches, wheels, uv, the agent, and the pinned Python, for machines that no network reaches.

The same lock and the same programs give the same bytes. Wheels are not compressed again: they are archives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.agent.files import hash_file
from builder.agent.store import (
    process_mark,
    remove_dead_temporaries,
    sync_filesystem,
    sync_folder,
    write_atomically,
)
from builder.building import check_overlays, order_of
from builder.bundle import make_bundle
from builder.exporting import put_wheel
from builder.host_building import PinnedFile
from builder.image.bundle_reading import CHUNK_BYTES, FILE_MODE, member_mode
from builder.image.tar_headers import END, FILE, padding, tar_header
from builder.outcome import patch_files
from builder.outputs import alone_in, check_output, is_archive, writing
from builder.supplying import HostSupply, read_from
from builder.uv import find_uv
from envspec.bundles import (
    AGENT,
    INDEX,
    INDEX_LIMIT_BYTES,
    INSTALL,
    ORDER,
    SPEC_FOLDER,
    UV,
    WHEELS_FOLDER,
    BundleIndex,
    BundleMember,
    index_bytes,
    parse_index,
    paths_of,
    unfinished_bytes,
)
from envspec.canonical import canonical_json
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.lock import parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.building import BuildRequest
    from builder.progress import Advance, Reporter

_INSTALL = '''\
#!/usr/bin/env python3
"""Builds the environment of this bundle on this machine, without network and without envspec: CPython 3.10 or later is enough.

python3 install [--store FOLDER] [--python PATH]
"""

import hashlib
import os
import sys

AGENT = "{agent}"

here = os.path.dirname(os.path.abspath(__file__))
try:
    with open(os.path.join(here, "agent.zip"), "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
except OSError as error:
    sys.exit("error: agent.zip cannot be read: %s: copy the bundle anew" % error.strerror)
if found != AGENT:
    sys.exit("error: agent.zip is damaged: copy the bundle anew")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(here, "agent.zip"))

from builder.agent.install import main

if __name__ == "__main__":
    sys.exit(main(here, sys.argv[1:], print, lambda line: print(line, file=sys.stderr)))
'''

_Content = bytes | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBundle:
    """A bundle that is there."""

    index: BundleIndex
    index_sha256: str
    size: int
    """Of all its members, in bytes."""


def write_bundle(request: BuildRequest, spec_path: Path, output: Path, reporter: Reporter) -> WrittenBundle:
    """Write the bundle of a lock.

    Args:
        request: Whose lock.
        spec_path: The spec's file; the lock lies beside it.
        output: A folder, or a file whose name ends with `.tar`.
        reporter: Where progress goes.

    Raises:
        EnvspecError: Something cannot be had or is not the locked one, or the output is something else or cannot be written.
    """
    check_output(output)
    if not is_archive(output):
        _old_paths(output)  # before anything is fetched
    series = check_overlays(request.lock, request.folder, request.lock_name)
    with HostSupply(request, series, reporter) as supply:
        wheels = _wheels(request)
        futures = supply.ask([wheel.sha256 for wheel in wheels])
        contents: dict[str, _Content] = {**_spec_files(request, spec_path), **_programs(request)}
        members = [_member(path, content) for path, content in contents.items()]
        for wheel in wheels:
            contents[wheel.path] = futures[wheel.sha256].result()
        index = BundleIndex(
            name=request.lock.name,
            env=request.lock.env,
            site=request.lock.site,
            spec=spec_path.name,
            members=(*members, *wheels),
        )
        parse_index(index_bytes(index), input_name=request.lock_name)  # whoever reads it does the same
        size = sum(member.size for member in index.members)
        with reporter.stage("writing the bundle", total=size, unit="bytes") as advance, writing(output):
            if is_archive(output):
                _write_tar(index, contents, output, advance)
            else:
                with alone_in(output):
                    _write_folder(index, contents, output, advance)
    return WrittenBundle(index=index, index_sha256=hashlib.sha256(index_bytes(index)).hexdigest(), size=size)


def _wheels(request: BuildRequest) -> list[BundleMember]:
    """Every wheel: patched ones, which an agent can install as they are, and their bases, which a build patches."""
    lock = request.lock
    named = {part.sha256: (part.file, part.size) for part in parts(lock)}
    named.update({package.sha256: (package.file, package.size) for package in lock.packages})
    rows = [
        BundleMember(path=f"{WHEELS_FOLDER}{sha256}/{file}", size=size, sha256=sha256)
        for sha256, (file, size) in named.items()
    ]
    return sorted(rows, key=lambda each: each.path)


def _spec_files(request: BuildRequest, spec_path: Path) -> dict[str, _Content]:
    found: dict[str, _Content] = {
        spec_path.name: spec_path.read_bytes(),
        request.lock_name: spec_path.with_name(request.lock_name).read_bytes(),
    }
    digests = (request.spec_sha256, request.lock_sha256)
    if (
        tuple(hashlib.sha256(content).hexdigest() for content in found.values() if isinstance(content, bytes))
        != digests
    ):
        raise EnvspecError("the spec or its lock changed just now", input_name=request.lock_name, hint="export again")
    for path in patch_files(request.lock, request.folder):
        found[path] = (request.folder / path).read_bytes()
    if request.spec.python.archive:
        found[request.spec.python.archive] = PinnedFile.of(request).path
    return {f"{SPEC_FOLDER}{path}": content for path, content in sorted(found.items())}


def _programs(request: BuildRequest) -> dict[str, _Content]:
    agent = make_bundle()
    lock, pinned = request.lock, request.spec.python
    order = replace(order_of(request), now="")
    fields = {
        "order": order.to_json(),
        "sizes": {part.sha256: part.size for part in parts(lock)},
        "exact": lock.python_exact,
        "platform": lock.platform,
        "archive": f"{SPEC_FOLDER}{pinned.archive}" if pinned.archive else "",
        "archive_sha256": pinned.archive_sha256,
    }
    return {
        AGENT: agent.content,
        INSTALL: _INSTALL.format(agent=agent.sha256).encode(),
        ORDER: canonical_json(fields),
        UV: _uv_itself(request),
    }


def _uv_itself(request: BuildRequest) -> Path:
    """The program of uv, and no shim that starts it: uv tells those that it runs where it lies.

    Raises:
        EnvspecError: There is no uv.
    """
    uv = find_uv(request.environ)
    told = uv.run(
        [
            "run",
            "--no-project",
            "--python",
            sys.executable,
            "python",
            "-c",
            "import os; print(os.environ.get('UV', ''))",
        ],
        cache_dir=request.store.uv_cache,
        environ=request.environ,
        offline=True,
    ).stdout.strip()
    return Path(told) if told and Path(told).is_file() else uv.path


def _member(path: str, content: _Content) -> BundleMember:
    executable = path in {INSTALL, UV}
    if isinstance(content, bytes):
        sha256, size = hashlib.sha256(content).hexdigest(), len(content)
    else:
        sha256, size = hash_file(os.fspath(content)), content.stat().st_size
    return BundleMember(path=path, size=size, sha256=sha256, executable=executable)


def _chunks(content: _Content) -> Iterator[bytes]:
    return iter([content] if content else []) if isinstance(content, bytes) else read_from(content, 0)


def _write_tar(index: BundleIndex, contents: Mapping[str, _Content], output: Path, advance: Advance) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    remove_dead_temporaries(output.parent)
    beside = output.with_name(f".envspec-{process_mark()}-bundle")
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb", buffering=CHUNK_BYTES) as stream:
            raw = index_bytes(index)
            stream.write(tar_header(INDEX, kind=FILE, mode=FILE_MODE, size=len(raw)) + raw + padding(len(raw)))
            for member in index.members:
                stream.write(tar_header(member.path, kind=FILE, mode=member_mode(member), size=member.size))
                digest = hashlib.sha256()
                for chunk in _chunks(contents[member.path]):
                    digest.update(chunk)
                    stream.write(chunk)
                    advance(len(chunk))
                stream.write(padding(member.size))
                if digest.hexdigest() != member.sha256:
                    raise _changed(member, digest.hexdigest())
            stream.write(END)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(output)
        sync_folder(output.parent)
    finally:
        beside.unlink(missing_ok=True)


def _old_paths(output: Path) -> tuple[str, ...]:
    """What earlier exports left in a folder.

    Raises:
        EnvspecError: It has something that no export wrote.
    """
    if not output.is_dir():
        return ()
    remove_dead_temporaries(output)
    found: tuple[str, ...] | None = None
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), (output / INDEX).open("rb") as file:
        found = paths_of(file.read(INDEX_LIMIT_BYTES))
    if found is None and any(output.iterdir()):
        raise EnvspecError(
            f"`{output}` is not empty, and no bundle",
            hint="name an empty or a new folder, or a file that ends with `.tar`",
        )
    return found or ()


def _write_folder(index: BundleIndex, contents: Mapping[str, _Content], output: Path, advance: Advance) -> None:
    """Write a folder; of a bundle that is there, what is the same stays."""
    old = _old_paths(output)
    kept = {member.path for member in index.members}
    # What is half-written is no bundle, and yet ours: the next export goes on with it.
    write_atomically(output / INDEX, unfinished_bytes([*kept, *old]))
    for member in index.members:
        place, content = output / member.path, contents[member.path]
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_dead_temporaries(place.parent)
        if isinstance(content, bytes) or member.executable:
            write_atomically(place, content if isinstance(content, bytes) else content.read_bytes())
            place.chmod(member_mode(member))
        else:
            put_wheel(content, place, member.sha256)
        advance(member.size)
    for path in old:
        if path not in kept:
            with contextlib.suppress(OSError):
                (output / path).unlink(missing_ok=True)
                (output / path).parent.rmdir()
    sync_filesystem(output)
    write_atomically(output / INDEX, index_bytes(index))


def _changed(member: BundleMember, found: str) -> EnvspecError:
    return EnvspecError(
        f"`{member.path}` has sha256 {found}, and should have {member.sha256}",
        hint="if it is a wheel of the store, remove that file: it is fetched again",
        exit_code=FOUND_WRONG,
    )
