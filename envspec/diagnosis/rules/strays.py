"""Files that no RECORD names: modules that were copied by hand, code beside a package's own, what hides another module."""

from __future__ import annotations

import posixpath
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from envspec.diagnosis.hooks import danger_of, is_benign
from envspec.diagnosis.installed import home_of, name_of_stray
from envspec.diagnosis.modules import projects_of
from envspec.diagnosis.offers import may_name
from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.files import is_code, module_of
from envspec.diagnosis.symptom import Stage, symptom
from envspec.diagnosis.telling import tellings_of
from envspec.wording import counted, examples, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.facts import Severity, StartupHook
    from envspec.observed import ObservedDistribution, ObservedFile

MADE_BY_TOOLS = frozenset({"_virtualenv", "_distutils_hack", "distutils-precedence", "easy_install", "__editable__"})
"""Modules that belong to whoever made the venv."""

_MOST_ASKED = 1000
"""So many files of a copied module are asked whose they are."""

CUSTOMIZE = frozenset({"sitecustomize", "usercustomize"})
"""Modules that Python imports at every start, if they are there."""


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
        if _is_made_by_tools(module) or module in CUSTOMIZE or is_stdlib(module):
            continue
        size = counted(len(files), "file")
        shown = [scene.shown(file.path) for file in files]
        published = projects_of(module)
        inside = Counter(map(name_of_stray, shown[:_MOST_ASKED])).most_common(1)[0][0]
        if inside not in published:  # a namespace, as `google` is
            published = (inside,)
        installed = [name for name in published if name in scene.chosen]
        whose = f"{joined(published[:2])} publish{'es' if len(published[:2]) == 1 else ''} a module of this name"
        if not may_name(scene, module, published[0]):
            whose = "whose it is, no metadata says"
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
    yield from _hooks_elsewhere(scene)
    if scene.is_locked:
        return
    yield from _closed_namespaces(scene)
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


def _hooks_elsewhere(scene: Scene) -> Iterator[Symptom]:
    """A sitecustomize of a folder outside of the venv, where a run did not find what is in the venv: nothing else changes the path."""
    traced = scene.traced
    missing = {
        name
        for raised in (traced.chain if traced is not None and traced.failed else ())
        for name in tellings_of(raised, scene).missing_modules
    }
    there = sorted(name for name in missing if scene.has_module(name))
    for entry in scene.observation.path if there else ():
        for name in sorted(CUSTOMIZE & set(entry.modules)):
            yield symptom(
                "startup-hook",
                "error",
                f"`{name}` of `{entry.path}` ({entry.source}) runs at every start, and `{there[0]}`, which the venv has, is not found",
                stage=Stage.START,
                evidence=[
                    f"{entry.path}/{name} is none of the venv's files",
                    *(f"{scene.site} has `{each}`" for each in there),
                ],
                path=f"{entry.path}/{name}.py",
                paths=[f"{entry.path}/{name}.py"],
                modules=there,
            )


def _closed_namespaces(scene: Scene) -> Iterator[Symptom]:
    """An `__init__.py` that nobody published in a folder that packages share: what lies elsewhere below that name is not found any more."""
    traced = scene.traced
    missing = {
        name
        for raised in (traced.chain if traced is not None and traced.failed else ())
        for name in tellings_of(raised, scene).missing_modules
    }
    for path, file in scene.strays.items():
        shown = scene.shown(path)
        folder, _, name = shown.rpartition("/")
        if (
            name != "__init__.py"
            or path == shown
            or file.kind not in ("file", "link")
            or folder.partition("/")[0] not in scene.modules
        ):
            continue
        module = folder.replace("/", ".")
        lost = sorted(each for each in missing if each.startswith(f"{module}."))
        if path.rpartition("/")[0] in scene.folders or not lost:
            continue
        sharing = sorted({scene.folders[each] for each in scene.folders if each.startswith(f"{scene.site}/{folder}/")})
        yield symptom(
            "stray-code",
            "error",
            f"`{shown}` is in no RECORD and makes a package of the namespace `{module}`: its parts in other folders are not found any more",
            packages=sharing,
            stage=Stage.IMPORT,
            evidence=[
                f"no package that has files below `{folder}` brings `{shown}`",
                *(f"`{each}` was not found" for each in lost),
            ],
            path=shown,
            paths=[path],
            modules=lost,
        )


def _hooks(scene: Scene) -> Iterator[Symptom]:
    """Start-up hooks that no RECORD names."""
    for hook in scene.observation.stray_hooks:
        stem = hook.path.partition("/")[0].partition(".")[0]
        if stem not in CUSTOMIZE and (not hook.code or is_benign(hook, _tool(scene, hook))):
            continue
        danger = danger_of(hook.code) if hook.path.endswith(".pth") else ""
        severe = stem in CUSTOMIZE or danger
        telling = f" (`{danger}`)" if danger else ""
        runs = "runs" if stem in CUSTOMIZE else f"runs {counted(len(hook.code), 'line')} of code{telling}"
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
    names = {path.rpartition("/")[0].rpartition("/")[2] for path in scene.strays} | set(scene.stray_modules)
    beside = tuple(sorted(name for name in names if _is_made_by_tools(name)))
    if some is None:
        from envspec.observed import ObservedDistribution as Made  # noqa: PLC0415 - only here

        return Made(name=hook.path, version="", folder="", folder_version="", top_level=beside)
    return replace(some, name=hook.path, top_level=beside, files=())


def _hides(scene: Scene, path: str) -> bool:
    """Whether Python imports a stray file instead of a recorded one: an extension before a source, a fuller suffix before a shorter one."""
    stem, dot, suffix = path.rpartition("/")[2].partition(".")
    folder = path.rpartition("/")[0]
    order = (*scene.extension_suffixes, ".py")
    if path.endswith("/__init__.py"):  # a package goes before a module of its name
        return any(f"{folder}{other}" in scene.rows for other in order)
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


def is_stdlib(module: str) -> bool:
    """Whether a module is one of the standard library's."""
    return module in sys.stdlib_module_names
