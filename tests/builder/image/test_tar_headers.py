from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.image.tar_headers import BLOCK_BYTES, END, FILE, FOLDER, LINK, padding, tar_header

names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=120).filter(
    lambda name: name not in {".", ".."}
)
paths = st.lists(names, min_size=1, max_size=5).map("/".join)


def read(raw: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(raw + END), mode="r:") as archive:
        return archive.getmembers()


@given(paths, st.sampled_from([0o444, 0o555]), st.binary(max_size=1200))
def test_every_path_and_content_comes_back(path: str, mode: int, content: bytes) -> None:
    raw = tar_header(path, kind=FILE, mode=mode, size=len(content)) + content + padding(len(content))
    assert len(raw) % BLOCK_BYTES == 0
    with tarfile.open(fileobj=io.BytesIO(raw + END), mode="r:") as archive:
        (member,) = archive.getmembers()
        file = archive.extractfile(member)
        assert file is not None
        assert file.read() == content
    assert (member.name, member.mode, member.size) == (path, mode, len(content))
    assert (member.uid, member.gid, member.mtime, member.uname, member.gname) == (0, 0, 0, "", "")


@given(paths, paths)
def test_links_and_folders_come_back(path: str, target: str) -> None:
    link, folder = read(
        tar_header(path, kind=LINK, mode=0o777, target=target) + tar_header(f"{path}/", kind=FOLDER, mode=0o755)
    )
    assert (link.issym(), link.name, link.linkname) == (True, path, target)
    assert (folder.isdir(), folder.name) == (True, path)


@pytest.mark.parametrize(
    ("path", "blocks"),
    [
        ("a" * 100, 1),
        ("a" * 101, 3),  # no place to split it
        (f"{'d' * 155}/{'f' * 100}", 1),
        (f"{'d' * 156}/{'f' * 100}", 3),
        ("ä", 3),
    ],
)
def test_only_what_ustar_cannot_hold_gets_a_pax_record(path: str, blocks: int) -> None:
    raw = tar_header(path, kind=FILE, mode=0o444)
    assert len(raw) == blocks * BLOCK_BYTES
    assert read(raw)[0].name == path


def test_file_of_more_than_8_gib_has_its_size() -> None:
    raw = tar_header("large", kind=FILE, mode=0o444, size=9 << 30)
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
        first = archive.next()
    assert first is not None
    assert first.size == 9 << 30
