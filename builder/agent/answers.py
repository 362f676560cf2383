"""What programs said of this machine, remembered by a store for as long as all files that it follows from stay as they were.

An answer is kept with a stamp of each of those files: device, inode, size and change time, which no process can set back. The two folders above
each file have stamps too, since a file that appears there may be taken instead. One stamp that differs, and the program is asked again, so what
is recalled is what it would say now. Only what this user wrote is recalled, and nobody else could have changed.

    answers = Answers(folder=store.facts, environ=os.environ)
    answers.recall("/usr/bin/python3.12", question) -> what was kept, or None: ask
    answers.keep("/usr/bin/python3.12", question, answer, files=everything that the answer follows from, asked_ns=...)

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass

from builder.agent.store import CLOCK_SLACK_NS, process_mark, write_new

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any

SIZE_LIMIT_BYTES = 1 << 20
FILES_LIMIT = 1000

_LOADER_FILES = ("/etc/ld.so.cache", "/etc/ld.so.preload")
"""What the dynamic linker reads before any program; either may be absent."""

_NO_STAMP: list[int] = []

Stamp = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers that a store remembers."""

    folder: Path
    """Where they lie. Nothing is remembered where it is not there or cannot be written."""

    environ: Mapping[str, str]
    """What programs are started with: what steers the dynamic linker is part of every question."""

    def recall(self, program: str, question: str) -> Any | None:  # noqa: ANN401 - any JSON value
        """What a program would say, without asking it.

        Args:
            program: Its path.
            question: What it would be asked.

        Returns:
            Its answer; None if it has to be asked.
        """
        try:
            fd = os.open(self._place(program, question), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(fd)
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    return None
                kept = json.loads(file.read(SIZE_LIMIT_BYTES))
            usable = program.startswith("/") and os.access(program, os.X_OK)
            if kept["asked"] != self._asked(program, question) or not usable:
                return None
            stamps: dict[str, Stamp] = kept["stamps"]
            return kept["answer"] if all(_stamp(path) == stamp for path, stamp in stamps.items()) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, program: str, question: str, answer: object, *, files: Iterable[str], asked_ns: int) -> None:
        """Remember an answer, if it will be known when it has to be asked for again.

        A file that changed just before or while it was asked may change once more and keep its stamp, as change times have ticks: then
        nothing is kept.

        Args:
            program: Its path.
            question: What it was asked.
            answer: What it said, as JSON.
            files: Absolute paths of everything that the answer follows from, the program among them.
            asked_ns: When it was asked, or before that: nanoseconds since 1970.
        """
        paths = sorted(set(files))
        absolute = all(path.startswith("/") for path in (program, *paths))
        if len(paths) > FILES_LIMIT or not absolute or not self.folder.is_dir():
            return
        folders = {os.path.dirname(path) for path in paths}  # noqa: PTH120 - text
        folders |= {os.path.dirname(path) for path in folders}  # noqa: PTH120 - text
        stamps = {path: _stamp(path) for path in (*paths, *sorted(folders), *_LOADER_FILES)}
        for path, stamp in stamps.items():
            if stamp == _NO_STAMP and path not in _LOADER_FILES:
                return
            if stamp != _NO_STAMP and stamp[-1] > asked_ns - CLOCK_SLACK_NS:
                return
        kept = {"asked": self._asked(program, question), "answer": answer, "stamps": stamps}
        place = self._place(program, question)
        temporary = place.with_name(f".envspec-{process_mark()}-{place.name}")
        with contextlib.suppress(OSError):
            # Not flushed to the disk: what a power cut spoils is no JSON, and is asked for again.
            write_new(temporary, json.dumps(kept, separators=(",", ":")).encode("ascii") + b"\n")
            temporary.replace(place)

    def _place(self, program: str, question: str) -> Path:
        name = (
            f"answer-{os.geteuid()}-{_digest(program, question)[:20]}.json"  # each user of a shared store has own ones
        )
        return self.folder / name

    def _asked(self, program: str, question: str) -> dict[str, Any]:
        steering = {
            name: value for name, value in self.environ.items() if name.startswith("LD_") or name == "GLIBC_TUNABLES"
        }
        return {"asked": _digest(program, question), "environ": steering, "machine": os.uname().machine}


def _digest(program: str, question: str) -> str:
    return hashlib.sha256(f"{program}\0{question}".encode("utf-8", "surrogatepass")).hexdigest()


def _stamp(path: str) -> Stamp:
    """What changes with a file, or a folder's list of names; empty if it is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116 - text
    except (OSError, ValueError):
        return _NO_STAMP
    return [status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns]
