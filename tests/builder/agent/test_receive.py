"""Wheels that come in: nothing but what was asked for gets a name, and halves are gone on with."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent.receive import Receiver, Wanted, incoming, sweep_incoming
from builder.agent.store import Store
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WANTED = Wanted(SHA256, "alpha-1.0-py3-none-any.whl", len(CONTENT))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.ensure()
    return made


def receive(store: Store, answer: Callable[[Receiver, dict[str, Any]], None]) -> tuple[list[str], list[dict[str, Any]]]:
    """Receive one wheel from a controller that answers each request so; what arrived, and what was asked for."""
    arrived: list[str] = []
    asked: list[dict[str, Any]] = []

    def ask(rows: list[dict[str, Any]]) -> None:
        asked.extend(rows)
        for row in rows:
            threading.Thread(target=answer, args=(receiver, row)).start()

    receiver = Receiver(store, ask)
    receiver.receive([WANTED], lambda sha256, _path: arrived.append(sha256))
    return arrived, asked


def pieces(raw: bytes, size: int = 1000) -> Iterator[bytes]:
    return (raw[start : start + size] for start in range(0, len(raw), size))


def test_wheel_gets_its_name_once_its_digest_is_right(store: Store) -> None:
    arrived, asked = receive(store, lambda receiver, row: receiver.take(row["sha256"], len(CONTENT), pieces(CONTENT)))
    assert arrived == [SHA256]
    assert asked == [{"sha256": SHA256, "offset": 0, "damaged": False}]
    place = store.wheel(SHA256, WANTED.file)
    assert place.read_bytes() == CONTENT
    assert place.stat().st_mode & 0o777 == 0o444
    sweep_incoming(store)
    assert not incoming(store).exists()


def test_half_of_a_wheel_is_gone_on_with(store: Store) -> None:
    incoming(store).mkdir()
    (incoming(store) / SHA256).write_bytes(CONTENT[:100_000])
    _, asked = receive(
        store,
        lambda receiver, row: receiver.take(SHA256, len(CONTENT) - row["offset"], pieces(CONTENT[row["offset"] :])),
    )
    assert [row["offset"] for row in asked] == [100_000]
    assert store.wheel(SHA256, WANTED.file).read_bytes() == CONTENT


def test_half_that_is_damaged_is_begun_anew(store: Store) -> None:
    incoming(store).mkdir()
    (incoming(store) / SHA256).write_bytes(b"\0" * 100_000)
    _, asked = receive(
        store,
        lambda receiver, row: receiver.take(SHA256, len(CONTENT) - row["offset"], pieces(CONTENT[row["offset"] :])),
    )
    assert [(row["offset"], row["damaged"]) for row in asked] == [(100_000, False), (0, True)]
    assert store.wheel(SHA256, WANTED.file).read_bytes() == CONTENT


def test_half_that_is_too_long_is_not_gone_on_with(store: Store) -> None:
    incoming(store).mkdir()
    (incoming(store) / SHA256).write_bytes(CONTENT + b"x")
    _, asked = receive(store, lambda receiver, _row: receiver.take(SHA256, len(CONTENT), pieces(CONTENT)))
    assert asked[0]["offset"] == 0


def test_wheel_that_is_damaged_twice_is_an_error(store: Store) -> None:
    wrong = b"x" * len(CONTENT)
    with pytest.raises(
        EnvspecError, match=f"arrived with sha256 {hashlib.sha256(wrong).hexdigest()}, the lock has {SHA256}"
    ):
        receive(store, lambda receiver, row: receiver.take(row["sha256"], len(wrong), pieces(wrong)))
    assert not store.wheel(SHA256, WANTED.file).exists()


@pytest.mark.parametrize(
    ("sha256", "size", "message"),
    [
        ("0" * 64, 5, "nobody waits for"),
        ("../../etc/passwd", 5, "nobody waits for"),
        (SHA256, 5, "5 bytes are announced"),
    ],
)
def test_what_was_not_asked_for_is_read_and_thrown_away(store: Store, sha256: str, size: int, message: str) -> None:
    chunks = pieces(b"x" * size, 2)
    with pytest.raises(EnvspecError, match=message):
        receive(store, lambda receiver, _row: receiver.take(sha256, size, chunks))
    assert list(chunks) == []
    assert list(store.wheels.glob("*")) in ([], [incoming(store)])


def test_controller_that_cannot_deliver_ends_the_wait(store: Store) -> None:
    with pytest.raises(EnvspecError, match="no such file"):
        receive(store, lambda receiver, _row: receiver.fail(EnvspecError("no such file")))


def test_place_that_cannot_be_written_is_an_error_of_the_build(store: Store) -> None:
    incoming(store).mkdir()
    (incoming(store) / SHA256).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        receive(store, lambda receiver, _row: receiver.take(SHA256, len(CONTENT), pieces(CONTENT)))
