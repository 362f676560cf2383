"""The content of the files of a venv, and each path as it is and as its RECORD says.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.agent.survey_cache import Known
from builder.agent.survey_files import LARGEST_FILE_BYTES, MOST_BYTES, look_at_files, stamp_of, with_releases
from builder.agent.survey_state import Outside
from builder.binary_facts import merged_facts
from envspec.binaries import BinaryFacts, binary_facts_from_json
from envspec.observed import ObservedFile
from envspec.tree import is_host_path

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping

    from builder.agent.survey_files import Look
    from builder.agent.survey_python import Place
    from builder.agent.survey_tree import Notes, Tree
    from builder.binary_facts import ReleaseOf
    from builder.progress import Reporter

MOST_OUTSIDE = 1000
"""Paths out of the venv that are looked at, if RECORDs name them."""


class Reading:
    """The content of the files."""

    def __init__(
        self, place: Place, tree: Tree, recorded: Collection[str], notes: Notes, release_of: ReleaseOf | None
    ) -> None:
        """Begin.

        Args:
            place: Of the venv.
            tree: Its files.
            recorded: Paths that a RECORD names: these are read whatever they are.
            notes: Gets what could not be read.
            release_of: As in `builder.agent.survey.look_at_venv`.
        """
        self._sites = place.sites
        self._tree = tree
        self._recorded = recorded
        self._notes = notes
        self._release_of = release_of
        self.known: dict[str, Known] = {}
        """What was read well, by path."""

        self.packed: dict[str, list[list[Any]]] = {}
        self.bytes_read = 0
        self.outside = Outside()
        self._absolute = 0

    def read(self, reporter: Reporter, before: Mapping[str, Known]) -> bool:
        """Read what is not known from before.

        Returns:
            Whether there was anything to read.
        """
        wanted: list[tuple[str, int]] = []
        total = 0
        for path, status in self._tree.files.items():
            known = before.get(path)
            if known is not None and known.stamp == stamp_of(status):
                self.known[path] = known
                continue
            if path not in self._recorded and is_host_path(path):
                continue
            if status.st_size > LARGEST_FILE_BYTES or total + status.st_size > MOST_BYTES:
                self._notes.add(f"`{path}` has {status.st_size} bytes and was not read")
                continue
            total += status.st_size
            wanted.append((path, status.st_size))
        self.bytes_read = total
        with reporter.stage("reading", total=total, unit="bytes") as advance:
            for path, look in look_at_files(
                self._tree.root, self._sites, wanted, store_root=Path(self._tree.root), advance=advance
            ):
                self._take(path, look)
        return bool(wanted)

    def _take(self, path: str, look: Look) -> None:
        if look.problem:
            self._notes.add(f"`{path}`: {look.problem}")
        elif look.stamp and look.stamp[:2] != stamp_of(self._tree.files[path])[:2]:
            self._notes.add(f"`{path}`: changed while the venv was looked at")
        if look.packed and look.facts is not None:
            if self._release_of is not None:
                with_releases(look.facts, {path: look.packed}, self._release_of)
            else:
                self.packed[path] = look.packed
        facts = None if look.facts is None else binary_facts_from_json(look.facts)
        if look.sha256:
            self.known[path] = Known(look.stamp, look.sha256, facts)

    def sha256(self, path: str) -> str:
        """Of a file; empty if it was not read."""
        known = self.known.get(path)
        return "" if known is None else known.sha256

    def file(self, path: str, recorded: str, recorded_size: int) -> ObservedFile:
        """A path as it is and as RECORD says."""
        real, target = path, ""
        status = self._tree.files.get(path)
        if status is None:
            if path in self._tree.links:
                target = self._tree.links[path]
                # A link to nowhere is no file: whatever should lie there is missing.
                kind = "link" if self.outside.leads_somewhere(f"{self._tree.root}/{path}") else "missing"
                return _without_content(path, kind, recorded, recorded_size, target)
            if path in self._tree.others:
                kind = "unreadable" if self._tree.others[path] == "unreadable" else "other"
                return _without_content(path, kind, recorded, recorded_size)
            if path in self._tree.folders:
                return _without_content(path, "other", recorded, recorded_size)
            if path.startswith("/"):
                self._absolute += 1
                if self._absolute > MOST_OUTSIDE:
                    return _without_content(path, "unreadable", recorded, recorded_size)
                return _outside(path, self.outside.status(path), recorded, recorded_size)
            real = self._tree.resolve(path)
            status = self._tree.files.get(real)
            if status is None:
                return _without_content(path, self._why_absent(path, real), recorded, recorded_size)
        known = self.known.get(real)
        return ObservedFile(
            path,
            "file" if known is not None else "unreadable",
            known.stamp[0] if known is not None and known.stamp else status.st_size,
            "" if known is None else known.sha256,
            bool(status.st_mode & 0o111),
            recorded,
            recorded_size,
            status.st_mtime_ns,
            status.st_nlink,
        )

    def _why_absent(self, path: str, real: str) -> str:
        above = path
        while above:
            above = above.rpartition("/")[0]
            if above in self._tree.links and not real:
                self._notes.add(
                    f"`{above}` is a link to `{self._tree.links[above]}`: what lies behind it was not looked at"
                )
                return "unreadable"
            if above in self._tree.unread:
                return "unreadable"
        return "unreadable" if self._tree.is_cut_off else "missing"

    def facts_of(self, paths: Iterable[str]) -> BinaryFacts:
        """The facts of the binaries among files."""
        looks = (self.known.get(path) for path in paths)
        found = [known.facts for known in looks if known is not None and known.facts is not None]
        return merged_facts(found) if found else BinaryFacts()


def _without_content(path: str, kind: str, recorded: str, recorded_size: int, target: str = "") -> ObservedFile:
    return ObservedFile(
        path,
        kind,
        size=-1,
        sha256="",
        executable=False,
        recorded=recorded,
        recorded_size=recorded_size,
        target=target,
    )


def _outside(path: str, status: os.stat_result | None, recorded: str, recorded_size: int) -> ObservedFile:
    """A path that RECORD names out of the venv: it is looked at, and not read."""
    if status is None:
        return _without_content(path, "missing", recorded, recorded_size)
    kind = {0o100000: "file", 0o120000: "link"}.get(status.st_mode & 0o170000, "other")
    return ObservedFile(
        path,
        kind,
        status.st_size,
        sha256="",
        executable=bool(status.st_mode & 0o111),
        recorded=recorded,
        recorded_size=recorded_size,
        mtime_ns=status.st_mtime_ns,
    )
