"""The committed environment for `benchmarks.engines --whole`: 3.7 GB of wheels, trees of 8.3 GB, four nodes.

`http` and `oci`: each node has a disk and a store of its own. `sbcast`: each node has a disk of its own for the bundle, and two nodes each share
a store, since there is no room for four. All disks compress (benchmarks/node_disks.py).
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.node_disks import node_disks, used_bytes, why_no_disks
from envspec.lock_toml import parse_lock
from tests.support.projects import Project
from tests.support.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "ddtree"
ROOM_BYTES = 44 << 30
"""What must be free before a way begins: none is to fill the disk of others."""


def why_not_whole() -> str:
    """Why the committed environment cannot be built so here; empty if it can."""
    return why_no_disks()


def committed_project(folder: Path, wheelhouse: Path) -> Project:
    """The committed spec, its lock and its patches, and a store that has nothing but links to the wheels.

    Args:
        folder: Where it goes, on the file system of the wheelhouse.
        wheelhouse: Has the wheels, as `<sha256>/<file>`; nothing is written there.
    """
    project = Project(folder, None)
    project.spec_path = project.spec_folder / f"{NAME}.toml"
    project.lock_path = project.spec_folder / f"{NAME}.lock"
    for path in (project.spec_path, project.lock_path):
        shutil.copyfile(REPOSITORY / path.name, path)
    shutil.copytree(REPOSITORY / "overlays", project.spec_folder / "overlays")
    lock = parse_lock(project.lock_text(), input_name=project.lock_path.name)
    wheels = [(package.sha256, package.file) for package in lock.packages]
    wheels += [(overlay.sha256, overlay.file) for overlay in lock.overlays]
    for sha256, file in wheels:
        target = project.store / "wheels" / sha256 / file
        target.parent.mkdir(parents=True)
        target.hardlink_to(wheelhouse / sha256 / file)
    return project


@contextmanager
def whole_way(way: str, work: Path) -> Iterator[tuple[Slurm, Path]]:
    """Four idle nodes with disks for one way, and where each sees its store.

    Args:
        way: `http`, `oci` or `sbcast`.
        work: Where files go.
    """
    free = shutil.disk_usage(work).free
    if free < ROOM_BYTES:
        raise SystemExit(f"{way} needs {ROOM_BYTES >> 30} GiB of disk, {free >> 30} are free")
    cluster = Slurm(4)
    racks = [f"rack{number}" for number in range(2 if way == "sbcast" else 0)]
    folder = work / "disks"
    with node_disks(folder, [*cluster.names, *racks]) as disks:
        rack = cluster.base / "rack"
        rack.mkdir()
        for number, name in enumerate(cluster.names):
            cluster.binds[name] = [(disks[name], cluster.local)]
            if racks:
                cluster.binds[name].append((disks[racks[number // 2]], rack))
        with cluster:
            try:
                yield cluster, (rack if racks else cluster.local) / "store"
            finally:
                print(f"{way}: the disks of the nodes had {used_bytes(folder) / 1e9:.1f} GB in all\n", flush=True)
