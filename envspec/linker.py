"""A simulated dynamic linker: which objects load, and why the others do not.

It follows `ld.so` (glibc) over the files of an environment that need not exist: a name in NEEDED is looked up among what is loaded already, by
soname; then in the RPATH of the object and of what loaded it, unless the object has a RUNPATH; then in its RUNPATH; then among what the host
offers. Symbols are bound in the global scope and in that of the object which was opened, breadth first. Entries of a search path that are
absolute are ignored: they name a machine on which the wheel was built.

    linker = Linker(objects, host)
    world = linker.preload(...)        # what is loaded when the program gets to work
    opened = linker.open(path, world)  # .missing, .undefined, .unversioned: empty if it loads

What cannot be seen from the files is not judged: `dlopen` by a name that is computed, LD_LIBRARY_PATH, a constructor that fails.
Sources: ld.so(8), dlopen(3), and the System V gABI, chapter 5.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envspec.binaries import Binary, Reference

_ORIGINS = ("$ORIGIN", "${ORIGIN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What an environment finds on the machine, beside its own files."""

    libraries: frozenset[str]
    """Sonames that the host offers."""

    defines: Callable[[str, frozenset[str]], bool]
    """Whether some of these libraries of the host, or the interpreter, define a symbol; names with a version are not asked for."""


class Missing(NamedTuple):
    """A library that is needed and is nowhere."""

    path: str
    """Of the object that needs it."""

    soname: str


class Unbound(NamedTuple):
    """A symbol that nothing defines."""

    path: str
    """Of the object that needs it."""

    reference: Reference


class MissingVersion(NamedTuple):
    """A version of symbols that the library which was found does not have."""

    path: str
    """Of the object that needs it."""

    library: str
    """Path of the library that was found."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is loaded."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    """Soname, or the name by which it was found -> path."""

    global_paths: tuple[str, ...] = ()
    """Objects whose symbols everybody sees."""

    global_host: frozenset[str] = frozenset()
    """Libraries of the host that are loaded with them."""

    @property
    def paths(self) -> frozenset[str]:
        """Everything that is loaded."""
        return frozenset(self.by_name.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What opening one object comes to."""

    path: str
    scope: tuple[str, ...]
    """The object and all that it brings along or finds loaded, breadth first."""

    host: frozenset[str]
    """Libraries of the host that are needed."""

    missing: tuple[Missing, ...]
    unbound: tuple[Unbound, ...]
    """Only of the objects that are newly loaded. Empty if something is missing: the linker does not get that far."""

    versions: tuple[MissingVersion, ...]
    world: World
    """What is loaded afterwards."""

    @property
    def loads(self) -> bool:
        """Whether `dlopen` succeeds."""
        return not (self.missing or self.unbound or self.versions)


