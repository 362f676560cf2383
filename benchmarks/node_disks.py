"""Disks of nodes for a benchmark: files with a compressing btrfs on them, so that four stores of 12 GB fit where 12 GB each would not.

Needs root, btrfs-progs, and a kernel that has btrfs: `why_no_disks()` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DISK_BYTES = 20 << 30
"""How large a disk may become; its file has only what was written."""

_OPTIONS = "loop,noatime,compress-force=zstd:1"


def why_no_disks() -> str:
    """Why there can be no such disks here; empty if there can."""
    if os.geteuid() != 0:
        return "disks of nodes need root, to be mounted"
    if shutil.which("mkfs.btrfs") is None:
        return "disks of nodes need mkfs.btrfs: install btrfs-progs"
    if "btrfs" not in Path("/proc/filesystems").read_text(encoding="ascii").split():
        return "this kernel has no btrfs"
    return ""


@contextmanager
def node_disks(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Empty disks, mounted; gone afterwards.

    Args:
        folder: Where their files go; made and deleted.
        names: Of the disks.

    Yields:
        Name -> where it is mounted.
    """
    places = {name: folder / name for name in names}
    mounted: list[Path] = []
    folder.mkdir()
    try:
        for name, place in places.items():
            image = folder / f"{name}.btrfs"
            place.mkdir()
            with image.open("xb") as file:
                file.truncate(DISK_BYTES)
            _run("mkfs.btrfs", "--quiet", "--metadata", "single", image)
            _run("mount", "-o", _OPTIONS, image, place)
            mounted.append(place)
        yield places
    finally:
        for place in mounted:
            _run("umount", place)
        shutil.rmtree(folder)


def used_bytes(folder: Path) -> int:
    """What the files of the disks take."""
    return sum(image.stat().st_blocks * 512 for image in folder.glob("*.btrfs"))


def _run(*argv: str | Path) -> None:
    subprocess.run(["/usr/bin/env", *map(str, argv)], check=True, capture_output=True, encoding="utf-8")
