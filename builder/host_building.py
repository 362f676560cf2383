"""Builds a lock on a host: looked at first, given what it lacks, proven there by the agent, and compared with the lock here."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from builder.agent.packing import pack
from builder.agent.pipe import PipeLost
from builder.building import interpreter_problems, order_of
from builder.host_receipts import keep_receipt, seen_receipt
from builder.hosts import TRIES, HostRefused, Visit, checked, show_event
from builder.outcome import BuildOutcome, ProbesFailed
from builder.supplying import HostSupply, read_from
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.facts import Finding
from envspec.lock import parts
from envspec.preflight import HostFacts, Load, host_libraries, preflight
from envspec.receipt import receipt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from builder.agent.build import Order
    from builder.building import BuildRequest
    from builder.progress import HostProgress
    from builder.session import Session
    from envspec.receipt import Receipt
    from envspec.spec import HostSpec


SHOWN_EDITED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBuild:
    """What a build on a host did."""

    outcome: BuildOutcome
    facts: HostFacts | None
    """None if the host had it already, and was not looked at more closely."""

    findings: tuple[Finding, ...]
    reused: tuple[str, ...] = ()
    """Packages that were taken from a venv of the host."""


class HostBuilder:
    """One build request for any number of hosts."""

    def __init__(
        self, request: BuildRequest, supply: HostSupply, now_s: Callable[[], float], *, reuse: tuple[str, ...] = ()
    ) -> None:
        """Prepare.

        Args:
            request: What to build.
            supply: Brings the wheels about.
            now_s: This machine's clock, in seconds since 1970.
            reuse: Paths of venvs, on every host, whose distributions may be taken.

        Raises:
            OSError: A patch cannot be read.
        """
        self._request = request
        self._supply = supply
        self._now_s = now_s
        self._reuse = reuse
        self._order: Order = order_of(request)
        self._sizes = {part.sha256: part.size for part in parts(request.lock)}

    def build(self, visit: Visit) -> HostBuild:
        """Build on one host.

        Raises:
            EnvspecError: What went wrong; what was active there still is.
        """
        build = visit.with_session(lambda session: self._build(visit, session), tries=TRIES)
        outcome, request = build.outcome, self._request
        if outcome.receipt is not None:
            receipt = receipt_of(outcome.receipt, name=f"the receipt of {outcome.host}")
            seen = seen_receipt(
                receipt,
                host=outcome.host,
                time=request.now,
                generation=outcome.generation,
                path=os.fspath(outcome.path),
            )
            keep_receipt(request.store, seen)
        return build

    def _build(self, visit: Visit, session: Session) -> HostBuild:
        request, order, host = self._request, self._order, visit.target.spec
        if not request.repair:
            visit.progress.show("looking")
            values = {
                "lock_sha256": order.lock_sha256,
                "spec_sha256": order.spec_sha256,
                "patches": dict(order.patches),
                "verified": order.verify,
            }
            answer = session.call("built", values)
            found = checked(host.name, "its build", lambda: answer["outcome"])
            if found is not None:
                outcome = self._outcome(host, found)
                with contextlib.suppress(EnvspecError):  # of an older version, which decides nothing here
                    outcome = replace(outcome, receipt=self._receipt(host, answer).fields)
                return HostBuild(outcome=outcome, facts=None, findings=())
        visit.progress.show("checking the host")
        lock, wanted = request.lock, {"packed": pack({"order": order.to_json(), "sizes": self._sizes})}
        only_python = host.python
        facts = read_facts(session, host, request, only_python)
        missing = checked(host.name, "wheels", lambda: _read_missing(session.call("missing", wanted), self._sizes))
        load = Load(wheels=len(missing), bytes=sum(self._sizes[sha256] for sha256 in missing))
        findings = self._findings(host, facts, load)
        wrong = {finding.check for finding in findings if finding.severity == "error"}
        if wrong == {"host-python"} and request.spec.python.archive and not host.python:
            only_python = self._send_python(session, visit.progress)
            facts = read_facts(session, host, request, only_python)
            findings = self._findings(host, facts, load)
        if any(finding.severity == "error" for finding in findings):
            raise HostRefused(host.name, findings)
        place = {"exact": lock.python_exact, "platform": lock.platform, "only_python": only_python}
        reuse = {"reuse": [*host.reuse, *self._reuse]}
        let_fetch = host.fetch == "host"
        with WheelSender(session, self._supply, self._sizes, visit.progress, let_fetch=let_fetch) as sender:
            totals: dict[str, tuple[int, str]] = {}

            def on_event(event: dict[str, Any]) -> None:
                if "need" in event:
                    session.round_trips += 1
                    sender.send(event["need"])
                else:
                    show_event(visit.progress, event, totals)

            try:
                answer = session.call("build", {**wanted, **place, **reuse}, on_event)
            except ProbesFailed as error:
                from builder.explaining import explained  # noqa: PLC0415 - only where something failed

                raise explained(error, lock, request.lock_name, f"--host {host.name}") from error
            except EnvspecError:
                if sender.error is not None:  # what the agent says then is only that it did not get it
                    raise sender.error from None
                raise
        outcome = self._outcome(host, checked(host.name, "its build", lambda: answer["outcome"]))
        outcome = replace(outcome, receipt=self._receipt(host, answer).fields)
        reused, more = checked(host.name, "what it reused", lambda: _read_reuse(host, answer))
        return HostBuild(outcome=outcome, facts=facts, findings=(*findings, *more), reused=reused)

    def _send_python(self, session: Session, progress: HostProgress) -> str:
        """Send the pinned archive with a Python; the path of its interpreter on the host.

        Raises:
            EnvspecError: The archive is not the pinned one, or cannot be used there.
        """
        progress.show("sending Python")
        archive = PinnedFile.of(self._request)
        values = {
            "sha256": archive.sha256,
            "size": archive.size,
            "file": archive.path.name,
            "python": self._request.lock.python,
            "exact": self._request.lock.python_exact,
        }
        with WheelSender(session, archive, {archive.sha256: archive.size}, progress) as sender:
            totals: dict[str, tuple[int, str]] = {}

            def on_event(event: dict[str, Any]) -> None:
                if "need" in event:
                    sender.send(event["need"])
                else:
                    show_event(progress, event, totals)

            answer = session.call("python", values, on_event)
        return checked(session.host, "its Python", lambda: str(answer["path"]))

    def _outcome(self, host: HostSpec, fields: dict[str, Any]) -> BuildOutcome:
        outcome = checked(host.name, "its build", lambda: BuildOutcome.from_json(host.name, fields))
        lock = self._request.lock
        if (outcome.env, outcome.site) != (lock.env, lock.site):
            raise EnvspecError(
                f"`{host.name}` says that it built {outcome.env} with site {outcome.site}, the lock has {lock.env} with {lock.site}",
                hint="is the host what it should be?",
                exit_code=FOUND_WRONG,
            )
        return outcome

    def _receipt(self, host: HostSpec, answer: dict[str, Any]) -> Receipt:
        fields = checked(host.name, "its receipt", lambda: dict(answer["receipt"]))
        receipt = receipt_of(fields, name=f"the receipt of {host.name}")
        lock = self._request.lock
        if (receipt.kind, receipt.env, receipt.site, receipt.name) != ("build", lock.env, lock.site, lock.name):
            raise EnvspecError(
                f"the receipt of `{host.name}` is about another build than this one",
                hint="is the host what it should be?",
                exit_code=FOUND_WRONG,
            )
        return receipt

    def _findings(self, host: HostSpec, facts: HostFacts, load: Load) -> tuple[Finding, ...]:
        request = self._request
        judged = preflight(host, request.lock, facts, load, now_s=self._now_s(), jit=request.spec.target.jit)
        return judged + self._python_findings(host, facts)

    def _python_findings(self, host: HostSpec, facts: HostFacts) -> tuple[Finding, ...]:
        if not facts.python:
            return ()
        problems = interpreter_problems(self._request.lock, path=facts.python_path, version=facts.python)
        return tuple(
            Finding(
                check="host-python",
                severity="error",
                subject=host.name,
                message=f"{problem.where}: {problem.message}",
                hint="install another patch level of the Python there, or name it: `python` of the host in the spec",
            )
            for problem in problems
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """The archive with a Python that the spec pins: a source of one file (as `HostSupply` is of wheels)."""

    path: Path
    sha256: str
    size: int

    @classmethod
    def of(cls, request: BuildRequest) -> PinnedFile:
        """That of a request's spec.

        Raises:
            EnvspecError: It cannot be read, or has another sha256.
        """
        from builder.agent.files import hash_file  # noqa: PLC0415 - rarely needed

        pinned = request.spec.python
        path = request.folder / pinned.archive
        try:
            found, size = hash_file(str(path)), path.stat().st_size
        except OSError as error:
            raise EnvspecError(
                f"`{pinned.archive}` cannot be read: {error.strerror}", input_name="[python] archive"
            ) from error
        if found != pinned.archive_sha256:
            raise EnvspecError(
                f"`{pinned.archive}` has sha256 {found}, the spec has {pinned.archive_sha256}",
                input_name="[python] archive",
                exit_code=FOUND_WRONG,
            )
        return cls(path=path, sha256=found, size=size)

    def ask(self, sha256s: Iterable[str]) -> dict[str, Future[Path]]:
        """Its path, which is there."""
        future: Future[Path] = Future()
        future.set_result(self.path)
        return dict.fromkeys(sha256s, future)

    def public_urls(self, _sha256s: Iterable[str], *, index: bool) -> dict[str, tuple[str, ...]]:  # noqa: ARG002
        """It is nowhere else."""
        return {}

    def forget_damaged(self, _sha256: str, _path: Path) -> bool:
        """Nothing brings it anew."""
        return False


def read_facts(session: Session, host: HostSpec, request: BuildRequest, only_python: str) -> HostFacts:
    """What there is on a host.

    Args:
        session: With its agent.
        host: As declared.
        request: What is to be built.
        only_python: Path of the one interpreter that will do; empty if any will.

    Raises:
        EnvspecError: The host cannot be asked, or its answer is none.
    """
    lock = request.lock
    values = {
        "python": lock.python,
        "exact": lock.python_exact,
        "platform": lock.platform,
        "only_python": only_python,
        "libraries": list(host_libraries(lock)),
    }
    answer = session.call("facts", values)
    return checked(host.name, "itself", lambda: HostFacts.from_json(answer))


def _read_missing(answer: dict[str, Any], sizes: dict[str, int]) -> tuple[str, ...]:
    missing = tuple(answer["missing"])
    if len(missing) != len(set(missing)) or not set(missing) <= sizes.keys():
        raise ValueError("it lacks what is not in the lock")
    return missing


def _read_reuse(host: HostSpec, answer: dict[str, Any]) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """What was reused, and what was not because somebody edited it."""
    findings = []
    for row in answer["not_reused"]:
        files = tuple(str(path) for path in row["edited"])
        findings.append(
            Finding(
                check="host-reuse",
                severity="warning" if files else "info",
                subject=host.name,
                message=f"{row['package']} of `{row['venv']}` is not the locked one"
                + (f": {len(files)} files were edited there" if files else f": {row['reason']}"),
                evidence=files[:SHOWN_EDITED],
                hint="the locked wheel was sent instead",
            )
        )
    return tuple(str(name) for name in answer["reused"]), tuple(findings)


class WheelSource(Protocol):
    """Where files come from by their sha256."""

    def ask(self, sha256s: Iterable[str]) -> dict[str, Future[Path]]:
        """A future path for each."""

    def public_urls(self, sha256s: Iterable[str], *, index: bool) -> dict[str, tuple[str, ...]]:
        """Where hosts can fetch some of them, on indexes too if they may."""

    def forget_damaged(self, sha256: str, path: Path) -> bool:
        """Look at one that arrived damaged; whether it was damaged here, and will be brought anew."""


class WheelSender:
    """A thread that sends what the agent asks for, in the order in which it comes to be."""

    def __init__(
        self,
        session: Session,
        supply: WheelSource,
        sizes: dict[str, int],
        progress: HostProgress,
        *,
        let_fetch: bool = False,
    ) -> None:
        self._let_fetch = let_fetch
        self._session = session
        self._supply = supply
        self._sizes = sizes
        self._progress = progress
        self._asked: dict[str, int] = {}
        self._ready: queue.SimpleQueue[tuple[str, int, Future[Path]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._total = self._done = 0
        self.error: EnvspecError | None = None

    def __enter__(self) -> WheelSender:  # noqa: PYI034 - as everywhere here
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ready.put(None)
        if kind is None:
            self._thread.join()

    def send(self, rows: Any) -> None:  # noqa: ANN401 - as a host says it
        """Send what is asked for, if the lock has it."""
        wanted: dict[str, tuple[int, bool]] = {}
        by_host: set[str] = set()
        for row in rows:
            sha256, offset, damaged = row["sha256"], row["offset"], row["damaged"]
            if not damaged and not row.get("send"):
                by_host.add(sha256)
            self._asked[sha256] = self._asked.get(sha256, 0) + 1
            if not 0 <= offset < self._sizes[sha256] or self._asked[sha256] > TRIES:
                raise ValueError(f"it asks for a wheel in an odd way: {str(row)[:200]}")
            wanted[sha256] = (offset, bool(damaged))
        if by_host:
            if self._let_fetch:
                self._progress.show("finding wheels for it to fetch")
            try:
                urls = self._supply.public_urls(by_host, index=self._let_fetch)
            except EnvspecError as error:
                self._fail(error)
                return
            if urls:
                self._session.let_fetch(urls)
                self._progress.show(f"fetching {len(urls)} wheels itself")
            wanted = {sha256: row for sha256, row in wanted.items() if sha256 not in urls}
        for sha256, (offset, damaged) in wanted.items():
            if damaged:
                self._look_again(sha256)
            self._total += self._sizes[sha256] - offset
        try:
            futures = self._supply.ask(wanted)
        except EnvspecError as error:
            self._fail(error)
            return
        for sha256, future in futures.items():
            # Small ones that are there go first only by chance; what has to be fetched comes when it has come.
            future.add_done_callback(
                lambda done, sha256=sha256: self._ready.put((sha256, wanted[sha256][0], done))  # type: ignore[misc]
            )

    def _look_again(self, sha256: str) -> None:
        future = self._supply.ask([sha256])[sha256]
        if not future.done() or future.exception() is not None:
            return
        if self._supply.forget_damaged(sha256, future.result()):
            self._progress.show(f"{future.result().name} was damaged here: getting it again")

    def _run(self) -> None:
        while (item := self._ready.get()) is not None:
            sha256, offset, future = item
            try:
                path = future.result()
            except EnvspecError as error:
                self._fail(error)
                continue
            except Exception as error:  # noqa: BLE001 - carried to whoever waits for the build
                self._fail(EnvspecError(f"a wheel cannot be had: {error}"))
                continue
            try:
                size = self._sizes[sha256] - offset
                self._session.send_wheel(sha256, size, self._counting(read_from(path, offset), size))
            except PipeLost:
                return  # whoever reads says more
            except (OSError, ValueError) as error:
                # Half of what was announced is on its way: nothing else can follow it.
                self.error = EnvspecError(f"`{path}` cannot be sent: {error}", hint="build again")
                self._session.kill()
                return

    def _counting(self, chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
        for chunk in chunks:
            size -= len(chunk)
            if size < 0:
                break
            yield chunk
            self._done += len(chunk)
            self._progress.amount("sending", self._done, self._total, "bytes")
        if size != 0:
            raise ValueError("its size is not the locked one")

    def _fail(self, error: EnvspecError) -> None:
        self.error = self.error or error
        self._session.refuse_wheel(error.message)
