"""Whatever differs from what was built is seen, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.agent.bytecode import bytecode_path
from builder.agent.observe import (
    Drift,
    bytecode_drift,
    compare_manifests,
    find_drift,
    measure_site,
    read_env_record,
)
from builder.agent.store import env_record_path, remove_readonly_tree
from envspec.errors import EnvspecError
from envspec.tree import Entry, manifest, tree_digest
from tests.support.stores import (
    SITE,
    InlinePool,
    add_wheel,
    built,
    edit_in_place,
    forget_objects,
    make_plan,
    new_store,
    outlast,
    replace_file,
    this_interpreter,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.agent.observe import EnvRecord
    from builder.agent.realise import Plan, PlanPart
    from builder.agent.store import Store

ALPHA = f"{SITE}/alpha/__init__.py"
TOOL = f"{SITE}/alpha/tool"
RECORD = f"{SITE}/beta-1.0.dist-info/RECORD"


def pyc(path: str) -> str:
    return bytecode_path(path, this_interpreter().cache_tag)


class Bench:
    """A store with an environment, to be changed."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = new_store(folder / "store")
        self.parts: list[PlanPart] = [
            add_wheel(
                self.store,
                "alpha",
                {"alpha/__init__.py": "x = 1\n", "alpha/tool": "#!/bin/sh\n", "alpha/a b.txt": "t", "shared.py": "a\n"},
                executable=["alpha/tool"],
                entry_points="[console_scripts]\nalpha = alpha:main\n",
            ),
            add_wheel(self.store, "beta", {"beta.py": "", "shared.py": "b = 2\n"}),
        ]
        self.plan: Plan = make_plan(self.store, self.parts, owners={"shared.py": "alpha"})
        self.root = built(self.store, self.plan).path
        self.record: EnvRecord = read_env_record(self.store, self.plan.env, "demo")

    def drift(self) -> list[tuple[str, str]]:
        """What a look at the status finds, as (kind, path)."""
        return [(each.kind, each.path) for each in find_drift(self.store, self.record)]

    def read_by_status(self, monkeypatch: pytest.MonkeyPatch) -> set[str]:
        """Which files a look at the status reads."""
        read: set[str] = set()

        def hash_nothing(path: str) -> str:
            read.add(os.path.relpath(path, self.root))
            return ""

        monkeypatch.setattr("builder.agent.observe.hash_file", hash_nothing)
        self.drift()
        return read

    def deep(self) -> list[tuple[str, str]]:
        """What reading everything finds in the site and the bytecode."""
        expected = (self.store.receipts(self.plan.env) / "site.mtree").read_text(encoding="ascii")
        found = compare_manifests(expected, self.measure())
        return [(each.kind, each.path) for each in (*found, *bytecode_drift(self.store, self.record))]

    def measure(self) -> str:
        return measure_site(self.root, InlinePool(self.store), lambda _bytes: None)

    def path(self, path: str) -> Path:
        """A path of the environment, in folders that may be written."""
        found = self.root / path
        for folder in (found.parent, *found.parents):
            if folder.is_dir() and folder.is_relative_to(self.root):
                folder.chmod(0o755)
        return found

    def another_environment(self) -> None:
        """Build a further environment of the same wheels: it links the same inodes and renews the stamps of their objects."""
        outlast(self.store.root, max(self.root.joinpath(path).lstat().st_ctime_ns for path in (ALPHA, TOOL)))
        other = add_wheel(self.store, f"other{len(list((self.store.root / 'envs').iterdir()))}")
        built(self.store, make_plan(self.store, [*self.parts, other], owners={"shared.py": "alpha"}, name="other"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # What a power cut would leave is not looked at here, and syncing waits for all that the machine writes.
    monkeypatch.setattr("builder.agent.realise.sync_filesystem", lambda _path: None)
    return Bench(tmp_path)


# -- nothing wrong --------------------------------------------------------------------------------------------------------------------


def test_an_untouched_environment_has_no_drift(bench: Bench) -> None:
    assert bench.drift() == []
    assert bench.deep() == []


def test_an_untouched_environment_is_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.read_by_status(monkeypatch) == {*bench.record.fields["generated"], *bench.record.fields["host_files"]}


def test_a_later_environment_of_the_same_files_is_no_drift_and_costs_no_reading(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.another_environment()
    assert bench.drift() == []
    assert bench.deep() == []
    assert bench.read_by_status(monkeypatch) == {*bench.record.fields["generated"], *bench.record.fields["host_files"]}


def test_other_links_to_a_file_are_no_drift(bench: Bench, tmp_path: Path) -> None:
    outlast(tmp_path, (bench.root / ALPHA).stat().st_ctime_ns)
    os.link(bench.root / ALPHA, tmp_path / "elsewhere")
    assert bench.drift() == []


def test_the_deep_manifest_is_the_expected_one_to_the_byte(bench: Bench) -> None:
    text = bench.measure()
    assert text == (bench.store.receipts(bench.plan.env) / "site.mtree").read_text(encoding="ascii")
    assert tree_digest(text) == bench.plan.site


def test_the_deep_manifest_counts_what_it_hashed(bench: Bench) -> None:
    hashed: list[int] = []
    measure_site(bench.root, InlinePool(bench.store), hashed.append)
    expected = (bench.store.receipts(bench.plan.env) / "site.mtree").read_text(encoding="ascii")
    assert sum(hashed) == sum(int(word[5:]) for word in expected.split() if word.startswith("size="))


@pytest.mark.parametrize(("files", "size"), [(1, 1 << 20), (1000, 1), (3, 10)])
def test_the_deep_manifest_does_not_depend_on_the_batches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, files: int, size: int
) -> None:
    expected = bench.measure()
    monkeypatch.setattr("builder.agent.observe.BATCH_FILES", files)
    monkeypatch.setattr("builder.agent.observe.BATCH_BYTES", size)
    assert bench.measure() == expected


def test_an_environment_without_scripts_has_no_bin_in_its_manifest(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    plan = make_plan(store, [add_wheel(store, "alpha")])
    root = built(store, plan).path
    assert tree_digest(measure_site(root, InlinePool(store), lambda _bytes: None)) == plan.site


# -- what may happen to a file --------------------------------------------------------------------------------------------------------


def _edit(path: Path) -> None:
    edit_in_place(path, b"\0" * path.stat().st_size)


def _replace_with_the_same_size(path: Path) -> None:
    replace_file(path, b"\0" * path.stat().st_size, mode=path.stat().st_mode & 0o777)


def _lengthen(path: Path) -> None:
    edit_in_place(path, path.read_bytes() + b"\n")


def _flip_executable(path: Path) -> None:
    path.chmod(path.stat().st_mode & 0o777 ^ 0o111)


def _link_to_a_copy(path: Path) -> None:
    copy = path.parent / "copy-elsewhere"
    shutil.copy2(path, copy)
    path.unlink()
    path.symlink_to(copy)


def _put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _remove(path: Path) -> None:
    path.unlink()


CHANGES = [_edit, _replace_with_the_same_size, _lengthen]
PATHS = [ALPHA, TOOL, f"{SITE}/alpha/a b.txt", "bin/alpha", f"{SITE}/alpha-1.0.dist-info/RECORD", RECORD]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", [*PATHS, pyc(ALPHA)])
def test_changed_content_is_seen_by_status_and_deep(bench: Bench, change: Callable[[Path], None], path: str) -> None:
    change(bench.path(path))
    assert bench.drift() == [("modified", path)]
    assert bench.deep() == [("modified", path)]


@pytest.mark.parametrize("path", ["pyvenv.cfg", "bin/activate", "bin/activate.fish"])
@pytest.mark.parametrize("change", [*CHANGES, _link_to_a_copy, _put_a_pipe])
def test_changed_files_of_the_host_are_seen_by_status_and_are_no_part_of_the_site(
    bench: Bench, change: Callable[[Path], None], path: str
) -> None:
    change(bench.path(path))
    assert [each for each in bench.drift() if not each[1].endswith("copy-elsewhere")] == [("modified", path)]
    assert [each for each in bench.deep() if not each[1].endswith("copy-elsewhere")] == []


@pytest.mark.parametrize("path", [*PATHS, pyc(ALPHA)])
def test_a_missing_file_is_seen_by_status_and_deep(bench: Bench, path: str) -> None:
    bench.path(path).unlink()
    assert bench.drift() == [("missing", path)]
    assert bench.deep() == [("missing", path)]


@pytest.mark.parametrize("path", ["pyvenv.cfg", "bin/activate", "bin/python", "bin/python3"])
def test_a_missing_file_of_the_host_is_seen_by_status(bench: Bench, path: str) -> None:
    bench.path(path).unlink()
    assert bench.drift() == [("missing", path)]
    assert bench.deep() == []


@pytest.mark.parametrize("path", [ALPHA, TOOL])
def test_the_executable_bit_is_seen_by_status_and_deep(bench: Bench, path: str) -> None:
    _flip_executable(bench.path(path))
    assert bench.drift() == [("modified", path)]
    assert bench.deep() == [("modified", path)]


@pytest.mark.parametrize("change", [_link_to_a_copy, _put_a_pipe])
def test_a_file_that_is_no_ordinary_one_any_more_is_seen(bench: Bench, change: Callable[[Path], None]) -> None:
    change(bench.path(ALPHA))
    for found in (bench.drift(), bench.deep()):
        assert [each for each in found if not each[1].endswith("copy-elsewhere")] == [("modified", ALPHA)]


def test_a_folder_in_the_place_of_a_file_is_seen(bench: Bench) -> None:
    _put_a_folder(bench.path(ALPHA))
    assert bench.drift() == [("modified", ALPHA)]
    assert bench.deep() == [("modified", ALPHA)]


def test_a_link_in_the_place_of_a_folder_is_seen_even_if_its_content_is_the_same(bench: Bench, tmp_path: Path) -> None:
    folder = bench.path(ALPHA).parent
    shutil.move(folder, tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert bench.drift() == [("extra", f"{SITE}/alpha")]
    assert ("modified", f"{SITE}/alpha") in bench.deep()


def test_a_file_in_the_place_of_a_folder_is_seen(bench: Bench) -> None:
    folder = bench.path(ALPHA).parent
    remove_readonly_tree(folder)
    folder.write_text("")
    assert ("missing", ALPHA) in bench.drift()
    assert ("extra", f"{SITE}/alpha") in bench.drift()
    assert ("modified", f"{SITE}/alpha") in bench.deep()


@pytest.mark.parametrize("target", ["/usr/bin/false", "python3", "../bin/python"])
@pytest.mark.parametrize("name", ["bin/python", "bin/python3"])
def test_another_target_of_a_link_to_the_interpreter_is_seen(bench: Bench, name: str, target: str) -> None:
    path = bench.path(name)
    path.unlink()
    path.symlink_to(target)
    (found,) = find_drift(bench.store, bench.record)
    assert (found.kind, found.path) == ("modified", name)
    assert str(this_interpreter().path if name == "bin/python" else "python") in found.detail


def test_a_program_in_the_place_of_a_link_is_seen(bench: Bench) -> None:
    bench.path("bin/python").unlink()
    (bench.root / "bin" / "python").write_text("#!/bin/sh\n")
    assert bench.drift() == [("modified", "bin/python")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_modified(bench: Bench) -> None:
    bench.path(ALPHA).chmod(0o000)
    assert ("modified", ALPHA) in bench.drift()
    assert ("modified", ALPHA) in bench.deep()


# -- what should not be there ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["extra", f"{SITE}/sitecustomize.py", f"{SITE}/zzz.pth", f"{SITE}/alpha/new.so", "bin/pip", "lib64/x"]
)
def test_an_extra_file_is_seen_by_status_and_deep(bench: Bench, path: str) -> None:
    place = bench.path(path)
    place.parent.mkdir(exist_ok=True)
    place.write_text("")
    assert bench.drift() == [("extra", path)]
    assert ("extra", path) in bench.deep()


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/alpha/__pycache__/__init__.cpython-399.pyc",
        f"{SITE}/alpha/inner/__pycache__/x.pyc",
        "bin/python3.99",
        "bin/activate.csh",
    ],
)
def test_extra_files_of_the_host_s_kind_are_seen_by_status(bench: Bench, path: str) -> None:
    place = bench.path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("")
    assert bench.drift() == [("extra", path)]


def test_an_extra_folder_is_seen_by_status_and_deep_since_it_can_be_imported(bench: Bench) -> None:
    bench.path(f"{SITE}/torch").mkdir()
    assert bench.drift() == [("extra", f"{SITE}/torch")]
    assert bench.deep() == [("extra", f"{SITE}/torch")]


def test_a_link_that_leads_nowhere_is_extra(bench: Bench) -> None:
    bench.path(f"{SITE}/dangling").symlink_to("nowhere")
    assert bench.drift() == bench.deep() == [("extra", f"{SITE}/dangling")]


def test_everything_is_told_at_once_sorted_by_path(bench: Bench) -> None:
    edit_in_place(bench.path(ALPHA), b"x = 2\n")
    bench.path(TOOL).unlink()
    bench.path("aaa").write_text("")
    assert bench.drift() == [("extra", "aaa"), ("modified", ALPHA), ("missing", TOOL)]


# -- what happens to the store beside it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", [ALPHA, pyc(ALPHA)])
def test_a_later_environment_does_not_hide_drift(bench: Bench, change: Callable[[Path], None], path: str) -> None:
    """A new inode in this environment is not one that the later build proved, however young its stamps."""
    place = bench.path(path)
    before = place.stat().st_ino
    change(place)
    if place.stat().st_ino == before:  # an edit in place hits the object too, and the other build would refuse it
        forget_objects_but_environments(bench)
    bench.another_environment()
    assert bench.drift() == [("modified", path)]
    assert bench.deep() == [("modified", path)]


def forget_objects_but_environments(bench: Bench) -> None:
    """What `build --repair` does with damaged objects: they are made anew, with new inodes and new stamps."""
    environments = bench.store.root / "envs"
    environments.rename(bench.store.root / "kept")
    environments.mkdir()
    forget_objects(bench.store)
    environments.rmdir()
    (bench.store.root / "kept").rename(environments)


def test_objects_that_were_made_anew_are_no_drift_of_older_environments(bench: Bench) -> None:
    forget_objects_but_environments(bench)
    bench.another_environment()
    assert not (bench.root / ALPHA).samefile(bench.store.tree(bench.parts[0].tree).path / ALPHA)
    assert bench.drift() == []
    assert bench.deep() == []


def test_copies_are_looked_at_like_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        bench = Bench(tmp_path)
    assert bench.drift() == []
    bench.another_environment()
    assert bench.drift() == []
    edit_in_place(bench.path(ALPHA), b"x = 2\n")
    bench.another_environment()
    assert bench.drift() == [("modified", ALPHA)]


def test_a_lost_manifest_is_told_once(bench: Bench) -> None:
    bench.store.tree(bench.parts[0].tree).manifest_path.unlink()
    (found,) = find_drift(bench.store, bench.record)
    assert (found.kind, found.path) == ("missing", "")
    assert f"trees/{bench.parts[0].tree}" in found.detail
    (lost,) = (bench.store.root / "bytecode").glob(f"{bench.parts[0].tree}-*.mtree")
    lost.write_bytes(lost.read_bytes()[:-1])
    (found,) = bytecode_drift(bench.store, bench.record)
    assert (found.kind, found.path) == ("missing", "")
    assert f"bytecode/{bench.parts[0].tree}" in found.detail


def test_lost_stamps_cost_reading_and_are_no_drift(bench: Bench) -> None:
    for stamp in bench.store.root.glob("*/*.proven"):
        stamp.unlink()
    assert bench.drift() == []
    bench.record.fields["proven"].clear()
    assert bench.drift() == []
    edit_in_place(bench.path(ALPHA), b"x = 2\n")
    assert bench.drift() == [("modified", ALPHA)]


def test_a_missing_environment_is_one_finding(bench: Bench) -> None:
    remove_readonly_tree(bench.root)
    assert find_drift(bench.store, bench.record) == (Drift("", "missing", "the whole environment is gone"),)


# -- records --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"name": "demo"}'])
def test_a_record_that_cannot_be_read_is_an_error_with_advice(bench: Bench, content: str | None) -> None:
    path = env_record_path(bench.store, bench.plan.env, "demo")
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(EnvspecError, match=f"no readable record of the environment `{bench.plan.env}`") as caught:
        read_env_record(bench.store, bench.plan.env, "demo")
    assert "envspec build" in caught.value.hint


def test_a_record_lacking_a_key_is_an_error(bench: Bench) -> None:
    path = env_record_path(bench.store, bench.plan.env, "demo")
    whole = json.loads(path.read_text())
    for key in ("site", "parts", "generated", "host_files", "host_links", "skipped", "proven", "bytecode_tag"):
        path.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        with pytest.raises(EnvspecError, match="no readable record"):
            read_env_record(bench.store, bench.plan.env, "demo")


def test_the_record_of_a_name_is_that_of_its_environment(bench: Bench) -> None:
    other = replace(bench.plan, name="other")
    built(bench.store, other)
    for name in ("demo", "other"):
        assert read_env_record(bench.store, bench.plan.env, name).path == bench.store.env(bench.plan.env, name)
    with pytest.raises(EnvspecError):
        read_env_record(bench.store, bench.plan.env, "third")


def test_manifests_are_compared_by_path_with_every_difference() -> None:
    one = manifest(
        [
            Entry("a b", "file", "1" * 64, 1),
            Entry("c", "file", "2" * 64, 2),
            Entry("d", "file", "3" * 64, 3),
            Entry("l", "link", target="x"),
        ]
    )
    two = manifest(
        [
            Entry("a b", "file", "1" * 64, 1, executable=True),
            Entry("d", "file", "3" * 64, 3),
            Entry("e/f ü", "file", "4" * 64, 4),
            Entry("l", "link", target="y"),
        ]
    )
    assert compare_manifests(one, one) == ()
    found = compare_manifests(one, two)
    assert [(each.kind, each.path) for each in found] == [
        ("modified", "a b"),
        ("missing", "c"),
        ("extra", "e"),
        ("extra", "e/f ü"),
        ("modified", "l"),
    ]
    assert "mode=0444" in found[0].detail.partition("found")[0]
    assert "mode=0555" in found[0].detail.partition("found")[2]
