"""Every path of a venv, and of the wheels that it was attributed to -> what becomes of it, or what has to be read to know.

Nothing is read here: what a digest cannot decide is an `Edit`, which `envspec.adoption.settling` settles with the contents.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from envspec.adoption.values import Collision, Edit, Fate
from envspec.adoption.versions import same_version
from envspec.layout import DROPPED_METADATA
from envspec.patch_format import path_problem
from envspec.tree import parent_dirs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.adoption.disk import Disk
    from envspec.adoption.values import Attribution, Kind, PublishedFile, PublishedWheel
    from envspec.observed import ObservedFile

MOST_TEXT_BYTES = 4 << 20
"""Of a file that may become part of a patch."""

MOST_REMOVED = 200
"""Files of one package whose absence becomes a patch; who stripped more of it did not edit it."""

BINARY_ENDINGS = (
    ".so",
    ".pyd",
    ".dll",
    ".dylib",
    ".a",
    ".o",
    ".cubin",
    ".fatbin",
    ".pyc",
    ".exe",
    ".bin",
    ".zip",
    ".whl",
)

TOOL_FILES = frozenset({".gitignore", ".lock", "CACHEDIR.TAG", "pyvenv.cfg", "lib64", "include", "pip-selfcheck.json"})
"""Of the root of a venv: written by `venv`, virtualenv, uv or pip."""

TOOL_MODULES = ("_virtualenv.py", "_virtualenv.pth")
"""Of site-packages: by which virtualenv and uv mend old tools; of no use to an environment that nobody installs into."""

_ALIAS = re.compile(r"(bin/[^/]*?[^/0-9.-])-?[0-9]+(?:\.[0-9]+)*")
"""`bin/pip3.12` of `bin/pip`."""


class Script(NamedTuple):
    """A file in the place of a script, whose first line its installer rewrote, or all of it made."""

    path: str
    package: str
    sha256: str
    size: int
    targets: tuple[str, ...] = ()
    """What the package's console script of that name runs: `module:function`."""

    member: str = ""
    """The script in the wheel; empty of a console script."""


@dataclass(slots=True)
class Sorted:
    """What is known without contents."""

    fates: list[Fate] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    """To be settled with contents."""

    metadata: list[Edit] = field(default_factory=list)
    """METADATA whose only difference may be the version in it."""

    scripts: list[Script] = field(default_factory=list)
    """Scripts of wheels, and what lies in the place of a console script and is not as any RECORD has it."""

    collisions: list[Collision] = field(default_factory=list)


def sort_paths(disk: Disk, attributions: Sequence[Attribution]) -> Sorted:
    """What becomes of each path, as far as digests tell.

    Args:
        disk: What lies where.
        attributions: Of each distribution; no two with a wheel of the same name.
    """
    return _Sorter(disk, attributions).sort()


