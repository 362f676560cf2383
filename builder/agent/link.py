"""Links the objects of a store into an environment, and proves each file on the way.

Every file is looked at right before it is linked: size, mode, and a change time not later than the object's stamp. What has changed since is
hashed again. So a further environment of 77,000 files costs two system calls a file instead of reading 8 GB.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from dataclasses import dataclass

from builder.agent.files import hash_file
from envspec.tree import decode_path, manifest_lines

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from builder.agent.store import StoreObject

_MODES = {"mode=0444": 0o444, "mode=0555": 0o555}
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM})
_FICLONE = 0x40049409


@dataclass(frozen=True)
class Linked:
    """What came of linking one object."""

    files: int
    rehashed: int
    """Files whose change time was later than the stamp, and whose content was found to be right."""

    proven_ns: int
    """The object's new stamp."""

    copied: int
    """Files that could not be linked, and so have an inode of their own, for which the object's stamp does not stand."""

    corrupt: tuple[str, ...]
    """Paths that are missing or not what the manifest states; nothing of the object is to be used then."""


def file_rows(manifest_text: str) -> Iterator[tuple[str, int, str, int]]:
    """Path, permission bits, sha256 and size of every file of a manifest, cheaply."""
    for line in manifest_lines(manifest_text):
        if line.endswith(" type=file"):
            path, mode, sha256, size, _ = line.split(" ")
            yield decode_path(path[2:]), _MODES[mode], sha256[7:], int(size[5:])


def folder_rows(manifest_text: str) -> Iterator[str]:
    """Path of every folder of a manifest, parents first."""
    for line in manifest_lines(manifest_text):
        if line.endswith(" type=dir"):
            yield decode_path(line[2 : line.index(" ")])


def link_object(
    source: StoreObject, target: Path | None, *, skip: frozenset[str], proven_ns: int, owner: int | None = None
) -> Linked:
    """Prove the files of an object and link them into a tree, making the folders that are not there yet.

    Several processes may link objects into one tree at once: folders are shared, files are not.

    Args:
        source: The object.
        target: Root of the new tree; None to prove only.
        skip: Paths that are proven but not linked.
        proven_ns: The object's stamp, or what this process knows better.
        owner: The user whose files are linked; those of another one, who could change them later, are copied. None to link them all.

    Raises:
        OSError: A link could not be made.
    """
    text = source.manifest_path.read_text(encoding="ascii")
    to_root = "" if target is None else f"{os.fspath(target)}/"
    if target is not None:
        for folder in folder_rows(text):  # parents first, as a manifest is sorted
            with contextlib.suppress(FileExistsError):
                os.mkdir(to_root + folder, 0o755)  # noqa: PTH102 - quicker on many folders
    corrupt: list[str] = []
    rehashed = linked = copied = 0
    last_linked = ""
    newest = proven_ns
    lstat, link = os.lstat, os.link
    with _Folders(os.fspath(source.path)) as origins, _Folders(os.fspath(target or source.path)) as places:
        for path, mode, sha256, size in file_rows(text):
            folder, _, name = path.rpartition("/")
            try:
                origin = origins.open(folder)
                status = lstat(name, dir_fd=origin)
            except (FileNotFoundError, NotADirectoryError):
                corrupt.append(path)
                continue
            if status.st_size != size or status.st_mode != stat.S_IFREG | mode:
                corrupt.append(path)
                continue
            if status.st_ctime_ns > proven_ns:
                if hash_file(f"{os.fspath(source.path)}/{path}") != sha256:
                    corrupt.append(path)
                    continue
                rehashed += 1
                newest = max(newest, status.st_ctime_ns)
            if target is not None and path not in skip:
                try:
                    if owner not in {None, status.st_uid}:
                        raise PermissionError(errno.EPERM, "another user's file")
                    link(name, name, src_dir_fd=origin, dst_dir_fd=places.open(folder), follow_symlinks=False)
                except OSError as error:
                    if error.errno not in _CANNOT_LINK:
                        raise
                    _copy(f"{os.fspath(source.path)}/{path}", to_root + path, mode, sha256)
                    copied += 1
                linked += 1
                last_linked = to_root + path  # the same inode as the origin, or the copy
    if last_linked:
        newest = max(newest, lstat(last_linked).st_ctime_ns)
    return Linked(files=linked, rehashed=rehashed, proven_ns=newest, copied=copied, corrupt=tuple(corrupt))


class _Folders:
    """One folder of a tree at a time, held open: the kernel then looks up one name a file instead of ten. No link is followed."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder: str | None = None
        self._fd = -1

    def open(self, folder: str) -> int:
        """The descriptor of a folder; that of the one before is closed."""
        if folder != self._folder:
            self.close()
            self._fd = os.open(f"{self._root}/{folder}", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._folder = folder
        return self._fd

    def close(self) -> None:
        """Let go of the folder."""
        if self._folder is not None:
            os.close(self._fd)
            self._folder = None

    def __enter__(self) -> _Folders:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _copy(origin: str, target: str, mode: int, sha256: str) -> None:
    """Where no link can be made: an own copy, proven by its content. Where the file system can, both share their blocks."""
    import shutil  # noqa: PLC0415 - who only looks at files need not wait for it

    with (
        os.fdopen(os.open(origin, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as there,
        os.fdopen(
            os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb", buffering=0
        ) as here,
    ):
        try:
            fcntl.ioctl(here.fileno(), _FICLONE, there.fileno())
        except OSError:
            shutil.copyfileobj(there, here, 1 << 20)
        os.fchmod(here.fileno(), mode)
    if hash_file(target) != sha256:
        raise OSError(errno.EIO, "the copy differs from its source", target)
