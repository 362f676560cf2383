"""Which published wheel a distribution is: decided by the bytes that lie there, not by what metadata says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.adoption.attribution import attribute
from envspec.adoption.disk import Disk
from envspec.adoption.questions import stray_projects, versions_of
from envspec.adoption.versions import ordered_versions, same_version
from tests.support.adoptions import SITE, distribution, labelled, observation, published

if TYPE_CHECKING:
    import random

    from envspec.adoption.values import PublishedWheel

OLD = {"demo/a.py": "a = 1\n", "demo/b.py": "b = 1\n", "demo/c.py": "c = 1\n", "demo/big.bin": "x" * 1000}
NEW = {**OLD, "demo/a.py": "a = 2\n", "demo/b.py": "b = 2\n", "demo/big.bin": "y" * 1000}
WHEELS = [published("demo", "1.0", OLD), published("demo", "2.0", NEW), published("other", "1.0", OLD)]


def attributed(files: dict[str, str], *, version: str = "2.0", wheels: list[PublishedWheel] | None = None) -> str:
    """Version of the wheel that is chosen; empty for none."""
    each = distribution("demo", version, files)
    found = attribute(each, WHEELS if wheels is None else wheels, Disk(observation([each])))
    return found.wheel.version if found.wheel else ""


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (OLD, "1.0"),
        (NEW, "2.0"),
        # One foreign binary among files of 2.0; three of four files of 1.0 under metadata of 2.0.
        ({**NEW, "demo/big.bin": OLD["demo/big.bin"]}, "2.0"),
        ({**OLD, "demo/c.py": "c = 'edited'\n"}, "1.0"),
        # Edited text, the rest as published.
        ({**NEW, "demo/a.py": "mine\n"}, "2.0"),
        # Nothing of any wheel: METADATA alone makes none... unless hardly anything differs.
        (dict.fromkeys(NEW, "mine") | {f"demo/more{number}.py": "mine" for number in range(5)}, "2.0"),
    ],
)
def test_wheel_that_explains_the_most_files_is_taken(files: dict[str, str], chosen: str) -> None:
    assert attributed(files) == chosen


def test_metadata_alone_makes_no_wheel_of_many_other_files() -> None:
    large = {f"demo/m{number}.py": f"{number}\n" for number in range(20)}
    wheel = published("demo", "2.0", large)
    assert attributed(dict.fromkeys(large, "mine\n"), wheels=[wheel]) == ""


def test_empty_files_make_no_wheel() -> None:
    wheel = published("demo", "2.0", {"demo/__init__.py": "", "demo/py.typed": ""})
    each = distribution("demo", "1.0", {"demo/__init__.py": "", "demo/py.typed": "", "demo/own.py": "own\n"})
    assert attribute(each, [wheel], Disk(observation([each]))).wheel is None


def test_more_bytes_decide_between_as_many_files() -> None:
    left = published(
        "demo",
        "1.0",
        {"demo/a.py": "a", "demo/big.bin": "x" * 99, "demo/c.py": "1"},
        file="demo-1.0-1-py3-none-any.whl",
    )
    right = published(
        "demo",
        "1.0",
        {"demo/a.py": "b", "demo/big.bin": "y" * 99, "demo/c.py": "2"},
        file="demo-1.0-2-py3-none-any.whl",
    )
    files = {"demo/a.py": "a", "demo/big.bin": "y" * 99, "demo/c.py": "3"}
    each = distribution("demo", "1.0", files)
    found = attribute(each, [left, right], Disk(observation([each])))
    assert found.wheel == right


def test_installers_preference_decides_between_equal_wheels() -> None:
    files = {"demo/a.py": "a"}
    one, two = (published("demo", "1.0", files, file=f"demo-1.0-{build}-py3-none-any.whl") for build in (1, 2))
    each = distribution("demo", "1.0", files)
    for preferred in ((one.file, two.file), (two.file, one.file)):
        found = attribute(each, [one, two], Disk(observation([each])), preferred=preferred)
        assert found.wheel is not None
        assert found.wheel.file == preferred[0]


@given(st.randoms(use_true_random=False))
def test_order_of_candidates_does_not_matter(order: random.Random) -> None:
    wheels = [*WHEELS, published("demo", "1.5", {**OLD, "demo/a.py": "a = 1.5\n"})]
    order.shuffle(wheels)
    assert attributed({**OLD, "demo/a.py": "a = 1.5\n"}, wheels=wheels) == "1.5"


def test_what_is_odd_is_said() -> None:
    each = distribution("demo", "2.0", OLD)
    assert (
        attribute(each, WHEELS, Disk(observation([each]))).reason
        == "the dist-info says 2.0, the files are those of 1.0"
    )
    each = distribution("demo", "2.0", NEW, folder_version="1.9")
    assert attribute(each, WHEELS, Disk(observation([each]))).reason == "METADATA says 2.0, its folder 1.9"


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("1.0", "1.0.0", True),
        ("2.11.0+cu130", "2.11.0", True),
        ("1.0", "1.0.post1", False),
        ("x", "x+1", True),
        ("x", "y", False),
        ("1" * 5000, "2", False),
    ],
)
def test_versions_are_the_same_but_for_local_parts(left: str, right: str, *, same: bool) -> None:
    assert same_version(left, right) is same


def test_versions_worth_asking_for_are_those_that_anything_says() -> None:
    each = distribution(
        "torch",
        "2.11.0",
        {},
        folder_version="2.11.0+cu130",
        top_level=("torch",),
        binaries=labelled("torch/version.py", "2.10.0+cu128"),
    )
    assert versions_of(each) == ("2.11.0", "2.11.0+cu130", "2.10.0+cu128", "2.10.0")
    each = distribution("torch", "", {}, folder_version="", binaries=labelled("functorch/version.py", "1.0"))
    assert versions_of(each) == ()


def test_strays_are_guessed_to_be_projects_of_their_name() -> None:
    strays = {
        f"{SITE}/six.py": "x",
        f"{SITE}/My_Tool/__init__.py": "y",
        f"{SITE}/zz.pth": "z",
        "bin/tool": "t",
        f"{SITE}/demo/x.py": "d",
    }
    seen = observation(
        [distribution("demo", "1.0", {})], strays, stray_binaries=labelled("My_Tool/version.py", "3.1+x")
    )
    assert stray_projects(seen, strays) == {"my-tool": ("3.1+x", "3.1"), "six": ()}


def test_versions_are_ordered_and_what_is_none_comes_last() -> None:
    assert ordered_versions(["1.10", "x", "1.9", "1" * 5000, "1.9rc1"]) == ["1.9rc1", "1.9", "1.10", "1" * 5000, "x"]
