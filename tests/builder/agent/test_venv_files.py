"""Contents of files of a venv: only ordinary files with the observed digest, never through a link, never more than allowed."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from builder.agent import venv_files
from builder.agent.venv_files import read_venv_files
from builder.venv_files import read_contents

if TYPE_CHECKING:
    from pathlib import Path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_one(venv: Path, path: str, digest: str = "") -> tuple[bytes, str]:
    ((_, content, reason),) = read_venv_files(os.fspath(venv), [(path, digest or sha256(b"x\n"))])
    return content, reason


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "venv"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/x.py").write_bytes(b"x\n")
    (tmp_path / "secret").write_bytes(b"x\n")
    return folder


def test_file_with_the_observed_digest_is_read(venv: Path) -> None:
    assert read_one(venv, "lib/x.py") == (b"x\n", "")


def test_file_that_was_changed_since_is_not_given(venv: Path) -> None:
    (venv / "lib/x.py").write_bytes(b"y\n")
    assert read_one(venv, "lib/x.py") == (b"", "it was changed after it was looked at")


@pytest.mark.parametrize(
    "path", ["../secret", "lib/../../secret", "/etc/hostname", "lib//x.py", "./lib/x.py", "", "lib/x.py\0"]
)
def test_path_that_is_not_plain_leads_nowhere(venv: Path, path: str) -> None:
    content, reason = read_one(venv, path)
    assert content == b""
    assert "leads out of the venv" in reason


def test_links_are_not_followed_neither_at_the_end_nor_on_the_way(venv: Path) -> None:
    (venv / "lib/link.py").symlink_to("../../secret")
    (venv / "inner").symlink_to("lib")
    for path in ("lib/link.py", "inner/x.py"):
        content, reason = read_one(venv, path)
        assert content == b""
        assert reason.startswith("it cannot be read: ")


def test_pipe_and_folder_are_no_files_and_nobody_waits(venv: Path) -> None:
    os.mkfifo(venv / "pipe")
    for path in ("pipe", "lib"):
        content, reason = read_one(venv, path)
        assert content == b""
        assert reason


def test_prefix_may_be_a_link(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(venv)
    assert read_one(tmp_path / "other", "lib/x.py") == (b"x\n", "")


def test_what_is_too_large_is_named_and_not_read(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venv_files, "MOST_FILE_BYTES", 1)
    content, reason = read_one(venv, "lib/x.py")
    assert content == b""
    assert "it has 2 bytes, at most 1 are read" in reason


def test_one_call_gives_no_more_than_its_limit_in_all(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venv_files, "MOST_BYTES", 3)
    (venv / "lib/y.py").write_bytes(b"x\n")
    rows = list(read_venv_files(os.fspath(venv), [("lib/x.py", sha256(b"x\n")), ("lib/y.py", sha256(b"x\n"))]))
    assert [(content, bool(reason)) for _, content, reason in rows] == [(b"x\n", False), (b"", True)]


def test_answers_of_a_host_are_checked_against_the_observed_digests() -> None:
    good, lied = sha256(b"good"), sha256(b"other")

    def read(_prefix: str, _wanted: object) -> list[tuple[str, bytes, str]]:
        return [("a", b"good", ""), ("b", b"lie", ""), ("never asked for", b"x", "")]

    contents, unread = read_contents("/venv", [("a", good, 4), ("b", lied, 4), ("c", good, 4)], read)
    assert contents == {"a": b"good"}
    assert unread == {"b": "it was changed after it was looked at", "c": "it was not given"}


def test_files_are_asked_for_in_bounded_calls() -> None:
    calls: list[int] = []

    def read(_prefix: str, wanted: object) -> list[tuple[str, bytes, str]]:
        assert isinstance(wanted, list)
        calls.append(len(wanted))
        return []

    read_contents("/venv", [(str(number), "0" * 64, 3 << 20) for number in range(25)], read)
    assert sum(calls) == 25
    assert max(calls) <= 10
