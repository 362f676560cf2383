"""Whether the assemblers that wheels bring along know the GPUs of the hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.checks.gpu_code import alternatives, shown_with_hosts
from envspec.checks.registry import check
from envspec.checks.wording import evidence, joined
from envspec.facts import Finding, Severity
from envspec.gpu import Capability, parse_capability, parse_code, sorted_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envspec.binaries import Assembler
    from envspec.checks.closure import Closure, ClosureWheel

KNOWN_SINCE = {
    Capability(7, 5): (10, 0),
    Capability(8, 0): (11, 0),
    Capability(8, 6): (11, 1),
    Capability(8, 7): (11, 4),
    Capability(8, 8): (13, 0),
    Capability(8, 9): (11, 8),
    Capability(9, 0): (11, 8),
    Capability(10, 0): (12, 8),
    Capability(10, 3): (12, 9),
    Capability(11, 0): (13, 0),
    Capability(12, 0): (12, 8),
    Capability(12, 1): (12, 9),
}
"""The CUDA release whose `ptxas` was the first to know a capability; none to 13.5 has forgotten one of these.

Measured in the `ptxas` of 12.8.93, 12.9.86 and 13.0.88; older ones from the release notes of the CUDA toolkit."""

TRITON_WITH = ((12, 8), "3.4.0"), ((12, 9), "3.6.0"), ((13, 1), "3.7.1")
"""A release of triton for each CUDA release whose `ptxas` it brings, measured in its wheels; that of 3.6.0 and later is `ptxas-blackwell`."""

OPTIONAL_USERS = {"torch": "torch.compile"}
"""Packages that work without their assembler -> what alone uses it."""


@check("assembler-too-old")
def assembler_too_old(closure: Closure) -> Iterable[Finding]:
    """An assembler that a package brings along knows every compute capability that the spec declares.

    Of several in one package it is enough that one knows it: triton chooses among its two by the GPU.

    Severity: error; warning for torch, whose `ptxas` only torch.compile uses (it points triton to it); triton's own kernels
    and everything else in torch do without.

    Why: triton writes PTX and has `ptxas` make machine code of it on the host. One from before the GPU refuses: `ptxas fatal:
    Value 'sm_121a' is not defined for option 'gpu-name'`, at the first kernel, after the model is loaded.

    Example:
        error: triton 3.5.1 brings a `ptxas` of CUDA 12.8, which does not know compute capability 12.1 (host spark)

    How to mend: take a release of the package with a newer `ptxas`; the hint names it for triton.
    """
    capabilities = sorted({parse_capability(text) for text in closure.spec.cuda.compute}) if closure.spec.cuda else []
    for wheel in closure.wheels:
        assemblers = [each for each in wheel.facts.binaries.assemblers if each.codes or each.release]
        unknown = [each for each in capabilities if not any(_knows(assembler, each) for assembler in assemblers)]
        if assemblers and unknown:
            yield _too_old(closure, wheel, assemblers, unknown)


def _too_old(
    closure: Closure, wheel: ClosureWheel, assemblers: Sequence[Assembler], unknown: Sequence[Capability]
) -> Finding:
    name = wheel.facts.name
    releases = sorted({_release(each) for each in assemblers if each.release})
    brought = "CUDA " + joined([f"{major}.{minor}" for major, minor in releases]) if releases else "an unknown release"
    user = OPTIONAL_USERS.get(name, "")
    severity: Severity = "warning" if user else "error"
    wanted = max((KNOWN_SINCE[each] for each in unknown if each in KNOWN_SINCE), default=None)
    hint = f"choose a release of {name} whose `ptxas` knows it"
    if wanted is not None:
        hint = f"choose a release of {name} that brings `ptxas` of CUDA {wanted[0]}.{wanted[1]} or later"
        mending = [version for release, version in TRITON_WITH if release >= wanted]
        if name == "triton" and mending:
            hint = f"use triton {mending[0]} or later"
    if user:
        hint += f"; waive it if nothing uses {user} there"
    return Finding(
        check="assembler-too-old",
        severity=severity,
        subject=wheel.label,
        message=(
            f"{wheel.label} brings a `ptxas` of {brought}, which does not know compute capability "
            f"{alternatives([shown_with_hosts(closure.spec, each) for each in unknown])}"
        ),
        evidence=evidence([_described(wheel, each) for each in assemblers]),
        hint=hint,
        packages=(name,),
        path=wheel.shown_path(assemblers[0].path),
    )


def _knows(assembler: Assembler, capability: Capability) -> bool:
    """Whether an assembler can make code for a capability.

    Either its names are found in it, or it is of a release that has it: a name that ends a message is not found by itself.
    """
    codes = [parse_code(code) for code in assembler.codes]
    if any(code is not None and code.capability == capability for code in codes):
        return True
    since = KNOWN_SINCE.get(capability)
    return since is not None and bool(assembler.release) and _release(assembler) >= since


def _described(wheel: ClosureWheel, assembler: Assembler) -> str:
    """`triton/backends/nvidia/bin/ptxas: CUDA 12.8.93, up to sm_120a`."""
    newest = sorted_codes(assembler.codes)[-1:]
    return f"{wheel.shown_path(assembler.path)}: CUDA {assembler.release or 'unknown'}{''.join(f', up to {code}' for code in newest)}"


def _release(assembler: Assembler) -> tuple[int, int]:
    major, minor = assembler.release.split(".")[:2]
    return int(major), int(minor)
