"""Parts of a wheel over HTTP and from files: what is asked for, and what hostile archives and servers give."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import httpx
import pytest

from builder.credentials import NO_CREDENTIALS
from builder.download import Downloader
from builder.wheel_parts import RangedFile, open_archive, read_member, read_parts
from envspec.errors import EnvspecError
from tests.support.local_index import Fault, LocalIndex
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def downloader() -> Iterator[Downloader]:
    with httpx.Client() as client:
        yield Downloader(lambda: client, NO_CREDENTIALS, pause=lambda _seconds: None)


def test_parts_by_range_are_those_of_the_whole_and_little_is_read(tmp_path: Path, downloader: Downloader) -> None:
    wheel = make_wheel(
        tmp_path,
        "demo",
        "1.0",
        {"demo/big.bin": bytes(range(256)) * 20_000, "demo/run.sh": "#!/bin/sh\n", "demo/x.py": "x = 1\n"},
        executable=["demo/run.sh"],
        compression=zipfile.ZIP_STORED,
    )
    read = 0
    with LocalIndex(tmp_path) as index:

        def read_range(first: int, last: int) -> bytes:
            nonlocal read
            answer = downloader.read_range(index.file_url(wheel.name), first, last, file=wheel.name)
            assert answer is not None
            assert answer[1] == wheel.stat().st_size
            read += len(answer[0])
            return answer[0]

        with open_archive(RangedFile(read_range, wheel.stat().st_size), wheel.name) as archive:
            parts = read_parts(archive, wheel.name)
            content = read_member(archive, archive.getinfo("demo/x.py"), 100, wheel.name)
    with wheel.open("rb") as whole, open_archive(whole, wheel.name) as archive:
        assert read_parts(archive, wheel.name) == parts
    assert content == b"x = 1\n"
    assert parts.members["demo/run.sh"]
    assert not parts.members["demo/x.py"]
    assert read < 200_000


def test_server_without_ranges_is_told_from_one_with(tmp_path: Path, downloader: Downloader) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0")
    with LocalIndex(tmp_path, ranges=False) as index:
        assert downloader.read_range(index.file_url(wheel.name), 0, 9, file=wheel.name) is None
    with LocalIndex(tmp_path) as index:
        answer = downloader.read_range(index.file_url(wheel.name), 0, 9, file=wheel.name)
        assert answer == (wheel.read_bytes()[:10], wheel.stat().st_size)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault("cut", times=2, after=3), "read"),
        (Fault("status", times=2, status=503), "read"),
        (Fault("wrong-range"), "refused"),
        (Fault("status", status=404), "refused"),
        (Fault("encoded"), "refused"),
    ],
)
def test_range_is_tried_again_where_that_helps_and_never_wrong(
    tmp_path: Path, downloader: Downloader, fault: Fault, outcome: str
) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0")
    with LocalIndex(tmp_path) as index:
        index.faults[wheel.name] = fault
        try:
            answer = downloader.read_range(index.file_url(wheel.name), 5, 24, file=wheel.name)
        except EnvspecError:
            answer = None
    assert (answer == (wheel.read_bytes()[5:25], wheel.stat().st_size)) is (outcome == "read")


def test_local_index_gives_ranges_too(tmp_path: Path, downloader: Downloader) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0")
    answer = downloader.read_range(wheel.as_uri(), 2, 5, file=wheel.name)
    assert answer == (wheel.read_bytes()[2:6], wheel.stat().st_size)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip at all" * 9, b"PK\x05\x06" + b"\xff" * 18])
def test_damaged_archive_gives_our_error_and_no_other(content: bytes) -> None:
    with pytest.raises(EnvspecError), open_archive(io.BytesIO(content), "x.whl") as archive:
        read_parts(archive, "x.whl")


def test_truncated_and_spoilt_wheels_give_our_error_and_no_other(tmp_path: Path) -> None:
    content = make_wheel(tmp_path, "demo", "1.0", {"demo/x.py": "x = 1\n" * 50}).read_bytes()
    for cut in range(0, len(content), 37):
        for spoilt in (content[:cut], content[:cut] + b"\xff\x00\xff" + content[cut + 3 :]):
            try:
                with open_archive(io.BytesIO(spoilt), "x.whl") as archive:
                    read_parts(archive, "x.whl")
            except EnvspecError:
                pass


def test_member_that_inflates_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/x.py": b"\n" * 5_000_000})
    with (
        pytest.raises(EnvspecError, match="more than 1000 bytes"),
        wheel.open("rb") as whole,
        open_archive(whole, wheel.name) as archive,
    ):
        read_member(archive, archive.getinfo("demo/x.py"), 1000, wheel.name)


def test_wheel_with_two_records_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", raw_members=[("other-1.dist-info/RECORD", b"")])
    with (
        pytest.raises(EnvspecError, match="2 RECORDs"),
        wheel.open("rb") as whole,
        open_archive(whole, wheel.name) as archive,
    ):
        read_parts(archive, wheel.name)
