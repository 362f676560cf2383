"""A Python that the controller sends as a pinned archive, for hosts that have none: `<store>/pythons/<sha256>/`.

The archive is named by its sha256, and unpacked as what it is, a file that somebody made: nothing of it leaves its folder, and it has files,
folders and relative links and nothing else.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import json
import os
import posixpath
import tarfile
from typing import TYPE_CHECKING, Any

from builder.agent.receive import Receiver, Wanted, sweep_incoming
from builder.agent.store import rename_new, sync_filesystem, write_atomically
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.agent.serve import Agent
    from builder.agent.store import Store

SIZE_LIMIT_BYTES = 4 << 30
"""Of all that is unpacked: a Python has 0.1 GB."""

MEMBERS_LIMIT = 200_000


def ensure_python(agent: Agent, wanted: dict[str, Any]) -> Path:
    """The interpreter of a pinned archive.

    Args:
        agent: Whose store, and whose controller.
        wanted: `sha256`, `size` and `file` of the archive, `python`, the minor version, and `exact`, the version that is asked for, if any.

    Raises:
        EnvspecError: The archive cannot be had, or has no such interpreter.
    """
    received: list[Path] = []

    def receive() -> Path:
        received.append(_receive(agent, Wanted(wanted["sha256"], wanted["file"], wanted["size"])))
        return received[0]

    found = keep_python(agent.store, wanted["sha256"], receive, wanted["python"], wanted["exact"], note=agent.note)
    for archive in received:
        archive.unlink()
        archive.parent.rmdir()
    return found


def keep_python(
    store: Store, sha256: str, archive: Callable[[], Path], python: str, exact: str, *, note: Callable[[str], None]
) -> Path:
    """The interpreter of a pinned archive, unpacked into the store if it is not there, and remembered.

    Args:
        store: The store.
        sha256: Of the archive.
        archive: Gives the file, its sha256 checked; asked only if it is needed.
        python: The minor version.
        exact: The version that is asked for, if any.
        note: Told what is done.

    Raises:
        EnvspecError: The archive has no such interpreter, or cannot be read.
    """
    place = store.root / "pythons" / sha256
    with store.lock("gc", shared=True, waiting=note), store.lock(f"python-{sha256[:40]}", waiting=note):
        if not place.is_dir():
            file = archive()
            note("unpacking Python")
            folder = store.temporary(f"python-{sha256[:40]}") / "python"
            folder.mkdir()
            unpack(file, folder)
            sync_filesystem(folder)
            rename_new(folder, place)
            folder.parent.rmdir()
        found = find_python(place, python)
        memory = store.facts / f"interpreter-{exact or python}.json"
        write_atomically(memory, json.dumps({"path": os.fspath(found)}) + "\n")
    return found


def find_python(place: Path, python: str) -> Path:
    """The interpreter in an unpacked archive.

    Raises:
        EnvspecError: There is none.
    """
    for pattern in (f"bin/python{python}", f"*/bin/python{python}", f"*/install/bin/python{python}"):
        for path in sorted(place.glob(pattern)):
            if path.is_file():
                return path
    raise EnvspecError(
        f"the archive of [python] has no `bin/python{python}`",
        hint="is it that of this version? see `archive` in the spec",
    )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive of a Python.

    Args:
        archive: The file, its sha256 checked.
        folder: An existing empty folder.

    Raises:
        EnvspecError: It is no archive, or has what a Python does not have.
    """
    size = count = 0
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                count += 1
                size += member.size
                if count > MEMBERS_LIMIT or size > SIZE_LIMIT_BYTES:
                    raise EnvspecError("the archive of [python] is larger than a Python can be")
                _unpack_member(tar, member, folder)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise EnvspecError(f"the archive of [python] cannot be read: {error}") from error


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = _inside(member.name)
    if not name:
        return
    place = folder / name
    if member.isdir():
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        return
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if member.issym():
        _inside(posixpath.join(posixpath.dirname(name), member.linkname))
        place.symlink_to(member.linkname)
    elif member.islnk():
        source = folder / _inside(member.linkname)
        os.link(source, place, follow_symlinks=False)
    elif member.isreg():
        content = tar.extractfile(member)
        mode = 0o555 if member.mode & 0o111 else 0o444
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            while content is not None and (chunk := content.read(1 << 20)):
                file.write(chunk)
    else:
        raise EnvspecError(f"the archive of [python] has `{name}`, which is no file, folder or link")


def _inside(name: str) -> str:
    """A path in the archive in its shortest form.

    Raises:
        EnvspecError: It leads out.
    """
    path = posixpath.normpath(name)
    if path.startswith(("/", "../")) or path == ".." or "\0" in path:
        raise EnvspecError(f"`{name}` in the archive of [python] leads out of it")
    return "" if path == "." else path


def _receive(agent: Agent, wanted: Wanted) -> Path:
    target = agent.store.wheel(wanted.sha256, wanted.file)
    with agent.store.lock("incoming", waiting=agent.note):
        agent.receiver = Receiver(agent.store, lambda rows: agent.event({"need": rows}))
        try:
            agent.receiver.receive([wanted], lambda _sha256, _path: None)
            sweep_incoming(agent.store)
        finally:
            agent.receiver = None
    return target
