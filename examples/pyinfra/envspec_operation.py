"""A pyinfra operation that builds the locked environment on each host, where envspec is there.

    from envspec_operation import environment
    environment(spec="/srv/ddtree/ddtree.toml")

The fact is `envspec status`, so that a dry run (`pyinfra --dry`) shows what would change, and nothing runs where nothing is to be done.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra import host
from pyinfra.api import FactBase, QuoteString, StringCommand, operation

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable


def _command(verb: str, spec: str, store: str, envspec: str, *more: str) -> StringCommand:
    """A command line; every word that comes from outside is quoted."""
    words = [envspec, verb, "--line", "--json", "--spec", spec, *(("--store", store) if store else ()), *more]
    return StringCommand(*(QuoteString(word) for word in words))


class EnvspecStatus(FactBase):  # type: ignore[type-arg]
    """What is active on the host, and what the lock says: the record of `envspec status --json`."""

    def command(self, spec: str, store: str = "", envspec: str = "envspec") -> StringCommand:
        """What is run on the host."""
        # Exit code 1 says that something differs, which is an answer.
        return StringCommand(_command("status", spec, store, envspec), "||", "test $? -eq 1")

    def process(self, output: Iterable[str]) -> dict[str, Any]:
        """What it printed, as a value."""
        record: dict[str, Any] = json.loads("".join(output))["hosts"][0]
        return record


@operation()
def environment(
    spec: str, *, store: str = "", envspec: str = "envspec", receipts: str = "", repair: bool = False
) -> Generator[StringCommand, None, None]:
    """Build the environment of a lock, prove it, and make it active.

    Args:
        spec: The spec on the host; its lock and patches lie beside it.
        store: The store; empty for the default.
        envspec: The program.
        receipts: Folder where the host leaves its receipt; empty for none.
        repair: Whether a drifted environment is made anew.
    """
    status = host.get_fact(EnvspecStatus, spec=spec, store=store, envspec=envspec)
    if status["env"] == status["locked_env"] and not (repair and status["drift"]):
        host.noop(f"{status['env']} is active")
        return
    more = [*(("--receipts", receipts) if receipts else ()), *(("--repair",) if repair else ())]
    yield _command("build", spec, store, envspec, *more)
