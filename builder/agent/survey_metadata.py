"""What a `.dist-info` or `.egg-info` folder of a venv says: headers, scripts, where it came from, and the rows of RECORD.

Everything is hostile: whatever cannot be read, or is too much, is a problem of the distribution and ends nothing.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import binascii
import csv
import io
import json
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from builder.agent.survey_tree import read_small, within
from envspec.layout import normalise_name, parse_entry_points

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.agent.survey_tree import Tree

HEADERS_LIMIT_BYTES = 1 << 20
"""Of METADATA, whose headers end at its first empty line; the longest that was seen has 30 kB of them."""

SMALL_LIMIT_BYTES = 1 << 20
RECORD_LIMIT_BYTES = 64 << 20
MOST_ROWS = 200_000
"""Of one RECORD; the longest that was seen has 14,000."""

MOST_HEADERS = 20_000
MOST_PROBLEMS = 20
_SHA256_BYTES, _DIGEST_CHARACTERS = 32, 43
_INFO = re.compile(r"(?P<stem>.+)\.(?P<kind>dist-info|egg-info)")
_PYTHON_OF_EGG = re.compile(r"-py\d(\.\d+)?$")
_URL_SAFE = str.maketrans("-_", "+/")
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|\0")
"""Paths that are not in their shortest form."""


class Row(NamedTuple):
    """A row of RECORD, without bytecode."""

    path: str
    """Relative to the prefix; absolute if it leads out of it."""

    recorded: str
    size: int


class Metadata(NamedTuple):
    """What a metadata folder says."""

    fields: dict[str, Any]
    """Of `ObservedDistribution`, all but files, hooks and binaries."""

    rows: list[Row]
    has_record: bool


def find_metadata(tree: Tree, site: str) -> list[str]:
    """The metadata folders (and old `.egg-info` files) at the root of a site-packages, relative to the prefix, sorted."""
    prefix = f"{site}/" if site else ""
    found = [
        path
        for path in (*tree.folders, *tree.files)
        if path.startswith(prefix) and "/" not in path[len(prefix) :] and _INFO.fullmatch(path[len(prefix) :])
    ]
    return sorted(found)


def read_metadata(tree: Tree, site: str, folder: str) -> Metadata:
    """Read a metadata folder.

    Args:
        tree: Of the venv.
        site: The site-packages that it lies in, relative to the prefix.
        folder: It, relative to the prefix.
    """
    name = folder[len(site) + 1 :] if site else folder
    match = _INFO.fullmatch(name)
    stem, kind = (match["stem"], match["kind"]) if match else (name, "")
    stem = _PYTHON_OF_EGG.sub("", stem) if kind == "egg-info" else stem
    folder_name, _, folder_version = stem.partition("-")
    reader = _Reader(tree, site, folder)
    if kind == "dist-info":
        headers = reader.headers("METADATA", needed=("Name", "Version"))
        wheel = reader.headers("WHEEL")
        requires = tuple(headers.get("requires-dist", ()))
    else:
        is_file = folder in tree.files
        headers = reader.headers("" if is_file else "PKG-INFO", needed=("Name", "Version"))
        wheel = {}
        requires = tuple(headers.get("requires-dist", ())) or reader.egg_requires()
    rows, has_record = reader.rows(kind)
    entry_points = reader.text("entry_points.txt") or ""
    scripts: dict[str, tuple[str, str]] = {}
    if entry_points:
        scripts, oddities = parse_entry_points(entry_points)
        reader.problems.extend(f"entry_points.txt: {oddity.detail}" for oddity in oddities[:3])
    if folder_name.startswith("~"):
        reader.problems.append(f"`{name}` is what an interrupted uninstallation left")
    fields: dict[str, Any] = {
        "name": normalise_name(_first(headers, "name") or folder_name),
        "version": _first(headers, "version"),
        "folder": folder,
        "folder_version": folder_version,
        "installer": (reader.text("INSTALLER") or "").strip()[:100],
        "requested": f"{folder}/REQUESTED" in tree.files,
        "direct_url": reader.direct_url(),
        "requires_python": _first(headers, "requires-python"),
        "requires_dist": requires,
        "provides_extra": tuple(headers.get("provides-extra", ())),
        "wheel_tags": tuple(wheel.get("tag", ())),
        "build": _first(wheel, "build"),
        "scripts": tuple(sorted((script, f"{module}:{name}") for script, (module, name) in scripts.items())),
        "top_level": _top_level(site, rows),
        "problems": reader.all_problems(),
    }
    return Metadata(fields, rows, has_record)


class _Reader:
    """The files of one metadata folder."""

    def __init__(self, tree: Tree, site: str, folder: str) -> None:
        self._tree = tree
        self._site = site
        self._folder = folder
        self.problems: list[str] = []

    def all_problems(self) -> tuple[str, ...]:
        more = len(self.problems) - MOST_PROBLEMS
        return (*self.problems[:MOST_PROBLEMS], *((f"and {more} more",) if more > 0 else ()))

    def content(self, name: str, limit: int) -> bytes | None:
        path = f"{self._folder}/{name}" if name else self._folder
        if path not in self._tree.files:
            return None
        return read_small(f"{self._tree.root}/{path}", limit)

    def text(self, name: str) -> str | None:
        raw = self.content(name, SMALL_LIMIT_BYTES)
        return None if raw is None else raw.decode("utf-8", "replace")

    def headers(self, name: str, *, needed: tuple[str, ...] = ()) -> dict[str, list[str]]:
        """The headers of a file by their names in lower case; what is missing of them is a problem."""
        raw = self.content(name, HEADERS_LIMIT_BYTES)
        shown = name or "it"
        if raw is None:
            if needed:
                self.problems.append(f"{shown} is missing")
            return {}
        headers, whole = _headers(raw)
        if not whole:
            self.problems.append(f"{shown} has headers of more than {HEADERS_LIMIT_BYTES} bytes")
        self.problems.extend(f"{shown} has no {header}" for header in needed if not headers.get(header.lower()))
        return headers

    def egg_requires(self) -> tuple[str, ...]:
        """`requires.txt` as `Requires-Dist` would have it."""
        section = ""
        found = []
        for line in (self.text("requires.txt") or "").splitlines()[:MOST_HEADERS]:
            text = line.strip()
            if text.startswith("[") and text.endswith("]"):
                section = text[1:-1]
            elif text and not text.startswith("#"):
                extra, _, marker = section.partition(":")
                both = [f"({marker})" if extra else marker] if marker else []
                both += [f'extra == "{extra}"'] if extra else []
                found.append(f"{text}; {' and '.join(both)}" if both else text)
        return tuple(found)

    def direct_url(self) -> str:
        """Where it came from, without credentials."""
        text = self.text("direct_url.json")
        if not text:
            return ""
        try:
            record = json.loads(text)
            url = urlsplit(str(record["url"]))
            # User, password and query may be secret.
            host = url.hostname or ""
            port = f":{url.port}" if url.port else ""
            place = urlunsplit((url.scheme, host + port, url.path, "", ""))
            vcs = record.get("vcs_info") or {}
            if vcs:
                place = f"{vcs.get('vcs', 'vcs')}+{place}@{vcs.get('commit_id', '')}"
            return f"editable {place}" if (record.get("dir_info") or {}).get("editable") else place
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.problems.append("direct_url.json cannot be read")
            return ""

    def rows(self, kind: str) -> tuple[list[Row], bool]:
        """The rows of RECORD, and whether there is one that can be read; an `.egg-info` has a list of files at most, without itself."""
        if kind != "dist-info":
            return self._installed_files(), False
        raw = self.content("RECORD", RECORD_LIMIT_BYTES)
        if raw is None:
            path = f"{self._folder}/RECORD"
            there = path in self._tree.files or path in self._tree.links or path in self._tree.others
            self.problems.append("RECORD cannot be read" if there else "RECORD is missing")
            return [], False
        if len(raw) == RECORD_LIMIT_BYTES:
            self.problems.append(f"RECORD has more than {RECORD_LIMIT_BYTES} bytes: what follows was not read")
        found: dict[str, Row] = {}
        others: dict[str, int] = {}
        try:
            for row in csv.reader(io.StringIO(raw.decode("utf-8", "surrogateescape"), newline="")):
                if not row or not row[0]:
                    continue
                if len(found) >= MOST_ROWS:
                    self.problems.append(f"RECORD has more than {MOST_ROWS} rows: what follows was not read")
                    break
                self._take(row, found, others)
        except csv.Error as error:
            self.problems.append(f"RECORD cannot be read beyond {len(found)} rows: {error}")
        self.problems.extend(
            f"RECORD has {algorithm} for {count} files, which is not compared"
            for algorithm, count in sorted(others.items())[:5]
        )
        return sorted(found.values()), True

    def _take(self, row: list[str], found: dict[str, Row], others: dict[str, int]) -> None:
        if "__pycache__" in row[0]:
            return
        path = self.place(row[0])
        stated = row[1] if len(row) > 1 else ""
        recorded = ""
        if stated:
            algorithm, _, value = stated.partition("=")
            if algorithm == "sha256":
                recorded = _hex(value)
                if not recorded:
                    self.problems.append(f"RECORD has no digest for `{path}`: `{stated[:80]}`")
            else:
                others[algorithm[:20]] = others.get(algorithm[:20], 0) + 1
        size = row[2] if len(row) > 2 else ""
        number = int(size) if size.isascii() and size.isdigit() and len(size) < 16 else -1
        if path in found and found[path] != (path, recorded, number):
            self.problems.append(f"RECORD names `{path}` twice")
        found[path] = Row(path, recorded, number)

    def place(self, name: str) -> str:
        """A path of RECORD, relative to the prefix if it does not lead out of it."""
        if _ODD.search(name) is None:
            return f"{self._site}/{name}" if self._site else name
        root = self._tree.root
        path = posixpath.normpath(posixpath.join(root, self._site, name))
        return within(root, path) or path

    def _installed_files(self) -> list[Row]:
        text = self.text("installed-files.txt") or ""
        rows = []
        for line in text.splitlines()[:MOST_ROWS]:
            name = line.strip()
            if name and "__pycache__" not in name:
                path = posixpath.normpath(posixpath.join(self._tree.root, self._folder, name))
                rows.append(Row(within(self._tree.root, path) or path, "", -1))
        return sorted(set(rows))


def _hex(value: str) -> str:
    """A digest of RECORD in hexadecimal; empty if it is none."""
    text = value.rstrip("=")
    if len(text) != _DIGEST_CHARACTERS:
        return ""
    try:
        raw = binascii.a2b_base64(text.translate(_URL_SAFE) + "=")
    except ValueError:  # binascii.Error is one
        return ""
    return raw.hex() if len(raw) == _SHA256_BYTES else ""  # characters of no alphabet are skipped


def _headers(raw: bytes) -> tuple[dict[str, list[str]], bool]:
    """Headers up to the first empty line, and whether that was all of them."""
    found: dict[str, list[str]] = {}
    name = ""
    count = 0
    lines = io.StringIO(raw.decode("utf-8", "replace"), newline=None)
    for line in lines:
        text = line.rstrip("\n")
        if not text:
            return found, True
        if text[0] in " \t":
            if name:
                found[name][-1] += " " + text.strip()
            continue
        key, colon, value = text.partition(":")
        name = key.strip().lower() if colon else ""
        if not name:
            continue
        count += 1
        if count > MOST_HEADERS:
            return found, False
        found.setdefault(name, []).append(" ".join(value.split()))
    return found, len(raw) < HEADERS_LIMIT_BYTES


def _first(headers: dict[str, list[str]], name: str) -> str:
    return headers.get(name, [""])[0]


def _top_level(site: str, rows: Iterable[Row]) -> tuple[str, ...]:
    prefix = f"{site}/" if site else ""
    return tuple(sorted(set(_modules(prefix, rows))))


def _modules(prefix: str, rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        if row.path.startswith(prefix):
            first, slash, _ = row.path[len(prefix) :].partition("/")
            if not slash:
                stem, _, suffix = first.partition(".")
                if not suffix or suffix.rpartition(".")[2] not in ("py", "pyc", "so"):
                    continue
                first = stem
            if first.isidentifier():
                yield first


def is_metadata_path(path: str) -> bool:
    """Whether a path lies in a metadata folder."""
    return any(part.endswith((".dist-info", ".egg-info")) for part in os.path.dirname(path).split("/"))
