"""A simulated dynamic linker: which objects load, and why the others do not.

It follows `ld.so` (glibc) over the files of an environment that need not exist. A name in NEEDED is looked up

1. among what is loaded already: by soname, and by the name under which it was found. A file that was opened by its path and has no soname is
   not found by its name;
2. in the RPATH of the object and then of what brought it in, up to the object that was opened, unless the object has a RUNPATH; one that has
   a RUNPATH has no RPATH;
3. in the object's RUNPATH;
4. among what the host offers.

`$ORIGIN` in a search path or in a NEEDED entry is the object's folder. Entries that are absolute or relative to the working folder are ignored:
they name a machine on which the wheel was built. Objects of other machines are passed over. Symbols are bound in the global scope and in that
of the object which was opened, breadth first.

    linker = Linker(objects, host, machine="x86_64")
    opened = linker.open(path, World())
    opened.loads, opened.missing, opened.unbound, opened.versions

What cannot be seen from the files is not judged: `dlopen` by a name that is computed, LD_LIBRARY_PATH, a constructor that fails, which version
of a symbol a library of the environment has (only that it has the version at all), and folders such as `glibc-hwcaps` that depend on the CPU.

Wheels are hostile: work is bounded by `MOST_STEPS`; what is looked up beyond that counts as missing.

Sources: ld.so(8), dlopen(3), the System V gABI, chapter 5; `tests/envspec/test_linker.py` has `ld.so` itself as the judge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envspec.binaries import Binary, Reference

MOST_STEPS = 3_000_000
"""Look-ups that one linker makes: some seconds. All objects of an environment of 500 take 0.03 million."""

_ORIGIN = re.compile(r"\$(?:ORIGIN(?![A-Za-z0-9_])|\{ORIGIN\})")
_TOKEN = re.compile(r"\$\{?(?:ORIGIN|LIB|PLATFORM)")

OF_THE_HOST = ""
"""Stands for a library of the host where a path of the environment could stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What an environment finds on the machine, beside its own files."""

    libraries: frozenset[str]
    """Sonames that the host offers."""

    defines: Callable[[str, frozenset[str]], bool]
    """Whether some of these libraries of the host, or the interpreter, define a symbol; names with a version are not asked for."""

    loaded: frozenset[str] = frozenset()
    """Libraries of the host that every process has loaded before anything is opened."""


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
    """Soname, or the name by which it was found -> path; `OF_THE_HOST` for a library of the host."""

    paths: frozenset[str] = frozenset()
    """All objects of the environment that are loaded."""

    global_paths: tuple[str, ...] = ()
    """Objects whose symbols everybody sees."""

    global_host: frozenset[str] = frozenset()
    """Libraries of the host that are loaded with them."""


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
        self,
        objects: Iterable[Binary],
        host: Host,
        *,
        machine: str,
        wheel_of: Mapping[str, str] | None = None,
        folders: Iterable[str] = (),
    ) -> None:
        """Begin.

        Args:
            objects: The shared objects, with their paths in the environment.
            host: What the machine offers.
            machine: Objects of other machines are passed over in a search, as `ld.so` does.
            wheel_of: Path -> name of the wheel, for `open(own=True)`.
            folders: Further folders of the environment: a search path with `..` leads only through folders that exist.
        """
        self.objects: dict[str, Binary] = {each.path: each for each in objects if each.machine == machine}
        self._host = host
        self._wheel_of = wheel_of or {}
        self._steps = MOST_STEPS
        self._own: dict[tuple[str, str], str] = {}
        for path, wheel in sorted(self._wheel_of.items(), reverse=True):
            # What was opened by its path is found by its soname alone; a copy under another name is a private one, for who names it.
            if path in self.objects and self.objects[path].soname == self.objects[path].name:
                self._own[wheel, self.objects[path].name] = path
        self._places: dict[str, set[str]] = {}
        """Name of a file -> folders that have one."""
        for path in self.objects:
            folder, _, name = path.rpartition("/")
            self._places.setdefault(name, set()).add(folder)
        self._known = {""}
        for folder in {*folders, *(each.folder for each in self.objects.values())}:
            above = folder
            while above not in self._known:
                self._known.add(above)
                above = above.rpartition("/")[0]
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
        loaded = dict.fromkeys(self._host.loaded, OF_THE_HOST) | dict(world.by_name)
        already = world.paths
        if path not in already and self.objects[path].soname:
            loaded.setdefault(self.objects[path].soname, path)
        scope = [path]
        loader: dict[str, str] = {path: ""}
        host: set[str] = set()
        missing: list[Missing] = []
        for each in scope:  # grows while it runs
            for name in dict.fromkeys(self.objects[each].needed):
                target = self._resolve(each, name, loaded, loader, own=own)
                if target is None:
                    if each not in already:
                        missing.append(Missing(each, name))
                    continue
                if "/" not in name:
                    loaded.setdefault(name, target)
                if target == OF_THE_HOST:
                    host.add(name)
                elif target not in loader:
                    loader[target] = each
                    scope.append(target)
                    if target not in already and self.objects[target].soname:
                        loaded.setdefault(self.objects[target].soname, target)
        fresh = [each for each in scope if each not in already]
        after = World(
            by_name=loaded,
            paths=already | set(fresh),
            global_paths=world.global_paths,
            global_host=world.global_host,
        )
        return Opened(
            path=path,
            scope=tuple(scope),
            host=frozenset(host),
            missing=tuple(missing),
            unbound=self._unbound(fresh, scope, frozenset(host), after) if bind and not missing else (),
            versions=self._missing_versions(fresh, after) if not missing else (),
            world=after,
        )

    def _unbound(
        self, fresh: Sequence[str], scope: Sequence[str], host: frozenset[str], after: World
    ) -> tuple[Unbound, ...]:
        """The references of new objects that nothing in their scope defines."""
        exports = [self.objects[each].exported for each in dict.fromkeys((*after.global_paths, *scope))]
        offered = host | after.global_host
        wanted = {reference.name for each in fresh for reference in self.objects[each].undefined if not reference.weak}
        for names in exports:  # as sets: there are 200,000 references in a large environment
            wanted = wanted - names
        failed: list[Unbound] = []
        for each in fresh if wanted else ():
            for reference in self.objects[each].undefined:
                name = reference.name
                if reference.weak or name not in wanted:
                    continue
                if reference.version:
                    # A version of a library of the host is judged by the floor of the host; another one needs who has it.
                    if after.by_name.get(reference.library) != OF_THE_HOST:
                        failed.append(Unbound(each, reference))
                elif self._host.defines(name, offered):
                    wanted.discard(name)
                else:
                    failed.append(Unbound(each, reference))
        return tuple(failed)

    def _missing_versions(self, fresh: Sequence[str], after: World) -> tuple[MissingVersion, ...]:
        missing: list[MissingVersion] = []
        for path in fresh:
            for need in self.objects[path].version_needs:
                target = after.by_name.get(need.library, OF_THE_HOST)
                defined = self.objects[target].version_definitions if target != OF_THE_HOST else ()
                if defined:  # `ld.so` only warns of a library without versions
                    missing.extend(
                        MissingVersion(path, target, version) for version in need.versions if version not in defined
                    )
        return tuple(missing)

    def _resolve(
        self, path: str, name: str, loaded: Mapping[str, str], loader: Mapping[str, str], *, own: bool
    ) -> str | None:
        """What a name in NEEDED stands for: a path, `OF_THE_HOST`, or None if it is nowhere."""
        self._steps -= 1
        if self._steps < 0:
            return None
        if "/" in name:  # a path: no search, and all but `$ORIGIN` is of the machine on which the object was linked
            return self._file_at(path, name)
        if name in loaded:
            return loaded[name]
        found = self._find(path, name, loader)
        if found is None and own and name not in self._host.libraries:
            found = self._own.get((self._wheel_of.get(path, ""), name))
        if found is None and name in self._host.libraries:
            found = OF_THE_HOST
        return found

    def _find(self, path: str, name: str, loader: Mapping[str, str]) -> str | None:
        """The file that the search paths of an object lead to; None if none has it."""
        places = self._places.get(name)
        if not places:
            return None
        inherits = self.objects[path].runpath is None
        step = path
        while step:
            if step == path or self.objects[step].runpath is None:
                folders = self._folders(step)
                self._steps -= 1 + min(len(places), len(folders))
                if self._steps < 0:
                    return None
                if len(places) < len(folders):
                    found = (
                        min((folders[place], place) for place in places if place in folders)
                        if places & folders.keys()
                        else None
                    )
                    if found is not None:
                        return f"{found[1]}/{name}" if found[1] else name
                else:
                    for folder in folders:
                        if folder in places:
                            return f"{folder}/{name}" if folder else name
            if not inherits:
                return None
            step = loader.get(step, "")
        return None

    def _file_at(self, path: str, name: str) -> str | None:
        """The object that a NEEDED entry with a slash names."""
        folder, _, file = name.rpartition("/")
        place = self._origin_folder(path, folder)
        found = f"{place}/{file}" if place else file
        return found if place is not None and found in self.objects else None

    def _search_folders(self, path: str) -> dict[str, int]:
        """The folders of an object's RUNPATH, or of its RPATH if it has none, within the environment, each with its rank."""
        binary = self.objects[path]
        text = binary.runpath if binary.runpath is not None else binary.rpath
        folders: dict[str, int] = {}
        for entry in dict.fromkeys((text or "").split(":")):
            folder = self._origin_folder(path, entry)
            if folder is not None:
                folders.setdefault(folder, len(folders))
        return folders

    def _origin_folder(self, path: str, entry: str) -> str | None:
        """The folder of the environment that `$ORIGIN/../lib` names; None if it names another one, or none that exists."""
        origin = _ORIGIN.match(entry)
        if origin is None or _TOKEN.search(entry, origin.end()):
            return None
        rest = entry[origin.end() :]
        folder = self.objects[path].folder
        if rest and not rest.startswith("/"):  # `$ORIGIN.libs`
            if not folder:
                return None
            folder, rest = folder + rest.partition("/")[0], rest.partition("/")[2]
            if folder not in self._known:
                return None
        for part in rest.split("/"):
            if part == "..":
                if not folder:
                    return None  # above the environment
                folder = folder.rpartition("/")[0]
            elif part not in ("", "."):
                folder = f"{folder}/{part}" if folder else part
                if folder not in self._known:
                    return None
        return folder
