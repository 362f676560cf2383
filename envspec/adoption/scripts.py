"""Console scripts: does a file do nothing but what an installer's script for an entry point does?"""

from __future__ import annotations

import re

from envspec.layout import console_script

_LINE = re.compile(
    r"# -\*- coding: utf-8 -\*-"
    r"|import (re|sys)"
    r"|if __name__ == (['\"])__main__\2:"
    r"|sys\.argv\[0\] = re\.sub\(r?'\(-script\\\.pyw\|\\\.exe\)\?\$', '', sys\.argv\[0\]\)"
    r"|sys\.argv\[0\] = sys\.argv\[0\]\[:-[0-9]+\]"
    r"|sys\.argv\[0\] = sys\.argv\[0\]\.removesuffix\((['\"])\.exe\3\)"
    r"|(el)?if sys\.argv\[0\]\.endswith\((['\"])(-script\.pyw|\.exe)\5\):"
    r"|'''exec' \"?[^'\"`$;&|<>]{1,4000}\"? \"\$0\" \"\$@\""
    r"|' '''"
)
"""A line of a console script of pip, distlib or uv beside its import and its call; the last two start the interpreter from a shell."""


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
