"""A bundle -> a spec in a folder and wheels in the wheelhouse, each checked before it has its name. Nothing of it is run.

A bundle is hostile: its index is read first, with a limit; of a tar, every header must be the one that follows from the index, so none is
interpreted; wheels are taken only if the lock names them; what follows the last member is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import TYPE_CHECKING, BinaryIO, Protocol

from builder.image.tar_headers import BLOCK_BYTES, END, FILE, padding, tar_header
from envspec.bundles import INDEX, INDEX_LIMIT_BYTES, SPEC_FOLDER, BundleIndex, BundleMember, parse_index
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.tree import parent_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC_LIMIT_BYTES = 4 << 30
"""Of all files of the spec together: one may be an archive with a Python."""

CHUNK_BYTES = 1 << 20
EXECUTABLE_MODE, FILE_MODE = 0o755, 0o644


class OpenBundle(Protocol):
    """A bundle that is read, folder or tar."""

    index: BundleIndex

    def members(self) -> Iterator[tuple[BundleMember, Iterator[bytes]]]:
        """Every member in the order of the index, and its content, not checked yet; what is not read of it is passed over."""


@contextlib.contextmanager
def open_bundle(path: Path) -> Iterator[OpenBundle]:
    """Open a bundle and read its index.

    Args:
        path: A folder, or a tar.

    Raises:
        EnvspecError: It is none.
    """
    name = os.fspath(path)
    if path.is_dir():
        yield _Folder(path, name)
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EnvspecError(f"the bundle cannot be read: {error.strerror}", input_name=name) from error
    with os.fdopen(fd, "rb", buffering=CHUNK_BYTES) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise EnvspecError("the bundle is neither a file nor a folder", input_name=name)
        try:
            opened = _Tar(file, name)
        except OSError as error:
            raise EnvspecError(f"the bundle cannot be read: {error.strerror}", input_name=name) from error
        yield opened


def member_mode(member: BundleMember) -> int:
    """The mode that a member has in a tar and in a folder."""
    return EXECUTABLE_MODE if member.executable else FILE_MODE


def checked(member: BundleMember, chunks: Iterator[bytes], input_name: str) -> Iterator[bytes]:
    """The content of a member; right if the iteration ends.

    Raises:
        EnvspecError: It is not what the index says.
    """
    digest = hashlib.sha256()
    length = 0
    for chunk in chunks:
        digest.update(chunk)
        length += len(chunk)
        if length > member.size:
            break
        yield chunk
    if length != member.size or digest.hexdigest() != member.sha256:
        raise damaged(
            f"`{member.path}` is not what the index of the bundle says: {member.size} bytes with sha256 {member.sha256}",
            input_name,
        )


def write_spec_file(folder: Path, member: BundleMember, chunks: Iterator[bytes], input_name: str) -> None:
    """Write a file of the spec below a folder that this process has made.

    Raises:
        EnvspecError: It is not what the index says.
    """
    path = member.path[len(SPEC_FOLDER) :]
    for parent in sorted(parent_dirs([path])):
        (folder / parent).mkdir(exist_ok=True)
    fd = os.open(folder / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(fd, "wb") as file:
        for chunk in checked(member, chunks, input_name):
            file.write(chunk)


def check_spec_size(index: BundleIndex, input_name: str) -> None:
    """See that the spec of a bundle is not larger than one can be.

    Raises:
        EnvspecError: It is.
    """
    size = sum(member.size for member in index.members if member.path.startswith(SPEC_FOLDER))
    if size > SPEC_LIMIT_BYTES:
        raise damaged(f"the spec in the bundle has {size} bytes, more than {SPEC_LIMIT_BYTES}", input_name)


def damaged(message: str, input_name: str) -> EnvspecError:
    """A bundle that is not what it says."""
    return EnvspecError(
        message, input_name=input_name, hint="it is damaged or was cut off: copy it anew", exit_code=FOUND_WRONG
    )


class _Folder:
    def __init__(self, root: Path, name: str) -> None:
        self._root = root
        self._name = name
        if not os.path.lexists(root / INDEX):
            raise EnvspecError(
                f"the folder is no bundle: it has no `{INDEX}`",
                input_name=name,
                hint="name one that `envspec export --format bundle` wrote",
            )
        with self._open(INDEX) as file:
            raw = file.read(INDEX_LIMIT_BYTES)
        self.index = parse_index(raw, input_name=name)

    def members(self) -> Iterator[tuple[BundleMember, Iterator[bytes]]]:
        for member in self.index.members:
            with self._open(member.path) as file:
                yield member, _chunks(file, member.size + 1)

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[BinaryIO]:
        for parent in sorted(parent_dirs([path])):
            if (self._root / parent).is_symlink():
                raise damaged(f"`{parent}` of the bundle is a link", self._name)
        try:
            fd = os.open(self._root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise damaged(f"`{path}` of the bundle cannot be read: {error.strerror}", self._name) from error
        with os.fdopen(fd, "rb", buffering=CHUNK_BYTES) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise damaged(f"`{path}` of the bundle is no file", self._name)
            yield file


class _Tar:
    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        head = file.read(BLOCK_BYTES)
        try:
            size = int(head[124:135], 8)
        except ValueError:
            size = -1
        if not 0 <= size <= INDEX_LIMIT_BYTES or head != tar_header(INDEX, kind=FILE, mode=FILE_MODE, size=size):
            raise damaged(f"this is no bundle: it does not begin with `{INDEX}` as `envspec export` writes it", name)
        self.index = parse_index(file.read(size), input_name=name)
        self._pass(padding(size))

    def members(self) -> Iterator[tuple[BundleMember, Iterator[bytes]]]:
        for member in self.index.members:
            header = tar_header(member.path, kind=FILE, mode=member_mode(member), size=member.size)
            begin = self._file.tell() + len(header)
            self._pass(header, f"`{member.path}` does not follow where the index says")
            yield member, _chunks(self._file, member.size)
            self._file.seek(begin + member.size)
            self._pass(padding(member.size))
        self._pass(END)
        if self._file.read(1):
            raise damaged("something follows the end of the bundle", self._name)

    def _pass(self, expected: bytes, message: str = "the bundle is not as `envspec export` writes it") -> None:
        found = self._file.read(len(expected))
        if found != expected:
            cut = len(found) < len(expected)
            raise damaged("the bundle is cut off" if cut else message, self._name)


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(CHUNK_BYTES, size))):
        size -= len(chunk)
        yield chunk
