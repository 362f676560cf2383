"""git answers the same whatever its user configured."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.git import Git, find_git, write_local_config
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from pathlib import Path


def repository(folder: Path) -> Git:
    folder.mkdir()
    git = find_git(os.environ).at(folder)
    git.run(["init", "--quiet", "--template="])
    write_local_config(git)
    return git


def test_git_is_found_and_says_its_version() -> None:
    assert find_git(os.environ).version >= (2, 26)


@pytest.mark.parametrize("path", [{}, {"PATH": "/nonexistent"}])
def test_git_that_is_missing_is_named_with_what_to_do(path: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(EnvspecError, match="git was not found") as caught:
        find_git({"PATH": str(tmp_path), **path})
    assert "install git 2.26 or later" in caught.value.hint


@pytest.mark.parametrize(
    ("prints", "told"), [("git version 2.17.1", "git 2.17 is too old"), ("moo", "git was not found, or does not start")]
)
def test_git_that_will_not_do_is_named(tmp_path: Path, prints: str, told: str) -> None:
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\necho {prints}\n")
    program.chmod(0o755)
    with pytest.raises(EnvspecError, match=told):
        find_git({"PATH": f"{tmp_path}:/usr/bin:/bin"})


def test_no_variable_and_no_file_of_the_user_has_a_say(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[test]\n\tkey = user\n[user]\n\tname = Jane\n")
    (tmp_path / "other").mkdir()
    environ = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "home"),
        "GIT_CONFIG_GLOBAL": str(tmp_path / "home" / ".gitconfig"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "test.key",
        "GIT_CONFIG_VALUE_0": "variable",
        "GIT_DIR": str(tmp_path / "other"),
        "GIT_WORK_TREE": str(tmp_path / "other"),
        "GIT_INDEX_FILE": str(tmp_path / "other" / "index"),
        "GIT_AUTHOR_NAME": "Jane",
        "GIT_EXTERNAL_DIFF": "/bin/false",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_TRACE": "1",
    }
    folder = tmp_path / "tree"
    folder.mkdir()
    git = find_git(environ).at(folder)
    git.run(["init", "--quiet", "--template="])
    assert git.ask(["config", "test.key"]).stdout == b""
    (folder / "a").write_bytes(b"a\r\n")
    git.run(["add", "a"])
    git.run(["commit", "--quiet", "--message=a"])
    assert (
        git.run(["log", "-1", "--format=%an %ae %at %cn %ct"])
        == b"envspec envspec@localhost 315532800 envspec 315532800\n"
    )
    assert git.run(["rev-parse", "HEAD"]).decode().strip() == "0c61ae0f6bc0363686f2f1571acf2de8704b44bd"
    assert git.run(["cat-file", "blob", "HEAD:a"]) == b"a\r\n"


def test_repository_shields_its_user_from_the_own_configuration(tmp_path: Path) -> None:
    git = repository(tmp_path / "tree")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n[user]\n\tuseConfigOnly = true\n"
    )
    (git.folder / "a").write_bytes(b"a\r\n")
    for arguments in (["add", "a"], ["commit", "--quiet", "--message=a"]):
        subprocess.run(
            ["/usr/bin/env", "git", *arguments],
            cwd=git.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
            check=True,
        )
    assert git.run(["cat-file", "blob", "HEAD:a"]) == b"a\r\n"


def test_repository_above_is_never_taken_for_the_work_tree(tmp_path: Path) -> None:
    git = repository(tmp_path / "above")
    inner = git.folder / "inner"
    inner.mkdir()
    with pytest.raises(EnvspecError, match="`git rev-parse` failed with exit code 128") as caught:
        git.at(inner).run(["rev-parse", "--git-dir"])
    assert "not a git repository" in caught.value.detail


def test_lock_that_a_killed_git_left_is_named(tmp_path: Path) -> None:
    git = repository(tmp_path / "tree")
    (git.folder / ".git" / "index.lock").touch()
    (git.folder / "a").touch()
    with pytest.raises(EnvspecError) as caught:
        git.run(["add", "a"])
    assert "index.lock" in caught.value.detail
    assert "remove the file" in caught.value.hint


def test_what_git_says_is_printable_in_an_error(tmp_path: Path) -> None:
    git = repository(tmp_path / "tree")
    with pytest.raises(EnvspecError) as caught:
        git.run(["rev-parse", "--verify", "\x1b[31mred"])
    assert "\x1b" not in str(caught.value)
