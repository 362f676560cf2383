"""Faults of disks, networks and neighbours: each ends in a clear error or a good result, with nothing half-made."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import fill
from tests.support.local_index import Fault, LocalIndex
from tests.support.projects import Project, make_writable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BIG = "beta-1.0-py3-none-any.whl"
HALF = 300_000


def noise(size: int) -> bytes:
    """Bytes that cannot be compressed, always the same."""
    return random.Random(7).randbytes(size)  # noqa: S311 - no secret


def big_package(project: Project, size: int = 2 * HALF) -> None:
    project.wheel("beta", "1.0", {"beta/__init__.py": "", "beta/noise.bin": noise(size)})
    project.write_spec({"beta": "*"}, imports=["beta"])


def requests_of(index: LocalIndex | None, file: str) -> list[tuple[int, str]]:
    assert index is not None
    return [(request.status, request.range) for request in index.requests if request.path.endswith(file)]


# Networks.


@pytest.mark.parametrize("verb", ["lock", "build"])
def test_connection_that_is_lost_halfway_is_taken_up_again(project: Project, verb: str) -> None:
    assert project.index is not None
    big_package(project)
    if verb == "build":
        project.good("lock")
        shutil.rmtree(project.store)
        project.index.requests.clear()
    project.index.faults[BIG] = Fault("cut", times=1, after=HALF)
    project.good(verb)
    (first, *_, last) = requests_of(project.index, BIG)
    assert first == (200, "")
    assert last[0] == 206
    assert int(last[1].removeprefix("bytes=").rstrip("-")) > 0


def test_next_run_goes_on_where_a_lost_connection_stopped(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert project.index is not None
    big_package(project)
    project.good("lock")
    shutil.rmtree(project.store)
    faults = [Fault("cut", after=HALF), Fault("status", status=404)]
    monkeypatch.setattr(project.index, "take_fault", lambda key: faults.pop(0) if key == BIG and faults else None)
    ran = project.run("build")
    assert ran.code == 1
    assert BIG in ran.stderr
    assert project.environments() == []
    assert project.leftovers() == []
    project.index.requests.clear()
    project.good("build")
    ((status, wanted),) = requests_of(project.index, BIG)
    assert status == 206
    assert int(wanted.removeprefix("bytes=").rstrip("-")) > 0


@pytest.mark.parametrize("verb", ["lock", "build"])
def test_mirror_that_serves_other_bytes_is_refused(project: Project, verb: str) -> None:
    assert project.index is not None
    big_package(project)
    if verb == "build":
        project.good("lock")
        shutil.rmtree(project.store)
    project.index.faults[BIG] = Fault("corrupt")
    ran = project.run(verb)
    assert ran.code == 1
    assert BIG in ran.stderr
    assert "sha256" in ran.stderr
    assert list(project.store.glob("wheels/*/*.whl")) == []
    assert project.environments() == []
    assert project.leftovers() == []
    assert project.lock_path.exists() == (verb == "build")
    del project.index.faults[BIG]
    project.good(verb)


def test_mirror_that_never_ends_is_refused(project: Project) -> None:
    assert project.index is not None
    big_package(project)
    project.good("lock")
    shutil.rmtree(project.store)
    project.index.faults[BIG] = Fault("endless")
    ran = project.run("build")
    assert ran.code in {1, 2}
    assert BIG in ran.stderr
    assert project.environments() == []


# Neighbours.


def test_two_builds_of_one_environment_at_once(locked: Project) -> None:
    for wheel in locked.store.glob("wheels/*"):
        shutil.rmtree(wheel)
    builds = [locked.start("build", "--json") for _ in range(3)]
    answers = [build.communicate(timeout=100) for build in builds]
    assert [build.returncode for build in builds] == [0, 0, 0], answers
    assert len(locked.environments()) == 1
    assert len(list(locked.store.glob("generations/demo/*.json"))) == 1
    assert sum('"built": true' in out for out, _ in answers) == 1
    assert locked.leftovers() == []
    locked.good("verify", "--deep")


def test_two_builds_of_different_environments_at_once(locked: Project) -> None:
    """They share one wheel and differ in a patch, in one store."""
    shutil.rmtree(locked.store)
    other = Project(locked.folder / "other", locked.index, store=locked.store)
    shutil.copytree(locked.spec_folder, other.spec_folder, dirs_exist_ok=True)
    other.spec_path.write_text(other.spec_path.read_text().replace('name = "demo"', 'name = "other"'))
    other.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 9")
    other.good("lock", "--store", locked.folder / "elsewhere")
    builds = [project.start("build") for project in (locked, other)]
    answers = [build.communicate(timeout=100) for build in builds]
    assert [build.returncode for build in builds] == [0, 0], answers
    assert locked.good("run", "--", "alpha").stdout == "alpha 2\n"
    assert other.good("run", "--", "alpha").stdout == "alpha 9\n"
    assert locked.leftovers() == []
    for project in (locked, other):
        project.good("verify", "--deep")


def test_same_environment_under_two_names(built: Project) -> None:
    """One env id, two places: neither build, status nor gc of one takes the other for its own."""
    other = Project(built.folder / "other", built.index, store=built.store)
    shutil.copytree(built.spec_folder, other.spec_folder, dirs_exist_ok=True)
    other.spec_path.write_text(other.spec_path.read_text().replace('name = "demo"', 'name = "other"'))
    other.good("lock")
    other.good("build")
    assert len(built.environments()) == 2
    for project in (built, other):
        project.good("status")
        project.good("verify", "--deep")
        assert project.good("run", "--", "alpha").stdout == "alpha 2\n"
    built.good("gc", "--keep", "1")
    for project in (built, other):
        project.good("verify", "--deep")


def test_gc_beside_a_build_takes_nothing_from_it(locked: Project) -> None:
    build = locked.start("build")
    collections = [locked.start("gc", "--keep", "1") for _ in range(3)]
    for process in (build, *collections):
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    assert locked.good("run", "--", "alpha").stdout == "alpha 2\n"
    locked.good("verify", "--deep")


def test_two_locks_at_once(project: Project) -> None:
    fill(project)
    locks = [project.start("lock") for _ in range(3)]
    answers = [lock.communicate(timeout=100) for lock in locks]
    assert [lock.returncode for lock in locks] == [0, 0, 0], answers
    project.good("lock", "--check")
    assert project.leftovers() == []


# Disks.


class Mounts:
    """A mount namespace of its own, so that a test may mount what it likes."""

    def __init__(self, holder: subprocess.Popen[str]) -> None:
        self._holder = holder
        self.inside = ["nsenter", f"--target={holder.pid}", "--mount"]

    def sh(self, script: str, *arguments: str | Path) -> None:
        """Run a script in the namespace."""
        subprocess.run([*self.inside, "sh", "-ec", script, "sh", *map(str, arguments)], check=True, capture_output=True)

    def tmpfs(self, folder: Path, size: str = "64m") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.sh('mount -t tmpfs -o size="$2" tmpfs "$1"', folder, size)

    def read_only(self, folder: Path) -> None:
        self.sh('mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"', folder)

    def seen(self, folder: Path) -> Path:
        """A folder as the namespace has it."""
        return Path(f"/proc/{self._holder.pid}/root{folder}")

    def at(self, folder: Path) -> Sequence[str]:
        """What to begin a command with, so that it runs in the namespace and in a folder."""
        return [*self.inside, "sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder)]


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    with namespace() as made:
        yield made


@contextmanager
def namespace() -> Iterator[Mounts]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    if any(shutil.which(program) is None for program in ("unshare", "nsenter", "mount")):
        pytest.skip("util-linux is not installed")
    holder = subprocess.Popen(
        [
            "/usr/bin/env",
            "unshare",
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            "mount -t tmpfs none /mnt && echo ready && read line",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip("this machine lets nobody mount anything")
        yield Mounts(holder)
    finally:
        holder.communicate("\n")


@pytest.mark.parametrize("megabytes", [1, 2, 3, 4, 5])
def test_full_disk_is_told_and_nothing_is_half_made(project: Project, mounts: Mounts, megabytes: int) -> None:
    """The sizes are such that one or another step finds no room: fetching, unpacking, patching, or none of them."""
    big_package(project, 1_500_000)
    project.write_patch("beta/__init__.py", "", "VALUE = 2")
    mounts.tmpfs(project.store, f"{megabytes}m")
    before = mounts.at(project.spec_folder)
    store = mounts.seen(project.store)
    for verb in ("lock", "build"):
        ran = project.run(verb, before=before)
        if ran.code != 0:
            assert ran.code == 2, ran.text
            assert "space" in ran.stderr.lower() or "more bytes in the store" in ran.stderr
            assert list((store / "envs").glob("*")) == []
            assert list((store / ".tmp").glob("*")) == []
            assert (verb == "build") == project.lock_path.exists()
            assert project.leftovers() == []
            mounts.sh('mount -o remount,size=64m "$1"', project.store)
            project.good(verb, before=before)
    project.good("verify", "--deep", before=before)
    assert list((store / ".tmp").glob("*")) == []


def test_disk_that_fills_up_beside_the_spec_keeps_the_old_lock(locked: Project, mounts: Mounts) -> None:
    before = locked.lock_text()
    spec = locked.spec_path.read_text().replace('"==1.0"', '">=1"')
    mounts.sh('cp -a "$1" /mnt/copy', locked.spec_folder)
    mounts.tmpfs(locked.spec_folder, "64k")
    mounts.sh('cp -a /mnt/copy/. "$1"', locked.spec_folder)
    seen = mounts.seen(locked.spec_folder)
    (seen / "demo.toml").write_text(spec)
    mounts.sh('dd if=/dev/zero of="$1/ballast" bs=1k count=1000 2>/dev/null || true', locked.spec_folder)
    ran = locked.run("lock", before=mounts.at(locked.spec_folder))
    assert ran.code == 2
    assert "space" in ran.stderr
    assert (seen / "demo.lock").read_text() == before
    assert sorted(path.name for path in seen.iterdir()) == ["ballast", "demo.lock", "demo.toml", "overlays"]
    (seen / "ballast").unlink()
    locked.good("lock", before=mounts.at(locked.spec_folder))


def test_read_only_store_is_told_with_what_to_do(locked: Project, mounts: Mounts) -> None:
    mounts.read_only(locked.store)
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    for verb in (("lock",), ("gc",), ("lock", "--upgrade", "beta")):
        ran = locked.run(*verb, before=mounts.at(locked.spec_folder))
        assert ran.code == 2
        assert "Read-only file system" in ran.stderr
        assert "--store" in ran.stderr


def test_read_only_store_can_be_looked_at_and_run_from(built: Project, mounts: Mounts) -> None:
    mounts.read_only(built.store)
    before = mounts.at(built.spec_folder)
    for verb in ("build", "status", "generations"):
        built.good(verb, before=before)
    assert built.good("run", "--", "alpha", before=before).stdout == "alpha 2\n"
    ran = built.run("rollback", before=before)
    assert ran.code == 2


def test_build_in_a_read_only_store_is_told_with_what_to_do(locked: Project, mounts: Mounts) -> None:
    mounts.read_only(locked.store)
    ran = locked.run("build", before=mounts.at(locked.spec_folder))
    assert ran.code == 2
    assert "cannot be written: Read-only file system" in ran.stderr
    assert "--store" in ran.stderr


def test_spec_in_a_read_only_folder_can_be_built_from(locked: Project, mounts: Mounts) -> None:
    mounts.read_only(locked.spec_folder)
    before = mounts.at(locked.spec_folder)
    locked.good("lock", before=before)
    locked.good("build", before=before)
    locked.good("status", before=before)


@pytest.mark.parametrize(
    "folders", [("wheels",), ("trees",), ("bytecode",), ("envs",), (".tmp",), ("trees", "bytecode")], ids=" ".join
)
def test_store_over_several_file_systems(project: Project, mounts: Mounts, folders: tuple[str, ...]) -> None:
    """A folder of the store may be a mount or a link to another disk: slower, or refused, but never half-made."""
    fill(project)
    for folder in folders:
        mounts.tmpfs(project.store / folder)
    before = mounts.at(project.spec_folder)
    project.good("lock", before=before)
    ran = project.run("build", before=before)
    store = mounts.seen(project.store)
    if ran.code == 0:
        project.good("verify", "--deep", before=before)
        assert project.good("run", "--", "alpha", before=before).stdout == "alpha 2\n"
    else:
        assert ran.code in {1, 2}
        assert "file system" in ran.stderr or "cross-device" in ran.stderr
        assert list((store / "envs").glob("*")) == []
        assert list((store / "profiles").glob("*")) == []
    assert list((store / ".tmp").glob("*")) == []


def test_store_on_another_file_system_than_the_spec(locked: Project) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == locked.folder.stat().st_dev:
        pytest.skip("there is no other file system")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        store = Path(folder, "store")
        locked.good("build", "--store", store)
        locked.good("verify", "--deep", "--store", store)
        assert locked.good("run", "--store", store, "--", "alpha").stdout == "alpha 2\n"
        make_writable(store)


@pytest.mark.parametrize("verb", ["lock", "build", "status", "verify", "generations", "rollback", "gc"])
def test_file_in_place_of_the_store_is_told(locked: Project, verb: str) -> None:
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3") if verb == "lock" else None
    place = locked.folder / "file"
    place.write_text("x")
    ran = locked.run(verb, "--store", place)
    assert ran.code in {1, 2} or verb == "generations"
    assert str(place) in ran.text
    assert place.read_text() == "x"


def test_store_of_another_format_is_refused(locked: Project) -> None:
    (locked.store / "store.json").write_text('{"store": 2}\n')
    for verb in ("build", "status", "verify", "generations", "rollback", "gc"):
        ran = locked.run(verb)
        assert ran.code == 2, verb
        assert "has format 2, this envspec knows 1" in ran.stderr
