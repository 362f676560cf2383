"""Several hosts at once: so many and no more, each for itself, results in the order that was asked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from builder.bundle import make_bundle
from builder.hosts import HostResult, Target, Visit, on_hosts
from builder.progress import SilentFleet
from envspec.errors import COULD_NOT_LOOK, EnvspecError
from envspec.spec import HostSpec
from tests.support.agents import ScriptedTransport

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 30.0


def targets(count: int, script: str = "") -> list[Target]:
    return [
        Target(spec=HostSpec(name=f"h{number}", ssh=f"h{number}"), transport=ScriptedTransport(script, f"h{number}"))
        for number in range(count)
    ]


def each(work: Callable[[Visit], str], count: int, jobs: int, script: str = "") -> tuple[HostResult[str], ...]:
    return on_hosts(targets(count, script), work, bundle=make_bundle(), jobs=jobs, reporter=SilentFleet())


@pytest.mark.parametrize(("count", "jobs", "at_once"), [(9, 3, 3), (4, 16, 4), (3, 1, 1)])
def test_as_many_hosts_at_once_as_there_are_jobs(count: int, jobs: int, at_once: int) -> None:
    everybody = threading.Barrier(at_once)
    guard = threading.Lock()
    running = most = 0

    def work(visit: Visit) -> str:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        everybody.wait(LIMIT_S)  # only if so many are at it at once does anybody get on
        with guard:
            running -= 1
        return visit.target.spec.name

    results = each(work, count - count % at_once, jobs)
    assert most == at_once
    assert [result.value for result in results] == [result.host for result in results]


def test_whatever_happens_on_a_host_the_others_go_on() -> None:
    failures: dict[str, BaseException] = {
        "h0": EnvspecError("no room"),
        "h2": OSError(28, "No space left on device", "/x"),
        "h3": KeyError("outcome"),
    }

    def work(visit: Visit) -> str:
        if (failure := failures.get(visit.target.spec.name)) is not None:
            raise failure
        return "fine"

    results = each(work, 5, 2)
    assert [result.value for result in results] == [None, "fine", None, None, "fine"]
    messages = [result.error.message for result in results if result.error is not None]
    assert messages[0] == "no room"
    assert messages[1] == "No space left on device: `/x`"
    assert messages[2].startswith("this is a bug in envspec: KeyError")
    assert results[3].error is not None
    assert results[3].error.exit_code == COULD_NOT_LOOK


def test_connection_that_is_lost_is_made_anew_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.hosts.PAUSES_S", (0.0,))
    tried: list[int] = []

    def work(visit: Visit) -> str:
        def call(session: object) -> str:
            tried.append(1)
            session.call("x", {})  # type: ignore[attr-defined]
            return "never"

        return visit.with_session(call, tries=3)

    (result,) = each(work, 1, 1, "hello()\nhear()")
    assert len(tried) == 3
    assert result.error is not None
    assert "the connection to `h0` was lost" in result.error.message
    assert (result.traffic.connections, result.traffic.round_trips) == (3, 6)
