"""Whatever is on disk after any step is the old series or the new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from envspec.patch import parse_series
from envspec.series_steps import is_left_over, replacement_steps, settled_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.series_steps import Step

NAMES = st.sampled_from(["0001-a.patch", "0002-b.patch", "0003-c.patch", "d.patch"])
SERIES = st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"2", b"3"])), max_size=4, unique_by=lambda patch: patch[0])

Patches = list[tuple[str, bytes]]


def folder_of(patches: Patches) -> dict[str, bytes]:
    return {"series": "".join(f"{name}\n" for name, _ in patches).encode(), **dict(patches)}


def read(folder: Mapping[str, bytes]) -> Patches:
    """The series as a reader finds it, under the names that the patches are to have."""
    names = parse_series(folder["series"].decode(), input_name="series")
    return [(settled_name(name), folder[name]) for name in names]


def steps_from(folder: Mapping[str, bytes], new: Patches, ours: set[str]) -> tuple[Step, ...]:
    left_over = {name for name, content in folder.items() if is_left_over(name, content)}
    return replacement_steps(
        series_name="series",
        text_before=folder.get("series"),
        text="".join(f"{name}\n" for name, _ in new).encode(),
        named_before=parse_series(folder["series"].decode(), input_name="series") if "series" in folder else (),
        there={name: content for name, content in folder.items() if name != "series"},
        patches=new,
        removable=ours | left_over,
    )


def done(folder: dict[str, bytes], steps: tuple[Step, ...]) -> dict[str, bytes]:
    folder = dict(folder)
    for step in steps:
        if step.content is None:
            del folder[step.name]
        else:
            folder[step.name] = step.content
    return folder


@given(SERIES, SERIES, st.data())
def test_after_each_step_the_series_is_the_old_or_the_new_one_and_what_was_begun_can_be_ended(
    old: Patches, new: Patches, data: st.DataObject
) -> None:
    start = folder_of(old)
    ours = {name for name, _ in old}
    steps = steps_from(start, new, ours)
    assert done(start, steps) == folder_of(new)
    turned = False
    for count in range(len(steps) + 1):
        now = read(done(start, steps[:count]))
        turned = turned or (now == new and old != new)
        assert now == (new if turned else old)
    # Killed anywhere, then begun again, and killed again.
    killed = done(start, steps[: data.draw(st.integers(0, len(steps)))])
    again = steps_from(killed, new, ours)
    for count in range(len(again) + 1):
        assert read(done(killed, again[:count])) in (old, new)
    assert done(killed, again) == folder_of(new)


@given(SERIES)
def test_series_that_is_there_needs_no_step(series: Patches) -> None:
    assert steps_from(folder_of(series), series, {name for name, _ in series}) == ()


@given(SERIES)
def test_first_series_is_there_once_its_file_is(new: Patches) -> None:
    steps = steps_from({}, new, set())
    assert steps[-1].name == "series"
    assert read(done({}, steps)) == new


def test_single_changed_patch_is_one_step() -> None:
    (step,) = steps_from(folder_of([("a", b"1"), ("b", b"2")]), [("a", b"1"), ("b", b"3")], {"a", "b"})
    assert (step.name, step.content) == ("b", b"3")


def test_only_what_has_the_digest_in_its_name_is_left_over() -> None:
    assert is_left_over("_saving-6b86b273-a.patch", b"1")
    assert not is_left_over("_saving-6b86b273-a.patch", b"2")
    assert not is_left_over("a.patch", b"1")
    assert settled_name("_saving-6b86b273-a.patch") == "a.patch"
    assert settled_name("a.patch") == "a.patch"
