"""Compiles modules for an image. Run as a script by the Python of the environment, in a process that ends when its stdin does.

One JSON line for each module on stdin (`path`, and `source` in base64), one on stdout: `bytecode` in base64, or null if Python cannot compile
it.

The bytecode is checked-hash (PEP 552), so no time decides over it, and who edits a module in a container gets what he edited. It is marshalled
as version 2, which has every value in its place: later versions refer to what was there before, and which of two equal objects are one depends
on where the allocator put them, and on what the process did before.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules are not meant

import base64
import importlib.util
import json
import marshal
import os
import warnings

MARSHAL_VERSION = 2
CHECKED_HASH = (0b11).to_bytes(4, "little")


def bytecode_of(path: str, source: bytes) -> bytes | None:
    """The bytecode of a module; None if it is none for this Python."""
    try:
        code = compile(source, path, "exec", dont_inherit=True)
        body = marshal.dumps(code, MARSHAL_VERSION)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
    return b"".join((importlib.util.MAGIC_NUMBER, CHECKED_HASH, importlib.util.source_hash(source), body))


def main() -> None:
    """Answer until stdin ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    for line in sys.stdin:
        task = json.loads(line)
        made = bytecode_of(task["path"], base64.b64decode(task["source"]))
        answer = {"bytecode": None if made is None else base64.b64encode(made).decode("ascii")}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
