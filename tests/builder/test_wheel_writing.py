from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent.archive import ArchiveDamaged, WheelArchive
from builder.wheel_writing import (
    ArchiveWriter,
    RawMember,
    Stated,
    end_of_archive,
    member_headers,
    metadata_with_version,
    record_content,
)
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from pathlib import Path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_version_lines_of_the_description_are_left_alone() -> None:
    old = b"Metadata-Version: 2.1\r\nversion:  1.00 \r\nName: d\r\n\r\nVersion: 9\r\n"
    new = metadata_with_version(old, old="1.0", new="1.0+d.1", input_name="d")
    assert new == b"Metadata-Version: 2.1\r\nVersion: 1.0+d.1\r\nName: d\r\n\r\nVersion: 9\r\n"


@pytest.mark.parametrize(
    ("stated", "offset"),
    [
        (Stated(method=0, crc=zlib.crc32(b"abc"), compressed_size=3, size=3), (1 << 33) + 5),
        (Stated(method=0, crc=zlib.crc32(b"abc"), compressed_size=3, size=3), 0xFFFFFFFF),
        (Stated(method=0, crc=zlib.crc32(b"abc"), compressed_size=3, size=3), 0xFFFFFFFE),
    ],
)
def test_member_beyond_four_gibibytes_is_found_by_another_reader(tmp_path: Path, stated: Stated, offset: int) -> None:
    local, central = member_headers("far.txt", stated, executable=False, offset=offset)
    path = tmp_path / "far.zip"
    with path.open("wb") as stream:  # a hole, not gigabytes
        stream.seek(offset)
        stream.write(local + b"abc")
        directory = stream.tell()
        stream.write(central + end_of_archive(1, len(central), directory))
    with zipfile.ZipFile(path) as archive:
        assert archive.read("far.txt") == b"abc"
        assert (archive.infolist()[0].extract_version == 45) == (offset >= 0xFFFFFFFF)


@pytest.mark.parametrize("size", [0xFFFFFFFE, 0xFFFFFFFF, 1 << 40])
def test_sizes_beyond_four_gibibytes_are_read_back_by_another_reader(tmp_path: Path, size: int) -> None:
    stated = Stated(method=8, crc=7, compressed_size=9, size=size)
    local, central = member_headers("big.bin", stated, executable=True, offset=0)
    (tmp_path / "big.zip").write_bytes(local + bytes(9) + central + end_of_archive(1, len(central), len(local) + 9))
    with zipfile.ZipFile(tmp_path / "big.zip") as archive:
        info = archive.infolist()[0]
    assert (info.file_size, info.compress_size, info.header_offset, info.CRC) == (size, 9, 0, 7)
    assert (b"\x01\x00\x10\x00" in local) == (size >= 0xFFFFFFFF)


@pytest.mark.parametrize("count", [0xFFFE, 0xFFFF])
def test_more_members_than_sixteen_bits_count_are_read_back(tmp_path: Path, count: int) -> None:
    with (tmp_path / "many.zip").open("wb") as stream:
        writer = ArchiveWriter(stream)
        for number in range(count):
            writer.add(f"{number:x}", b"", executable=False)
        digest = writer.finish()
    assert digest == sha256((tmp_path / "many.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "many.zip") as archive:
        assert len(archive.infolist()) == count
    assert (b"PK\x06\x06" in (tmp_path / "many.zip").read_bytes()[-200:]) == (count == 0xFFFF)


def test_raw_member_gives_the_digest_only_after_its_last_byte(tmp_path: Path) -> None:
    base = make_wheel(tmp_path, "demo", "1.0", {"demo/tool.py": "run = True\n" * 200})
    with WheelArchive(base) as archive:
        member = next(member for member in archive.members if member.name == "demo/tool.py")
    fd = os.open(base, os.O_RDONLY)
    try:
        raw = RawMember(fd, member, end=base.stat().st_size)
        assert raw.sha256 == ""
        assert zlib.decompress(b"".join(raw), -15) == b"run = True\n" * 200
        assert raw.sha256 == sha256(b"run = True\n" * 200)
        with pytest.raises(ArchiveDamaged, match="overlaps what comes after it"):
            list(RawMember(fd, member, end=member.header_offset + 40))
    finally:
        os.close(fd)


def raw_member(wheel: Path, name: str, **changes: Any) -> tuple[str, bytes]:
    """The digest and the compressed bytes of a member, some of what the directory states of it changed."""
    with WheelArchive(wheel) as archive:
        member = next(member for member in archive.members if member.name == name)
    fd = os.open(wheel, os.O_RDONLY)
    try:
        raw = RawMember(fd, dataclasses.replace(member, **changes), end=1 << 40)
        return raw.sha256, b"".join(raw)
    finally:
        os.close(fd)


@pytest.mark.parametrize("rest", [1, 100, 300])
def test_content_that_the_inflater_holds_back_to_the_end_is_counted(tmp_path: Path, rest: int) -> None:
    """The last compressed byte may stand for more than one chunk has room for."""
    content = bytes((1 << 20) + rest)
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/zeros": content})
    _, raw = raw_member(wheel, "demo/zeros")
    assert zlib.decompress(raw, -15) == content


def test_name_in_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/ü": "x"})
    data = bytearray(wheel.read_bytes())
    local = data.index("demo/ü".encode()) - 30
    data[local + 6 : local + 8] = bytes(2)
    wheel.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match="is neither ASCII nor marked as UTF-8"):
        raw_member(wheel, "demo/ü")


def test_member_that_reaches_beyond_the_file_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/x": "x" * 100}, compression=zipfile.ZIP_STORED)
    data = bytearray(wheel.read_bytes())
    data[18:26] = struct.pack("<2L", 10_000, 10_000)
    wheel.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match="the archive ends inside the member"):
        raw_member(wheel, "demo/x", compressed_size=10_000, size=10_000)


def test_record_quotes_as_csv_does() -> None:
    rows = [('a"b', "00" * 32, 1), ("c,d", "ff" * 32, 2)]
    assert record_content(rows, "r") == (
        b'"a""b",sha256=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA,1\n'
        b'"c,d",sha256=__________________________________________8,2\n'
        b"r,,\n"
    )
