"""Releases that do not go with each other, as a failed run tells: names that are gone, keywords, generated code, another numpy."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from envspec.diagnosis.modules import projects_of
from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.running import place_of, raised_in, stated_needs
from envspec.diagnosis.scene import MODULE_SUFFIXES
from envspec.diagnosis.symptom import Stage, symptom
from envspec.diagnosis.telling import last_frame, shown_raise
from envspec.forms import normalise_name
from envspec.wording import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.traced import Raised

_CANNOT_IMPORT = re.compile(r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'")
_NO_ATTRIBUTE = re.compile(r"(?:partially initialized )?module '([^']+)' has no attribute '([^']+)'")
_NUMPY_ABI = re.compile(
    r"compiled using NumPy 1\.x cannot be run|numpy\.dtype size changed|numpy\.core\.multiarray failed to import"
    r"|module compiled against (?:ABI|API) version"
)
_WRONG_CALL = re.compile(
    r"(?P<callee>[\w.]{1,200})\(\) (?:got an unexpected keyword argument '(?P<keyword>\w+)'"
    r"|takes (?:from \d+ to )?\d+ positional arguments? but \d+ (?:was|were) given|missing \d+ required [\w-]+ arguments?)"
)
_GENCODE = re.compile(
    r"(?P<file>\S{1,200}\.proto\S{0,20})?:? gencode (?P<gencode>\d[\d.]*\d) runtime (?P<runtime>\d[\d.]*\d)", re.DOTALL
)
_OLD_GENCODE = re.compile(r"Descriptors cannot (?:not )?be created directly")
_STATED_PAIR = re.compile(
    r"installed (?P<part>[\w.-]+) version \(?(?P<has>\d[\w.+]*)\)? is incompatible with the current (?P<whole>[\w.-]+) version, "
    r"which requires (?P<wants>\d[\w.+]*\w)"
)
_QUOTED = re.compile(r"[`'\"]([A-Za-z_][\w.]{0,200})[`'\"]")
_OF_PROTOBUF = "protobuf"


@rule("name-missing")
def name_missing(scene: Scene) -> Iterable[Symptom]:
    """Every name that a run takes from a module is there.

    Severity: error. Only where a run ended by it.

    Why: two packages are of releases that do not fit, and no requirement says so; or one of the two is not whole.

    Example:
        error: transformers 5.6.0 takes `LayerRepository` from kernels 0.17.2, which has no such name

    How to mend: choose releases that were tested with each other.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    for raised in traced.chain:
        found, lacking = _CANNOT_IMPORT.search(raised.message), _NO_ATTRIBUTE.search(raised.message)
        name, module = (found[1], found[2]) if found else (lacking[2], lacking[1]) if lacking else ("", "")
        if not module:
            continue
        giver, taker = scene.owner_of_module(module), raised_in(scene, raised)
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or giver not in scene.wheels:
            if giver not in scene.wheels and top not in scene.foreign_modules and top not in sys.stdlib_module_names:
                yield from _empty_folder(scene, raised, top)
            continue
        who = scene.label(taker) if taker else "the run"
        source = f"from {scene.label(giver)}, which has no such name"
        if raised.path.startswith("/") and not scene.relative(raised.path):
            source = f"from `{raised.path}`, which has no such name"
        if taker == giver:
            source = f"from its own `{module}`, where it is not: the package is not whole, or not of one release"
        yield symptom(
            "name-missing",
            "error",
            f"{who} takes `{name}` {source}",
            packages=[giver, *([taker] if taker and taker != giver else [])],
            stage=Stage.IMPORT,
            evidence=[shown_raise(raised), *place_of(scene, raised), *stated_needs(scene, taker, giver)],
            path=last_frame(raised, scene),
            modules=[module, f"{module}.{name}"],
        )
    for raised in traced.chain:
        yield from _refused(scene, raised)
        yield from _wrong_call(scene, raised)
        yield from _stated_pair(scene, raised)


