"""Whether everything that has to load finds its libraries and symbols."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from envspec.checks.link_wording import SHOWN_SYMBOLS, missing_lines, symbol_lines
from envspec.checks.registry import check
from envspec.checks.wording import SHOWN_EXAMPLES, counted, evidence, examples, joined
from envspec.cuda import LOADED_AFTER_ITS_LIBRARY, readable_symbol
from envspec.facts import Finding
from envspec.host import DESKTOP_LIBRARIES, is_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks.closure import Closure
    from envspec.linker import Missing
    from envspec.links import Links, Variants


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
            evidence=evidence(missing_lines(found, links)),
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
    lacks = "the spec does not say that the hosts have" if closure.offered is None else "this machine does not have"
    groups: dict[tuple[str, ...], list[tuple[str, tuple[Missing, ...]]]] = defaultdict(list)
    for soname, found in closure.causes.host:
        owners = sorted({links.wheel_of[each.path].label for each in found})
        kind = "interpreter" if is_interpreter(soname) else "desktop" if soname in DESKTOP_LIBRARIES else "other"
        key = (kind, *owners)
        groups[key].append((soname, found))
    for (kind, *labels), members in sorted(groups.items()):
        sonames = [soname for soname, _ in members]
        found = tuple(each for _, of_one in members for each in of_one)
        more = len(sonames) - SHOWN_EXAMPLES
        named = joined(sonames) if more <= 0 else f"{', '.join(sonames[:SHOWN_EXAMPLES])} and {more} more"
        quoted = examples(sonames)
        hint = (
            f"add {quoted} to `libraries` in [target] and install {'it' if len(sonames) == 1 else 'them'} on the hosts"
        )
        if kind == "interpreter":
            hint = (
                f"hosts whose Python is linked statically cannot load it; if the hosts have a shared one, add {quoted} "
                "to `libraries` in [target]"
            )
        yield Finding(
            check="host-library",
            severity="error" if kind == "other" else "warning",
            subject=sonames[0],
            message=f"{named} {'is' if len(sonames) == 1 else 'are'} needed by {joined(labels)}, "
            f"and {lacks} {'it' if len(sonames) == 1 else 'them'}",
            evidence=evidence(missing_lines(found, links)),
            hint=hint,
            packages=tuple(sorted({links.wheel_of[each.path].facts.name for each in found})),
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
            evidence=evidence(symbol_lines(found, links, None)),
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
            evidence=evidence([*symbol_lines(found, links, None), *([known] if known else [])]),
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
        if unbound.path not in needed or len(needed[unbound.path]) < SHOWN_SYMBOLS:
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
            evidence=evidence([*missing_lines(troubles.missing, links), *symbol_lines(troubles.unbound, links, None)]),
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
