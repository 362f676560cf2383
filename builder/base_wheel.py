"""A base wheel: its directory, judged before anything in it is used, and the text in it that people work on.

A wheel is hostile until it has been read to its end: what an honest wheel does not have is refused, with every reason at once.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.archive import ArchiveDamaged, Member, WheelArchive
from envspec.errors import EnvspecError, Problem
from envspec.layout import find_dist_info, name_problem, split_wheel_name
from envspec.patch_format import path_problem
from envspec.printable import printable_line
from envspec.tree import parent_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_TEXT_BYTES = 64 << 20
"""Of a file that is patched, and of METADATA: they are read into memory."""

MAX_CONTENT_BYTES = 64 << 30
"""Of all members of a base wheel together; the largest wheels of today have 4 GiB."""

MAX_WORK_BYTES = 1 << 30
"""Of all text of a base wheel together: it is read into memory."""

SHOWN_PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseWheel:
    """A base wheel whose directory has been judged."""

    name: str
    build_and_tag: str
    version: str
    dist_info: str
    members: dict[str, Member]
    ends: dict[str, int]
    """Member -> offset of what comes next in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A member that can be worked on."""

    content: bytes
    executable: bool


def judge_base(base_wheel: Path, archive: WheelArchive) -> BaseWheel:
    """The wheel's directory, if there is nothing in it that an honest wheel does not have."""
    name_parts = split_wheel_name(base_wheel.name)
    if name_parts is None:
        raise EnvspecError("the base is not named as a wheel is", input_name=base_wheel.name)
    name, version, build, tag = name_parts
    problems: list[Problem] = []
    members: dict[str, Member] = {}
    for member in archive.members:
        oddity = name_problem(member.name)
        if oddity is not None:
            problems.append(Problem(message=printable_line(oddity.detail), where=oddity.kind))
        elif member.symlink:
            problems.append(Problem(message="is a symbolic link", where=printable_line(member.name)))
        elif member.name in members:
            problems.append(Problem(message="is there twice", where=printable_line(member.name)))
        members[member.name] = member
    total = sum(member.size for member in archive.members)
    if total > MAX_CONTENT_BYTES:
        problems.append(
            Problem(message=f"its members state {total} bytes, more than the {MAX_CONTENT_BYTES} that are read")
        )
    dist_info, oddities = find_dist_info(members, base_wheel.name)
    problems += [Problem(message=printable_line(oddity.detail)) for oddity in oddities]
    by_offset = sorted(archive.members, key=lambda member: member.header_offset)
    offsets = [member.header_offset for member in by_offset] + [base_wheel.stat().st_size]
    problems += [
        Problem(message="shares its bytes with another member", where=printable_line(member.name))
        for member, following in zip(by_offset, offsets[1:], strict=True)
        if member.header_offset >= following
    ]
    if problems:
        raise EnvspecError(
            "the wheel cannot be patched: its archive is not that of an honest wheel",
            input_name=base_wheel.name,
            problems=tuple(problems[:SHOWN_PROBLEMS]),
        )
    return BaseWheel(
        name=name,
        build_and_tag=f"{build}-{tag}" if build else tag,
        version=version,
        dist_info=dist_info,
        members=members,
        ends={member.name: following for member, following in zip(by_offset, offsets[1:], strict=True)},
    )


@contextmanager
def translated_errors(wheel_name: str) -> Iterator[None]:
    """Errors of the archive and of the file system as ours."""
    try:
        yield
    except ArchiveDamaged as error:
        raise EnvspecError(
            f"the wheel cannot be patched: {printable_line(str(error))}", input_name=wheel_name
        ) from error
    except OSError as error:
        raise EnvspecError(
            f"cannot read the wheel or write the patched one: {error.strerror or error} (`{error.filename}`)",
            input_name=wheel_name,
        ) from error


def read_text_files(
    base_wheel: Path, *, wanted: frozenset[str] = frozenset()
) -> tuple[BaseWheel, dict[str, TextFile], tuple[str, ...]]:
    """The files of a wheel that a patch may change and a person can read.

    Left out are `.dist-info` and `.data`, bytecode, what has a NUL byte or more than `MAX_TEXT_BYTES`, and files of git's own such as
    `.gitattributes`, which would have a meaning of their own in a work tree.

    Args:
        base_wheel: The wheel file.
        wanted: Members that are read even if they look binary: a patch changes them.

    Returns:
        The wheel's directory; path -> file, in the order of the paths; and the members outside of `.dist-info` that were left out.

    Raises:
        EnvspecError: The wheel is not that of an honest maker, is damaged, or a wanted file is not among those that may be worked on.
    """
    files: dict[str, TextFile] = {}
    left_out: list[str] = []
    room = MAX_WORK_BYTES
    with translated_errors(base_wheel.name), WheelArchive(base_wheel) as archive:
        base = judge_base(base_wheel, archive)
        for path, member in sorted(base.members.items(), key=lambda item: item[0].encode()):
            if path.startswith(f"{base.dist_info}/"):
                continue
            content = None
            if not work_path_problem(path) and member.size <= MAX_TEXT_BYTES:
                content = _read_text(archive, member, anyway=path in wanted)
            if content is None:
                left_out.append(path)
                continue
            room -= len(content)
            if room < 0:
                raise EnvspecError(
                    f"the wheel has more than {MAX_WORK_BYTES} bytes of text", input_name=base_wheel.name
                )
            files[path] = TextFile(content=content, executable=member.executable)
    contended = sorted(parent_dirs(files) & files.keys())
    if contended:
        raise EnvspecError(
            "the wheel would not fit into a file system",
            input_name=base_wheel.name,
            problems=tuple(
                Problem(message="is a file and a folder at once", where=printable_line(path))
                for path in contended[:SHOWN_PROBLEMS]
            ),
        )
    return base, files, tuple(left_out)


def work_path_problem(path: str) -> str:
    """Why a member cannot be worked on in a git work tree; empty if it can."""
    if any(part.lower().startswith(".git") or part.lower() == "git~1" for part in path.split("/")):
        return "is one of git's own names"
    if '"' in path:
        return "has a quotation mark"
    return path_problem(path)


def _read_text(archive: WheelArchive, member: Member, *, anyway: bool) -> bytes | None:
    """The content of a member; None if it is binary. Of a binary file little more is read than its beginning."""
    pieces: list[bytes] = []
    for chunk in archive.chunks(member):
        if b"\0" in chunk and not anyway:
            return None
        pieces.append(chunk)
    return b"".join(pieces)
