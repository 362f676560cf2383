"""Whether the binaries of an environment fit together, so that everything that has to load does load."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from envspec.checks.causes import unmet_pins
from envspec.checks.registry import check
from envspec.checks.wording import counted, evidence, examples, joined
from envspec.cuda import (
    BUILDS_FOR_CUDA,
    LOADED_AFTER_ITS_LIBRARY,
    TORCH_PARTNERS,
    is_torch_library,
    most_precise,
    readable_symbol,
    same_function,
)
from envspec.facts import Finding, Severity
from envspec.host import DESKTOP_LIBRARIES, is_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envspec.checks.causes import CudaConflict
    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.linker import Missing, Unbound
    from envspec.links import Links, Variants

_SHOWN_SYMBOLS = 3


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
        names = list(dict.fromkeys(readable_symbol(name) for name in _by_need(found)))
        rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Finding(
            check="torch-abi-mismatch",
            severity="error",
            subject=wheel.label,
            message=f"{wheel.label} needs `{names[0]}`{rest}, which {torch.label} does not export",
            evidence=evidence([*_symbol_lines(found, closure.links, torch), *unmet_pins(wheel, torch)]),
            hint=_partner_hint(wheel, torch)
            or f"use a release of {wheel.facts.name} that was built with {torch.label}",
            packages=(wheel.facts.name, "torch"),
            path=closure.links.shown(found[0].path),
        )


@check("missing-library")
def missing_library(closure: Closure) -> Iterable[Finding]:
    """Every library that a wheel needs from another wheel is in the environment, where the loader finds it.

    Severity: error.

    Why: an extension that needs `libcublas.so.13` where the environment has another version, or has it where no search path
    leads, fails at import with `cannot open shared object file`.

    Example:
        error: torchaudio 2.11.0 needs `libcudart.so.13`, which no wheel provides; there is `libcudart.so.12` (nvidia-cuda-runtime-cu12 12.8.90)

    How to mend: lock the package that provides the library, in the version that its soname asks for.
    """
    links = closure.links
    for wheel, found in closure.causes.missing:
        sonames = list(dict.fromkeys(each.soname for each in found))
        others = links.providers(sonames[0])
        there = f"; there is {joined([f'`{name}` ({owner.label})' for name, owner in others])}" if others else ""
        rest = f" and {counted(len(sonames) - 1, 'other library', 'other libraries')}" if len(sonames) > 1 else ""
        yield Finding(
            check="missing-library",
            severity="error",
            subject=wheel.label,
            message=f"{wheel.label} needs `{sonames[0]}`{rest}, which no wheel provides{there}",
            evidence=evidence(_missing_lines(found, links)),
            hint="lock the package that provides it, or a release of this one that needs what there is",
            packages=(wheel.facts.name,),
            path=links.shown(found[0].path),
        )


@check("host-library")
def host_library(closure: Closure) -> Iterable[Finding]:
    """Every library that only the host can offer is declared in `target.libraries`.

    The libraries of glibc and GCC and `libz.so.1` are there on every server and need no word.

    Severity: error. Warning for libraries of a desktop that manylinux allows (`libGL.so.1`, `libX11.so.6`), and for a shared
    libpython, which many interpreters do not have.

    Why: no wheel brings them and no installer asks for them. sglang-kernel needs `libnuma.so.1`: on a slim host its import says
    `could not load any common_ops`, and people reinstall SGLang in vain.

    Example:
        error: libnuma.so.1 is needed by sglang-kernel 0.4.2, and the spec does not say that the hosts have it

    How to mend: add it to `libraries` in [target], and install it on the hosts (Debian: libnuma1); `build` looks before it
    sends anything.
    """
    links = closure.links
    for soname, found in closure.causes.host:
        owners = {links.wheel_of[each.path].facts.name: links.wheel_of[each.path].label for each in found}
        severity: Severity = "warning" if soname in DESKTOP_LIBRARIES or is_interpreter(soname) else "error"
        hint = f"add `{soname}` to `libraries` in [target] and install it on the hosts"
        if is_interpreter(soname):
            hint = (
                f"hosts whose Python is linked statically cannot load it; if the hosts have a shared one, add `{soname}` "
                "to `libraries` in [target]"
            )
        yield Finding(
            check="host-library",
            severity=severity,
            subject=soname,
            message=f"{soname} is needed by {joined(sorted(owners.values()))}, and the spec does not say that the hosts have it",
            evidence=evidence(_missing_lines(found, links)),
            hint=hint,
            packages=tuple(sorted(owners)),
            path=links.shown(found[0].path),
        )


@check("undefined-symbol")
def undefined_symbol(closure: Closure) -> Iterable[Finding]:
    """Every symbol that a binary needs is defined by something that is loaded with it.

    Symbols of torch are `torch-abi-mismatch`'s. A symbol can be there, but only for objects which are linked against its library:
    then the package must open that library for everybody before it loads the object. cuda-core is known to do so.

    Severity: error; warning if the symbol is there for others alone, info if the package is known to see to it.

    Why: the loader binds all symbols of an extension when it is imported, and fails with `undefined symbol`.

    Example:
        error: fastkernel 1.0 needs `PyUnicode_GET_SIZE`, which CPython 3.12 does not export

    How to mend: use a release of the package for this interpreter and for these libraries.
    """
    links = closure.links
    for wheel, found in closure.causes.unbound:
        name = found[0].reference.name
        of_python = name.startswith(("Py", "_Py"))
        nobody = (
            f"which CPython {closure.spec.python.version} does not export" if of_python else "which nothing defines"
        )
        others = len({each.reference.name for each in found}) - 1
        rest = f" and {others} more" if others else ""
        yield Finding(
            check="undefined-symbol",
            severity="error",
            subject=wheel.label,
            message=f"{wheel.label} needs `{readable_symbol(name)}`{rest}, {nobody}",
            evidence=evidence(_symbol_lines(found, links, None)),
            hint=f"use another release of {wheel.facts.name}",
            packages=(wheel.facts.name,),
            path=links.shown(found[0].path),
        )
    for wheel, versions in closure.causes.versions:
        first = versions[0]
        library = links.wheel_of[first.library]
        yield Finding(
            check="undefined-symbol",
            severity="error",
            subject=wheel.label,
            message=f"{wheel.label} needs version `{first.version}` of {links.shown(first.library)}, which that of {library.label} lacks",
            evidence=evidence([f"{links.shown(each.path)} needs {each.version}" for each in versions]),
            hint=f"choose versions of {wheel.facts.name} and {library.facts.name} that fit each other",
            packages=tuple(dict.fromkeys((wheel.facts.name, library.facts.name))),
            path=links.shown(first.path),
        )
    for wheel, found in closure.causes.late:
        names = [readable_symbol(each.reference.name) for each in found]
        known = LOADED_AFTER_ITS_LIBRARY.get(wheel.facts.name, "")
        yield Finding(
            check="undefined-symbol",
            severity="info" if known else "warning",
            subject=wheel.label,
            message=f"{wheel.label} binds {examples(list(dict.fromkeys(names)))} without being linked against the library that has it",
            evidence=evidence([*_symbol_lines(found, links, None), *([known] if known else [])]),
            hint="" if known else "import it on a host; waive this if it opens that library with RTLD_GLOBAL first",
            packages=(wheel.facts.name,),
            path=links.shown(found[0].path),
        )


@check("no-fitting-variant")
def no_fitting_variant(closure: Closure) -> Iterable[Finding]:
    """Of the variants of a binary among which a package chooses at run time, one loads.

    Variants lie side by side and differ only in a tag of CUDA (`_cu12`, `_cu13`) or in a number (`core4` to `core8`).

    Severity: warning if the libraries of a host would help, error if nothing would; info on those that do not load beside one that
    does.

    Why: the others are there for other machines and may fail; but if all do, the package does not work here. torchcodec has one
    build for each FFmpeg from 4 to 8, and imports nothing where the host has none.

    Example:
        warning: none of the 5 variants of torchcodec 0.11.1 loads; the host has to offer the libraries of one

    How to mend: declare the libraries of one variant in `libraries` of [target] and install them on the hosts, or waive the
    finding if the package is not used.
    """
    links = closure.links
    by_wheel: dict[str, list[Variants]] = defaultdict(list)
    for variants in links.variants:
        by_wheel[variants.wheel.facts.name].append(variants)
    for _, groups in sorted(by_wheel.items()):
        wheel = groups[0].wheel
        unfit = [group for group in groups if not group.fitting]
        beside = [path for group in groups if group.fitting for path in group.others]
        if unfit:
            needs_host = all(group.host_can_help for group in unfit)
            yield Finding(
                check="no-fitting-variant",
                severity="warning" if needs_host else "error",
                subject=wheel.label,
                message=f"none of the {max(len(group.others) for group in unfit)} variants of {wheel.label} loads"
                f"{'; the host has to offer the libraries of one' if needs_host else ''}",
                evidence=evidence([line for group in unfit for line in _needs(group, links)]),
                hint="declare the libraries of one variant in `libraries` of [target], or waive it if the package is not used"
                if needs_host
                else f"use a release of {wheel.facts.name} with a variant for this environment",
                packages=(wheel.facts.name,),
                path=links.shown(unfit[0].others[0]),
            )
        if beside:
            shown = [links.shown(path) for path in beside]
            yield Finding(
                check="no-fitting-variant",
                severity="info",
                subject=wheel.label,
                message=f"{counted(len(beside), 'variant')} of {wheel.label} {'does' if len(beside) == 1 else 'do'} not load, others do: "
                f"{examples(shown)}",
                evidence=evidence([line for group in groups if group.fitting for line in _needs(group, links)]),
                packages=(wheel.facts.name,),
                path=shown[0],
            )


def _needs(variants: Variants, links: Links) -> list[str]:
    """What each variant that does not load lacks."""
    needed: dict[str, list[str]] = defaultdict(list)
    for absent in variants.troubles.missing:
        needed[absent.path].append(absent.soname)
    for unbound in variants.troubles.unbound:
        if unbound.path not in needed or len(needed[unbound.path]) < _SHOWN_SYMBOLS:
            needed[unbound.path].append(unbound.reference.name)
    for version in variants.troubles.versions:
        needed[version.path].append(version.version)
    return [f"{links.shown(path)} needs {joined(sorted(set(names)))}" for path, names in sorted(needed.items())]


@check("optional-plugin")
def optional_plugin(closure: Closure) -> Iterable[Finding]:
    """Plugins that do not load are listed.

    A plugin is a library that no other needs, that is no extension module, and that is not linked against torch: something may
    open it by its name.

    Severity: info.

    Why: NVSHMEM brings one transport for each kind of network, and needs only that of the host. Where a plugin is wanted, this
    says what it lacks.

    Example:
        info: 6 plugins of nvidia-nvshmem-cu13 3.4.5 do not load without libraries of the host: `libfabric.so.1`, ...

    How to mend: nothing, unless the plugin is wanted; then install what it lacks on the hosts.
    """
    links = closure.links
    wheels = {wheel.facts.name: wheel for wheel in closure.wheels}
    for name, troubles in links.optional.items():
        wheel = wheels[name]
        paths = sorted(
            {each.path for each in troubles.missing}
            | {each.path for each in troubles.unbound}
            | {each.path for each in troubles.versions}
        )
        sonames = sorted({each.soname for each in troubles.missing})
        without = f" without {examples(sonames)}" if sonames else ""
        yield Finding(
            check="optional-plugin",
            severity="info",
            subject=wheel.label,
            message=f"{counted(len(paths), 'plugin')} of {wheel.label} {'does' if len(paths) == 1 else 'do'} not load{without}",
            evidence=evidence(
                [*_missing_lines(troubles.missing, links), *_symbol_lines(troubles.unbound, links, None)]
            ),
            packages=(name,),
            path=links.shown(paths[0]),
        )


@check("dead-extension")
def dead_extension(closure: Closure) -> Iterable[Finding]:
    """Every extension module has a suffix that the interpreter imports.

    Only a file that exports the `PyInit_` function of its own name is an extension module; others with such a suffix are loaded
    by path. One that lies beside the same module for this interpreter is for another one.

    Severity: warning.

    Why: CPython 3.12 imports `.cpython-312-x86_64-linux-gnu.so`, `.abi3.so` and `.so`, and passes over
    `.cpython-310-x86_64-linux-gnu.so` in silence. The module is then missing, although its file is there.

    Example:
        warning: sglang-kernel 0.4.2 has 1 extension that CPython 3.12 does not import: `_mscclpp.cpython-310-x86_64-linux-gnu.so`

    How to mend: report it to the package; waive it if what the module offers is not used.
    """
    links = closure.links
    alive = {_module_path(path) for path, role in links.roles.items() if role == "extension"}
    dead: dict[str, list[str]] = defaultdict(list)
    for path, role in links.roles.items():
        if role == "dead" and _module_path(path) not in alive:
            dead[links.wheel_of[path].facts.name].append(path)
    for name, paths in sorted(dead.items()):
        wheel = links.wheel_of[paths[0]]
        shown = sorted(links.shown(path) for path in paths)
        yield Finding(
            check="dead-extension",
            severity="warning",
            subject=wheel.label,
            message=f"{wheel.label} has {counted(len(paths), 'extension')} that CPython {closure.spec.python.version} "
            f"does not import: {examples(shown)}",
            evidence=evidence(shown),
            hint="report it to the package; waive it if what the module offers is not used",
            packages=(name,),
            path=shown[0],
        )


def _module_path(path: str) -> str:
    """The path of an extension module without its suffix."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


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
            missing = _missing_lines(troubles.missing, links, only_known=True)
            sonames = {each.soname for each in troubles.missing}
            told = [*missing, *(text for text in told if text.rpartition(" needs ")[2] not in sonames)]
            told += _symbol_lines(troubles.unbound, links, anchor.wheel)
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


