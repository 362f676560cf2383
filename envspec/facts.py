"""What was measured in a wheel, and what was judged of it.

`WheelFacts` are everything that envspec knows of a wheel; they are measured once, cached by the wheel's sha256 and `INSPECTOR`, and judged by
`envspec.checks`. Measuring never judges: what is odd about a wheel is an `Anomaly` here, and a `Finding` only where a check says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from envspec.binaries import BinaryFacts, binary_facts_from_json, binary_facts_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

INSPECTOR = 5
"""Raised with every change of what is measured, so that older cached facts are measured anew."""

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """Something about a wheel's archive that an honest wheel does not have."""

    kind: str
    """One of `path-escape`, `symlink-member`, `duplicate-member`, `encrypted-member`, `bad-archive`, `size-lie`, `bad-crc`, `record-hash`,
    `record-ghost`,
    `record-path`, `unrecorded`, `reserved-path`, `shipped-bytecode`, `dist-info`, `bad-metadata`, `bad-name`."""

    path: str
    """The member, as the archive names it; empty if the whole wheel is meant."""

    detail: str
    """What is odd, with both values where there are two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupHook:
    """A file that Python reads or runs at every start: a `.pth` at the root of site-packages, or `sitecustomize`/`usercustomize`."""

    path: str
    """Within site-packages."""

    sha256: str
    """Of the file."""

    code: tuple[str, ...]
    """The lines that run: those of a `.pth` that begin with `import`; `the module sitecustomize` or `usercustomize`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """A file that the wheel puts into an environment, as it lies there (a script with its first line rewritten)."""

    path: str
    """Relative to the environment's root: `lib/python3.12/site-packages/torch/__init__.py`, `bin/torchrun`."""

    sha256: str
    size: int
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """All that was measured in one wheel, for one Python minor version (paths in the environment contain it)."""

    filename: str
    """`torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl`."""

    sha256: str
    size: int
    """Of the wheel file, in bytes."""

    python: str
    """The minor version whose layout `files` has: `3.12`."""

    name: str
    """Normalised (PEP 503), from METADATA, or from the file name if METADATA cannot be read."""

    version: str
    """Verbatim from METADATA; empty if METADATA cannot be read."""

    requires_python: str
    """Verbatim from METADATA; empty if absent."""

    requires_dist: tuple[str, ...]
    """Verbatim from METADATA, in its order."""

    provides_extra: tuple[str, ...]
    wheel_tags: tuple[str, ...]
    """`Tag:` lines of WHEEL, in its order."""

    scripts: tuple[str, ...]
    """Names of all files that the wheel puts into `bin/`, generated entry points included, sorted."""

    hooks: tuple[StartupHook, ...]
    files: tuple[InstalledFile, ...]
    """Every file in an environment, sorted by path: members, generated scripts, `INSTALLER` and the rewritten `RECORD`. Members that cannot be
    installed are left out and appear among `anomalies`."""

    anomalies: tuple[Anomaly, ...]
    tree: str
    """The tree digest of `files`."""

    binaries: BinaryFacts = field(default_factory=BinaryFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found.

    One cause gives one finding: what follows from it is `evidence`.
    """

    check: str
    """Id of the check: words, for ever the same, such as `file-collision`."""

    severity: Severity
    subject: str
    """What it is about, for a person: `torch 2.11.0`, or `flashinfer-python and torch-c-dlpack-ext`."""

    message: str
    """What is wrong, with both values; one line without a full stop."""

    evidence: tuple[str, ...] = ()
    hint: str = ""
    """What to do next."""

    packages: tuple[str, ...] = ()
    """Normalised names of the packages concerned: a waiver of any of them applies."""

    path: str = ""
    """The path concerned (in site-packages or in the environment), for a waiver; empty if none."""

    def to_json(self) -> dict[str, Any]:
        """The record that `--json` prints (docs: design of the command line)."""
        return {
            "check": self.check,
            "severity": self.severity,
            "subject": self.subject,
            "message": self.message,
            "evidence": list(self.evidence),
            "hint": self.hint,
            "packages": list(self.packages),
            "path": self.path or None,
        }


def wheel_facts_to_json(facts: WheelFacts) -> dict[str, Any]:
    """The facts as JSON, for the cache. Files are rows, to keep 57,000 of them small."""
    return {
        "inspector": INSPECTOR,
        "filename": facts.filename,
        "sha256": facts.sha256,
        "size": facts.size,
        "python": facts.python,
        "name": facts.name,
        "version": facts.version,
        "requires_python": facts.requires_python,
        "requires_dist": list(facts.requires_dist),
        "provides_extra": list(facts.provides_extra),
        "wheel_tags": list(facts.wheel_tags),
        "scripts": list(facts.scripts),
        "hooks": [[hook.path, hook.sha256, list(hook.code)] for hook in facts.hooks],
        "files": [[file.path, file.sha256, file.size, int(file.executable)] for file in facts.files],
        "anomalies": [[anomaly.kind, anomaly.path, anomaly.detail] for anomaly in facts.anomalies],
        "tree": facts.tree,
        "binaries": binary_facts_to_json(facts.binaries),
    }


def wheel_facts_from_json(record: Mapping[str, Any]) -> WheelFacts:
    """The inverse of `wheel_facts_to_json`.

    Raises:
        KeyError, TypeError, ValueError: The record is not one that this version wrote; the caller measures again.
    """
    if record["inspector"] != INSPECTOR:
        raise ValueError(f"facts of inspector {record['inspector']}, this is {INSPECTOR}")
    return WheelFacts(
        filename=record["filename"],
        sha256=record["sha256"],
        size=record["size"],
        python=record["python"],
        name=record["name"],
        version=record["version"],
        requires_python=record["requires_python"],
        requires_dist=tuple(record["requires_dist"]),
        provides_extra=tuple(record["provides_extra"]),
        wheel_tags=tuple(record["wheel_tags"]),
        scripts=tuple(record["scripts"]),
        hooks=tuple(StartupHook(path=path, sha256=sha256, code=tuple(code)) for path, sha256, code in record["hooks"]),
        files=tuple(
            InstalledFile(path=path, sha256=sha256, size=size, executable=bool(executable))
            for path, sha256, size, executable in record["files"]
        ),
        anomalies=tuple(Anomaly(kind=kind, path=path, detail=detail) for kind, path, detail in record["anomalies"]),
        tree=record["tree"],
        binaries=binary_facts_from_json(record["binaries"]),
    )
