"""What an exception says, taken apart: libraries, symbols, modules, operators, files, and in whose code it was raised."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.wording import printable

if TYPE_CHECKING:
    from envspec.diagnosis.scene import Scene
    from envspec.traced import Raised

SHOWN_CHARACTERS = 160

_LIBRARY = re.compile(r"(?<![\w.+-])(/?(?:[\w.+-]+/)*[\w+-][\w.+-]*\.so(?:\.[0-9]+)*)(?![\w])")
_SYMBOL = re.compile(r"undefined symbol: ([^\s,;)\"']+)")
_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_OPERATOR = re.compile(
    r"operator (\w+)::\w+ does not exist|'_OpNamespace' '(\w+)' object has no attribute|Could not run '(\w+)::|torch\.ops\.(\w+)\.?"
)
_NO_METADATA = re.compile(
    r"No package metadata was found for ['\"]?(?!The ')([\w.-]+)|The '([\w.-]+)[^']*' distribution was not found|PackageNotFoundError: ([\w.-]+)"
)
_PATH = re.compile(r"(/[^\s'\"`,;:()<>]+)")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_LONGEST = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What one exception says."""

    sonames: frozenset[str]
    symbols: frozenset[str]
    missing_modules: tuple[str, ...]
    missing_projects: frozenset[str]
    """Of which it says that they are not installed."""

    owners_of_operators: frozenset[str]
    """Projects whose operators it misses."""

    paths: frozenset[str]
    """Files that it names, relative to the prefix, or as they are if they lie outside."""

    raised_path: str
    """Of the frame in which it was raised, relative to the prefix; empty if that lies outside."""

    raised_owner: str
    passed: tuple[str, ...]
    """Projects whose frames it went through, or whose modules were being imported, the innermost last, each once."""

    words: frozenset[str]
    """Of its message."""


def tellings_of(raised: Raised, scene: Scene) -> Telling:
    """Take an exception apart."""
    text = raised.message[:_LONGEST]
    named = _LIBRARY.findall(text)
    missing = [found.rstrip(".") for found in _NO_MODULE.findall(text)]
    if raised.type.rpartition(".")[2] == "ModuleNotFoundError" and raised.name:
        missing.insert(0, raised.name)
    operators = [next(filter(None, groups)) for groups in _OPERATOR.findall(text)]
    absent = [next(filter(None, groups)) for groups in _NO_METADATA.findall(text)]
    files = [*_PATH.findall(text), *([raised.path] if raised.path else [])]
    own = [path for frame in raised.frames if (path := scene.relative(frame.file))]
    frame = next((frame for frame in reversed(raised.frames) if _is_code(frame.file)), None)
    raised_path = scene.relative(frame.file) if frame else ""
    passed = [scene.owner_of(path) for path in own]
    passed += [
        scene.owner_of_module(module) for module in raised.importing if module.partition(".")[0] in scene.modules
    ]
    return Telling(
        sonames=frozenset(name.rpartition("/")[2] for name in named),
        symbols=frozenset(_SYMBOL.findall(text)),
        missing_modules=tuple(dict.fromkeys(missing)),
        missing_projects=frozenset(name.lower().replace("_", "-") for name in absent),
        owners_of_operators=frozenset(scene.owner_of_module(name) for name in operators),
        paths=frozenset(scene.relative(file) or file for file in files),
        raised_path=raised_path,
        raised_owner=scene.owner_of(raised_path) if raised_path else "",
        passed=tuple(dict.fromkeys(name for name in passed if name)),
        words=frozenset(word.rstrip(".-").lower() for word in _WORD.findall(text)),
    )


def shown_raise(raised: Raised) -> str:
    """An exception in one short line: `OSError: libcudart.so.12: cannot open shared object file`."""
    first = next((line for line in raised.message.splitlines() if line.strip()), "")
    text = f"{raised.type.removeprefix('builtins.')}: {first.strip()}" if first else raised.type
    return printable(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…")


def last_frame(raised: Raised, scene: Scene) -> str:
    """The file in which an exception was raised, as findings show it; empty if it has no frame."""
    for frame in reversed(raised.frames):
        if _is_code(frame.file):
            path = scene.relative(frame.file)
            return scene.shown(path) if path else frame.file
    return ""


def _is_code(file: str) -> bool:
    """Whether a frame is somebody's code and not Python's import machinery."""
    return not file.startswith("<frozen") and not re.search(r"/lib/python3\.\d+/(importlib|ctypes)/", file)
