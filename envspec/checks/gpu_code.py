"""Whether the GPU code of the wheels runs on the GPUs of the hosts. Which code runs where, `envspec.gpu` says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from envspec.checks.registry import check
from envspec.checks.waivers import findings_of_paths
from envspec.checks.wording import counted, evidence, examples, joined
from envspec.drivers import driver_of_release, is_older, least_driver_of_major
from envspec.facts import Finding, Severity
from envspec.gpu import Capability, Coverage, coverage, has_native_code_of_major, parse_capability, sorted_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.spec import Spec

_CUBINS = "raw cubins"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Library:
    """What has GPU code in a wheel: a library with its fatbins, or all raw cubins together."""

    path: str
    """As findings show it; `raw cubins` for those."""

    pieces: tuple[tuple[tuple[str, ...], int], ...]
    releases: tuple[str, ...]
    copies: int = 0
    """Files of the same bytes beside it: wheels have no links, so `x.so.1` is often there three times."""

    @property
    def codes(self) -> list[str]:
        return sorted_codes(code for codes, _ in self.pieces for code in codes)

    def covered(self, capability: Capability) -> Coverage:
        return coverage(self.pieces, capability)

    def aims_at(self, major: int) -> bool:
        """Whether it has machine code for GPUs of a major."""
        return has_native_code_of_major(self.codes, major)

    def described(self) -> str:
        """What it has: `sm_80 and sm_90a in 372 fatbins`."""
        number = sum(count for _, count in self.pieces)
        noun = "cubin" if self.path == _CUBINS else "fatbin"
        copies = f", in {counted(self.copies, 'copy', 'copies')} of it too" if self.copies else ""
        return f"{joined(self.codes) or 'no code'} in {counted(number, noun)}{copies}"


@check("gpu-code-missing")
def gpu_code_missing(closure: Closure) -> Iterable[Finding]:
    """Every library with GPU code has some for every compute capability that the spec declares.

    A package of `require-gpu-code` in [cuda] has to run there: each of its libraries with machine code for the major must
    have code for the capability, and at least one library must have machine code for it, or all of them PTX. So a library
    that its author wrote for other GPUs alone does not count against the package, and one that forgot a GPU of the family does.

    Left out are the packages `nvidia-*`: NVIDIA's own libraries choose among their code by the GPU and compile the rest
    themselves, so that what lies in them says little (libcufft has one stub, for 7.5).

    Severity: error for packages of `require-gpu-code`, warning for others.

    Why: what is missing shows late, at the first call: `no kernel image is available for execution on the device`. Not every
    library matters, though: attention kernels for one GPU lie beside those for another, and the package picks at run time.

    Example:
        error: sglang-kernel 0.4.2 has 3 libraries for GPUs of compute capability 12.x without code for 12.1 (host spark):
        `sgl_kernel/sm100/common_ops.abi3.so`, `sgl_kernel/sm90/common_ops.abi3.so` and `sgl_kernel/spatial_ops.abi3.so`

    How to mend: choose a release of the package that has code for the GPU. If the environment never calls the library on such
    a host, waive the warning, with the library as its path:

        [[waivers]]
        check = "gpu-code-missing"
        package = "sglang-kernel"
        path = "sgl_kernel/flash*_ops.abi3.so"
        reason = "on 12.0 SGLang takes attention from flashinfer"
    """
    capabilities = _declared(closure.spec)
    if not capabilities:
        return
    required = closure.spec.cuda.require_gpu_code if closure.spec.cuda else ()
    seen: set[str] = set()
    for wheel in closure.wheels:
        libraries = _libraries(wheel)
        if libraries:
            seen.add(wheel.facts.name)
        if _is_exempt(wheel):
            continue
        failing: dict[Capability, list[_Library]] = {}
        if wheel.facts.name in required and libraries:
            failing = {each: unmet for each in capabilities if (unmet := _unmet(libraries, each)) is not None}
            yield from _required_findings(closure, wheel, libraries, failing)
        missing: dict[str, list[Capability]] = {}
        for library in libraries:
            lacking = [each for each in capabilities if each not in failing and not library.covered(each).runs]
            if lacking:
                missing[library.path] = lacking
        yield from _missing_findings(closure, wheel, {library.path: library for library in libraries}, missing)
    present = {wheel.facts.name for wheel in closure.wheels}
    for name in required:
        if name not in seen or name.startswith("nvidia-"):
            yield _unjudged(name, is_present=name in present)


@check("gpu-code-partial")
def gpu_code_partial(closure: Closure) -> Iterable[Finding]:
    """Every fatbin of a library that runs on a compute capability runs there.

    Severity: info.

    Why: each source file makes a fatbin of its own. One of another GPU's tricks is built for that GPU alone, and the library
    does not call it elsewhere; or it was forgotten. Packages `nvidia-*` and raw cubins are left out: there it is the rule.

    Example:
        info: kernels 1.0 has 1 library of which a part has no code for compute capability 12.0: `kernels/_C.so`

    How to mend: nothing, as long as what the environment uses works.
    """
    capabilities = _declared(closure.spec)
    for wheel in closure.wheels:
        if _is_exempt(wheel):
            continue
        details: dict[str, str] = {}
        concerned: dict[str, list[Capability]] = {}
        for library in _libraries(wheel):
            covered = {each: library.covered(each) for each in capabilities if library.path != _CUBINS}
            partly = {each: count for each, count in covered.items() if count.runs and count.missing}
            if partly:
                concerned[library.path] = list(partly)
                counts = [f"{count.missing} of {count.total} fatbins for {each}" for each, count in partly.items()]
                details[library.path] = f"nothing in {joined(counts)}"
        finding = _finding(wheel, "gpu-code-partial", "info", "")
        message = partial(_message, closure.spec, wheel, concerned, "of which a part has no code")
        yield from findings_of_paths(closure.spec.waivers, finding, details, message)


@check("gpu-code-jit")
def gpu_code_jit(closure: Closure) -> Iterable[Finding]:
    """Libraries have machine code for every declared compute capability, not only PTX.

    Severity: info; warning where a host of that capability states a driver that is older than the CUDA release of the library.

    Why: PTX runs, but the driver has to compile it when it is first used, on every host, which can take minutes. And only a
    driver that is at least as new as the CUDA release which wrote the PTX can: `the provided PTX was compiled with an
    unsupported toolchain`. Packages `nvidia-*` are left out, as in `gpu-code-missing`.

    Example:
        info: torchvision 0.21.0 has 1 library with PTX alone for compute capability 12.0: `torchvision/_C.so`

    How to mend: nothing for an info. For the warning, install the driver that the evidence names.
    """
    capabilities = _declared(closure.spec)
    toolkit = closure.spec.cuda.toolkit if closure.spec.cuda else ""
    for wheel in closure.wheels:
        if _is_exempt(wheel):
            continue
        groups: dict[Severity, dict[str, list[Capability]]] = {"warning": {}, "info": {}}
        details: dict[str, str] = {}
        for library in _libraries(wheel):
            compiled = [each for each in capabilities if library.covered(each).jit]
            if not compiled:
                continue
            # PTX carries no note of its own: what made the machine code beside it made it too.
            release = _newest_release(library.releases) or _release(toolkit)
            driver = driver_of_release(*release)
            least = least_driver_of_major(release[0])  # below that nothing runs, which `driver-too-old` says
            older = [
                host
                for host in closure.spec.hosts
                if host.compute in {str(each) for each in compiled}
                and is_older(host.driver, driver)
                and not is_older(host.driver, least)
            ]
            made = f"made by CUDA {release[0]}.{release[1]}"
            needs = f", so it needs driver {driver} or later" if driver else ""
            stated = "".join(f"; host {host.name} has {host.driver}" for host in older)
            details[library.path] = f"{library.described()}, {made}{needs}{stated}"
            groups["warning" if older else "info"][library.path] = compiled
        for severity, concerned in groups.items():
            hint = "install the driver that the evidence names on these hosts" if severity == "warning" else ""
            finding = _finding(wheel, "gpu-code-jit", severity, hint)
            message = partial(_message, closure.spec, wheel, concerned, "with PTX alone")
            chosen = {path: details[path] for path in concerned}
            yield from findings_of_paths(closure.spec.waivers, finding, chosen, message)


def _required_findings(
    closure: Closure,
    wheel: ClosureWheel,
    libraries: Sequence[_Library],
    failing: Mapping[Capability, Sequence[_Library]],
) -> Iterator[Finding]:
    """The finding of a package that must run on the declared GPUs and does not."""
    name = wheel.facts.name
    groups: dict[tuple[str, ...], list[Capability]] = {}
    for capability, aimed in failing.items():
        groups.setdefault(tuple(library.path for library in aimed), []).append(capability)
    for paths, capabilities in groups.items():
        shown = _shown(closure.spec, capabilities)
        plain = alternatives([str(each) for each in capabilities])
        if paths:
            majors = alternatives([f"{major}.x" for major in dict.fromkeys(each.major for each in capabilities)])
            count = counted(len(paths), "library", "libraries")
            what = f"{count} for GPUs of compute capability {majors} without code for {shown}: {examples(paths)}"
        else:
            what = f"no library with machine code for compute capability {shown}"
        first = [library for library in libraries if library.path in paths]
        others = [
            library
            for library in libraries
            if library.path not in paths and not all(library.covered(each).runs for each in capabilities)
        ]
        yield replace(
            _finding(wheel, "gpu-code-missing", "error", ""),
            message=f"{wheel.label} has {what}",
            evidence=evidence([f"{library.path}: {library.described()}" for library in (first + others) or libraries]),
            hint=(
                f"choose a release of {name} that has code for {plain}, or take {name} out of `require-gpu-code` in "
                "[cuda] if the environment never calls it there"
            ),
            path=paths[0] if paths else "",
        )


def _unmet(libraries: Sequence[_Library], capability: Capability) -> list[_Library] | None:
    """The libraries that keep a required package from a capability, none of them if it is the whole package; None if it runs there."""
    covered = {library.path: library.covered(capability) for library in libraries}
    aimed = [each for each in libraries if each.aims_at(capability.major) and not covered[each.path].runs]
    if aimed:
        return aimed
    if any(count.native for count in covered.values()) or all(count.jit for count in covered.values()):
        return None
    return []


def _missing_findings(
    closure: Closure,
    wheel: ClosureWheel,
    libraries: Mapping[str, _Library],
    missing: Mapping[str, Sequence[Capability]],
) -> Iterator[Finding]:
    finding = _finding(
        wheel,
        "gpu-code-missing",
        "warning",
        "a call into them fails there; if the environment makes none, waive it by their path, else choose a release that has the code",
    )
    details = {
        path: f"nothing for {alternatives([str(each) for each in lacking])}, has {libraries[path].described()}"
        for path, lacking in missing.items()
        if path != _CUBINS
    }
    message = partial(_message, closure.spec, wheel, missing, "without code")
    yield from findings_of_paths(closure.spec.waivers, finding, details, message)
    if _CUBINS in missing:
        cubins = libraries[_CUBINS]
        number = counted(sum(count for _, count in cubins.pieces), "raw cubin")
        shown = _shown(closure.spec, missing[_CUBINS])
        yield replace(
            finding,
            message=f"{wheel.label} has {number}, none of them for compute capability {shown}",
            evidence=evidence([f"{count} for {' '.join(codes)}" for codes, count in cubins.pieces]),
            hint="what the package lacks has to be compiled on the host when it is first used, or does not work there",
        )


def _unjudged(name: str, *, is_present: bool) -> Finding:
    """The finding of a package that is required to have GPU code, of which nothing can be said."""
    if not is_present:
        message = f"`require-gpu-code` in [cuda] names {name}, which the environment does not have"
        hint = "take it out, or correct the name"
    elif name.startswith("nvidia-"):
        message = f"`require-gpu-code` in [cuda] names {name}, whose libraries choose their code at run time"
        hint = "take it out: what lies in NVIDIA's own libraries proves nothing"
    else:
        message = f"`require-gpu-code` in [cuda] names {name}, which has no GPU code in its wheel"
        hint = "take it out: a package that compiles its code on the host cannot be judged by its wheel"
    return Finding(
        check="gpu-code-missing", severity="error", subject=name, message=message, hint=hint, packages=(name,)
    )


def _finding(wheel: ClosureWheel, check_id: str, severity: Severity, hint: str) -> Finding:
    return Finding(
        check=check_id, severity=severity, subject=wheel.label, message="", hint=hint, packages=(wheel.facts.name,)
    )


def _message(
    spec: Spec,
    wheel: ClosureWheel,
    concerned: Mapping[str, Sequence[Capability]],
    what: str,
    paths: Sequence[str],
) -> str:
    """`sglang-kernel 0.4.2 has 2 libraries without code for compute capability 12.0 (host ct200): ...`."""
    capabilities = sorted({capability for path in paths for capability in concerned[path]})
    libraries = counted(len(paths), "library", "libraries")
    return (
        f"{wheel.label} has {libraries} {what} for compute capability {_shown(spec, capabilities)}: {examples(paths)}"
    )


def _shown(spec: Spec, capabilities: Sequence[Capability]) -> str:
    """Capabilities with the hosts that have them: `9.0 or 12.0 (host ct200)`."""
    return alternatives([shown_with_hosts(spec, capability) for capability in capabilities])


def shown_with_hosts(spec: Spec, capability: Capability) -> str:
    """A capability with the hosts that have it: `12.0 (hosts a and b)`; alone if no host states it."""
    hosts = [host.name for host in spec.hosts if host.compute == str(capability)]
    if not hosts:
        return str(capability)
    return f"{capability} ({'host' if len(hosts) == 1 else 'hosts'} {joined(hosts)})"


def alternatives(words: Sequence[str]) -> str:
    """Words of which any one may be meant: `9.0, 12.0 or 12.1`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), "".join(words[-1:]))))


