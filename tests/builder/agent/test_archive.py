"""Hostile archives: whatever a file contains, it gives its right contents or `ArchiveDamaged`."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import itertools
import os
import random
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.agent.archive import ArchiveDamaged, Member, WheelArchive
from builder.agent.files import CHUNK_BYTES
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
CONTENT = b"run = True\n" * 300
MIB = 1 << 20


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


class Entry:
    """One member of a handmade archive; each argument may lie."""

    def __init__(
        self,
        name: bytes = b"demo/tool.py",
        content: bytes = CONTENT,
        *,
        raw: bytes | None = None,
        method: int = 8,
        flags: int = 0,
        size: int | None = None,
        crc: int | None = None,
        local: dict[str, int] | None = None,
        local_name: bytes | None = None,
        local_extra: bytes = b"",
        after: bytes = b"",
        mode: int = 0o100644,
        system: int = 3,
    ) -> None:
        self.raw = raw if raw is not None else deflated(content) if method == 8 else content
        self.name, self.method, self.flags, self.mode, self.system = name, method, flags, mode, system
        self.size = len(content) if size is None else size
        self.crc = zlib.crc32(content) if crc is None else crc
        stated = {"flags": flags, "method": method, "crc": self.crc, "compressed": len(self.raw), "size": self.size}
        stated |= local or {}
        self.local_name = name if local_name is None else local_name
        head = LOCAL.pack(
            b"PK\x03\x04",
            20,
            stated["flags"],
            stated["method"],
            0,
            33,
            stated["crc"],
            stated["compressed"],
            stated["size"],
            len(self.local_name),
            len(local_extra),
        )
        self.bytes = head + self.local_name + local_extra + self.raw + after

    def central(self, offset: int) -> bytes:
        sizes = (self.crc, len(self.raw), self.size)
        place = (len(self.name), 0, 0, 0, 0, self.mode << 16, offset)
        head = CENTRAL.pack(b"PK\x01\x02", self.system << 8 | 20, 20, self.flags, self.method, 0, 33, *sizes, *place)
        return head + self.name


def archive_of(*entries: Entry, offsets: tuple[int, ...] | None = None, prefix: bytes = b"") -> bytes:
    body = prefix
    places: list[int] = []
    for entry in entries:
        places.append(len(body) - len(prefix))
        body += entry.bytes
    central = b"".join(entry.central(place) for entry, place in zip(entries, offsets or places, strict=True))
    end = END.pack(b"PK\x05\x06", 0, 0, len(entries), len(entries), len(central), len(body) - len(prefix), 0)
    return body + central + end


def contents_of(path: Path) -> dict[str, bytes]:
    with WheelArchive(path) as archive:
        return {member.name: b"".join(archive.chunks(member)) for member in archive.members}


def damage_of(path: Path) -> ArchiveDamaged:
    with pytest.raises(ArchiveDamaged) as caught:
        contents_of(path)
    return caught.value


def written(directory: Path, data: bytes) -> Path:
    path = directory / "demo-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return path


# What is right


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_contents_are_those_that_another_reader_finds(tmp_path: Path, compression: int) -> None:
    noise = random.Random(0).randbytes(3 * CHUNK_BYTES + 17)  # noqa: S311 - noise that does not compress
    files: dict[str, bytes | str] = {"demo/__init__.py": "", "demo/big.bin": noise, "demo/zeros": bytes(5 * MIB)}
    wheel = make_wheel(tmp_path, "demo", "1.0", files, compression=compression)
    with zipfile.ZipFile(wheel) as other:
        assert contents_of(wheel) == {name: other.read(name) for name in other.namelist()}


def test_chunks_are_never_larger_than_a_mebibyte(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/zeros": bytes(9 * MIB)})
    with WheelArchive(wheel) as archive:
        zeros = next(member for member in archive.members if member.name == "demo/zeros")
        lengths = [len(chunk) for chunk in archive.chunks(zeros)]
    assert sum(lengths) == 9 * MIB
    assert max(lengths) <= CHUNK_BYTES


def test_members_written_to_a_pipe_have_data_descriptors_and_are_read(tmp_path: Path) -> None:
    stream = io.BytesIO()

    class Unseekable(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            return stream.write(bytes(data))  # type: ignore[call-overload]

    with zipfile.ZipFile(Unseekable(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo/tool.py", CONTENT)
        archive.writestr("demo/empty.py", b"")
    with zipfile.ZipFile(stream) as archive:
        assert archive.infolist()[0].flag_bits & 0x8
    assert contents_of(written(tmp_path, stream.getvalue())) == {"demo/tool.py": CONTENT, "demo/empty.py": b""}


def test_zip64_members_are_read(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("demo/tool.py", "w", force_zip64=True) as member:
            member.write(CONTENT)
        with archive.open(zipfile.ZipInfo("demo/stored.py"), "w", force_zip64=True) as member:
            member.write(CONTENT)
    assert b"\xff\xff\xff\xff\xff\xff\xff\xff" in path.read_bytes()
    assert contents_of(path) == {"demo/tool.py": CONTENT, "demo/stored.py": CONTENT}


def test_data_before_the_archive_is_passed_over(tmp_path: Path) -> None:
    assert contents_of(written(tmp_path, archive_of(Entry(), prefix=b"#!/bin/sh\nexit\n"))) == {"demo/tool.py": CONTENT}


def test_gaps_between_members_are_passed_over(tmp_path: Path) -> None:
    two = archive_of(Entry(after=b"descriptor or alignment"), Entry(b"b", b"x"))
    assert contents_of(written(tmp_path, two)) == {"demo/tool.py": CONTENT, "b": b"x"}


def test_folders_are_no_members(tmp_path: Path) -> None:
    data = archive_of(Entry(b"demo/", b"", method=0), Entry())
    assert contents_of(written(tmp_path, data)) == {"demo/tool.py": CONTENT}


def test_archive_without_members_has_none(tmp_path: Path) -> None:
    assert contents_of(written(tmp_path, archive_of())) == {}


@pytest.mark.parametrize(
    ("mode", "system", "executable", "symlink"),
    [
        (0o100644, 3, False, False),
        (0o100755, 3, True, False),
        (0o100001, 3, True, False),
        (0o120777, 3, True, True),
        (0o100755, 0, False, False),  # of DOS: the upper half is no mode
        (0, 3, False, False),
    ],
)
def test_mode_counts_if_it_was_made_on_unix(
    tmp_path: Path, mode: int, system: int, *, executable: bool, symlink: bool
) -> None:
    with WheelArchive(written(tmp_path, archive_of(Entry(mode=mode, system=system)))) as archive:
        (member,) = archive.members
    assert (member.executable, member.symlink) == (executable, symlink)


@pytest.mark.parametrize(
    ("raw", "flags", "name"),
    [
        (b"demo/a b,c.py", 0, "demo/a b,c.py"),
        ("demo/ü.py".encode(), 0x800, "demo/ü.py"),
        ("demo/ü.py".encode("cp437"), 0, "demo/ü.py"),
        ("demo/ü.py".encode(), 0, "demo/├╝.py"),  # not marked as UTF-8, so it is not
        (b"demo/a.py\0.txt", 0, "demo/a.py\0.txt"),  # not cut off at the NUL, as some readers do
        (b"demo\\a.py", 0, "demo\\a.py"),
        (b"../a.py", 0, "../a.py"),
    ],
)
def test_name_is_given_as_the_archive_writes_it(tmp_path: Path, raw: bytes, flags: int, name: str) -> None:
    assert contents_of(written(tmp_path, archive_of(Entry(raw, flags=flags)))) == {name: CONTENT}


# What lies


BOMB = deflated(bytes(1000))
DAMAGED: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "another name in the local header": (
        lambda: archive_of(Entry(local_name=b"demo/evil.py")),
        "bad-archive",
        "the local header says `demo/evil.py`, the directory `demo/tool.py`",
    ),
    "a name that differs only in its marking as UTF-8": (
        lambda: archive_of(Entry("ü".encode(), local={"flags": 0x800})),
        "bad-archive",
        "the local header says `ü`, the directory `├╝`",
    ),
    "a local name that is not UTF-8": (
        lambda: archive_of(Entry(b"demo/\\xff", flags=0x800, local_name=b"demo/\xff")),
        "bad-archive",
        "the local header says `demo/\\xff`",
    ),
    "another method in the local header": (
        lambda: archive_of(Entry(local={"method": 0})),
        "bad-archive",
        "the local header has the compression method 0, the directory another",
    ),
    "an unknown method in the local header of a stored member": (
        lambda: archive_of(Entry(method=0, local={"method": 12})),
        "bad-archive",
        "the local header has the compression method 12, the directory another",
    ),
    "another size in the local header": (
        lambda: archive_of(Entry(local={"size": 7})),
        "size-lie",
        "the local header says 7 where the directory says 3300",
    ),
    "another compressed size in the local header": (
        lambda: archive_of(Entry(content=b"", method=0, local={"compressed": 7})),
        "size-lie",
        "the local header says 7 where the directory says 0",
    ),
    "another CRC in the local header": (
        lambda: archive_of(Entry(crc=5, local={"crc": 7})),
        "bad-crc",
        "the local header says 7 where the directory says 5",
    ),
    "no CRC in a local header without a descriptor": (
        lambda: archive_of(Entry(local={"crc": 0})),
        "bad-crc",
        "the local header says 0 where",
    ),
    "encryption": (lambda: archive_of(Entry(flags=1)), "encrypted-member", "is encrypted"),
    "encryption in the local header": (
        lambda: archive_of(Entry(local={"flags": 1})),
        "encrypted-member",
        "is encrypted",
    ),
    "an encrypted folder": (
        lambda: archive_of(Entry(b"demo/", b"", method=0, flags=1)),
        "encrypted-member",
        "is encrypted",
    ),
    "an unknown method": (lambda: archive_of(Entry(method=12)), "bad-archive", "compression method 12"),
    "a wrong CRC": (lambda: archive_of(Entry(crc=7)), "bad-crc", "the archive states 00000007"),
    "a wrong CRC of a stored member": (lambda: archive_of(Entry(method=0, crc=7)), "bad-crc", "states 00000007"),
    "a deflated member that is longer than stated": (
        lambda: archive_of(Entry(raw=BOMB, size=999)),
        "size-lie",
        "inflates beyond the 999 bytes that the archive states",
    ),
    "a deflated member of which nothing is stated": (
        lambda: archive_of(Entry(raw=BOMB, size=0)),
        "size-lie",
        "inflates beyond the 0 bytes",
    ),
    "a deflated member that is shorter than stated": (
        lambda: archive_of(Entry(raw=BOMB, size=1001)),
        "size-lie",
        "has 1000 bytes, the archive states 1001",
    ),
    "a stored member that is longer than stated": (
        lambda: archive_of(Entry(method=0, size=3299)),
        "size-lie",
        "inflates beyond the 3299 bytes",
    ),
    "a stored member that is shorter than stated": (
        lambda: archive_of(Entry(method=0, size=3301)),
        "size-lie",
        "has 3300 bytes, the archive states 3301",
    ),
    "compressed data that is cut off": (
        lambda: archive_of(Entry(raw=deflated(CONTENT)[:-3])),
        "bad-archive",
        "the compressed data is cut off",
    ),
    "a deflated member without a byte": (
        lambda: archive_of(Entry(content=b"", raw=b"")),
        "bad-archive",
        "the compressed data is cut off",
    ),
    "data that is not compressed": (
        lambda: archive_of(Entry(raw=b"\x07 no deflate stream")),
        "bad-archive",
        "cannot be inflated",
    ),
    "a byte after the end of the compressed data": (
        lambda: archive_of(Entry(raw=deflated(CONTENT) + b"\0")),
        "bad-archive",
        "bytes follow the end of its compressed data",
    ),
    "chunks after the end of the compressed data": (
        lambda: archive_of(Entry(raw=deflated(CONTENT) + bytes(3 * MIB))),
        "bad-archive",
        "bytes follow the end of its compressed data",
    ),
    "a second stream after the first": (
        lambda: archive_of(Entry(raw=deflated(CONTENT[:300]) + deflated(CONTENT[300:]))),
        "bad-archive",
        "bytes follow the end of its compressed data",
    ),
    "two members in one place": (
        lambda: archive_of(Entry(b"a"), Entry(b"a"), offsets=(0, 0)),
        "bad-archive",
        "overlaps what comes after it in the archive",
    ),
    "a member inside another": (
        lambda: archive_of(Entry(b"a", (inner := Entry(b"b", method=0)).bytes, method=0), inner, offsets=(0, 31)),
        "bad-archive",
        "overlaps what comes after it in the archive",
    ),
    "an extra field that reaches into the next member": (
        lambda: archive_of(Entry(b"a", b"x" * 50, method=0), Entry(b"b")).replace(b"\x01\0\0\0a", b"\x01\0\x09\0a", 1),
        "bad-archive",
        "overlaps what comes after it in the archive",
    ),
    "a member that reaches into the directory": (
        lambda: archive_of(Entry(b"a", b"", raw=b"", method=0, size=40, crc=0)),
        "size-lie",
        "has 0 bytes, the archive states 40",
    ),
    "a member behind the directory": (
        lambda: archive_of(Entry(), offsets=(5000,)),
        "bad-archive",
        "lies outside of the archive",
    ),
    "no local header at the stated place": (
        lambda: archive_of(Entry(), offsets=(3,)),
        "bad-archive",
        "no local header where the directory places the member",
    ),
    "nothing": (lambda: b"", "bad-archive", "not a readable zip archive"),
    "text": (lambda: b"<html>404</html>", "bad-archive", "not a readable zip archive"),
    "the end of an archive alone": (
        lambda: END.pack(b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0),
        "bad-archive",
        "not a readable zip archive",
    ),
    "a zip64 record before the start of the file": (
        lambda: struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1) + END.pack(b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0),
        "bad-archive",
        "not a readable zip archive",
    ),
    "a name that is not UTF-8": (
        lambda: archive_of(Entry(b"\xff", flags=0x800)),
        "bad-archive",
        "not a readable zip archive",
    ),
}


@pytest.mark.parametrize("case", DAMAGED, ids=str)
def test_archive_that_lies_is_refused(case: str, tmp_path: Path) -> None:
    make, kind, detail = DAMAGED[case]
    damage = damage_of(written(tmp_path, make()))
    assert (damage.kind, detail in damage.detail) == (kind, True), str(damage)


@pytest.mark.parametrize("length", [0, 1, 30, 500, -1, -22, -23])
def test_truncated_wheel_is_refused(tmp_path: Path, length: int) -> None:
    data = make_wheel(tmp_path, "demo", "1.0").read_bytes()
    assert damage_of(written(tmp_path, data[:length])).kind == "bad-archive"


def test_damage_names_the_member(tmp_path: Path) -> None:
    damage = damage_of(written(tmp_path, archive_of(Entry(crc=7))))
    assert damage.member == "demo/tool.py"
    assert str(damage) == f"demo/tool.py: has the CRC {zlib.crc32(CONTENT):08x}, the archive states 00000007"


def test_wheel_that_is_not_there_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        WheelArchive(tmp_path / "demo-1.0-py3-none-any.whl")
    with pytest.raises(IsADirectoryError):
        WheelArchive(tmp_path)


def test_no_file_stays_open_whatever_the_wheel_is(tmp_path: Path) -> None:
    good = make_wheel(tmp_path / "good", "demo", "1.0")
    bad = [written(tmp_path, archive_of(Entry(flags=1)))]
    before = len(list(Path("/proc/self/fd").iterdir()))
    contents_of(good)
    for wheel in bad:
        damage_of(wheel)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Bombs


def test_bomb_that_hides_its_size_is_inflated_only_as_far_as_it_states(tmp_path: Path) -> None:
    wheel = written(tmp_path, archive_of(Entry(raw=deflated(bytes(64 * MIB)), size=1000)))
    received = bytearray()
    with WheelArchive(wheel) as archive, pytest.raises(ArchiveDamaged, match="inflates beyond the 1000 bytes"):
        received.extend(itertools.chain.from_iterable(archive.chunks(archive.members[0])))
    assert len(received) <= 1000


def test_large_member_is_not_read_into_memory(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/zeros": bytes(3 * MIB)})
    with WheelArchive(wheel) as archive:
        zeros = next(member for member in archive.members if member.name == "demo/zeros")
        assert archive.read(zeros) == bytes(3 * MIB)
        with pytest.raises(ArchiveDamaged, match="has 3145728 bytes, at most 1048576 are read into memory"):
            archive.read(zeros, limit=MIB)


@pytest.mark.parametrize(
    "raw",
    [
        deflated(bytes(64 * MIB)),
        deflated(b"") + bytes(64 * MIB),  # what follows the end is no reason to hoard it
        b"\0\0\0\xff\xff" * (8 * MIB) + deflated(b""),  # millions of blocks of nothing
    ],
    ids=["zeros", "garbage", "empty blocks"],
)
def test_bomb_is_read_in_bounded_memory(tmp_path: Path, raw: bytes) -> None:
    wheel = written(tmp_path, archive_of(Entry(raw=raw, size=64 * MIB)))
    with WheelArchive(wheel) as archive:
        tracemalloc.start()
        try:
            with contextlib.suppress(ArchiveDamaged):
                collections.deque(archive.chunks(archive.members[0]), maxlen=0)
            assert tracemalloc.get_traced_memory()[1] < 8 * MIB
        finally:
            tracemalloc.stop()


def test_members_that_share_their_bytes_are_not_inflated(tmp_path: Path) -> None:
    kernel = Entry(b"k", bytes(64 * MIB))
    wheel = written(tmp_path, archive_of(kernel, *([kernel] * 99), offsets=(0,) * 100))
    with WheelArchive(wheel) as archive:
        for member in archive.members:
            with pytest.raises(ArchiveDamaged, match="overlaps"):
                next(archive.chunks(member))


# Anything


GOOD_FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "",
    "demo/tool.py": CONTENT,
    "demo/ü.bin": hashlib.sha256(b"noise").digest(),
}
mutations = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "insert"]), st.integers(0, 2**16), st.binary(min_size=1, max_size=4)),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, place, value in changes:
        at = place % len(data)
        if kind == "set":
            data = data[:at] + value + data[at + len(value) :]
        elif kind == "delete":
            data = data[:at] + data[at + len(value) :]
        else:
            data = data[:at] + value + data[at:]
    return data


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_changed_wheel_gives_right_contents_or_is_damaged(
    compression: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    good = make_wheel(folder / "good", "demo", "1.0", GOOD_FILES, compression=compression)
    data, right = good.read_bytes(), contents_of(good)

    @given(mutations)
    def read(changes: list[tuple[str, int, bytes]]) -> None:
        try:
            with WheelArchive(written(folder, mutated(data, changes))) as archive:
                for member in archive.members:
                    _right_or_damaged(archive, member, right)
        except ArchiveDamaged:
            pass

    read()


def _right_or_damaged(archive: WheelArchive, member: Member, right: dict[str, bytes]) -> None:
    try:
        content = archive.read(member)
    except ArchiveDamaged:
        return
    assert right[member.name] == content


@pytest.mark.parametrize("place", range(46 + 22 + 12))
def test_each_byte_of_the_directory_may_lie(place: int, tmp_path: Path) -> None:
    data = archive_of(Entry())
    at = len(data) - (46 + 22 + 12) + place
    for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
        path = written(tmp_path, data[:at] + bytes([value]) + data[at + 1 :])
        try:
            contents = contents_of(path)
        except ArchiveDamaged:
            continue
        assert contents in ({"demo/tool.py": CONTENT}, {})


@given(st.binary(max_size=300))
def test_any_bytes_give_an_archive_or_damage(data: bytes) -> None:
    fd = os.memfd_create("wheel")
    try:
        os.write(fd, data)
        contents_of(Path(f"/proc/self/fd/{fd}"))
    except ArchiveDamaged:
        pass
    finally:
        os.close(fd)


@given(raw=st.binary(max_size=200), size=st.integers(0, 2000), crc=st.integers(0, 2**32 - 1))
def test_any_deflate_stream_gives_content_of_the_stated_size_or_damage(raw: bytes, size: int, crc: int) -> None:
    fd = os.memfd_create("wheel")
    try:
        os.write(fd, archive_of(Entry(raw=raw, size=size, crc=crc)))
        ((_, content),) = contents_of(Path(f"/proc/self/fd/{fd}")).items()
        assert (len(content), zlib.crc32(content)) == (size, crc)
    except ArchiveDamaged:
        pass
    finally:
        os.close(fd)
