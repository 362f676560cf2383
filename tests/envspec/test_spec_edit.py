from __future__ import annotations

from typing import Any

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import EnvspecError
from envspec.spec import Requirement
from envspec.spec_edit import set_specifier
from envspec.spec_toml import parse_spec
from tests.support.strategies import spec_texts, specs

WAYS = [
    # text with the version as «», the package as it is asked for
    ('[packages]\ntorch = "«==1»"   # why\nb="1"\n', "torch"),
    ("[packages]\r\n\ttorch\t=\t\"«==1»\"\t# why\r\n\r\n[x]\r\na = '1'\r\n", "Torch"),
    ('[packages]\n"sglang.kernel" = { version="«==1»" ,extras=["a", ] } # c\n', "SGLang_Kernel"),
    ('[packages]\ntorch.extras = []\ntorch . version = "«==1»"#c\n', "torch"),
    ('[packages]\na = "1"\n\n  [packages.torch] # t\n  version = "«»" # c\n', "torch"),
    ('packages.b = "2"\npackages.torch = "«==1»" # c\n', "torch"),
    ('packages = {torch = "«==1»", b="2"} # c\n', "torch"),
    ('[packages.torch]\nversion="«*»"\n[x]\na=1\n[packages.b]\nversion="2"\n', "torch"),
    ('[packages]\ntorch = "«==1»"', "torch"),
    ('# torch = "==1"\n[overrides]\ntorch = "==1"\n\n[packages]\n# torch\ntorch = "«==1»"\n\n# end', "torch"),
]


@pytest.mark.parametrize(("marked", "package"), WAYS)
def test_only_the_version_changes_whichever_way_it_is_written(marked: str, package: str) -> None:
    head, rest = marked.split("«")
    old, tail = rest.split("»")
    assert set_specifier(f"{head}{old}{tail}", package, "==2.11.0") == f"{head}==2.11.0{tail}"


@pytest.mark.parametrize(
    ("given_specifier", "written"),
    [("== 2", "==2"), (">=2, <3", "<3,>=2"), ("", "*"), ("*", "*"), ("==2+CU130", "==2+cu130")],
)
def test_the_specifier_is_written_in_its_one_form(given_specifier: str, written: str) -> None:
    assert set_specifier('[packages]\na = "==1"\n', "a", given_specifier) == f'[packages]\na = "{written}"\n'


def test_a_table_without_a_version_gets_one() -> None:
    text = set_specifier('[packages]\na = { extras = ["x"] } # c\n', "a", "==2")
    assert tomllib.loads(text) == {"packages": {"a": {"extras": ["x"], "version": "==2"}}}
    assert text.endswith("} # c\n")


def test_a_package_that_is_not_there_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(EnvspecError, match=r"`trition` is not in \[packages\]") as caught:
        set_specifier('[packages]\ntriton = "==1"\n', "trition", "==2", input_name="ddtree.toml")
    assert caught.value.hint == "did you mean `triton`?"
    assert caught.value.input_name == "ddtree.toml"


@pytest.mark.parametrize("text", ["", "packages = 1\n", '[overrides]\na = "==1"\n'])
def test_a_text_without_packages_is_refused(text: str) -> None:
    with pytest.raises(EnvspecError, match=r"`a` is not in \[packages\]"):
        set_specifier(text, "a", "==2")


def test_a_specifier_that_is_none_is_refused() -> None:
    with pytest.raises(EnvspecError, match=r"`a`: expected a PEP 440 specifier, got `2\.0`"):
        set_specifier('[packages]\na = "==1"\n', "a", "2.0")


@pytest.mark.parametrize("odd", ["[packages.x]\ny = nan\n", "[x]\ny = " + "[" * 240 + "]" * 240 + "\n"])
def test_a_change_that_cannot_be_proven_to_be_the_only_one_is_refused(odd: str) -> None:
    with pytest.raises(EnvspecError, match="cannot be changed without changing more") as caught:
        set_specifier(f'[packages]\na = "==1"\n{odd}', "a", "==2")
    assert caught.value.hint == "write `==2` there by hand"


def test_a_text_that_is_not_toml_is_refused() -> None:
    with pytest.raises(EnvspecError, match="not valid TOML at line 1"):
        set_specifier("packages =\n", "a", "==2")


@given(st.data())
def test_the_edited_spec_differs_in_that_requirement_and_on_that_line_alone(data: st.DataObject) -> None:
    spec = data.draw(specs())
    text = data.draw(spec_texts(spec))
    wanted = data.draw(st.sampled_from(spec.packages))
    edited = set_specifier(text, wanted.name, "==77.7")
    expected = tuple(
        Requirement(name=found.name, specifier="==77.7", extras=found.extras) if found == wanted else found
        for found in spec.packages
    )
    assert parse_spec(edited, input_name="x").packages == expected
    assert _without_packages(edited) == _without_packages(text)
    before, after = text.split("\n"), edited.split("\n")
    changed = [index for index, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]
    added = len(after) - len(before)
    assert added in (0, 1)  # 1 where a table of its own has had no version
    assert added or len(changed) <= 1


def _without_packages(text: str) -> dict[str, Any]:
    return {key: value for key, value in tomllib.loads(text).items() if key != "packages"}
