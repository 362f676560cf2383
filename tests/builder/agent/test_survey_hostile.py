"""Trees that are made to trip whoever looks at them: nothing is followed out, nothing is opened that is no file, and all of it ends."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent import survey_files, survey_metadata, survey_reading, survey_tree
from builder.agent.survey_files import Look, look_at_file, look_at_files
from builder.agent.survey_tree import Notes, Tree
from builder.observing import observe
from envspec.errors import EnvspecError
from tests.support.tiny_elf import tiny_library
from tests.support.venvs import SITE, install, make_venv
from tests.support.wheels import record_row

if TYPE_CHECKING:
    from envspec.observed import Observation, ObservedFile


def seen(venv: Path) -> Observation:
    return observe(os.fspath(venv), remember=False)


def every(observation: Observation) -> dict[str, ObservedFile]:
    rows = [file for each in observation.distributions for file in each.files]
    return {file.path.removeprefix(f"{SITE}/"): file for file in [*rows, *observation.strays]}


# -- links ----------------------------------------------------------------------------------------------------------------------------


def test_links_out_of_the_venv_are_named_and_not_followed(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("secret")
    install(venv, "demo", "1.0", {"demo/a.py": "a"}, rows=["linked/secret.py,,", "demo/link.py,,"])
    (venv / SITE / "linked").symlink_to(outside)
    (venv / SITE / "demo/link.py").symlink_to(outside / "secret.py")
    (venv / SITE / "evil-1.0.dist-info").symlink_to(outside)
    observation = seen(venv)
    files = every(observation)
    assert (files["linked/secret.py"].kind, files["linked/secret.py"].sha256) == ("unreadable", "")
    link = files["demo/link.py"]
    assert (link.kind, link.target, link.sha256) == ("link", os.fspath(outside / "secret.py"), "")
    assert (files["linked"].kind, files["linked"].target) == ("link", os.fspath(outside))
    assert [each.name for each in observation.distributions] == ["demo"]
    assert observation.notes == (
        f"`{SITE}/evil-1.0.dist-info` is a link to `{outside}` and is not followed",
        f"`{SITE}/linked` is a link to `{outside}`: what lies behind it was not looked at",
    )


def test_links_within_the_venv_lead_to_the_files_that_python_sees(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {"real/a.py": "a"}, rows=[record_row("alias/a.py", b"a")])
    (venv / SITE / "alias").symlink_to("../../../lib/python3.12/site-packages/real")
    file = every(seen(venv))["alias/a.py"]
    assert (file.kind, file.sha256 == file.recorded != "") == ("file", True)


@pytest.mark.parametrize("target", ["loop", "./loop", "../site-packages/loop", "other"])
def test_loops_of_links_end(tmp_path: Path, target: str) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", rows=["loop/a.py,,", "loop/loop/b.py,,"])
    (venv / SITE / "loop").symlink_to(target)
    (venv / SITE / "other").symlink_to("loop")
    files = every(seen(venv))
    assert files["loop/a.py"].kind == files["loop/loop/b.py"].kind == "unreadable"
    assert (files["loop"].kind, files["loop"].target) == ("missing", target)  # it leads nowhere


# -- what is no file ------------------------------------------------------------------------------------------------------------------


def test_pipes_sockets_and_devices_are_never_opened(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    site = venv / SITE
    folder = install(venv, "demo", "1.0", without=["METADATA"], rows=["demo/pipe.py,,", "demo/null.so,,"])
    os.mkfifo(site / "demo/pipe.py")
    os.mkfifo(folder / "METADATA")
    os.mkfifo(folder / "direct_url.json")
    os.mkfifo(site / "x.pth")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(site)  # the name of a socket is short
        server.bind("sock.py")
        os.chdir(here)
        if os.geteuid() == 0:
            os.mknod(site / "demo/null.so", stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero never ends
        observation = seen(venv)
    files = every(observation)
    assert files["demo/pipe.py"].kind == files["x.pth"].kind == files["sock.py"].kind == "other"
    assert files["demo/null.so"].kind == ("other" if os.geteuid() == 0 else "missing")
    assert observation.distributions[0].problems == ("METADATA is missing",)


def test_file_that_became_a_pipe_or_a_link_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert look_at_file(os.fspath(tmp_path), "pipe", ()) == Look("", "is no ordinary file any more", (), None, [])
    assert look_at_file(os.fspath(tmp_path), "link", ()).problem == "Too many levels of symbolic links"
    assert look_at_file(os.fspath(tmp_path), "absent", ()).problem == "No such file or directory"


# -- too much -------------------------------------------------------------------------------------------------------------------------


def test_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_reading, "LARGEST_FILE_BYTES", 1 << 20)
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0")
    with (venv / SITE / "sparse.so").open("wb") as file:
        file.truncate(1 << 40)
    observation = seen(venv)
    file_seen = every(observation)["sparse.so"]
    assert (file_seen.kind, file_seen.size, file_seen.sha256) == ("unreadable", 1 << 40, "")
    assert observation.notes == (f"`{SITE}/sparse.so` has {1 << 40} bytes and was not read",)


def test_more_than_so_many_bytes_in_all_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_reading, "MOST_BYTES", 5000)
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {f"demo/{number}.bin": bytes(1000) for number in range(20)})
    observation = seen(venv)
    kinds = [file.kind for file in every(observation).values()]
    assert kinds.count("unreadable") > 10
    assert observation.bytes_read <= 5000


def test_too_many_files_are_cut_off_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_tree, "MOST_PATHS", 50)
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {f"demo/{number}.py": "" for number in range(100)})
    observation = seen(venv)
    assert any("more than 50 files" in note for note in observation.notes)
    assert observation.files_seen <= 50
    assert not any(file.kind == "missing" for file in every(observation).values())  # nobody looked


def test_folders_as_deep_as_the_system_lets_them_be_are_walked(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    here = Path.cwd()
    os.chdir(venv / SITE)
    try:
        for _ in range(60):
            Path("d" * 100).mkdir()
            os.chdir("d" * 100)
    finally:
        os.chdir(here)
    observation = seen(venv)
    assert any("File name too long" in note for note in observation.notes)


@pytest.mark.parametrize(
    ("name", "value", "record", "problem"),
    [
        ("MOST_ROWS", 10, "".join(f"demo/{number}.py,,\n" for number in range(100)), "RECORD has more than 10 rows"),
        ("RECORD_LIMIT_BYTES", 100, "demo/a.py,,\n" * 100, "RECORD has more than 100 bytes"),
    ],
)
def test_record_without_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int, record: str, problem: str
) -> None:
    monkeypatch.setattr(survey_metadata, name, value)
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", metadata={"RECORD": record})
    (distribution,) = seen(venv).distributions
    assert any(each.startswith(problem) for each in distribution.problems)
    assert len(distribution.files) <= 10


def test_metadata_that_is_all_headers_is_cut_off(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    headers = "Name: demo\nVersion: 1.0\n" + "Requires-Dist: x\n" * 100_000
    install(venv, "demo", "1.0", metadata={"METADATA": headers, "entry_points.txt": "x" * 100_000})
    (distribution,) = seen(venv).distributions
    assert len(distribution.requires_dist) <= survey_metadata.MOST_HEADERS
    assert any("entry_points.txt" in each for each in distribution.problems)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"url": 1', '{"url": "http://[::1"}', "null", '{"url": "x", "dir_info": 3}']
)
def test_origin_that_is_none_is_a_problem(tmp_path: Path, text: str) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", metadata={"direct_url.json": text})
    (distribution,) = seen(venv).distributions
    assert (distribution.direct_url, distribution.problems) == ("", ("direct_url.json cannot be read",))


def test_names_in_record_that_no_file_can_have_are_missing(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    names = ["a\0b.py", "x" * 5000, "../" * 200 + "etc/passwd", "/", "..", "demo/.", "\x1b[2J"]
    install(venv, "demo", "1.0", rows=[f'"{name}",,' for name in names])
    (distribution,) = seen(venv).distributions
    files = {file.path: file for file in distribution.files}
    assert files["/etc/passwd"].sha256 == ""
    assert files[f"{SITE}/a\0b.py"].kind == "missing"


# -- what cannot be read --------------------------------------------------------------------------------------------------------------


def refusing(paths: set[str], real: Any) -> Any:
    def refused(path: Any, *arguments: Any, **more: Any) -> Any:
        if os.fspath(path).rpartition("/")[2] in paths:
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **more)

    return refused


def test_files_and_folders_that_nobody_may_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {"demo/closed.py": "x", "locked/a.py": "a"})
    monkeypatch.setattr(os, "open", refusing({"closed.py"}, os.open))
    monkeypatch.setattr(os, "scandir", refusing({"locked"}, os.scandir))
    observation = seen(venv)
    files = every(observation)
    assert files["demo/closed.py"].kind == files["locked/a.py"].kind == "unreadable"
    assert observation.notes == (
        f"`{SITE}/locked` cannot be listed: Permission denied",
        f"`{SITE}/demo/closed.py`: Permission denied",
    )


def test_file_that_changes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {"demo/grows.py": "x"})
    place = venv / SITE / "demo/grows.py"
    real = os.readv

    def readv(fd: int, buffers: Any) -> int:
        count = real(fd, buffers)
        if count == 1 and place.stat().st_size < 3:
            with place.open("a") as file:
                file.write("more")
        return count

    monkeypatch.setattr(os, "readv", readv)
    observation = seen(venv)
    assert observation.notes == (f"`{SITE}/demo/grows.py`: changed while it was read",)


def test_worker_that_dies_of_a_file_takes_nobody_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mapped file does that is cut off while it is read."""
    for name in ("a.py", "b.py", "deadly.py", "c.py"):
        (tmp_path / name).write_text(name)

    class Pool:
        size = 1

        def __init__(self, *_arguments: Any, **_more: Any) -> None: ...

        def __enter__(self) -> Pool:  # noqa: PYI034
            return self

        def __exit__(self, *_arguments: object) -> None: ...

        def submit(self, task: dict[str, Any]) -> Pool:
            self.task = task
            return self

        def result(self) -> dict[str, Any]:
            if "deadly.py" in self.task["paths"]:
                raise EnvspecError("a worker process ended in the middle of `look`")
            return {"looks": [list(look_at_file(self.task["root"], path, ())) for path in self.task["paths"]]}

    monkeypatch.setattr(survey_files, "WorkerPool", Pool)
    monkeypatch.setattr(survey_files, "FEW_BYTES", 0)
    names = [(path.name, 1) for path in tmp_path.iterdir()]
    looks = dict(look_at_files(os.fspath(tmp_path), (), names, store_root=tmp_path, advance=lambda _size: None))
    assert looks.pop("deadly.py").problem == "cannot be read: a process that reads it dies"
    assert sorted(name for name, look in looks.items() if look.sha256) == ["a.py", "b.py", "c.py"]


