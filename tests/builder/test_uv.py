from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.uv import LEAST_UV, ConfiguredIndex, find_uv, quiet_environ, read_index_settings, redact
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from pathlib import Path


def make_program(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "uv"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def search_path(*folders: Path) -> str:
    return os.pathsep.join(map(str, folders))


def test_the_uv_that_the_environment_variable_names_comes_first(tmp_path: Path) -> None:
    named = make_program(tmp_path / "named", "echo 'uv 99.1.2 (x86_64-unknown-linux-gnu)'")
    in_path = make_program(tmp_path / "bin", "echo uv 99.0.0")
    found = find_uv({"UV": str(named), "PATH": str(in_path.parent)})
    assert (found.path, found.version) == (named, (99, 1, 2))


@pytest.mark.parametrize("broken", ["exit 127", "echo other 1.2.3", "kill -9 $$", "exec /nonexistent"])
def test_a_shim_that_fails_is_skipped(tmp_path: Path, broken: str) -> None:
    shim = make_program(tmp_path / "shims", broken)
    good = make_program(tmp_path / "bin", "echo uv 99.0.0")
    found = find_uv({"UV": str(tmp_path / "gone"), "PATH": search_path(shim.parent, tmp_path / "none", good.parent)})
    assert found.path == good


def test_a_folder_or_a_file_without_the_executable_bit_is_no_uv(tmp_path: Path) -> None:
    (tmp_path / "a/uv").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/uv").write_text("#!/bin/sh\necho uv 99.0.0\n")
    with pytest.raises(EnvspecError, match="no uv"):
        find_uv({"PATH": search_path(tmp_path / "a", tmp_path / "b")})


def test_an_old_uv_is_passed_over_for_a_newer_one(tmp_path: Path) -> None:
    old = make_program(tmp_path / "old", "echo uv 0.4.1")
    good = make_program(tmp_path / "new", "echo uv 99.0.0")
    assert find_uv({"PATH": search_path(old.parent, good.parent)}).path == good


def test_an_error_tells_both_versions_and_what_to_do(tmp_path: Path) -> None:
    old = make_program(tmp_path / "old", "echo uv 0.4.1")
    with pytest.raises(EnvspecError) as caught:
        find_uv({"PATH": str(old.parent)}, least=(0, 9, 0))
    assert caught.value.message == f"no uv 0.9.0 or later was found: `{old}` is 0.4.1"
    assert caught.value.hint == (
        "install uv 0.9.0 or later so that it is in PATH, or name it in the environment variable `UV`"
    )


def test_variables_that_would_change_the_result_are_kept_from_uv() -> None:
    dropped = [
        "UV_PRERELEASE",
        "UV_RESOLUTION",
        "UV_CONSTRAINT",
        "UV_OVERRIDE",
        "UV_BUILD_CONSTRAINT",
        "UV_EXCLUDE_NEWER",
        "UV_NO_BINARY",
        "UV_TORCH_BACKEND",
        "UV_INDEX_STRATEGY",
        "UV_CACHE_DIR",
        "UV_CONFIG_FILE",
        "UV_PYTHON",
        "UV_NEW_SETTING",
        "PIP_INDEX_URL",
    ]
    kept = ["UV_DEFAULT_INDEX", "UV_INDEX_CORP_USERNAME", "UV_HTTP_TIMEOUT", "HTTPS_PROXY", "HOME", "PATH"]
    assert sorted(quiet_environ(dict.fromkeys([*dropped, *kept], "x"))) == sorted(kept)


def test_what_uv_toml_decides_beside_indexes_does_not_reach_uv(tmp_path: Path) -> None:
    script = make_program(
        tmp_path, 'case "$1" in --version) echo uv 99.0.0;; *) echo "$@"; echo "x$UV_RESOLUTION";; esac'
    )
    uv = find_uv({"UV": str(script)})
    ended = uv.run(["pip", "list"], cache_dir=tmp_path / "c", environ={"UV_RESOLUTION": "lowest"}, offline=True)
    assert ended.stdout.splitlines() == [
        f"pip list --no-config --no-python-downloads --no-progress --color=never --cache-dir={tmp_path / 'c'} --offline",
        "x",
    ]


@pytest.mark.real
def test_the_uv_of_this_machine_is_recent_enough() -> None:
    assert find_uv(os.environ).version >= LEAST_UV


def index(url: str, name: str = "") -> ConfiguredIndex:
    return ConfiguredIndex(name=name, url=url)


def write_uv_toml(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_variables_come_before_uv_toml_and_the_users_uv_toml_before_the_systems(tmp_path: Path) -> None:
    write_uv_toml(
        tmp_path / "user/uv/uv.toml",
        """
        index-url = "http://plain.test"
        extra-index-url = ["http://extra1.test", "http://extra2.test"]
        find-links = ["./wheels"]
        resolution = "lowest"
        system-certs = true
        allow-insecure-host = ["a.test", "b.test"]
        [[index]]
        url = "http://user.test"
        default = true
        [[index]]
        name = "named"
        url = "http://named.test"
        [[index]]
        name = "only"
        url = "http://only.test"
        explicit = true
        [pip]
        extra-index-url = ["http://pip.test"]
        keyring-provider = "subprocess"
        """,
    )
    write_uv_toml(tmp_path / "system/uv/uv.toml", '[[index]]\nurl = "http://system.test"\n')
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path / "user"),
        "XDG_CONFIG_DIRS": str(tmp_path / "system"),
        "UV_INDEX": "corp=http://corp.test?a=b http://other.test",
        "UV_EXTRA_INDEX_URL": "http://late.test",
        "UV_FIND_LINKS": "/a,/b",
    }
    settings = read_index_settings(environ)
    assert settings.default == index("http://user.test")
    assert settings.extra == (
        index("http://corp.test?a=b", "corp"),
        index("http://other.test"),
        index("http://late.test"),
        index("http://named.test", "named"),
        index("http://system.test"),
        index("http://pip.test"),
        index("http://extra1.test"),
        index("http://extra2.test"),
    )
    assert settings.explicit == (index("http://only.test", "only"),)
    assert settings.named("only") == index("http://only.test", "only")
    assert settings.named("unknown") is None
    assert settings.find_links == ("/a", "/b", "./wheels")
    assert dict(settings.reaching) == {
        "UV_SYSTEM_CERTS": "true",
        "UV_KEYRING_PROVIDER": "subprocess",
        "UV_INSECURE_HOST": "a.test b.test",
    }
    assert read_index_settings({**environ, "UV_INDEX_URL": "http://v.test"}).default == index("http://v.test")
    both = {**environ, "UV_INDEX_URL": "http://v.test", "UV_DEFAULT_INDEX": "d=http://d.test"}
    assert read_index_settings(both).default == index("http://d.test", "d")


