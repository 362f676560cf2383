"""What the strings of specs and locks must look like.

A `Form` is a pattern with its words for a message. Messages show a value through `quoted`, which never repeats a URL, since that may hold a
secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUOTED_LENGTH = 80  # characters of a value that a message repeats; more says nothing to a person


@dataclass(frozen=True, slots=True)
class Form:
    """What a string must look like."""

    pattern: str
    """A regular expression for the whole string. `re` keeps it compiled, so that importing this module compiles nothing."""

    expected: str
    """For a message: `a minor version such as 3.12`."""

    hint: str = ""
    """What to do where a value does not match."""

    def mismatch(self, value: str) -> str:
        """What is wrong with the value; empty if it has the form."""
        if re.fullmatch(self.pattern, value):
            return ""
        is_digest = self.expected.endswith("hex digits") and re.fullmatch("[0-9a-f]+", value)
        got = len(value) if is_digest else quoted(value)
        return f"expected {self.expected}, got {got}"


ANY_TEXT = Form(r"(?s).*", "a string")
SHA256 = Form("[0-9a-f]{64}", "64 hex digits")
ENV_ID = Form("[a-z2-7]{32}", "32 characters of base32")
WORD = Form(r"[a-z0-9]+(?:[_-][a-z0-9]+)*", "a word of lower-case letters, digits, `-` and `_`")
NAME = Form(
    r"[a-z0-9][a-z0-9._-]{0,99}",
    "a name of lower-case letters, digits, `.`, `_` and `-` that begins with a letter or digit",
)
PYTHON_MINOR = Form(r"3\.[1-9][0-9]{1,2}", "a minor version of Python from `3.10` on, such as `3.12`")
PYTHON_EXACT = Form(r"3\.[1-9][0-9]{1,2}\.(?:0|[1-9][0-9]{0,2})", "a full version of Python such as `3.12.3`")
PLATFORM = Form(r"linux-x86_64|linux-aarch64", "`linux-x86_64` or `linux-aarch64`")
GLIBC = Form(r"2\.(?:0|[1-9][0-9]{0,2})", "a version of glibc such as `2.35`")
SONAME = Form(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\.so(?:\.[0-9]+)*", "a soname such as `libnuma.so.1`")
CUDA_TOOLKIT = Form(r"[1-9][0-9]?\.(?:0|[1-9][0-9]?)", "a CUDA version such as `13.0`")
COMPUTE = Form(r"[1-9][0-9]?\.[0-9]", "a compute capability such as `9.0`")
DRIVER = Form(r"[1-9][0-9]{1,3}(?:\.[0-9]{1,3}){1,2}", "a version of the NVIDIA driver such as `580.65.06`")
SEVERITY = Form(r"error|warning|info", "`error`, `warning` or `info`")
PACKAGE_NAME = Form(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", "the name of a package")
_PATH_PART = r"(?!\.{1,2}(?:/|$))[^/\\\x00-\x1f\x7f]+"
RELATIVE_PATH = Form(rf"{_PATH_PART}(?:/{_PATH_PART})*", "a relative path with `/`, without `.` and `..`")


def normalise_name(name: str) -> str:
    """The one spelling of a package's name (PEP 503).

    Example:
        >>> normalise_name("Flash_Attn.Kernels")
        'flash-attn-kernels'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def quoted(value: str) -> str:
    r"""A value as a message may show it: in backticks, on one line, not too long, and never a URL, which may hold a secret.

    Example:
        >>> quoted("a\tb"), quoted("https://someone:secret@host/")
        ('`a\\tb`', 'a URL')
    """
    if not value:
        return "an empty string"
    if "://" in value or re.search(r":[^/@]*@", value):
        return "a URL"
    if len(value) > _QUOTED_LENGTH:
        value = value[:_QUOTED_LENGTH] + "…"
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return f"`{shown}`"
