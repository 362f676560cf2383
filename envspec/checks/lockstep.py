"""Packages that have to be of one version, and do not say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from envspec.checks.registry import check
from envspec.checks.wording import joined
from envspec.facts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks.closure import Closure, ClosureWheel

FAMILIES: tuple[tuple[str, ...], ...] = (("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),)
"""Packages that must have one version; the first one of a family is the one that others ask for, so its version is the one to have.

flashinfer compares the versions when it is imported and raises if they differ (NVIDIA-NeMo/Export-Deploy#679, vllm-project/vllm#49804); what the
packages require of each other says nothing about it."""


@check("lock-step")
def lock_step(closure: Closure) -> Iterable[Finding]:
    """Packages that belong together are of one version.

    Known are flashinfer-python, flashinfer-cubin and flashinfer-jit-cache, as far as they are there. The local part of a
    version (`+cu130`) does not count.

    Severity: error.

    Why: the code in one is made for the others, but none requires the others in its metadata, so a resolver takes the newest of
    each. flashinfer then refuses to be imported; where its check is switched off, kernels of another version run.

    Example:
        error: flashinfer-python 0.6.13 and flashinfer-cubin 0.6.12 must be of one version

    How to mend: pin them together in [packages]; if not all of them have the version, take the newest that all have.
    """
    for family in FAMILIES:
        members = [wheel for name in family for wheel in closure.wheels if wheel.facts.name == name]
        if len({_public(wheel) for wheel in members}) < 2:
            continue
        leader = members[0]
        others = [wheel for wheel in members if _public(wheel) != _public(leader)]
        pins = [f'{wheel.facts.name} = "=={_public(leader)}"' for wheel in others]
        hint = f"set {joined([f'`{pin}`' for pin in pins])} in [packages]"
        if len({_public(wheel) for wheel in others}) == 1:
            hint += f', or `{leader.facts.name} = "=={_public(others[0])}"` if there is no such release'
        yield Finding(
            check="lock-step",
            severity="error",
            subject=joined([wheel.facts.name for wheel in members]),
            message=f"{joined([wheel.label for wheel in members])} must be of one version",
            evidence=tuple(f"{wheel.label}: {wheel.facts.filename}" for wheel in members),
            hint=hint,
            packages=tuple(dict.fromkeys(wheel.facts.name for wheel in members)),
        )


def _public(wheel: ClosureWheel) -> str:
    """A version without its local part, in canonical form; as it is if it cannot be read."""
    try:
        return Version(wheel.facts.version).public
    except (InvalidVersion, ValueError):
        return wheel.facts.version
