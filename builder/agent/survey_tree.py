r"""The files of a venv by their status alone: nothing is opened, no link is followed, and what there is too much of is named and left out.

Names that are no UTF-8 are text with surrogates (PEP 383), as Python has them; JSON keeps them as `\udc80`.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import posixpath
import stat

MOST_PATHS = 400_000
"""Of files, links and folders; a large real environment has 60,000 beside its bytecode."""

MOST_NOTES = 50
MOST_LINKS = 40
"""Links on the way to one path, as the kernel counts them."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Notes:
    """What could not be looked at; each kind of trouble is told a few times, and counted after that."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._more = 0

    def add(self, note: str) -> None:
        """Keep a note, if there are not too many."""
        if len(self._notes) < MOST_NOTES:
            if note not in self._notes:
                self._notes.append(note)
        else:
            self._more += 1

    def all(self) -> tuple[str, ...]:
        """The notes, with the number of those that were left out."""
        return (*self._notes, *((f"and {self._more} more of that kind",) if self._more else ()))


class Tree:
    """What lies below a root.

    Example:
        tree = Tree("/srv/venv", notes)
        tree.walk("lib")
        tree.files["lib/python3.12/site-packages/six.py"].st_size
    """

    def __init__(self, root: str, notes: Notes) -> None:
        self.root = root
        self.files: dict[str, os.stat_result] = {}
        """Ordinary files."""

        self.links: dict[str, str] = {}
        """Symbolic links, with their targets."""

        self.others: dict[str, str] = {}
        """What is neither: `a pipe`, `a device`."""

        self.folders: set[str] = set()
        self.unread: set[str] = set()
        """Folders that could not be listed."""

        self._notes = notes
        self._device = os.stat(root).st_dev
        self._full = False

    def walk(self, start: str, *, deep: bool = True) -> None:
        """List a folder, and what lies below it; `__pycache__` is left out.

        Args:
            start: Relative to the root; empty for the root itself.
            deep: Whether to go on below it.
        """
        pending = [start]
        count = len(self.files) + len(self.links) + len(self.others) + len(self.folders)
        while pending:
            folder = pending.pop()
            try:
                entries = os.scandir(f"{self.root}/{folder}")
            except OSError as error:
                self.unread.add(folder)
                self._notes.add(f"`{folder or '.'}` cannot be listed: {error.strerror}")
                continue
            prefix = f"{folder}/" if folder else ""
            with entries:
                for entry in entries:
                    path = prefix + entry.name
                    if count >= MOST_PATHS:
                        self._too_many(folder)
                        return
                    count += 1
                    try:
                        status = entry.stat(follow_symlinks=False)
                        kind = status.st_mode & 0o170000
                        if kind == stat.S_IFREG:
                            self.files[path] = status
                        elif kind == stat.S_IFDIR:
                            if entry.name == "__pycache__":
                                continue
                            self.folders.add(path)
                            if not deep:
                                continue
                            if status.st_dev != self._device:
                                self.unread.add(path)
                                self._notes.add(f"`{path}` lies on another file system and is not looked at")
                                continue
                            pending.append(path)
                        elif kind == stat.S_IFLNK:
                            self.links[path] = os.readlink(f"{self.root}/{path}")
                        else:
                            self.others[path] = kind_of(status.st_mode)
                    except OSError as error:
                        self.others[path] = "unreadable"
                        self._notes.add(f"`{path}` cannot be looked at: {error.strerror}")

    def look(self, path: str) -> None:
        """Take in one path that no walk has met, with the links on the way to it."""
        at = ""
        for part in path.split("/"):
            at = f"{at}/{part}" if at else part
            if at in self.files or at in self.links or at in self.others:
                return
            if at in self.folders:
                continue
            try:
                status = os.lstat(f"{self.root}/{at}")
                if stat.S_ISREG(status.st_mode):
                    self.files[at] = status
                elif stat.S_ISLNK(status.st_mode):
                    self.links[at] = os.readlink(f"{self.root}/{at}")
                elif stat.S_ISDIR(status.st_mode):
                    self.folders.add(at)
                    continue
                else:
                    self.others[at] = kind_of(status.st_mode)
            except (OSError, ValueError):
                pass
            return

    def resolve(self, path: str) -> str:
        """Where a path leads within the tree if links on the way are followed; empty if that is out of it, or nowhere."""
        for _ in range(MOST_LINKS):
            link = self._first_link(path)
            if not link:
                return path
            target = self.links[link]
            if target.startswith("/"):
                inside = within(self.root, posixpath.normpath(target))
                if not inside:
                    return ""
                path = inside + path[len(link) :]
            else:
                path = posixpath.normpath(f"{posixpath.dirname(link)}/{target}{path[len(link) :]}".lstrip("/"))
            if path == ".." or path.startswith("../"):
                return ""
        return ""

    def _first_link(self, path: str) -> str:
        at = 0
        while at >= 0:
            at = path.find("/", at + 1)
            above = path if at < 0 else path[:at]
            if above in self.links:
                return above
            if above not in self.folders:
                break
        return ""

    def _too_many(self, folder: str) -> None:
        if not self._full:
            self._full = True
            self._notes.add(f"more than {MOST_PATHS} files: what follows `{folder}` was not looked at")

    @property
    def is_cut_off(self) -> bool:
        """Whether there was too much."""
        return self._full


def within(root: str, path: str) -> str:
    """A path relative to a root; empty if it is not below it."""
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else ""


def kind_of(mode: int) -> str:
    """What a path that is no ordinary file is."""
    return next((name for test, name in _KINDS if test(mode)), "of an unknown kind")


def read_small(path: str, limit: int) -> bytes | None:
    """The content of an ordinary file, or the beginning of it; None if there is none that can be read.

    Args:
        path: Absolute. A pipe or a device is not read, and a link not followed.
        limit: Bytes at most.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        pieces: list[bytes] = []
        while limit > 0 and (piece := os.read(fd, min(limit, 1 << 20))):
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    except OSError:
        return None
    finally:
        os.close(fd)
