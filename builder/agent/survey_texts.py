"""The beginnings of small files whose words tell what went wrong with a venv, and the modules of folders that lie outside of it.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from builder.agent.survey_tree import read_small

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

CONFIG_BYTES = 4096
SCRIPT_BYTES = 512
LIBRARY_BYTES = 200
ACTIVATE_BYTES = 8192
LARGEST_TEXT_BYTES = 1 << 16
"""What is called a library and is larger is no text."""

MOST_TEXTS = 1000
MOST_MODULES = 5000

_LIBRARY = re.compile(r".+\.so(\.[0-9]+)*", re.DOTALL)
_SETS_PLACE = re.compile(r"^[^\n#]*VIRTUAL_ENV\s*=[^\n]*$", re.MULTILINE)
_MODULE_SUFFIXES = (".py", ".so")


def telling_texts(root: str, files: Collection[str], sizes: dict[str, int], elf: Collection[str]) -> dict[str, str]:
    """Path -> the beginning of a file.

    Args:
        root: Prefix of the venv.
        files: Paths of all ordinary files in it.
        sizes: Path -> bytes.
        elf: Paths of those that begin as ELF files do.
    """
    return dict(_texts(root, sorted(files), sizes, elf))


def module_names(folder: str) -> tuple[str, ...]:
    """Modules and packages at the root of a folder, by the names under which they are imported, sorted."""
    found: set[str] = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, dot, _ = entry.name.partition(".")
                if not stem.isidentifier() or len(found) >= MOST_MODULES:
                    continue
                if (dot and entry.name.endswith(_MODULE_SUFFIXES)) or (
                    not dot and os.path.isfile(f"{folder}/{entry.name}/__init__.py")
                ):
                    found.add(stem)
    except OSError:
        return ()
    return tuple(sorted(found))


def _texts(root: str, files: Iterable[str], sizes: dict[str, int], elf: Collection[str]) -> Iterator[tuple[str, str]]:
    count = 0
    for path in files:
        text = ""
        if path == "pyvenv.cfg":
            text = _beginning(root, path, CONFIG_BYTES)
        elif path == "bin/activate":
            found = _SETS_PLACE.search(_beginning(root, path, ACTIVATE_BYTES))
            text = found[0].strip() if found else ""
        elif path.startswith("bin/") and path.count("/") == 1 and path not in elf:
            text = _beginning(root, path, SCRIPT_BYTES)
            text = text if text.startswith("#!") else ""
        elif (
            sizes.get(path, 0) <= LARGEST_TEXT_BYTES and ".so" in path and path not in elf and _LIBRARY.fullmatch(path)
        ):
            text = _beginning(root, path, LIBRARY_BYTES)
        if text:
            yield path, text
            count += 1
            if count >= MOST_TEXTS:
                return


def _beginning(root: str, path: str, limit: int) -> str:
    return (read_small(f"{root}/{path}", limit) or b"").decode("utf-8", "replace")
