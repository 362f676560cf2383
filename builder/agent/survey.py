"""Looks at any venv: every distribution and file, what `sys.path` will be, and what a process there would inherit.

Nothing of the venv is run or imported, its interpreter neither; nothing is written there. `builder.agent.observe` is another thing: how an
environment that envspec built has drifted.

    survey = look_at_venv("/srv/venv", os.environ, reporter)
    survey.observation.distributions[0].files[0].is_edited

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.agent.survey_cache import cache_path, read_known, write_known
from builder.agent.survey_files import (
    within_site,
)
from builder.agent.survey_host import host_environment, linked_libraries, look_at_host, watched_variables
from builder.agent.survey_metadata import MOST_DISTRIBUTIONS, Budget, Metadata, find_metadata, read_metadata
from builder.agent.survey_python import (
    MOST_PTH,
    PTH_LIMIT_BYTES,
    Place,
    find_place,
    look_at_path,
    look_at_python,
)
from builder.agent.survey_reading import Reading
from builder.agent.survey_state import Around, Basis, is_settled, state_of
from builder.agent.survey_texts import look_at_texts
from builder.agent.survey_tree import Notes, Tree, read_small
from builder.startup_hooks import is_hook_module, is_pth, startup_hook
from envspec.observed import Observation, ObservedDistribution
from envspec.tree import is_host_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from builder.binary_facts import ReleaseOf
    from builder.progress import Reporter
    from envspec.facts import StartupHook

_OF_THE_MAKER = frozenset({".gitignore", ".lock", "CACHEDIR.TAG", "bin/pydoc.bat"})
"""What uv puts into every venv beside what `is_host_path` names."""


class Survey(NamedTuple):
    """An observation, and what is left to do for whoever can inflate cubins."""

    observation: Observation
    packed: dict[str, list[list[Any]]]
    """Path of a binary -> its compressed cubins, as `builder.agent.survey_files.Look.packed` has them."""

    basis: Basis | None = None
    """What the observation was made of; None where it might change and that would stay the same."""


def look_at_venv(
    path: str,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    release_of: ReleaseOf | None = None,
    remember: bool = False,
) -> Survey:
    """Observe a venv.

    Args:
        path: Its folder, its interpreter, or its folder of packages.
        environ: Of this process: a process in the venv would inherit it.
        reporter: Where progress goes.
        release_of: Reads the notes of compressed cubins; None where that has to be left to others.
        remember: Whether what was read the last time is believed, and what is read now kept in the user's cache. Needs `release_of`.

    Raises:
        EnvspecError: There is no Python environment.
    """
    return VenvLook(path, environ, reporter).survey(release_of=release_of, remember=remember)


class VenvLook:
    """A look at a venv that has begun: what lies in it is listed, and nothing of it read yet."""

    def __init__(self, path: str, environ: Mapping[str, str], reporter: Reporter) -> None:
        """List the venv, and look at what is around it. For the arguments see `look_at_venv`.

        Raises:
            EnvspecError: There is no Python environment.
        """
        self._begun_ns = time.time_ns()
        self.place = find_place(path)
        self._environ = environ
        self._reporter = reporter
        self._notes = Notes()
        outside = host_environment(environ, self.place.prefix)
        with ThreadPoolExecutor(1) as aside:
            host = aside.submit(look_at_host, outside)
            reporter.note(f"looking at {self.place.prefix}")
            self._tree = Tree(self.place.prefix, self._notes)
            if self.place.is_venv:
                self._tree.walk("")
            else:
                for site in self.place.sites:
                    self._tree.walk(site)
            self.around = _look_around(self.place, environ, outside, host)

    @cached_property
    def state(self) -> str:
        """What the survey will be made of; empty where that cannot be told."""
        return state_of(self.place, self._tree, self.around)

    def survey(self, *, release_of: ReleaseOf | None, remember: bool) -> Survey:
        """Read what is to be read. For the arguments see `look_at_venv`."""
        place, tree, notes, around = self.place, self._tree, self._notes, self.around
        memory = cache_path(self._environ, place.prefix) if remember and release_of is not None else None
        with ThreadPoolExecutor(1) as aside:
            before = aside.submit(read_known, memory, place.prefix) if memory is not None else None
            seen = Seen(place, tree, notes)
            known = {} if before is None else before.result()
        reading = Reading(place, tree, seen.recorded, notes, release_of)
        news = reading.read(self._reporter, known)
        if memory is not None and (news or len(known) > len(reading.known)):
            write_known(memory, place.prefix, reading.known, self._begun_ns)
        hooks = _hooks(seen, reading, notes)
        owned = set(seen.recorded)
        distributions = tuple(
            sorted(
                (_distribution(metadata, seen, reading, hooks) for metadata in seen.metadata),
                key=lambda each: (each.name, each.folder),
            )
        )
        owned |= {file.path for each in distributions for file in each.files}
        owned |= {tree.resolve(path) for path in owned if path not in tree.files}
        strays = [
            path
            for path in sorted(seen.present())
            if path not in owned and path not in _OF_THE_MAKER and not is_host_path(path)
        ]
        for note in around.notes:
            notes.add(note)
        observation = Observation(
            prefix=place.prefix,
            python=around.python,
            distributions=distributions,
            strays=tuple(reading.file(path, "", -1) for path in strays),
            stray_binaries=reading.facts_of(strays),
            stray_hooks=tuple(hooks[path] for path in strays if path in hooks),
            path=around.path,
            environ=around.environ,
            libraries=around.libraries,
            host=around.host,
            locked=around.locked,
            texts=look_at_texts(tree, (path for path, known in reading.known.items() if known.facts is None)),
            notes=notes.all(),
            bytes_read=reading.bytes_read,
            files_seen=len(tree.files),
            sites=place.sites,
        )
        stays = remember and self.state and is_settled(tree, reading.known, seen.recorded, self._begun_ns)
        return Survey(observation, reading.packed, Basis(self.state, reading.outside.answers) if stays else None)


def _look_around(
    place: Place, environ: Mapping[str, str], outside: Mapping[str, str], host: Future[tuple[dict[str, Any], list[str]]]
) -> Around:
    """What lies around a venv.

    Args:
        place: Of the venv.
        environ: Of this process.
        outside: For programs of the host, as `host_environment` makes it.
        host: Gives its facts, and notes.
    """
    notes = Notes()
    python = look_at_python(place)
    locked = _locked(place, notes)
    libraries = linked_libraries(environ, outside, notes)
    path = look_at_path(place, python, environ)
    facts, host_notes = host.result()
    for note in host_notes:
        notes.add(note)
    return Around(python, path, watched_variables(environ), libraries, facts, locked, notes.all())


class Seen:
    """The files and the metadata of a venv, before any file of it is read."""

    def __init__(self, place: Place, tree: Tree, notes: Notes) -> None:
        self.place = place
        self.tree = tree
        self.metadata: list[Metadata] = []
        budget = Budget()
        for site in place.sites:
            for folder in find_metadata(self.tree, site):
                if len(self.metadata) >= MOST_DISTRIBUTIONS:
                    notes.add(f"more than {MOST_DISTRIBUTIONS} distributions: `{folder}` and what follows was left out")
                    break
                self.metadata.append(read_metadata(self.tree, site, folder, budget))
            prefix = f"{site}/" if site else ""
            for link, target in self.tree.links.items():
                if link.startswith(prefix) and link.endswith((".dist-info", ".egg-info")):
                    notes.add(f"`{link}` is a link to `{target}` and is not followed")
        if not place.is_venv:
            for metadata in self.metadata:
                for row in metadata.rows:
                    if row.path not in self.tree.files and not row.path.startswith("/"):
                        self.tree.look(row.path)
        self.recorded = {row.path for metadata in self.metadata for row in metadata.rows}
        self.own = self._own_files()

    def _own_files(self) -> dict[str, list[str]]:
        """Metadata folder without RECORD -> the files in it: its own, whoever says so."""
        own: dict[str, list[str]] = {
            metadata.fields["folder"]: [] for metadata in self.metadata if not metadata.has_record
        }
        for path in self.present() if own else ():
            for site in self.place.sites:
                folder = path[: path.find("/", len(site) + 1)] if "/" in path[len(site) + 1 :] else path
                if folder in own:
                    own[folder].append(path)
                    break
        return own

    def present(self) -> set[str]:
        """Everything that is no folder, bytecode left out."""
        if self.place.is_venv:
            return {*self.tree.files, *self.tree.links, *self.tree.others}
        below = tuple(f"{site}/" if site else "" for site in self.place.sites)
        return {path for path in (*self.tree.files, *self.tree.links, *self.tree.others) if path.startswith(below)}


def _distribution(
    metadata: Metadata, seen: Seen, reading: Reading, hooks: Mapping[str, StartupHook]
) -> ObservedDistribution:
    rows = [(row.path, row.recorded, row.size) for row in metadata.rows]
    if not metadata.has_record:
        rows = sorted({*rows, *((path, "", -1) for path in seen.own[metadata.fields["folder"]])})
    paths = [path for path, _, _ in rows]
    return ObservedDistribution(
        **metadata.fields,
        files=tuple(reading.file(*row) for row in rows),
        hooks=tuple(hooks[path] for path in paths if path in hooks),
        binaries=reading.facts_of(paths),
    )


def _hooks(seen: Seen, reading: Reading, notes: Notes) -> dict[str, StartupHook]:
    """Path -> what Python does with it at every start."""
    found: dict[str, StartupHook] = {}
    for path in (*seen.tree.files, *seen.tree.links):
        if not path.endswith(".pth") and "customize" not in path:
            continue
        name = within_site(path, seen.place.sites)
        if name == path and "" not in seen.place.sites:
            continue
        if is_pth(name) or is_hook_module(name):
            if path in seen.tree.links:
                notes.add(
                    f"`{path}` is a link to `{seen.tree.links[path]}`, which Python follows at every start; it was not read"
                )
            content = read_small(f"{seen.tree.root}/{path}", PTH_LIMIT_BYTES) if is_pth(name) else b""
            hook = startup_hook(name, reading.sha256(path), content or b"")
            if hook is not None:
                found[path] = hook
        if len(found) >= MOST_PTH:
            break
    return found


def _locked(place: Place, notes: Notes) -> dict[str, str]:
    """What an environment that envspec built says of itself, if it lies where it was built."""
    config = place.config or {}
    env, site, name = (config.get(key, "") for key in ("envspec-env", "envspec-site", "prompt"))
    if not env:
        return {}
    folder, own = os.path.split(place.prefix)
    store, envs = os.path.split(folder)
    if envs != "envs" or own != f"{env}-{name}" or not os.path.isfile(f"{store}/store.json"):
        notes.add(f"`pyvenv.cfg` says that envspec built it as `{env}`, but it does not lie in a store: it is a copy")
        return {}
    return {"env": env, "site": site, "name": name, "store": store}
