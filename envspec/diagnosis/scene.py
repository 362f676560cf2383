"""All that a diagnosis looks at, with what several rules ask of it: whose is a file, what is a module, what was said."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from envspec.diagnosis.installed import choose_distributions, folders_of, home_of, true_version
from envspec.diagnosis.modules import modules_of, projects_of
from envspec.forms import normalise_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envspec.checks import Closure, ClosureWheel
    from envspec.facts import StartupHook
    from envspec.observed import Observation, ObservedDistribution, ObservedFile, PathEntry
    from envspec.traced import Traced

MODULE_SUFFIXES = (".py", ".so", ".pyc", ".pyd")
_EGG = re.compile(r"([A-Za-z0-9_.]+)-([A-Za-z0-9_.!+]+?)(?:-py\d[\d.]*(?:-[\w.-]+)?)?\.egg")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A venv under diagnosis."""

    observation: Observation
    closure: Closure
    """What checks judge of it."""

    traced: Traced | None = None
    leftovers: tuple[ObservedDistribution, ...] = ()
    """Metadata folders of interrupted installations; the observation has them no more."""

    @property
    def site(self) -> str:
        """Site-packages, relative to the prefix."""
        return self.observation.site_packages()

    @property
    def is_locked(self) -> bool:
        """Whether envspec built the venv."""
        return bool(self.observation.locked)

    @cached_property
    def chosen(self) -> Mapping[str, ObservedDistribution]:
        """Project -> its distribution: of several that whose files are on disk."""
        return {each.name: each for each in choose_distributions(self.observation)}

    @cached_property
    def by_name(self) -> Mapping[str, tuple[ObservedDistribution, ...]]:
        """Project -> all distributions that say they are it."""
        found: dict[str, list[ObservedDistribution]] = defaultdict(list)
        for each in self.observation.distributions:
            found[each.name].append(each)
        return {name: tuple(each) for name, each in sorted(found.items())}

    @cached_property
    def wheels(self) -> Mapping[str, ClosureWheel]:
        """Project -> what checks judge of it; hand-copied packages too."""
        return {wheel.facts.name: wheel for wheel in self.closure.wheels}

    @cached_property
    def rows(self) -> Mapping[str, tuple[tuple[ObservedDistribution, ObservedFile], ...]]:
        """Path -> the distributions whose RECORD names it, each with its row; metadata folders of a path's own project count too."""
        found: dict[str, list[tuple[ObservedDistribution, ObservedFile]]] = defaultdict(list)
        for each in self.observation.distributions:
            for file in each.files:
                found[file.path].append((each, file))
        return {path: tuple(owned) for path, owned in found.items()}

    @cached_property
    def strays(self) -> Mapping[str, ObservedFile]:
        """Path -> a file that no RECORD names."""
        return {file.path: file for file in self.observation.strays}

    @cached_property
    def folders(self) -> Mapping[str, str]:
        """Folder in site-packages -> the package that has files in it."""
        return folders_of(self.chosen.values(), self.site)

    @cached_property
    def modules(self) -> Mapping[str, tuple[str, ...]]:
        """Module at the root -> projects that bring it, by RECORD."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, each in self.chosen.items():
            for module in each.top_level:
                found[module.removesuffix(".py")].append(name)
        return {module: tuple(names) for module, names in found.items()}

    @cached_property
    def stray_modules(self) -> Mapping[str, tuple[ObservedFile, ...]]:
        """Module at the root of site-packages that no RECORD names -> its files."""
        found: dict[str, list[ObservedFile]] = defaultdict(list)
        for path, file in self.strays.items():
            if path.startswith(f"{self.site}/") and not home_of(path, self.folders, self.site):
                top, slash, _ = path[len(self.site) + 1 :].partition("/")
                if top.endswith((".dist-info", ".egg-info", ".egg", ".data")) or top.startswith((".", "~")):
                    continue
                if slash or top.endswith(MODULE_SUFFIXES):
                    found[top.partition(".")[0]].append(file)
        # A folder with no code in it is no module.
        return {
            module: tuple(files)
            for module, files in sorted(found.items())
            if module and any(file.path.endswith(MODULE_SUFFIXES) or ".so." in file.path for file in files)
        }

    @cached_property
    def outside(self) -> Mapping[str, tuple[str, PathEntry]]:
        """Project that is installed elsewhere on `sys.path` -> its version and the first folder that has it; eggs of the venv too."""
        found: dict[str, tuple[str, PathEntry]] = {}
        for entry in self.observation.path:
            egg = _EGG.fullmatch(entry.path.rpartition("/")[2]) if entry.exists else None
            for name, version in (*entry.distributions, *([(normalise_name(egg[1]), egg[2])] if egg else ())):
                found.setdefault(name, (version, entry))
        return found

    @cached_property
    def foreign_modules(self) -> frozenset[str]:
        """Modules of folders of `sys.path` that lie outside of the venv."""
        return frozenset(name for entry in self.observation.path for name in entry.modules)

    def takes_from(self, paths: Iterable[str], sonames: frozenset[str]) -> bool:
        """Whether one of some libraries of the venv needs one of some sonames: what it lacks, that library may have had."""
        objects = self.closure.links.linker.objects
        return bool(sonames) and any(sonames & set(objects[path].needed) for path in paths if path in objects)

    def sonames_of(self, project: str) -> frozenset[str]:
        """The names under which libraries of a project are needed."""
        wheel = self.wheels.get(project)
        binaries = wheel.facts.binaries.binaries if wheel is not None else ()
        return frozenset(binary.soname or binary.name for binary in binaries)

    def relative(self, path: str) -> str:
        """A path of this machine relative to the prefix; empty if it lies outside of the venv."""
        prefix = self.observation.prefix.rstrip("/") + "/"
        if path.startswith(prefix):
            return path[len(prefix) :]
        if self.hooks_naming(path) or any(path.startswith(f"{folder}/") for folder in self._elsewhere):
            return ""
        # The venv may be named through a link: by its own name below another folder.
        marker = f"/{self.site}/"
        head, found, tail = path.rpartition(marker)
        return (
            f"{self.site}/{tail}" if found and head.rstrip("/").endswith(prefix.rstrip("/").rpartition("/")[2]) else ""
        )

    @cached_property
    def _elsewhere(self) -> tuple[str, ...]:
        """Folders of `sys.path` that are none of the venv's."""
        return tuple(
            entry.path for entry in self.observation.path if not entry.inside and entry.source != "standard library"
        )

    def hooks_naming(self, path: str) -> tuple[StartupHook, ...]:
        """Start-up hooks in whose code the folder of packages stands in which a file lies."""
        if path in self._naming:
            return self._naming[path]
        folder = path.rpartition(f"/{self.site}/")[0]
        hooks = (*self.observation.stray_hooks, *(hook for each in self.chosen.values() for hook in each.hooks))
        found = tuple(hook for hook in hooks if folder and any(f"{folder}/lib" in line for line in hook.code))
        self._naming[path] = found
        return found

    @cached_property
    def _naming(self) -> dict[str, tuple[StartupHook, ...]]:
        return {}

    def shown(self, path: str) -> str:
        """A path as findings write it: relative to site-packages if it lies there."""
        return path.removeprefix(f"{self.site}/")

    def link_above(self, path: str) -> ObservedFile | None:
        """The link to a folder behind which a file of RECORD lies; None if there is none."""
        folder = path.rpartition("/")[0]
        while folder and folder != self.site:
            found = self.strays.get(folder)
            if found is not None and found.target:
                return found
            folder = folder.rpartition("/")[0]
        return None

    def owner_of(self, path: str) -> str:
        """The project that a file of the venv belongs to: by its bytes where several claim it, by its folder where none does.

        Args:
            path: Relative to the prefix.
        """
        owned = self.rows.get(path, ())
        for each, file in owned:
            if file.sha256 and file.sha256 == file.recorded:
                return each.name
        if owned:
            return owned[0][0].name
        if not path.startswith(f"{self.site}/"):
            return ""
        home = home_of(path, self.folders, self.site)
        if home:
            return home
        module = path[len(self.site) + 1 :].partition("/")[0].partition(".")[0]
        owners = self.modules.get(module, ())
        return owners[0] if owners else projects_of(module)[0] if module in self.stray_modules else ""

    def owner_of_module(self, module: str) -> str:
        """The project that brings a module, or would bring it.

        Args:
            module: With dots or without.
        """
        top = module.partition(".")[0]
        owners = self.modules.get(top, ())
        if len(owners) == 1:
            return owners[0]
        if owners:
            path = f"{self.site}/{module.replace('.', '/')}"
            tried = (f"{path}.py", f"{path}/__init__.py")
            found = next((self.owner_of(each) for each in tried if each in self.rows), "")
            return found or owners[0]
        known = projects_of(module)
        return next((name for name in known if name in self.wheels), known[0])

    def modules_of_project(self, project: str) -> tuple[str, ...]:
        """Modules at the root that a project brings, or would bring."""
        there = self.chosen.get(project)
        if there is not None and there.top_level:
            return tuple(name.removesuffix(".py") for name in there.top_level)
        return modules_of(project)

    def has_module(self, module: str) -> bool:
        """Whether the file of a module is in site-packages: as source, extension or package."""
        path = f"{self.site}/{module.replace('.', '/')}"
        return (
            self.is_there(f"{path}.py")
            or self.is_there(f"{path}/__init__.py")
            or path in self._places
            or any(self.is_there(f"{path}{suffix}") for suffix in self.extension_suffixes)
        )

    def is_there(self, path: str) -> bool:
        """Whether there is a file at a path, relative to the prefix."""
        owned = self.rows.get(path)
        if owned:
            return any(file.kind in ("file", "link") for _, file in owned)
        return path in self.strays

    @cached_property
    def extension_suffixes(self) -> tuple[str, ...]:
        """The suffixes under which the venv's Python imports an extension module, in its order."""
        from envspec.links import extension_suffixes  # noqa: PLC0415 - it brings the linker, which only few diagnoses need here

        return extension_suffixes(self.closure.spec.python.version, self.closure.spec.target.platform.partition("-")[2])

    @cached_property
    def _places(self) -> frozenset[str]:
        """Folders of site-packages that hold a file: packages, namespaces included."""
        found: set[str] = set()
        there = [path for path, owned in self.rows.items() if any(file.kind in ("file", "link") for _, file in owned)]
        for path in (*there, *self.strays):
            folder = path.rpartition("/")[0]
            while folder and folder not in found:
                found.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(found)

    def label(self, project: str) -> str:
        """Name and version for a person, as its metadata says: `torch 2.11.0`."""
        there = self.chosen.get(project)
        if there is None:
            wheel = self.wheels.get(project)
            return wheel.label if wheel else project
        return f"{project} {there.version or there.folder_version}".strip()

    def true_version(self, project: str) -> str:
        """The version of what lies on disk; empty if there is nothing."""
        there = self.chosen.get(project)
        if there is not None:
            return true_version(there, self.site)
        wheel = self.wheels.get(project)
        return wheel.facts.version if wheel else ""