class Linker:
    """Knows the objects of an environment by path."""

    def __init__(
        self, objects: Iterable[Binary], host: Host, *, machine: str, wheel_of: Mapping[str, str] | None = None
    ) -> None:
        """Begin.

        Args:
            objects: The shared objects, with their paths in the environment.
            host: What the machine offers.
            machine: Objects of other machines are passed over in a search, as `ld.so` does.
            wheel_of: Path -> name of the wheel, for `open(own=True)`.
        """
        self.objects: dict[str, Binary] = {each.path: each for each in objects if each.machine == machine}
        self._host = host
        self._wheel_of = wheel_of or {}
        self._own: dict[tuple[str, str], str] = {}
        for path, wheel in sorted(self._wheel_of.items(), reverse=True):
            if path in self.objects:
                self._own[wheel, self.objects[path].soname or self.objects[path].name] = path
        self._folders = lru_cache(maxsize=None)(self._search_folders)

    def open(self, path: str, world: World, *, bind: bool = True, own: bool = False) -> Opened:
        """Open an object, as `dlopen(path, RTLD_NOW)` does.

        Args:
            path: Of the object.
            world: What is loaded before.
            bind: Whether to bind symbols too.
            own: Whether a package is taken to open those of its own libraries first that no search path leads to. torchaudio does; and a wheel
                that did not would work nowhere.
        """
        loaded = dict(world.by_name)
        root = self.objects[path]
        scope = [path]
        queued = {path}
        loaders: dict[str, tuple[str, ...]] = {path: ()}
        loaded.setdefault(root.soname or root.name, path)
        host: set[str] = set()
        missing: list[Missing] = []
        found: list[tuple[str, str, str]] = []  # object, NEEDED, path of what was found
        already = world.paths
        for each in scope:  # grows while it runs
            for name in self.objects[each].needed:
                target = loaded.get(name) or self._find(each, loaders.get(each, ()), name)
                if target is None and own and name not in self._host.libraries:
                    target = self._own.get((self._wheel_of.get(each, ""), name))
                if target is None:
                    if name in self._host.libraries:
                        host.add(name)
                    elif each not in already:
                        missing.append(Missing(each, name))
                    continue
                found.append((each, name, target))
                if target not in queued:
                    queued.add(target)
                    scope.append(target)
                    loaders[target] = (each, *loaders[each])
                    library = self.objects[target]
                    loaded.setdefault(library.soname or library.name, target)
                    loaded.setdefault(name, target)
        fresh = [each for each in scope if each not in already]
        after = World(by_name=loaded, global_paths=world.global_paths, global_host=world.global_host)
        versions = self._missing_versions(found, frozenset(fresh)) if not missing else ()
        unbound: tuple[Unbound, ...] = ()
        if bind and not missing:
            unbound = self.unbound(fresh, scope, frozenset(host), world)
        return Opened(
            path=path,
            scope=tuple(scope),
            host=frozenset(host),
            missing=tuple(missing),
            unbound=unbound,
            versions=versions,
            world=after,
        )

    def unbound(
        self, fresh: Sequence[str], scope: Sequence[str], host: frozenset[str], world: World
    ) -> tuple[Unbound, ...]:
        """The references of objects that nothing in their scope defines.

        Args:
            fresh: Whose references.
            scope: Objects that they see, beside the global ones.
            host: Libraries of the host that they see.
            world: What is loaded before.
        """
        exports = [self.objects[each].exported for each in dict.fromkeys((*world.global_paths, *scope))]
        offered = host | world.global_host
        bound: set[str] = set()
        failed: list[Unbound] = []
        for each in fresh:
            for reference in self.objects[each].undefined:
                if reference.weak or reference.name in bound:
                    continue
                if (
                    self._is_of_host(reference)
                    or any(reference.name in names for names in exports)
                    or (not reference.version and self._host.defines(reference.name, offered))
                ):
                    bound.add(reference.name)
                else:
                    failed.append(Unbound(each, reference))
        return tuple(failed)

    def _is_of_host(self, reference: Reference) -> bool:
        """Whether a reference names a version of a library of the host: that one is judged by the floor of its version."""
        return bool(reference.version) and reference.library in self._host.libraries

    def _missing_versions(
        self, found: Sequence[tuple[str, str, str]], fresh: frozenset[str]
    ) -> tuple[MissingVersion, ...]:
        missing: list[MissingVersion] = []
        for path, name, target in found:
            defined = self.objects[target].version_definitions
            if path not in fresh or not defined:  # `ld.so` only warns of a library without versions
                continue
            for need in self.objects[path].version_needs:
                if need.library == name:
                    missing.extend(
                        MissingVersion(path, target, version) for version in need.versions if version not in defined
                    )
        return tuple(missing)

    def _find(self, path: str, loaders: Sequence[str], name: str) -> str | None:
        """The file that a name in NEEDED leads to; None if no search path has it."""
        if "/" in name:
            return None  # a path of the machine on which the object was linked
        chain = [path]
        if self.objects[path].runpath is None:
            chain += [each for each in loaders if self.objects[each].runpath is None]
        for each in chain:
            for folder in self._folders(each):
                candidate = f"{folder}/{name}" if folder else name
                if candidate in self.objects:
                    return candidate
        return None

    def _search_folders(self, path: str) -> tuple[str, ...]:
        """The folders of an object's RUNPATH, or of its RPATH if it has none, within the environment."""
        binary = self.objects[path]
        text = binary.runpath if binary.runpath is not None else binary.rpath
        folders = []
        for entry in (text or "").split(":"):
            for origin in _ORIGINS:
                if entry == origin or entry.startswith(f"{origin}/"):
                    folder = posixpath.normpath(posixpath.join(binary.folder or ".", entry[len(origin) :].lstrip("/")))
                    folders.append("" if folder == "." else folder)
        return tuple(folders)
