"""The store: where wheels, trees, bytecode and environments lie on one machine, and who may write when.

    <store>/wheels/<sha256>/<file>          the wheelhouse
    <store>/trees/<tree digest>/            one wheel as it lies in an environment; <tree digest>.mtree beside it
    <store>/bytecode/<tree digest>-<tag>/   its bytecode for one kind of interpreter; .mtree beside it
    <store>/envs/<env id>-<name>/           environments: hard links into trees/ and bytecode/, read-only
    <store>/generations/<name>/<n>          link to an environment, with <n>.json beside it
    <store>/profiles/<name>                 link to the active generation
    <store>/receipts/<env id>/              what an environment consists of, and the evidence of builds and verifications
    <store>/facts/ cache/uv/ state/<env id>/ locks/ .tmp/

Invariants:

1. A path in `trees/`, `bytecode/` or `envs/` is complete or absent: it is made in `.tmp/` and renamed.
2. Whoever writes to `.tmp/<lock name>.*` holds `locks/<lock name>` (flock, which goes away with its last holder). Leftovers belong to the
   next holder, who removes them.
3. Files are read-only and never changed in place. An inode is *proven* as of a moment: its object's stamp (`<object>.proven`) holds a change
   time (ctime, nanoseconds) up to which every inode of the object is known to have the content that the manifest states. A ctime cannot be set
   back by a process; a later one means "hash this file again", not "this file has changed", since making a link moves it too. An object's stamp
   holds for the object's inodes only; each environment's record has the stamps that hold for its own.
4. A stamp is written only after the object's data has reached the disk (syncfs): after a power cut, what has no stamp is hashed again.
5. Everything that builds holds `locks/gc` shared; gc holds it alone, and never removes what a generation or a running process uses.
6. A store has one owner, unless its folder has the setgid bit and its group may write there: then the group shares it (`Store.shared`), and may
   make things in the folders that `make_folder` makes, and in no others. What a user made is his: nobody else links, changes or deletes it.

Not defended against: root with a set clock, bit rot below the file system, and a write to a file while a build links its object, for tenths of a
second (its change time is then older than the new stamp); `verify --deep` hashes everything anew.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from functools import lru_cache

from envspec.errors import EnvspecError

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

STORE_FORMAT = 1
FOREIGN_LEFTOVER_S = 86_400.0
CLOCK_SLACK_NS = 60 * 10**9
"""How far clocks of one file system may be apart: that of a file server, and this machine's."""

_SHARED = stat.S_ISGID | stat.S_IWGRP
_FOLDERS = (
    "wheels",
    "trees",
    "bytecode",
    "envs",
    "generations",
    "profiles",
    "receipts",
    "facts",
    "cache",
    "state",
    "locks",
    "agents",
    "pythons",
    ".tmp",
)
_LOCK_NAME = re.compile(r"[A-Za-z0-9_-]+")


class WheelChanged(ValueError):  # noqa: N818 - it says what is the matter
    """A wheel in the wheelhouse has another sha256 than the one that it is named by."""


class ObjectChanged(ValueError):  # noqa: N818 - it says what is the matter
    """A file of an object is not what the object's manifest states.

    Attributes:
        file: Its path in the store.
    """

    def __init__(self, file: str) -> None:
        super().__init__(f"`{file}` changed after it was proven")
        self.file = file


@dataclass(frozen=True)
class StoreObject:
    """A tree or its bytecode: a folder with a manifest and a stamp beside it."""

    path: Path

    @property
    def manifest_path(self) -> Path:
        """Where its manifest lies."""
        return self.path.with_name(self.path.name + ".mtree")

    @property
    def stamp_path(self) -> Path:
        """Where the moment lies up to which it is proven."""
        return self.path.with_name(self.path.name + ".proven")

    @property
    def exists(self) -> bool:
        """Whether it is there, complete."""
        return self.path.is_dir() and self.manifest_path.is_file()

    def proven_ns(self) -> int:
        """Ctime in nanoseconds up to which every inode is proven; 0 if nothing is."""
        try:
            return believable(int(self.stamp_path.read_text(encoding="ascii")))
        except (OSError, ValueError):
            return 0

    def stamp(self, proven_ns: int) -> None:
        """Write the moment. A stamp that a crash cuts off cannot be read, or is too low: what it does not cover is hashed again.

        Always 20 digits, written over what is there: cutting the file first would make ext4 bring it to the disk at once.
        """
        fd = os.open(self.stamp_path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, b"%020d\n" % proven_ns)
        finally:
            os.close(fd)


