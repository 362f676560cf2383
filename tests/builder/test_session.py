"""The controller's end of the pipe: what a host may say, and what it may not."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from builder import session as session_module
from builder.agent import pipe
from builder.session import ConnectionLost
from envspec.errors import EnvspecError
from tests.support.agents import local_session, scripted_session

if TYPE_CHECKING:
    from pathlib import Path


def test_real_agent_answers_and_ends_with_a_last_word(tmp_path: Path) -> None:
    with local_session(tmp_path / "store") as session:
        assert session.store == str(tmp_path / "store")
        assert session.call("status", {"name": "demo", "deep": False})["generation"] is None
        assert session.call("generations", {"name": "demo"}) == {"generations": []}
    assert not (tmp_path / "store").exists()  # looking leaves nothing


def test_banner_before_the_greeting_is_skipped() -> None:
    with scripted_session(
        r"""
raw(b"Welcome to h9!\n{not json\n\x1b[2J\xff{}\n[1]\nno end of line")
raw(b"\n")
hello()
say({"id": hear()["id"], "result": {"fine": True}})
hear()
"""
    ) as session:
        assert session.call("x", {}) == {"fine": True}


def test_endless_banner_is_refused() -> None:
    with pytest.raises(EnvspecError, match="does not speak as an agent"):
        scripted_session('while True: raw(b"welcome " * 100 + b"\\n")')


def test_line_without_an_end_is_refused() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EnvspecError, match="a line of more than"):
        scripted_session('while True: raw(b"x" * 65536)')
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # kB


def test_endless_talk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "TALK_LIMIT_BYTES", 1 << 20)
    session = scripted_session('hello()\nwhile True: say({"id": 1, "event": {"note": "x" * 5000}})')
    with pytest.raises(EnvspecError, match="more than"):
        session.call("x", {})
    session.abandon()


def test_silent_host_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    session = scripted_session("hello()\nhear()\ntime.sleep(60)")
    monkeypatch.setattr(session._reader, "_silence_limit_s", 0.2)
    with pytest.raises(ConnectionLost, match=r"no sign of life for 0\.2 s"):
        session.call("x", {})
    session.abandon()


def test_connection_that_ends_in_a_call_is_worth_another_try() -> None:
    session = scripted_session("hello()\nhear()")
    with pytest.raises(ConnectionLost, match="was lost"):
        session.call("x", {})
    session.abandon()


def test_agent_with_another_protocol_is_named_with_both_versions() -> None:
    with pytest.raises(EnvspecError, match=r"with protocol 0, this envspec has \w{16} with protocol 1"):
        scripted_session("hello(protocol=0)\nhear()")


def test_agent_with_another_digest_is_not_believed() -> None:
    with pytest.raises(EnvspecError, match="runs the agent 0000"):
        scripted_session('hello(agent="0" * 64)\nhear()')


def test_host_without_python_is_named() -> None:
    with pytest.raises(EnvspecError, match=r"has no CPython 3\.10 or later"):
        scripted_session('say({"no_python": True})\nhear()')


@pytest.mark.parametrize(
    "said",
    [
        '"x"',
        "[]",
        "{}",
        '{"id": 1}',
        '{"id": 1, "result": 5}',
        '{"id": 1, "error": "x"}',
        '{"id": 1, "error": {"problems": [1]}}',
        '{"id": 1, "result": ' + "[" * 50 + "]" * 50 + "}",
        "{" * 5000,
        "NaN",
    ],
)
def test_nonsense_ends_the_session_with_an_error(said: str) -> None:
    session = scripted_session(f"hello()\nhear()\nraw({said.encode()!r} + b'\\n')")
    with pytest.raises(EnvspecError):
        session.call("x", {})
    session.abandon()


def test_what_a_host_says_cannot_steer_a_terminal() -> None:
    session = scripted_session(
        'hello()\nhear()\nsay({"id": 1, "error": {"message": "a\\x1b]0;b\\x07\\rc\\u202e"}})\nhear()'
    )
    with pytest.raises(EnvspecError) as caught:
        session.call("x", {})
    assert str(caught.value) == r"a\x1b]0;b\x07\rc\u202e"
    session.abandon()


def test_stderr_without_an_end_is_cut_off() -> None:
    session = scripted_session(
        'hello()\nhear()\nfor i in range(2000): os.write(2, b"y" * 1000)\nos.write(2, b" the end")'
    )
    with pytest.raises(ConnectionLost) as caught:
        session.call("x", {})
    assert caught.value.message.endswith("the end")
    assert len(caught.value.message) < 10_000


def test_messages_survive_the_pipe() -> None:
    message = {"id": 1, "event": {"note": 'ümläut ✓ \\ "', "n": [1, 2.5, None, True]}}
    assert pipe.parse_message(pipe.encode_message(message).rstrip(b"\n")) == message
