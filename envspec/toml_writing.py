"""Values -> TOML in one fixed way, for text that people review and programs compare.

Keys come in the caller's order, what is empty is left out, an array that fits stays on one line and any other has one item a line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE_LENGTH = 100  # short arrays are easier to read on one line, long ones easier to compare with one item a line
# What a basic string cannot hold, and what a reviewer would not see or would see in another order: control characters, invisible and
# bidirectional marks. The list is fixed, since Unicode's own changes with the version of Python.
_ESCAPED = r'["\\\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]'
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def table_lines(header: str, *pairs: tuple[str, str | int | Sequence[str]]) -> list[str]:
    """The lines of a table after an empty line.

    Args:
        header: `[python]` or `[[package]]`.
        pairs: As for `key_lines`.
    """
    return ["", header, *key_lines(*pairs)]


def key_lines(*pairs: tuple[str, str | int | Sequence[str]]) -> list[str]:
    """The lines of some keys.

    Args:
        pairs: A bare key and its value each; an empty string or array is left out.

    Example:
        >>> key_lines(("name", "torch"), ("size", 3), ("path", ""), ("requires", ("filelock", "jinja2")))
        ['name = "torch"', 'size = 3', 'requires = ["filelock", "jinja2"]']
    """
    lines = []
    for key, value in pairs:
        if isinstance(value, int):
            lines.append(f"{key} = {value}")
        elif isinstance(value, str):
            if value:
                lines.append(f"{key} = {string(value)}")
        elif value:
            items = [string(item) for item in value]
            line = f"{key} = [{', '.join(items)}]"
            lines += [line] if len(line) <= _LINE_LENGTH else [f"{key} = [", *(f"    {item}," for item in items), "]"]
    return lines


def string(value: str) -> str:
    r"""A basic string of TOML.

    Example:
        >>> print(string('say "hi"\n'))
        "say \"hi\"\n"
    """
    if re.search(_ESCAPED, value) is None:
        return f'"{value}"'
    return '"' + re.sub(_ESCAPED, _escape, value) + '"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    number = ord(char)
    return _SHORT_ESCAPES.get(char) or (f"\\u{number:04X}" if number <= 0xFFFF else f"\\U{number:08X}")
