from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.credentials import Credentials, credential_variable, origin_of, read_credentials
from builder.uv import read_index_settings
from envspec.spec import IndexSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read(home: Path, environ: Mapping[str, str], *indexes: IndexSpec) -> Credentials:
    complete = {"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "system"), **environ}
    return read_credentials(complete, indexes)


def login(credentials: Credentials, url: str) -> tuple[str, str] | None:
    found = credentials.for_url(url)
    return (found.user, found.password) if found else None


@pytest.mark.parametrize(
    "variable", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"]
)
def test_userinfo_in_a_variable_of_uv_is_for_the_origin_of_its_url(tmp_path: Path, variable: str) -> None:
    credentials = read(tmp_path, {variable: "https://user:s%40cret@mirror.test/simple/"})
    assert login(credentials, "https://mirror.test/files/demo.whl") == ("user", "s@cret")


@pytest.mark.parametrize(
    "url",
    [
        "http://mirror.test/files/demo.whl",
        "https://mirror.test:8443/files/demo.whl",
        "https://files.mirror.test/demo.whl",
        "https://mirror.test.evil.test/demo.whl",
        "https://evil.test/https://mirror.test/demo.whl",
        "https://mirror.test@evil.test/demo.whl",
        "file:///mirror.test/demo.whl",
        "https://[mirror.test/demo.whl",
        "https://mirror.test:port/demo.whl",
    ],
)
def test_no_other_origin_gets_a_credential(tmp_path: Path, url: str) -> None:
    credentials = read(tmp_path, {"UV_DEFAULT_INDEX": "https://user:secret@mirror.test/simple/"})
    assert login(credentials, url) is None


def test_the_schemes_own_port_is_the_same_origin(tmp_path: Path) -> None:
    credentials = read(tmp_path, {"UV_DEFAULT_INDEX": "https://user:secret@Mirror.test/simple/"})
    assert login(credentials, "https://mirror.test:443/demo.whl") == ("user", "secret")


def test_an_index_of_the_spec_gets_the_user_and_password_of_the_variables_with_its_name(tmp_path: Path) -> None:
    index = IndexSpec(name="torch-cu130", url="https://torch.test/whl/cu130", packages=("torch",))
    environ = {"UV_INDEX_TORCH_CU130_USERNAME": "user", "UV_INDEX_TORCH_CU130_PASSWORD": "secret"}
    assert login(read(tmp_path, environ, index), "https://torch.test/whl/torch.whl") == ("user", "secret")


def test_the_variables_with_an_indexs_name_win_over_its_url(tmp_path: Path) -> None:
    environ = {
        "UV_DEFAULT_INDEX": "corp=https://old:old@mirror.test/simple/",
        "UV_INDEX_CORP_USERNAME": "user",
        "UV_INDEX_CORP_PASSWORD": "secret",
    }
    assert login(read(tmp_path, environ), "https://mirror.test/demo.whl") == ("user", "secret")


@pytest.mark.parametrize("place", ["XDG_CONFIG_HOME", "home", "XDG_CONFIG_DIRS", "UV_CONFIG_FILE"])
def test_userinfo_in_uv_toml_is_found(tmp_path: Path, place: str) -> None:
    folder = {"home": tmp_path / ".config/uv", "XDG_CONFIG_DIRS": tmp_path / "system/uv"}.get(place, tmp_path / "x/uv")
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text('[[index]]\nurl = "https://user:secret@mirror.test/simple"\nexplicit = true\n')
    environ = {
        "XDG_CONFIG_HOME": {"XDG_CONFIG_HOME": str(tmp_path / "x")},
        "UV_CONFIG_FILE": {"UV_CONFIG_FILE": str(folder / "uv.toml")},
    }.get(place, {})
    assert login(read(tmp_path, environ), "https://mirror.test/demo.whl") == ("user", "secret")


def test_netrc_is_asked_for_the_hosts_of_indexes_only(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(
        "machine mirror.test login user password secret\n"
        "machine elsewhere.test login other password other\n"
        "default login anyone password anything\n"
    )
    netrc.chmod(0o600)
    environ = {"NETRC": str(netrc), "UV_DEFAULT_INDEX": "https://mirror.test/simple/", "UV_INDEX": "https://none.test/"}
    credentials = read(tmp_path, environ)
    assert login(credentials, "https://mirror.test/demo.whl") == ("user", "secret")
    assert login(credentials, "https://elsewhere.test/demo.whl") is None
    assert login(credentials, "https://none.test/demo.whl") is None


def test_a_broken_netrc_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine\n")
    assert read(tmp_path, {"UV_DEFAULT_INDEX": "https://mirror.test/simple/"}) == Credentials()


def test_of_two_indexes_on_one_host_the_nearer_one_gives_the_credential(tmp_path: Path) -> None:
    credentials = read(tmp_path, {"UV_INDEX": "https://a:1@host.test/one/simple https://b:2@host.test/two/simple"})
    assert login(credentials, "https://host.test/one/files/x.whl") == ("a", "1")
    assert login(credentials, "https://host.test/two/files/x.whl") == ("b", "2")
    assert login(credentials, "https://host.test/other/x.whl") == ("a", "1")


def test_a_page_of_links_that_is_no_url_gives_nothing(tmp_path: Path) -> None:
    environ = {"UV_FIND_LINKS": "https://u:p@[broken/simple,https://u:p@host.test:port/,./here"}
    assert read(tmp_path, environ) == Credentials()


def test_no_representation_shows_a_secret(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "UV_DEFAULT_INDEX": "corp=https://alice:hunter2@mirror.test/simple/"}
    settings = read_index_settings(environ)
    shown = f"{settings!r} {settings!s} {read_credentials(environ)!r}"
    assert "hunter2" not in shown
    assert "alice" not in shown


def test_the_header_is_basic_auth_in_utf_8(tmp_path: Path) -> None:
    found = read(tmp_path, {"UV_DEFAULT_INDEX": "https://us%C3%A9r:p%3Aw@mirror.test/"}).for_url(
        "https://mirror.test/x"
    )
    assert found is not None
    assert found.header() == "Basic dXPDqXI6cDp3"


def test_a_variable_is_named_as_uv_names_it() -> None:
    assert credential_variable("pytorch-cu130.x", "PASSWORD") == "UV_INDEX_PYTORCH_CU130_X_PASSWORD"


def test_an_origin_has_scheme_host_and_port() -> None:
    assert origin_of("HTTPS://u:p@Host.Test/x") == ("https", "host.test", 443)
