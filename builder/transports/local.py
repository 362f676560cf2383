"""This machine through the same agent: for tests of everything but ssh, and for stores of another user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.transports.connection import Connection
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTransport:
    """The agent as a child process."""

    host: str
    environ: Mapping[str, str] = field(repr=False)

    def start(self, bundle: Bundle, store: str) -> Connection:
        """Start the agent's bootstrap (as `Transport`)."""
        try:
            return Connection(bundle.argv(store), self.environ)
        except OSError as error:
            raise EnvspecError(f"the agent does not start: {error}") from error

    def explain(self, returncode: int | None, stderr: str) -> tuple[str, str]:
        """Message and hint for an agent that did not answer (as `Transport`)."""
        said = stderr.splitlines()[-1] if stderr else f"rc {returncode}"
        return f"the agent of `{self.host}` ended: {said}", ""
