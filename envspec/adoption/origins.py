"""From which published wheel are these bytes? Over all wheels that were looked at, whatever package and path they have them at."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from envspec.adoption.versions import ordered_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envspec.adoption.values import PublishedFile, PublishedWheel

TELLING_BYTES = 512
"""From this size on, equal bytes say where a file is from, whatever its name; smaller files may be alike by chance."""

_EMPTY = hashlib.sha256(b"").hexdigest()


class Origins:
    """The files of many wheels by their digest.

    Example:
        found = Origins(wheels).find(sha256, "lib/python3.12/site-packages/torchvision/_C.so", "torchvision")
    """

    def __init__(self, wheels: Iterable[PublishedWheel], pinned: Mapping[str, str] | None = None) -> None:
        """Index the wheels; one that comes twice counts once.

        Args:
            wheels: All that were looked into.
            pinned: Name -> version: of several versions with the same bytes the nearest is named.
        """
        self._rows: dict[str, list[tuple[PublishedWheel, PublishedFile]]] = defaultdict(list)
        by_name: dict[str, set[str]] = defaultdict(set)
        seen: set[str] = set()
        for wheel in wheels:
            if wheel.sha256 in seen:
                continue
            seen.add(wheel.sha256)
            by_name[wheel.name].add(wheel.version)
            for file in wheel.files:
                if file.sha256 != _EMPTY:
                    self._rows[file.sha256].append((wheel, file))
        self._votes: Counter[tuple[str, str]] = Counter()
        self._distance = {
            (name, version): abs(
                place - ordered.index(pinned[name]) if pinned and pinned.get(name) in ordered else -place
            )
            for name, versions in by_name.items()
            for ordered in (ordered_versions(versions),)
            for place, version in enumerate(ordered)
        }

    def weigh(self, lost: Iterable[tuple[str, str, str]]) -> None:
        """Learn which wheels explain most of what is lost of a package: of several with the same bytes that one is named.

        Args:
            lost: sha256, path and package of each file.
        """
        self._votes = Counter(
            (package, wheel.sha256)
            for sha256, path, package in lost
            for wheel, row in self._rows.get(sha256, ())
            if wheel.name == package and row.path == path
        )

    def find(self, sha256: str, path: str, package: str) -> tuple[PublishedWheel, PublishedFile] | None:
        """The wheel that bytes come from most likely; None if no wheel has them.

        Args:
            sha256: Of the bytes.
            path: Where they lie in the venv.
            package: That the path belongs to; empty if to none.
        """
        name = path.rpartition("/")[2]
        rows = self._rows.get(sha256, ())
        return min(
            (
                row
                for row in rows
                if row[0].name == package
                # Metadata of other packages is alike because tools wrote it, or a licence.
                or (
                    not row[1].path.startswith(f"{row[0].dist_info}/")
                    and (row[1].size >= TELLING_BYTES or row[1].path.endswith(f"/{name}"))
                )
            ),
            key=lambda row: (
                row[0].name != package,
                row[1].path != path,
                row[1].path.rpartition("/")[2] != name,
                row[0].name,
                -self._votes[package, row[0].sha256],
                self._distance[row[0].name, row[0].version],
                row[0].file,
                row[1].path,
            ),
            default=None,
        )
