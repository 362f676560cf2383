from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from envspec.lock import Lock, LockedPackage
from envspec.lock_merge import merge_pins, moved_pins

EMPTY = Lock(
    spec_sha256="0" * 64,
    env="a" * 32,
    site="0" * 64,
    name="demo",
    snapshot="",
    python="3.12",
    python_exact="",
    platform="linux-x86_64",
    glibc="2.35",
    libraries=(),
    cuda_toolkit="",
    cuda_compute=(),
    packages=(),
)


def lock(**versions: str) -> Lock:
    return replace(EMPTY, packages=tuple(package(name, version) for name, version in sorted(versions.items())))


def package(name: str, version: str, *, digest: str = "", index: str = "default") -> LockedPackage:
    return LockedPackage(
        name=name,
        version=version,
        index=index,
        file=f"{name}-{version}-py3-none-any.whl",
        size=1,
        sha256=(digest or version.replace(".", "")).ljust(64, "0"),
        tree="0" * 64,
    )


def versions(pins: tuple[LockedPackage, ...]) -> dict[str, str]:
    return {each.name: each.version for each in pins}


def test_what_one_side_moved_has_moved() -> None:
    pins = merge_pins(lock(a="1", b="1"), lock(a="2", b="1"), lock(a="1", b="3"))
    assert versions(pins.agreed) == {"a": "2", "b": "3"}
    assert pins.disputed == ()


def test_what_both_moved_alike_has_moved_and_what_they_moved_apart_is_disputed() -> None:
    pins = merge_pins(lock(a="1", b="1"), lock(a="2", b="2"), lock(a="2", b="3"))
    assert versions(pins.agreed) == {"a": "2"}
    assert [(each.where, each.message) for each in pins.disputed] == [
        ("b", "ours has `2`, theirs `3`, before it was `1`")
    ]


def test_package_that_both_added_with_other_versions_is_disputed() -> None:
    (problem,) = merge_pins(lock(), lock(a="1"), lock(a="2")).disputed
    assert problem.message == "ours has `1`, theirs `2`, before there was none"


def test_same_version_with_other_bytes_is_disputed_and_told_by_its_sha256() -> None:
    before = replace(EMPTY, packages=(package("a", "1", digest="a"),))
    ours = replace(EMPTY, packages=(package("a", "1", digest="b"),))
    theirs = replace(EMPTY, packages=(package("a", "1", digest="c"),))
    (problem,) = merge_pins(before, ours, theirs).disputed
    assert problem.message.startswith("ours has `1` with sha256 `b000")


def test_same_wheel_from_another_index_is_a_move_too() -> None:
    moved = replace(EMPTY, packages=(package("a", "1", index="other"),))
    assert merge_pins(lock(a="1"), lock(a="1"), moved).agreed[0].index == "other"


def test_what_one_side_dropped_is_a_preference_of_the_other() -> None:
    pins = merge_pins(lock(a="1", b="1"), lock(b="1"), lock(a="2", b="1"))
    assert versions(pins.agreed) == {"a": "2", "b": "1"}


def test_wheel_that_is_not_the_agreed_one_is_told() -> None:
    pins = merge_pins(lock(a="1"), lock(a="1"), lock(a="1", b="1"))
    assert moved_pins(pins, lock(a="1", b="1", c="9")) == ()
    (problem,) = moved_pins(pins, lock(a="2"))
    assert (problem.where, problem.message) == ("a", "the sides agree on `1`, the merged spec leads to `2`")


LOCKS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("123"), max_size=4).map(lambda pins: lock(**pins))


@given(LOCKS, LOCKS, LOCKS)
def test_merge_is_symmetrical_and_never_invents_a_wheel(base: Lock, ours: Lock, theirs: Lock) -> None:
    one, other = merge_pins(base, ours, theirs), merge_pins(base, theirs, ours)
    assert one.agreed == other.agreed
    assert [each.where for each in one.disputed] == [each.where for each in other.disputed]
    assert set(one.agreed) <= {*ours.packages, *theirs.packages}
    names = {each.name for each in (*ours.packages, *theirs.packages)}
    assert names == {each.name for each in one.agreed} | {each.where for each in one.disputed}


@given(LOCKS, LOCKS)
def test_merge_with_a_side_that_did_not_move_gives_the_other(base: Lock, ours: Lock) -> None:
    pins = merge_pins(base, ours, base)
    assert pins.disputed == ()
    moved = versions(pins.agreed)
    assert {name: moved[name] for name in versions(ours.packages)} == versions(ours.packages)
