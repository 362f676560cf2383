"""Texts of a venv that tell what went wrong, and modules of folders beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.agent.survey_texts import module_names, telling_texts

if TYPE_CHECKING:
    from pathlib import Path

SITE = "lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("path", "content", "told"),
    [
        ("pyvenv.cfg", "home = /usr/bin\n", "home = /usr/bin\n"),
        ("bin/activate", "# x\nexport VIRTUAL_ENV='/srv/old'\n", "export VIRTUAL_ENV='/srv/old'"),
        ("bin/activate", "echo taken\n", None),
        ("bin/serve", "#!/srv/old/bin/python\nimport served\n", "#!/srv/old/bin/python\nimport served\n"),
        ("bin/data", "no script\n", None),
        (f"{SITE}/links/libx.so", "libx.so.1", "libx.so.1"),
        (f"{SITE}/links/libx.so.1.2", "libx.so.1", "libx.so.1"),
        (f"{SITE}/links/libx.so.txt", "libx.so.1", None),
        (f"{SITE}/links/a.py", "x = 1\n", None),
        (f"{SITE}/links/big.so", "x" * 100_000, None),
    ],
)
def test_only_what_tells_something_is_told(tmp_path: Path, path: str, content: str, told: str | None) -> None:
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content, encoding="utf-8")
    expected = {} if told is None else {path: told}
    assert telling_texts(str(tmp_path), [path], {path: len(content)}, ()) == expected


def test_library_that_is_one_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF")
    assert telling_texts(str(tmp_path), ["a.so"], {"a.so": 4}, {"a.so"}) == {}


def test_text_with_bytes_that_are_none_is_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"lib\xff\n")
    assert telling_texts(str(tmp_path), ["a.so"], {"a.so": 5}, ()) == {"a.so": "lib\ufffd\n"}


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("#! secret", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/serve").symlink_to(tmp_path / "secret")
    assert telling_texts(str(tmp_path), ["bin/serve"], {}, ()) == {}


def test_modules_are_named_as_they_are_imported(tmp_path: Path) -> None:
    for name in ("random.py", "_fast.cpython-312-x86_64-linux-gnu.so", "notes.txt", "no-module.py"):
        (tmp_path / name).touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "data").mkdir()
    assert module_names(str(tmp_path)) == ("_fast", "package", "random")


def test_folder_that_is_not_there_has_no_modules(tmp_path: Path) -> None:
    assert module_names(str(tmp_path / "none")) == ()
