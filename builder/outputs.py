"""What a person asked to be written: its place is looked at before anything is made, and named when it cannot be written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def is_archive(output: Path) -> bool:
    """Whether an output is one file, by its name."""
    return output.suffix == ".tar"


def check_output(output: Path) -> None:
    """See that an export may become what its name says: a file `*.tar`, else a folder.

    Raises:
        EnvspecError: Something else is there.
    """
    if is_archive(output):
        if output.is_dir():
            raise EnvspecError(
                f"`{output}` is a folder", hint="name a file, or a folder whose name does not end with `.tar`"
            )
    elif os.path.lexists(output) and not output.is_dir():
        raise EnvspecError(f"`{output}` is no folder", hint="name a folder, or a file that ends with `.tar`")


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder if it is not there, and keep other exports out of it.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Write an output. What the system refuses is told with its path, and not as a matter of the store.

    Raises:
        EnvspecError: It cannot be written.
        OSError: Something elsewhere cannot be.
    """
    try:
        yield
    except OSError as error:
        place = os.fspath(error.filename) if isinstance(error.filename, str) else ""
        if place and not place.startswith(f"{output.parent}/") and not f"{output}/".startswith(f"{place}/"):
            raise
        hint = "name another place with `--out`"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = f"make room there and run the command again, or {hint}"
        raise EnvspecError(f"`{output}` cannot be written: {error.strerror or error}", hint=hint) from error
