"""What RECORD says against what lies on disk: files that were changed, that are gone, that are not what their name says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.diagnosis.registry import rule
from envspec.diagnosis.symptom import Stage, symptom
from envspec.wording import counted, examples, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.facts import Severity
    from envspec.observed import ObservedDistribution, ObservedFile

LISTED = 10
"""So many edited files are named one by one."""

SMALLEST_ELF = 64
"""Bytes of the header of a 64-bit ELF file."""

_LIBRARY = re.compile(r".+\.so(\.[0-9]+)*", re.DOTALL)
_UNIMPORTANT = re.compile(
    r"(^|/)(tests?|docs?|examples?|benchmarks?|include|share|man)/|\.(pyi|md|rst|txt|html|h|hpp|cuh)$"
)
_LINKER_SCRIPT = re.compile(r"\s*(/\*|INPUT|GROUP|OUTPUT_FORMAT)")


@rule("edited-file")
def edited_file(scene: Scene) -> Iterable[Symptom]:
    """Files of a package have the bytes that its RECORD states.

    A file that two packages own is `owned-twice`'s, one of which RECORD was wrong from the beginning is `record-hash`'s. In a venv
    that envspec built, it is `drift`.

    Severity: info for sources, which people edit on purpose; warning for libraries; error if a file has lost its content, or if a
    failing run was raised in it.

    Why: an edit is known to whoever made it, and to nobody else: no tool says that a file is not what was installed. A library
    that was copied over another one belongs to another release, whatever the metadata says.

    Example:
        warning: torchvision 0.26.0 has 1 library that is not the one of its RECORD: `torchvision/_C.so`

    How to mend: nothing, if the edit is wanted: keep it as an overlay, so that it survives the next installation. Else install
    the package anew in the same version.
    """
    if scene.is_locked:
        return
    from envspec.diagnosis.rules.damage import is_cut_off  # noqa: PLC0415 - it needs this module

    for name, each in scene.chosen.items():
        yield from _edits(scene, name, [file for file in edits_of(scene, each) if not is_cut_off(file)])


@rule("drift")
def drift(scene: Scene) -> Iterable[Symptom]:
    """An environment that envspec built is what was built.

    Severity: error; info where something else explains the failure of a run.

    Why: it is read-only and the same on every host. Whoever changed a file made it another environment that no lock describes;
    `uv sync --check` and `pip check` say that all is well.

    Example:
        error: sglang 0.5.11 is not what envspec built: 1 file was changed: `sglang/srt/utils.py`

    How to mend: `envspec build --repair` makes it anew. Put a change that is wanted into an overlay.
    """
    if not scene.is_locked:
        return
    for name, each in scene.chosen.items():
        edits, gone = edits_of(scene, each), missing_of(each)
        parts = [
            f"{counted(len(files), 'file')} {'was' if len(files) == 1 else 'were'} {verb}: {examples([scene.shown(f.path) for f in files])}"
            for files, verb in ((edits, "changed"), (gone, "removed"))
            if files
        ]
        if not parts:
            continue
        yield symptom(
            "drift",
            "error",
            f"{scene.label(name)} is not what envspec built: {'; '.join(parts)}",
            packages=[name],
            stage=Stage.IMPORT if gone or any(file.size == 0 for file in edits) else Stage.NEVER,
            evidence=[
                *(_edit_line(scene, file) for file in edits),
                *(f"{scene.shown(file.path)} is gone" for file in gone),
            ],
            path=scene.shown((*edits, *gone)[0].path),
            paths=[file.path for file in (*edits, *gone)],
            modules=_modules(scene, gone),
            sonames=names_of(gone),
        )
    extra = sorted(path for path in scene.strays if path.startswith(f"{scene.site}/"))
    if extra:
        yield symptom(
            "drift",
            "error",
            f"the environment has {counted(len(extra), 'file')} that envspec did not put there: {examples([scene.shown(p) for p in extra])}",
            stage=Stage.NEVER,
            evidence=[scene.shown(path) for path in extra],
            path=scene.shown(extra[0]),
            paths=extra,
        )


@rule("missing-file")
def missing_file(scene: Scene) -> Iterable[Symptom]:
    """Every file that RECORD names is there.

    Severity: error for code; warning for other files; info for tests, documentation and headers, which images leave out to be
    small, and for an empty `__init__.py`, without which a folder is a package all the same. A package of which nothing is left is
    `lost-package`'s; in a venv that envspec built it is `drift`.

    Why: half of an uninstallation, a full disk, an interrupted copy, or another package that owned the same file and was
    uninstalled. `pip check` looks at metadata only and sees nothing.

    Example:
        error: numpy 2.3.5 lacks 1 file: `numpy/_core/_multiarray_umath.cpython-312-x86_64-linux-gnu.so`

    How to mend: install the package anew in the same version.
    """
    if scene.is_locked:
        return
    for name, each in scene.chosen.items():
        gone = missing_of(each)
        if not gone or is_lost(each):
            continue
        code = [file for file in gone if is_code(file.path) and not _is_empty_init(file)]
        rest = [file for file in gone if not is_code(file.path) and not _UNIMPORTANT.search(scene.shown(file.path))]
        severity: Severity = "error" if code else "warning" if rest else "info"
        ordered = sorted(gone, key=lambda file: (not is_code(file.path), file.path))
        shown = [scene.shown(file.path) for file in ordered]
        others = [file for file in edits_of(scene, each) if is_code(file.path)] if code else []
        mixed = f"{counted(len(others), 'file')} beside {'is' if len(others) == 1 else 'are'} not as RECORD says: of another release?"
        yield symptom(
            "missing-file",
            severity,
            f"{scene.label(name)} lacks {counted(len(gone), 'file')}: {examples(shown)}",
            packages=[name],
            stage=Stage.IMPORT if code else Stage.USE if rest else Stage.NEVER,
            evidence=[*([mixed] if others else []), *(absent_line(scene, file) for file in ordered)],
            path=shown[0],
            paths=[file.path for file in gone],
            modules=_modules(scene, gone),
            sonames=names_of(gone),
        )


@rule("lost-package")
def lost_package(scene: Scene) -> Iterable[Symptom]:
    """A package that has metadata has its files.

    Severity: error.

    Why: its folder was deleted and its `.dist-info` stayed. `pip list` shows it, `pip check` is content, `pip install` says that
    the requirement is already satisfied, and the import fails.

    Example:
        error: pybase64 1.4.3 is installed by its metadata, but none of its 9 files is there

    How to mend: install it anew in the same version, over what is left (`--reinstall`).
    """
    from envspec.diagnosis.rules.links import dead_links, is_dead  # noqa: PLC0415 - it needs this module

    yield from dead_links(scene)
    for name, each in scene.chosen.items():
        if is_lost(each) and not is_dead(each):
            gone = missing_of(each)
            yield symptom(
                "lost-package",
                "error",
                f"{scene.label(name)} is installed by its metadata, but none of its {counted(len(gone), 'file')} is there",
                packages=[name],
                stage=Stage.IMPORT,
                evidence=[
                    f"{scene.shown(each.folder)} is there",
                    *(f"{scene.shown(file.path)} is not" for file in gone),
                ],
                path=scene.shown(gone[0].path),
                paths=[*(file.path for file in gone), *(f"{scene.site}/{module}/" for module in each.top_level)],
                modules=scene.modules_of_project(name),
                sonames=names_of(gone),
            )


@rule("not-a-library")
def not_a_library(scene: Scene) -> Iterable[Symptom]:
    """A file with the name of a shared library is one.

    Severity: error.

    Why: the wheel format has no symbolic links. pip and uv write a text file that holds the target, so that a `libX.so` of 13
    bytes fails to load with `invalid ELF header` or `file too short`. A pointer of Git LFS, or an error page that was saved
    under the name, looks just the same.

    Example:
        error: links 1.0 has 1 file that is called a shared library and is none: `links/libx.so`

    How to mend: put the file itself there: use a release of the package that has it, or make the link by hand.
    """
    found: dict[str, list[ObservedFile]] = {}
    for name, each in scene.chosen.items():
        elf = {binary.path for binary in each.binaries.binaries}
        named = [file for file in each.files if file.kind == "file" and _LIBRARY.fullmatch(file.path)]
        false = [file for file in named if file.path not in elf and not _is_script(scene, file.path)]
        if elf or all(file.size < SMALLEST_ELF for file in false):  # else nothing was measured
            found[name] = false
    elf = {binary.path for binary in scene.observation.stray_binaries.binaries}
    for path, file in scene.strays.items():
        if file.kind == "file" and _LIBRARY.fullmatch(path) and path not in elf and file.size < SMALLEST_ELF:
            found.setdefault(scene.owner_of(path), []).append(file)
    for name, files in sorted(found.items()):
        if not files:
            continue
        shown = [scene.shown(file.path) for file in files]
        yield symptom(
            "not-a-library",
            "error",
            f"{scene.label(name) or 'the venv'} has {counted(len(files), 'file')} that {'is' if len(files) == 1 else 'are'} called a "
            f"shared library and {'is' if len(files) == 1 else 'are'} none: {examples(shown)}",
            packages=[name] if name else [],
            stage=Stage.IMPORT,
            evidence=[_not_elf_line(scene, file) for file in files],
            path=shown[0],
            paths=[file.path for file in files],
            modules=_modules(scene, files),
            sonames=names_of(files),
        )


def edits_of(scene: Scene, distribution: ObservedDistribution) -> list[ObservedFile]:
    """The files of a distribution that somebody changed: not those that are another package's by their bytes, or never were right."""
    from envspec.diagnosis.installed import never_right  # noqa: PLC0415 - it needs rules of layout that only this needs

    wrong = never_right(distribution)
    found = []
    for file in distribution.files:
        if not file.is_edited or file.path in wrong or file.path == f"{distribution.folder}/RECORD":
            continue
        if is_of_the_system(distribution) and _LIBRARY.fullmatch(file.path):
            continue  # a distribution strips them after RECORD was written
        others = [row for each, row in scene.rows.get(file.path, ()) if each is not distribution]
        if any(row.recorded == row.sha256 for row in others):
            continue
        found.append(file)
    return found


