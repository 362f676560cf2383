"""What lies where in an observed venv: one file a path, whichever RECORD names it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envspec.observed import Observation, ObservedFile


class Disk:
    """The files of an observation by path.

    Example:
        disk = Disk(observation)
        disk.files["lib/python3.12/site-packages/six.py"].sha256
    """

    def __init__(self, observation: Observation) -> None:
        """Gather the files of all distributions and the strays."""
        self.site = f"{observation.site_packages()}/"
        self.files: dict[str, ObservedFile] = {}
        """Path -> the file, as one of the RECORDs that name it has it, or as a stray."""

        self._recorded: dict[str, set[str]] = defaultdict(set)
        self._rows: set[tuple[str, str, str]] = set()
        """Metadata folder, path and digest of scripts."""

        self.owners: dict[str, list[str]] = defaultdict(list)
        """Path -> metadata folders of the distributions whose RECORD names it."""

        for distribution in observation.distributions:
            for file in distribution.files:
                self._add(file)
                self.owners[file.path].append(distribution.folder)
                if file.path.startswith("bin/") and file.recorded:
                    self._rows.add((distribution.folder, file.path, file.recorded))
        self.strays: frozenset[str] = frozenset(file.path for file in observation.strays)
        for file in observation.strays:
            self._add(file)

    def _add(self, file: ObservedFile) -> None:
        self.files.setdefault(file.path, file)
        if file.recorded:
            self._recorded[file.path].add(file.recorded)

    def digest(self, path: str) -> str:
        """The sha256 of an ordinary file; empty if there is none that could be read."""
        file = self.files.get(path)
        return file.sha256 if file is not None and file.kind == "file" else ""

    def is_there(self, path: str) -> bool:
        """Whether anything lies at a path."""
        file = self.files.get(path)
        return file is not None and file.kind != "missing"

    def is_as_recorded(self, path: str) -> bool:
        """Whether some RECORD has the digest that the file has: its installer wrote it so."""
        return self.digest(path) in self._recorded.get(path, ())

    def is_recorded_by(self, path: str, folder: str) -> bool:
        """Whether the RECORD of one distribution has the digest that a script has.

        Args:
            path: Of the script.
            folder: Of the distribution's metadata.
        """
        return (folder, path, self.digest(path)) in self._rows

    def within_site(self, path: str) -> str:
        """A path relative to site-packages; empty if it lies elsewhere."""
        return path.removeprefix(self.site) if path.startswith(self.site) else ""
