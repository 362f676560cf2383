"""Base wheel + patch series -> patched wheel, byte for byte the same wherever it is built. `docs/overlays.md` defines the bytes.

Invariants:
- All or nothing: a patched wheel is complete under its name, or there is none. The base wheel is only read.
- Its bytes depend on the base wheel and the series alone: not on umask, time zone, locale, the order of a folder, Python or zlib.
- Whatever the base wheel and the series contain, nothing but `EnvspecError` comes out, and nothing in them is executed.

Example:
    series = read_series(Path("overlays/ddtree/series"))
    wheel = build_patched_wheel(base, series, destination_dir=folder)
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from builder.agent.archive import WheelArchive
from builder.base_wheel import MAX_TEXT_BYTES, SHOWN_PROBLEMS, BaseWheel, judge_base, translated_errors
from builder.wheel_writing import ArchiveWriter, RawMember, metadata_with_version, record_content
from envspec.canonical import record_sha256
from envspec.errors import EnvspecError, Problem
from envspec.lock import LockedPatch, PatchedFile
from envspec.patch import MAX_PATCH_BYTES, Patch, apply_patches, parse_patch, parse_series
from envspec.printable import printable_line
from envspec.tree import parent_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedWriter
    from pathlib import Path

SERIES_RECIPE = "series 1"
DIGEST_CHARS = 8
"""Of the series' digest, in the version of the patched wheel."""

