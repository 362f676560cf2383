"""The Python that runs the tests as an archive, as a spec pins one."""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

from tests.support.projects import PYTHON_MINOR, base_python

if TYPE_CHECKING:
    from pathlib import Path


def pack_python(target: Path) -> str:
    """Pack the Python that runs the tests, without what is installed in it; the sha256 of the archive."""
    prefix = base_python().parent.parent
    library = f"lib/python{PYTHON_MINOR}"
    left_out = {"__pycache__", "site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3"}

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if left_out & set(member.name.split("/")) else member

    with tarfile.open(target, "w:gz", compresslevel=1) as tar:
        tar.add(base_python(), f"python/bin/python{PYTHON_MINOR}")
        tar.add(prefix / library, f"python/{library}", filter=keep)
    return hashlib.sha256(target.read_bytes()).hexdigest()
