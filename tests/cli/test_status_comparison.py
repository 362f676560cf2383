"""Which hosts differ from which: from the lock where it says what is right, else from most of them."""

from __future__ import annotations

import pytest

from envspec.cli.status_hosts import compare

LOCKED = {"env": "L"}


@pytest.mark.parametrize(
    ("attributes", "unlike"),
    [
        ({"env": {"a": "L", "b": "L"}}, {"a": "", "b": ""}),
        ({"env": {"a": "L", "b": "X"}}, {"a": "", "b": "env"}),
        ({"env": {"a": "X", "b": "X", "c": "L"}}, {"a": "env", "b": "env", "c": ""}),  # the lock, not the majority
        ({"env": {"a": "X", "b": "X"}}, {"a": "env", "b": "env"}),
        ({"driver": {"a": "1", "b": "1", "c": "2"}}, {"a": "", "b": "", "c": "driver"}),
        ({"driver": {"a": "1", "b": "2"}}, {"a": "driver", "b": "driver"}),  # nobody knows which is right
        ({"driver": {"a": "1", "b": "1", "c": "2", "d": "2"}}, dict.fromkeys("abcd", "driver")),
        ({"env": {"a": "L"}, "driver": {"a": "1", "b": "1"}}, {"a": "", "b": ""}),  # nothing built on `b`
        ({"env": {"a": "X", "b": "L"}, "gpus": {"a": "8", "b": "4", "c": "8"}}, {"a": "env", "b": "gpus", "c": ""}),
        ({"env": {}, "driver": {}}, {"a": ""}),
    ],
)
def test_hosts_are_compared(attributes: dict[str, dict[str, str]], unlike: dict[str, str]) -> None:
    comparison = compare(attributes, LOCKED)
    assert {host: comparison.of(host) for host in unlike} == unlike
