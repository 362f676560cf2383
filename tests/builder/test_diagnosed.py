"""A diagnosis that is remembered: told again only while it would be the same, whatever changes in the venv or around it."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from builder import diagnosed
from builder.agent import survey, survey_cache
from builder.agent.survey_cache import cache_path
from builder.agent.survey_host import look_at_host
from builder.observing import begin_look
from builder.progress import SilentReporter
from envspec.cli import diagnose as command
from envspec.cli.diagnose import Order, told_here
from tests.support.venvs import SITE, install, make_venv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envspec.diagnosis.told import Told

LATER_NS = 10 * 10**9


class Clock:
    """What the time is for who looks: files of this test changed long before."""

    def __init__(self) -> None:
        self.ahead_ns = LATER_NS

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    clock = Clock()
    monkeypatch.setattr(survey, "time", clock)
    monkeypatch.setattr(command, "time", clock)
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    return clock


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A venv whose `demo` lacks what it requires, with a link and a RECORD that lead out of it."""
    python = tmp_path / "base/bin/python3.12"
    python.parent.mkdir(parents=True)
    python.write_text("")
    python.chmod(0o755)
    made = make_venv(tmp_path / "venv", python=os.fspath(python))
    install(made, "demo", "1.0", {"demo/__init__.py": "a\n", "demo/other.py": "b\n"}, requires=["absent>=2"])
    for name in ("elsewhere.txt", "named.txt", "another.txt"):
        (tmp_path / name).write_text("x\n")
    (made / SITE / "demo/link.txt").symlink_to(tmp_path / "elsewhere.txt")
    record = made / SITE / "demo-1.0.dist-info/RECORD"
    record.write_text(f"{record.read_text()}demo/link.txt,,\n{tmp_path / 'named.txt'},,\n")
    (tmp_path / "folder").mkdir()
    return made


