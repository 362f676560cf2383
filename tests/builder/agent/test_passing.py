"""Wheels that go straight to another host: only those that it was told to ask for, and only if it is the one that is meant."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent import passing
from builder.agent.passing import check_place, pass_on, place_of
from builder.bundle import make_bundle
from envspec.errors import EnvspecError
from tests.support.agents import ScriptedTransport
from tests.support.stores import new_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.agent.store import Store

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = "1" * 64
FILE = "alpha-1.0-py3-none-any.whl"


class FakeAgent:
    """What `pass_on` needs of an agent."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.agent_file = make_bundle().content

    def note(self, text: str) -> None:
        pass


@pytest.fixture
def passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Pass one wheel on to an agent that a test wrote."""
    store = new_store(tmp_path / "store")
    wheel = store.wheel(SHA256, FILE)
    wheel.parent.mkdir()
    wheel.write_bytes(CONTENT)

    def run(script: str) -> dict[str, Any]:
        monkeypatch.setattr(passing, "SshTransport", lambda **_: ScriptedTransport(script))
        parts = [{"sha256": SHA256, "file": FILE}, {"sha256": OTHER, "file": "beta-1.0-py3-none-any.whl"}]
        wanted = {
            "alias": "h9",
            "host": "h9",
            "store": "",
            "place": "x",
            "order": {"plan": {"parts": parts}},
            "sizes": {SHA256: len(CONTENT), OTHER: 5},
            "only": [SHA256],
        }
        return pass_on(FakeAgent(store), wanted)  # type: ignore[arg-type]

    return run


def asking(*rows: dict[str, Any]) -> str:
    """An agent that asks for something, and then says what it heard."""
    return f"""
hello()
call = hear()
say({{"id": call["id"], "event": {{"need": {list(rows)!r}}}}})
"""


def row(sha256: str = SHA256, offset: int = 0, *, damaged: bool = False) -> dict[str, Any]:
    return {"sha256": sha256, "offset": offset, "damaged": damaged}


TAKE = """
import hashlib
head = json.loads(sys.stdin.readline())
while "wheel" not in head: head = json.loads(sys.stdin.readline())
content = sys.stdin.buffer.read(head["raw"])
say({"id": call["id"], "result": {"received": [head["wheel"]] if content == EXPECTED else []}})
hear()
"""


@pytest.mark.parametrize("offset", [0, 1, 300_000])
def test_wheel_goes_from_the_byte_that_was_asked_for(passed: Callable[[str], dict[str, Any]], offset: int) -> None:
    expected = f"EXPECTED = (bytes(range(256)) * 2000)[{offset}:]\n"
    unbuffered = "sys.stdin = os.fdopen(0, 'r', encoding='latin-1', newline='\\n')\n"
    script = (
        expected
        + unbuffered
        + asking(row(offset=offset))
        + TAKE.replace(".buffer.read(", ".read(").replace(
            "if content == EXPECTED", "if content.encode('latin-1') == EXPECTED"
        )
    )
    assert passed(script) == {"received": [SHA256]}


@pytest.mark.parametrize(
    "rows",
    [
        [row("0" * 64)],
        [row("../../etc/passwd")],
        [row(offset=-1)],
        [row(offset=len(CONTENT))],
        [row(offset=10**30)],
        [{"sha256": SHA256}],
        [row()] * 4,
        ["x"],
        [None],
    ],
    ids=str,
)
def test_odd_requests_end_it(passed: Callable[[str], dict[str, Any]], rows: list[Any]) -> None:
    script = asking(*rows) + "while True: sys.stdin.readline() or sys.exit(0)"
    with pytest.raises(EnvspecError):
        passed(script)


def test_wheel_that_is_not_among_those_to_pass_on_is_not_given(passed: Callable[[str], dict[str, Any]]) -> None:
    with pytest.raises(EnvspecError, match="does not speak as an agent"):
        passed(asking(row(OTHER)) + "while True: sys.stdin.readline() or sys.exit(0)")


REPORT = """
while True:
    message = hear()
    if "no_wheel" in message:
        say({"id": call["id"], "error": {"message": message["no_wheel"]}})
"""


def test_wheel_that_is_gone_or_damaged_is_said_to_be(passed: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(EnvspecError, match=f"{FILE} is not the locked one there"):
        passed(asking(row(damaged=True)) + REPORT)
    shutil.rmtree(tmp_path / "store" / "wheels" / SHA256)
    with pytest.raises(EnvspecError, match=f"{FILE}: No such file"):
        passed(asking(row()) + REPORT)


def test_wheel_that_is_shorter_than_it_was_ends_it(passed: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "store" / "wheels" / SHA256 / FILE).write_bytes(CONTENT[:1000])
    with pytest.raises(EnvspecError, match="connection"):
        passed(asking(row()) + "while sys.stdin.buffer.read(1): pass")


def test_endless_talk_of_the_other_host_ends_it(passed: Callable[[str], dict[str, Any]]) -> None:
    with pytest.raises(EnvspecError, match="a line of more than"):
        passed("hello()\nhear()\nwhile True: raw(b'x' * 65536)")


def test_every_store_has_a_place_of_its_own(tmp_path: Path) -> None:
    one, two = new_store(tmp_path / "one"), new_store(tmp_path / "two")
    assert place_of(one) == place_of(new_store(tmp_path / "one"))
    check_place(one, place_of(one))
    for store in (two, type(two)(tmp_path / "three")):
        with pytest.raises(EnvspecError, match="another machine, or has another store"):
            check_place(store, place_of(one))
    assert not (tmp_path / "three").exists()