def missing_of(distribution: ObservedDistribution) -> list[ObservedFile]:
    """The files of a distribution that are not there; bytecode and what an installer writes for itself are left out.

    So is a row without a digest where others have one: it is where RECORD was cut off.
    """
    any_digest = any(file.recorded for file in distribution.files)
    place = distribution.folder.rpartition("/")[0] if is_of_the_system(distribution) else ""
    return [
        file
        for file in distribution.files
        if file.kind == "missing"
        and (file.recorded or not any_digest or file.target)
        and (not place or (file.path.startswith(f"{place}/") and file.path.endswith(".py")))
        and not file.path.startswith("/")
        and "__pycache__" not in file.path
        and not file.path.endswith((".pyc", "/RECORD.jws", "/RECORD.p7s", "/uv_cache.json"))
    ]


def is_of_the_system(distribution: ObservedDistribution) -> bool:
    """Whether a package is one of a Linux distribution, which moves its programs and strips its libraries."""
    return "/dist-packages/" in distribution.folder


def is_lost(distribution: ObservedDistribution) -> bool:
    """Whether nothing is there but metadata, although there was more."""
    # An absolute path is no file of the venv, and says nothing about what is there: some wheels have no others.
    own = [file for file in distribution.files if not file.path.startswith((f"{distribution.folder}/", "/"))]
    payload = [file for file in own if not file.path.startswith("bin/") and "__pycache__" not in file.path]
    return bool(payload) and all(file.kind == "missing" for file in payload) and bool(missing_of(distribution))


