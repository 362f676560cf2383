"""What is remembered of a venv: believed only as far as it must be right, and worth nothing once it is damaged."""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent import survey, survey_cache, survey_files, survey_reading
from builder.agent.survey_cache import Known, cache_path, read_known, write_known
from builder.observing import observe
from tests.support.tiny_elf import tiny_library
from tests.support.venvs import SITE, install, make_venv

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.observed import Observation

LATER_NS = 10 * 10**9


class Clock:
    """What the time is for who looks: files of this test changed long before."""

    def __init__(self) -> None:
        self.ahead_ns = LATER_NS

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    clock = Clock()
    monkeypatch.setattr(survey, "time", clock)
    monkeypatch.setattr(survey_cache, "WORTH_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    return clock


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    made = make_venv(tmp_path / "venv")
    install(
        made, "demo", "1.0", {"demo/__init__.py": "a\n", "demo/other.py": "b\n", "demo/a.so": tiny_library(soname="a")}
    )
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read."""
    paths: list[str] = []
    real = survey_files.look_at_files

    def look_at_files(root: str, sites: Any, files: Any, **more: Any) -> Any:
        files = list(files)
        paths.extend(path.rpartition("/")[2] for path, _ in files)
        return real(root, sites, files, **more)

    monkeypatch.setattr(survey_reading, "look_at_files", look_at_files)
    return paths


def place_of(venv: Path) -> Path:
    place = cache_path(os.environ, os.fspath(venv))
    assert place is not None
    return place


def without_counts(observation: Observation) -> dict[str, Any]:
    return {name: getattr(observation, name) for name in observation.__slots__ if name != "bytes_read"}


@pytest.mark.usefixtures("clock")
def test_second_look_reads_nothing_and_sees_the_same(venv: Path, read: list[str]) -> None:
    first = observe(os.fspath(venv))
    assert "__init__.py" in read
    read.clear()
    second = observe(os.fspath(venv))
    assert read == []
    assert second.bytes_read == 0
    assert without_counts(first) == without_counts(second)


@pytest.mark.parametrize("how", ["write", "replace", "same size and mtime", "touch", "chmod"])
@pytest.mark.usefixtures("clock")
def test_what_was_touched_is_read_again(venv: Path, read: list[str], how: str) -> None:
    observe(os.fspath(venv))
    read.clear()
    file = venv / SITE / "demo/other.py"
    before = file.stat()
    if how in ("write", "same size and mtime"):
        file.write_text("c\n")
    elif how == "replace":
        (venv / "new").write_text("c\n")
        (venv / "new").rename(file)
    elif how == "touch":
        os.utime(file)
    else:
        file.chmod(0o600)
    if how == "same size and mtime":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    (distribution,) = observe(os.fspath(venv)).distributions
    assert read == ["other.py"]
    edited = [each.path for each in distribution.files if each.is_edited]
    assert edited == ([f"{SITE}/demo/other.py"] if how in ("write", "replace", "same size and mtime") else [])


def test_file_that_changed_just_before_the_look_is_not_believed(clock: Clock, venv: Path, read: list[str]) -> None:
    """A change within the same tick of the clock would not show."""
    clock.ahead_ns = 0
    observe(os.fspath(venv))
    read.clear()
    observe(os.fspath(venv))
    assert "other.py" in read


@pytest.mark.usefixtures("clock")
def test_what_is_gone_is_forgotten(venv: Path) -> None:
    observe(os.fspath(venv))
    (venv / SITE / "demo/other.py").unlink()
    observe(os.fspath(venv))
    assert f"{SITE}/demo/other.py" not in read_known(place_of(venv), os.fspath(venv))


def spoilt(content: bytes, how: str) -> bytes:
    if how == "cut off":
        return content[: len(content) // 2]
    if how == "one bit":
        return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    magic, _, rest = content.partition(b"\n")
    payload = zlib.decompress(rest.partition(b"\n")[2])
    payload = {
        "no JSON": b"{",
        "no object": b"[]",
        "other version": payload.replace(b'"version":[', b'"version":[0,'),
        "other columns": payload.replace(b'"stamps":[', b'"stamps":[1,'),
        "no digests": payload.replace(b'"digests":"', b'"digests":"zz'),
        "other facts": payload.replace(b'"binaries":[{', b'"binaries":[3,{'),
        "deep": b"[" * 100_000,
    }[how]
    packed = zlib.compress(payload)
    return magic + b"\n" + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


@pytest.mark.parametrize(
    "how",
    [
        "cut off",
        "one bit",
        "no JSON",
        "no object",
        "other version",
        "other columns",
        "no digests",
        "other facts",
        "deep",
    ],
)
@pytest.mark.usefixtures("clock")
def test_damaged_memory_is_worth_nothing(venv: Path, read: list[str], how: str) -> None:
    first = observe(os.fspath(venv))
    place = place_of(venv)
    place.write_bytes(spoilt(place.read_bytes(), how))
    read.clear()
    assert read_known(place, os.fspath(venv)) == {}
    assert observe(os.fspath(venv)) == first
    assert "other.py" in read
    assert read_known(place, os.fspath(venv)) != {}  # made anew


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.usefixtures("clock")
def test_memory_that_others_can_write_is_not_believed(venv: Path, which: str) -> None:
    observe(os.fspath(venv))
    place = place_of(venv)
    (place if which == "file" else place.parent).chmod(0o777)
    assert read_known(place, os.fspath(venv)) == {}


@pytest.mark.usefixtures("clock")
def test_memory_of_one_venv_is_none_of_another(venv: Path, tmp_path: Path) -> None:
    observe(os.fspath(venv))
    other = make_venv(tmp_path / "other")
    place_of(other).write_bytes(place_of(venv).read_bytes())
    assert read_known(place_of(other), os.fspath(other)) == {}


def test_what_was_written_last_stays_as_far_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_cache, "WORTH_BYTES", 0)
    known = {"x": Known((1, 1, 1, 1, 1), "0" * 64, None)}
    for number in range(5):
        write_known(tmp_path / f"cache/{number}.z", "/x", known, time.time_ns())
        os.utime(tmp_path / f"cache/{number}.z", (number, number))
        monkeypatch.setattr(survey_cache, "KEPT_BYTES", 2 * (tmp_path / f"cache/{number}.z").stat().st_size)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["3.z", "4.z"]


def test_small_venv_is_not_remembered(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    observe(os.fspath(venv))
    assert not (tmp_path / "cache").exists()


def test_no_place_for_a_memory_is_no_failure(venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for caches in ("/proc/none", "relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
        monkeypatch.setenv("HOME", "/proc/none")
        assert observe(os.fspath(venv)).distributions
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    assert observe(os.fspath(venv)).distributions