def _empty_folder(scene: Scene, raised: Raised, top: str) -> Iterator[Symptom]:
    """A module without a file: a folder of its name, with no `__init__.py`, is taken for it where the package is not installed."""
    traced = scene.traced
    files = [file for name, file in (traced.modules if traced is not None else ()) if name == top]
    if not files or any(file.endswith(MODULE_SUFFIXES) for file in files):
        yield from _object_without(scene, raised)
        return
    folder = f"`{files[0]}`" if files[0] else f"a folder `{top}`"
    project = projects_of(top)[0]
    who = raised_in(scene, raised)
    yield symptom(
        "module-missing",
        "error",
        f"{project} is not in the venv, and {folder}, a folder without `__init__.py`, is taken for it",
        packages=[project, *([who] if who else [])],
        stage=Stage.IMPORT,
        evidence=[
            shown_raise(raised),
            *place_of(scene, raised),
            f"Python makes a namespace of any folder `{top}` on the import path where no module of that name is found",
        ],
        path=last_frame(raised, scene),
        modules=[top],
    )


def _object_without(scene: Scene, raised: Raised) -> Iterator[Symptom]:
    """A module that is no file, as the `lib` of cffi is: it belongs to some package that the taker requires."""
    lacking = _NO_ATTRIBUTE.search(raised.message)
    taker = raised_in(scene, raised)
    if lacking is None or taker not in scene.chosen:
        return
    needs = sorted(name for name in _direct_needs(scene, taker) if name in scene.chosen)
    yield symptom(
        "name-missing",
        "error",
        f"{scene.label(taker)} takes `{lacking[2]}` from `{lacking[1]}`, which has no such name: it was made for another release of what it "
        "calls",
        packages=[taker],
        stage=Stage.IMPORT,
        evidence=[
            shown_raise(raised),
            *place_of(scene, raised),
            *([f"it requires {joined([scene.label(name) for name in needs[:8]])}"] if needs else []),
        ],
        path=last_frame(raised, scene),
    )


def _refused(scene: Scene, raised: Raised) -> Iterator[Symptom]:
    """A name that a package refuses by its own `__getattr__`: `np.float_` was removed in the NumPy 2.0 release."""
    owners = [scene.owner_of(scene.relative(frame.file)) for frame in raised.frames]
    asked = [number for number, frame in enumerate(raised.frames) if frame.function == "__getattr__"]
    if not asked or _NO_ATTRIBUTE.search(raised.message) or _CANNOT_IMPORT.search(raised.message):
        return
    at = asked[-1]
    giver = owners[at]
    if not giver or any(owner != giver for owner in owners[at:]):
        return
    taker = next((owner for owner in reversed(owners[:at]) if owner not in ("", giver)), "")
    outer = next((frame.file for frame in reversed(raised.frames[:at]) if not frame.file.startswith("<frozen")), "")
    if not taker and (not outer or scene.relative(outer)):
        return
    said = _QUOTED.search(raised.message)
    name = said[1] if said else "a name"
    yield symptom(
        "name-missing",
        "error",
        f"{scene.label(taker) if taker else 'the run'} takes `{name}` from {scene.label(giver)}, which no longer has it",
        packages=[giver, *([taker] if taker else [])],
        stage=Stage.IMPORT,
        evidence=[
            shown_raise(raised),
            *(f"taken in {scene.shown(scene.relative(outer)) or outer}" for _ in (1,) if outer),
            *stated_needs(scene, taker, giver),
        ],
        path=last_frame(raised, scene),
        modules=scene.modules_of_project(giver),
    )


def _wrong_call(scene: Scene, raised: Raised) -> Iterator[Symptom]:
    """A call that the callee does not take, right in the code of a package: its own parts do not call each other so."""
    found = _WRONG_CALL.search(raised.message)
    caller = raised_in(scene, raised)
    if found is None or raised.type.rpartition(".")[2] != "TypeError" or caller not in scene.chosen:
        return
    needs = sorted(name for name in _direct_needs(scene, caller) if name in scene.chosen)
    given = (
        f" with `{found['keyword']}`, which it does not take" if found["keyword"] else " in a way that it does not take"
    )
    yield symptom(
        "name-missing",
        "error",
        f"{scene.label(caller)} calls `{found['callee']}`{given}: it was made for another release of what it calls",
        packages=[caller],
        stage=Stage.USE,
        evidence=[
            shown_raise(raised),
            *place_of(scene, raised),
            *([f"it requires {joined([scene.label(name) for name in needs[:8]])}"] if needs else []),
        ],
        path=last_frame(raised, scene),
    )


