"""What was measured of a venv the last time, so that only what changed is read again.

A file is the same if its size, mtime, ctime, inode and device are: no process can set a ctime back (ADR 0009). A ctime says so only of what
happened in another tick of the clock than the look itself, so files that changed just before are read again the next time. The cache lies with
the user, never with the venv; what is damaged, or could have been written by others, counts as nothing.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.agent.host import file_system_of
from builder.agent.store import write_atomically
from builder.agent.survey_tree import read_small
from envspec.binaries import BinaryFacts, binary_facts_from_json, binary_facts_to_json
from envspec.facts import INSPECTOR
from envspec.observed import OBSERVER

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_LIMIT_BYTES = 128 << 20
INFLATED_LIMIT_BYTES = 512 << 20
KEPT_BYTES = 256 << 20
"""Of all files of the cache: those that were written last stay. A venv of 8 GB takes 6 MB."""

WORTH_BYTES = 4 << 20
"""A venv with less content is read again sooner than it is remembered."""

LOCAL_FILE_SYSTEMS = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""Whose ctimes are of this machine's clock."""

LOCAL_SLACK_NS = 2 * 10**9
OTHER_SLACK_NS = 120 * 10**9
_MAGIC = b"envspec observed 1\n"
_DIGEST = 64
_STAMP, _SIZE, _CTIME = 5, 0, 2
_HEX = re.compile(r"[0-9a-f]*")


class Known(NamedTuple):
    """What is known of one file."""

    stamp: tuple[int, ...]
    """As `builder.agent.survey_files.stamp_of` makes it."""

    sha256: str
    facts: BinaryFacts | None


def cache_path(environ: Mapping[str, str], prefix: str, kind: str = "observed") -> Path | None:
    """Where what is known of a venv lies; None where there is no place for it.

    Args:
        environ: Says where caches are.
        prefix: Of the venv.
        kind: Of what is known: the name of a folder.
    """
    home = environ.get("HOME", "")
    caches = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    if not caches.startswith("/"):
        return None
    name = hashlib.sha256(prefix.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Path(caches, "envspec", kind, f"{name}.z")


def read_known(path: Path, prefix: str) -> dict[str, Known]:
    """What is known of the files of a venv, by their paths; nothing if it cannot be believed.

    Args:
        path: As `cache_path` says.
        prefix: Of the venv.
    """
    try:
        record = read_own(path)
        if record["version"] != _version(prefix):
            return {}
        return _known(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, zlib.error):
        return {}


def read_own(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """What `write_own` wrote, if nobody else could have changed it.

    Raises:
        OSError, ValueError, RecursionError, zlib.error: It is not there, is damaged, or could be written by others.
    """
    for place in (path.parent, path):
        status = os.lstat(place)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022 or stat.S_ISLNK(status.st_mode):
            raise ValueError("others could have written it")
    raw = read_small(os.fspath(path), FILE_LIMIT_BYTES) or b""
    head, payload = raw[: len(_MAGIC) + _DIGEST + 1], raw[len(_MAGIC) + _DIGEST + 1 :]
    if head != _MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n":
        raise ValueError("it is damaged")
    inflater = zlib.decompressobj()
    content = inflater.decompress(payload, INFLATED_LIMIT_BYTES)
    if not inflater.eof:
        raise ValueError("it is cut off, or too large")
    return json.loads(content)


def write_own(path: Path, record: Any) -> None:  # noqa: ANN401 - any JSON value
    """Keep a JSON value for `read_own`; if it cannot be written, or is too large, it is not.

    Args:
        path: Its folder is made, for this user alone, and files there that were not written for the longest time go if all take too much.
        record: The value.
    """
    payload = zlib.compress(json.dumps(record, separators=(",", ":")).encode("ascii"), 1)
    if len(payload) > FILE_LIMIT_BYTES // 2:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, _MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
        _forget_others(path.parent)


def settled_before_ns(prefix: str, begun_ns: int) -> int:
    """The ctime before which a file has to have changed last, so that its stamp tells of any change after a look.

    Args:
        prefix: Of the venv.
        begun_ns: When the look began, by this machine's clock.
    """
    local = file_system_of(Path(prefix)) in LOCAL_FILE_SYSTEMS
    return begun_ns - (LOCAL_SLACK_NS if local else OTHER_SLACK_NS)


def _known(record: dict[str, Any]) -> dict[str, Known]:
    paths, stamps, digests, which = record["paths"], record["stamps"], record["digests"], record["which"]
    # Raw cubins are many, and most of them are alike.
    several = [None, *map(binary_facts_from_json, record["facts"])]
    if len(stamps) != _STAMP * len(paths) or len(digests) != _DIGEST * len(paths) or not _HEX.fullmatch(digests):
        raise ValueError("its columns do not fit")
    rows = zip(*(iter(stamps),) * _STAMP, strict=True)
    return {
        path: Known(stamp, digests[at : at + _DIGEST], several[which.get(path, 0)])
        for path, stamp, at in zip(paths, rows, range(0, len(digests), _DIGEST), strict=True)
    }


def write_known(path: Path, prefix: str, known: Mapping[str, Known], begun_ns: int) -> None:
    """Remember what is known, for the next time; if that cannot be written, it is not.

    Args:
        path: As `cache_path` says.
        prefix: Of the venv.
        known: Files by their paths.
        begun_ns: When the look at them began, by this machine's clock: what changed just before is left out.
    """
    limit = settled_before_ns(prefix, begun_ns)
    if sum(each.stamp[_SIZE] for each in known.values() if each.stamp) < WORTH_BYTES:
        return
    rows = {name: each for name, each in known.items() if each.stamp and each.stamp[_CTIME] < limit}
    facts: dict[BinaryFacts, int] = {}
    which = {
        name: facts.setdefault(each.facts, len(facts) + 1) for name, each in rows.items() if each.facts is not None
    }
    record = {
        "version": _version(prefix),
        "paths": list(rows),
        "stamps": [number for each in rows.values() for number in each.stamp],
        "digests": "".join(each.sha256 for each in rows.values()),
        "facts": list(map(binary_facts_to_json, facts)),
        "which": which,
    }
    write_own(path, record)


def _forget_others(folder: Path) -> None:
    found = [(status.st_mtime_ns, status.st_size, entry) for entry in folder.glob("*.z") for status in [entry.lstat()]]
    total = 0
    for _, size, entry in sorted(found, reverse=True):
        total += size
        if total > KEPT_BYTES:
            entry.unlink(missing_ok=True)


def _version(prefix: str) -> list[Any]:
    return [OBSERVER, INSPECTOR, prefix]