# -- binaries -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 16, 63, 64, 100, 200])
def test_binary_that_is_cut_off_is_damaged_and_ends_nothing(tmp_path: Path, size: int) -> None:
    venv = make_venv(tmp_path / "venv")
    install(venv, "demo", "1.0", {"demo/a.so": tiny_library(soname="a")[:size]})
    (distribution,) = seen(venv).distributions
    (binary,) = distribution.binaries.binaries
    assert binary.path == f"{SITE}/demo/a.so"
    assert binary.damage


def test_binary_that_takes_all_memory_is_damaged(tmp_path: Path) -> None:
    """A string table of 1.1 GB in a file of that size, which is mapped by another process; a hole of the disk, but not for who reads it."""
    venv = make_venv(tmp_path / "venv")
    content = bytearray(tiny_library(soname="a"))
    size = 1100 << 20
    loaded = content.index(struct.pack("<II", 1, 6), 64)
    struct.pack_into("<QQ", content, loaded + 32, size, size)
    strings = content.rindex(struct.pack("<Q", 10))  # DT_STRSZ
    struct.pack_into("<Q", content, strings + 8, size - (1 << 20))
    install(venv, "demo", "1.0")
    place = venv / SITE / "demo/huge.so"
    place.write_bytes(content)
    os.truncate(place, size)
    (binary,) = seen(venv).stray_binaries.binaries
    assert binary.damage == "its tables take more memory than is given to them"


def test_tree_of_a_file_system_within_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted/x").write_text("")
    notes = Notes()
    tree = Tree(os.fspath(tmp_path), notes)
    monkeypatch.setattr(tree, "_device", -1)
    tree.walk("")
    assert tree.files == {}
    assert notes.all() == ("`mounted` lies on another file system and is not looked at",)


def test_notes_are_told_a_few_times_and_then_counted() -> None:
    notes = Notes()
    for number in range(survey_tree.MOST_NOTES + 7):
        notes.add(f"note {number}")
        notes.add("note 1")
    assert len(notes.all()) == survey_tree.MOST_NOTES + 1
    assert notes.all()[-1].startswith("and ")
