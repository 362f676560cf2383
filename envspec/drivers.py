"""NVIDIA's drivers: which one CUDA asks for, and whether a host has it.

Two tables, both of Linux, from what NVIDIA states (read 2026-11-30):

- A program runs with any driver of its CUDA major or a later one ("minor-version compatibility"):
  https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1.
- What a CUDA release added to the driver's library, and the PTX that it writes, needs the driver that came with that release:
  https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html, "CUDA Toolkit and Corresponding Driver Versions"; of the releases after
  13.1 only the branch is kept here.

Not counted: the packages for forward compatibility (`cuda-compat`), which let an older driver of a data centre's GPU run a newer CUDA. A host
that has one states the driver that it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.spec import HostSpec

LEAST_OF_MAJOR = {11: "450", 12: "525", 13: "580"}
"""CUDA major -> the least driver that its programs run with."""

LEAST_OF_MAJOR_SOURCE = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"

SHIPPED_WITH = {
    (11, 0): "450.51.05",
    (11, 1): "455.23",
    (11, 2): "460.27.03",
    (11, 3): "465.19.01",
    (11, 4): "470.42.01",
    (11, 5): "495.29.05",
    (11, 6): "510.39.01",
    (11, 7): "515.43.04",
    (11, 8): "520.61.05",
    (12, 0): "525.60.13",
    (12, 1): "530.30.02",
    (12, 2): "535.54.03",
    (12, 3): "545.23.06",
    (12, 4): "550.54.14",
    (12, 5): "555.42.02",
    (12, 6): "560.28.03",
    (12, 8): "570.26",
    (12, 9): "575.51.03",
    (13, 0): "580.65.06",
    (13, 1): "590.44.01",
    (13, 2): "595",
    (13, 3): "610",
    (13, 4): "615",
}
"""CUDA release -> the driver that came with it."""

SHIPPED_WITH_SOURCE = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html"


def least_driver_of_major(major: int) -> str:
    """The least driver that programs of a CUDA major run with; empty for a major older than the table.

    A major that is newer than the table needs at least the driver of the newest one in it.
    """
    known = [each for each in LEAST_OF_MAJOR if each <= major]
    return LEAST_OF_MAJOR[max(known)] if known else ""


def driver_of_release(major: int, minor: int) -> str:
    """The driver that has all of a CUDA release; empty for a release older than the table.

    For a release that the table does not have it is the one of the release before: less than that cannot do.
    """
    known = [each for each in SHIPPED_WITH if each <= (major, minor)]
    return SHIPPED_WITH[max(known)] if known else ""


def is_older(driver: str, least: str) -> bool:
    """Whether a driver is older than another one.

    Only the parts that both have are compared: who states `580` states a branch, and none of its drivers is known to be too old.

    Args:
        driver: Such as `570.86.10`.
        least: Such as `580` or `580.65.06`; empty if any will do.
    """
    if not driver or not least:
        return False
    has, needs = _parts(driver), _parts(least)
    shared = min(len(has), len(needs))
    return has[:shared] < needs[:shared]


def newest(drivers: Iterable[str]) -> str:
    """The newest of some drivers, empty ones left out; of two that agree in the parts that both have, the one with more parts."""
    return max((each for each in drivers if each), key=_parts, default="")


def hosts_below(hosts: Iterable[HostSpec], least: str) -> tuple[HostSpec, ...]:
    """The hosts that state a driver which is older than this.

    Args:
        hosts: Of the spec.
        least: Such as `580`; empty if any will do.
    """
    return tuple(host for host in hosts if is_older(host.driver, least))


def _parts(driver: str) -> tuple[int, ...]:
    return tuple(int(part) for part in driver.split("."))
