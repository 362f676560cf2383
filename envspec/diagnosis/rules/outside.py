"""Modules that come from elsewhere than where the venv has them: hidden ones, checkouts, packages of another venv."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.diagnosis.modules import modules_of, projects_of
from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.strays import CUSTOMIZE, is_stdlib
from envspec.diagnosis.symptom import Stage, symptom
from envspec.forms import normalise_name
from envspec.wording import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.facts import Severity
    from envspec.observed import PathEntry

_PYTHON_IN_PATH = re.compile(r"/python(3\.\d+)t?/")


@rule("shadowed-module")
def shadowed_module(scene: Scene) -> Iterable[Symptom]:
    """What Python imports under a name is what the venv has under that name.

    Severity: error for a module of the standard library that is hidden, and for one that a failing run imported from elsewhere;
    warning for a package of the venv that a folder before it hides, which some do on purpose to work on its sources.

    Why: `sys.path` is searched in its order. PYTHONPATH, a `.pth` that puts its folder first, and the folder of a script come
    before site-packages: a `random.py` beside a script is imported wherever anything imports `random`, and an old checkout hides
    the package that was just upgraded.

    Example:
        warning: PYTHONPATH hides sglang 0.5.11: `/srv/old` comes before site-packages and has a module `sglang` of its own

    How to mend: take the folder out of PYTHONPATH, or rename the file.
    """
    for entry in scene.observation.path:
        if entry.source == "standard library":
            continue
        if entry.inside and entry.path.endswith("/site-packages"):
            break
        names = [name.partition(".")[0] for name in entry.modules]
        standard = sorted({name for name in names if is_stdlib(name) and name not in CUSTOMIZE})
        own = sorted({name for name in names if name in scene.modules and name not in standard})
        if standard:
            yield _shadow(scene, entry.path, entry.source, standard, "error", "")
        for name in own:
            severity: Severity = "error" if _failed_with(scene, name, entry.path) else "warning"
            yield _shadow(scene, entry.path, entry.source, [name], severity, scene.owner_of_module(name))
    yield from _imported_from_elsewhere(scene)


@rule("outside-package")
def outside_package(scene: Scene) -> Iterable[Symptom]:
    """What a run fails in is a package of the venv.

    Severity: info; error where the run failed in a package that came from the folder of another Python or venv.

    Why: a `.pth`, PYTHONPATH, the user's own folder and the system's bring packages that no tool of the venv knows of. They were
    installed for another Python, another numpy, another torch, and nothing has compared them with these.

    Example:
        error: torchvision 0.24.1 is none of this venv's packages: the run took it from `/srv/base/lib/python3.12/site-packages`, which
        `base.pth` adds to the import path

    How to mend: install the package into the venv, and take the other folder away.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    frames = [frame.file for raised in traced.chain for frame in raised.frames]
    seen: dict[tuple[str, str], None] = {}
    entries = {entry.path: entry for entry in scene.observation.path if _is_of_another(entry)}
    for file in frames:
        for folder in entries:
            top = file[len(folder) + 1 :].partition("/")[0].partition(".")[0] if file.startswith(f"{folder}/") else ""
            if top and top not in scene.modules and not is_stdlib(top):
                seen[folder, top] = None
    for folder, module in seen:
        entry = entries[folder]
        versions = dict(entry.distributions)
        project = next((name for name in projects_of(module) if name in versions), projects_of(module)[0])
        label = f"{project} {versions.get(project, '')}".strip()
        other = _PYTHON_IN_PATH.search(f"{folder}/")
        minor = scene.observation.python.minor
        made = f", and is for Python {other[1]}" if other and minor and other[1] != minor else ""
        yield symptom(
            "outside-package",
            "info",
            f"{label} is none of this venv's packages: the run took it from `{folder}`, which {_adds(entry)}{made}",
            packages=[project],
            stage=Stage.IMPORT,
            evidence=[
                f"the run was in {file}" for file in dict.fromkeys(frames) if file.startswith(f"{folder}/{module}")
            ],
            path=folder,
            paths=[f"{folder}/{module}/", f"{folder}/{module}.py"],
            modules=[module],
        )


@rule("path-gone")
def path_gone(scene: Scene) -> Iterable[Symptom]:
    """Every folder that a `.pth` adds to the import path is there.

    Severity: error for an editable package: its code lies there and nowhere else; info for others.

    Why: `pip install -e` leaves in the venv no more than the path of a checkout. Moved, renamed, or not mounted in this container, it
    takes the package away, and `pip list` goes on showing it.

    Example:
        error: ourcode 0.1 is installed from `/srv/ourcode`, which is not there

    How to mend: put the checkout back, or install it anew from where it is now.
    """
    for entry in scene.observation.path:
        if entry.exists or not entry.source.startswith("pth "):
            continue
        file = entry.source.removeprefix("pth ")
        owner = scene.owner_of(f"{scene.site}/{file}")
        there = scene.chosen.get(owner)
        editable = there is not None and there.direct_url.startswith("editable")
        if not owner and file == "easy-install.pth" and (linked := _egg_link(scene, entry.path)):
            owner, editable = linked, True
        yield symptom(
            "path-gone",
            "error" if editable else "info",
            f"{scene.label(owner)} is installed from `{entry.path}`, which is not there"
            if editable
            else f"`{file}` adds `{entry.path}` to the import path, which is not there",
            packages=[owner] if owner else [],
            stage=Stage.IMPORT if editable else Stage.NEVER,
            evidence=[f"{file} names {entry.path}", *([there.direct_url] if there is not None and editable else [])],
            path=file,
            paths=[f"{scene.site}/{file}"],
            modules={*scene.modules_of_project(owner), *modules_of(owner)} if editable else (),
        )
    yield from _checkouts_gone(scene)


