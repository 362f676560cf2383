"""What an observation of a venv is made of, told before anything of it is read: as long as that is the same, so is the observation.

A file is the same if its stamp is (`builder.agent.survey_cache` says when that can be believed). Beside the venv an observation is made of what
a process in it would inherit, and of a few paths elsewhere that a RECORD or a link names.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.agent.survey_cache import settled_before_ns
from builder.agent.survey_files import stamp_of
from envspec.facts import INSPECTOR
from envspec.observed import OBSERVER
from envspec.tree import is_host_path

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.agent.survey_cache import Known
    from builder.agent.survey_python import Place
    from builder.agent.survey_tree import Tree
    from envspec.observed import ObservedPython, PathEntry

_SURROGATES = "surrogateescape"
Answer = list[int] | bool | None


class Around(NamedTuple):
    """What a process in a venv would get that does not lie in it. The fields are those of an `Observation`."""

    python: ObservedPython
    path: tuple[PathEntry, ...]
    environ: dict[str, str]
    libraries: dict[str, str]
    host: dict[str, Any]
    locked: dict[str, str]
    notes: tuple[str, ...]
    """What could not be found out."""


class Basis(NamedTuple):
    """What an observation was made of."""

    state: str
    """As `state_of` tells it."""

    outside: dict[str, Answer]
    """Path elsewhere -> what was seen there: see `Outside`."""


class Outside:
    """Looks at paths that do not lie in the venv, and keeps what it saw."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}

    def status(self, path: str) -> os.stat_result | None:
        """Of the path itself; None if there is nothing."""
        status = _status(path)
        self.answers[path] = _answer(status)
        return status

    def leads_somewhere(self, link: str) -> bool:
        """Whether a link leads to something."""
        found = os.path.exists(link)
        self.answers[link] = found
        return found


def still_so(answers: Mapping[str, Answer]) -> bool:
    """Whether paths outside of a venv are as they were.

    Args:
        answers: As `Outside` keeps them.
    """
    return all(
        (os.path.exists(path) if isinstance(answer, bool) else _answer(_status(path))) == answer
        for path, answer in answers.items()
    )


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (OSError, ValueError):
        return None


def _answer(status: os.stat_result | None) -> list[int] | None:
    return None if status is None else [status.st_mode, *stamp_of(status)]


def state_of(place: Place, tree: Tree, around: Around) -> str:
    """The sha256 of all that an observation will be made of, but for what `Outside` keeps; empty where that cannot be told.

    Args:
        place: Of the venv. Of what is none, files outside of it are looked at too.
        tree: Walked.
        around: What lies elsewhere.
    """
    if not place.is_venv:
        return ""
    # Names as they were listed: another order of the same names is another state, and costs one look.
    stamps = array("q")
    for status in tree.files.values():
        stamps.extend(stamp_of(status))
    rest = {
        "version": [OBSERVER, INSPECTOR],
        "user": os.geteuid(),
        "place": list(place),
        "around": [asdict(around.python), list(map(asdict, around.path)), *around[2:]],
        "links": tree.links,
        "others": tree.others,
        "unread": sorted(tree.unread),
    }
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii"))
    for names in (tree.files, sorted(tree.folders)):
        text = "\0".join(names).encode("utf-8", _SURROGATES)
        digest.update(b"%d\n" % len(text))
        digest.update(text)
    digest.update(stamps.tobytes())
    return digest.hexdigest()


def is_settled(tree: Tree, known: Mapping[str, Known], recorded: Collection[str], begun_ns: int) -> bool:
    """Whether all that was read of a venv is what its stamps stand for, so that the same stamps will stand for it again.

    Args:
        tree: Of the venv.
        known: Its files that were read, or are known from an earlier look.
        recorded: Paths that a RECORD names.
        begun_ns: When the look began.
    """
    limit = settled_before_ns(tree.root, begun_ns)
    for path, status in tree.files.items():
        if status.st_ctime_ns >= limit:
            return False
        found = known.get(path)
        if found is None:
            if path in recorded or not is_host_path(path):
                return False
        elif found.stamp != stamp_of(status):
            return False
    return True