class _Sorter:
    def __init__(self, disk: Disk, attributions: Sequence[Attribution]) -> None:
        self.disk = disk
        self.attributions = attributions
        self.found = Sorted()
        self.by_folder = {each.distribution.folder: each for each in attributions}
        self.by_package = {each.wheel.name: each for each in attributions if each.wheel is not None}
        self.claims: dict[str, list[tuple[PublishedWheel, PublishedFile]]] = defaultdict(list)
        self.scripts: dict[str, str] = {}
        """`bin/NAME` -> the package whose console script it is; of several the one whose RECORD has what is there."""

        for each in sorted(attributions, key=lambda each: (each.distribution.name, each.distribution.folder)):
            for name, _ in each.distribution.scripts:
                self.scripts.setdefault(f"bin/{name}", each.distribution.name)
            if each.wheel is None:
                continue
            for file in each.wheel.files:
                self.claims[file.path].append((each.wheel, file))
        self._own_scripts()
        self.folders = _owned_folders(self.claims, disk.site)
        self.removed: dict[str, list[Edit]] = defaultdict(list)

    def _own_scripts(self) -> None:
        """Whose each console script is, and which of them contend."""
        rivals: dict[str, dict[str, str]] = defaultdict(dict)
        for each in self.by_package.values():
            for path, digest in each.wheel.scripts if each.wheel is not None else ():
                rivals[path][each.distribution.name] = digest
        for path, contents in sorted(rivals.items()):
            recorded = [
                name
                for name in sorted(contents)
                if self.disk.is_recorded_by(path, self.by_package[name].distribution.folder)
            ]
            self.scripts[path] = (recorded or sorted(contents))[0]
            if len(set(contents.values())) > 1:
                self.found.collisions.append(
                    Collision(path=path, owner=self.scripts[path], packages=tuple(sorted(contents)))
                )

    def sort(self) -> Sorted:
        """Sort all paths."""
        for path in sorted(self.disk.files.keys() | self.claims.keys() | self.scripts.keys()):
            file, claims = self.disk.files.get(path), self.claims.get(path, ())
            if file is None or file.kind == "missing":
                self._absent(path, claims)
            elif path.startswith("/"):
                self._unexplained(
                    file,
                    self._owner(path),
                    "its RECORD leads out of the venv",
                    "nothing outside of the venv is adopted",
                )
            elif claims:
                self._claimed(file, claims)
            else:
                self._unclaimed(file)
        for package, edits in sorted(self.removed.items()):
            if len(edits) <= MOST_REMOVED:
                self.found.edits += edits
            else:
                reason = f"it is not in the venv, as {len(edits)} files of {package} are not; the build puts it back"
                self.found.fates += [Fate(edit.path, "restored", 0, package, reason) for edit in edits]
        return self.found

    def _absent(self, path: str, claims: Sequence[tuple[PublishedWheel, PublishedFile]]) -> None:
        """A path that the venv has not, but a RECORD or a wheel."""
        if not claims:
            if path in self.scripts:  # else nothing puts it back: venv and build agree
                reason = "a script that is not in the venv; the build makes it"
                self.found.fates.append(Fate(path, "restored", 0, self.scripts[path], reason))
            elif path in self.disk.strays:
                file = self.disk.files[path]
                self._unexplained(file, self._owner(path), "a symbolic link that leads nowhere", "remove it")
            return
        wheel, row = claims[0]
        if len(claims) > 1:
            names = ", ".join(sorted(wheel.name for wheel, _ in claims))
            self.found.fates.append(
                Fate(path, "restored", 0, wheel.name, f"it is not in the venv, and {names} have it")
            )
        elif path.startswith(f"{wheel.dist_info}/"):
            folder = self.by_package[wheel.name].distribution.folder
            reason = "metadata that the venv has not; the build has it"
            if folder != wheel.dist_info and "/" in folder:
                reason = f"the venv has the metadata in `{folder.rpartition('/')[2]}`"
            kind: Kind = "made" if self._is_same_release(wheel) else "restored"
            self.found.fates.append(Fate(path, kind, 0, wheel.name, reason))
        elif problem := _unpatchable(row):
            self.found.fates.append(Fate(path, "restored", 0, wheel.name, f"it is not in the venv; {problem}"))
        else:
            self.removed[wheel.name].append(_edit(wheel, row, None))

    def _claimed(self, file: ObservedFile, claims: Sequence[tuple[PublishedWheel, PublishedFile]]) -> None:
        """A path that published wheels have."""
        path = file.path
        same = [wheel for wheel, row in claims if file.kind == "file" and row.sha256 == file.sha256]
        owner, row = next(((wheel, row) for wheel, row in claims if wheel in same), claims[0])
        # An edit parts what several packages have alike.
        if len({row.sha256 for _, row in claims}) > 1 or (len(claims) > 1 and not same):
            shown = self.disk.within_site(path) or path
            packages = tuple(sorted({wheel.name for wheel, _ in claims}))
            self.found.collisions.append(Collision(path=shown, owner=owner.name, packages=packages))
        if same:
            self.found.fates.append(Fate(path, "same", file.size, owner.name))
            return
        if file.kind != "file":
            self._not_a_file(file, owner.name)
        elif row.script and file.size <= MOST_TEXT_BYTES:
            self.found.scripts.append(Script(file.path, owner.name, file.sha256, file.size, member=row.member))
        elif path.startswith(f"{owner.dist_info}/"):
            self._metadata(file, owner, row)
        elif (problem := _unpatchable(row)) or file.size > MOST_TEXT_BYTES or row.size > MOST_TEXT_BYTES:
            self._unexplained(
                file,
                owner.name,
                f"it is not what {owner.label} has there; {problem or 'it is too large for a patch'}",
                "make a wheel of the package with the changed file, and give its folder with `--wheelhouse`",
            )
        else:
            self.found.edits.append(_edit(owner, row, file))

    def _unclaimed(self, file: ObservedFile) -> None:
        """A path that no attributed wheel has."""
        path = file.path
        folder, _, name = path.rpartition("/")
        attribution = self.by_folder.get(folder) or next(
            (self.by_folder[parent] for parent in sorted(parent_dirs([path])) if parent in self.by_folder), None
        )
        if attribution is not None:
            self._in_metadata(file, attribution, name if folder == attribution.distribution.folder else "")
            return
        if path in self.scripts:
            self._script(file, self.scripts[path])
            return
        alias = _ALIAS.fullmatch(path)
        if alias is not None and alias[1] in self.scripts and self.disk.is_as_recorded(path):
            reason = f"an alias of `{alias[1]}` that its installer made"
            self.found.fates.append(Fate(path, "made", file.size, self.scripts[alias[1]], reason))
            return
        package = self._owner(path)
        of_package = next(
            (self.by_folder[folder] for folder in self.disk.owners.get(path, ()) if folder in self.by_folder), None
        )
        if of_package is not None and of_package.wheel is None:
            self._unexplained(file, package, of_package.reason, of_package.advice)
        elif path in TOOL_FILES or self.disk.within_site(path) in TOOL_MODULES:
            self.found.fates.append(Fate(path, "made", file.size, "", "written by the tool that made the venv"))
        elif file.kind != "file":
            self._not_a_file(file, package)
        else:
            self._new_file(file, package)

    def _new_file(self, file: ObservedFile, package: str) -> None:
        """A file that nobody publishes at this path: in the folder of a package it may become part of a patch."""
        path = file.path
        inside = self.disk.within_site(path)
        owner = self._folder_owner(path)
        if inside and owner and not path_problem(inside) and file.size <= MOST_TEXT_BYTES:
            self.found.edits.append(
                Edit(
                    package=owner,
                    path=path,
                    member=inside,
                    base_sha256="",
                    base_size=0,
                    sha256=file.sha256,
                    size=file.size,
                    executable=file.executable,
                )
            )
            return
        reason, advice = _stray_words(path, inside)
        self._unexplained(file, package or owner, reason, advice)

    def _in_metadata(self, file: ObservedFile, attribution: Attribution, name: str) -> None:
        """A file of a metadata folder that its wheel has not."""
        wheel, package = attribution.wheel, attribution.distribution.name
        if wheel is None:
            self._unexplained(file, package, attribution.reason, attribution.advice)
            return
        if name in DROPPED_METADATA:
            self.found.fates.append(Fate(file.path, "made", file.size, package, "an installer writes it"))
            return
        rest = file.path.removeprefix(f"{attribution.distribution.folder}/")
        row = next((row for row in wheel.files if row.path == f"{wheel.dist_info}/{rest}"), None)
        if row is not None and self._is_same_release(wheel):
            if row.sha256 == file.sha256:
                reason = "the build has it in the folder that the published version is named by"
                self.found.fates.append(Fate(file.path, "made", file.size, package, reason))
            else:
                self._metadata(file, wheel, row)
            return
        self._unexplained(
            file,
            package,
            f"metadata of {attribution.distribution.folder.rpartition('/')[2]}, the build has that of {wheel.label}",
            "nothing to do: metadata follows the locked wheel",
        )

    def _metadata(self, file: ObservedFile, wheel: PublishedWheel, row: PublishedFile) -> None:
        if row.member.endswith(".dist-info/METADATA") and max(file.size, row.size) <= MOST_TEXT_BYTES:
            self.found.metadata.append(_edit(wheel, row, file))
            return
        self._unexplained(file, wheel.name, _METADATA_EDITED, _METADATA_ADVICE)

    def _script(self, file: ObservedFile, package: str) -> None:
        if file.kind == "file" and self.disk.is_as_recorded(file.path):
            self.found.fates.append(Fate(file.path, "made", file.size, package, "a script as its installer wrote it"))
            return
        name = file.path.removeprefix("bin/")
        targets = tuple(
            target
            for each in self.attributions
            if each.distribution.name == package
            for script, target in each.distribution.scripts
            if script == name
        )
        if file.kind == "file" and targets and file.size <= MOST_TEXT_BYTES:
            self.found.scripts.append(Script(file.path, package, file.sha256, file.size, targets=targets))
        else:
            self._unexplained(file, package, SCRIPT_CHANGED, SCRIPT_ADVICE)

    def _not_a_file(self, file: ObservedFile, package: str) -> None:
        what = {"link": "a symbolic link", "unreadable": "cannot be read"}.get(file.kind, "no ordinary file")
        advice = "wheels have no links: put a copy of the file into a package"
        self._unexplained(
            file, package, what if what != "a symbolic link" else f"{what}, which wheels have not", advice
        )

    def _unexplained(self, file: ObservedFile, package: str, reason: str, advice: str) -> None:
        self.found.fates.append(Fate(file.path, "unexplained", max(file.size, 0), package, reason, advice))

    def _owner(self, path: str) -> str:
        """The distribution whose RECORD names a path; empty if none does."""
        names = sorted(
            self.by_folder[folder].distribution.name
            for folder in self.disk.owners.get(path, ())
            if folder in self.by_folder
        )
        return names[0] if names else ""

    def _folder_owner(self, path: str) -> str:
        """The one package that a file's folder belongs to; empty if there are none or several."""
        folder = path.rpartition("/")[0]
        while folder and f"{folder}/" != self.disk.site:
            if folder in self.folders:
                return self.folders[folder]
            folder = folder.rpartition("/")[0]
        return ""

    def _is_same_release(self, wheel: PublishedWheel) -> bool:
        """Whether the dist-info says the version of the wheel, but for local parts."""
        distribution = self.by_package[wheel.name].distribution
        return same_version(distribution.version or distribution.folder_version, wheel.version)


