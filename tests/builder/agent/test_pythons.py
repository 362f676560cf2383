"""Archives of a Python: unpacked as they are, or refused."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from builder.agent import pythons
from builder.agent.pythons import find_python, unpack
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from pathlib import Path


def archive(folder: Path, *members: tuple[str, bytes, dict[str, object]]) -> Path:
    path = folder / "python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    return path


def target(folder: Path) -> Path:
    made = folder / "place"
    made.mkdir()
    return made


def test_archive_gives_its_files_folders_and_links(tmp_path: Path) -> None:
    path = archive(
        tmp_path,
        ("python/bin", b"", {"type": tarfile.DIRTYPE}),
        ("python/bin/python3.12", b"#!/bin/true", {"mode": 0o6755}),
        ("python/bin/python3", b"", {"type": tarfile.SYMTYPE, "linkname": "python3.12"}),
        ("python/lib/os.py", b"x = 1\n", {"mode": 0o600}),
        ("python/lib/same.py", b"", {"type": tarfile.LNKTYPE, "linkname": "python/lib/os.py"}),
    )
    place = target(tmp_path)
    unpack(path, place)
    found = find_python(place, "3.12")
    assert found == place / "python" / "bin" / "python3.12"
    assert found.stat().st_mode & 0o7777 == 0o555
    assert (place / "python/lib/same.py").read_bytes() == b"x = 1\n"
    assert (place / "python/lib/os.py").stat().st_mode & 0o7777 == 0o444
    with pytest.raises(EnvspecError, match=r"has no `bin/python3\.11`"):
        find_python(place, "3.11")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("../out", {}),
        ("/out", {}),
        ("a/../../out", {}),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "../out"}),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "../../out"}),
        ("device", {"type": tarfile.CHRTYPE}),
        ("pipe", {"type": tarfile.FIFOTYPE}),
    ],
)
def test_member_that_leads_out_or_is_no_file_is_refused(tmp_path: Path, name: str, fields: dict[str, object]) -> None:
    path = archive(tmp_path, (name, b"", fields))
    with pytest.raises(EnvspecError, match=r"leads out of it|which is no file"):
        unpack(path, target(tmp_path))
    assert not (tmp_path / "out").exists()


def test_file_in_the_place_of_a_link_is_not_written_through_it(tmp_path: Path) -> None:
    path = archive(
        tmp_path, ("a", b"", {"type": tarfile.SYMTYPE, "linkname": "b"}), ("a", b"through", {}), ("b", b"", {})
    )
    with pytest.raises(FileExistsError):
        unpack(path, target(tmp_path))


def test_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "SIZE_LIMIT_BYTES", 10)
    with pytest.raises(EnvspecError, match="larger than a Python"):
        unpack(archive(tmp_path, ("a", b"x" * 11, {})), target(tmp_path))


@pytest.mark.parametrize("raw", [b"", b"no archive", b"\x1f\x8b\x08\x00cut off"])
def test_file_that_is_no_archive_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "python.tar.gz"
    path.write_bytes(raw)
    with pytest.raises(EnvspecError, match="cannot be read"):
        unpack(path, target(tmp_path))
