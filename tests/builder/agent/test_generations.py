"""Profiles switch in one step, forwards and back, and every activation is remembered."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from builder import process
from builder.agent.generations import (
    Generation,
    activate,
    active_generation,
    active_number,
    list_generations,
    profile_names,
    remove_generation,
    roll_back,
)
from builder.agent.store import Store
from envspec.errors import EnvspecError
from tests.support.stores import new_store

if TYPE_CHECKING:
    from pathlib import Path

ENVS = {letter: letter * 32 for letter in "abc"}
SWITCHES = 500

READER = """
import os, sys, threading
profile = sys.argv[1]
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
print("reading", flush=True)
reads = misses = 0
seen = set()
while not done.is_set():
    reads += 1
    try:
        with open(profile + "/which") as file:
            seen.add(file.read())
    except OSError:
        misses += 1
print(reads, misses, *sorted(seen))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = new_store(tmp_path / "store")
    for letter, env in ENVS.items():
        for name in ("demo", "other.name_x"):
            store.env(env, name).mkdir()
            (store.env(env, name) / "which").write_text(letter)
    return store


def switch(store: Store, letter: str, name: str = "demo", *, lock: str = "l", created: str = "now") -> Generation:
    return activate(store, name, env=ENVS[letter], site=letter, lock_sha256=lock, spec_sha256="s", created=created)


def active(store: Store, name: str = "demo") -> str:
    return (store.root / "profiles" / name / "which").read_text()


def numbers(store: Store, name: str = "demo") -> list[tuple[int, str, bool]]:
    return [(each.number, each.site, each.active) for each in list_generations(store, name)]


def test_without_a_build_there_is_nothing(store: Store) -> None:
    assert (list_generations(store, "demo"), active_number(store, "demo"), profile_names(store)) == ((), 0, ())
    assert active_generation(store, "demo") is None


def test_each_new_environment_is_a_new_generation(store: Store) -> None:
    for number, letter in enumerate("abc", 1):
        made = switch(store, letter, created=f"t{number}")
        assert (made.number, made.active, made.created) == (number, True, f"t{number}")
        assert made.path == store.env(ENVS[letter], "demo")
        assert active(store) == letter
        assert active_generation(store, "demo") == made
    assert numbers(store) == [(1, "a", False), (2, "b", False), (3, "c", True)]


def test_the_same_environment_again_keeps_its_generation_and_learns_of_the_lock(store: Store) -> None:
    switch(store, "a", lock="one", created="t1")
    again = switch(store, "a", lock="two", created="t2")
    assert (again.number, again.created, again.lock_sha256) == (1, "t1", "two")
    assert list_generations(store, "demo") == (again,)


def test_an_environment_that_was_active_before_becomes_a_new_generation(store: Store) -> None:
    for letter in "aba":
        switch(store, letter)
    assert numbers(store) == [(1, "a", False), (2, "b", False), (3, "a", True)]


def test_a_rollback_goes_to_the_generation_before_and_no_further(store: Store) -> None:
    for letter in "abc":
        switch(store, letter)
    assert (roll_back(store, "demo", None).number, active(store)) == (2, "b")
    assert (roll_back(store, "demo", None).number, active(store)) == (1, "a")
    with pytest.raises(EnvspecError, match="`demo` has no generation before 1"):
        roll_back(store, "demo", None)
    assert active(store) == "a"


def test_a_rollback_goes_to_any_generation_forwards_too(store: Store) -> None:
    for letter in "abc":
        switch(store, letter)
    for number, letter in ((1, "a"), (3, "c"), (2, "b"), (2, "b")):
        chosen = roll_back(store, "demo", number)
        assert (chosen.number, chosen.active, active(store)) == (number, True, letter)


def test_after_a_rollback_a_build_makes_the_next_number_and_forgets_nothing(store: Store) -> None:
    for letter in "ab":
        switch(store, letter)
    roll_back(store, "demo", 1)
    assert switch(store, "a").number == 1
    assert switch(store, "c").number == 3
    assert numbers(store) == [(1, "a", False), (2, "b", False), (3, "c", True)]


def test_a_rollback_skips_numbers_that_are_gone(store: Store) -> None:
    for letter in "abc":
        switch(store, letter)
    remove_generation(store, "demo", 2)
    assert roll_back(store, "demo", None).number == 1


@pytest.mark.parametrize(("number", "there"), [(7, "1, 2"), (0, "1, 2"), (-1, "1, 2")])
def test_an_unknown_generation_is_an_error_that_says_which_there_are(store: Store, number: int, there: str) -> None:
    switch(store, "a")
    switch(store, "b")
    with pytest.raises(EnvspecError) as caught:
        roll_back(store, "demo", number)
    assert caught.value.message == f"`demo` has no generation {number}; there is: {there}"
    assert active(store) == "b"


def test_a_rollback_of_what_was_never_built_is_an_error(store: Store) -> None:
    with pytest.raises(EnvspecError, match="`demo` has no generation before the first build"):
        roll_back(store, "demo", None)
    with pytest.raises(EnvspecError, match="there is: none"):
        roll_back(store, "demo", 1)
    assert not (store.root / "profiles" / "demo").exists()


