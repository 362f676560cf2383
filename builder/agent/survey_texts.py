"""The beginnings of small texts of a venv that tell what went wrong: where it was made, and libraries that are none.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.agent.survey_tree import read_small
from envspec.printable import printable
from envspec.tree import is_host_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.agent.survey_tree import Tree

CONFIG_LIMIT_BYTES = 4096
ACTIVATE_LIMIT_BYTES = 1 << 16
SCRIPT_LIMIT_BYTES = 400
"""The line that names the interpreter, or the few lines that stand in for it where it would be too long."""

LIBRARY_LIMIT_BYTES = 200
MOST_TEXTS = 2000
_LIBRARY = re.compile(r"[^/]\.so(\.[0-9]+)*\Z")
_VIRTUAL_ENV = re.compile(r"^.*VIRTUAL_ENV\b.*$", re.MULTILINE)


def look_at_texts(tree: Tree, plain: Iterable[str]) -> dict[str, str]:
    """Path -> the beginning of a text, made fit to be shown.

    Args:
        tree: Of the venv.
        plain: Files that are no binaries.
    """
    found: dict[str, str] = {}
    for path in sorted(path for path in tree.files if path.startswith("bin/activate") or path == "pyvenv.cfg"):
        if path == "pyvenv.cfg":
            found[path] = _text(tree, path, CONFIG_LIMIT_BYTES)
        else:
            lines = _VIRTUAL_ENV.findall(_text(tree, path, ACTIVATE_LIMIT_BYTES))
            found[path] = "\n".join(lines)[:CONFIG_LIMIT_BYTES]
    for path in sorted(path for path in plain if path.startswith("bin/") or _LIBRARY.search(path)):
        if len(found) >= MOST_TEXTS:
            break
        if path.startswith("bin/") and path.count("/") == 1:
            text = _text(tree, path, SCRIPT_LIMIT_BYTES)
            if text.startswith("#!") and not is_host_path(path):
                found[path] = text
        elif _LIBRARY.search(path):
            found[path] = _text(tree, path, LIBRARY_LIMIT_BYTES)
    return found


def _text(tree: Tree, path: str, limit: int) -> str:
    raw = read_small(f"{tree.root}/{path}", limit) or b""
    return printable(raw.decode("utf-8", "replace"))
