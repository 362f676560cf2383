"""The committed series on its real base wheel, into a git work tree and back. Left out by default: it needs the wheel.

`ENVSPEC_TEST_WHEELHOUSE` names a folder of `<sha256>/<file>`, such as `<store>/wheels`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from builder.git import find_git
from builder.overlay import build_patched_wheel, read_series
from builder.overlay_editing import OverlayTask, edit, save
from envspec.lock_toml import parse_lock

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.real


@pytest.fixture
def task(tmp_path: Path) -> OverlayTask:
    """The flagship's series, copied."""
    lock = parse_lock((ROOT / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")
    package = next(one for one in lock.packages if one.name == "sglang")
    wheel = Path(os.environ.get("ENVSPEC_TEST_WHEELHOUSE", "/nonexistent")) / package.sha256 / package.file
    if not wheel.is_file():
        pytest.skip(f"ENVSPEC_TEST_WHEELHOUSE has no {package.file}")
    shutil.copytree(ROOT / "overlays" / "ddtree", tmp_path / "ddtree")
    return OverlayTask(
        package=package,
        series="overlays/ddtree/series",
        series_file=tmp_path / "ddtree" / "series",
        folder=tmp_path / "tree",
        git=find_git(os.environ),
        base_wheel=lambda: wheel,
        find_wheel=lambda _sha256: wheel,
    )


def test_committed_series_comes_out_of_its_work_tree_byte_for_byte(task: OverlayTask) -> None:
    before = {path.name: path.read_bytes() for path in task.series_file.parent.iterdir()}
    assert edit(task).left_out == ("sglang/srt/grpc/_core.cpython-312-x86_64-linux-gnu.so",)
    assert not save(task).written
    assert {path.name: path.read_bytes() for path in task.series_file.parent.iterdir()} == before


def test_series_written_anew_gives_the_same_files_in_about_as_many_lines(task: OverlayTask, tmp_path: Path) -> None:
    edit(task)
    before = read_series(task.series_file)
    wheel = build_patched_wheel(task.base_wheel(), before, destination_dir=tmp_path / "before")
    record = task.folder / ".git" / "envspec.json"
    for path in task.series_file.parent.glob("*.patch"):
        path.unlink()
    task.series_file.write_text("")
    record.write_text(record.read_text().replace('"patches": [', '"patches": [], "were": [', 1))
    assert {patch.status for patch in save(task).patches} == {"new"}
    after = read_series(task.series_file)
    again = build_patched_wheel(task.base_wheel(), after, destination_dir=tmp_path / "after")
    assert again.files == wheel.files
    lines = [sum(patch.content.count(b"\n") for patch in series.patches) for series in (before, after)]
    assert lines[1] <= 1.05 * lines[0]
