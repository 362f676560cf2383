"""A diagnosis with what is said beside it: all that is shown to a user, as a value that can be written down and read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.diagnosis.values import Cause, Diagnosis, Fix, NotCause
from envspec.printable import printable_json
from envspec.traced import traced_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.observed import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a user is told of a venv."""

    diagnosis: Diagnosis
    python: str
    """Its version; empty if unknown."""

    packages: int
    files: int
    locked: Mapping[str, str]
    """As in `envspec.observed.Observation`."""

    notes: tuple[str, ...] = ()
    """What an index did not answer."""

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; `docs/schemas/diagnose.schema.json` describes it."""
        diagnosis = self.diagnosis
        value: dict[str, Any] = printable_json(
            {
                "host": diagnosis.host or "localhost",
                "path": diagnosis.prefix,
                "python": self.python or None,
                "packages": self.packages,
                "files": self.files,
                "locked": dict(self.locked) or None,
                "healthy": diagnosis.healthy,
                "run": None if diagnosis.traced is None else traced_to_json(diagnosis.traced),
                "causes": [cause.to_json(rank) for rank, cause in enumerate(diagnosis.causes, 1)],
                "not_causes": [each.to_json() for each in diagnosis.not_causes],
                "remarks": list(diagnosis.remarks),
                "notes": [*diagnosis.notes, *self.notes],
            }
        )
        return value


def told_of(diagnosis: Diagnosis, observation: Observation, notes: tuple[str, ...] = ()) -> Told:
    """What a user is told.

    Args:
        diagnosis: Of the venv.
        observation: That it judged.
        notes: What an index did not answer.
    """
    return Told(
        diagnosis=diagnosis,
        python=observation.python.version,
        packages=len(observation.distributions),
        files=observation.files_seen,
        locked=dict(observation.locked),
        notes=notes,
    )


def told_to_record(told: Told) -> dict[str, Any]:
    """It as a record that `told_from_record` reads; for a diagnosis without a run. The findings behind a cause are left out.

    Raises:
        ValueError: Something was run: another run may go otherwise.
    """
    diagnosis = told.diagnosis
    if diagnosis.traced is not None:
        raise ValueError("a run is not remembered")
    return {
        "prefix": diagnosis.prefix,
        "causes": [
            [
                each.check,
                each.severity,
                each.packages,
                each.message,
                each.evidence,
                each.follows,
                each.explains,
                None if each.fix is None else [each.fix.text, each.fix.command, each.fix.proven_by],
            ]
            for each in diagnosis.causes
        ],
        "not_causes": [[each.package, each.reason] for each in diagnosis.not_causes],
        "remarks": diagnosis.remarks,
        "notes": diagnosis.notes,
        "python": told.python,
        "packages": told.packages,
        "files": told.files,
        "locked": dict(told.locked),
    }


def told_from_record(record: Mapping[str, Any]) -> Told:
    """What `told_to_record` wrote down.

    Raises:
        KeyError, TypeError, ValueError: It is no such record.
    """
    causes = []
    for check, severity, packages, message, evidence, follows, explains, fix in record["causes"]:
        causes.append(
            Cause(
                check=check,
                severity=severity,
                packages=tuple(packages),
                message=message,
                evidence=tuple(evidence),
                follows=tuple(follows),
                explains=explains,
                fix=None if fix is None else Fix(text=fix[0], command=fix[1], proven_by=fix[2]),
            )
        )
    return Told(
        diagnosis=Diagnosis(
            prefix=record["prefix"],
            host="",
            causes=tuple(causes),
            not_causes=tuple(NotCause(package=package, reason=reason) for package, reason in record["not_causes"]),
            remarks=tuple(record["remarks"]),
            notes=tuple(record["notes"]),
        ),
        python=record["python"],
        packages=record["packages"],
        files=record["files"],
        locked=record["locked"],
    )
