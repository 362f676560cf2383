"""The interpreter of a venv: is it there, is it the right one, and does the venv know where it lies itself?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.diagnosis.registry import rule
from envspec.diagnosis.symptom import Stage, symptom
from envspec.wording import counted, examples, joined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom

_SHEBANG = re.compile(r"#!\s*(/\S+?)/bin/python[0-9.]*(?=\s|$)|exec'? +\"?(/[^\"'\s]+)/bin/python[0-9.]*(?=[\"'\s])")
_COMMAND = re.compile(r"^command\s*=\s*(\S.*)$", re.MULTILINE)
_ACTIVATE = re.compile(r"""VIRTUAL_ENV\s*=\s*(['"]?)(/[^'"\n]+)\1""")


@rule("interpreter-gone")
def interpreter_gone(scene: Scene) -> Iterable[Symptom]:
    """The interpreter that a venv was made of is there.

    Severity: error.

    Why: a venv holds only a link to its Python. An upgrade of the system, a removed pyenv version, or a copy to another host
    takes it away, and what is said then is `No such file or directory` about a file that is there.

    Example:
        error: `bin/python` leads nowhere: `/usr/local/bin/python3.12` is gone

    How to mend: install that Python where it was, or make the venv anew with one that is there.
    """
    python = scene.observation.python
    if python.executable:
        return
    gone = python.link or python.home
    yield symptom(
        "interpreter-gone",
        "error",
        f"`bin/python` leads nowhere: `{gone}` is gone" if gone else "there is no `bin/python`",
        stage=Stage.INTERPRETER,
        evidence=[*([f"pyvenv.cfg says `home = {python.home}`"] if python.home else []), *python.problems],
        path="bin/python",
        paths=["bin/python", "bin/python3", *([python.link] if python.link else [])],
    )


@rule("interpreter-minor")
def interpreter_minor(scene: Scene) -> Iterable[Symptom]:
    """The packages lie where the interpreter looks for them, and are built for its minor version.

    Severity: error.

    Why: `bin/python` follows a link to whatever `python3` is today. After an upgrade from 3.11 to 3.12 it looks into
    `lib/python3.12`, and every package is a `ModuleNotFoundError`.

    Example:
        error: the interpreter is Python 3.12.3, the packages lie in lib/python3.11

    How to mend: make the venv anew with the interpreter that the packages are for, or install them anew for this one.
    """
    python = scene.observation.python
    found = re.match(r"(\d+\.\d+)", python.version)
    running = found[1] if found else ""
    named = re.search(r"/python(\d+\.\d+)$", python.executable)
    if named and named[1] != python.minor:
        running = named[1]
    if running and python.minor and running != python.minor:
        shown = python.version if python.version.startswith(f"{running}.") else running
        yield symptom(
            "interpreter-minor",
            "error",
            f"the interpreter is Python {shown}, the packages lie in lib/python{python.minor}",
            stage=Stage.INTERPRETER,
            evidence=[
                f"bin/python leads to {python.executable or python.link}",
                f"{counted(len(scene.chosen), 'package')} {'lies' if len(scene.chosen) == 1 else 'lie'} in {scene.site}",
            ],
            path=scene.site,
            paths=[f"{scene.site}/"],
            modules=[module for name in scene.chosen for module in scene.modules_of_project(name)],
        )


@rule("moved-venv")
def moved_venv(scene: Scene) -> Iterable[Symptom]:
    """A venv lies where it was made.

    Severity: error if programs in `bin/` start another interpreter; warning if only `activate` or `pyvenv.cfg` name another place.

    Why: the first line of a program names the interpreter by its whole path, and `activate` the venv. Moved or copied, `bin/pip`
    installs into the old place, or says `bad interpreter`, while `bin/python` works.

    Example:
        error: the venv was made as `/srv/old`: 41 programs start the interpreter of that one: `bin/pip`, `bin/torchrun` and 39
        more

    How to mend: make it anew where it is to be, or put it back. One made with `uv venv --relocatable`, or by envspec, may be moved.
    """
    prefix = scene.observation.prefix.rstrip("/")
    programs: dict[str, str] = {}
    others: dict[str, str] = {}
    for path, text in sorted(scene.observation.texts.items()):
        if path == "pyvenv.cfg":
            found = _COMMAND.search(text)
            place = found[1].split()[-1].rstrip("/") if found else ""
            if place.startswith("/") and place != prefix:
                others["pyvenv.cfg"] = place
        elif path.startswith("bin/activate"):
            found = _ACTIVATE.search(text)
            if found and found[2].rstrip("/") != prefix:
                others[path] = found[2].rstrip("/")
        elif path.startswith("bin/"):
            found = _SHEBANG.match(text) if text.startswith("#!/") else None
            found = found or _SHEBANG.search(text[:400])
            place = (found[1] or found[2] or "") if found else ""
            if place and place != prefix and not _is_system(place, scene):
                programs[path] = place
    if not programs and not others:
        return
    places = sorted({*programs.values()} or {*others.values()})
    if programs:
        does = "starts" if len(programs) == 1 else "start"
        what = f"{counted(len(programs), 'program')} {does} the interpreter of that one: {examples(sorted(programs))}"
    else:
        what = (
            f"{joined([f'`{path}`' for path in sorted(others)])} {'names' if len(others) == 1 else 'name'} that place"
        )
    yield symptom(
        "moved-venv",
        "error" if programs else "warning",
        f"the venv was made as {joined([f'`{place}`' for place in places[:2]])}: {what}",
        stage=Stage.START if programs else Stage.NEVER,
        evidence=[
            f"it lies in {prefix}",
            *(f"{path} names {place}" for path, place in sorted(others.items())),
            *(f"{path} starts {place}/bin/python" for path, place in sorted(programs.items())),
        ],
        path=next(iter(sorted(programs or others))),
        paths=[*programs, *others],
    )


@rule("python-home")
def python_home(scene: Scene) -> Iterable[Symptom]:
    """PYTHONHOME is not set.

    Severity: error.

    Why: it tells every Python where its standard library is, the venv's too. It is then another one's, and the packages of the
    venv may not be found at all.

    Example:
        error: PYTHONHOME is set to `/opt/python`: the interpreter of the venv takes its standard library from there

    How to mend: unset it (`env -u PYTHONHOME`), and see which profile or service sets it.
    """
    value = scene.observation.environ.get("PYTHONHOME", "")
    if value and value.rstrip("/") not in (scene.observation.prefix.rstrip("/"), _base(scene)):
        yield symptom(
            "python-home",
            "error",
            f"PYTHONHOME is set to `{value}`: the interpreter of the venv takes its standard library from there",
            stage=Stage.INTERPRETER,
            evidence=[f"PYTHONHOME={value}", f"pyvenv.cfg says `home = {scene.observation.python.home}`"],
        )


@rule("interpreter-problem")
def interpreter_problem(scene: Scene) -> Iterable[Symptom]:
    """What says which interpreter a venv has can be read, and agrees.

    Severity: warning; error if the interpreter does not start.

    Why: `pyvenv.cfg` decides where Python looks for its packages. Written over by a wheel, or by hand, it sends every start
    elsewhere.

    Example:
        warning: pyvenv.cfg has no `home`

    How to mend: make the venv anew; a wheel that wrote there is named by `reserved-path`.
    """
    python = scene.observation.python
    if not python.executable:
        return
    traced = scene.traced
    if traced is not None and traced.ending == "not started":
        yield symptom(
            "interpreter-problem",
            "error",
            f"the interpreter of the venv does not start: {traced.detail or 'it says nothing'}",
            stage=Stage.INTERPRETER,
            evidence=[*traced.messages[-3:], *python.problems, f"bin/python leads to {python.executable}"],
            path="bin/python",
            paths=["bin/python"],
        )
        return
    for problem in python.problems:
        yield symptom(
            "interpreter-problem",
            "warning",
            problem,
            stage=Stage.INTERPRETER,
            evidence=[f"in {scene.observation.prefix}"],
        )


def _base(scene: Scene) -> str:
    """The installation that the venv was made of."""
    return scene.observation.python.home.rstrip("/").removesuffix("/bin")


def _is_system(place: str, scene: Scene) -> bool:
    """Whether a path is that of the installation below the venv, or of the system, and of no venv."""
    return place in ("/usr", "/usr/local", "", _base(scene))
