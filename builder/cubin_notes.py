"""The CUDA release that made a piece of GPU code, compressed or not; apart from `builder.fatbin`, which an agent on a host has too.

A Python before 3.14 has no Zstandard of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from builder.fatbin import CUBIN_LIMIT_BYTES, LZ4_FLAG, ZSTD_FLAG, release_in

if TYPE_CHECKING:
    from builder.elf_image import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def toolkit_release(payload: Buffer, flags: int = 0) -> str | None:
    """The CUDA release that made a cubin: `12.8.93`, as its note says.

    Args:
        payload: The cubin, as its entry stores it; of one with more than 64 MiB the beginning.
        flags: Of its entry.

    Returns:
        None where there is no note: machine code for GPUs before 10.0 that CUDA 12 made has none, nor does PTX.
    """
    if flags & LZ4_FLAG:
        return None  # only of toolkits whose cubins have no such note
    if flags & ZSTD_FLAG:
        try:
            payload = zstd.ZstdDecompressor().decompress(payload, max_length=CUBIN_LIMIT_BYTES)
        except (zstd.ZstdError, MemoryError):
            return None
    return release_in(payload)