def is_mixed(scene: Scene, distribution: ObservedDistribution) -> bool:
    """Whether the files of a package are of another release than its metadata: half of its code is not as RECORD says, and some is missing.

    Somebody who edits a package on purpose edits a small part of it, and removes nothing.
    """
    gone = sum(file.kind == "missing" and is_code(file.path) for file in distribution.files)
    if not gone:
        return False
    others = sum(is_code(file.path) and file.size > 0 for file in edits_of(scene, distribution))
    there = sum(file.kind == "file" and is_code(file.path) for file in distribution.files)
    return others > 0 and others * 2 >= there


def is_code(path: str) -> bool:
    """Whether Python or the linker loads a file, and not only a test of it."""
    return not _UNIMPORTANT.search(path) and (path.endswith((".py", ".pth")) or _LIBRARY.fullmatch(path) is not None)


def module_of(scene: Scene, path: str) -> str:
    """The module that a file is: `torch._C`; empty if it is none."""
    shown = scene.shown(path)
    folder, _, name = shown.rpartition("/")
    if path == shown or not (name.endswith(".py") or _LIBRARY.fullmatch(name)):
        return ""
    stem = name.partition(".")[0]
    parts = [*folder.split("/"), *([] if stem == "__init__" else [stem])] if folder else [stem]
    return ".".join(parts) if all(part.isidentifier() for part in parts) else ""


