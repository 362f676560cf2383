"""Takes what did not change from a similar tree: files of a wheel, and the bytecode of its modules, are linked instead of made.

A wheel's RECORD says what every file of it is. Nobody has to believe it: where the manifest that follows from it has the locked digest, it is
right, before a byte is inflated. Then only files that the donor does not have are inflated. A donor's file is proven as everywhere in the store:
by its status if its change time is not later than the object's stamp, by its content otherwise.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.files import hash_file
from envspec.layout import record_content
from envspec.tree import Entry, manifest, manifest_lines, path_of_line, tree_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from builder.agent.archive import Member, WheelArchive
    from builder.agent.store import StoreObject
    from envspec.layout import Layout

RECORD_LIMIT_BYTES = 64 << 20
_MODES = {"mode=0444": 0o444, "mode=0555": 0o555}


@dataclass(frozen=True)
class Donor:
    """A tree, or bytecode, of the same file system that equal files are linked from."""

    folder: Path
    lines: Mapping[str, str]
    """Path -> manifest line of every file."""

    proven_ns: int = 0
    """Change time up to which its inodes are proven; 0 if nothing is known of them: then each is hashed."""

    @classmethod
    def of(cls, giver: StoreObject) -> Donor | None:
        """An object of the store as a donor; None if it is not there or its manifest is none."""
        if not giver.exists:
            return None
        try:
            lines = donor_lines(giver.manifest_path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return cls(giver.path, lines, giver.proven_ns())

    def link(self, path: str, line: str, base: str) -> bool:
        """Link a file into another tree.

        Args:
            path: In both trees.
            line: The manifest's line that it has to have.
            base: Root of the other tree, with a slash at its end.

        Returns:
            False if the donor has no such file, or it is not what it was, or cannot be linked (it lies on another file system, belongs to
            somebody else or has too many links); what else is wrong shows when it is written instead.
        """
        if self.lines.get(path) != line:
            return False
        _, mode, sha256, size, _ = line.split(" ")
        source = f"{os.fspath(self.folder)}/{path}"
        try:
            status = os.lstat(source)
            if status.st_mode != stat.S_IFREG | _MODES[mode] or status.st_size != int(size[5:]):
                return False
            if status.st_ctime_ns > self.proven_ns and hash_file(source) != sha256[7:]:
                return False
            os.link(source, base + path, follow_symlinks=False)
        except OSError:
            return False
        return True

    def predict(
        self,
        archive: WheelArchive,
        regular: Mapping[str, Member],
        layout: Layout,
        measure: Callable[[Member, str], Entry],
        expected: str,
    ) -> dict[str, Entry]:
        """What every file of a wheel's tree is, from its RECORD, if that is so.

        Args:
            archive: The wheel.
            regular: Member's name -> member.
            layout: Where they go.
            measure: Reads a member and gives the entry that it has at a path: for scripts, which are rewritten, and what RECORD leaves out.
            expected: The tree digest.

        Returns:
            Path in the environment -> entry; empty if RECORD does not lead to the expected digest.

        Raises:
            ArchiveDamaged: What is read is not what it says of itself.
        """
        record = regular.get(f"{layout.dist_info}/RECORD") if layout.dist_info else None
        if record is None:
            return {}
        rows = record_rows(archive.read(record, limit=RECORD_LIMIT_BYTES))
        files: list[Entry] = []
        for name, target in layout.targets.items():
            member = regular[name]
            row = rows.get(name)
            if row is None or name in layout.scripts:
                files.append(measure(member, target))
            else:
                files.append(Entry(target, "file", *row, member.executable))
        files += [
            Entry(path, "file", hashlib.sha256(content).hexdigest(), len(content), path.startswith("bin/"))
            for path, content in layout.generated.items()
        ]
        content = record_content(layout.record_path, [(entry.path, entry.sha256, entry.size) for entry in files])
        files.append(Entry(layout.record_path, "file", hashlib.sha256(content).hexdigest(), len(content)))
        return {entry.path: entry for entry in files} if tree_digest(manifest(files)) == expected else {}


def donor_lines(manifest_text: str) -> dict[str, str]:
    """Path -> manifest line of every file of a tree.

    Raises:
        ValueError: It is no manifest.
    """
    return {path_of_line(line): line for line in manifest_lines(manifest_text) if line.endswith(" type=file")}


def record_rows(content: bytes) -> dict[str, tuple[str, int]]:
    """Path -> sha256 (hex) and size of every row of a RECORD that has both; what cannot be read is left out."""
    rows: dict[str, tuple[str, int]] = {}
    try:
        for row in csv.reader(content.decode("utf-8").splitlines()):
            if len(row) == 3 and row[1].startswith("sha256=") and row[2].isdecimal():
                text = row[1][len("sha256=") :]
                digest = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
                rows[row[0]] = (digest.hex(), int(row[2]))
    except (ValueError, csv.Error):
        return {}
    return rows