SCRIPT_CHANGED = "a script that was changed after it was installed: the build writes its own"
SCRIPT_ADVICE = "give the changed script another name, in a wheel of its own"
_METADATA_EDITED = "metadata that was edited: patches do not reach it, the build has what was published"
_METADATA_ADVICE = "what was meant by a changed requirement belongs into [overrides]"


def _owned_folders(claims: dict[str, list[tuple[PublishedWheel, PublishedFile]]], site: str) -> dict[str, str]:
    """Folder below site-packages -> the package that has files there, itself or further below; empty if several have."""
    owners: dict[str, str] = {}
    for path, owned in claims.items():
        if not path.startswith(site):
            continue
        names = {wheel.name for wheel, _ in owned}
        folder = path.rpartition("/")[0]
        while len(folder) >= len(site):
            before = owners.get(folder)
            owner = next(iter(names)) if len(names) == 1 else ""
            if before in (owner, ""):
                break  # its parents know already
            owners[folder] = owner if before is None else ""
            folder = folder.rpartition("/")[0]
    return owners


def _edit(wheel: PublishedWheel, row: PublishedFile, file: ObservedFile | None) -> Edit:
    return Edit(
        package=wheel.name,
        path=file.path if file is not None else row.path,
        member=row.member,
        base_sha256=row.sha256,
        base_size=row.size,
        sha256=file.sha256 if file is not None else "",
        size=file.size if file is not None else 0,
        executable=row.executable,
    )