_SIGNATURES = frozenset({"RECORD.jws", "RECORD.p7s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPatch:
    """One patch file of a series."""

    name: str
    """File name beside the series file."""

    content: bytes
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A patch series as it lies on disk."""

    name: str
    """The folder's name in the form that a version can carry: pieces of `[a-z0-9]`, joined by dots."""

    patches: tuple[SeriesPatch, ...]
    """In the order of the series."""

    digest: str
    """sha256 over the patches' contents in their order. Neither the names of the files nor the series' comments are in it: they change nothing
    in the patched wheel, so a better title for a patch moves no environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedWheel:
    """A patched wheel on disk."""

    path: Path
    file: str
    """Name of the wheel file."""

    version: str
    size: int
    """Of the wheel file, in bytes."""

    sha256: str
    patches: tuple[LockedPatch, ...]
    """In the order of the series."""

    files: tuple[PatchedFile, ...]
    """Sorted by path. The `.dist-info` folder, which changes with every overlay, is not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What the series makes of one member."""

    before: bytes | None
    after: bytes | None
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a patched wheel is made of."""

    names: list[tuple[str, str]]
    """The members but RECORD, in their order: the new name, and the member of the base or the key of the change that it comes from."""

    changes: dict[str, _Change]
    record_path: str


def read_series(series_file: Path) -> Series:
    """A series and its patches.

    Args:
        series_file: The series file, in a folder whose name says what the series is for.

    Raises:
        EnvspecError: The series or a patch cannot be read, or the folder's name has no letter or digit. Every missing patch is named.
    """
    folder = series_file.absolute().parent
    pieces = re.findall(r"[a-z0-9]+", folder.name.lower())
    if not pieces:
        raise EnvspecError(
            f"the folder of the series, `{folder.name}`, has no letter or digit in its name",
            input_name=str(series_file),
            hint="the name goes into the version of the patched wheel: put the series into a folder such as `overlays/ddtree`",
        )
    try:
        text = _read_file(series_file).decode()
    except UnicodeDecodeError as error:
        raise EnvspecError(f"the series is not UTF-8: {error.reason}", input_name=str(series_file)) from None
    patches: list[SeriesPatch] = []
    problems: list[Problem] = []
    for name in parse_series(text, input_name=str(series_file)):
        try:
            content = _read_file(folder / name)
        except EnvspecError as error:
            problems.append(Problem(message=error.message, where=name))
        else:
            patches.append(SeriesPatch(name=name, content=content, sha256=hashlib.sha256(content).hexdigest()))
    if problems:
        raise EnvspecError(
            "patches of the series cannot be read", input_name=str(series_file), problems=tuple(problems)
        )
    digest = record_sha256(SERIES_RECIPE, [("patch", patch.sha256) for patch in patches])
    return Series(name=".".join(pieces), patches=tuple(patches), digest=digest)


def patched_version(base_version: str, series: Series) -> str:
    """The version of the wheel that a series makes of another.

    Args:
        base_version: PEP 440; a local part is kept in front.
        series: The series.

    Returns:
        The base version with the series' name and the first 8 digits of its digest in the local part, in PEP 440's canonical form:
        `0.5.11+ddtree.1a2b3c4d`. A piece of digits only loses its leading zeros there.

    Raises:
        EnvspecError: The base version is not PEP 440.
    """
    try:
        base = Version(base_version)
    except InvalidVersion:
        raise EnvspecError(f"the version `{base_version}` is not one of PEP 440") from None
    local = f"{base.local}." if base.local else ""
    return str(Version(f"{base.public}+{local}{series.name}.{series.digest[:DIGEST_CHARS]}"))


def build_patched_wheel(base_wheel: Path, series: Series, *, destination_dir: Path) -> PatchedWheel:
    """Apply a series to a wheel.

    Args:
        base_wheel: The wheel, under its own file name, its sha256 checked before.
        series: The series.
        destination_dir: Where the patched wheel goes; made if it is missing. A file of the same name is replaced.

    Raises:
        EnvspecError: A patch cannot be used or does not fit (exit code `FOUND_WRONG`), or the base wheel cannot be trusted or read, or the
            result cannot be written. There is no patched wheel then.
    """
    if not series.patches:
        raise EnvspecError(f"the series `{series.name}` has no patch", hint="remove the overlay from the spec")
    patches = parse_patches(series)
    with translated_errors(base_wheel.name), WheelArchive(base_wheel) as archive:
        base = judge_base(base_wheel, archive)
        version = patched_version(base.version, series)
        changes = _changes(archive, base, patches, series.name)
        metadata_member = base.members.get(f"{base.dist_info}/METADATA")
        if metadata_member is None:
            raise EnvspecError(f"`{base.dist_info}` has no METADATA", input_name=base_wheel.name)
        metadata = metadata_with_version(
            archive.read(metadata_member, limit=MAX_TEXT_BYTES),
            old=base.version,
            new=version,
            input_name=base_wheel.name,
        )
    stem = f"{base.dist_info.removesuffix('.dist-info').partition('-')[0]}-{version}"
    changes[f"{base.dist_info}/METADATA"] = _Change(before=None, after=metadata, executable=False)
    plan = _Plan(names=_planned_names(base, changes, stem), changes=changes, record_path=f"{stem}.dist-info/RECORD")
    file = f"{base.name}-{version}-{base.build_and_tag}.whl"
    with translated_errors(base_wheel.name):
        sha256, size = _write(base_wheel, base, plan, destination_dir / file)
    return PatchedWheel(
        path=destination_dir / file,
        file=file,
        version=version,
        size=size,
        sha256=sha256,
        patches=tuple(LockedPatch(name=patch.name, sha256=patch.sha256) for patch in series.patches),
        files=tuple(
            PatchedFile(path=path, before=_sha256(change.before), after=_sha256(change.after))
            for path, change in sorted(changes.items())
            if not path.startswith(f"{base.dist_info}/")
        ),
    )


def parse_patches(series: Series) -> tuple[Patch, ...]:
    """The patches of a series, read.

    Raises:
        EnvspecError: What is wrong with any of them.
    """
    patches: list[Patch] = []
    problems: list[Problem] = []
    for patch in series.patches:
        try:
            patches.append(parse_patch(patch.content, input_name=patch.name))
        except EnvspecError as error:
            found = error.problems or (Problem(message=error.message),)
            problems += [
                Problem(message=p.message, where=f"{patch.name}: {p.where or 'file'}", hint=p.hint) for p in found
            ]
    if problems:
        raise EnvspecError("patches of the series cannot be used", input_name=series.name, problems=tuple(problems))
    return tuple(patches)


def _changes(
    archive: WheelArchive, base: BaseWheel, patches: tuple[Patch, ...], series_name: str
) -> dict[str, _Change]:
    """The members that the series changes, adds or removes, with the bytecode that the changes make stale."""
    before: dict[str, bytes | None] = {}

    def read(path: str) -> bytes | None:
        member = base.members.get(path)
        before[path] = None if member is None else archive.read(member, limit=MAX_TEXT_BYTES)
        return before[path]

    after = apply_patches(patches, read, input_name=f"{series_name} on {base.name} {base.version}")
    executable = {path for path, member in base.members.items() if member.executable}
    for change in (change for patch in patches for change in patch.files):
        if change.kind == "add" and change.executable:
            executable.add(change.path)
        elif change.kind != "modify":
            executable.discard(change.path)
    changes = {
        path: _Change(before=before[path], after=content, executable=path in executable)
        for path, content in after.items()
        if content != before[path] or (path in executable) != (path in base.members and base.members[path].executable)
    }
    stale = [path for path in base.members if _source_of_bytecode(path) in changes]
    return changes | {path: _Change(before=read(path), after=None, executable=False) for path in stale}


def _source_of_bytecode(path: str) -> str:
    """The module that a `.pyc` was compiled from; empty for any other file."""
    if not path.endswith(".pyc"):
        return ""
    folder, _, file = path.rpartition("/")
    if folder == "__pycache__" or folder.endswith("/__pycache__"):
        return f"{folder.removesuffix('__pycache__')}{file.partition('.')[0]}.py"
    return path[:-1]


def _planned_names(base: BaseWheel, changes: dict[str, _Change], stem: str) -> list[tuple[str, str]]:
    """The patched wheel's members but RECORD, as `_Plan` has them.

    RECORD and its signatures are left out: RECORD is written anew, and no signature of the old one holds for it.
    """
    old_stem = base.dist_info.removesuffix(".dist-info")
    dropped = {f"{base.dist_info}/{file}" for file in ("RECORD", *_SIGNATURES)}
    removed = {path for path, change in changes.items() if change.after is None}
    names: dict[str, str] = {}
    for path in (base.members.keys() | changes.keys()) - dropped - removed:
        folder, slash, rest = path.partition("/")
        kind = folder.removeprefix(old_stem)
        names[f"{stem}{kind}/{rest}" if slash and folder in (base.dist_info, f"{old_stem}.data") else path] = path
    contended = sorted(parent_dirs(names) & names.keys())
    if contended:
        problems = tuple(
            Problem(message="is a file and a folder at once", where=printable_line(path))
            for path in contended[:SHOWN_PROBLEMS]
        )
        raise EnvspecError(
            "the patched wheel would not fit into a file system", input_name=base.name, problems=problems
        )
    dist_info = f"{stem}.dist-info/"
    return sorted(names.items(), key=lambda item: (item[0].startswith(dist_info), item[0].encode()))


def _write(base_wheel: Path, base: BaseWheel, plan: _Plan, target: Path) -> tuple[str, int]:
    """Write the patched wheel under its name, all or nothing; its sha256 and size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(base_wheel, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _replacing(target) as stream:
            writer = ArchiveWriter(stream)
            rows: list[tuple[str, str, int]] = []
            for name, path in plan.names:
                change = plan.changes.get(path)
                if change is not None and change.after is not None:
                    writer.add(name, change.after, executable=change.executable)
                    rows.append((name, _sha256(change.after), len(change.after)))
                else:
                    member = base.members[path]
                    raw = RawMember(fd, member, end=base.ends[path])
                    writer.copy(name, raw, member)
                    rows.append((name, raw.sha256, member.size))
            writer.add(plan.record_path, record_content(rows, plan.record_path), executable=False)
            return writer.finish(), writer.size
    finally:
        os.close(fd)


@contextmanager
def _replacing(target: Path) -> Iterator[BufferedWriter]:
    """A new file that gets its name only if the context ends well."""
    handle, temporary = tempfile.mkstemp(prefix=".patched-", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)  # whatever the umask
            os.fsync(stream.fileno())
        os.replace(temporary, target)  # noqa: PTH105 - both are names that mkstemp and the caller gave
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_file(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe or a device would have to be waited for
            raise EnvspecError(f"there is no file `{path.name}`", input_name=str(path))
        with path.open("rb") as stream:
            content = stream.read(MAX_PATCH_BYTES + 1)
    except OSError as error:
        raise EnvspecError(f"cannot read `{path.name}`: {error.strerror}", input_name=str(path)) from error
    if len(content) > MAX_PATCH_BYTES:
        raise EnvspecError(
            f"`{path.name}` has more than the {MAX_PATCH_BYTES} bytes that are read", input_name=str(path)
        )
    return content


def _sha256(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()
