"""The agent's own bytecode, kept in the store so that the next agent need not compile itself: half of the time that its start takes.

`agents/<sha256>-<magic>.zip` has the modules of the agent whose file has that sha256, with bytecode for one kind of Python, and ends with the 32
bytes of its own sha256 (a file that a power cut spoilt does not count). Nobody else can vouch for it, so the bootstrap takes it only
where it and its folder belong to the user of the agent and nobody else may write them.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_UNCHECKED_HASH = (0b01).to_bytes(4, "little")  # PEP 552: hash-based, source not checked


def compile_agent(agent_file: bytes) -> bytes:
    """The content of the file: sources, compressed, bytecode, stored, and the digest.

    Args:
        agent_file: The agent's file, a zip archive of modules.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(agent_file)) as source, zipfile.ZipFile(out, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            # Read by another Python than the agent's, that of workers and probes; what is smaller is read and hashed sooner at each start.
            target.writestr(zipfile.ZipInfo(info.filename), content, compress_type=zipfile.ZIP_DEFLATED)
            if info.filename.startswith("builder/probes/"):
                continue
            code = compile(content, f"<agent>/{info.filename}", "exec", dont_inherit=True)
            head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(content)
            target.writestr(zipfile.ZipInfo(f"{info.filename}c"), head + marshal.dumps(code))
    content = out.getvalue()
    return content + hashlib.sha256(content).digest()


def is_safe_to_keep(folder: Path) -> bool:
    """Whether nobody but this user may write to a folder: elsewhere the file would never be taken."""
    status = folder.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
