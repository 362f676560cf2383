"""Small fatbins and cubins for tests, as nvcc lays them out, honest or hostile.

    content = fatbin("sm_90a", "sm_120", "compute_120")
    content = fatbin(Code("sm_100f", release="12.9.86", compression="zstd"), Code("sm_90", payload=bytes(100_000)))

Without further arguments everything is sound: `cuobjdump` lists it. Each argument bends one thing. The code in it is none: no GPU runs it.
"""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RELEASE = "13.0.88"
"""The CUDA release that made the cubins, unless a test says otherwise."""

_KINDS = {"compute": 1, "sm": 2}
_SUFFIX_FLAGS = {"": 0, "a": 0x100000, "f": 0x200000}
_COMPRESSION_FLAGS = {"": 0, "zstd": 0x8000, "lz4": 0x2000}
_PLAIN_FLAGS = 0x11  # 64 bits, Linux, as nvcc sets them
_CODE = re.compile(r"(sm|compute)_([0-9]+)([af]?)")
_EM_CUDA = 190


@dataclass(frozen=True, slots=True)
class Code:
    """One entry of a fatbin."""

    code: str
    """`sm_90`, `sm_90a`, `sm_100f`, `compute_120`."""

    payload: bytes | None = None
    """Before compression; None stands for a cubin or a PTX text for that code."""

    release: str = RELEASE
    """Of the note of the cubin that stands for None; without a note if empty."""

    padding: int = 0
    """Bytes by which that cubin is longer."""

    compression: str = ""
    """`zstd` (what nvcc 13.0 does), or `lz4`, which only sets the flag: such a payload is never looked into."""

    kind: int | None = None
    """In place of the code's own: 1 PTX, 2 cubin, anything else is unknown."""

    header_size: int | None = None
    """Of the entry; nvcc writes 64 or 112 for a cubin, and 80 for PTX, of which the last 16 place its options."""

    stated_size: int | None = None
    """Of the payload, if the entry is to lie about it."""

    def to_bytes(self) -> bytes:
        """The entry with its payload, padded to 8 bytes as nvcc does it."""
        prefix, number, suffix = _parts(self.code)
        raw = self.payload
        if raw is None:
            raw = cubin(self.code, release=self.release, padding=self.padding) if prefix == "sm" else ptx(self.code)
        stored = zstd.compress(raw) if self.compression == "zstd" else raw
        body = stored.ljust(-len(stored) // 8 * -8, b"\0")
        header_size = self.header_size or (64 if prefix == "sm" else 80)
        header = struct.pack(
            "<HHIQIIHHIIIQQQ",
            _KINDS[prefix] if self.kind is None else self.kind,
            0x101,
            header_size,
            len(body) if self.stated_size is None else self.stated_size,
            len(stored) if self.compression else 0,
            0 if header_size == 64 else 64,
            *((8, 1) if prefix == "sm" else (0, 9)),
            number,
            0,
            0,
            _PLAIN_FLAGS | _SUFFIX_FLAGS[suffix] | _COMPRESSION_FLAGS[self.compression],
            0,
            len(raw) if self.compression else 0,
        )
        # cuobjdump reads the 16 bytes behind the head of PTX; of a cubin it does not, and bytes that get lost are to show.
        return header.ljust(header_size, b"\0" if header_size == 80 else b"\x24") + body


def fatbin(*codes: str | Code, stated_size: int | None = None, version: int = 1, header_size: int = 16) -> bytes:
    """A fatbin with the code of one source file.

    Args:
        codes: Its entries, in order.
        stated_size: Of the entries, if the header is to lie about it.
        version: Of the format.
        header_size: As the header states it.
    """
    body = b"".join((Code(code) if isinstance(code, str) else code).to_bytes() for code in codes)
    size = len(body) if stated_size is None else stated_size
    return struct.pack("<IHHQ", 0xBA55ED50, version, header_size, size) + body


def cubin(code: str, *, release: str = RELEASE, padding: int = 0, abi: int = 8) -> bytes:
    """A cubin: an ELF file for EM_CUDA with one note.

    Args:
        code: `sm_90a`; the suffix does not stand in a cubin.
        release: CUDA release of its note; no note if empty.
        padding: Bytes by which it is longer.
        abi: 8 for CUDA 13, 7 for what CUDA 12 makes for GPUs before 10.0.
    """
    _, number, _ = _parts(code)
    flags = number << 8 | 2 if abi >= 8 else number << 16 | 5 << 8 | number
    ident = b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + bytes(7)
    major_minor = ".".join(release.split(".")[:2])
    note = f"Cuda compilation tools, release {major_minor}, V{release}\0".encode() if release else b""
    names = b"\0.shstrtab\0.note.nv.tkinfo\0"
    content = note + names + bytes(padding)
    content = content.ljust(-len(content) // 8 * -8, b"\0")
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 3, 0, 0, 64 + len(note), len(names), 0, 0, 1, 0),
        (11, 7, 0, 0, 64, len(note), 0, 0, 1, 0),
    ]
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, _EM_CUDA, 1, 0, 0, 64 + len(content), flags, 64, 56, 0, 64, len(sections), 1
    )
    return ident + header + content + b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections)


def ptx(code: str) -> bytes:
    """The text of a PTX module without code."""
    _, number, suffix = _parts(code)
    return f".version 9.0\n.target sm_{number}{suffix}\n.address_size 64\n\0".encode()


def _parts(code: str) -> tuple[str, int, str]:
    match = _CODE.fullmatch(code)
    assert match is not None, f"`{code}` is no code of a GPU"
    return match[1], int(match[2]), match[3]
