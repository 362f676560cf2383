"""Scripts in `bin/`: is a file what an installer makes of an entry point, or of a script in a wheel?"""

from __future__ import annotations

import re

from envspec.layout import console_script, rewrite_script

_SHELL_START = r"'''exec' \"?[^'\"`$;&|<>]{1,4000}\"? \"\$0\" \"\$@\""
_SHELL_END = "' '''"
_LINE = re.compile(
    r"# -\*- coding: utf-8 -\*-"
    r"|import (re|sys)"
    r"|if __name__ == (['\"])__main__\2:"
    r"|sys\.argv\[0\] = re\.sub\(r?'\(-script\\\.pyw\|\\\.exe\)\?\$', '', sys\.argv\[0\]\)"
    r"|sys\.argv\[0\] = sys\.argv\[0\]\[:-[0-9]+\]"
    r"|sys\.argv\[0\] = sys\.argv\[0\]\.removesuffix\((['\"])\.exe\3\)"
    r"|(el)?if sys\.argv\[0\]\.endswith\((['\"])(-script\.pyw|\.exe)\5\):"
    rf"|{_SHELL_START}|{_SHELL_END}"
)
"""A line of a console script of pip, distlib or uv beside its import and its call; the last two start the interpreter from a shell."""


def is_script_of(content: bytes, original: bytes) -> bool:
    """Whether a script is that of a wheel, with a first line that its installer made to name an interpreter.

    Args:
        content: Of the script in the venv.
        original: As the wheel has it.
    """
    if content in (original, rewrite_script(original)):
        return True
    _, _, rest = original.partition(b"\n")
    first, _, body = content.partition(b"\n")
    if not original.startswith(b"#!python") or not first.startswith(b"#!"):
        return False
    # For a long path pip and uv write a shell script of two lines that starts Python on itself.
    start, _, after = body.partition(b"\n")
    end, _, after = after.partition(b"\n")
    by_shell = re.fullmatch(_SHELL_START, start.decode("utf-8", "replace")) and end.decode("latin-1") == _SHELL_END
    return body == rest or (first == b"#!/bin/sh" and bool(by_shell) and after == rest)


def is_console_script(content: bytes, target: str) -> bool:
    """Whether a script does nothing but run a function, line by line as pip, uv and envspec write such scripts.

    Args:
        content: Of the script.
        target: `module:function`.
    """
    module, _, attribute = (part.strip() for part in target.partition("[")[0].partition(":"))
    if not content.startswith(b"#!") or not attribute:
        return False
    if content == console_script(module, attribute):
        return True
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()[1:] if line.strip()]
    needed = {f"from {module} import {attribute.partition('.')[0]}", f"sys.exit({attribute}())"}
    return needed <= set(lines) and all(line in needed or _LINE.fullmatch(line) for line in lines)
