"""The bytecode of a tree, made once for one kind of interpreter and linked into every environment.

It is unchecked-hash bytecode: no time and no path decide over it, so it holds wherever its tree is linked, and Python neither checks nor
rewrites it. It is outside the site digest (its bytes depend on the interpreter) and has a manifest and a digest of its own.

Runs in the environment's own interpreter: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import sys
import warnings
from typing import TYPE_CHECKING

from builder.agent.files import write_file
from builder.agent.store import ObjectChanged
from envspec.tree import Entry, entry_line, join_lines, manifest_lines, parent_dirs, parse_line, path_of_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.lending import Donor

_UNCHECKED_HASH = (0b01).to_bytes(4, "little")  # PEP 552: hash-based, source not checked


def bytecode_tag() -> str:
    """The kind of interpreter that this process is: cache tag and magic number, such as `cpython-312-cb0d0d0a`."""
    return f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"


def bytecode_path(source_path: str, cache_tag: str) -> str:
    """Where the bytecode of a module lies.

    Example:
        >>> bytecode_path("lib/python3.12/site-packages/torch/_C.py", "cpython-312")
        'lib/python3.12/site-packages/torch/__pycache__/_C.cpython-312.pyc'
    """
    folder, _, name = source_path.rpartition("/")
    return f"{folder}/__pycache__/{name[: -len('.py')]}.{cache_tag}.pyc"


def source_path(path: str) -> str:
    """The inverse of `bytecode_path`, for any cache tag; a module's name may have dots, a cache tag has none."""
    folder, _, name = path.rpartition("/__pycache__/")
    return f"{folder}/{name.rsplit('.', 2)[0]}.py"


def compile_tree(
    tree: Path,
    manifest_text: str,
    folder: Path,
    donor: tuple[Donor, Mapping[str, str]] | None,
) -> tuple[str, tuple[str, ...]]:
    """Compile every module of a tree.

    Args:
        tree: The tree.
        manifest_text: Its manifest.
        folder: An existing empty folder for the bytecode.
        donor: Bytecode of a similar tree, and the manifest lines (path -> line) of that tree; a module that is equal there has its bytecode
            linked.

    Returns:
        The manifest of the bytecode, and the modules that cannot be compiled (templates, code for other Pythons): Python cannot import those
        either.

    Raises:
        ObjectChanged: A module is not what the manifest states: bytecode is made from proven sources only.
        OSError: Something cannot be written.
    """
    cache_tag = sys.implementation.cache_tag or "none"
    modules = {
        path: line
        for line in manifest_lines(manifest_text)
        if line.endswith(" type=file")
        for path in (path_of_line(line),)
        if path.endswith(".py") and "/site-packages/" in path
    }
    places = {module: bytecode_path(module, cache_tag) for module in modules}
    base = f"{os.fspath(folder)}/"
    for parent in sorted(parent_dirs(places.values())):
        os.mkdir(base + parent, 0o755)  # noqa: PTH102 - quicker on many folders
    lines: list[str] = []
    failed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, line in modules.items():
            place = places[module]
            if donor is not None and donor[1].get(module) == line:
                lent = donor[0].lines.get(place)
                if lent is not None and donor[0].link(place, lent, base):
                    lines.append(lent)
                    continue
            source = _read_source(tree, module, parse_line(line).sha256)
            try:
                code = compile(source, module, "exec", dont_inherit=True)
                content = b"".join(
                    (
                        importlib.util.MAGIC_NUMBER,
                        _UNCHECKED_HASH,
                        importlib.util.source_hash(source),
                        marshal.dumps(code),
                    )
                )
            except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
                failed.append(module)
                continue
            write_file(base + place, content, executable=False)
            lines.append(entry_line(Entry(place, "file", hashlib.sha256(content).hexdigest(), len(content))))
    useless = set(failed)
    made = parent_dirs(place for module, place in places.items() if module not in useless)
    return join_lines([*lines, *(entry_line(Entry(path, "dir")) for path in made)]), tuple(failed)


def _read_source(tree: Path, module: str, sha256: str) -> bytes:
    try:
        with open(f"{os.fspath(tree)}/{module}", "rb") as file:  # noqa: PTH123 - quicker on many files
            source = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ObjectChanged(f"trees/{tree.name}/{module}") from error
    if hashlib.sha256(source).hexdigest() != sha256:
        raise ObjectChanged(f"trees/{tree.name}/{module}")
    return source
