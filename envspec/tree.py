r"""The manifest of a tree: mtree(5) lines in one fixed order, and its digest.

A manifest has one line an entry, sorted by bytes, after two lines that are always the same (mtree wants the root first):

    #mtree
    . type=dir
    ./bin/torchrun mode=0555 sha256=<64 hex> size=226 type=file
    ./lib type=dir
    ./lib/python3.12/site-packages/torch/__init__.py mode=0444 sha256=<64 hex> size=102944 type=file
    ./lib/link link=target type=link

Each entry names its whole path. A path is UTF-8; every byte that is not in `SAFE_BYTES` is written as a backslash and three octal digits, as
vis(3) does and mtree reads it. Since a space sorts before every safe byte, sorting the lines sorts the paths.

What counts: type, content, size, the executable bit (mode 0555 or 0444, the modes that a realised tree has), the target of a link.
What does not: times, owners, and all that belongs to the host rather than to the wheels (`is_host_path`).

The digest of a tree is the sha256 of its manifest. A *tree digest* is that of one wheel's tree, a *site digest* that of a whole environment.
A manifest that holds the lines of several trees is the sorted union of their lines.

This module is part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER = "#mtree\n. type=dir\n"
SAFE_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!$%&'()+,-./:;<=>@^_`{|}~")
_UNSAFE = re.compile("[^A-Za-z0-9!$%&'()+,\\-./:;<=>@^_`{|}~]")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_HOST_BIN = re.compile(
    r"bin/(python[0-9.]*(w|t|-config)?|activate(\.[a-z0-9]+)?|activate_this\.py|deactivate(\.[a-z0-9]+)?)",
    re.IGNORECASE,
)  # exactly: `python-argcomplete-check-easy-install-script` is a program of a wheel


@dataclass(frozen=True)
class Entry:
    """One file, directory or link of a tree."""

    path: str
    """Relative to the root of the environment, with `/`, without `./`: `lib/python3.12/site-packages/torch/__init__.py`."""

    kind: str
    """`file`, `dir` or `link`."""

    sha256: str = ""
    """Of a file's content, 64 hex digits."""

    size: int = 0
    """Of a file, in bytes."""

    executable: bool = False
    """Whether a file's owner may execute it."""

    target: str = ""
    """Of a link, verbatim."""


def encode_path(path: str) -> str:
    r"""A path as a manifest writes it.

    Example:
        >>> encode_path("a b/ü")
        'a\\040b/\\303\\274'
    """
    if _UNSAFE.search(path) is None:
        return path
    raw = path.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in SAFE_BYTES else f"\\{byte:03o}" for byte in raw)


def decode_path(encoded: str) -> str:
    """The inverse of `encode_path`."""
    if "\\" not in encoded:
        return encoded
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), encoded).encode("latin-1")
    return raw.decode("utf-8", "surrogateescape")


def entry_line(entry: Entry) -> str:
    """The manifest's line of an entry, without a newline.

    Raises:
        ValueError: The kind is none of `file`, `dir`, `link`.
    """
    path = encode_path(entry.path)
    if entry.kind == "file":
        mode = "0555" if entry.executable else "0444"
        return f"./{path} mode={mode} sha256={entry.sha256} size={entry.size} type=file"
    if entry.kind == "dir":
        return f"./{path} type=dir"
    if entry.kind == "link":
        return f"./{path} link={encode_path(entry.target)} type=link"
    raise ValueError(f"unknown kind of entry {entry.kind!r}")


def parse_line(line: str) -> Entry:
    """The entry of a manifest's line.

    Raises:
        ValueError: The line is not one that `entry_line` writes.
    """
    path, *words = line.split(" ")
    values = dict(word.split("=", 1) for word in words if "=" in word)
    entry = Entry(
        path=decode_path(path[2:]),
        kind=values.get("type", ""),
        sha256=values.get("sha256", ""),
        size=int(values.get("size", "0")),
        executable=values.get("mode") == "0555",
        target=decode_path(values.get("link", "")),
    )
    if entry_line(entry) != line:
        raise ValueError(f"not a line of a manifest: {line!r}")
    return entry


def path_of_line(line: str) -> str:
    """Only the path of a manifest's line: cheaper than `parse_line`."""
    return decode_path(line[2 : line.index(" ")])


def parent_dirs(paths: Iterable[str]) -> set[str]:
    """Every directory above the given paths, the root left out.

    Example:
        >>> sorted(parent_dirs(["a/b/c", "d"]))
        ['a', 'a/b']
    """
    dirs: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in dirs:
            dirs.add(parent)
            parent = parent.rpartition("/")[0]
    return dirs


def manifest(entries: Iterable[Entry]) -> str:
    """The manifest of a tree with these entries; the directories above them are added."""
    listed = list(entries)
    lines = [entry_line(entry) for entry in listed]
    lines += [f"./{encode_path(path)} type=dir" for path in parent_dirs(entry.path for entry in listed)]
    return join_lines(lines)


def join_lines(lines: Iterable[str]) -> str:
    """The manifest that holds exactly these lines, sorted, each once."""
    return HEADER + "".join(f"{line}\n" for line in sorted(set(lines)))


def manifest_lines(text: str) -> list[str]:
    """The lines of a manifest, header left out.

    Raises:
        ValueError: The text does not begin with a manifest's header, or its last line is cut off.
    """
    if not text.startswith(HEADER) or not text.endswith("\n"):
        raise ValueError("not a manifest: the header is missing or the end is cut off")
    return text[len(HEADER) :].splitlines()


def tree_digest(manifest_text: str) -> str:
    """The sha256 of a manifest in 64 hex digits: the tree digest or site digest."""
    return hashlib.sha256(manifest_text.encode("ascii")).hexdigest()


def is_host_path(path: str) -> bool:
    """Whether a path of an environment belongs to the host, so that no digest covers it and no wheel may own it.

    These are `pyvenv.cfg`, `lib64` (a link that venv makes), the names of the interpreter and of the activation scripts in `bin/`, and the
    bytecode in `__pycache__`. A `.pyc` beside its package, without a source, is code like any other, and counts.

    Example:
        >>> [is_host_path(p) for p in ("pyvenv.cfg", "bin/python3", "bin/pip", "lib/python3.12/site-packages/a/__pycache__/b.pyc")]
        [True, True, False, True]
    """
    return path in ("pyvenv.cfg", "lib64") or _HOST_BIN.fullmatch(path) is not None or "__pycache__" in path.split("/")
