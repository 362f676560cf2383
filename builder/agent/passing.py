"""Passes wheels of this host on to another one, straight: this agent is the controller of an agent there, for one call.

It reaches the other host as the user there would: system ssh with his own configuration, no prompts, strict host keys. The other agent takes
what it asked for, by sha256, and nothing else; this one believes it as little as a controller believes a host.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.agent.pipe import PipeLost
from builder.bundle import Bundle
from builder.session import Session
from builder.transports.ssh import SshTransport
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from builder.agent.serve import Agent
    from builder.agent.store import Store

TRIES = 3
"""How often the other host may ask for one wheel."""

CHUNK_BYTES = 1 << 20
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def place_of(store: Store) -> str:
    """What tells a store from every other one on any machine that runs now: a name may mean another host somewhere else.

    Raises:
        OSError: The store is not there.
    """
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    status = store.root.stat()
    return hashlib.sha256(f"{boot} {status.st_dev} {status.st_ino}".encode()).hexdigest()


def pass_on(agent: Agent, wanted: dict[str, Any]) -> dict[str, Any]:
    """Send another host wheels of this one's wheelhouse.

    Args:
        agent: Whose store.
        wanted: `alias` (in the ssh_config of the user here), `host` (for messages), `store` (folder there), `place` (see `place_of`: what has to
            be found there), and `order`, `sizes` and `only` of the call `stock`.

    Raises:
        EnvspecError: It cannot be reached, is not the one that is meant, or did not get them.
    """
    transport = SshTransport(host=wanted["host"], alias=wanted["alias"], environ=dict(os.environ), own_master=False)
    bundle = Bundle(content=agent.agent_file, sha256=hashlib.sha256(agent.agent_file).hexdigest())
    agent.note(f"connecting to {wanted['host']}")
    with Session(transport, bundle, store=wanted["store"]) as session, _Giver(agent, session, wanted) as giver:
        values = {name: wanted[name] for name in ("order", "sizes", "only", "place")}
        answer = session.call("stock", values, giver.on_event)
    return {"received": [sha256 for sha256 in answer["received"] if sha256 in wanted["sizes"]]}


class _Giver:
    """Sends what the other host asks for from a thread of its own, so that this one goes on listening."""

    def __init__(self, agent: Agent, session: Session, wanted: dict[str, Any]) -> None:
        self._agent = agent
        self._session = session
        self._host = wanted["host"]
        self._sizes: dict[str, int] = wanted["sizes"]
        self._files = {
            part["sha256"]: part["file"]
            for part in wanted["order"]["plan"]["parts"]
            if part["sha256"] in frozenset(wanted["only"])
        }
        self._asked: dict[str, int] = {}
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> _Giver:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._session.kill()  # whoever writes then ends
        self._thread.shutdown(wait=True, cancel_futures=True)

    def on_event(self, event: dict[str, Any]) -> None:
        """Take what the other agent says."""
        for row in event.get("need", ()):
            sha256, offset = row["sha256"], row["offset"]
            self._asked[sha256] = self._asked.get(sha256, 0) + 1
            if not 0 <= offset < self._sizes[sha256] or self._asked[sha256] > TRIES:
                raise ValueError(f"it asks for a wheel in an odd way: {str(row)[:200]}")
            if row["damaged"]:
                self._session.refuse_wheel(f"{self._files[sha256]} is not the locked one there")
                return
            self._agent.note(f"passing {self._files[sha256]} on to {self._host}")
            self._thread.submit(self._send, sha256, offset)

    def _send(self, sha256: str, offset: int) -> None:
        path, size = self._agent.store.wheel(sha256, self._files[sha256]), self._sizes[sha256] - offset
        try:
            file = path.open("rb", buffering=0)
        except OSError as error:
            self._session.refuse_wheel(f"{path.name}: {error.strerror}")
            return
        try:
            with file:
                file.seek(offset)
                self._session.send_wheel(sha256, size, _exactly(file, size))
        except PipeLost:
            pass  # whoever listens says more
        except OSError:
            self._session.kill()  # half of what was announced is on its way: nothing else can follow it


def _exactly(file: FileIO, size: int) -> Iterator[bytes]:
    """So many bytes of a file.

    Raises:
        OSError: There are fewer, or they cannot be read.
    """
    while size > 0:
        chunk = file.read(min(CHUNK_BYTES, size))
        if not chunk:
            raise OSError("the file is shorter than it was")
        size -= len(chunk)
        yield chunk


def check_place(store: Store, expected: str) -> None:
    """See that this is the store that a controller means.

    Raises:
        EnvspecError: It is another one.
    """
    if not store.root.is_dir() or place_of(store) != expected:
        raise EnvspecError(
            f"what is called so there is another machine, or has another store at `{store.root}`",
            hint="give the host the same name in both configurations of ssh",
        )
