"""What a `.dist-info` or `.egg-info` folder of a venv says: headers, scripts, where it came from, and the rows of RECORD.

Everything is hostile: whatever cannot be read, or is too much, is a problem of the distribution and ends nothing.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import binascii
import csv
import io
import json
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from builder.agent.survey_tree import read_small, within
from envspec.layout import normalise_name, parse_entry_points

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.agent.survey_tree import Tree

HEADERS_LIMIT_BYTES = 1 << 20
"""Of METADATA, whose headers end at its first empty line; the longest that was seen has 30 kB of them."""

SMALL_LIMIT_BYTES = 1 << 20
RECORD_LIMIT_BYTES = 64 << 20
MOST_ROWS = 200_000
"""Of one RECORD; the longest that was seen has 14,000."""

MOST_ROWS_IN_ALL = 1_000_000
MOST_BYTES_IN_ALL = 512 << 20
MOST_DISTRIBUTIONS = 10_000
LONGEST_PATH = 4096

MOST_HEADERS = 20_000
MOST_PROBLEMS = 20
_DIGEST_CHARACTERS, _DECODED_BYTES = 43, 33
"""Of a sha256 in base 64: it ends with two bits too many, and an `A` after it fills them up to a whole byte."""

_INFO = re.compile(r"(?P<stem>.+)\.(?P<kind>dist-info|egg-info)")
_PYTHON_OF_EGG = re.compile(r"-py\d(\.\d+)?$")
_URL_SAFE = str.maketrans("-_", "+/")


_FLIT = re.compile(r"[0-9a-f]{64}")
"""Some releases of flit wrote digests in hexadecimal, and Debian has packages of theirs."""


class Row(NamedTuple):
    """A row of RECORD, without bytecode."""

    path: str
    """Relative to the prefix; absolute if it leads out of it."""

    recorded: str
    size: int


class Budget:
    """What may be read of the metadata of one venv, all its distributions together."""

    def __init__(self) -> None:
        self.rows = MOST_ROWS_IN_ALL
        self.bytes = MOST_BYTES_IN_ALL


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


def read_metadata(tree: Tree, site: str, folder: str, budget: Budget) -> Metadata:
    """Read a metadata folder.

    Args:
        tree: Of the venv.
        site: The site-packages that it lies in, relative to the prefix.
        folder: It, relative to the prefix.
        budget: What may still be read.
    """
    name = folder[len(site) + 1 :] if site else folder
    match = _INFO.fullmatch(name)
    stem, kind = (match["stem"], match["kind"]) if match else (name, "")
    stem = _PYTHON_OF_EGG.sub("", stem) if kind == "egg-info" else stem
    folder_name, _, folder_version = stem.partition("-")
    reader = _Reader(tree, site, folder, budget)
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

    def __init__(self, tree: Tree, site: str, folder: str, budget: Budget) -> None:
        self._tree = tree
        self._site = site
        self._folder = folder
        self._budget = budget
        self.problems: list[str] = []

    def all_problems(self) -> tuple[str, ...]:
        more = len(self.problems) - MOST_PROBLEMS
        return (*self.problems[:MOST_PROBLEMS], *((f"and {more} more",) if more > 0 else ()))

    def content(self, name: str, limit: int) -> bytes | None:
        path = f"{self._folder}/{name}" if name else self._folder
        if path not in self._tree.files:
            return None
        raw = read_small(f"{self._tree.root}/{path}", min(limit, self._budget.bytes))
        self._budget.bytes -= len(raw or b"")
        return raw

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
        limit = min(MOST_ROWS, self._budget.rows)
        names: list[str] = []
        stated: list[str] = []
        sizes: list[str] = []
        try:
            for row in csv.reader(io.StringIO(raw.decode("utf-8", "surrogateescape"), newline="")):
                if not row or not row[0] or "__pycache__" in row[0]:
                    continue
                if len(names) >= limit:
                    self.problems.append(f"RECORD has more than {limit} rows: what follows was not read")
                    break
                if len(row[0]) > LONGEST_PATH:
                    self.problems.append(f"RECORD names a path of {len(row[0])} characters")
                    continue
                names.append(row[0])
                stated.append(row[1] if len(row) > 1 else "")
                sizes.append(row[2] if len(row) > 2 else "")
        except csv.Error as error:
            self.problems.append(f"RECORD cannot be read beyond {len(names)} rows: {error}")
        self._budget.rows -= len(names)
        return self._rows(names, stated, sizes), True

    def _rows(self, names: list[str], stated: list[str], sizes: list[str]) -> list[Row]:
        found: dict[str, Row] = {}
        for name, recorded, size in zip(names, self._digests(names, stated), sizes, strict=True):
            path = self.place(name)
            number = int(size) if size.isascii() and size.isdigit() and len(size) < 16 else -1
            row = Row(path, recorded, number)
            if found.setdefault(path, row) != row:
                self.problems.append(f"RECORD names `{path}` twice")
                found[path] = row
        return sorted(found.values())

    def _digests(self, names: list[str], stated: list[str]) -> list[str]:
        """The digests in hexadecimal, empty where there is none."""
        found = [""] * len(stated)
        others: dict[str, int] = {}
        wanted: list[int] = []
        texts: list[str] = []
        for index, each in enumerate(stated):
            if each.startswith("sha256="):
                text = each[7:].rstrip("=")
                if _FLIT.fullmatch(text):
                    found[index] = text
                elif len(text) == _DIGEST_CHARACTERS:
                    wanted.append(index)
                    texts.append(text)
                else:
                    self._no_digest(names[index], each)
            elif each:
                algorithm = each.partition("=")[0][:20]
                others[algorithm] = others.get(algorithm, 0) + 1
        for index, digest in zip(wanted, _hex(texts), strict=True):
            found[index] = digest
            if not digest:
                self._no_digest(names[index], stated[index])
        self.problems.extend(
            f"RECORD has {algorithm} for {count} files, which is not compared"
            for algorithm, count in sorted(others.items())[:5]
        )
        return found

    def _no_digest(self, name: str, stated: str) -> None:
        self.problems.append(f"RECORD has no digest for `{self.place(name)}`: `{stated[:80]}`")

    def place(self, name: str) -> str:
        """A path of RECORD, relative to the prefix if it does not lead out of it."""
        if name[0] not in "./" and "/." not in name and "//" not in name and name[-1] != "/" and "\0" not in name:
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


def _hex(texts: list[str]) -> list[str]:
    """Digests of 43 characters in hexadecimal, empty where one is none. Most RECORDs have good ones only, which are decoded in one go."""
    try:
        raw = binascii.a2b_base64("A".join([*texts, ""]).translate(_URL_SAFE))
    except ValueError:  # binascii.Error is one
        raw = b""
    if len(raw) == _DECODED_BYTES * len(texts):  # characters of no alphabet are skipped, and make it shorter
        whole = raw.hex()
        return [whole[at : at + 64] for at in range(0, len(whole), 2 * _DECODED_BYTES)]
    return [""] if len(texts) == 1 else [each for text in texts for each in _hex([text])]


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
    start = len(site) + 1 if site else 0
    prefix = f"{site}/" if site else ""
    firsts = {row.path[start:].partition("/")[:2] for row in rows if row.path.startswith(prefix)}
    names = {first if slash else _module(first) for first, slash in firsts}
    return tuple(sorted(name for name in names if name.isidentifier()))


def _module(name: str) -> str:
    """The module that a file is; empty if it is none."""
    stem, _, suffix = name.partition(".")
    return stem if suffix.rpartition(".")[2] in ("py", "pyc", "so") else ""