@dataclass(frozen=True)
class Store:
    """The folders of a store. Creating the value touches nothing; `ensure` does."""

    root: Path

    def ensure(self) -> None:
        """Create the store if it is not there, and see that it can be written and is of our format.

        Raises:
            EnvspecError: It cannot be created or written, or it is of another format; nothing was changed in the latter case.
        """
        self.check_format()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for folder in _FOLDERS:
                make_folder(self.root / folder)
            marker = self.root / "store.json"
            if not marker.exists():
                write_atomically(marker, json.dumps({"store": STORE_FORMAT}) + "\n")
            # A read-only file system lets mkdir(exist_ok) pass.
            probe = self.root / ".tmp" / f"probe.{process_mark()}"
            write_new(probe, b"")
            probe.unlink(missing_ok=True)  # a `sweep` of another process may have been quicker
            if self.root.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise EnvspecError(
                    f"everybody may write into the store `{self.root}`, and so change what its users run",
                    hint=f"`chmod o-w {self.root}`",
                )
            closed = [folder for folder in _FOLDERS if self.shared and not may_write(self.root / folder)]
        except OSError as error:
            raise EnvspecError(
                f"the store `{self.root}` cannot be written: {error.strerror or error}",
                hint="give another store with `--store PATH` or ENVSPEC_STORE, or mend its permissions",
            ) from error
        if closed:
            raise EnvspecError(
                f"`{self.root / closed[0]}` cannot be written by this user: it belongs to another one",
                hint="a store that a group shares begins as an empty folder of that group with mode 2775",
            )

    @property
    def shared(self) -> bool:
        """Whether a group shares the store: its folder has the setgid bit, and the group may write."""
        return is_shared(self.root)

    def check_format(self) -> None:
        """See that the store is of our format.

        Raises:
            EnvspecError: It is there and of another format.
        """
        try:
            found = json.loads((self.root / "store.json").read_text(encoding="utf-8")).get("store")
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError, AttributeError) as error:
            raise EnvspecError(
                f"`{self.root}/store.json` cannot be read: {error}", hint="is this folder a store of envspec?"
            ) from error
        if found != STORE_FORMAT:
            raise EnvspecError(
                f"the store `{self.root}` has format {found}, this envspec knows {STORE_FORMAT}",
                hint="use the envspec that made it, or another store",
            )

    @property
    def wheels(self) -> Path:
        """The wheelhouse."""
        return self.root / "wheels"

    @property
    def facts(self) -> Path:
        """Cached facts."""
        return self.root / "facts"

    @property
    def uv_cache(self) -> Path:
        """The cache of uv, for resolving; nothing is installed from it. Each user of a shared store has an own one."""
        return self.root / "cache" / (f"uv-{os.geteuid()}" if self.shared else "uv")

    def wheel(self, sha256: str, file: str) -> Path:
        """Where a wheel lies or will lie."""
        return self.root / "wheels" / sha256 / file

    def tree(self, digest: str) -> StoreObject:
        """The tree of a wheel."""
        return StoreObject(self.root / "trees" / digest)

    def bytecode(self, tree: str, tag: str) -> StoreObject:
        """The bytecode of a tree for one kind of interpreter.

        Args:
            tree: Tree digest.
            tag: Cache tag and magic number: `cpython-312-cb0d0d0a`.
        """
        return StoreObject(self.root / "bytecode" / f"{tree}-{tag}")

    def env(self, env: str, name: str) -> Path:
        """Where an environment lies or will lie."""
        return self.root / "envs" / f"{env}-{name}"

    def receipts(self, env: str) -> Path:
        """Where an environment's receipts lie."""
        return self.root / "receipts" / env

    def state(self, env: str) -> Path:
        """Where an environment's JIT caches lie."""
        return self.root / "state" / env

    @contextlib.contextmanager
    def lock(self, name: str, *, shared: bool = False, waiting: Callable[[str], None] | None = None) -> Iterator[int]:
        """Hold a lock of the store; waits for it.

        Args:
            name: Of the lock.
            shared: Whether others may hold it (shared) too.
            waiting: Told, in words, that another process holds it and so this one waits.

        Yields:
            The file descriptor that holds it, for children that must hold it as long as they write.
        """
        fd = self._lock_fd(name)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None:
                    waiting(f"waiting for `{name}`, which another process holds")
                fcntl.flock(fd, kind)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Hold a lock if nobody else does: yields whether it is held."""
        fd = self._lock_fd(name)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def _lock_fd(self, name: str) -> int:
        if _LOCK_NAME.fullmatch(name) is None:
            raise ValueError(f"not the name of a lock: {name!r}")
        # Who may open it may hold it: nobody who only reads the store.
        mode = 0o660 if self.shared else 0o600
        flags = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self.root / "locks" / name, os.O_RDWR | flags, mode)
        except PermissionError:  # another user's: the umask lets the group read it, and that is enough for flock
            return os.open(self.root / "locks" / name, os.O_RDONLY | flags, mode)

    def temporary(self, lock_name: str) -> Path:
        """A new empty folder in `.tmp/` that belongs to the holder of a lock; leftovers of earlier holders are removed.

        The caller holds the lock.
        """
        parent = self.root / ".tmp"
        for leftover in sorted(parent.glob(f"{lock_name}.*")):
            _remove_leftover(leftover)
        user = f"{os.geteuid()}-" if self.shared else ""
        path = parent / f"{lock_name}.{user}{os.getpid()}"
        path.mkdir(mode=0o755)
        return path

    def sweep(self) -> None:
        """Remove what killed builders left in `.tmp/`: everything whose lock nobody holds."""
        for leftover in sorted((self.root / ".tmp").iterdir()):
            name = leftover.name.split(".", 1)[0]
            if _LOCK_NAME.fullmatch(name) is None or name == "probe":  # nobody's
                with contextlib.suppress(OSError):
                    remove_readonly_tree(leftover)
                continue
            with self.try_lock(name) as held:
                if held:
                    _remove_leftover(leftover)


def believable(stamp_ns: int) -> int:
    """A stamp; 0 if it lies in the future: it was made by a clock that went wrong, and what changes now has an earlier change time."""
    return stamp_ns if stamp_ns <= time.time_ns() + CLOCK_SLACK_NS else 0


def is_shared(folder: Path) -> bool:
    """Whether the group of a folder may make things in it, and new ones get that group."""
    try:
        return folder.stat().st_mode & _SHARED == _SHARED
    except OSError:
        return False


def may_write(folder: Path) -> bool:
    """Whether this process may make things in a folder, with the rights that it has now."""
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def make_folder(path: Path) -> None:
    """Create a folder of the store; one that is there is fine. If a group shares the folder above, it shares this one."""
    path.mkdir(exist_ok=True)
    if is_shared(path.parent) and not is_shared(path) and path.stat().st_uid == os.geteuid():
        path.chmod(0o2775)


def _remove_leftover(path: Path) -> None:
    """Delete what a killed process left; what another user's left is for him, or for root, to delete."""
    with contextlib.suppress(FileNotFoundError):
        if os.geteuid() in {0, path.lstat().st_uid}:
            remove_readonly_tree(path)


