"""How messages are worded: counts, lists with an end, and text from wheels made safe to show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.printable import printable_line

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN_EXAMPLES = 3
SHOWN_EVIDENCE = 20
SHOWN_CHARACTERS = 500

# A requirement may carry a URL with a password in it, and nothing of ours may print one.
_CREDENTIALS = re.compile(r"://[^/\s@]*@")


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 file`, `93 files`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def joined(words: Sequence[str]) -> str:
    """Words as in a sentence.

    Example:
        >>> joined(["a", "b", "c"])
        'a, b and c'
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def examples(paths: Sequence[str]) -> str:
    """The first few paths, and how many more there are.

    Example:
        >>> examples(["a", "b", "c", "d"])
        '`a`, `b`, `c` and 1 more'
    """
    shown = [f"`{path}`" for path in paths[:SHOWN_EXAMPLES]]
    if len(paths) > SHOWN_EXAMPLES:
        return f"{', '.join(shown)} and {len(paths) - SHOWN_EXAMPLES} more"
    return joined(shown)


def evidence(lines: Sequence[str]) -> tuple[str, ...]:
    """Lines of evidence, cut off where nobody reads on, with the number of those left out."""
    if len(lines) <= SHOWN_EVIDENCE:
        return tuple(lines)
    return (*lines[:SHOWN_EVIDENCE], f"and {len(lines) - SHOWN_EVIDENCE} more")


def printable(text: str) -> str:
    r"""Text as it may be shown: one line, no control characters, no bytes that are not UTF-8, no credentials, not endless.

    Names, paths and requirements come out of wheels that anyone may have written.

    Example:
        >>> printable("a\nb \x1b[31m")
        'a\\nb \\x1b[31m'
    """
    if "://" in text:  # before it is cut off, which could leave a password without its `@`
        text = _CREDENTIALS.sub("://***@", text)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"
    return printable_line(text)
