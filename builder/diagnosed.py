"""A diagnosis of a venv of this machine is remembered in the user's cache, and told again while all that it was made of is the same.

    memory = DiagnosisMemory(os.environ, "/srv/venv", key)
    told = memory.recall()
    memory.keep(told, basis.outside)

What it was made of: the state of the venv and what is around it (`builder.agent.survey_state`), envspec's own code, the options, and what an
index said, which is believed for an hour.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builder
import envspec
from builder.agent.survey_cache import cache_path, read_own, write_own
from builder.agent.survey_state import still_so
from envspec.diagnosis.told import told_from_record, told_to_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.agent.survey_state import Answer
    from envspec.diagnosis.told import Told

INDEX_BELIEVED_S = 3600.0
"""How long the versions of an index are told again without asking it."""


class DiagnosisMemory:
    """What is remembered of one venv."""

    def __init__(self, environ: Mapping[str, str], prefix: str, basis: Mapping[str, Any]) -> None:
        """Where it lies.

        Args:
            environ: Says where caches are.
            prefix: Of the venv.
            basis: All that decides what is told: a JSON value. Another one is another key, and nothing of it is written down.
        """
        self._path = cache_path(environ, prefix, "diagnosed")
        said = json.dumps([basis, code_state()], sort_keys=True)
        self._key = hashlib.sha256(said.encode("ascii")).hexdigest()

    def recall(self, now_s: float) -> Told | None:
        """What was told the last time, if it would be the same now.

        Args:
            now_s: By this machine's clock.
        """
        if self._path is None:
            return None
        try:
            record = read_own(self._path)
            if record["key"] != self._key or not still_so(record["outside"]):
                return None
            asked_s = record["asked_s"]
            if asked_s is not None and not 0 <= now_s - asked_s < INDEX_BELIEVED_S:
                return None
            return told_from_record(record["told"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, zlib.error):
            return None

    def keep(self, told: Told, outside: Mapping[str, Answer], asked_s: float | None) -> None:
        """Remember what is told; if that cannot be written, it is not.

        Args:
            told: Without a run.
            outside: What was seen of paths elsewhere, as `builder.agent.survey_state.Basis` has it.
            asked_s: When an index was asked; None if none was.
        """
        if self._path is not None:
            record = {"key": self._key, "outside": outside, "asked_s": asked_s, "told": told_to_record(told)}
            write_own(self._path, record)


def code_state() -> list[Any]:
    """What envspec's own code is: another rule may judge otherwise. Sizes and times of its modules, and the Python that runs them."""
    requirements = importlib.util.find_spec("packaging")
    known = requirements.origin if requirements is not None else None
    return [sys.version, _stamp(known) if known else None, *sorted(_modules())]


def index_state(environ: Mapping[str, str]) -> list[Any]:
    """What decides which index uv asks: its variables and its files of configuration."""
    homes = [environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config", "/etc"]
    configs = [_stamp(f"{home}/uv/uv.toml") for home in homes]
    return [sorted((name, value) for name, value in environ.items() if name.startswith("UV_")), configs]


def _modules() -> Iterator[list[Any]]:
    for package in (envspec, builder):
        root = Path(package.__file__ or "").parent
        for folder, folders, names in os.walk(root):
            folders[:] = [each for each in folders if each != "__pycache__"]
            for name in names:
                if name.endswith(".py"):
                    yield [os.path.relpath(folder, root), name, *(_stamp(os.path.join(folder, name)) or ())]  # noqa: PTH118 - there are 400


def _stamp(path: str) -> list[int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - there are 400
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
