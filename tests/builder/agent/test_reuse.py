"""Distributions that another installer has installed give the tree of their wheel, or are refused."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.agent.reuse import Installed, find_installed, repack, wheel_key
from builder.agent.unpack import read_wheel
from tests.support.projects import base_python, uv_program
from tests.support.stores import PYTHON
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from pathlib import Path

FILES: dict[str, bytes | str] = {
    "alpha/__init__.py": "def main():\n    pass\n",
    "alpha/data.bin": b"\0\1\2" * 1000,
    "alpha-1.0.data/scripts/tool": b"#!python\nprint('tool')\n",
    "alpha-1.0.data/scripts/plain": b"#!/bin/sh\necho plain\n",
    "alpha-1.0.data/data/share/alpha/notes.txt": "notes\n",
    "alpha-1.0.data/headers/alpha.h": "#define ALPHA 1\n",
    "alpha-1.0.data/purelib/alpha_more.py": "x = 1\n",
}


def make_venv(folder: Path, *wheels: Path) -> Path:
    venv = folder / "venv"
    run = (uv_program(), "--no-config", "--offline", "--cache-dir", folder / "cache")
    subprocess.run([*run, "venv", "-q", "--python", base_python(), venv], check=True, env={"PATH": "/usr/bin:/bin"})
    install = (
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--compile-bytecode",
        "--python",
        venv / "bin" / "python",
    )
    subprocess.run([*run, *install, *wheels], check=True, env={"PATH": "/usr/bin:/bin"})
    return venv


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(
        tmp_path_factory.mktemp("wheels"), "alpha", "1.0", FILES, entry_points="[console_scripts]\nalpha = alpha:main\n"
    )


@pytest.fixture
def venv(wheel: Path, tmp_path: Path) -> Path:
    return make_venv(tmp_path, wheel)


def installed(venv: Path, wheel: Path) -> Installed:
    return find_installed(venv, PYTHON)[wheel_key(wheel.name)]


def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    return made


def test_what_uv_installed_gives_the_tree_of_the_wheel(venv: Path, wheel: Path, tmp_path: Path) -> None:
    target = folder(tmp_path)
    repacked = repack(installed(venv, wheel), wheel.name, PYTHON, target)
    expected = read_wheel(wheel, wheel.name, PYTHON)
    assert repacked.manifest == expected.manifest
    assert repacked.digest == expected.digest
    assert repacked.edited == ()
    written = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert written == {entry.path for entry in expected.files}


def test_copies_share_no_inode_with_the_venv(venv: Path, wheel: Path, tmp_path: Path) -> None:
    target = folder(tmp_path)
    repack(installed(venv, wheel), wheel.name, PYTHON, target)
    inodes = {path.stat().st_ino for path in venv.rglob("*") if path.is_file()}
    assert not inodes & {path.stat().st_ino for path in target.rglob("*") if path.is_file()}


def test_edited_file_is_named(venv: Path, wheel: Path, tmp_path: Path) -> None:
    path = venv / f"lib/python{PYTHON}/site-packages/alpha/__init__.py"
    path.unlink()
    path.write_text("def main():\n    print('quick fix')\n")
    repacked = repack(installed(venv, wheel), wheel.name, PYTHON, folder(tmp_path))
    assert repacked.digest != read_wheel(wheel, wheel.name, PYTHON).digest
    assert repacked.edited == (f"lib/python{PYTHON}/site-packages/alpha/__init__.py",)


def test_added_file_in_record_makes_another_tree(venv: Path, wheel: Path, tmp_path: Path) -> None:
    """RECORD that was edited to match is of no use: the lock's digest decides."""
    site = venv / f"lib/python{PYTHON}/site-packages"
    (site / "alpha" / "more.py").write_text("")
    with (site / "alpha-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("alpha/more.py,,\n")
    repacked = repack(installed(venv, wheel), wheel.name, PYTHON, folder(tmp_path))
    assert repacked.digest != read_wheel(wheel, wheel.name, PYTHON).digest


@pytest.mark.parametrize(
    "row", ["../../../../../../../../etc/passwd,,", "/etc/passwd,,", "alpha/a\x07b,,", "alpha/../../../../../x,,"]
)
def test_record_that_leads_out_of_the_venv_is_refused(venv: Path, wheel: Path, tmp_path: Path, row: str) -> None:
    with (venv / f"lib/python{PYTHON}/site-packages/alpha-1.0.dist-info/RECORD").open("a") as record:
        record.write(row + "\n")
    with pytest.raises((ValueError, OSError)):
        repack(installed(venv, wheel), wheel.name, PYTHON, folder(tmp_path))


def test_link_in_place_of_a_file_is_refused(venv: Path, wheel: Path, tmp_path: Path) -> None:
    path = venv / f"lib/python{PYTHON}/site-packages/alpha/data.bin"
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        repack(installed(venv, wheel), wheel.name, PYTHON, folder(tmp_path))


def test_folder_that_is_no_venv_has_nothing(tmp_path: Path) -> None:
    assert find_installed(tmp_path / "nothing", PYTHON) == {}
    assert find_installed(tmp_path, PYTHON) == {}