def _declared(spec: Spec) -> list[Capability]:
    """The capabilities that the spec declares, sorted."""
    return sorted({parse_capability(text) for text in spec.cuda.compute}) if spec.cuda else []


def _is_exempt(wheel: ClosureWheel) -> bool:
    return wheel.facts.name.startswith("nvidia-")


def _libraries(wheel: ClosureWheel) -> list[_Library]:
    """Everything in a wheel that has GPU code."""
    measured = wheel.facts.binaries
    with_code = [binary for binary in measured.binaries if binary.gpu is not None and binary.gpu.fatbins]
    contents = {file.path: file.sha256 for file in wheel.facts.files} if with_code else {}
    libraries: dict[str, _Library] = {}
    for binary in with_code:
        content = contents.get(binary.path, binary.path)
        known = libraries.get(content)
        if known is not None:
            libraries[content] = replace(known, copies=known.copies + 1)
        elif binary.gpu is not None:
            libraries[content] = _Library(
                path=wheel.shown_path(binary.path), pieces=binary.gpu.fatbins, releases=binary.gpu.releases
            )
    found = list(libraries.values())
    if measured.cubins:
        pieces = tuple(((cubin.code,), cubin.number) for cubin in measured.cubins)
        found.append(_Library(path=_CUBINS, pieces=pieces, releases=measured.releases))
    return found


def _newest_release(releases: Iterable[str]) -> tuple[int, int] | None:
    return max((_release(release) for release in releases), default=None)


def _release(text: str) -> tuple[int, int]:
    """The first two numbers of a CUDA release, such as `13.0.88`."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
