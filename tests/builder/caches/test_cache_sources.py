"""Whatever a cache does, the next source takes over, and what lies in the wheelhouse is the wheel."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any, get_args

import pytest

from builder.caches.protocol import Body
from builder.caches.sources import CacheSources, Patience
from builder.fetch import WantedWheel, fetch_from
from builder.progress import SilentReporter
from envspec.spec import CacheSpec
from tests.support.faulty_cache import Fault, FaultyCache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.caches.protocol import CachedWheel

CONTENTS = [bytes([number]) + b"wheel" * (4000 + 1000 * number) for number in range(4)]
WHEELS = [
    WantedWheel(
        file=f"w{number}-1-py3-none-any.whl", sha256=hashlib.sha256(content).hexdigest(), size=len(content), url=""
    )
    for number, content in enumerate(CONTENTS)
]
BY_SHA256 = {wheel.sha256: content for wheel, content in zip(WHEELS, CONTENTS, strict=True)}
FAULTS = [fault for fault in get_args(Fault) if fault]
HARMLESS = {"no-ranges", "cut", "other-range"}
"""What still gives the wheel."""


class TickingClock:
    """A clock that goes a second forward whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Desk:
    """Caches, a wheelhouse, and what was remarked."""

    def __init__(self, folder: Path, *caches: FaultyCache | str) -> None:
        self.wheels = folder / "store" / "wheels"
        urls = [cache if isinstance(cache, str) else cache.url for cache in caches]
        self.specs = [CacheSpec(name=f"c{number}", url=url) for number, url in enumerate(urls)]
        self.remarks: list[str] = []
        self.environ = {"HOME": str(folder)}
        self.progress = 0

    def fetch(self, *wanted: WantedWheel, **options: Any) -> list[str]:
        """Bring wheels; the names of those that no cache gave."""
        spec: Any = None
        connections = options.pop("connections", 2)
        with CacheSources(self.specs, spec, self.environ, self.remarks.append, **options) as sources:
            left = fetch_from(
                sources.bring,
                wanted or WHEELS,
                wheels_dir=self.wheels,
                reporter=Counting(self),
                connections=connections,
                pause=lambda _seconds: None,
            )
        return sorted(wheel.file for wheel in left)

    def holds(self, *wheels: WantedWheel) -> bool:
        """Whether these wheels are there as they should be, and nothing else is."""
        there = {path.parent.name: path for path in self.wheels.glob("*/*.whl")}
        assert there.keys() == {wheel.sha256 for wheel in wheels}
        return all(path.read_bytes() == BY_SHA256[sha256] for sha256, path in there.items())


