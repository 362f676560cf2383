"""Values -> bytes -> digest, in one way for ever.

The encoding of a record is

    envspec NUL <label> NUL <field> <field> ...
    field = <name length in decimal> ":" <name> <value length in decimal> ":" <value>

with names and values in UTF-8. Lengths come first, so no value can be mistaken for a separator, and the label says which kind of record it
is, so that no record of one kind has the digest of another. A field that is absent is not encoded at all: adding an optional field later
moves no digest of a record that does not have it. `docs/lock-format.md` publishes test vectors, which the tests recompute with a second
implementation.

The order of fields is the caller's and part of the value: what is a set is to be sorted before.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

ENV_ID_BITS = 160  # as Nix's store paths; 32 characters of base32, short enough for a path, far beyond any collision


def encode_record(label: str, fields: Iterable[tuple[str, str]]) -> bytes:
    r"""The bytes of a record, as the module's docstring defines them.

    Args:
        label: The kind of record with its recipe version, such as `env 1`.
        fields: Pairs of name and value in the order that counts.

    Example:
        >>> encode_record("env 1", [("python", "3.12")])
        b'envspec\\x00env 1\\x006:python4:3.12'
    """
    parts = [b"envspec\0", label.encode(), b"\0"]
    for name, value in fields:
        for text in (name, value):
            raw = text.encode()
            parts.append(b"%d:%s" % (len(raw), raw))
    return b"".join(parts)


def record_sha256(label: str, fields: Iterable[tuple[str, str]]) -> str:
    """The sha256 of a record in 64 lower-case hex digits."""
    return hashlib.sha256(encode_record(label, fields)).hexdigest()


def short_id(sha256_hex: str) -> str:
    """The first 160 bits of a sha256 as 32 characters of lower-case base32 (RFC 4648), as store paths carry it.

    Example:
        >>> short_id(record_sha256("env 1", []))
        '72ii2e2ohbezbobjqwmzp5icvucvsnix'
    """
    return base64.b32encode(bytes.fromhex(sha256_hex)[: ENV_ID_BITS // 8]).decode().lower()


def canonical_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """A JSON value with sorted keys, without spaces, in UTF-8: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
