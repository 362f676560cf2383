"""What loads in an environment and what does not: the simulated linker, run over all of its objects.

Every shared object has a role, which decides what its troubles mean:

- an *extension* is imported: it exports `PyInit_<name>` and has a suffix that the interpreter imports;
- a *dead* extension exports `PyInit_<name>` under a suffix that it does not;
- a *dependency* is needed by another object, and judged through that one;
- a *torch library* is linked against torch, and loaded by `torch.ops.load_library`;
- a *plugin* is none of these: something may open it by name, if it likes.

Where there is no torch, what needs torch is judged as a plugin: an interface to torch, in a package that does not require it (if it does,
`requires-dist` says so).
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from envspec.cuda import TOOLKIT_LIBRARY, TORCH_PRELOADS, is_torch_library, is_torch_symbol
from envspec.host import host_profile
from envspec.linker import Linker, Opened, World
from envspec.lock import owners

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.binaries import Binary
    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.linker import Missing, MissingVersion, Unbound

Role = Literal["extension", "dead", "dependency", "torch", "plugin"]

_CUDA_TAG = re.compile(r"_?cu1[1-9][0-9]?(?=[_./-]|$)")
_STEM = re.compile(r"(.+?)\.so(?:\.[0-9]+)*")
_PRIVATE_COPY = re.compile(r".+[-.][0-9a-f]{8,}(?:-[0-9a-f]{8,})?\.so(?:\.[0-9]+)*")
"""The name that auditwheel, or torchvision, gives to a library that it puts into a wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """What keeps objects of one wheel from loading, each once, whoever opens them."""

    missing: tuple[Missing, ...] = ()
    unbound: tuple[Unbound, ...] = ()
    versions: tuple[MissingVersion, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.missing or self.unbound or self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Objects of one wheel of which one is chosen at run time."""

    wheel: ClosureWheel
    fitting: tuple[str, ...]
    """Paths of those that load."""

    others: tuple[str, ...]
    troubles: Troubles
    host_can_help: bool
    """Whether one of them lacks nothing but libraries that only a host could offer."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """The outcome for a whole environment."""

    linker: Linker
    world: World
    """What is loaded when packages are imported: what `import torch` loads, if there is torch."""

    wheel_of: Mapping[str, ClosureWheel]
    """Path of an object -> its wheel."""

    roles: Mapping[str, Role]
    variants: tuple[Variants, ...]
    fatal: Mapping[str, Troubles]
    """Name of a package -> what keeps its extensions and torch libraries from loading."""

    optional: Mapping[str, Troubles]
    """Name of a package -> what keeps its plugins from loading."""

    in_variants: frozenset[str]
    """Paths of the objects that belong to variants, with what only they need."""

    host: Mapping[str, tuple[str, ...]]
    """Library of the host -> the objects that need it and have to load, sorted."""

    versions_of: Mapping[str, Mapping[str, str]]
    """Library without its version (`libcudart`) -> soname of each version that the wheels have -> path; private copies are left out."""

    place: str = "the lock"
    """What findings call the environment."""

    def providers(self, soname: str) -> tuple[tuple[str, ClosureWheel], ...]:
        """Other versions of a library that the wheels do provide, each with its wheel, sorted."""
        found = _STEM.fullmatch(soname)
        others = self.versions_of.get(found[1], {}) if found else {}
        return tuple((name, self.wheel_of[path]) for name, path in sorted(others.items()))

    def is_of_a_wheel(self, soname: str) -> bool:
        """Whether a library that is missing is one that wheels bring, and not the host."""
        return _is_of_a_wheel(soname, self.versions_of)

    def shown(self, path: str) -> str:
        """A path as findings write it."""
        return self.wheel_of[path].shown_path(path)


def analyse(closure: Closure) -> Links:
    """Open every object of an environment, as its programs would."""
    machine = closure.spec.target.platform.partition("-")[2]
    wheel_of: dict[str, ClosureWheel] = {}
    objects: dict[str, Binary] = {}
    owner_of = owners(closure.spec.waivers)
    for wheel in closure.wheels:
        for binary in wheel.facts.binaries.binaries:
            if not binary.is_loadable or (binary.damage and not binary.needed) or binary.machine != machine:
                continue
            shown = wheel.shown_path(binary.path)
            owner = next((name for pattern, name in owner_of.items() if fnmatchcase(shown, pattern)), "")
            if binary.path not in objects or wheel.facts.name == owner:
                objects[binary.path] = binary
                wheel_of[binary.path] = wheel
    host = host_profile(closure.spec.target.libraries, closure.spec.python.version, offered=closure.offered)
    linker = Linker(
        objects.values(),
        host,
        machine=machine,
        wheel_of={path: wheel.facts.name for path, wheel in wheel_of.items()},
        folders={file.path.rpartition("/")[0] for wheel in closure.wheels for file in wheel.facts.files},
    )
    world, preloads = _torch_world(
        linker, f"lib/python{closure.spec.python.version}/site-packages/", _torch_major(closure)
    )
    roles = _roles(linker, world, closure)
    opened = [
        *preloads,
        *(linker.open(path, world, own=True) for path in sorted(objects) if roles[path] != "dependency"),
    ]
    reached = {member for each in opened for member in each.scope}
    for path in sorted(objects):
        if path not in reached:  # of a ring whose members need each other, so that nobody is first
            roles[path] = _role(objects[path], closure, is_needed=False)
            opened.append(linker.open(path, world, own=True))
            reached.update(opened[-1].scope)
    without_torch = not any(wheel.facts.name == "torch" for wheel in closure.wheels)
    idle = frozenset(each.path for each in opened if without_torch and _wants_torch(each))
    return replace(_gather(linker, world, wheel_of, roles, opened, idle), place=closure.place)


def _torch_major(closure: Closure) -> str:
    """The CUDA major that torch says it is for; empty if it says none."""
    torch = next((wheel for wheel in closure.wheels if wheel.facts.name == "torch"), None)
    stated = torch.facts.binaries.labels if torch else ()
    return next((value.partition(".")[0] for path, key, value in stated if (path, key) == _TORCH_CUDA), "")


_TORCH_CUDA = ("torch/version.py", "cuda")


def _torch_world(linker: Linker, site: str, major: str) -> tuple[World, list[Opened]]:
    """What `import torch` leaves loaded: its global dependencies, NVIDIA's libraries, and its extension module.

    torch has no search path for most of NVIDIA's libraries: it opens them one by one, and later ones are found by soname.
    """
    opened: list[Opened] = []
    globals_path = f"{site}torch/lib/libtorch_global_deps.so"
    world = World()
    if globals_path not in linker.objects:
        return world, opened
    first = linker.open(globals_path, world)
    if first.missing:  # torch opens NVIDIA's libraries first, and tries again
        world = _preload(linker, site, world, major)
        first = linker.open(globals_path, world)
    opened.append(first)
    world = replace(first.world, global_paths=first.scope, global_host=first.host)
    if any("libcudart.so" in path for path in world.paths):
        world = _preload(linker, site, world, major)
    for module in sorted(linker.objects):
        if module.startswith(f"{site}torch/_C."):
            opened.append(linker.open(module, world))
            world = opened[-1].world
    return world, opened


def _preload(linker: Linker, site: str, world: World, major: str) -> World:
    """What torch opens by itself; where torch would give up at one that is absent, that one is another check's finding."""
    of_nvidia = sorted(path for path in linker.objects if path.startswith(f"{site}nvidia/"))
    for folder, pattern in TORCH_PRELOADS:
        for place in (f"{site}nvidia/{folder}/lib/", f"{site}nvidia/cu{major or '*'}/lib/"):
            whole = f"{glob.escape(place) if major else place}{pattern}"
            found = next((path for path in of_nvidia if _same_depth(path, whole) and fnmatchcase(path, whole)), None)
            if found:
                opened = linker.open(found, world)
                world = opened.world if opened.loads else world
                break
    return world


def _same_depth(path: str, pattern: str) -> bool:
    """Whether a pattern can match a path as `glob` has it: `*` stands for no slash."""
    return path.count("/") == pattern.count("/")


def _roles(linker: Linker, world: World, closure: Closure) -> dict[str, Role]:
    needed = {
        path for each in linker.objects for path in linker.open(each, world, bind=False, own=True).scope[1:]
    } | set(world.paths)
    return {path: _role(binary, closure, is_needed=path in needed) for path, binary in linker.objects.items()}


def _role(binary: Binary, closure: Closure, *, is_needed: bool) -> Role:
    stem, dot, rest = binary.name.partition(".")
    if "PyInit_" in binary.exports and f"PyInit_{stem}" in binary.exported:
        if dot + rest in extension_suffixes(closure.spec.python.version, binary.machine):
            return "extension"
        if not is_needed:
            return "dead"
    if is_needed:
        return "dependency"
    return "torch" if any(is_torch_library(name) for name in binary.needed) else "plugin"


def extension_suffixes(python: str, machine: str) -> tuple[str, ...]:
    """The suffixes under which CPython on Linux imports an extension module (`importlib.machinery.EXTENSION_SUFFIXES`).

    Example:
        >>> extension_suffixes("3.12", "x86_64")
        ('.cpython-312-x86_64-linux-gnu.so', '.abi3.so', '.so')
    """
    return (f".cpython-{python.replace('.', '')}-{machine}-linux-gnu.so", ".abi3.so", ".so")


def _wants_torch(opened: Opened) -> bool:
    """Whether an object does not load for want of torch."""
    return any(is_torch_library(each.soname) for each in opened.missing) or any(
        is_torch_symbol(each.reference.name) for each in opened.unbound
    )


def _gather(
    linker: Linker,
    world: World,
    wheel_of: dict[str, ClosureWheel],
    roles: dict[str, Role],
    opened: Sequence[Opened],
    idle: frozenset[str],
) -> Links:
    roots: dict[str, Opened] = {}
    for each in opened:
        roots.setdefault(
            each.path, each
        )  # torch's own module is opened when it is loaded, and finds itself loaded later
    versions_of = _versions_of(linker)
    in_use = {path: each for path, each in roots.items() if path not in idle}
    variants, excused = _variants(in_use, wheel_of, roles, versions_of)
    fatal: dict[str, list[Opened]] = defaultdict(list)
    optional: dict[str, list[Opened]] = defaultdict(list)
    host: dict[str, set[str]] = defaultdict(set)
    kept: set[str] = set()
    for path, each in roots.items():
        if path in excused:
            continue
        must_load = path not in idle and roles[path] in ("extension", "torch", "dependency")
        kept.update(each.scope)
        if must_load:
            for member in each.scope:
                for soname in linker.objects[member].needed:
                    if soname in each.host:
                        host[soname].add(member)
        (fatal if must_load else optional)["all"].append(each)
    return Links(
        linker=linker,
        world=world,
        wheel_of=wheel_of,
        roles=roles,
        variants=variants,
        fatal=_by_package(fatal["all"], wheel_of),
        optional=_by_package(optional["all"], wheel_of),
        in_variants=frozenset(
            member
            for path in excused
            for member in roots[path].scope
            if member not in kept and member not in world.paths
        ),
        host={soname: tuple(sorted(paths)) for soname, paths in sorted(host.items())},
        versions_of=versions_of,
    )


def _versions_of(linker: Linker) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path, binary in sorted(linker.objects.items()):
        name = binary.soname or binary.name
        stem = _STEM.fullmatch(name)
        # A private copy keeps its soname in some wheels, and lies under a name with a digest in it.
        if stem and binary.name.startswith(f"{stem[1]}.so"):
            found[stem[1]].setdefault(name, path)
    return dict(found)


def _is_of_a_wheel(soname: str, versions_of: Mapping[str, Mapping[str, str]]) -> bool:
    if TOOLKIT_LIBRARY.fullmatch(soname) or is_torch_library(soname) or _PRIVATE_COPY.fullmatch(soname):
        return True
    stem = _STEM.fullmatch(soname)
    return stem is not None and stem[1] in versions_of


def _by_package(opened: Iterable[Opened], wheel_of: Mapping[str, ClosureWheel]) -> dict[str, Troubles]:
    """Troubles under the package whose object has them."""
    missing: dict[str, dict[Missing, None]] = defaultdict(dict)
    unbound: dict[str, dict[Unbound, None]] = defaultdict(dict)
    versions: dict[str, dict[MissingVersion, None]] = defaultdict(dict)
    for each in opened:
        for absent in each.missing:
            missing[wheel_of[absent.path].facts.name][absent] = None
        for open_reference in each.unbound:
            unbound[wheel_of[open_reference.path].facts.name][open_reference] = None
        for version in each.versions:
            versions[wheel_of[version.path].facts.name][version] = None
    return {
        name: Troubles(
            missing=tuple(sorted(missing[name])),
            unbound=tuple(sorted(unbound[name])),
            versions=tuple(sorted(versions[name])),
        )
        for name in sorted({*missing, *unbound, *versions})
    }


def _variants(
    roots: Mapping[str, Opened],
    wheel_of: Mapping[str, ClosureWheel],
    roles: Mapping[str, Role],
    versions_of: Mapping[str, Mapping[str, str]],
) -> tuple[tuple[Variants, ...], frozenset[str]]:
    """The groups of variants of which some do not load, and those members.

    Where none loads, and no host could help, numbers in names prove nothing: `_90a` and `_100a` may both be needed. Such objects are judged
    like any other, so that the cause is named; only a tag of CUDA says that one of them is enough.
    """
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(roots):
        groups[wheel_of[path].facts.name, _variant_key(path, roles[path])].append(path)
    found: list[Variants] = []
    excused: set[str] = set()
    for (_, key), members in sorted(groups.items()):
        failing = [path for path in members if not roots[path].loads]
        by_cuda = len({tuple(_CUDA_TAG.findall(path)) for path in members}) > 1
        if len(members) < _LEAST_VARIANTS or not failing or not (by_cuda or "#" in key):
            continue
        host_can_help = any(_lacks_only_the_host(roots[path], versions_of) for path in failing)
        if len(failing) == len(members) and not by_cuda and not host_can_help:
            continue
        excused.update(failing)
        troubles = _by_package([roots[path] for path in failing], wheel_of)
        found.append(
            Variants(
                wheel=wheel_of[members[0]],
                fitting=tuple(path for path in members if path not in failing),
                others=tuple(failing),
                troubles=troubles.get(wheel_of[members[0]].facts.name, Troubles()),
                host_can_help=host_can_help,
            )
        )
    return tuple(found), frozenset(excused)


def _lacks_only_the_host(opened: Opened, versions_of: Mapping[str, Mapping[str, str]]) -> bool:
    return bool(opened.missing) and not any(_is_of_a_wheel(each.soname, versions_of) for each in opened.missing)


_LEAST_VARIANTS = 2


def _variant_key(path: str, role: Role) -> str:
    """What the variants of one object have in common: the path without a tag of CUDA, and without numbers in the name.

    An extension is imported by its very name, so that a number in it tells two modules apart: only a tag of CUDA makes variants of extensions.
    """
    plain = _CUDA_TAG.sub("", path)
    if role == "extension":
        return plain
    folder, _, name = plain.rpartition("/")
    stem, dot, rest = name.partition(".")
    return f"{folder}/{re.sub(r'[0-9]+', '#', stem)}{dot}{rest}"
