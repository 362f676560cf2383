"""The store of a host as a cache, with a session that needs no host: the one connection gives one wheel after the other."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from builder.caches.host_store import HostStore
from builder.caches.protocol import CachedWheel, CacheError
from envspec.spec import CacheSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WHEELS = [CachedWheel(sha256=letter * 64, file=f"{letter}-1-py3-none-any.whl", size=20) for letter in "abc"]


class Session:
    """Has the first two wheels."""

    def call(
        self, name: str, values: dict[str, Any], *, on_raw: Callable[[int, Iterator[bytes]], None] | None = None
    ) -> dict[str, Any]:
        if name == "wheels":
            asked = {row["sha256"] for row in values["wheels"]}
            return {"there": [wheel.sha256 for wheel in WHEELS[:2] if wheel.sha256 in asked]}
        assert on_raw is not None
        on_raw(20, iter([b"x"] * 20))
        return {}

    def kill(self) -> None:
        raise AssertionError("nothing is wrong with it")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HostStore:
    monkeypatch.setattr(HostStore, "_connect", lambda _self: Session())
    return HostStore(CacheSpec(name="near", url="ssh://h0"), {}, None)


def test_a_second_wheel_is_begun_when_the_first_is_through(store: HostStore) -> None:
    begun, got = threading.Event(), []

    def second() -> None:
        with store.fetch(WHEELS[1], 0) as body:
            begun.set()
            got.append(b"".join(body.blocks))

    thread = threading.Thread(target=second, daemon=True)
    with store.fetch(WHEELS[0], 0) as body:
        thread.start()
        assert not begun.is_set()
        assert b"".join(body.blocks) == b"x" * 20
    thread.join(10)
    assert got == [b"x" * 20]


def test_a_wheel_that_is_not_there_is_absent_and_the_session_goes_on(store: HostStore) -> None:
    with pytest.raises(CacheError, match="does not have") as error, store.fetch(WHEELS[2], 0) as body:
        list(body.blocks)
    assert error.value.kind == "absent"
    with store.fetch(WHEELS[0], 0) as body:
        assert b"".join(body.blocks) == b"x" * 20
    assert store.has(WHEELS) == {wheel.sha256 for wheel in WHEELS[:2]}
