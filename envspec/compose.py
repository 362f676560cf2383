"""Trees of wheels -> the tree of an environment. Pure.

An environment is the union of its wheels' trees. Where two wheels have the same path, equal content is one file; different content needs an
owner, named by a waiver of the spec: the owner's file stays, and the RECORD of each package that gives way is written anew without that row,
so that every RECORD of an environment is true. Metadata of a package (`.dist-info`) has no other owner than the package.

Both the site digest that a lock predicts and the one that a build makes come from here; the build then proves that the disk agrees.

This module is part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.layout import record_content
from envspec.tree import Entry, entry_line, join_lines, manifest_lines, parse_line, path_of_line, tree_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_SITE_PACKAGES = re.compile(r"lib/python[0-9.]+/site-packages/")
_METADATA = re.compile(r"[^/]+\.dist-info/.*", re.DOTALL)


@dataclass(frozen=True)
class Collision:
    """A path that several packages want with different content, and no owner is named."""

    path: str
    packages: tuple[str, ...]
    """Sorted."""


class CollisionError(ValueError):
    """The trees do not fit together.

    Attributes:
        collisions: Sorted by path.
    """

    def __init__(self, collisions: tuple[Collision, ...]) -> None:
        first = collisions[0]
        more = f" (and {len(collisions) - 1} more)" if len(collisions) > 1 else ""
        super().__init__(f"`{first.path}` is in {' and '.join(first.packages)} with different contents{more}")
        self.collisions = collisions


@dataclass(frozen=True)
class Composition:
    """The tree of an environment, and how it differs from a plain union."""

    manifest: str
    site: str
    """The site digest."""

    skipped: dict[str, frozenset[str]]
    """Package -> paths of its tree that do not come from it: another package brings the same, or owns the path."""

    generated: dict[str, bytes]
    """Path -> content that no wheel's tree has: the RECORDs of packages that give way."""


def site_relative(path: str) -> str:
    """A path within site-packages as a wheel has it; other paths as they are.

    Example:
        >>> site_relative("lib/python3.12/site-packages/build_backend.py"), site_relative("bin/serve")
        ('build_backend.py', 'bin/serve')
    """
    match = _SITE_PACKAGES.match(path)
    return path[match.end() :] if match else path


def owner_of(path: str, owners: Mapping[str, str], contenders: Collection[str] | None = None) -> str:
    """The package that owns a contended path by the waivers' patterns; empty if none says so.

    A pattern is matched with the path within site-packages and with the whole path. The first in sorted order wins.

    Args:
        path: In the environment.
        owners: Pattern -> package.
        contenders: The packages that have the path: only they can own it; None if any can.
    """
    short = site_relative(path)
    for pattern, owner in sorted(owners.items()):
        if contenders is not None and owner not in contenders:
            continue
        if fnmatch.fnmatchcase(short, pattern) or fnmatch.fnmatchcase(path, pattern):
            return owner
    return ""


def compose(trees: Sequence[tuple[str, str]], owners: Mapping[str, str]) -> Composition:
    """The environment that these trees make.

    Args:
        trees: Package and manifest of its tree, sorted by package.
        owners: Pattern of a path -> package whose file stays.

    Raises:
        CollisionError: Contents differ and no owner is named, a file stands where another tree has a folder, or metadata is contended.
        ValueError: A manifest cannot be read.
    """
    holder: dict[str, tuple[str, str]] = {}
    contended: set[str] = set()
    skipped: dict[str, set[str]] = {}
    for package, text in trees:
        for line in manifest_lines(text):
            key = line[: line.index(" ")]
            mine = (line, package)
            held = holder.setdefault(key, mine)
            if held is mine:
                continue
            if held[0] != line:
                contended.add(key)
            elif not line.endswith(" type=dir"):
                skipped.setdefault(package, set()).add(path_of_line(line))
    contenders = _contenders(trees, contended)
    giving_way: dict[str, set[str]] = {}
    unresolved: list[Collision] = []
    for key, lines in sorted(contenders.items()):
        path = path_of_line(key + " ")
        owner = owner_of(path, owners, lines)
        is_metadata = _METADATA.fullmatch(site_relative(path)) is not None
        if not owner or is_metadata or any(line.endswith(" type=dir") for line in lines.values()):
            unresolved.append(Collision(path, tuple(sorted(lines))))
            continue
        holder[key] = (lines[owner], owner)
        for package, line in lines.items():
            if package != owner:
                skipped.setdefault(package, set()).add(path)
            if line != lines[owner]:
                giving_way.setdefault(package, set()).add(path)
        skipped.get(owner, set()).discard(path)
    if unresolved:
        raise CollisionError(tuple(unresolved))
    generated: dict[str, bytes] = {}
    for package, text in trees:
        if package not in giving_way:
            continue
        record = _record_without(text, frozenset(giving_way[package]))
        if record is None:
            continue
        entry, content = record
        skipped[package].add(entry.path)
        generated[entry.path] = content
        line = entry_line(entry)
        holder[line[: line.index(" ")]] = (line, package)
    text = join_lines(line for line, _ in holder.values())
    return Composition(
        manifest=text,
        site=tree_digest(text),
        skipped={package: frozenset(paths) for package, paths in skipped.items()},
        generated=generated,
    )


def _contenders(trees: Sequence[tuple[str, str]], contended: set[str]) -> dict[str, dict[str, str]]:
    """First word of a line -> package -> its line, for the paths whose lines differ."""
    contenders: dict[str, dict[str, str]] = {key: {} for key in contended}
    if contended:
        for package, text in trees:
            for line in manifest_lines(text):
                key = line[: line.index(" ")]
                if key in contended:
                    contenders[key][package] = line
    return contenders


def _record_without(manifest_text: str, lost: frozenset[str]) -> tuple[Entry, bytes] | None:
    """The RECORD of a tree without the rows of some paths; None if the tree has no RECORD."""
    files = [entry for entry in map(parse_line, manifest_lines(manifest_text)) if entry.kind == "file"]
    records = (
        entry.path
        for entry in files
        if entry.path.endswith(".dist-info/RECORD") and site_relative(entry.path).count("/") == 1
    )
    record_path = next(records, None)
    if record_path is None:
        return None
    content = record_content(
        record_path,
        [
            (entry.path, entry.sha256, entry.size)
            for entry in files
            if entry.path not in lost and entry.path != record_path
        ],
    )
    return Entry(record_path, "file", hashlib.sha256(content).hexdigest(), len(content), executable=False), content
