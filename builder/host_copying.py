"""Wheels of a lock from one host to others: read there, proven here by their sha256, and sent on to whoever lacks them."""

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
    from builder.progress import HostProgress
    from builder.session import Session
    from builder.supplying import HostSupply
    from envspec.lock import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a host got."""

    wheels: int
    bytes: int


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
        self._there = checked(session.host, "its wheels", lambda: {str(sha256) for sha256 in answer["there"]})

    def bring(self, part: Part) -> Path | None:
        """Put a wheel into the wheelhouse of this machine.

        Returns:
            Its path; None if the host does not have it.

        Raises:
            EnvspecError: What came is not the locked wheel; nothing was kept.
        """
        if part.sha256 not in self._there:
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

    def __init__(self, request: BuildRequest, supply: HostSupply) -> None:
        """Prepare.

        Args:
            request: Whose lock.
            supply: Brings the wheels about.
        """
        self._supply = supply
        self._sizes = {part.sha256: part.size for part in parts(request.lock)}
        self._values = {"order": order_of(request).to_json(), "sizes": self._sizes}

    def copy(self, visit: Visit) -> Copied:
        """Send one host what it lacks.

        Raises:
            EnvspecError: Something cannot be had or sent.
        """
        return visit.with_session(lambda session: self._copy(visit, session), tries=TRIES)

    def _copy(self, visit: Visit, session: Session) -> Copied:
        with WheelSender(session, self._supply, self._sizes, visit.progress) as sender:
            totals: dict[str, tuple[int, str]] = {}

            def on_event(event: dict[str, Any]) -> None:
                if "need" in event:
                    session.round_trips += 1
                    sender.send(event["need"])
                else:
                    show_event(visit.progress, event, totals)

            try:
                answer = session.call("stock", self._values, on_event)
            except EnvspecError:
                if sender.error is not None:
                    raise sender.error from None
                raise
        received = checked(session.host, "its wheels", lambda: [self._sizes[sha256] for sha256 in answer["received"]])
        return Copied(wheels=len(received), bytes=sum(received))
