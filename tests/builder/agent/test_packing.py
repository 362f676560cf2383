"""What is packed for the wire comes out as it went in, and nothing comes out that is too large."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.agent.packing import LIMIT_BYTES, pack, unpack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES))
def test_what_is_packed_comes_out_as_it_went_in(values: dict[str, object]) -> None:
    packed = pack(values)
    assert unpack(packed) == values
    assert json.dumps(packed).isascii()


def packed_bytes(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content)).decode()


@pytest.mark.parametrize(
    "packed",
    [
        "",
        "~",
        "\x00",
        pack({"a": 1})[:-6],
        packed_bytes(b"[1]"),
        packed_bytes(b"{"),
        packed_bytes(b" " * (LIMIT_BYTES + 1)),
    ],
    ids=["empty", "short", "no base 85", "cut off", "a list", "no JSON", "too large"],
)
def test_what_is_not_packed_well_is_refused(packed: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(packed)
