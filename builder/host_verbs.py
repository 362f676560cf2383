"""What one can ask of a host besides a build: status, proof, generations, rollback, collection. Answers are checked into values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.observe import Drift
from builder.hosts import Visit, checked, show_event
from builder.outcome import Verification
from envspec.preflight import HostFacts, host_libraries
from envspec.receipt import Receipt, receipt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.agent.probe_scripts import ProbeOrder
    from builder.session import Session
    from envspec.lock import Lock
    from envspec.spec import HostSpec, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGeneration:
    """One generation on a host."""

    number: int
    env: str
    site: str
    created: str
    active: bool
    path: str
    there: bool
    """False if gc removed its environment."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> HostGeneration:
        """A host's answer as a value.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        return cls(
            number=int(fields["number"]),
            env=str(fields["env"]),
            site=str(fields["site"]),
            created=str(fields["created"]),
            active=bool(fields["active"]),
            path=str(fields["path"]),
            there=bool(fields["there"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """How a host is."""

    facts: HostFacts
    generation: HostGeneration | None
    """None if nothing is active there."""

    python: str
    """Version of the Python that the active environment was built on; empty if nothing is active."""

    python_path: str
    """Where that is."""

    drift: tuple[Drift, ...]
    verification: Verification | None
    """How the last proof there ended; None if nothing is active, or there is no receipt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProof:
    """What a verification found."""

    env: str
    site: str
    path: str
    generation: int | None
    """None if it is not the active one."""

    drift: tuple[Drift, ...]
    seconds: Mapping[str, float]
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGarbage:
    """What a collection removed, or would remove."""

    paths: tuple[str, ...]
    generations: tuple[tuple[str, int], ...]
    freed_bytes: int
    in_use: tuple[tuple[str, int], ...]


def ask(
    session: Session,
    visit: Visit,
    call: str,
    values: dict[str, Any],
    doing: str,
    *,
    on_raw: Callable[[int, Iterator[bytes]], None] | None = None,
) -> dict[str, Any]:
    """Call an agent, and pass its events on as progress (as `Session.call`)."""
    visit.progress.show(doing)
    totals: dict[str, tuple[int, str]] = {}
    return session.call(call, values, lambda event: show_event(visit.progress, event, totals), on_raw=on_raw)


def facts_request(spec: Spec, lock: Lock | None, host: HostSpec, *, anew: bool = False) -> dict[str, Any]:
    """The arguments of the call for a host's facts.

    Args:
        spec: The spec.
        lock: The lock, if there is one.
        host: Which host.
        anew: Whether programs are asked although the store there remembers their answers, and nothing has changed since.
    """
    return {
        "anew": anew,
        "python": spec.python.version if lock is None else lock.python,
        "exact": spec.python.exact if lock is None else lock.python_exact,
        "platform": spec.target.platform,
        "only_python": host.python,
        "libraries": list(spec.target.libraries if lock is None else host_libraries(lock)),
    }


def status_of(spec: Spec, lock: Lock | None, *, deep: bool) -> Callable[[Visit], HostStatus]:
    """Work for `on_hosts`: how a host is.

    Args:
        spec: The spec.
        lock: The lock, if there is one.
        deep: Whether every byte is read.
    """

    def work(visit: Visit) -> HostStatus:
        host = visit.target.spec

        def look(session: Session) -> HostStatus:
            found = ask(session, visit, "status", {"name": spec.name, "deep": deep}, "looking for drift")
            facts = ask(session, visit, "facts", facts_request(spec, lock, host, anew=deep), "looking at the host")

            def read() -> HostStatus:
                generation, verification = found["generation"], found["verification"]
                return HostStatus(
                    facts=HostFacts.from_json(facts),
                    generation=None if generation is None else HostGeneration.from_json(generation),
                    python="" if found["python"] is None else str(found["python"]["version"]),
                    python_path="" if found["python"] is None else str(found["python"]["path"]),
                    drift=tuple(Drift.from_json(each) for each in found["drift"]),
                    verification=None if verification is None else Verification.from_json(verification),
                )

            return checked(host.name, "itself", read)

        return visit.with_session(look)

    return work


