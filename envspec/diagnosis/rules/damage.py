"""Files that are there and yet cannot serve: cut off, replaced by a pointer, not to be read, edited under all of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.files import edits_of, is_code, is_mixed, module_of
from envspec.diagnosis.symptom import Stage, symptom
from envspec.wording import counted, examples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.observed import ObservedFile

_LEAST_RECORDED = 1000
_MUCH_SMALLER = 4
_POINTER_BYTES = range(120, 141)
"""What a pointer of Git LFS has: its version, a sha256, and a size."""


def is_cut_off(file: ObservedFile) -> bool:
    """Whether data has lost most of its bytes; code that has is `edited-file`'s or `damaged-binary`'s."""
    return (
        file.is_edited
        and not is_code(file.path)
        and ".dist-info/" not in file.path
        and file.recorded_size >= _LEAST_RECORDED
        and file.size * _MUCH_SMALLER <= file.recorded_size
    )


@rule("cut-off-file")
def cut_off_file(scene: Scene) -> Iterable[Symptom]:
    """Data of a package has about as many bytes as it was installed with.

    Severity: warning; error if a failing run was in that package.

    Why: a full disk cuts files off, and a copy out of a checkout may bring pointers of Git LFS in place of the files. What is said
    then is `Expecting value: line 1 column 1`, or `invalid magic number`, in a reader that has nothing to do with it.

    Example:
        warning: speaker 0.9 has 1 file that lost most of its bytes: `speaker/voices.json`

    How to mend: install the package anew in the same version.
    """
    if scene.is_locked:
        return
    for name, each in scene.chosen.items():
        cut = [file for file in edits_of(scene, each) if is_cut_off(file)]
        if not cut:
            continue
        shown = [scene.shown(file.path) for file in cut]
        yield symptom(
            "cut-off-file",
            "warning",
            f"{scene.label(name)} has {counted(len(cut), 'file')} that lost most of {'its' if len(cut) == 1 else 'their'} bytes: "
            f"{examples(shown)}",
            packages=[name],
            stage=Stage.USE,
            evidence=[_cut_line(scene, file) for file in cut],
            path=shown[0],
            paths=[file.path for file in cut],
        )


@rule("unreadable-file")
def unreadable_file(scene: Scene) -> Iterable[Symptom]:
    """Every file of a package can be read by the user who looks.

    Severity: error for code; warning for other files.

    Why: `sudo pip install` with a strict umask, or a copy by another user, leaves files that only their owner may read. Python says
    `PermissionError`, or that there is no such module; whoever looks as root sees nothing wrong.

    Example:
        error: 3 files of closed 1.0 cannot be read by this user: `closed/core.py`, ...

    How to mend: give the files to the user, or let all read them (`chmod -R a+rX`).
    """
    for name, each in scene.chosen.items():
        closed = [file for file in each.files if file.kind == "unreadable" and not file.path.startswith(("/", "bin/"))]
        closed = [
            file for file in closed if scene.link_above(file.path) is None
        ]  # what lies behind a link is not looked at
        if not closed:
            continue
        code = [file for file in closed if is_code(file.path)]
        shown = [scene.shown(file.path) for file in (*code, *(file for file in closed if file not in code))]
        yield symptom(
            "unreadable-file",
            "error" if code else "warning",
            f"{counted(len(closed), 'file')} of {scene.label(name)} cannot be read by this user: {examples(shown)}",
            packages=[name],
            stage=Stage.IMPORT if code else Stage.USE,
            evidence=[f"{path} cannot be read" for path in shown],
            path=shown[0],
            paths=[file.path for file in closed],
            modules=[module for file in code if (module := module_of(scene, file.path))],
            sonames=[path.rpartition("/")[2] for path in shown if ".so" in path],
        )


@rule("poisoned-file")
def poisoned_file(scene: Scene) -> Iterable[Symptom]:
    """A file that was edited in place has no other names.

    Severity: warning.

    Why: uv links files from its cache, and a store of envspec from its objects. Whoever edits such a file in place edits every
    environment that shares it, and every one that is made from the cache later: with `--link-mode clone` on ext4 too, which links
    without a word.

    Example:
        warning: 1 edited file of sglang 0.5.11 has 3 names: the same edit is in uv's cache, or in other venvs: `sglang/utils.py`

    How to mend: `uv cache clean NAME`, and install the package anew wherever the file is shared (`find -samefile` lists the
    places). Edit a copy that takes the file's place, not the file.
    """
    for name, each in scene.chosen.items():
        shared = [file for file in edits_of(scene, each) if file.links > 1]
        if not shared or is_mixed(scene, each):  # those are files of another release, as it was published
            continue
        most = max(file.links for file in shared)
        shown = [scene.shown(file.path) for file in shared]
        yield symptom(
            "poisoned-file",
            "warning",
            f"{counted(len(shared), 'edited file')} of {scene.label(name)} {'has' if len(shared) == 1 else 'have'} {most} names: the same "
            f"edit is in uv's cache, or in other venvs: {examples(shown)}",
            packages=[name],
            stage=Stage.NEVER,
            evidence=[
                *(f"{scene.shown(file.path)} has {file.links} names, and not the bytes of RECORD" for file in shared),
                *(f"`find / -xdev -samefile {scene.observation.prefix}/{file.path}` lists them" for file in shared[:1]),
            ],
            path=shown[0],
            paths=[file.path for file in shared],
        )


def _cut_line(scene: Scene, file: ObservedFile) -> str:
    pointer = ", as a pointer of Git LFS has" if file.size in _POINTER_BYTES else ""
    return f"{scene.shown(file.path)} has {counted(file.size, 'byte')}{pointer}; RECORD has {file.recorded_size}"
