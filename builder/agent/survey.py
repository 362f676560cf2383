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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.agent.survey_cache import Known, cache_path, read_known, write_known
from builder.agent.survey_files import (
    LARGEST_FILE_BYTES,
    MOST_BYTES,
    Look,
    look_at_files,
    stamp_of,
    with_releases,
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
from builder.agent.survey_texts import look_at_texts
from builder.agent.survey_tree import Notes, Tree, read_small
from builder.binary_facts import merged_facts
from builder.startup_hooks import is_hook_module, is_pth, startup_hook
from envspec.binaries import BinaryFacts, binary_facts_from_json
from envspec.observed import Observation, ObservedDistribution, ObservedFile
from envspec.tree import is_host_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.binary_facts import ReleaseOf
    from builder.progress import Reporter
    from envspec.facts import StartupHook

MOST_OUTSIDE = 1000
"""Paths out of the venv that are looked at, if RECORDs name them."""

_OF_THE_MAKER = frozenset({".gitignore", ".lock", "CACHEDIR.TAG", "bin/pydoc.bat"})
"""What uv puts into every venv beside what `is_host_path` names."""


class Survey(NamedTuple):
    """An observation, and what is left to do for whoever can inflate cubins."""

    observation: Observation
    packed: dict[str, list[list[Any]]]
    """Path of a binary -> its compressed cubins, as `builder.agent.survey_files.Look.packed` has them."""


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
    begun_ns = time.time_ns()
    place = find_place(path)
    notes = Notes()
    outside = host_environment(environ, place.prefix)
    memory = cache_path(environ, place.prefix) if remember and release_of is not None else None
    with ThreadPoolExecutor(2) as aside:
        host = aside.submit(look_at_host, outside)
        before = aside.submit(read_known, memory, place.prefix) if memory is not None else None
        reporter.note(f"looking at {place.prefix}")
        seen = _Seen(place, notes)
        reading = _Reading(seen, notes, release_of)
        known = {} if before is None else before.result()
        news = reading.read(reporter, known)
        if memory is not None and (news or len(known) > len(reading.known)):
            write_known(memory, place.prefix, reading.known, begun_ns)
        python = look_at_python(place)
        hooks = _hooks(seen, reading, notes)
        owned = set(seen.recorded)
        distributions = tuple(
            sorted(
                (_distribution(metadata, seen, reading, hooks) for metadata in seen.metadata),
                key=lambda each: (each.name, each.folder),
            )
        )
        owned |= {file.path for each in distributions for file in each.files}
        owned |= {seen.tree.resolve(path) for path in owned if path not in seen.tree.files}
        strays = [
            path
            for path in sorted(seen.present())
            if path not in owned and path not in _OF_THE_MAKER and not is_host_path(path)
        ]
        libraries = linked_libraries(environ, outside, notes)
        facts, host_notes = host.result()
    for note in host_notes:
        notes.add(note)
    observation = Observation(
        prefix=place.prefix,
        python=python,
        distributions=distributions,
        strays=tuple(reading.file(path, "", -1) for path in strays),
        stray_binaries=reading.facts_of(strays),
        stray_hooks=tuple(hooks[path] for path in strays if path in hooks),
        path=look_at_path(place, python, environ),
        environ=watched_variables(environ),
        libraries=libraries,
        host=facts,
        locked=_locked(place, notes),
        texts=look_at_texts(seen.tree, (path for path, known in reading.known.items() if known.facts is None)),
        notes=notes.all(),
        bytes_read=reading.bytes_read,
        files_seen=len(seen.tree.files),
        sites=place.sites,
    )
    return Survey(observation, reading.packed)


class _Seen:
    """The files and the metadata of a venv, before any file of it is read."""

    def __init__(self, place: Place, notes: Notes) -> None:
        self.place = place
        self.tree = Tree(place.prefix, notes)
        if place.is_venv:
            self.tree.walk("")
        else:
            for site in place.sites:
                self.tree.walk(site)
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


class _Reading:
    """The content of the files."""

    def __init__(self, seen: _Seen, notes: Notes, release_of: ReleaseOf | None) -> None:
        self._seen = seen
        self._tree = seen.tree
        self._notes = notes
        self._release_of = release_of
        self.known: dict[str, Known] = {}
        """What was read well, by path."""

        self.packed: dict[str, list[list[Any]]] = {}
        self.bytes_read = 0
        self._outside = 0

    def read(self, reporter: Reporter, before: Mapping[str, Known]) -> bool:
        """Read what is not known from before.

        Returns:
            Whether there was anything to read.
        """
        wanted: list[tuple[str, int]] = []
        total = 0
        for path, status in self._tree.files.items():
            known = before.get(path)
            if known is not None and known.stamp == stamp_of(status):
                self.known[path] = known
                continue
            if path not in self._seen.recorded and is_host_path(path):
                continue
            if status.st_size > LARGEST_FILE_BYTES or total + status.st_size > MOST_BYTES:
                self._notes.add(f"`{path}` has {status.st_size} bytes and was not read")
                continue
            total += status.st_size
            wanted.append((path, status.st_size))
        self.bytes_read = total
        with reporter.stage("reading", total=total, unit="bytes") as advance:
            for path, look in look_at_files(
                self._tree.root, self._seen.place.sites, wanted, store_root=Path(self._tree.root), advance=advance
            ):
                self._take(path, look)
        return bool(wanted)

    def _take(self, path: str, look: Look) -> None:
        if look.problem:
            self._notes.add(f"`{path}`: {look.problem}")
        elif look.stamp and look.stamp[:2] != stamp_of(self._tree.files[path])[:2]:
            self._notes.add(f"`{path}`: changed while the venv was looked at")
        if look.packed and look.facts is not None:
            if self._release_of is not None:
                with_releases(look.facts, {path: look.packed}, self._release_of)
            else:
                self.packed[path] = look.packed
        facts = None if look.facts is None else binary_facts_from_json(look.facts)
        if look.sha256:
            self.known[path] = Known(look.stamp, look.sha256, facts)

    def sha256(self, path: str) -> str:
        known = self.known.get(path)
        return "" if known is None else known.sha256

    def file(self, path: str, recorded: str, recorded_size: int) -> ObservedFile:
        """A path as it is and as RECORD says."""
        real, target = path, ""
        status = self._tree.files.get(path)
        if status is None:
            if path in self._tree.links:
                target = self._tree.links[path]
                # A link to nowhere is no file: whatever should lie there is missing.
                kind = "link" if os.path.exists(f"{self._tree.root}/{path}") else "missing"
                return _without_content(path, kind, recorded, recorded_size, target)
            if path in self._tree.others:
                kind = "unreadable" if self._tree.others[path] == "unreadable" else "other"
                return _without_content(path, kind, recorded, recorded_size)
            if path in self._tree.folders:
                return _without_content(path, "other", recorded, recorded_size)
            if path.startswith("/"):
                self._outside += 1
                if self._outside > MOST_OUTSIDE:
                    return _without_content(path, "unreadable", recorded, recorded_size)
                return _outside(path, recorded, recorded_size)
            real = self._tree.resolve(path)
            status = self._tree.files.get(real)
            if status is None:
                return _without_content(path, self._why_absent(path, real), recorded, recorded_size)
        known = self.known.get(real)
        return ObservedFile(
            path,
            "file" if known is not None else "unreadable",
            known.stamp[0] if known is not None and known.stamp else status.st_size,
            "" if known is None else known.sha256,
            bool(status.st_mode & 0o111),
            recorded,
            recorded_size,
            status.st_mtime_ns,
            status.st_nlink,
        )

    def _why_absent(self, path: str, real: str) -> str:
        above = path
        while above:
            above = above.rpartition("/")[0]
            if above in self._tree.links and not real:
                self._notes.add(
                    f"`{above}` is a link to `{self._tree.links[above]}`: what lies behind it was not looked at"
                )
                return "unreadable"
            if above in self._tree.unread:
                return "unreadable"
        return "unreadable" if self._tree.is_cut_off else "missing"

    def facts_of(self, paths: Iterable[str]) -> BinaryFacts:
        """The facts of the binaries among files."""
        looks = (self.known.get(path) for path in paths)
        found = [known.facts for known in looks if known is not None and known.facts is not None]
        return merged_facts(found) if found else BinaryFacts()


def _without_content(path: str, kind: str, recorded: str, recorded_size: int, target: str = "") -> ObservedFile:
    return ObservedFile(
        path,
        kind,
        size=-1,
        sha256="",
        executable=False,
        recorded=recorded,
        recorded_size=recorded_size,
        target=target,
    )


def _outside(path: str, recorded: str, recorded_size: int) -> ObservedFile:
    """A path that RECORD names out of the venv: it is looked at, and not read."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return _without_content(path, "missing", recorded, recorded_size)
    kind = {0o100000: "file", 0o120000: "link"}.get(status.st_mode & 0o170000, "other")
    return ObservedFile(
        path,
        kind,
        status.st_size,
        sha256="",
        executable=bool(status.st_mode & 0o111),
        recorded=recorded,
        recorded_size=recorded_size,
        mtime_ns=status.st_mtime_ns,
    )


def _distribution(
    metadata: Metadata, seen: _Seen, reading: _Reading, hooks: Mapping[str, StartupHook]
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


def _hooks(seen: _Seen, reading: _Reading, notes: Notes) -> dict[str, StartupHook]:
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