def _stated_pair(scene: Scene, raised: Raised) -> Iterator[Symptom]:
    """A package that compares its parts itself, and finds other versions in their code than their metadata says."""
    found = _STATED_PAIR.search(raised.message)
    part = normalise_name(found["part"]) if found else ""
    if found is None or part not in scene.chosen:
        return
    stated = scene.chosen[part].version
    differs = f"; its metadata says {stated}" if stated and stated != found["has"] else ""
    yield symptom(
        "version-inside" if differs else "name-missing",
        "error",
        f"{part} is {found['has']} by its own code, and {normalise_name(found['whole'])} requires {found['wants']}{differs}",
        packages=[part, normalise_name(found["whole"])],
        stage=Stage.IMPORT,
        evidence=[shown_raise(raised), *place_of(scene, raised)],
        path=last_frame(raised, scene),
        modules=scene.modules_of_project(part),
    )


def _direct_needs(scene: Scene, project: str) -> set[str]:
    from envspec.diagnosis.requirements import requirements_of  # noqa: PLC0415 - grouping brings it as well

    return requirements_of(scene, project)


@rule("generated-code")
def generated_code(scene: Scene) -> Iterable[Symptom]:
    """Code that protoc generated is of a release that the protobuf of the venv reads.

    Severity: error. Only where a run ended by it.

    Why: a `_pb2.py` needs a protobuf that is at least as new as the protoc that wrote it, of the same major or the next one; one that a
    protoc before 3.19 wrote needs a protobuf before 4. Requirements rarely say so, and the traceback ends in protobuf, which is whole.

    Example:
        error: wire.proto was compiled for protobuf 6.31.1, the venv has protobuf 5.29.5

    How to mend: use a protobuf that is new enough; where the code is too old, a release of the package that was compiled anew.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    for raised in traced.chain:
        found, old = _GENCODE.search(raised.message), _OLD_GENCODE.search(raised.message)
        if not found and not old:
            continue
        owners = [scene.owner_of(scene.relative(frame.file)) for frame in raised.frames]
        runtime = _OF_PROTOBUF if _OF_PROTOBUF in owners else next((each for each in reversed(owners) if each), "")
        user = next((owner for owner in reversed(owners) if owner not in ("", runtime)), "")
        label = scene.label(runtime) if runtime else f"protobuf {found['runtime'] if found else ''}".strip()
        if found:
            what = found["file"] or "generated code"
            whose = f" of {scene.label(user)}" if user else ""
            message = (
                f"{what}{whose} was compiled for {runtime or _OF_PROTOBUF} {found['gencode']}, the venv has {label}"
            )
            packages = [runtime, user]
        else:
            whose = scene.label(user) if user else "the run"
            message = f"the generated code of {whose} is of a protoc before 3.19, which {label} does not read"
            packages = [user, runtime] if user else [runtime]
        yield symptom(
            "generated-code",
            "error",
            message,
            packages=[each for each in packages if each],
            stage=Stage.IMPORT,
            evidence=[shown_raise(raised), *place_of(scene, raised), *stated_needs(scene, user, runtime)],
            path=last_frame(raised, scene),
            modules=scene.modules_of_project(runtime) if runtime else (),
        )
        return


@rule("binary-interface")
def binary_interface(scene: Scene) -> Iterable[Symptom]:
    """Extension modules are built for the numpy of the venv.

    Severity: error. Only where a run ended by it.

    Why: numpy 2 changed what extension modules see of it. One that was built with numpy 1 says so when it is imported, or
    crashes; its metadata often allows any numpy.

    Example:
        error: scipy 1.11.0 was built for another numpy than 2.3.5

    How to mend: use a release of the package that is built for this numpy, or an older numpy.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    said = [raised for raised in (*traced.chain, *traced.swallowed) if _NUMPY_ABI.search(raised.message)]
    heard = next((line for line in traced.messages if _NUMPY_ABI.search(line)), "")
    if not said and not heard:
        return
    owner = raised_in(scene, said[0]) if said else ""
    if owner in ("", "numpy") and said:
        owners = [scene.owner_of(scene.relative(frame.file)) for frame in said[0].frames]
        owner = next((each for each in reversed(owners) if each not in ("", "numpy")), "")
    yield symptom(
        "binary-interface",
        "error",
        f"{scene.label(owner) if owner else 'an extension module'} was built for another numpy than {scene.true_version('numpy') or 'this'}",
        packages=[*([owner] if owner else []), "numpy"],
        stage=Stage.IMPORT,
        evidence=[shown_raise(said[0]) if said else heard],
        path=last_frame(said[0], scene) if said else "",
    )
