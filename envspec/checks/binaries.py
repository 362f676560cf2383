"""What a binary says of itself that no honest build needs: another machine, damage, paths of a build machine, an executable stack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.checks.anomalies import Wording, findings_of_wheel
from envspec.checks.registry import check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from envspec.binaries import Binary
    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.facts import Finding

DEVICE_MACHINES = frozenset({"cuda", "machine-224", "machine-247"})
"""ELF files that no processor runs: GPU code of NVIDIA and AMD, and eBPF. They are data, whatever the host is."""

MACHINE_NAMES = {
    "x86_64": ("x86_64", "x86-64", "amd64", "x64"),
    "aarch64": ("aarch64", "arm64"),
    "i386": ("i386", "i486", "i586", "i686", "x86"),
    "arm": ("armv7l", "armv7", "armhf", "arm"),
    "ppc64": ("ppc64le", "ppc64", "powerpc64le"),
    "s390": ("s390x",),
    "riscv": ("riscv64",),
}
"""Machine -> how names of files and folders spell it."""

REFUSES_EXECUTABLE_STACKS = (2, 41)
"""The first glibc whose `dlopen` refuses a library that asks for an executable stack (release notes of glibc 2.41)."""

_ORIGIN = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(?:/.*)?", re.DOTALL)
_SPELLINGS = re.compile("|".join(re.escape(name) for names in MACHINE_NAMES.values() for name in names), re.IGNORECASE)


@check("foreign-machine")
def foreign_machine(closure: Closure) -> Iterable[Finding]:
    """Every binary is made for the target's processor.

    Files that no processor runs are data: cubins, AMD's code objects, eBPF. A wheel may bring one file for each machine and
    choose at run time: `tools/linux-arm64/helper` beside `tools/linux-x64/helper` is not to be blamed, nor is a stub for another
    machine in a folder that is named after it (`stubs/aarch64-unknown-linux-gnu/`).

    Severity: error; info if the wheel brings the same file for the target, or the folder says which machine it is for.

    Why: files copied from another machine, or a wheel that was built on the wrong one: `cannot open shared object file: No
    such file or directory` for a file that is there, or `Exec format error`.

    Example:
        error: demo 1.0 has 1 binary for another machine than x86_64: `demo/_core.abi3.so`

    How to mend: lock a wheel that is built for the target; report it to the package.
    """
    machine = closure.spec.target.platform.partition("-")[2]
    for wheel in closure.wheels:
        binaries = wheel.facts.binaries.binaries
        own = {_without_machine(each.path) for each in binaries if each.machine == machine}
        foreign = [each for each in binaries if each.machine and each.machine not in {machine, *DEVICE_MACHINES}]
        beside = {
            each.path: each.machine
            for each in foreign
            if _without_machine(each.path) in own or _is_in_folder_of_machine(each)
        }
        alone = {each.path: each.machine for each in foreign if each.path not in beside}
        wording = Wording(
            check="foreign-machine",
            severity="error",
            one=f"binary for another machine than {machine}",
            many=f"binaries for another machine than {machine}",
            hint="lock a wheel that is built for the target, and report it to the package",
        )
        yield from findings_of_wheel(closure, wheel, _details(wheel, alone), wording)
        wording = Wording(
            check="foreign-machine",
            severity="info",
            one=f"binary for another machine than {machine}, which its place says",
            many=f"binaries for other machines than {machine}, which their places say",
            hint="",
        )
        yield from findings_of_wheel(closure, wheel, _details(wheel, beside), wording)


@check("damaged-binary")
def damaged_binary(closure: Closure) -> Iterable[Finding]:
    """Every binary can be read.

    Severity: warning. It is left out of all other checks of binaries.

    Why: the file begins as an ELF file does and contradicts itself or its own size. The linker may refuse it, or it is
    something that was never meant to be loaded; either way nothing about it is proven.

    Example:
        warning: demo 1.0 has 1 binary that cannot be read: `demo/_core.abi3.so`

    How to mend: compare the sha256 with the index; report it to the package. Waive it if the file is never loaded, such as
    the material of a test.
    """
    wording = Wording(
        check="damaged-binary",
        severity="warning",
        one="binary that cannot be read",
        many="binaries that cannot be read",
        hint="report it to the package; waive it by its path if it is never loaded",
    )
    for wheel in closure.wheels:
        damaged = {each.path: each.damage for each in wheel.facts.binaries.binaries if each.damage}
        yield from findings_of_wheel(closure, wheel, _details(wheel, damaged), wording)


@check("absolute-runpath")
def absolute_runpath(closure: Closure) -> Iterable[Finding]:
    """Binaries search for libraries beside themselves, not at a place of the machine that they were built on.

    Every entry of RPATH and RUNPATH begins with `$ORIGIN`. An entry that is empty or relative means the folder in which the
    program was started.

    Severity: warning.

    Why: whoever can write to that place, often below `/tmp` or a home, on a host decides which library is loaded; and where
    the place exists, as on a build machine, another library is loaded than everywhere else.

    Example:
        warning: torchvision 0.26.0 has 1 binary that searches for libraries outside of the environment: `torchvision/_C.so`

    How to mend: report it to the package. If no host has the place and nobody can make it, waive it:

        [[waivers]]
        check = "absolute-runpath"
        package = "torchvision"
        path = "torchvision/_C.so"
        reason = "a folder of its build machine; no host has /__w"
    """
    wording = Wording(
        check="absolute-runpath",
        severity="warning",
        one="binary that searches for libraries outside of the environment",
        many="binaries that search for libraries outside of the environment",
        hint="report it to the package; waive it by its path if no host has the place in the evidence and nobody can make it",
    )
    for wheel in closure.wheels:
        details = {each.path: text for each in wheel.facts.binaries.binaries if (text := _fixed_places(each))}
        yield from findings_of_wheel(closure, wheel, _details(wheel, details), wording)


@check("executable-stack")
def executable_stack(closure: Closure) -> Iterable[Finding]:
    """No binary asks for an executable stack.

    Severity: warning; error for a library where the target's glibc is 2.41 or later, which refuses to load it.

    Why: one such library makes the stack of the whole process executable, and with it every overflow easier to exploit.
    Mostly it is a mistake: assembly without a note about the stack. From glibc 2.41 on importing it fails: `cannot enable
    executable stack as shared object requires`.

    Example:
        warning: demo 1.0 has 1 binary that asks for an executable stack: `demo/_asm.abi3.so`

    How to mend: report it to the package; choose another release.
    """
    parts = closure.spec.target.glibc.split(".")
    refused = tuple(int(part) for part in parts) >= REFUSES_EXECUTABLE_STACKS
    for wheel in closure.wheels:
        asking = [each for each in wheel.facts.binaries.binaries if each.executable_stack]
        libraries = [each for each in asking if refused and each.is_loadable]
        for found, severity in ((libraries, "error"), ([each for each in asking if each not in libraries], "warning")):
            wording = Wording(
                check="executable-stack",
                severity="error" if severity == "error" else "warning",
                one="binary that asks for an executable stack",
                many="binaries that ask for an executable stack",
                hint=f"choose another release of {wheel.facts.name}, and report it to the package",
            )
            details = {each.path: each.kind for each in found}
            yield from findings_of_wheel(closure, wheel, _details(wheel, details), wording)


def _details(wheel: ClosureWheel, found: Mapping[str, str]) -> dict[str, str]:
    return {wheel.shown_path(path): text for path, text in found.items()}


def _is_in_folder_of_machine(binary: Binary) -> bool:
    """Whether a folder above a binary names the machine that it is for."""
    names = "|".join(map(re.escape, MACHINE_NAMES.get(binary.machine, (binary.machine,))))
    return re.search(rf"(?<![a-z0-9])(?:{names})(?![a-z0-9])", binary.folder.lower()) is not None


def _without_machine(path: str) -> str:
    """A path in which every name of a machine is the same, so that files for several machines agree."""
    return _SPELLINGS.sub("*", path)


def _fixed_places(binary: Binary) -> str:
    """What a binary's search paths have beside `$ORIGIN`: `RPATH /opt/lib`; empty if nothing."""
    return "; ".join(
        f"{kind} {entry or '(empty: the folder in which the program is started)'}"
        for kind, text in (("RPATH", binary.rpath), ("RUNPATH", binary.runpath))
        for entry in _fixed_entries(text)
    )


def _fixed_entries(text: str | None) -> Iterator[str]:
    # An empty list is no list; an empty entry of a longer one is the current folder.
    if text:
        yield from (entry for entry in dict.fromkeys(text.split(":")) if not _ORIGIN.fullmatch(entry))
