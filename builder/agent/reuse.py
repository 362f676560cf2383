"""A distribution that is installed already, in any venv of this machine -> its tree, if every byte is the locked one.

What an installer adds (RECORD, INSTALLER, console scripts, bytecode) differs between installers, and is made anew, as for a wheel. What is
left has to give the tree digest of the lock: nothing about the venv is believed. Files are copied, since a venv may be written to later. What
RECORD itself says was edited is named.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.files import write_file
from builder.agent.unpack import make_folders
from envspec.layout import (
    DROPPED_METADATA,
    name_problem,
    normalise_name,
    plan_layout,
    record_content,
    rewrite_script,
    split_wheel_name,
)
from envspec.tree import Entry, manifest, parent_dirs, tree_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

RECORD_LIMIT_BYTES = 64 << 20
ENTRY_POINTS_LIMIT_BYTES = 1 << 20
COPY_BYTES = 1 << 20
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Installed:
    """A distribution in a venv, as its folder is called: nothing is proven."""

    prefix: str
    """Of the venv."""

    site: str
    """Its folder of packages."""

    dist_info: str
    """Name of the `.dist-info` folder."""


@dataclass(frozen=True)
class Repacked:
    """What an installed distribution gives."""

    manifest: str
    digest: str
    files: int
    modules_bytes: int
    edited: tuple[str, ...]
    """Files that are not what the distribution's own RECORD says, relative to the venv."""


def find_installed(venv: Path, python: str) -> dict[tuple[str, str], Installed]:
    """The distributions of a venv.

    Args:
        venv: Its prefix, or a folder of packages.
        python: Minor version.

    Returns:
        (normalised name, version without its local part) -> where it is.
    """
    found: dict[tuple[str, str], Installed] = {}
    folders = [venv / "lib" / f"python{python}" / name for name in _PACKAGE_FOLDERS]
    folders += [venv / "lib" / "python3" / "dist-packages"]
    places = [(venv, folder) for folder in folders]
    if venv.name in _PACKAGE_FOLDERS:
        places = [(venv.parents[2] if len(venv.parents) > 2 else venv, venv)]
    for prefix, folder in places:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - text
                if name.endswith(".dist-info"):
                    project, _, version = name.removesuffix(".dist-info").partition("-")
                    key = (normalise_name(project), version.partition("+")[0])
                    found.setdefault(key, Installed(os.fspath(prefix), os.fspath(folder), name))
    return found


def wheel_key(filename: str) -> tuple[str, str]:
    """Name and version as `find_installed` has them, of a wheel's file name."""
    name, version, _, _ = split_wheel_name(filename) or (filename, "", "", "")
    return normalise_name(name), version.partition("+")[0]


def repack(installed: Installed, filename: str, python: str, folder: Path | None) -> Repacked:
    """Copy an installed distribution as the tree that its wheel would give, or only look what that tree would be.

    Args:
        installed: Where it is.
        filename: Of its wheel, as the lock has it.
        python: Minor version of the environment's Python.
        folder: An existing empty folder that becomes the tree; None to write nothing.

    Raises:
        ValueError: Its RECORD cannot be used.
        OSError: Something cannot be read or written.
    """
    info = f"{installed.site}/{installed.dist_info}"
    entry_points = ""
    with contextlib.suppress(FileNotFoundError):
        entry_points = _read_small(f"{info}/entry_points.txt", ENTRY_POINTS_LIMIT_BYTES).decode("utf-8", "replace")
    layout = plan_layout([f"{installed.dist_info}/METADATA"], filename, python, entry_points)
    if not layout.record_path:
        raise ValueError(f"`{installed.dist_info}` is not the metadata of {filename}")
    rows = list(_rows(installed, layout.record_path, layout.generated.keys()))
    if folder is not None:
        make_folders(folder, parent_dirs([*(target for target, _, _ in rows), *layout.generated, layout.record_path]))
    base = None if folder is None else os.fspath(folder)
    entries: list[Entry] = []
    edited: list[str] = []
    modules_bytes = 0
    for target, source, recorded in rows:
        entry, original = _copy(source, None if base is None else f"{base}/{target}", target)
        entries.append(entry)
        if target.endswith(".py"):
            modules_bytes += entry.size
        if recorded and recorded != original:
            edited.append(os.path.relpath(source, installed.prefix))
    for path, content in layout.generated.items():
        entries.append(_made(base, path, content, executable=path.startswith("bin/")))
    record = record_content(layout.record_path, [(entry.path, entry.sha256, entry.size) for entry in entries])
    entries.append(_made(base, layout.record_path, record, executable=False))
    text = manifest(entries)
    return Repacked(
        manifest=text,
        digest=tree_digest(text),
        files=len(entries),
        modules_bytes=modules_bytes,
        edited=tuple(sorted(edited)),
    )


