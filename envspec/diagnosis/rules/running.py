"""What a failed run says by itself: modules and names that are not there, crashes, hangs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from envspec.diagnosis.offers import may_name
from envspec.diagnosis.registry import rule
from envspec.diagnosis.symptom import Stage, symptom
from envspec.diagnosis.telling import last_frame, shown_raise, tellings_of
from envspec.forms import normalise_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.traced import Raised, Traced

REMOVED = {
    "asynchat": "3.12", "asyncore": "3.12", "distutils": "3.12", "imp": "3.12", "smtpd": "3.12",
    "aifc": "3.13", "audioop": "3.13", "cgi": "3.13", "cgitb": "3.13", "chunk": "3.13", "crypt": "3.13", "imghdr": "3.13",
    "mailcap": "3.13", "msilib": "3.13", "nis": "3.13", "nntplib": "3.13", "ossaudiodev": "3.13", "pipes": "3.13", "sndhdr": "3.13",
    "spwd": "3.13", "sunau": "3.13", "telnetlib": "3.13", "uu": "3.13", "xdrlib": "3.13",
}  # fmt: skip
"""Module of the standard library -> the Python that no longer has it (PEP 594, 632 and the notes of 3.12)."""

BUILT_WITH = {
    "_bz2": "libbz2", "_ctypes": "libffi", "_curses": "ncurses", "_dbm": "gdbm", "_lzma": "liblzma", "_sqlite3": "SQLite",
    "_ssl": "OpenSSL", "_tkinter": "Tk", "_zstd": "libzstd", "readline": "readline", "zlib": "zlib",
}  # fmt: skip
"""Module of the standard library -> what an interpreter that lacks it was built without."""

_BAD_BYTECODE = re.compile(r"bad magic number|marshal data too short|bad marshal data|bad local file header")
_FAULT_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)


@rule("module-missing")
def module_missing(scene: Scene) -> Iterable[Symptom]:
    """Every module that a run imports is there.

    Severity: error. Only where a run ended by it: an import that was tried and given up is nobody's fault.

    Why: the requirement was never declared, belongs to an extra that nobody asked for, or moved to another package. What is
    missing is the package that publishes the module, which often has another name.

    Example:
        error: there is no module `pybase64`, which sglang 0.5.11 imports in `sglang/srt/utils/common.py`

    How to mend: install the package that publishes it; if the module belongs to an installed package of another release, that
    release.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    for raised in traced.chain:
        if raised.type.rpartition(".")[2] != "ModuleNotFoundError":
            continue
        for module in tellings_of(raised, scene).missing_modules:
            yield from _missing(scene, raised, module)
    for raised in traced.chain:
        for project in sorted(tellings_of(raised, scene).missing_projects - scene.wheels.keys()):
            asker = raised_in(scene, raised)
            yield symptom(
                "module-missing",
                "error",
                f"{project} is not installed, of which {scene.label(asker) if asker else 'the run'} asks the version",
                packages=[project, *([asker] if asker else [])],
                stage=Stage.IMPORT,
                evidence=[shown_raise(raised), *place_of(scene, raised), *stated_needs(scene, asker, project)],
                path=last_frame(raised, scene),
                modules=scene.modules_of_project(project),
            )


@rule("bad-bytecode")
def bad_bytecode(scene: Scene) -> Iterable[Symptom]:
    """Bytecode that Python loads is whole, and for this Python.

    Severity: error. Only where a run ended by it.

    Why: a full disk or a crash cuts a `.pyc` off, and a copied `__pycache__` may be of another interpreter. Python believes a `.pyc`
    whose time or hash fits, and fails inside it although the source beside it is right.

    Example:
        error: bytecode of numpy 2.3.5 cannot be loaded: marshal data too short

    How to mend: delete the `__pycache__` folders of the package; Python writes them anew.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    for raised in traced.chain:
        if not _BAD_BYTECODE.search(f"{raised.type}: {raised.message}"):
            continue
        owner = scene.owner_of_module(raised.importing[-1]) if raised.importing else raised_in(scene, raised)
        whose = scene.label(owner) if owner in scene.wheels else "a module"
        yield symptom(
            "bad-bytecode",
            "error",
            f"bytecode of {whose} cannot be loaded: {raised.message[:100]}",
            packages=[owner] if owner in scene.wheels else [],
            stage=Stage.IMPORT,
            evidence=[shown_raise(raised), *place_of(scene, raised)],
        )
        return


@rule("run-failed")
def run_failed(scene: Scene) -> Iterable[Symptom]:
    """The run ends well.

    Severity: error. It stands alone only where nothing in the venv explains how the run ended.

    Why: the fault may lie in the program itself, in a setting, or in something that cannot be seen from files.

    Example:
        error: the run of app.py ended with ValueError: unknown attention backend `fa9`

    How to mend: look at the frame in which it was raised.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    last = traced.chain[-1] if traced.chain else None
    if traced.ending in ("crash", "timeout"):
        yield from _stopped(scene, traced)
        return
    owner = raised_in(scene, last) if last else ""
    said = shown_raise(last) if last else traced.detail or traced.ending
    yield symptom(
        "run-failed",
        "error",
        f"the run of {traced.target} ended with {said}",
        packages=[owner] if owner else [],
        stage=Stage.USE,
        evidence=[*(place_of(scene, last) if last else []), *traced.messages[-3:]],
        path=last_frame(last, scene) if last else "",
    )