def test_a_rollback_to_a_collected_environment_is_refused(store: Store) -> None:
    switch(store, "a")
    switch(store, "b")
    (store.env(ENVS["a"], "demo") / "which").unlink()
    store.env(ENVS["a"], "demo").rmdir()
    for number in (1, None):
        with pytest.raises(EnvspecError, match=r"the environment of generation 1, `.*`, is gone") as caught:
            roll_back(store, "demo", number)
        assert "build it again" in caught.value.hint
    assert active(store) == "b"


def test_profiles_do_not_know_of_each_other(store: Store) -> None:
    switch(store, "a")
    switch(store, "b", "other.name_x")
    switch(store, "c")
    assert profile_names(store) == ("demo", "other.name_x")
    assert numbers(store, "other.name_x") == [(1, "b", True)]
    assert active(store, "other.name_x") == "b"


@pytest.mark.parametrize(
    ("one", "other"), [("a.b", "a_b"), ("a_b", "a__b"), ("a.-b", "a_-b"), ("a_.b", "a._b"), ("a-b", "a.b")]
)
def test_profiles_of_similar_names_have_locks_of_their_own(store: Store, one: str, other: str) -> None:
    for name in (one, other):
        activate(store, name, env=ENVS["a"], site="", lock_sha256="", spec_sha256="", created="")
    assert len([path for path in (store.root / "locks").iterdir() if path.name.startswith("profile-")]) == 2


def test_links_are_relative_so_that_a_store_can_be_mounted_elsewhere(store: Store, tmp_path: Path) -> None:
    switch(store, "a")
    moved = tmp_path / "moved"
    store.root.rename(moved)
    assert (moved / "profiles" / "demo" / "which").read_text() == "a"
    assert active_generation(Store(moved), "demo") is not None


@pytest.mark.parametrize("content", ["", "[]", '{"env": "x"}', "{"])
def test_a_generation_whose_record_cannot_be_read_does_not_count(store: Store, content: str) -> None:
    switch(store, "a")
    switch(store, "b")
    (store.root / "generations" / "demo" / "1.json").write_text(content)
    assert numbers(store) == [(2, "b", True)]
    assert switch(store, "c").number == 3


@pytest.mark.parametrize("left", ["1", ".demo.new", "junk.json", ".envspec-99999999-1.json"])
def test_what_a_killed_activation_left_does_not_stop_the_next(store: Store, left: str) -> None:
    folder = store.root / "generations" / "demo"
    folder.mkdir()
    for place in (folder, store.root / "profiles"):
        (place / left).symlink_to("nowhere")
    assert switch(store, "a").number == 1
    assert active(store) == "a"
    assert switch(store, "b").number == 2
    assert numbers(store) == [(1, "a", False), (2, "b", True)]


def test_the_profile_always_resolves_while_it_is_switched(store: Store) -> None:
    switch(store, "a")
    switch(store, "b")
    reader = process.start_worker([sys.executable, "-c", READER, os.fspath(store.root / "profiles" / "demo")], env={})
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        for count in range(SWITCHES):
            roll_back(store, "demo", count % 2 + 1)
        stdout, _ = reader.communicate(timeout=60)
    reads, misses, *seen = stdout.split()
    assert (misses, seen) == ("0", ["a", "b"])
    assert int(reads) > SWITCHES


def test_activations_from_several_threads_give_each_its_number(store: Store) -> None:
    threads = [threading.Thread(target=switch, args=(store, letter)) for letter in "abcabc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = list_generations(store, "demo")
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert [each.env for each in found if each.active] == [ENVS[active(store)]]
    for each in found:
        link = store.root / "generations" / "demo" / str(each.number)
        assert (link / "which").read_text() == each.site


def test_a_rollback_waits_for_a_collection(store: Store) -> None:
    switch(store, "a")
    switch(store, "b")
    done = threading.Event()

    def go_back() -> None:
        roll_back(store, "demo", 1)
        done.set()

    thread = threading.Thread(target=go_back)
    with store.lock("gc"):
        thread.start()
        assert not done.is_set()
        assert active(store) == "b"
    thread.join(30)
    assert done.is_set()
    assert active(store) == "a"


def test_a_failed_switch_leaves_what_was_active(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(store, "a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("builder.agent.generations.write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            switch(store, "b")
    assert active(store) == "a"
    assert numbers(store) == [(1, "a", True)]
    assert switch(store, "b").number == 2


def test_a_removed_generation_is_gone_and_removing_it_again_is_no_error(store: Store) -> None:
    switch(store, "a")
    switch(store, "b")
    for _ in range(2):
        remove_generation(store, "demo", 1)
    assert numbers(store) == [(2, "b", True)]
    assert sorted(path.name for path in (store.root / "generations" / "demo").iterdir()) == ["2", "2.json"]
    assert store.env(ENVS["a"], "demo").is_dir()


def test_the_record_says_what_it_was_built_from(store: Store) -> None:
    switch(store, "a", lock="abc", created="2026-11-30T00:00:00Z")
    fields = json.loads((store.root / "generations" / "demo" / "1.json").read_text())
    assert fields == {
        "env": ENVS["a"],
        "site": "a",
        "lock_sha256": "abc",
        "spec_sha256": "s",
        "created": "2026-11-30T00:00:00Z",
    }