def _rows(installed: Installed, record_path: str, generated: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Path in the environment, file here and recorded sha256 (hex, or empty) of everything that came from the wheel.

    Raises:
        ValueError: RECORD leads out of the venv, or cannot be read.
    """
    site = record_path.rsplit("/", 2)[0]
    skipped = {f"{site}/{installed.dist_info}/{name}" for name in DROPPED_METADATA} | set(generated)
    text = _read_small(f"{installed.site}/{installed.dist_info}/RECORD", RECORD_LIMIT_BYTES).decode("utf-8")
    seen: set[str] = set()
    for row in csv.reader(text.splitlines()):
        if not row:
            continue
        target = os.path.normpath(f"{site}/{row[0]}")
        if name_problem(target) is not None:
            raise ValueError(f"its RECORD names `{row[0]}`")
        if target in skipped or target in seen or "__pycache__" in target.split("/"):
            continue
        seen.add(target)
        # Folders of packages may be called otherwise here: `dist-packages`.
        inside = target.startswith(f"{site}/")
        source = f"{installed.site}/{target[len(site) + 1 :]}" if inside else f"{installed.prefix}/{target}"
        yield target, source, _hex(row[1]) if len(row) > 1 else ""


def _hex(recorded: str) -> str:
    kind, _, text = recorded.partition("=")
    if kind != "sha256":
        return ""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
    except ValueError:
        return ""


def _copy(source: str, place: str | None, target: str) -> tuple[Entry, str]:
    """Copy a file of a venv, if there is a place for it; its entry, and the sha256 that it has there."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"`{source}` is no ordinary file")
        if target.startswith("bin/") and target.count("/") == 1:
            original = file.readall()
            content = rewrite_script(_as_in_the_wheel(original))
            return _made_at(place, target, content, executable=True), hashlib.sha256(original).hexdigest()
        executable = bool(status.st_mode & 0o111)
        mode = 0o555 if executable else 0o444
        digest = hashlib.sha256()
        size = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        out = os.open(os.devnull if place is None else place, os.O_WRONLY if place is None else flags, mode)
        try:
            if place is not None:
                os.fchmod(out, mode)
            while chunk := file.read(COPY_BYTES):
                digest.update(chunk)
                size += len(chunk)
                view = memoryview(chunk)
                while view and place is not None:
                    view = view[os.write(out, view) :]
        finally:
            os.close(out)
    return Entry(target, "file", digest.hexdigest(), size, executable), digest.hexdigest()


def _as_in_the_wheel(content: bytes) -> bytes:
    """A script as its wheel may have it, where its first line was made to name an interpreter."""
    first, newline, rest = content.partition(b"\n")
    if first.startswith(b"#!/bin/sh") and rest.startswith(b"'''exec' "):  # what pip and uv write for long paths
        lines = rest.split(b"\n", 2)
        return b"#!python\n" + (lines[2] if len(lines) > 2 else b"")
    if first.startswith(b"#!") and b"python" in first and newline:
        return b"#!python\n" + rest
    return content


def _made(base: str | None, path: str, content: bytes, *, executable: bool) -> Entry:
    return _made_at(None if base is None else f"{base}/{path}", path, content, executable=executable)


def _made_at(place: str | None, path: str, content: bytes, *, executable: bool) -> Entry:
    if place is not None:
        write_file(place, content, executable=executable)
    return Entry(path, "file", hashlib.sha256(content).hexdigest(), len(content), executable)


def _read_small(path: str, limit: int) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise ValueError(f"`{path}` has more than {limit} bytes")
    return raw