def proof_of(
    spec: Spec, *, now: str, deep: bool, env: str = "", probes: ProbeOrder | None = None
) -> Callable[[Visit], HostProof]:
    """Work for `on_hosts`: prove what is active again.

    Args:
        spec: The spec.
        now: RFC 3339 in UTC.
        deep: Whether every byte is read.
        env: Which environment of the hosts' stores; empty for the active one.
        probes: Which probes are run; None for none.
    """
    values = {
        "name": spec.name,
        "imports": list(spec.verify.imports),
        "libraries": list(spec.target.libraries),
        "now": now,
        "deep": deep,
        "env": env,
        "probes": None if probes is None else probes.to_json(),
    }

    def work(visit: Visit) -> HostProof:
        def prove(session: Session) -> HostProof:
            found = ask(session, visit, "verify", values, "proving")

            def read() -> HostProof:
                generation, host = found["generation"], visit.target.spec.name
                receipt = receipt_of(dict(found["receipt"]), name=f"the receipt of {host}")
                if (receipt.kind, receipt.env, receipt.name) != ("verify", found["env"], spec.name):
                    raise ValueError("its receipt is about something else")
                return HostProof(
                    env=receipt.env,
                    site=receipt.site,
                    path=str(found["path"]),
                    generation=None if generation is None else int(generation),
                    drift=tuple(Drift.from_json(each) for each in found["drift"]),
                    seconds={str(name): float(value) for name, value in found["seconds"].items()},
                    receipt=receipt,
                )

            return checked(visit.target.spec.name, "its proof", read)

        return visit.with_session(prove)

    return work


def generations_of(name: str) -> Callable[[Visit], tuple[HostGeneration, ...]]:
    """Work for `on_hosts`: the generations of a profile, oldest first."""

    def work(visit: Visit) -> tuple[HostGeneration, ...]:
        def look(session: Session) -> tuple[HostGeneration, ...]:
            found = ask(session, visit, "generations", {"name": name}, "looking")
            return checked(
                visit.target.spec.name,
                "its generations",
                lambda: tuple(HostGeneration.from_json(each) for each in found["generations"]),
            )

        return visit.with_session(look)

    return work


def rollback_of(name: str, number: int | None) -> Callable[[Visit], HostGeneration]:
    """Work for `on_hosts`: make an earlier generation the active one; None for the one before the active one."""

    def work(visit: Visit) -> HostGeneration:
        def switch(session: Session) -> HostGeneration:
            found = ask(session, visit, "rollback", {"name": name, "number": number}, "switching")
            return checked(
                visit.target.spec.name, "its generation", lambda: HostGeneration.from_json(found["generation"])
            )

        return visit.with_session(switch)

    return work


def collection_of(*, keep: int | None, dry_run: bool) -> Callable[[Visit], HostGarbage]:
    """Work for `on_hosts`: remove what nothing uses.

    Args:
        keep: How many of the newest generations of each profile stay; None for all.
        dry_run: Whether only to look.
    """

    def work(visit: Visit) -> HostGarbage:
        def collect(session: Session) -> HostGarbage:
            found = ask(session, visit, "gc", {"keep": keep, "dry_run": dry_run}, "collecting")

            def read() -> HostGarbage:
                return HostGarbage(
                    paths=tuple(str(path) for path in found["paths"]),
                    generations=tuple((str(name), int(number)) for name, number in found["generations"]),
                    freed_bytes=int(found["freed_bytes"]),
                    in_use=tuple((str(env), int(pid)) for env, pid in found["in_use"]),
                )

            return checked(visit.target.spec.name, "its garbage", read)

        return visit.with_session(collect)

    return work
