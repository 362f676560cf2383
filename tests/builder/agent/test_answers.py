"""What a program said is recalled as long as everything that it follows from stays as it was, and not a moment longer."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from builder.agent.answers import Answers
from builder.agent.interpreter import interpreter_for
from builder.agent.store import CLOCK_SLACK_NS, Store
from tests.support.projects import base_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.agent.interpreter import Interpreter

LATER_NS = 2 * CLOCK_SLACK_NS
"""Tests cannot set a change time back, so they ask later than it is."""


class Place:
    """A program, a file that its answer follows from, and a store."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "store" / "facts"
        self.program = root / "opt" / "bin" / "program"
        self.library = root / "opt" / "lib" / "library.so"
        for folder in (self.folder, self.program.parent, self.library.parent):
            folder.mkdir(parents=True)
        self.program.write_text("program")
        self.program.chmod(0o755)
        self.library.write_text("library")
        self.environ: dict[str, str] = {"PATH": "/usr/bin"}

    @property
    def answers(self) -> Answers:
        return Answers(folder=self.folder, environ=self.environ)

    def keep(self, *, asked_ns: int | None = None, files: tuple[Path, ...] | None = None) -> None:
        used = (self.program, self.library) if files is None else files
        moment = time.time_ns() + LATER_NS if asked_ns is None else asked_ns
        self.answers.keep(str(self.program), "who are you?", {"version": "1"}, files=map(str, used), asked_ns=moment)

    def recall(self, question: str = "who are you?") -> object:
        return self.answers.recall(str(self.program), question)

    def wait_for_tick(self) -> None:
        """Until the clock of the file system has moved on."""
        now = max(path.stat().st_ctime_ns for path in (self.program, self.library))
        other = self.folder.parent / "other"
        other.touch()
        while other.stat().st_ctime_ns <= now:
            other.touch()

    def kept(self) -> list[Path]:
        return sorted(self.folder.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_answer_is_recalled_while_nothing_changes(place: Place) -> None:
    assert place.recall() is None
    place.keep()
    assert place.recall() == {"version": "1"}
    place.environ["HOME"] = "/elsewhere"
    assert place.recall() == {"version": "1"}


def in_place(place: Place) -> None:
    """The same size, and the modification time set back, as somebody who hides something does."""
    times = place.library.stat()
    place.library.write_text("yrarbil")
    os.utime(place.library, ns=(times.st_atime_ns, times.st_mtime_ns))


def replaced(place: Place) -> None:
    new = place.library.with_name("new")
    shutil.copy2(place.library, new)
    new.rename(place.library)


def other_question(place: Place) -> None:
    (kept,) = place.kept()
    fields = json.loads(kept.read_text())
    fields["asked"]["asked"] = "0" * 64
    kept.write_text(json.dumps(fields))


CHANGES: dict[str, Callable[[Place], object]] = {
    "the program is written over": lambda place: place.program.write_text("margorp"),
    "a file is changed in place": in_place,
    "a file is replaced by its copy": replaced,
    "a file is removed": lambda place: place.library.unlink(),
    "a file appears beside one": lambda place: place.library.with_name("first.so").touch(),
    "a file appears above the program": lambda place: (place.program.parents[1] / "pyvenv.cfg").touch(),
    "the program may not be run any more": lambda place: place.program.chmod(0o644),
    "the linker is steered": lambda place: place.environ.update(LD_LIBRARY_PATH="/tmp"),
    "others may write the answer": lambda place: place.kept()[0].chmod(0o664),
    "the answer is a link": lambda place: place.kept()[0].symlink_to(place.kept()[0].rename(place.folder / "x")),
    "the answer is no JSON": lambda place: place.kept()[0].write_text("{"),
    "the answer is another kind of JSON": lambda place: place.kept()[0].write_text("[]"),
    "the answer has no stamps": lambda place: place.kept()[0].write_text("{}"),
    "the answer is of another question": other_question,
}


@pytest.mark.parametrize("change", CHANGES)
def test_program_is_asked_again_after_any_change(place: Place, change: str) -> None:
    place.keep()
    assert place.recall() is not None
    place.wait_for_tick()
    CHANGES[change](place)
    assert place.recall() is None


def test_another_question_has_another_answer(place: Place) -> None:
    place.keep()
    assert place.recall("what is the time?") is None


@pytest.mark.parametrize("question", ["", "-p \ud800.so", "a\0b", "ü" * 5000])
def test_question_may_be_any_text(place: Place, question: str) -> None:
    moment = time.time_ns() + LATER_NS
    place.answers.keep(str(place.program), question, ["\ud800"], files=[str(place.program)], asked_ns=moment)
    assert place.recall(question) == ["\ud800"]


@pytest.mark.parametrize("file", ["a\0b", "\ud800", "relative", ""])
def test_answer_that_follows_from_what_is_no_file_is_not_kept(place: Place, file: str) -> None:
    moment = time.time_ns() + LATER_NS
    place.answers.keep(str(place.program), "?", 1, files=[str(place.program), file], asked_ns=moment)
    assert place.kept() == []


def test_answer_that_follows_from_a_file_just_changed_is_not_kept(place: Place) -> None:
    """Change times have ticks: one more change within the same tick could not be seen."""
    place.keep(asked_ns=time.time_ns())
    assert place.kept() == []


def test_answer_that_follows_from_a_file_that_is_not_there_is_not_kept(place: Place) -> None:
    place.keep(files=(place.program, place.library.with_name("gone")))
    assert place.kept() == []


def test_nothing_is_made_where_there_is_no_store(place: Place) -> None:
    shutil.rmtree(place.folder.parent)
    place.keep()
    assert not place.folder.parent.exists()


def test_answer_of_another_user_is_not_believed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.keep()
    (kept,) = place.kept()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    kept.rename(place.answers._place(str(place.program), "who are you?"))
    assert place.recall() is None


# -- the interpreter of an environment ------------------------------------------------------------------------------------------------


def find(store: Store, *, anew: bool = False) -> Interpreter:
    python = base_python()
    minor = ".".join(os.path.realpath(python).rpartition("python")[2].split(".")[:2])
    return interpreter_for(
        store, minor, "", platform=f"linux-{os.uname().machine}", environ={"PATH": str(python.parent)}, anew=anew
    )


def spoil(store: Store) -> None:
    """Let what is remembered say something that no interpreter would."""
    for kept in store.facts.glob("answer-*"):
        fields = json.loads(kept.read_text())
        fields["answer"]["libc"] = "glibc 9.99"
        kept.write_text(json.dumps(fields))


def test_interpreter_that_did_not_change_is_not_started_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.ensure()
    first = find(store)
    if not list(store.facts.glob("answer-*")):
        pytest.skip("the Python of this machine was changed a minute ago")
    assert find(store) == first
    spoil(store)
    assert find(store).libc == "glibc 9.99", "it was recalled, not asked"
    assert find(store, anew=True) == first