@pytest.fixture
def surveys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for each time that the content of a venv was looked at."""
    made: list[str] = []
    real = survey.VenvLook.survey

    def counting(self: survey.VenvLook, **options: object) -> survey.Survey:
        made.append(self.place.prefix)
        return real(self, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(survey.VenvLook, "survey", counting)
    return made


def tell(venv: Path, *, remember: bool = True, offline: bool = True, run: str = "") -> Told:
    order = Order(path=os.fspath(venv), run=run, timeout_s=60, host="", offline=offline, remember=remember)
    return told_here(order, SilentReporter())


def shown(told: Told) -> object:
    return told.to_json()


@pytest.mark.usefixtures("clock")
def test_unchanged_venv_is_told_again_without_a_look_into_it(venv: Path, surveys: list[str]) -> None:
    first = tell(venv)
    assert [cause.check for cause in first.diagnosis.causes][:1] == ["requires-dist"]
    again = tell(venv)
    assert len(surveys) == 1
    assert shown(again) == shown(first)
    from envspec.diagnosis.text import render  # noqa: PLC0415 - what is shown is all there

    assert render(again.diagnosis) == render(first.diagnosis)


def _write(venv: Path, _outside: Path) -> None:
    (venv / SITE / "demo/other.py").write_text("c\n")


def _same_size_and_mtime(venv: Path, _outside: Path) -> None:
    file = venv / SITE / "demo/other.py"
    before = file.stat()
    file.write_text("c\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _delete(venv: Path, _outside: Path) -> None:
    (venv / SITE / "demo/other.py").unlink()


def _add(venv: Path, _outside: Path) -> None:
    (venv / SITE / "queue.py").write_text("")


def _add_folder(venv: Path, _outside: Path) -> None:
    (venv / SITE / "empty").mkdir()


def _executable(venv: Path, _outside: Path) -> None:
    (venv / SITE / "demo/other.py").chmod(0o755)


def _install(venv: Path, _outside: Path) -> None:
    install(venv, "absent", "2.0", {"absent/__init__.py": ""})


def _retarget(venv: Path, outside: Path) -> None:
    link = venv / SITE / "demo/link.txt"
    link.unlink()
    link.symlink_to(outside / "another.txt")


def _link_dangles(_venv: Path, outside: Path) -> None:
    (outside / "elsewhere.txt").unlink()


def _named_outside_is_gone(_venv: Path, outside: Path) -> None:
    (outside / "named.txt").unlink()


def _named_outside_grows(_venv: Path, outside: Path) -> None:
    (outside / "named.txt").write_text("longer\n")


def _config(venv: Path, _outside: Path) -> None:
    config = venv / "pyvenv.cfg"
    config.write_text(config.read_text().replace("false", "true"))


@pytest.mark.parametrize(
    "change",
    [
        _write,
        _same_size_and_mtime,
        _delete,
        _add,
        _add_folder,
        _executable,
        _install,
        _retarget,
        _link_dangles,
        _named_outside_is_gone,
        _named_outside_grows,
        _config,
    ],
)
@pytest.mark.usefixtures("clock")
def test_after_a_change_of_files_it_is_told_what_is_so_now(
    venv: Path, surveys: list[str], tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    tell(venv)
    change(venv, tmp_path)
    now = tell(venv)
    assert len(surveys) == 2
    assert shown(now) == shown(tell(venv, remember=False))


@pytest.mark.parametrize(
    ("name", "prepare"),
    [
        ("PYTHONPATH", lambda folder: (folder / "demo.py").write_text("")),
        ("LD_LIBRARY_PATH", lambda folder: (folder / "libcudart.so.12").write_text("")),
        ("LD_PRELOAD", lambda _folder: None),
        ("CUDA_HOME", lambda _folder: None),
    ],
)
@pytest.mark.usefixtures("clock")
def test_variables_and_what_they_name_belong_to_it(
    venv: Path,
    surveys: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    prepare: Callable[[Path], object],
) -> None:
    tell(venv)
    monkeypatch.setenv(name, os.fspath(tmp_path / "folder"))
    tell(venv)
    assert len(surveys) == 2
    if prepare(tmp_path / "folder") is not None:
        now = tell(venv)
        assert len(surveys) == 3
        assert shown(now) == shown(tell(venv, remember=False))


@pytest.mark.usefixtures("clock")
def test_another_host_below_is_another_answer(venv: Path, surveys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tell(venv)

    def with_a_driver(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        facts, notes = look_at_host(environ)
        return {**facts, "driver": "550.54.15"}, notes

    monkeypatch.setattr(survey, "look_at_host", with_a_driver)
    tell(venv)
    assert len(surveys) == 2


@pytest.mark.usefixtures("clock")
def test_other_code_of_envspec_judges_anew(venv: Path, surveys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tell(venv)
    real = diagnosed.code_state()
    monkeypatch.setattr(diagnosed, "code_state", lambda: [*real, ["diagnosis/rules", "new.py", 1, 1]])
    tell(venv)
    assert len(surveys) == 2


def test_code_state_names_every_module_of_rules() -> None:
    named = {row[1] for row in diagnosed.code_state()[2:]}
    assert {"grouping.py", "files.py", "survey.py", "diagnosed.py"} <= named


def test_file_that_changed_just_before_the_look_keeps_it_from_being_remembered(
    clock: Clock, venv: Path, surveys: list[str]
) -> None:
    """A change within the same tick of the clock would not show."""
    clock.ahead_ns = 0
    tell(venv)
    tell(venv)
    assert len(surveys) == 2


@pytest.mark.usefixtures("clock")
def test_neither_a_run_nor_no_cache_leaves_or_takes_anything(venv: Path, surveys: list[str], tmp_path: Path) -> None:
    tell(venv, remember=False)
    tell(venv, run="demo")
    assert not (tmp_path / "cache/envspec/diagnosed").exists()
    tell(venv)
    tell(venv, run="demo")
    tell(venv, remember=False)
    assert len(surveys) == 5


class _Index:
    was_asked = True

    def best(self, *_arguments: object) -> None:
        return None


@pytest.mark.usefixtures("clock")
def test_what_no_index_answered_is_not_remembered(
    venv: Path, surveys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_observation: object, notes: list[str]) -> _Index:
        notes.append("no version was looked up: nobody is there")
        return _Index()

    monkeypatch.setattr(command, "_index", failing)
    assert tell(venv, offline=False).notes
    tell(venv, offline=False)
    assert len(surveys) == 2


def test_what_an_index_said_is_believed_for_an_hour_and_of_that_index(
    clock: Clock, venv: Path, surveys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_index", lambda *_arguments: _Index())
    tell(venv, offline=False)
    clock.ahead_ns += 59 * 60 * 10**9
    tell(venv, offline=False)
    assert len(surveys) == 1
    tell(venv)  # offline is another question
    assert len(surveys) == 2
    tell(venv, offline=False)
    assert len(surveys) == 3
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    tell(venv, offline=False)
    assert len(surveys) == 4
    clock.ahead_ns += 61 * 60 * 10**9
    tell(venv, offline=False)
    assert len(surveys) == 5


@pytest.mark.parametrize("how", ["cut off", "no object", "others", "gone"])
@pytest.mark.usefixtures("clock")
def test_damaged_memory_is_worth_nothing(venv: Path, surveys: list[str], how: str) -> None:
    first = tell(venv)
    place = cache_path(os.environ, os.fspath(venv), "diagnosed")
    assert place is not None
    if how == "cut off":
        place.write_bytes(place.read_bytes()[:-4])
    elif how == "no object":
        survey_cache.write_own(place, [1, 2])
    elif how == "others":
        place.chmod(0o666)
    else:
        shutil.rmtree(place.parent)
    assert shown(tell(venv)) == shown(first)
    assert len(surveys) == 2


@pytest.mark.usefixtures("clock")
def test_memory_of_one_venv_is_none_of_a_copy_of_it(venv: Path, surveys: list[str], tmp_path: Path) -> None:
    tell(venv)
    shutil.copytree(venv, tmp_path / "copy", symlinks=True)
    place, other = (cache_path(os.environ, os.fspath(tmp_path / name), "diagnosed") for name in ("venv", "copy"))
    assert place is not None
    assert other is not None
    shutil.copy(place, other)
    assert tell(tmp_path / "copy").diagnosis.prefix == os.fspath(tmp_path / "copy")
    assert len(surveys) == 2


def test_state_is_the_same_for_the_same_venv_and_none_for_what_is_none(venv: Path) -> None:
    looks = [begin_look(os.fspath(venv), SilentReporter()) for _ in range(2)]
    assert looks[0].state == looks[1].state != ""
    shutil.rmtree(venv / "bin")
    (venv / "pyvenv.cfg").unlink()
    assert begin_look(os.fspath(venv / SITE), SilentReporter()).state == ""
