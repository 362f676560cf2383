"""Files that Python reads or runs at every start, of a wheel or of a venv.

Standard library only, CPython >= 3.10: part of the agent.
"""

from __future__ import annotations

import re

from envspec.facts import StartupHook

_RUNS = ("import ", "import\t")
_HOOK_MODULE = re.compile(r"(sitecustomize|usercustomize)(/__init__)?\.(py|pyc|([^/]+\.)?so)")


def is_pth(path: str) -> bool:
    """Whether a path within site-packages is that of a `.pth` that Python reads."""
    return path.endswith(".pth") and "/" not in path


def is_hook_module(path: str) -> bool:
    """Whether a path within site-packages is that of a module that Python imports at every start."""
    return _HOOK_MODULE.fullmatch(path) is not None


def startup_hook(path: str, sha256: str, content: bytes) -> StartupHook | None:
    """A file of site-packages as a hook; None if it is none.

    Args:
        path: Within site-packages.
        sha256: Of the file.
        content: Of a `.pth`; not looked at for a module.
    """
    if is_pth(path):
        return StartupHook(path=path, sha256=sha256, code=code_of_pth(content))
    match = _HOOK_MODULE.fullmatch(path)
    return StartupHook(path=path, sha256=sha256, code=(f"the module {match[1]}",)) if match else None


def code_of_pth(content: bytes) -> tuple[str, ...]:
    """The lines of a `.pth` that run: `site` executes those that begin with `import` and a space or tab.

    Python up to 3.12 ends a line at CR and LF only, later ones at every character that `str.splitlines` knows: what either runs is listed.
    """
    code: list[str] = []
    for line in lines_of_pth(content):
        pieces = [line] if line.startswith(_RUNS) else line.splitlines()
        code.extend(piece for piece in pieces if piece.startswith(_RUNS))
    return tuple(code)


def folders_of_pth(content: bytes) -> tuple[str, ...]:
    """The lines of a `.pth` that name folders, as they are written."""
    lines = (line.rstrip() for line in lines_of_pth(content))
    return tuple(line for line in lines if line.strip() and not line.startswith(("#", *_RUNS)) and "\0" not in line)


def lines_of_pth(content: bytes) -> list[str]:
    """The lines as `site` of CPython up to 3.12 splits them."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return re.split(r"\r\n|\r|\n", text)
