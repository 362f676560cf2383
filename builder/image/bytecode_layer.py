"""The modules of wheels -> a layer with their bytecode, made by the Python of the environment.

It lies beside the layers with the wheels themselves, and is no part of them: they depend on the lock alone, and this depends on a Python too.
The same wheels and the same Python give the same bytes (builder/image/compile_script.py says how).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from builder.agent.archive import ArchiveDamaged, WheelArchive
from builder.agent.bytecode import bytecode_path
from builder.image.layer import TEXT_LIMIT_BYTES, TarLayer, check_wheel, damaged_wheel, new_file, sources_of
from builder.process import start_worker
from envspec.errors import EnvspecError
from envspec.image_plan import IMAGE_ROOT
from envspec.tree import encode_path, parent_dirs

if TYPE_CHECKING:
    import subprocess
    from types import TracebackType

    from builder.image.layer import Layer, LayerOrder, LayerPart

STOP_TIMEOUT_S = 5.0
_SCRIPT = Path(__file__).with_name("compile_script.py")


def is_module(path: str) -> bool:
    """Whether a path of an environment is a module that gets bytecode.

    Example:
        >>> is_module("lib/python3.12/site-packages/torch/_C.py"), is_module("bin/serve.py")
        (True, False)
    """
    return path.endswith(".py") and "/site-packages/" in path


def write_bytecode_layer(order: LayerOrder, target: str) -> Layer:
    """Write the blob of a layer with bytecode.

    Args:
        order: Whose modules; with a compiler.
        target: A path that is not there yet.

    Raises:
        EnvspecError: A module is not what the lock's tree has, or the Python does not do what it is asked.
        OSError: It cannot be written.
    """
    if order.compiler is None:
        raise ValueError("bytecode needs a Python")
    with contextlib.ExitStack() as stack:
        archives: list[WheelArchive] = []
        modules = []
        for number, part in enumerate(order.parts):
            try:
                archives.append(stack.enter_context(WheelArchive(Path(part.wheel))))
                found = sources_of(order, number, archives[-1])
                modules += [row for row in found.items() if row[0] in order.modules]
            except ArchiveDamaged as error:
                raise _damaged(part, str(error)) from error
        writer = TarLayer(stack.enter_context(new_file(target)))
        compiler = stack.enter_context(_Compiler(Path(order.compiler.path)))
        made: set[str] = set()
        rows = [(bytecode_path(path, order.compiler.cache_tag), path, source) for path, source in modules]
        for place, path, source in sorted(rows, key=lambda row: encode_path(row[0])):
            part = order.parts[source.wheel]
            try:
                content = (
                    source.content
                    if source.member is None
                    else archives[source.wheel].read(source.member, limit=TEXT_LIMIT_BYTES)
                )
            except ArchiveDamaged as error:
                raise _damaged(part, str(error)) from error
            if hashlib.sha256(content).hexdigest() != source.sha256:
                raise _damaged(part, f"`{path}` is not what the lock's tree has")
            bytecode = compiler.compile(path, content)
            if bytecode is None:  # a template, or code for other Pythons: Python cannot import it either
                continue
            folders = parent_dirs([f"{IMAGE_ROOT[1:]}/{place}"]) - made
            writer.folders(folders)
            made |= folders
            writer.file(f"{IMAGE_ROOT[1:]}/{place}", bytecode, mode=0o444)
        return writer.finish()


def _damaged(part: LayerPart, message: str) -> EnvspecError:
    """What is wrong with a wheel: here it is not hashed before it is read, since every module of it is."""
    try:
        check_wheel(part)
    except EnvspecError as error:
        return error
    return damaged_wheel(part, message)


class _Compiler:
    """A process of a Python that compiles one module after the other."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def __enter__(self) -> _Compiler:  # noqa: PYI034 - as everywhere here
        # Not `-I`, which would make the hash seed random: in Python 3.10 the order of a set's constants follows it.
        argv = [os.fspath(self._python), "-s", "-S", "-B", os.fspath(_SCRIPT)]
        environ = {"PATH": os.defpath, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
        try:
            self._process: subprocess.Popen[str] = start_worker(argv, env=environ)
        except OSError as error:
            raise EnvspecError(f"the interpreter `{self._python}` does not start: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=STOP_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - whatever happens, it has to end
            self._process.kill()
            self._process.wait()

    def compile(self, path: str, source: bytes) -> bytes | None:
        """The bytecode of a module; None if it is none for this Python.

        Raises:
            EnvspecError: The process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("a worker has no pipes")
        line = ""
        with contextlib.suppress(OSError):
            stdin.write(json.dumps({"path": path, "source": base64.b64encode(source).decode("ascii")}) + "\n")
            stdin.flush()
            line = stdout.readline()
        try:
            answer = json.loads(line)["bytecode"]
            return None if answer is None else base64.b64decode(answer, validate=True)
        except (ValueError, KeyError, TypeError):
            raise EnvspecError(
                f"`{self._python}` ended, or said something strange, when it had to compile `{path}`",
                hint="`--no-bytecode` leaves bytecode out",
            ) from None