def env_record_path(store: Store, env: str, name: str) -> Path:
    """Where the record of an environment lies. The env id does not cover the name: two of different names may have the same."""
    return store.receipts(env) / f"env-{name}.json"


def remove_readonly_tree(root: Path) -> None:
    """Delete a tree whose folders may be read-only, or a single file; what is not there is no error."""
    import shutil  # noqa: PLC0415 - only where something is deleted

    if root.is_symlink() or not root.is_dir():
        root.unlink(missing_ok=True)
        return
    # By descriptor: nobody who shares the store can put a link in the place of a folder meanwhile.
    for _, _, _, fd in os.fwalk(root):
        os.fchmod(fd, 0o700)
    shutil.rmtree(root)


def write_new(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file that is not there yet, through no link. What a killed process left under this name goes.

    Raises:
        OSError: It cannot be written.
    """
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(content)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file, text as UTF-8: temporary name beside it, fsync, rename, fsync of the folder.

    Raises:
        OSError: It cannot be written; what was there before still is.
    """
    remove_dead_temporaries(path.parent)
    temporary = path.with_name(f".envspec-{process_mark()}-{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "wb") as file:
            with contextlib.suppress(OSError):  # a file that is there keeps its permissions
                os.fchmod(fd, path.stat().st_mode & 0o777)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def remove_dead_temporaries(folder: Path) -> None:
    """Remove what killed processes left: files and folders named `.envspec-<process mark>-...`, or `.envspec-<pid>-...`.

    Of a process of another machine, with which the folder is shared, nobody here knows whether it lives: after a day it is taken for dead.
    """
    for leftover in folder.glob(".envspec-*"):
        pid, _, machine = leftover.name.split("-")[1].partition(".")
        if not pid.isdecimal():
            continue
        if machine in ("", _machine_mark()):
            dead = not _is_alive(int(pid))
        else:
            try:
                dead = leftover.lstat().st_mtime < time.time() - FOREIGN_LEFTOVER_S
            except OSError:
                continue
        if dead:
            _remove_leftover(leftover)


def process_mark() -> str:
    """What tells this process from all others that may write into one folder, also from those of other machines: `4711.5f2a90c1e7b3`."""
    return f"{os.getpid()}.{_machine_mark()}"


@lru_cache(maxsize=1)
def _machine_mark() -> str:
    """Of this boot of this machine, and of this namespace of process ids: nodes of a cluster often give one number at one moment."""
    boot, space = os.uname().nodename, ""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123
        boot = file.read(13).decode()
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - what it says is no path
    return re.sub(r"[^0-9A-Za-z]+", "", f"{boot}{space.rpartition(':')[2]}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_filesystem(path: Path) -> None:
    """Make everything written to a path's file system durable: one call instead of an fsync for each of 57,000 files.

    Raises:
        OSError: The data did not reach the disk.
    """
    import ctypes  # noqa: PLC0415 - its import is a tenth of a build of what is there

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(fd)


def rename_new(source: Path, target: Path) -> bool:
    """Rename a folder to a name that is not taken.

    Returns:
        False if the target is there already (another builder was quicker); the source then still exists.
    """
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if it is not there or is no JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
