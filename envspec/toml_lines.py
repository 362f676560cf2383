"""On which line of a TOML text each key, table and array item stands.

`tomllib` gives values without places. This scanner walks a text that `tomllib` has accepted and notes only places: ordinary and dotted keys,
quoted keys, inline tables, arrays, arrays of tables. It trusts nothing: where the text is not what it expects, it stops and keeps what it has.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping

    Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*+")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"{3,5}|"(?:[^"\\\n]|\\.)*+"'''
    r"""|\'\'\'(?:[^']|'{1,2}(?!'))*+'{3,5}|'[^'\n]*'""",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def locate(text: str) -> dict[Path, int]:
    r"""The line (from 1) of every key path of a TOML text; items of arrays have their index as the last part.

    Example:
        >>> locate('[a]\nb = [1,\n2]\n[[c]]\n"d.e" = 1')
        {('a',): 1, ('a', 'b'): 2, ('a', 'b', 0): 2, ('a', 'b', 1): 3, ('c',): 4, ('c', 0): 4, ('c', 0, 'd.e'): 5}
    """
    scanner = _Scanner(text)
    # Places are help, not proof: what was found before such an error is right.
    with contextlib.suppress(_UnexpectedTextError, RecursionError):
        scanner.document()
    return scanner.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a path, or of the nearest table above it that has one; 1 if none has."""
    for length in range(len(path), 0, -1):
        line = lines.get(path[:length])
        if line is not None:
            return line
    return 1


class _UnexpectedTextError(Exception):
    """The text is not what the scanner expects."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line = 1
        self._counted_to = 0
        self._array_lengths: dict[Path, int] = {}
        self.lines: dict[Path, int] = {}

    def document(self) -> None:
        header: Path = ()
        while True:
            self._skip(_BLANK)
            if self._position >= len(self._text):
                return
            if self._text.startswith("[[", self._position):
                header = self._array_header()
            elif self._text.startswith("[", self._position):
                self._position += 1
                header = self._enclosing(self._key())
                self._expect("]")
            else:
                self._pair(header)

    def _array_header(self) -> Path:
        self._position += 2
        *parents, last = self._key()
        path = (*self._enclosing(parents), last)
        self._note(path)
        index = self._array_lengths.get(path, 0)
        self._array_lengths[path] = index + 1
        header = (*path, index)
        self._note(header)
        self._expect("]")
        self._expect("]")
        return header

    def _enclosing(self, key: list[str]) -> Path:
        """The path of a header's key: below an array of tables, its last element is meant."""
        path: Path = ()
        for part in key:
            path = (*path, part)
            self._note(path)
            if path in self._array_lengths:
                path = (*path, self._array_lengths[path] - 1)
        return path

    def _pair(self, base: Path) -> None:
        path = base
        for part in self._key():
            path = (*path, part)
            self._note(path)
        self._expect("=")
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_SPACE)
            match = _KEY.match(self._text, self._position)
            if match is None:
                raise _UnexpectedTextError
            self._position = match.end()
            raw = match[0]
            parts.append(tomllib.loads(f"key = {raw}")["key"] if raw[0] in "\"'" else raw)
            self._skip(_SPACE)
            if not self._text.startswith(".", self._position):
                return parts
            self._position += 1

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        start = self._text[self._position : self._position + 1]
        if start == "[":
            self._array(path)
        elif start == "{":
            self._inline_table(path)
        else:
            match = (_STRING if start in ('"', "'") else _SCALAR).match(self._text, self._position)
            if match is None:
                raise _UnexpectedTextError
            self._position = match.end()

    def _array(self, path: Path) -> None:
        self._position += 1
        index = 0
        while True:
            self._skip(_BLANK)
            if self._text.startswith("]", self._position):
                break
            self._note((*path, index))
            self._value((*path, index))
            index += 1
            self._skip(_BLANK)
            if not self._text.startswith(",", self._position):
                break
            self._position += 1
        self._expect("]")

    def _inline_table(self, path: Path) -> None:
        self._position += 1
        while True:
            self._skip(_BLANK)
            if self._text.startswith("}", self._position):
                break
            self._pair(path)
            self._skip(_BLANK)
            if not self._text.startswith(",", self._position):
                break
            self._position += 1
        self._expect("}")

    def _note(self, path: Path) -> None:
        """Remember the line of the present position for a path, unless the path has been seen before."""
        if path not in self.lines:
            self._line += self._text.count("\n", self._counted_to, self._position)
            self._counted_to = self._position
            self.lines[path] = self._line

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._position)
        if match is not None:
            self._position = match.end()

    def _expect(self, mark: str) -> None:
        self._skip(_SPACE)
        if not self._text.startswith(mark, self._position):
            raise _UnexpectedTextError
        self._position += 1
