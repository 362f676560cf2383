"""What a diagnosis says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from envspec.facts import Finding, Severity
    from envspec.traced import Traced

Explains = Literal["failure", "possible failure", "nothing yet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What mends a cause, checked against the same rules before it is offered."""

    text: str
    """For a person: `use torchvision 0.26.0, the release built with torch 2.11.0`."""

    command: str = ""
    """That does it; empty where no single command does."""

    proven_by: str = ""
    """How it was checked: `the checks pass with it`, `the lock names it`; empty if it could not be."""

    def line(self) -> str:
        """It for a person."""
        return f"{self.text}{f': `{self.command}`' if self.command else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause with everything that follows from it."""

    check: str
    """Id of the check that found it."""

    severity: Severity
    packages: tuple[str, ...]
    """Normalised names; the first is the one to mend."""

    message: str
    """One line without a full stop, with both values."""

    evidence: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    """What else is wrong because of it: findings that it explains, exceptions of the run."""

    explains: Explains = "nothing yet"
    """Whether the run failed by it, could fail by it, or it is only found."""

    fix: Fix | None = None
    findings: tuple[Finding, ...] = ()
    """Those that were grouped here."""

    def to_json(self, rank: int) -> dict[str, Any]:
        """The record that `--json` prints.

        Args:
            rank: Its place, from 1.
        """
        return {
            "rank": rank,
            "check": self.check,
            "severity": self.severity,
            "packages": list(self.packages),
            "message": self.message,
            "evidence": list(self.evidence),
            "follows": list(self.follows),
            "explains": self.explains,
            "fix": self.fix.line() if self.fix else None,
            "fix_proven_by": (self.fix.proven_by or None) if self.fix else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCause:
    """A package that somebody may suspect, and why it is innocent."""

    package: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        return {"package": self.package, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The whole answer."""

    prefix: str
    host: str
    """Name of the host; empty for this machine."""

    causes: tuple[Cause, ...]
    """The most direct explanation of the failure first; of severity `error`, then `warning`."""

    not_causes: tuple[NotCause, ...]
    remarks: tuple[str, ...] = ()
    """What was noticed and breaks nothing: files that were edited, packages of unknown origin."""

    traced: Traced | None = None
    notes: tuple[str, ...] = ()
    """What could not be looked at."""

    @property
    def healthy(self) -> bool:
        """Whether there is no cause of severity `error`, and the run, if there was one, ended well."""
        return not any(cause.severity == "error" for cause in self.causes) and not (self.traced and self.traced.failed)
