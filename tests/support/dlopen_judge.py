"""The real dynamic linker as a judge: run by an environment's own interpreter, says of each object whether `dlopen` takes it.

Input, a line of JSON on stdin for each request: `{"path": "", "before": ["torch"], "first": [["/.../a.so", true]], "paths": ["/.../b.so", ...],
"sonames": ["libnuma.so.1", ...]}`, each key optional. It is first asked which sonames the host offers; then the modules of `before` are
imported, from `path` first (one that fails is reported and passed over); then each of `paths` is opened with RTLD_NOW in a process of its own,
forked from here, so that none finds what another one left loaded. There, the objects of `first` are opened before (`true`: with RTLD_GLOBAL);
one of them that fails is passed over.

Output, a line of JSON on stdout: `{"imports": {...}, "errors": {path: "" or what the linker says}, "host": [sonames that can be opened]}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

TIMEOUT_S = 60


def error_of(name: str, first: list[tuple[str, bool]]) -> str:
    """What the linker says of one object; empty if it takes it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT_S)
        for path, is_global in first:
            with contextlib.suppress(OSError):
                ctypes.CDLL(path, mode=os.RTLD_NOW | (os.RTLD_GLOBAL if is_global else 0))
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOW)
            said = ""
        except OSError as error:
            said = str(error)
        os.write(writing, b"=" + said.encode("utf-8", "backslashreplace")[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    status = os.waitpid(child, 0)[1]
    # A constructor that ends the process ran after all symbols were bound.
    return said[1:] if said.startswith("=") else f"ended the process with {os.waitstatus_to_exitcode(status)}"


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    host = [soname for soname in request.get("sonames", ()) if not error_of(soname, [])]
    if request.get("path"):
        sys.path.insert(0, request["path"])
    imports = {}
    for module in request.get("before", ()):
        try:
            importlib.import_module(module)
            imports[module] = ""
        except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
            imports[module] = f"{type(error).__name__}: {error}"
    errors = {path: error_of(path, request.get("first", [])) for path in request.get("paths", ())}
    return {"imports": imports, "errors": errors, "host": host}


def main() -> None:
    """Answer the requests on stdin."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(judge(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