def _egg_link(scene: Scene, folder: str) -> str:
    """The project that `setup.py develop` installed from a folder: by its `.egg-link`, of several the one whose name the folder has."""
    names = sorted(
        path.rpartition("/")[2].removesuffix(".egg-link") for path in scene.strays if path.endswith(".egg-link")
    )
    if len(names) == 1:
        return normalise_name(names[0])
    parts = {normalise_name(part) for part in folder.split("/") if part}
    return next((normalise_name(name) for name in names if normalise_name(name) in parts), "")


def _checkouts_gone(scene: Scene) -> Iterator[Symptom]:
    """Editable packages that a run does not find: their finder knows where they were, and no `.pth` names it."""
    traced = scene.traced
    missing = {
        raised.name.partition(".")[0]
        for raised in (traced.chain if traced is not None and traced.failed else ())
        if raised.type.rpartition(".")[2] == "ModuleNotFoundError" and raised.name
    }
    gone = [entry.source.removeprefix("pth ") for entry in scene.observation.path if not entry.exists]
    told = {scene.owner_of(f"{scene.site}/{file}") for file in gone if file.endswith(".pth")}
    for name, there in scene.chosen.items():
        lost = sorted({*modules_of(name), *there.top_level} & missing)
        if (
            name in told
            or not lost
            or not there.direct_url.startswith("editable ")
            or any(scene.has_module(each) for each in lost)
        ):
            continue
        place = there.direct_url.removeprefix("editable ").removeprefix("file://")
        yield symptom(
            "path-gone",
            "error",
            f"{scene.label(name)} is installed from `{place}`, where `{lost[0]}` is not found any more",
            packages=[name],
            stage=Stage.IMPORT,
            evidence=[
                f"{scene.shown(there.folder)}/direct_url.json names {place}",
                *(f"{hook.path} looks there" for hook in there.hooks),
            ],
            path=f"{scene.shown(there.folder)}/direct_url.json",
            modules=lost,
        )


def _is_of_another(entry: PathEntry) -> bool:
    """Whether a folder of `sys.path` holds the packages of another Python, and is no checkout."""
    if entry.inside or entry.source in ("standard library", "venv"):
        return False
    return bool(entry.distributions) or entry.path.endswith(("/site-packages", "/dist-packages"))


def _adds(entry: PathEntry) -> str:
    if entry.source.startswith("pth "):
        return f"`{entry.source.removeprefix('pth ')}` adds to the import path"
    return {"PYTHONPATH": "PYTHONPATH names", "user": "is the user's own", "system": "is the system's"}.get(
        entry.source, "is on the import path"
    )


def _failed_with(scene: Scene, module: str, folder: str) -> bool:
    """Whether a run that failed had imported a module from a folder."""
    traced = scene.traced
    return (
        traced is not None
        and traced.failed
        and any(name == module and file.startswith(f"{folder}/") for name, file in traced.modules)
    )


def _shadow(scene: Scene, folder: str, source: str, names: list[str], severity: Severity, owner: str) -> Symptom:
    what = f"modules {joined([f'`{name}`' for name in names])}" if len(names) > 1 else f"a module `{names[0]}`"
    setting = "PYTHONPATH" if source == "PYTHONPATH" else f"`{folder}` ({source})"
    hidden = (
        f"hides {scene.label(owner)}"
        if owner
        else f"hides the standard library's {joined([f'`{name}`' for name in names])}"
    )
    return symptom(
        "shadowed-module",
        severity,
        f"{setting} {hidden}: `{folder}` comes before site-packages and has {what} of its own",
        packages=[owner] if owner else [],
        stage=Stage.IMPORT,
        evidence=[f"sys.path has {folder}, of {source}, before {scene.site}", *(f"{folder}/{name}" for name in names)],
        path=folder,
        paths=[f"{folder}/{name}{end}" for name in names for end in ("/", ".py")],
        modules=names,
    )


def _imported_from_elsewhere(scene: Scene) -> Iterator[Symptom]:
    """Modules of a run that came from outside, although the venv has them, or Python itself."""
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    known = {name for entry in scene.observation.path for name in entry.modules if entry.source == "PYTHONPATH"}
    outside: dict[str, str] = {}
    raised = [(frame.module, frame.file) for each in traced.chain for frame in each.frames]
    for name, file in (*traced.modules, *raised):
        top = name.partition(".")[0]
        if not file.startswith("/") or scene.relative(file) or top in known:
            continue
        in_library = "/lib/python" in file or "/lib64/python" in file
        if (top in scene.modules or (is_stdlib(top) and not in_library)) and top != "__main__":
            outside.setdefault(top, file)
    for top, file in sorted(outside.items()):
        whose = "the standard library's" if is_stdlib(top) else f"that of {scene.label(scene.owner_of_module(top))}"
        hooks = scene.hooks_naming(file)
        by = f" by `{hooks[0].path}`" if hooks else ""
        yield symptom(
            "shadowed-module",
            "error" if is_stdlib(top) else "warning",
            f"`{top}` was imported{by} from `{file}`, which hides {whose}",
            packages=[] if is_stdlib(top) else [scene.owner_of_module(top)],
            stage=Stage.IMPORT,
            evidence=[
                f"the run imported {top} from {file}",
                *(f"{hook.path} runs at every start: {line}" for hook in hooks for line in hook.code),
            ],
            path=hooks[0].path if hooks else file,
            paths=[file],
            modules=[top],
        )
