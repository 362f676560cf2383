"""A host that fetches for itself: whatever the places do, it ends with the right wheel or with a question to the controller."""

from __future__ import annotations

import hashlib
import http.client
import threading
from typing import TYPE_CHECKING, Any, get_args
from urllib.error import HTTPError

import pytest

from builder.agent.places import Places, TooSlow, steadily
from builder.agent.receive import Receiver, Wanted, incoming
from builder.agent.store import Store
from tests.support.faulty_cache import Fault, FaultyCache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENTS = [bytes([number]) + b"wheel" * (2000 + 500 * number) for number in range(3)]
WHEELS = [
    Wanted(hashlib.sha256(content).hexdigest(), f"w{number}-1-py3-none-any.whl", len(content))
    for number, content in enumerate(CONTENTS)
]
BY_SHA256 = {wheel.sha256: content for wheel, content in zip(WHEELS, CONTENTS, strict=True)}
FAULTS = [fault for fault in get_args(Fault) if fault and fault != "trickle"]


class Host:
    """A receiver, and a controller that tells it places and sends what it asks for then."""

    def __init__(self, folder: Path, *urls: str) -> None:
        self.store = Store(folder)
        self.urls = urls
        self.sent: list[str] = []
        self.receiver = Receiver(self.store, self.answer)

    def answer(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row.get("send") or row["damaged"]:
                threading.Thread(target=self.send, args=(row["sha256"], row["offset"])).start()
            else:
                urls = [f"{url}/{row['sha256']}/w.whl" for url in self.urls]
                threading.Thread(target=self.receiver.fetch, args=(row["sha256"], urls)).start()

    def send(self, sha256: str, offset: int) -> None:
        self.sent.append(sha256)
        rest = BY_SHA256[sha256][offset:]
        self.receiver.take(sha256, len(rest), iter([rest]))

    def receive(self) -> None:
        self.store.ensure()
        arrived: list[str] = []
        self.receiver.receive(WHEELS, lambda sha256, _path: arrived.append(sha256))
        assert sorted(arrived) == sorted(BY_SHA256)
        for wheel in WHEELS:
            assert self.store.wheel(wheel.sha256, wheel.file).read_bytes() == BY_SHA256[wheel.sha256]
        assert list(incoming(self.store).iterdir()) == []


@pytest.fixture
def faulty() -> Iterator[FaultyCache]:
    with FaultyCache(BY_SHA256) as cache:
        yield cache


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_faulty_place_the_next_takes_over(tmp_path: Path, faulty: FaultyCache, fault: Fault) -> None:
    faulty.fault = fault
    with FaultyCache(BY_SHA256) as honest:
        host = Host(tmp_path, faulty.url, honest.url)
        host.receive()
    assert host.sent == []


@pytest.mark.parametrize("fault", FAULTS)
def test_what_no_place_gives_is_asked_of_the_controller(tmp_path: Path, faulty: FaultyCache, fault: Fault) -> None:
    faulty.fault = fault
    host = Host(tmp_path, faulty.url)
    host.receive()
    given = {"no-ranges", "other-range", "long", "compressed"}  # the bytes that are asked for are right
    assert (host.sent == []) == (fault in given)


def test_a_trickle_is_given_up_by_bytes_and_time() -> None:
    class Trickle:
        def read1(self, _size: int) -> bytes:
            return b"x"

    ticks = iter(range(1000))
    answer: Any = Trickle()
    with pytest.raises(TooSlow, match="20 bytes in 20 s"):
        list(steadily(answer, 1 << 30, lambda: next(ticks)))


def test_a_server_that_refuses_or_fails_twice_or_lies_thrice_is_not_asked_again() -> None:
    url, other = "http://a.example/x", "http://b.example/x"
    for how, times in (("refused", 1), ("failed", 2), ("lied", 3)):
        known = Places()
        for _ in range(times):
            assert known.may_ask(url)
            if how == "refused":
                known.failed(url, HTTPError(url, 401, "", http.client.HTTPMessage(), None))
            elif how == "failed":
                known.failed(url, ConnectionResetError())
            else:
                known.lied(url)
        assert not known.may_ask(url)
        assert known.may_ask(other)


def test_a_server_that_does_not_have_wheels_is_asked_on() -> None:
    known = Places()
    for _ in range(100):
        known.failed("http://a/x", HTTPError("", 404, "", http.client.HTTPMessage(), None))
    assert known.may_ask("http://a/y")
