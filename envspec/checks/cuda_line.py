"""Whether everything that is loaded belongs to one CUDA and to the torch of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.checks.causes import unmet_pins
from envspec.checks.link_wording import by_need, missing_lines, symbol_lines
from envspec.checks.registry import check
from envspec.checks.wording import evidence, joined
from envspec.cuda import BUILDS_FOR_CUDA, TORCH_PARTNERS, is_torch_library, most_precise, readable_symbol
from envspec.facts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envspec.checks.causes import CudaConflict
    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.links import Links


@check("cuda-major-mismatch")
def cuda_major_mismatch(closure: Closure) -> Iterable[Finding]:
    """Everything that is loaded is built for one major version of CUDA, that of torch.

    What a wheel was built for shows independently in the libraries of the toolkit that it needs (`libcudart.so.12`), in the
    notes that the compiler leaves in GPU code, in the local part of a version (`+cu128`), and in torch's `version.py`. Objects
    of which one is chosen at run time (`_cu12` and `_cu13` side by side) do not count, nor do plugins that nobody loads by
    itself. Minor versions may differ: NVIDIA's own libraries for CUDA 13.0 are made by 13.0 and 13.1.

    Severity: error.

    Why: wheels of kernels declare no dependency that ties them to a CUDA, so a resolver accepts any pair. What fails then is an
    import, and often of something else: torchvision built for 12.8 beside torch for 13.0 says
    `operator torchvision::nms does not exist`, since the loader's message, `libcudart.so.12: cannot open shared object file`,
    is swallowed. Everything that follows from the mismatch (missing libraries, symbols that torch does not export, a pin that an
    override broke) is evidence of this one finding.

    Example:
        error: torchvision 0.24.1 is built for CUDA 12.8, torch 2.11.0 for CUDA 13.0

    How to mend: choose a release of the package for torch's CUDA, or torch for that of the packages. Adding wheels of the other
    CUDA's libraries does not help: two runtimes in one process do not share memory, streams or handles.
    """
    for conflict in closure.causes.conflicts:
        if not conflict.loads:
            yield _conflict_finding(closure, conflict, "cuda-major-mismatch")


@check("dual-cuda-runtime")
def dual_cuda_runtime(closure: Closure) -> Iterable[Finding]:
    """No process loads the runtimes of two major versions of CUDA.

    Severity: error.

    Why: where the libraries of a second CUDA are installed beside the first, everything loads, and the check that some packages
    make at import (`PyTorch has CUDA Version=13.0 and torchvision has CUDA Version=12.8`) is the lucky case. The others pass
    pointers and streams from one runtime to the other.

    Example:
        error: sgl-kernel 0.3.21 would load the libraries of CUDA 12, torch 2.11.0 those of CUDA 13.0, in one process

    How to mend: as for `cuda-major-mismatch`: bring the packages to one CUDA, and take the libraries of the other one out.
    """
    for conflict in closure.causes.conflicts:
        if conflict.loads:
            yield _conflict_finding(closure, conflict, "dual-cuda-runtime")


@check("cuda-toolkit-mismatch")
def cuda_toolkit_mismatch(closure: Closure) -> Iterable[Finding]:
    """Torch is built for the CUDA that the spec names in `cuda.toolkit`.

    Severity: error if the major versions differ, or torch is built without CUDA; warning if only the minor versions differ.

    Why: the spec says what the hosts are prepared for, drivers above all. An upgrade of torch moves the CUDA line silently: 2.10
    is for 12.8, 2.11 for 13.0.

    Example:
        error: torch 2.10.0 is built for CUDA 12.8, the spec says 13.0

    How to mend: choose the release of torch for that CUDA, or change `toolkit` in [cuda] once the hosts are ready for it.
    """
    anchor, cuda = closure.causes.anchor, closure.spec.cuda
    if anchor is None or cuda is None:
        return
    if anchor.wheel is None:
        torch = next((wheel for wheel in closure.wheels if wheel.facts.name == "torch"), None)
        if torch is not None and any(is_torch_library(binary.name) for binary in torch.facts.binaries.binaries):
            yield Finding(
                check="cuda-toolkit-mismatch",
                severity="error",
                subject=torch.label,
                message=f"{torch.label} is built without CUDA, the spec says {cuda.toolkit}",
                evidence=(f"none of the libraries of {torch.facts.filename} needs one of CUDA",),
                hint=f"choose a build of torch for CUDA {cuda.toolkit}, or take [cuda] out of the spec",
                packages=("torch",),
            )
        return
    same_major = str(anchor.major) == cuda.toolkit.partition(".")[0]
    if anchor.release == cuda.toolkit or (same_major and "." not in anchor.release):
        return
    if not same_major and closure.causes.conflicts:
        return  # the conflict says it
    yield Finding(
        check="cuda-toolkit-mismatch",
        severity="warning" if same_major else "error",
        subject=anchor.label,
        message=f"{anchor.label} is built for CUDA {anchor.release}, the spec says {cuda.toolkit}",
        evidence=evidence([trace.text for trace in anchor.traces]),
        hint=f'set `toolkit = "{anchor.release}"` in [cuda], or choose a torch for CUDA {cuda.toolkit}',
        packages=("torch",),
    )


@check("torch-abi-mismatch")
def torch_abi_mismatch(closure: Closure) -> Iterable[Finding]:
    """Every symbol that a package needs from torch is exported by the torch of the environment.

    Severity: error.

    Why: torch's C++ interface changes with every minor release, and most wheels that are built on it do not pin torch. Such a
    package fails at import with `undefined symbol`, or worse, only when the operator is first called. A change of a structure's
    layout that renames no symbol is not seen here: keep the pins of METADATA as well.

    Example:
        error: torchvision 0.27.0 needs `torch::Library::_def`, which torch 2.11.0 does not export

    How to mend: use the release of the package that was built with this torch.
    """
    torch = next((wheel for wheel in closure.wheels if wheel.facts.name == "torch"), None)
    if torch is None:
        return
    for wheel, found in closure.causes.torch_abi:
        names = list(dict.fromkeys(readable_symbol(name) for name in by_need(found)))
        rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Finding(
            check="torch-abi-mismatch",
            severity="error",
            subject=wheel.label,
            message=f"{wheel.label} needs `{names[0]}`{rest}, which {torch.label} does not export",
            evidence=evidence([*symbol_lines(found, closure.links, torch), *unmet_pins(wheel, torch)]),
            hint=_partner_hint(wheel, torch)
            or f"use a release of {wheel.facts.name} that was built with {torch.label}",
            packages=(wheel.facts.name, "torch"),
            path=closure.links.shown(found[0].path),
        )


def _conflict_finding(closure: Closure, conflict: CudaConflict, check_id: str) -> Finding:
    links, anchor = closure.links, conflict.anchor
    labels = [wheel.label for wheel, _ in conflict.members]
    release = most_precise([trace for _, traces in conflict.members for trace in traces])
    if check_id == "dual-cuda-runtime":
        message = (
            f"{joined(labels)} would load the libraries of CUDA {release}, {anchor.label} those of CUDA {anchor.release}, "
            "in one process"
        )
    else:
        verb = "is" if len(labels) == 1 else "are"
        end = f"{anchor.label} for CUDA {anchor.release}" if anchor.wheel else f"{anchor.label} says {anchor.release}"
        message = f"{joined(labels)} {verb} built for CUDA {release}, {end}"
    lines: list[str] = []
    for wheel, traces in conflict.members:
        told = _ranked([trace.text for trace in traces])
        troubles = links.fatal.get(wheel.facts.name)
        if troubles is not None:
            missing = missing_lines(troubles.missing, links, only_known=True)
            sonames = {each.soname for each in troubles.missing}
            told = [*missing, *(text for text in told if text.rpartition(" needs ")[2] not in sonames)]
            told += symbol_lines(troubles.unbound, links, anchor.wheel)
        lines += told
        if anchor.wheel is not None:
            lines += unmet_pins(wheel, anchor.wheel)
    lines += _ranked([trace.text for trace in anchor.traces])[:2]
    return Finding(
        check=check_id,
        severity="error",
        subject=joined(labels),
        message=message,
        evidence=evidence(list(dict.fromkeys(lines))),
        hint=_conflict_hint(closure, conflict),
        packages=(*(wheel.facts.name for wheel, _ in conflict.members), *(["torch"] if anchor.wheel else [])),
        path=_path_of_conflict(conflict, links),
    )


def _path_of_conflict(conflict: CudaConflict, links: Links) -> str:
    troubles = links.fatal.get(conflict.members[0][0].facts.name)
    if troubles is None:
        return ""
    paths = [*(each.path for each in troubles.missing), *(each.path for each in troubles.unbound)]
    return links.shown(paths[0]) if paths else ""


def _ranked(texts: Sequence[str]) -> list[str]:
    """What torch says of itself, then what a library needs, then what a version says, then notes in code."""
    order = (" says `cuda", " needs ", " says ", " made by ")
    return sorted(texts, key=lambda text: next((rank for rank, word in enumerate(order) if word in text), len(order)))


def _conflict_hint(closure: Closure, conflict: CudaConflict) -> str:
    anchor, cuda = conflict.anchor, closure.spec.cuda
    wanted = int(cuda.toolkit.partition(".")[0]) if cuda else anchor.major
    if anchor.wheel is not None and wanted != anchor.major:
        return f"the spec asks for CUDA {cuda.toolkit if cuda else wanted}: use {BUILDS_FOR_CUDA['torch'].get(wanted, 'a torch for it')}"
    advice = []
    for wheel, _ in conflict.members:
        known = BUILDS_FOR_CUDA.get(wheel.facts.name, {}).get(anchor.major)
        partner = _partner_hint(wheel, anchor.wheel) if anchor.wheel else ""
        advice.append(
            partner or (f"use {known}" if known else f"use a build of {wheel.facts.name} for CUDA {anchor.release}")
        )
    return "; ".join(advice)


def _partner_hint(wheel: ClosureWheel, torch: ClosureWheel) -> str:
    """Which release goes with this torch, where it is known."""
    minor = ".".join(torch.facts.version.split("+")[0].split(".")[:2])
    release = TORCH_PARTNERS.get(minor, {}).get(wheel.facts.name)
    return f"use {wheel.facts.name} {release}, the release built with {torch.label}" if release else ""