def listed(paths: Sequence[str]) -> str:
    """All paths, since whoever edited them looks for each; of very many the first few."""
    return joined([f"`{path}`" for path in paths]) if len(paths) <= LISTED else examples(paths)


def _edits(scene: Scene, name: str, edits: Sequence[ObservedFile]) -> Iterator[Symptom]:
    emptied = [file for file in edits if file.size == 0 and file.recorded_size > 0 and is_code(file.path)]
    libraries = [file for file in edits if file not in emptied and _LIBRARY.fullmatch(file.path)]
    rest = [file for file in edits if file not in emptied and file not in libraries]
    kinds: tuple[tuple[Sequence[ObservedFile], Severity, Stage, str, str], ...] = (
        (emptied, "error", Stage.IMPORT, "file that is empty", "files that are empty"),
        (
            libraries,
            "warning",
            Stage.USE,
            "library that is not the one of its RECORD",
            "libraries that are not those of its RECORD",
        ),
        (
            rest,
            "info",
            Stage.NEVER,
            "file that was changed since it was installed",
            "files that were changed since they were installed",
        ),
    )
    for files, severity, stage, one, many in kinds:
        if not files:
            continue
        shown = [scene.shown(file.path) for file in files]
        yield symptom(
            "edited-file",
            severity,
            f"{scene.label(name)} has {counted(len(files), one, many)}: {listed(shown)}",
            packages=[name],
            stage=stage,
            evidence=[_edit_line(scene, file) for file in files],
            path=shown[0],
            paths=[file.path for file in files],
            modules=_modules(scene, files),
            sonames=names_of(files),
        )


def _edit_line(scene: Scene, file: ObservedFile) -> str:
    was = f" of {file.recorded_size} bytes" if file.recorded_size >= 0 else ""
    return (
        f"{scene.shown(file.path)}: {file.size} bytes, sha256 {file.sha256[:12]}; RECORD has {file.recorded[:12]}{was}"
    )


def _is_empty_init(file: ObservedFile) -> bool:
    """Whether a file does no more than make a package of a folder, which Python does without it."""
    return file.recorded_size == 0 and file.path.endswith("/__init__.py")


def absent_line(scene: Scene, file: ObservedFile) -> str:
    """That a file is not there, as evidence."""
    shown = scene.shown(file.path)
    if file.target:
        return f"{shown} is a link to {file.target}, which is not there"
    return f"{shown} is in its RECORD and not on disk"


def _not_elf_line(scene: Scene, file: ObservedFile) -> str:
    text = scene.observation.texts.get(file.path, "")
    says = f": it says `{text.strip()[:80]}`" if text.strip() else ""
    return f"{scene.shown(file.path)} has {counted(file.size, 'byte')} and does not begin as an ELF file does{says}"


def _is_script(scene: Scene, path: str) -> bool:
    """Whether a file that is no ELF file is one for the linker that makes programs."""
    return _LINKER_SCRIPT.match(scene.observation.texts.get(path, "")) is not None


def _modules(scene: Scene, files: Iterable[ObservedFile]) -> list[str]:
    return [module for file in files if (module := module_of(scene, file.path))]


def names_of(files: Iterable[ObservedFile]) -> list[str]:
    """The names under which libraries are needed."""
    return [file.path.rpartition("/")[2] for file in files if _LIBRARY.fullmatch(file.path)]