def _missing_lines(found: Sequence[Missing], links: Links, *, only_known: bool = False) -> list[str]:
    needed: dict[str, list[str]] = defaultdict(list)
    for each in found:
        if not only_known or links.providers(each.soname) or is_torch_library(each.soname):
            needed[each.soname].append(links.shown(each.path))
    lines = []
    for soname, paths in needed.items():
        others = links.providers(soname)
        there = f"; the lock provides {joined([f'{name} ({owner.label})' for name, owner in others])}" if others else ""
        shown = sorted(set(paths))
        lines.append(f"{_who(shown)} {soname}{there}")
    return lines


def _symbol_lines(found: Sequence[Unbound], links: Links, torch: ClosureWheel | None) -> list[str]:
    by_symbol: dict[str, list[str]] = defaultdict(list)
    for each in found:
        by_symbol[each.reference.name].append(links.shown(each.path))
    lines = [
        f"{_who(sorted(set(by_symbol[name])))} {name}{_near(name, links, torch)}"
        for name in _by_need(found)[:_SHOWN_SYMBOLS]
    ]
    if len(by_symbol) > _SHOWN_SYMBOLS:
        lines.append(f"and {counted(len(by_symbol) - _SHOWN_SYMBOLS, 'more symbol')}")
    return lines


def _who(paths: Sequence[str]) -> str:
    """Objects with their verb."""
    return f"{paths[0]} needs" if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more need"


def _by_need(found: Sequence[Unbound]) -> list[str]:
    """The names of symbols, those that most objects need first."""
    objects: dict[str, set[str]] = defaultdict(set)
    for each in found:
        objects[each.reference.name].add(each.path)
    return sorted(objects, key=lambda name: (-len(objects[name]), name))


def _near(name: str, links: Links, torch: ClosureWheel | None) -> str:
    """Whether torch exports the same function with other parameters."""
    function = same_function(name)
    if torch is None or not function:
        return ""
    for binary in torch.facts.binaries.binaries:
        if binary.path in links.linker.objects and function in binary.exports:
            same = [other for other in binary.exported if same_function(other) == function]
            if same:
                return f"; {torch.label} exports {min(same)}"
    return f"; {torch.label} exports no `{readable_symbol(name)}`"
