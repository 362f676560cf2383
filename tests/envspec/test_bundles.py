from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.bundles import BundleIndex, BundleMember, index_bytes, parse_index
from envspec.errors import EnvspecError

SHA = "a" * 64
INDEX = BundleIndex(
    name="demo",
    env="e" * 32,
    site="5" * 64,
    spec="demo.toml",
    members=(
        BundleMember(path="spec/demo.lock", size=1, sha256=SHA),
        BundleMember(path="spec/demo.toml", size=2, sha256=SHA),
        BundleMember(path="agent.zip", size=3, sha256=SHA),
        BundleMember(path="install", size=3, sha256=SHA, executable=True),
        BundleMember(path=f"wheels/{SHA}/a-1.0-py3-none-any.whl", size=4, sha256=SHA),
    ),
)


def fields() -> dict[str, Any]:
    value = json.loads(index_bytes(INDEX))
    assert isinstance(value, dict)
    return value


def refused(value: Any) -> str:
    with pytest.raises(EnvspecError) as caught:
        parse_index(json.dumps(value).encode(), input_name="b.tar")
    assert caught.value.exit_code == 1
    return caught.value.message


def test_index_comes_back() -> None:
    assert parse_index(index_bytes(INDEX), input_name="b") == INDEX


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "spec/../../x",
        "spec//x",
        "spec/./x",
        "spec/x\n",
        "spec",
        "bundle.json",
        "other",
        "wheels/x.whl",
        f"wheels/{SHA}/../x.whl",
        f"wheels/{SHA}/x/y.whl",
        f"wheels/{SHA}/.whl/x",
        f"wheels/{'b' * 64}/x.whl",
        "spec/" + "x" * 300,
    ],
)
def test_path_that_no_bundle_has_is_refused(path: str) -> None:
    value = fields()
    value["members"].append({"path": path, "size": 1, "sha256": SHA, "executable": False})
    assert "no bundle that can be read" in refused(value)


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"size": True},
        {"size": 1.5},
        {"size": 1 << 60},
        {"sha256": "A" * 64},
        {"sha256": None},
        {"path": 7},
        {"path": "spec/demo.lock"},
    ],
)
def test_row_that_is_none_is_refused(change: dict[str, Any]) -> None:
    value = fields()
    value["members"][2].update(change)
    refused(value)


def test_order_and_format_count() -> None:
    value = fields()
    value["members"].reverse()
    assert "another order" in refused(value)
    assert "format 2" in refused({**fields(), "bundle": 2})
    assert "no spec or no lock" in refused({**fields(), "spec": "other.toml"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_refused_and_never_breaks(value: Any) -> None:
    refused(value)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_never_break(raw: bytes) -> None:
    with pytest.raises(EnvspecError):
        parse_index(raw, input_name="b.tar")
