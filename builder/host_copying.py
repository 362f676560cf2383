"""Wheels of a lock from one host to others: straight, where the one reaches the other, else through this machine, which proves each.

Whichever way, the host that gets a wheel hashes it as it arrives. What the source claims to have passed on counts for nothing: the one that was
to get it is asked.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.building import order_of
from builder.host_building import WheelSender
from builder.hosts import TRIES, Visit, checked, show_event
from builder.provision import place_wheel
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.lock import parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.building import BuildRequest
    from builder.hosts import Target
    from builder.progress import HostProgress
    from builder.session import Session
    from builder.supplying import HostSupply
    from envspec.lock import Part


REASON_LIMIT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a host got."""

    wheels: int
    bytes: int
    """Of all of them."""

    straight: int
    """How many of them came straight from the source."""

    not_straight: str
    """Why the others did not; empty if they did, or the source had none of them."""


class Lender:
    """A host that lends its wheelhouse. What comes from it is believed only if its sha256 is the locked one."""

    def __init__(self, session: Session, request: BuildRequest, progress: HostProgress) -> None:
        """Ask what there is.

        Raises:
            EnvspecError: The host cannot be asked.
        """
        self._session = session
        self._store = request.store
        self._progress = progress
        rows = [{"sha256": each.sha256, "file": each.file, "size": each.size} for each in parts(request.lock)]
        answer = session.call("wheels", {"wheels": rows})
        self.there = checked(session.host, "its wheels", lambda: frozenset(str(sha256) for sha256 in answer["there"]))
        """sha256 of the wheels that it has."""

    def bring(self, part: Part) -> Path | None:
        """Put a wheel into the wheelhouse of this machine.

        Returns:
            Its path; None if the host does not have it.

        Raises:
            EnvspecError: What came is not the locked wheel; nothing was kept.
        """
        if part.sha256 not in self.there:
            return None
        self._progress.show(f"lends {part.file}")
        lock_name = f"lent-{part.sha256[:40]}"
        with self._store.lock(lock_name):
            folder = self._store.temporary(lock_name)
            place = folder / "wheel"
            try:
                found = self._take(part, place)
                if found != part.sha256:
                    raise EnvspecError(
                        f"`{self._session.host}` gave {part.file} with sha256 {found}, the lock has {part.sha256}",
                        hint="`envspec build --repair` there mends its wheelhouse",
                        exit_code=FOUND_WRONG,
                    )
                target = self._store.wheel(part.sha256, part.file)
                place_wheel(place, target)
            finally:
                place.unlink(missing_ok=True)
                folder.rmdir()
        return target

    def _take(self, part: Part, place: Path) -> str:
        digest = hashlib.sha256()

        def write(size: int, chunks: Iterator[bytes]) -> None:
            if size != part.size:
                raise ValueError(f"{size} bytes where {part.size} were asked for")
            fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(fd, "wb") as file:
                for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)

        self._session.call("give", {"sha256": part.sha256, "file": part.file}, on_raw=write)
        return digest.hexdigest()


class HostCopier:
    """Brings the wheels of a lock to hosts, without building."""

    def __init__(
        self,
        request: BuildRequest,
        supply: HostSupply,
        *,
        source: Target,
        lent: frozenset[str] = frozenset(),
        straight: bool = True,
    ) -> None:
        """Prepare.

        Args:
            request: Whose lock.
            supply: Brings the wheels about that go through this machine.
            source: The host that has wheels.
            lent: sha256 of those.
            straight: Whether the source may be asked to reach the others itself.
        """
        self._supply = supply
        self._source = source
        self._lent = lent
        self._straight = straight
        self._sizes = {part.sha256: part.size for part in parts(request.lock)}
        self._rows = [{"sha256": each.sha256, "file": each.file, "size": each.size} for each in parts(request.lock)]
        self._order = order_of(request).to_json()

    def copy(self, visit: Visit) -> Copied:
        """Have one host get what it lacks.

        Raises:
            EnvspecError: Something cannot be had or sent.
        """
        visit.progress.show("looking")
        place, missing = visit.with_session(self._look, tries=TRIES)
        lent, left, reason = [sha256 for sha256 in missing if sha256 in self._lent], missing, ""
        if lent and self._straight:
            reason = self._pass_on(visit, place, lent)
            _, left = visit.with_session(self._look, tries=TRIES)
        elif lent:
            reason = "that was not to be tried"
        straight = [sha256 for sha256 in lent if sha256 not in left]
        received = visit.with_session(lambda session: self._send(visit, session, left), tries=TRIES) if left else []
        got = [*straight, *received]
        return Copied(
            wheels=len(got),
            bytes=sum(self._sizes[sha256] for sha256 in got),
            straight=len(straight),
            not_straight=reason[:REASON_LIMIT],
        )

    def _look(self, session: Session) -> tuple[str, tuple[str, ...]]:
        answer = session.call("place", {"wheels": self._rows})

        def read() -> tuple[str, tuple[str, ...]]:
            missing = tuple(dict.fromkeys(answer["missing"]))
            if not set(missing) <= self._sizes.keys():
                raise ValueError("it lacks what is not in the lock")
            return str(answer["place"]), missing

        return checked(session.host, "its wheels", read)

    def _pass_on(self, visit: Visit, place: str, sha256s: list[str]) -> str:
        """Let the source send wheels straight; why it could not, or empty."""
        host = visit.target.spec
        values = {
            "alias": host.ssh,
            "host": host.name,
            "store": host.store,
            "place": place,
            "order": self._order,
            "sizes": self._sizes,
            "only": sha256s,
        }
        source = Visit(target=self._source, bundle=visit.bundle, progress=visit.progress, traffic=visit.traffic)
        totals: dict[str, tuple[int, str]] = {}

        def work(session: Session) -> None:
            session.call("pass_on", values, lambda event: show_event(visit.progress, event, totals))

        try:
            source.with_session(work)
        except EnvspecError as error:
            return error.message
        return ""

    def _send(self, visit: Visit, session: Session, missing: tuple[str, ...]) -> list[str]:
        values = {"order": self._order, "sizes": self._sizes, "only": list(missing), "place": ""}
        with WheelSender(session, self._supply, self._sizes, visit.progress) as sender:
            totals: dict[str, tuple[int, str]] = {}

            def on_event(event: dict[str, Any]) -> None:
                if "need" in event:
                    session.round_trips += 1
                    sender.send(event["need"])
                else:
                    show_event(visit.progress, event, totals)

            try:
                answer = session.call("stock", values, on_event)
            except EnvspecError:
                if sender.error is not None:
                    raise sender.error from None
                raise
        return checked(
            session.host,
            "its wheels",
            lambda: [sha256 for sha256 in missing if sha256 in frozenset(answer["received"])],
        )
