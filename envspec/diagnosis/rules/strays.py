"""Files that no RECORD names: modules that were copied by hand, code beside a package's own, what hides another module."""

from __future__ import annotations

import posixpath
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from envspec.diagnosis.hooks import danger_of, is_benign
from envspec.diagnosis.installed import home_of, name_of_stray
from envspec.diagnosis.modules import modules_of, projects_of
from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.files import is_code, module_of
from envspec.diagnosis.symptom import Stage, symptom
from envspec.wording import counted, examples, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.facts import Severity, StartupHook
    from envspec.observed import ObservedDistribution, ObservedFile

MADE_BY_TOOLS = frozenset({"_virtualenv", "_distutils_hack", "distutils-precedence", "easy_install", "__editable__"})
"""Modules that belong to whoever made the venv."""

_CUSTOMIZE = frozenset({"sitecustomize", "usercustomize"})


@rule("stray-module")
def stray_module(scene: Scene) -> Iterable[Symptom]:
    """Every module in site-packages belongs to a package.

    Severity: info; warning if it is a package with binaries, since nobody says which release of what it is.

    Why: a folder that was copied from another venv imports, but no tool knows of it: its requirements are not installed, an
    upgrade does not touch it, `pip list` does not show it.

    Example:
        info: `sgl_kernel` (12 files) belongs to no package; sglang-kernel publishes a module of this name

    How to mend: install the package that publishes it, in the version that was copied, over the copy.
    """
    if scene.is_locked:
        return
    for module, files in scene.stray_modules.items():
        if _is_made_by_tools(module) or module in _CUSTOMIZE or _is_stdlib(module):
            continue
        size = counted(len(files), "file")
        shown = [scene.shown(file.path) for file in files]
        published = projects_of(module)
        installed = [name for name in published if name in scene.chosen]
        whose = f"{joined(published[:2])} publish{'es' if len(published[:2]) == 1 else ''} a module of this name"
        if module in scene.modules:  # a namespace that several packages share
            module = posixpath.commonpath([path.rpartition("/")[0] for path in shown]) or module  # noqa: PLW2901
            published = (name_of_stray(shown[0]),)
            whose = f"other packages share `{shown[0].partition('/')[0]}`, and none has this folder"
        if installed:
            whose = f"{scene.label(installed[0])} is installed, and its RECORD does not name it"
        binaries = [file for file in files if ".so" in file.path.rpartition("/")[2]]
        wheel = scene.wheels.get(installed[0] if installed else published[0])
        version = wheel.facts.version if wheel and not installed else ""
        yield symptom(
            "stray-module",
            "warning" if binaries else "info",
            f"`{module}` ({size}) belongs to no package; {whose}",
            packages=[installed[0] if installed else published[0]],
            stage=Stage.USE if binaries else Stage.NEVER,
            evidence=[
                *([f"its `version.py` says {version}"] if version else []),
                *(f"no RECORD names {path}" for path in shown),
            ],
            path=shown[0],
            paths=[file.path for file in files],
        )


