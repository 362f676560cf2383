"""What a lock needs of its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.drivers import least_driver_of_major

if TYPE_CHECKING:
    from envspec.lock import Lock


def least_driver(lock: Lock) -> str:
    """The least NVIDIA driver of a lock: as its binaries need it, else as its toolkit does; empty if it needs none."""
    if lock.needs.driver:
        return lock.needs.driver
    return least_driver_of_major(int(lock.cuda_toolkit.partition(".")[0])) if lock.cuda_toolkit else ""


def host_libraries(lock: Lock) -> tuple[str, ...]:
    """What a host must offer beyond manylinux: as declared, and as the binaries need it; sorted."""
    return tuple(sorted({*lock.libraries, *lock.needs.libraries}))
