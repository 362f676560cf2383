from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import EnvspecError
from envspec.tags import best_wheel, platform_tags, target_tags

if TYPE_CHECKING:
    import random

TARGET = target_tags(python="3.12", platform="linux-x86_64", glibc="2.35")


def test_platforms_go_from_the_hosts_glibc_down_with_the_legacy_names_beside_their_equals() -> None:
    platforms = list(platform_tags(platform="linux-x86_64", glibc="2.18"))
    assert platforms[:3] == ["manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert platforms[-3:] == ["manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    assert "manylinux2010_x86_64" in platforms


def test_manylinux_begins_at_glibc_2_17_on_aarch64() -> None:
    assert list(platform_tags(platform="linux-aarch64", glibc="2.18")) == [
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
        "linux_aarch64",
    ]


@pytest.mark.parametrize(
    ("tag", "accepted"),
    [
        ("cp312-cp312-manylinux_2_35_x86_64", True),
        ("cp312-cp312-manylinux_2_36_x86_64", False),
        ("cp312-cp312-manylinux1_x86_64", True),
        ("cp312-cp312-linux_x86_64", True),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("cp312-cp312-manylinux_2_17_aarch64", False),
        ("cp312-cp312-macosx_11_0_arm64", False),
        ("cp312-cp312t-manylinux_2_17_x86_64", False),
        ("cp311-cp311-manylinux_2_17_x86_64", False),
        ("cp39-abi3-manylinux_2_17_x86_64", True),
        ("cp313-abi3-manylinux_2_17_x86_64", False),
        ("cp312-none-manylinux_2_17_x86_64", True),
        ("py3-none-manylinux_2_17_x86_64", True),
        ("py310-none-any", True),
        ("py313-none-any", False),
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("py2-none-any", False),
    ],
)
def test_a_target_accepts_what_it_can_run_and_nothing_else(tag: str, accepted: bool) -> None:  # noqa: FBT001
    name = f"demo-1.0-{tag}.whl"
    assert best_wheel([name], TARGET) == (name if accepted else None)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "demo-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"),
        ("demo-1.0-cp312-cp312-manylinux_2_5_x86_64.whl", "demo-1.0-cp312-cp312-linux_x86_64.whl"),
        ("demo-1.0-cp312-cp312-linux_x86_64.whl", "demo-1.0-cp312-abi3-manylinux_2_28_x86_64.whl"),
        ("demo-1.0-cp312-abi3-manylinux_2_28_x86_64.whl", "demo-1.0-cp39-abi3-manylinux_2_28_x86_64.whl"),
        ("demo-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"),
        ("demo-1.0-py3-none-manylinux_2_28_x86_64.whl", "demo-1.0-py3-none-any.whl"),
        ("demo-1.0-1-py3-none-any.whl", "demo-1.0-py3-none-any.whl"),
        ("demo-1.0-10-py3-none-any.whl", "demo-1.0-9-py3-none-any.whl"),
        ("demo-1.0-9b-py3-none-any.whl", "demo-1.0-9a-py3-none-any.whl"),
        ("demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "demo-1.0-99-py3-none-any.whl"),
    ],
)
def test_the_better_of_two_wheels_is_taken_in_either_order(better: str, worse: str) -> None:
    assert best_wheel([better, worse], TARGET) == better
    assert best_wheel([worse, better], TARGET) == better


def test_a_name_that_is_no_wheels_is_passed_over() -> None:
    names = ["demo-1.0.tar.gz", "demo.whl", "../demo-1.0-py3-none-any.whl.metadata", "demo-1.0-py3-none-any.whl"]
    assert best_wheel(names, TARGET) == "demo-1.0-py3-none-any.whl"


def test_a_patch_level_of_python_changes_no_tag() -> None:
    assert target_tags(python="3.12.3", platform="linux-x86_64", glibc="2.35") == TARGET


@pytest.mark.parametrize(
    ("python", "platform", "glibc", "message"),
    [
        ("3.12", "win-amd64", "2.35", "platform `win-amd64` is unknown; `linux-x86_64` and `linux-aarch64` are known"),
        ("3", "linux-x86_64", "2.35", "version `3` of Python is not of the form `3.12`"),
        ("3.12", "linux-x86_64", "2.x", "version `2.x` of glibc is not of the form `2.35`"),
        ("3.12", "linux-x86_64", "3.0", "glibc `3.0` is unknown; manylinux is defined for glibc 2.N"),
    ],
)
def test_an_unknown_target_is_an_error(python: str, platform: str, glibc: str, message: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        target_tags(python=python, platform=platform, glibc=glibc)
    assert caught.value.message == message


WHEEL_NAMES = st.builds(
    "demo-1.0{}-{}.whl".format,
    st.sampled_from(["", "-1", "-2", "-10", "-2a"]),
    st.sampled_from(
        [
            "cp312-cp312-manylinux_2_28_x86_64",
            "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64",
            "cp311-cp311-manylinux_2_28_x86_64",
            "cp39-abi3-manylinux_2_28_x86_64",
            "py3-none-any",
            "py2.py3-none-any",
        ]
    ),
)


@given(st.lists(WHEEL_NAMES, unique=True), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_the_names(names: list[str], shuffler: random.Random) -> None:
    shuffled = list(names)
    shuffler.shuffle(shuffled)
    assert best_wheel(names, TARGET) == best_wheel(shuffled, TARGET)
