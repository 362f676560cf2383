"""Which driver CUDA asks for, and whether a host has it."""

from __future__ import annotations

import pytest

from envspec.drivers import (
    LEAST_OF_MAJOR,
    SHIPPED_WITH,
    driver_of_release,
    hosts_below,
    is_older,
    least_driver_of_major,
    newest,
)
from envspec.spec import HostSpec


@pytest.mark.parametrize(
    ("driver", "least", "older"),
    [
        ("570.86", "580", True),
        ("570.86.10", "580.65.06", True),
        ("580.65.06", "580", False),
        ("580.65", "580.65.06", False),
        ("580.82.07", "580.65.06", False),
        ("580.5.01", "580.65.06", True),
        ("1000.1", "580", False),
        ("", "580", False),
        ("570.86", "", False),
    ],
)
def test_drivers_are_compared_by_the_parts_that_both_have(driver: str, least: str, older: bool) -> None:  # noqa: FBT001
    assert is_older(driver, least) is older


@pytest.mark.parametrize(("major", "driver"), [(10, ""), (11, "450"), (12, "525"), (13, "580"), (14, "580")])
def test_least_driver_of_a_major(major: int, driver: str) -> None:
    assert least_driver_of_major(major) == driver


@pytest.mark.parametrize(
    ("release", "driver"),
    [((10, 2), ""), ((12, 4), "550.54.14"), ((12, 7), "560.28.03"), ((13, 0), "580.65.06"), ((13, 9), "615")],
)
def test_driver_of_a_release_is_that_of_the_release_before_if_it_is_not_known(
    release: tuple[int, int], driver: str
) -> None:
    assert driver_of_release(*release) == driver


def test_tables_agree() -> None:
    drivers = list(SHIPPED_WITH.values())
    assert sorted(drivers, key=lambda each: tuple(map(int, each.split(".")))) == drivers
    for (major, _), driver in SHIPPED_WITH.items():
        assert not is_older(driver, LEAST_OF_MAJOR[major])


def test_newest_driver_is_found() -> None:
    assert newest(["580", "", "550.54.14"]) == "580"
    assert newest(["580", "580.65.06"]) == "580.65.06"
    assert newest([]) == ""


def test_hosts_that_state_an_older_driver_are_found() -> None:
    old, new, silent = (
        HostSpec(name=name, ssh=name, driver=driver) for name, driver in [("a", "570.86"), ("b", "580.65"), ("c", "")]
    )
    assert hosts_below([old, new, silent], "580") == (old,)
    assert hosts_below([old, new, silent], "") == ()
