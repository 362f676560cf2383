"""An observation on its way from a host: lines of JSON, one a distribution, deflated; written and read piece by piece, since it is large.

    {"packed": {path: [[flags, base 64], ...]}}
    {"observer": 1, "prefix": ..., "distributions": <how many>, ...}
    {"name": "torch", ...}                       one for each distribution

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from envspec.observed import observation_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.agent.survey import Survey

DEFLATED_LIMIT_BYTES = 128 << 20
INFLATED_LIMIT_BYTES = 512 << 20
"""Of what a host may send; a full environment has 25 MB, inflated to 100 MB."""

LINE_LIMIT_BYTES = 128 << 20
_LEVEL = 3
_PIECE_BYTES = 1 << 20


def deflated(survey: Survey) -> list[bytes]:
    """An observation as it goes over the wire, in pieces."""
    deflater = zlib.compressobj(_LEVEL)
    pieces = []
    for line in _lines(survey):
        piece = deflater.compress(line)
        if piece:
            pieces.append(piece)
    return [*pieces, deflater.flush()]


def _lines(survey: Survey) -> Iterator[bytes]:
    record = observation_to_json(survey.observation)
    distributions = record["distributions"]
    record["distributions"] = len(distributions)
    yield _line({"packed": survey.packed})
    yield _line(record)
    for distribution in distributions:
        yield _line(distribution)


def _line(record: dict[str, Any]) -> bytes:
    # ASCII: a name that is no UTF-8 travels as the surrogates that Python has for it.
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"


def inflated(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The records of the lines, as they arrive.

    Raises:
        ValueError: They are none, or too much.
    """
    inflater = zlib.decompressobj()
    buffer = bytearray()
    total = 0
    for chunk in chunks:
        rest = chunk
        while rest:
            try:
                piece = inflater.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise ValueError(f"it cannot be inflated: {error}") from error
            rest = inflater.unconsumed_tail
            if inflater.unused_data:
                raise ValueError("it goes on after its end")
            total += len(piece)
            if total > INFLATED_LIMIT_BYTES:
                raise ValueError(f"it comes to more than {INFLATED_LIMIT_BYTES} bytes")
            searched = len(buffer)
            buffer += piece
            while (end := buffer.find(b"\n", searched)) >= 0:
                yield _record(bytes(buffer[:end]))
                del buffer[: end + 1]
                searched = 0
            if len(buffer) > LINE_LIMIT_BYTES:
                raise ValueError(f"a line of more than {LINE_LIMIT_BYTES} bytes")
    if buffer or not inflater.eof:
        raise ValueError("it is cut off")


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError("JSON of too many levels") from error
    if not isinstance(record, dict):
        raise ValueError("a line that is no object")  # noqa: TRY004 - it is the input that is wrong
    return record
