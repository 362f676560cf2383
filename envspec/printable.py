"""Text from anywhere, made fit to be shown.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from typing import Any


def printable(text: str) -> str:
    r"""A text without anything that a terminal would obey: control characters become `\x1b`; line ends stay.

    Example:
        >>> printable("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "\n".join(map(printable_line, text.split("\n")))


def printable_line(text: str) -> str:
    r"""The same as one line.

    Example:
        >>> printable_line("a\tb\nc")
        'a\\tb\\nc'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def printable_json(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A JSON value with all its strings, keys included, as `printable` makes them."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, (list, tuple)):
        return [printable_json(inner) for inner in value]
    if isinstance(value, dict):
        return {printable(str(key)): printable_json(inner) for key, inner in value.items()}
    return value
