"""Lists of hosts as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import EnvspecError
from envspec.node_lists import HOSTS_LIMIT, expand_nodes


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[001-003,7]", ("n001", "n002", "n003", "n7")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("a,b[1-2]c,d", ("a", "b1c", "b2c", "d")),
        ("r[0-1]n[0-1]", ("r0n0", "r0n1", "r1n0", "r1n1")),
        ("a,a", ("a",)),
    ],
)
def test_list_is_expanded_in_its_order(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_nodes(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,,b",
        "n[",
        "n]",
        "n[]",
        "n[1",
        "n[1-]",
        "n[-1]",
        "n[3-1]",
        "n[a-b]",
        "n[[1]]",
        "n[1]]",
        "n[1-2-3]",
        "n[\uff11]",
    ],
)
def test_what_is_no_list_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(EnvspecError, match="is no list of hosts") as caught:
        expand_nodes(text, input_name="--inventory")
    assert caught.value.input_name == "--inventory"


@pytest.mark.parametrize("text", ["n[0-999999999]", "n[0-999]m[0-999]", f"n[0-{HOSTS_LIMIT}]", "a[0-40000],b[0-40000]"])
def test_list_without_end_is_refused_before_it_fills_memory(text: str) -> None:
    with pytest.raises(EnvspecError, match="more than 65536 hosts"):
        expand_nodes(text)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30, unique=True), st.integers(1, 6))
def test_every_number_comes_back_with_its_width(numbers: list[int], width: int) -> None:
    written = [str(number).zfill(width) for number in numbers]
    assert expand_nodes(f"n[{','.join(written)}]") == tuple(f"n{each}" for each in written)


@given(st.text(alphabet="ab01[]-,", max_size=20))
def test_any_text_gives_hosts_or_an_error(text: str) -> None:
    try:
        hosts = expand_nodes(text)
    except EnvspecError:
        return
    assert hosts
    assert not any(set(host) & set("[],") for host in hosts)