class Counting(SilentReporter):
    """Counts what is told of progress."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def stage(self, label: str, *, total: int, unit: str) -> Any:
        def advance(units: int) -> None:
            self.desk.progress += units

        return contextlib.nullcontext(advance)


@pytest.fixture
def honest() -> Iterator[FaultyCache]:
    with FaultyCache(BY_SHA256) as cache:
        yield cache


@pytest.fixture
def faulty() -> Iterator[FaultyCache]:
    with FaultyCache(BY_SHA256) as cache:
        yield cache


def test_wheels_come_from_the_first_cache_that_has_them(tmp_path: Path, honest: FaultyCache) -> None:
    with FaultyCache({WHEELS[0].sha256: CONTENTS[0]}) as first:
        desk = Desk(tmp_path, first, honest)
        assert desk.fetch() == []
        assert len(first.requests) == 4
    assert len(honest.requests) == 3
    assert desk.holds(*WHEELS)
    assert desk.remarks == []
    assert desk.progress == sum(map(len, CONTENTS))


def test_what_no_cache_has_is_left_and_told_of(tmp_path: Path) -> None:
    with FaultyCache({WHEELS[0].sha256: CONTENTS[0]}) as cache:
        desk = Desk(tmp_path, cache)
        assert desk.fetch() == [wheel.file for wheel in WHEELS[1:]]
    assert desk.holds(WHEELS[0])
    assert desk.remarks == []
    assert desk.progress == len(CONTENTS[0])


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_faulty_cache_the_next_takes_over(
    tmp_path: Path, faulty: FaultyCache, honest: FaultyCache, fault: Fault
) -> None:
    faulty.fault = fault
    desk = Desk(tmp_path, faulty, honest)
    assert desk.fetch(clock_s=TickingClock(), patience=Patience(window_s=50, least_bytes=1 << 20)) == []
    assert desk.holds(*WHEELS)
    assert desk.progress == sum(map(len, CONTENTS))
    assert all(remark.startswith("cache `c0`: ") for remark in desk.remarks)
    assert not any("127.0.0.1" in remark or "://" in remark for remark in desk.remarks)
    assert (desk.remarks == []) == (fault in {"absent", *HARMLESS})


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_faulty_cache_left_is_nothing_that_a_later_fetch_believes(
    tmp_path: Path, faulty: FaultyCache, honest: FaultyCache, fault: Fault
) -> None:
    faulty.fault = fault
    alone = Desk(tmp_path, faulty)
    left = alone.fetch(clock_s=TickingClock(), patience=Patience(window_s=50, least_bytes=1 << 20))
    assert (left == []) == (fault in HARMLESS)
    assert alone.holds(*(wheel for wheel in WHEELS if wheel.file not in left))
    after = Desk(tmp_path, honest)
    assert after.fetch() == []
    assert after.holds(*WHEELS)


def test_a_cut_wheel_is_gone_on_with_at_the_same_cache(tmp_path: Path, faulty: FaultyCache) -> None:
    faulty.fault = "cut"
    desk = Desk(tmp_path, faulty)
    assert desk.fetch(WHEELS[0]) == []
    assert faulty.ranges[:2] == ["", f"bytes={(len(CONTENTS[0]) + 1) // 2}-"]
    assert desk.holds(WHEELS[0])


def test_what_an_honest_cache_gave_before_it_went_away_is_gone_on_with_at_the_next(
    tmp_path: Path, faulty: FaultyCache, honest: FaultyCache
) -> None:
    faulty.fault = "goes-away"
    desk = Desk(tmp_path, faulty, honest)
    assert desk.fetch(WHEELS[0]) == []
    assert honest.ranges == [f"bytes={(len(CONTENTS[0]) + 1) // 2}-"]
    assert desk.holds(WHEELS[0])


def test_a_cache_that_goes_on_elsewhere_is_passed_over_and_what_was_there_stays(
    tmp_path: Path, faulty: FaultyCache, honest: FaultyCache
) -> None:
    faulty.fault = "other-range"
    desk = Desk(tmp_path, faulty, honest)
    (desk.wheels / ".partial").mkdir(parents=True)
    (desk.wheels / ".partial" / WHEELS[0].sha256).write_bytes(CONTENTS[0][:1000])
    assert desk.fetch(WHEELS[0]) == []
    assert honest.ranges == ["bytes=1000-"]
    assert desk.holds(WHEELS[0])


def test_a_lie_that_another_cache_goes_on_with_is_fetched_anew_from_that_one(
    tmp_path: Path, honest: FaultyCache
) -> None:
    liar = BY_SHA256 | {WHEELS[0].sha256: b"x" * len(CONTENTS[0])}
    with FaultyCache(liar) as lying:
        lying.fault = "goes-away"
        desk = Desk(tmp_path, lying, honest)
        assert desk.fetch(WHEELS[0]) == []
    assert [bool(text) for text in honest.ranges] == [True, False]
    assert desk.holds(WHEELS[0])


def test_a_cache_that_is_not_there_is_asked_twice_and_named_once(tmp_path: Path, honest: FaultyCache) -> None:
    with FaultyCache({}) as gone:
        url = gone.url
    desk = Desk(tmp_path, url, honest)
    assert desk.fetch(connections=1) == []
    assert desk.holds(*WHEELS)
    assert len(desk.remarks) == 2
    assert desk.remarks[-1].startswith("cache `c0`: Connection refused: it is not asked any more")


def test_a_cache_that_refuses_is_not_asked_again(tmp_path: Path, faulty: FaultyCache, honest: FaultyCache) -> None:
    faulty.fault = "refuses"
    desk = Desk(tmp_path, faulty, honest)
    assert desk.fetch(connections=1) == []
    assert len(faulty.requests) == 1
    (remark,) = desk.remarks
    assert remark.startswith(
        "cache `c0`: it refuses the credentials, or needs some (status 403): it is not asked any more"
    )
    assert "docs/caches.md" in remark


def test_a_trickle_is_given_up_by_bytes_and_time(tmp_path: Path, faulty: FaultyCache, honest: FaultyCache) -> None:
    faulty.fault = "trickle"
    desk = Desk(tmp_path, faulty, honest)
    assert desk.fetch(connections=1, clock_s=TickingClock(), patience=Patience(window_s=5, least_bytes=1 << 30)) == []
    assert desk.holds(*WHEELS)
    assert len(faulty.requests) == 2
    assert "in 5 s" in desk.remarks[0]


def test_a_fast_cache_is_not_taken_for_a_slow_one(tmp_path: Path, honest: FaultyCache) -> None:
    desk = Desk(tmp_path, honest)
    assert desk.fetch(clock_s=TickingClock(), patience=Patience(window_s=3, least_bytes=1)) == []
    assert desk.remarks == []


class OneLine:
    """A cache with one connection: each wheel waits long for its turn, and then comes in small blocks."""

    name = "c0"

    def __init__(self, clock: TickingClock) -> None:
        self._clock = clock

    @contextlib.contextmanager
    def fetch(self, wheel: CachedWheel, offset: int) -> Iterator[Body]:
        self._clock.now += 1000
        content = BY_SHA256[wheel.sha256][offset:]
        yield Body(start=offset, blocks=iter([content[:10], content[10:]]))

    def close(self) -> None:
        """Nothing."""


def test_who_waits_for_his_turn_at_one_connection_is_not_taken_for_slow(tmp_path: Path) -> None:
    desk, clock = Desk(tmp_path, "ssh://h0"), TickingClock()
    patience = Patience(window_s=50, least_bytes=1 << 20)
    assert desk.fetch(clock_s=clock, patience=patience, opener=lambda *_: OneLine(clock)) == []
    assert (desk.remarks, desk.holds(*WHEELS)) == ([], True)


def test_a_netrc_credential_goes_to_its_own_cache_and_to_no_other(
    tmp_path: Path, faulty: FaultyCache, honest: FaultyCache
) -> None:
    faulty.fault = "absent"
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login jane password s3cr3t\n")
    desk = Desk(tmp_path, faulty, honest.url.replace("127.0.0.1", "localhost"))
    assert desk.fetch(WHEELS[0]) == []
    assert faulty.authorizations == ["Basic amFuZTpzM2NyM3Q="]
    assert honest.authorizations == [""]


def test_nothing_is_opened_where_everything_is_there(tmp_path: Path, honest: FaultyCache) -> None:
    desk = Desk(tmp_path, honest)
    desk.fetch()

    def refuse(*_: object) -> Any:
        raise AssertionError("a cache was opened")

    assert desk.fetch(opener=refuse) == []
