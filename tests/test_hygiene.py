"""What must not be in the repository: names of index hosts, locks of tools that carry URLs, paths of a machine, secrets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Written in pieces, so that this file does not find itself.
HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("pypi", "nvidia", "com"),
        ("pypi", "tuna"),
        ("mirrors", "aliyun"),
        ("jfrog", "io"),
        ("artifactory", ""),
    )
)
HOMES = re.compile("(?<![A-Za-z0-9_.$}/])/(?:ho" + r"me/[a-z]\w*|ro" + r"ot/|Us" + r"ers/[A-Za-z]\w*)")
SECRETS = re.compile(
    "-----BEGIN [A-Z ]*PRIVATE " + "KEY|gh[pousr]_[A-Za-z0-9]{36}|AKIA[0-9A-Z]{16}|hf_[A-Za-z]{30,}|xox[bp]-[0-9]{6,}"
)
BINARY = {".whl", ".png", ".gz", ".zip"}


def tracked() -> list[Path]:
    """Every file that is in the repository, or will be with the next commit."""
    listed = subprocess.run(
        ["/usr/bin/env", "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("this is not a checkout")
    names = listed.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def lines() -> list[tuple[str, str]]:
    """Place and text of every line of text that is tracked."""
    return [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in tracked()
        if path.suffix not in BINARY
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]


def test_no_host_of_an_index_is_named() -> None:
    """Which index serves the packages is a matter of each machine's configuration."""
    assert [place for place, line in lines() if any(host in line.lower() for host in HOSTS)] == []


def test_no_lock_of_uv_is_tracked() -> None:
    """It carries the URLs of whatever mirror served it."""
    assert [path for path in tracked() if path.name == "uv.lock"] == []


def test_no_home_folder_is_named() -> None:
    assert [f"{place}: {line}" for place, line in lines() if HOMES.search(line)] == []


def test_no_secret_is_tracked() -> None:
    assert [place for place, line in lines() if SECRETS.search(line)] == []


def test_every_text_is_utf_8_without_stray_bytes() -> None:
    for path in tracked():
        if path.suffix not in BINARY:
            text = path.read_bytes()
            assert b"\0" not in text, path
            assert not text.startswith(b"\xef\xbb\xbf"), path
            text.decode("utf-8")


def test_no_file_is_large() -> None:
    limit = 500_000
    assert [path for path in tracked() if path.stat().st_size > limit] == []


def test_no_merge_conflict_is_tracked() -> None:
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    assert [place for place, line in lines() if line.startswith(marks)] == []