@rule("stray-code")
def stray_code(scene: Scene) -> Iterable[Symptom]:
    """No code lies among the files of a package that its RECORD does not name, and none runs at every start.

    Severity: error for `sitecustomize`, `usercustomize`, a `.pth` with code that no honest package has, and a file that takes the place
    of a module; warning for other libraries, for sources that came with the package, and for a `.pth` with code; info for sources
    that came later.

    Why: Python imports what is there. A wheel can bring a file that its RECORD does not list, a build leaves its products in the
    package's folder, and a hand-copied `.pth` runs in every process.

    Example:
        warning: 1 library among the files of sgl-kernel 0.3.21 is in no RECORD: `sgl_kernel/common_ops.abi3.so`

    How to mend: find out where the file comes from; remove it, or install the package anew.
    """
    yield from _hooks(scene)
    if scene.is_locked:
        return
    among: dict[str, list[ObservedFile]] = defaultdict(list)
    for path, file in scene.strays.items():
        if file.kind in ("file", "link") and path.startswith(f"{scene.site}/") and is_code(path):
            home = home_of(path, scene.folders, scene.site)
            if home:
                among[home].append(file)
    for name, files in sorted(among.items()):
        distribution = scene.chosen[name]
        hiding = [file for file in files if _hides(scene, file.path)]
        libraries = [file for file in files if file not in hiding and not file.path.endswith(".py")]
        came = [
            file for file in files if file not in hiding and file not in libraries and _came_with(file, distribution)
        ]
        later = [file for file in files if file not in hiding and file not in libraries and file not in came]
        kinds: tuple[tuple[list[ObservedFile], Severity, Stage, str], ...] = (
            (hiding, "error", Stage.IMPORT, "file takes the place of a module"),
            (libraries, "warning", Stage.USE, "library"),
            (came, "warning", Stage.NEVER, "source that came with it"),
            (later, "info", Stage.NEVER, "source"),
        )
        for found, severity, stage, noun in kinds:
            if not found:
                continue
            shown = [scene.shown(file.path) for file in found]
            what = counted(len(found), "file that takes the place of a module", "files that take the place of modules")
            if noun != "file takes the place of a module":
                plural = noun.replace("source", "sources").replace("library", "libraries")
                what = counted(len(found), noun, plural)
            yield symptom(
                "stray-code",
                severity,
                f"{what} among the files of {scene.label(name)} {'is' if len(found) == 1 else 'are'} in no RECORD: {examples(shown)}",
                packages=[name],
                stage=stage,
                evidence=[f"{scene.shown(file.path)}: {file.size} bytes, in no RECORD" for file in found],
                path=shown[0],
                paths=[file.path for file in found],
                modules=[module for file in hiding if (module := module_of(scene, file.path))],
            )


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
        standard = sorted({name for name in names if _is_stdlib(name) and name not in _CUSTOMIZE})
        own = sorted({name for name in names if name in scene.modules and name not in standard})
        if standard:
            yield _shadow(scene, entry.path, entry.source, standard, "error", "")
        for name in own:
            severity: Severity = "error" if _failed_with(scene, name, entry.path) else "warning"
            yield _shadow(scene, entry.path, entry.source, [name], severity, scene.owner_of_module(name))
    yield from _imported_from_elsewhere(scene)


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
        if (
            not file.startswith("/")
            or scene.relative(file)
            or "/site-packages/" in file
            or "/dist-packages/" in file
            or top in known
        ):
            continue
        in_library = "/lib/python" in file or "/lib64/python" in file
        if (top in scene.modules or (_is_stdlib(top) and not in_library)) and top != "__main__":
            outside.setdefault(top, file)
    for top, file in sorted(outside.items()):
        whose = "the standard library's" if _is_stdlib(top) else f"that of {scene.label(scene.owner_of_module(top))}"
        yield symptom(
            "shadowed-module",
            "error" if _is_stdlib(top) else "warning",
            f"`{top}` was imported from `{file}`, which hides {whose}",
            packages=[] if _is_stdlib(top) else [scene.owner_of_module(top)],
            stage=Stage.IMPORT,
            evidence=[f"the run imported {top} from {file}"],
            path=file,
            paths=[file],
            modules=[top],
        )


def _hooks(scene: Scene) -> Iterator[Symptom]:
    """Start-up hooks that no RECORD names."""
    for hook in scene.observation.stray_hooks:
        stem = hook.path.partition("/")[0].partition(".")[0]
        if stem not in _CUSTOMIZE and (not hook.code or is_benign(hook, _tool(scene, hook))):
            continue
        danger = danger_of(hook.code) if hook.path.endswith(".pth") else ""
        severe = stem in _CUSTOMIZE or danger
        telling = f" (`{danger}`)" if danger else ""
        runs = "runs" if stem in _CUSTOMIZE else f"runs {counted(len(hook.code), 'line')} of code{telling}"
        yield symptom(
            "stray-code",
            "error" if severe else "warning",
            f"`{hook.path}` {runs} at every start of Python, and is in no RECORD",
            stage=Stage.START,
            evidence=[f"sha256 {hook.sha256}", *(f"runs: {line}" for line in hook.code)],
            path=hook.path,
            paths=[f"{scene.site}/{hook.path}"],
            modules=[stem],
        )


def _tool(scene: Scene, hook: StartupHook) -> ObservedDistribution | None:
    """Whoever made the venv, as if it were a package, for lines that import what lies beside them: `import _virtualenv`."""
    from dataclasses import replace  # noqa: PLC0415 - only here

    some = next(iter(scene.chosen.values()), None)
    beside = tuple(sorted(name for name in scene.stray_modules if _is_made_by_tools(name)))
    if some is None:
        from envspec.observed import ObservedDistribution as Made  # noqa: PLC0415 - only here

        return Made(name=hook.path, version="", folder="", folder_version="", top_level=beside)
    return replace(some, name=hook.path, top_level=beside, files=())


def _hides(scene: Scene, path: str) -> bool:
    """Whether Python imports a stray file instead of a recorded one: an extension before a source, a fuller suffix before a shorter one."""
    stem, dot, suffix = path.rpartition("/")[2].partition(".")
    folder = path.rpartition("/")[0]
    order = (*scene.extension_suffixes, ".py")
    if dot + suffix not in order:
        return False
    later = order[order.index(dot + suffix) + 1 :]
    return any(f"{folder}/{stem}{other}" in scene.rows for other in later)


def _came_with(file: ObservedFile, distribution: ObservedDistribution) -> bool:
    """Whether a file has a time between those of a package's own files."""
    times = [each.mtime_ns for each in distribution.files if each.kind == "file" and each.mtime_ns > 0]
    return bool(times) and min(times) <= file.mtime_ns <= max(times) and min(times) != max(times)


def _is_made_by_tools(module: str) -> bool:
    return module in MADE_BY_TOOLS or module.startswith("__editable__")


def _is_stdlib(module: str) -> bool:
    return module in sys.stdlib_module_names