def _unpatchable(row: PublishedFile) -> str:
    """Why a patch may not change a file of a wheel; empty if it may."""
    problem = path_problem(row.member)
    if problem:
        return f"its path in the wheel {problem}, so that no patch reaches it"
    if is_binary_name(row.member):
        return "binary files are not patched"
    return ""


def is_binary_name(path: str) -> bool:
    """Whether a file is binary by its name: `libc10.so.1`, `kernel.cubin`."""
    name = path.rpartition("/")[2].lower()
    return name.endswith(BINARY_ENDINGS) or ".so." in name


def _stray_words(path: str, inside: str) -> tuple[str, str]:
    """Reason and advice for a file that belongs to no package."""
    own_wheel = "make a wheel of it, give its folder with `--wheelhouse`, and name the package in [packages]"
    if inside.endswith(".pth") and "/" not in inside:
        return (
            "a `.pth` file that no package brings",
            "put what it points to into a wheel, or into PYTHONPATH of the program",
        )
    if inside.startswith("__editable__") or inside.endswith(".egg-link"):
        return "it belongs to an editable install", own_wheel
    if inside:
        return "no package owns it: it was copied or written here by hand", own_wheel
    if path.startswith("bin/"):
        return "a program that no package brings", own_wheel
    return "no package owns it, and it lies outside of site-packages", own_wheel
