"""Headers of tar archives in one fixed form: ustar, with a pax record only where a path is too long for it or not ASCII.

No owner, no time, modes as the caller says: the same tree gives the same bytes.
"""

from __future__ import annotations

BLOCK_BYTES = 512
END = b"\0" * (2 * BLOCK_BYTES)
FILE, LINK, FOLDER = b"0", b"2", b"5"
_PAX = b"x"
_LARGEST_OCTAL = 0o77777777777
_NAME_BYTES, _PREFIX_BYTES = 100, 155


def tar_header(path: str, *, kind: bytes, mode: int, size: int = 0, target: str = "") -> bytes:
    """The header of an entry: one block, or three and more if it needs a pax record.

    Args:
        path: Without a slash at its beginning; a folder's ends with one.
        kind: `FILE`, `LINK` or `FOLDER`.
        mode: Permission bits.
        size: Of a file, in bytes.
        target: Of a link.
    """
    records: dict[str, str] = {}
    raw, goal = path.encode("utf-8", "surrogateescape"), target.encode("utf-8", "surrogateescape")
    place = _split(raw)
    if place is None or not raw.isascii():
        records["path"] = path
        place = (raw[:_NAME_BYTES], b"")
    if len(goal) > _NAME_BYTES or not goal.isascii():
        records["linkpath"] = target
    if size > _LARGEST_OCTAL:
        records["size"] = str(size)
    block = _block(*place, kind=kind, mode=mode, size=0 if "size" in records else size, target=goal[:_NAME_BYTES])
    if not records:
        return block
    body = b"".join(_pax_record(key, value) for key, value in sorted(records.items()))
    head = _block(b"PaxHeaders/entry", b"", kind=_PAX, mode=0o644, size=len(body), target=b"")
    return head + body + padding(len(body)) + block


def padding(size: int) -> bytes:
    """What follows content of a size, up to the next block."""
    return b"\0" * (-size % BLOCK_BYTES)


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """Name and prefix of a path as ustar has it; None if it does not fit."""
    if len(raw) <= _NAME_BYTES:
        return raw, b""
    for at in range(len(raw) - _NAME_BYTES - 1, min(_PREFIX_BYTES, len(raw) - 2) + 1):
        if raw[at : at + 1] == b"/":
            return raw[at + 1 :], raw[:at]
    return None


def _block(name: bytes, prefix: bytes, *, kind: bytes, mode: int, size: int, target: bytes) -> bytes:
    fields = (
        name.ljust(_NAME_BYTES, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0" * 2,  # user and group
        b"%011o\0" % size,
        b"00000000000\0",  # time
        b" " * 8,  # the checksum, while it is computed
        kind,
        target.ljust(_NAME_BYTES, b"\0"),
        b"ustar\x0000",
        b"\0" * 64,  # names of user and group
        b"0000000\0" * 2,  # of devices
        prefix.ljust(_PREFIX_BYTES, b"\0"),
        b"\0" * 12,
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _pax_record(key: str, value: str) -> bytes:
    """One record: its own length, in which the digits of that length count too."""
    rest = b" " + key.encode() + b"=" + value.encode("utf-8", "surrogateescape") + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return str(length).encode() + rest