def test_uv_toml_is_left_out_if_uv_is_told_so(tmp_path: Path) -> None:
    write_uv_toml(tmp_path / "uv/uv.toml", 'index-url = "http://plain.test"')
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    assert read_index_settings(environ).default == index("http://plain.test")
    assert read_index_settings({**environ, "UV_NO_CONFIG": "1"}).default is None


@pytest.mark.parametrize(
    "text",
    [
        'index = "x"',
        "index = 3",
        "index = [1]",
        "[[index]]\nurl = 3",
        "index-url = 3",
        "pip = 1",
        "[[index]]\nname = 'x'",
    ],
)
def test_an_odd_uv_toml_gives_no_index(tmp_path: Path, text: str) -> None:
    write_uv_toml(tmp_path / "uv.toml", text)
    assert read_index_settings({"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}).every_index() == ()


@pytest.mark.parametrize("url", ["https://u:secret@[broken/simple", "https://u:secret@host.test:port/"])
def test_an_index_without_a_valid_url_is_an_error_that_does_not_show_it(url: str) -> None:
    with pytest.raises(EnvspecError, match="has no valid URL") as caught:
        read_index_settings({"UV_INDEX": url, "UV_NO_CONFIG": "1"})
    assert "secret" not in str(caught.value)


def test_a_uv_toml_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "uv.toml"
    path.write_text('index-url = "http://user:secret@host.test')
    with pytest.raises(EnvspecError, match="the configuration of uv cannot be read") as caught:
        read_index_settings({"UV_CONFIG_FILE": str(path)})
    assert caught.value.input_name == str(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Failed to fetch: `https://user:pw@host.test/simple/x/`", "Failed to fetch: `<url>`"),
        ("for url (http://host.test/token-abc/simple/)", "for url (<url>)"),
        ("at HTTP://u:p@h/ and ftp+x://a.b/c?d=e#f.", "at <url> and <url>."),
        ("file:///home/me/wheels is", "<url> is"),
        ("name hunter2 here", "name <hidden> here"),
        ("nothing: here // at all", "nothing: here // at all"),
    ],
)
def test_no_url_and_no_secret_is_shown(text: str, shown: str) -> None:
    assert redact(text, ["hunter2", ""]) == shown
