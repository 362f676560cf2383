"""The directory of a wheel, its RECORD and its METADATA -> a `PublishedWheel`; and that as JSON, for a cache.

RECORD is a claim of the wheel: `envspec lock` compares it with every byte before anything is built from it.
"""

from __future__ import annotations

import base64
import csv
import email.parser
import hashlib
import io
import re
from typing import TYPE_CHECKING, Any

from envspec.adoption.values import PublishedFile, PublishedWheel
from envspec.errors import EnvspecError
from envspec.layout import DROPPED_METADATA, normalise_name, plan_layout, site_packages, split_wheel_name
from envspec.printable import printable_line

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_FORMAT = 4
"""Raised with every change of what is kept of a wheel."""

_RECORD_SIZE = re.compile(r"[0-9]{1,15}")


def read_published(
    *,
    file: str,
    index: str,
    sha256: str,
    size: int,
    python: str,
    members: Mapping[str, bool],
    record: bytes,
    metadata: bytes,
    entry_points: bytes,
    hashed: Mapping[str, tuple[str, int]],
) -> PublishedWheel:
    """A wheel from the parts of it that say what is in it.

    Args:
        file: Its name.
        index: What the spec calls the index.
        sha256: Of the wheel, as the index states it.
        size: In bytes.
        python: Minor version of the venv's Python.
        members: Name of each member -> whether it is executable.
        record: Of its dist-info, as are the next two.
        metadata: With the headers.
        entry_points: Empty if there are none.
        hashed: Member -> sha256 and size of what RECORD does not list, read from the wheel: see `unhashed_members`.

    Raises:
        EnvspecError: It is no wheel that can be installed.
    """
    stated = split_wheel_name(file)
    if stated is None:
        raise EnvspecError("it is not named as a wheel is", input_name=file)
    layout = plan_layout(list(members), file, python, entry_points.decode("utf-8", "replace"))
    if not layout.dist_info:
        raise EnvspecError("the wheel has no .dist-info folder that can be used", input_name=file)
    rows = {**_record_rows(record), **hashed}
    files: list[PublishedFile] = []
    for member, path in layout.targets.items():
        digest, length = rows.get(member, ("", -1))
        if not digest:
            raise EnvspecError(f"its RECORD has no sha256 of `{printable_line(member)}`", input_name=file)
        executable = members[member] or member in layout.scripts
        files.append(PublishedFile(path, member, digest, length, executable, member in layout.scripts))
    headers = email.parser.HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    return PublishedWheel(
        name=normalise_name(stated[0]),
        version=stated[1].replace("_", "-"),
        index=index,
        file=file,
        sha256=sha256,
        size=size,
        dist_info=f"{site_packages(python)}/{layout.dist_info}",
        files=tuple(sorted(files)),
        scripts=tuple(
            sorted(
                (path, hashlib.sha256(content).hexdigest())
                for path, content in layout.generated.items()
                if path.startswith("bin/")
            )
        ),
        requires_python=" ".join(str(headers.get("Requires-Python", "")).split()),
        requires_dist=tuple(" ".join(str(line).split()) for line in headers.get_all("Requires-Dist", ())),
        provides_extra=tuple(" ".join(str(line).split()) for line in headers.get_all("Provides-Extra", ())),
    )


def unhashed_members(members: Mapping[str, bool], record: bytes) -> list[str]:
    """Members of which RECORD has no sha256, but for RECORD itself and its signatures.

    Raises:
        EnvspecError: RECORD cannot be read.
    """
    rows = _record_rows(record)
    return [
        member
        for member in members
        if not rows.get(member, ("", -1))[0] and member.rpartition("/")[2] not in DROPPED_METADATA
    ]


def _record_rows(record: bytes) -> dict[str, tuple[str, int]]:
    """Member -> sha256 in hexadecimal (or empty) and size (or -1)."""
    rows: dict[str, tuple[str, int]] = {}
    try:
        for row in csv.reader(io.StringIO(record.decode("utf-8", "replace"), newline="")):
            if not row:
                continue
            path, stated, size = (*row, "", "")[:3]
            clean = re.sub(r"^(\./|/)+", "", path.replace("\\", "/"))
            rows[clean] = (_hex(stated), int(size) if _RECORD_SIZE.fullmatch(size) else -1)
    except csv.Error as error:
        raise EnvspecError(f"the wheel's RECORD cannot be read: {error}") from error
    return rows


def _hex(stated: str) -> str:
    algorithm, _, value = stated.partition("=")
    if algorithm != "sha256" or not re.fullmatch(r"[A-Za-z0-9_-]{43}=?", value):
        return ""
    return base64.urlsafe_b64decode(value.rstrip("=") + "=").hex()


def published_to_json(wheel: PublishedWheel) -> dict[str, Any]:
    """A wheel for the cache: without what depends on how it was asked for."""
    return {
        "format": CACHE_FORMAT,
        "file": wheel.file,
        "size": wheel.size,
        "dist_info": wheel.dist_info,
        "files": [list(each) for each in wheel.files],
        "scripts": [list(each) for each in wheel.scripts],
        "requires_python": wheel.requires_python,
        "requires_dist": list(wheel.requires_dist),
        "provides_extra": list(wheel.provides_extra),
    }


def published_from_json(record: Mapping[str, Any], *, file: str, index: str, sha256: str) -> PublishedWheel:
    """The inverse of `published_to_json`.

    Raises:
        KeyError, TypeError, ValueError: The record is not one that this version wrote of that file.
    """
    stated = split_wheel_name(file)
    if record["format"] != CACHE_FORMAT or record["file"] != file or stated is None:
        raise ValueError("a record of another wheel or version")
    return PublishedWheel(
        name=normalise_name(stated[0]),
        version=stated[1].replace("_", "-"),
        index=index,
        file=file,
        sha256=sha256,
        size=record["size"],
        dist_info=record["dist_info"],
        files=tuple(PublishedFile(*each) for each in record["files"]),
        scripts=tuple((path, digest) for path, digest in record["scripts"]),
        requires_python=record["requires_python"],
        requires_dist=tuple(record["requires_dist"]),
        provides_extra=tuple(record["provides_extra"]),
    )
