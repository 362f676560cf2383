"""Hosts: each reached, asked, and given what it needs, several side by side. A failure is a value in the outcome of its host.

outcomes = on_hosts(targets, work, jobs=8, reporter=reporter)
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from builder.session import ConnectionLost, Session
from envspec.errors import COULD_NOT_LOOK, EnvspecError
from envspec.spec import HostSpec  # noqa: TC001 - part of a public value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.bundle import Bundle
    from builder.progress import FleetReporter, HostProgress
    from builder.transports.connection import Transport
    from envspec.facts import Finding

TRIES = 3
"""How often a build is begun on a host whose connection is lost."""

PAUSES_S = (1.0, 4.0)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A host and the way there."""

    spec: HostSpec
    transport: Transport


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What went over the wire for one host."""

    sent_bytes: int = 0
    received_bytes: int = 0
    round_trips: int = 0
    connections: int = 0

    def add(self, session: Session) -> None:
        """Count a session that has ended."""
        self.sent_bytes += session.sent_bytes
        self.received_bytes += session.received_bytes
        self.round_trips += session.round_trips
        self.connections += 1

    def to_json(self) -> dict[str, int]:
        """The record that `--json` prints."""
        return {
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "round_trips": self.round_trips,
            "connections": self.connections,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult(Generic[Result]):
    """What came of the work on one host: a value, or an error."""

    host: str
    value: Result | None
    error: EnvspecError | None
    traffic: Traffic
    seconds: float


class HostRefused(EnvspecError):  # noqa: N818 - it says what is the matter
    """A host does not fit: nothing was sent.

    Attributes:
        findings: All of them.
    """

    def __init__(self, host: str, findings: tuple[Finding, ...]) -> None:
        errors = [finding for finding in findings if finding.severity == "error"]
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"`{host}` does not fit: {first.message}{more}", hint=first.hint, exit_code=1)
        self.findings = findings


@dataclass(slots=True, kw_only=True)
class Visit:
    """One host while it is worked on: opens sessions, and counts what they carry."""

    target: Target
    bundle: Bundle
    progress: HostProgress
    traffic: Traffic = field(default_factory=Traffic)
    _session: Session | None = None
    _cancelled: bool = False

    def with_session(self, work: Callable[[Session], Result], *, tries: int = 1) -> Result:
        """Do something with an agent of the host; a connection that is lost is made anew.

        Args:
            work: What to do; it may be begun several times.
            tries: How often at most.

        Raises:
            EnvspecError: What went wrong at the last try.
        """
        for attempt in range(1, tries + 1):
            try:
                return self._once(work)
            except ConnectionLost as error:
                if attempt == tries or self._cancelled:
                    raise
                self.progress.show(f"{error.message}: trying again")
                threading.Event().wait(PAUSES_S[min(attempt, len(PAUSES_S)) - 1])
        raise AssertionError("the last try returns or raises")

    def cancel(self) -> None:
        """End the connection; may be called from any thread."""
        self._cancelled = True
        session = self._session
        if session is not None:
            session.kill()

    def _once(self, work: Callable[[Session], Result]) -> Result:
        self.progress.show("connecting")
        session = Session(self.target.transport, self.bundle, store=self.target.spec.store)
        self._session = session
        try:
            with session:
                if self._cancelled:
                    raise EnvspecError("interrupted")
                return work(session)
        finally:
            self.traffic.add(session)
            self._session = None


def on_hosts(
    targets: Sequence[Target],
    work: Callable[[Visit], Result],
    *,
    bundle: Bundle,
    jobs: int,
    reporter: FleetReporter,
    summary: Callable[[Result], str] = lambda _value: "done",
) -> tuple[HostResult[Result], ...]:
    """Do something on several hosts, so many at a time. What happens to one does not touch the others.

    Args:
        targets: Which.
        work: What.
        bundle: The agent.
        jobs: How many at a time.
        reporter: Where progress goes.
        summary: A result in a few words, for the progress.

    Returns:
        One result for each target, in their order.

    Raises:
        KeyboardInterrupt: The user ended it; all connections are closed then.
    """
    visits = [Visit(target=target, bundle=bundle, progress=reporter.host(target.spec.name)) for target in targets]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    results: dict[int, HostResult[Result]] = {}
    for index in range(len(visits)):
        waiting.put(index)

    def run() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            results[index] = _visit(visits[index], work, summary)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(max(1, min(jobs, len(visits))))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        while not waiting.empty():
            waiting.get_nowait()
        for visit in visits:
            visit.cancel()
        for thread in threads:
            thread.join(2.0)
        raise
    return tuple(results[index] for index in range(len(visits)))


def _visit(visit: Visit, work: Callable[[Visit], Result], summary: Callable[[Result], str]) -> HostResult[Result]:
    started = time.monotonic()
    value: Result | None = None
    error: EnvspecError | None = None
    try:
        value = work(visit)
        visit.progress.end(summary(value), good=True)
    except EnvspecError as failure:
        error = failure
    except OSError as failure:
        error = EnvspecError(f"{failure.strerror or failure}{f': `{failure.filename}`' if failure.filename else ''}")
    except Exception as failure:  # noqa: BLE001 - a bug met on one host must not keep the others
        error = EnvspecError(
            f"this is a bug in envspec: {type(failure).__name__}: {failure}",
            hint="report it with what this host is like",
            exit_code=COULD_NOT_LOOK,
        )
    if error is not None:
        visit.progress.end(error.message, good=False)
    return HostResult(
        host=visit.target.spec.name,
        value=value,
        error=error,
        traffic=visit.traffic,
        seconds=time.monotonic() - started,
    )


def checked(host: str, what: str, read: Callable[[], Result]) -> Result:
    """A host's answer as a value.

    Args:
        host: Whose.
        what: The answer, for a message.
        read: Makes the value of it.

    Raises:
        EnvspecError: The answer is not what it should be.
    """
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EnvspecError(
            f"`{host}` gave an answer about {what} that is none: {type(error).__name__}: {str(error)[:100]}",
            hint="is the host what it should be?",
        ) from error


def show_event(progress: HostProgress, event: dict[str, Any], totals: dict[str, tuple[int, str]]) -> None:
    """Pass an agent's event on as progress.

    Args:
        progress: Of the host.
        event: As the agent sends it.
        totals: Label -> total and unit of the stages so far; kept by the caller.
    """
    if isinstance(event.get("note"), str):
        progress.show(event["note"][:200])
    label = event.get("stage")
    if isinstance(label, str) and len(totals) < 20:
        label = label[:60]
        if isinstance(event.get("total"), int):
            totals[label] = (event["total"], str(event.get("unit"))[:20])
        total, unit = totals.get(label, (0, ""))
        done = event.get("done")
        progress.amount(label, done if isinstance(done, int) else 0, total, unit)
