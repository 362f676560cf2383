from __future__ import annotations

import gzip
import hashlib
import io
import zlib

from hypothesis import given
from hypothesis import strategies as st

from builder.image.deflating import GzipWriter, deflate_zeros, stored_blocks

pieces = st.lists(st.one_of(st.integers(0, 1200).map(lambda count: b"\0" * count), st.binary(max_size=60)), max_size=8)


@given(pieces)
def test_any_content_inflates_to_itself(parts: list[bytes]) -> None:
    content = b"".join(parts)
    assert zlib.decompress(deflate_zeros(content), -15) == content
    assert zlib.decompress(stored_blocks(content, last=True), -15) == content


def test_every_length_of_a_run_of_zeros_comes_back() -> None:
    for count in (*range(800), 65_535, 70_000):
        content = b"a" + b"\0" * count + b"b"
        assert zlib.decompress(deflate_zeros(content), -15) == content, count


def test_stored_content_of_several_blocks_comes_back() -> None:
    content = bytes(range(256)) * 1000
    assert zlib.decompress(stored_blocks(content, last=True), -15) == content


def test_bytes_are_a_vector() -> None:
    """Layers have these bytes: another way to write the same would give every image another digest."""
    assert deflate_zeros(b"").hex() == "0300"
    assert deflate_zeros(b"ab" + b"\0" * 5).hex() == "4b4c62000100"


def test_gzip_file_of_several_members_is_read_as_one_and_its_digests_are_right() -> None:
    raw = io.BytesIO()
    writer = GzipWriter(raw)
    writer.add(b"header" + b"\0" * 500)
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = b"content " * 1000
    deflated = compressor.compress(content) + compressor.flush()
    writer.begin_deflated()
    writer.add_deflated(deflated)
    writer.watch(content)
    writer.end_deflated(zlib.crc32(content), len(content))
    writer.add_stored([b"x" * 100_000, b"y"])
    expected = b"header" + b"\0" * 500 + content + b"x" * 100_000 + b"y"
    assert gzip.decompress(raw.getvalue()) == expected
    assert writer.content_sha256 == hashlib.sha256(expected).hexdigest()
    assert writer.sha256 == hashlib.sha256(raw.getvalue()).hexdigest()
    assert (writer.size, writer.content_size) == (len(raw.getvalue()), len(expected))