def _missing(scene: Scene, raised: Raised, module: str) -> Iterator[Symptom]:
    top = module.partition(".")[0]
    importer = raised_in(scene, raised)
    who = scene.label(importer) if importer else "the run"
    where = last_frame(raised, scene)
    place = f"{who} imports in `{where}`" if where else f"{who} imports"
    evidence = [shown_raise(raised), *place_of(scene, raised)]
    target = scene.traced.target if scene.traced is not None else ""
    if scene.observation.environ.get("PYTHONSAFEPATH") and not importer and target.endswith(".py"):
        folder = target.rpartition("/")[0]
        evidence.insert(1, f"PYTHONSAFEPATH is set: the folder of the script, `{folder}`, is not searched")
    if top in REMOVED or top in BUILT_WITH:
        reason = (
            f"Python {REMOVED[top]} and later do not have it"
            if top in REMOVED
            else f"this interpreter was built without {BUILT_WITH[top]}"
        )
        yield symptom(
            "module-missing",
            "error",
            f"there is no module `{top}`, which {place}: {reason}",
            packages=[importer] if importer else [],
            stage=Stage.IMPORT,
            evidence=evidence,
            path=where,
            modules=[module],
        )
        return
    if scene.has_module(module):
        return  # it is there: whatever keeps it from being imported is another rule's
    owner = scene.owner_of_module(module)
    if scene.has_module(top) or owner in scene.chosen:
        if owner == importer or owner not in scene.wheels:
            return
        message = f"{scene.label(owner)} has no module `{module}`, which {place}"
        packages = [owner, importer]
    else:
        message = f"there is no module `{module}`, which {place}"
        packages = [owner, importer]
        whose = (
            f"{owner} publishes a module of this name"
            if may_name(scene, module, owner)
            else f"by its name it may be of {owner}"
        )
        evidence += [f"{whose}, which is not in the venv"]
    yield symptom(
        "module-missing",
        "error",
        message,
        packages=[each for each in packages if each],
        stage=Stage.IMPORT,
        evidence=[*evidence, *stated_needs(scene, importer, owner)],
        path=where,
        modules=[module],
    )


def _stopped(scene: Scene, traced: Traced) -> Iterator[Symptom]:
    frames = [
        (file, line, function) for message in traced.messages for file, line, function in _FAULT_FRAME.findall(message)
    ]
    owners = [scene.owner_of(scene.relative(file)) for file, _, _ in frames]
    owner = next((each for each in owners if each), "")
    doing = "crashed" if traced.ending == "crash" else "did not end"
    within = f" in {scene.label(owner)}" if owner else ""
    yield symptom(
        "run-failed",
        "error",
        f"the run of {traced.target} {doing}{within}: {traced.detail}",
        packages=[owner] if owner else [],
        stage=Stage.IMPORT,
        evidence=[*(f"{file}:{line} in {function}" for file, line, function in frames[:5]), *traced.messages[-2:]],
        paths=[path for file, _, _ in frames[:1] if (path := scene.relative(file))],
        path=scene.shown(scene.relative(frames[0][0])) if frames else "",
    )


def raised_in(scene: Scene, raised: Raised) -> str:
    """The project whose code raised; frames of Python's own import machinery do not count."""
    for frame in reversed(raised.frames):
        path = scene.relative(frame.file)
        if path:
            return scene.owner_of(path)
        if not frame.file.startswith("<frozen") and "/importlib/" not in frame.file:
            return ""
    return ""


def place_of(scene: Scene, raised: Raised) -> list[str]:
    """Where an exception was raised, and in the import of what, as evidence."""
    frame = next((frame for frame in reversed(raised.frames) if not frame.file.startswith("<frozen")), None)
    chain = [f"importing {' > '.join(raised.importing)}"] if raised.importing else []
    if frame is None:
        return chain
    path = scene.relative(frame.file)
    within = f", in {frame.function}" if frame.function else ""  # a syntax error is in none
    return [f"{scene.shown(path) if path else frame.file}:{frame.line}{within}", *chain]


def stated_needs(scene: Scene, requirer: str, required: str) -> list[str]:
    """What a package says that it needs of another one."""
    there = scene.chosen.get(requirer)
    found = []
    for line in there.requires_dist if there else ():
        try:
            requirement = Requirement(line)
        except (InvalidRequirement, RecursionError):
            continue
        if normalise_name(requirement.name) == required:
            found.append(f"{requirer} METADATA: Requires-Dist: {line}")
    return found or (
        [f"{scene.label(requirer)} does not say that it needs {required}"] if there and required != requirer else []
    )
