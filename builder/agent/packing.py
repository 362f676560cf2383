"""What is large and says little, made small for the wire: an order of 179 wheels is 60 kB of names and digests, and is needed twice.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

LIMIT_BYTES = 64 << 20
"""How much a packed value may come to."""


def pack(values: dict[str, Any]) -> str:
    """A JSON object as a short text."""
    return base64.b85encode(zlib.compress(json.dumps(values, sort_keys=True).encode(), 9)).decode("ascii")


def unpack(packed: str) -> dict[str, Any]:
    """The inverse of `pack`.

    Raises:
        ValueError: It is none, or comes to more than `LIMIT_BYTES`.
    """
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(base64.b85decode(packed), LIMIT_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated: {error}") from error
    if not inflater.eof:
        raise ValueError(f"it is cut off, or comes to more than {LIMIT_BYTES} bytes")
    values = json.loads(content)
    if not isinstance(values, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - whatever is wrong with it, it is no packed value
    return values
