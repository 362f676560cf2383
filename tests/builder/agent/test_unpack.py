"""A wheel's tree on disk, judged by a second implementation of its digest, by Python and by uv."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.agent import unpack
from builder.agent.archive import ArchiveDamaged, Member, WheelArchive
from builder.agent.files import hash_file, write_file
from builder.agent.lending import Donor, donor_lines
from builder.agent.unpack import WheelTree, make_folders, read_wheel
from envspec.tree import is_host_path
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = "3.12"
SITE = f"lib/python{PYTHON}/site-packages"
UV = shutil.which("uv")
SAFE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!$%&'()+,-./:;<=>@^_`{|}~"

RICH: dict[str, Any] = {
    "files": {
        "demo_pkg/__init__.py": "def main():\n    return 0\n",
        "demo_pkg/_core.so": b"\x7fELF" + bytes(3000),
        "demo_pkg/run.sh": "#!/bin/sh\n",
        "demo_pkg/data, really/\u00fc n'\"$.txt": "odd",
        "demo_pkg/empty": "",
        "demo_pkg/_vendor/other-1.0.dist-info/METADATA": "Name: other\n",
        "demo_pkg.pth": "demo_pkg\n",
    },
    "data": {
        "scripts/tool": "#!python -E\nimport sys\n",
        "scripts/toolw": "#!pythonw\r\nimport sys\n",
        "scripts/plain": "#!/bin/sh\nexit 0\n",
        "data/share/man/man1/demo.1": "man",
        "data/bin/ptxas": b"\x7fELF",
        "data/bin/readme": "not executable",
        "purelib/pure.py": "1",
        "platlib/demo_pkg/plat.py": "2",
        "headers/demo/a.h": "h",
    },
    "executable": ["demo_pkg/run.sh", "demo_pkg/_core.so", "data/bin/ptxas"],
    "entry_points": "[console_scripts]\nDemo-Tool = demo_pkg:main\nextra = demo_pkg:main [gpu]\n"
    "[gui_scripts]\nwindow = demo_pkg:main\n[plugins]\nx = demo_pkg:main\n",
}


def rich_wheel(directory: Path, **changes: Any) -> Path:
    return make_wheel(directory, "Demo.Pkg", "1.0", **{**RICH, **changes})


def tree_of(wheel: Path, folder: Path | None = None, **more: Any) -> WheelTree:
    if folder is not None:
        folder.mkdir(parents=True)
    return read_wheel(wheel, wheel.name, more.pop("python", PYTHON), folder=folder, **more)


def paths_below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            yield Path(folder, name)


def naive_digest(root: Path) -> str:
    """The tree digest of what lies on a disk, as simple as can be."""
    lines: list[bytes] = []
    for path in paths_below(root):
        encoded = b"".join(
            bytes([byte]) if byte in SAFE else b"\\%03o" % byte for byte in os.fsencode(path.relative_to(root))
        )
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            lines.append(b"./%s type=dir" % encoded)
            continue
        assert stat.S_ISREG(status.st_mode), path
        content = path.read_bytes()
        words = (encoded, stat.S_IMODE(status.st_mode), hashlib.sha256(content).hexdigest().encode(), len(content))
        lines.append(b"./%s mode=%04o sha256=%s size=%d type=file" % words)
    return hashlib.sha256(b"#mtree\n. type=dir\n" + b"".join(line + b"\n" for line in sorted(lines))).hexdigest()


def test_measured_tree_is_the_written_tree_is_what_lies_on_the_disk(tmp_path: Path) -> None:
    wheel = rich_wheel(tmp_path)
    measured, made = tree_of(wheel), tree_of(wheel, tmp_path / "tree")
    assert measured == made
    assert measured.digest == naive_digest(tmp_path / "tree")
    assert measured.oddities == ()


def test_only_what_is_planned_lies_on_the_disk(tmp_path: Path) -> None:
    tree = tree_of(rich_wheel(tmp_path), tmp_path / "tree")
    found = {
        os.fspath(path.relative_to(tmp_path / "tree")) for path in paths_below(tmp_path / "tree") if path.is_file()
    }
    planned = {*tree.layout.targets.values(), *tree.layout.generated, tree.layout.record_path}
    assert found == planned == {entry.path for entry in tree.files}
    assert [entry.path for entry in tree.files] == sorted(planned)
    assert {path for path in found if path.startswith("bin/")} == {
        f"bin/{name}" for name in ("Demo-Tool", "extra", "plain", "ptxas", "readme", "tool", "toolw", "window")
    }


def test_files_have_one_of_two_modes(tmp_path: Path) -> None:
    tree_of(rich_wheel(tmp_path), tmp_path / "tree")
    executable = set()
    for path in paths_below(tmp_path / "tree"):
        if path.is_file():
            mode = stat.S_IMODE(path.lstat().st_mode)
            assert mode in (0o444, 0o555), path
            if mode == 0o555:
                executable.add(os.fspath(path.relative_to(tmp_path / "tree")))
    assert executable == {
        *(f"bin/{name}" for name in ("Demo-Tool", "extra", "plain", "ptxas", "tool", "toolw", "window")),
        f"{SITE}/demo_pkg/run.sh",
        f"{SITE}/demo_pkg/_core.so",
    }


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati"])
def test_tree_depends_on_the_wheel_alone(
    umask: int, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = rich_wheel(tmp_path / "wheels")
    expected = tree_of(wheel).digest
    monkeypatch.setenv("TZ", zone)
    monkeypatch.setenv("LC_ALL", "C")
    time.tzset()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = os.umask(umask)
    try:
        relative = Path("../wheels") / wheel.name
        tree_of(relative, Path("a tree \u00fc"))
    finally:
        os.umask(before)
        monkeypatch.undo()
        time.tzset()
    assert naive_digest(tmp_path / "elsewhere" / "a tree \u00fc") == expected


def test_order_of_members_does_not_matter(tmp_path: Path) -> None:
    files = RICH["files"]
    one = rich_wheel(tmp_path / "one", files=files, record={"demo_pkg-1.0.dist-info/METADATA": None})
    other = rich_wheel(tmp_path / "other", files=dict(reversed(files.items())))
    assert one.read_bytes() != other.read_bytes()
    assert tree_of(one).digest == tree_of(other).digest


def test_python_minor_version_is_in_the_paths(tmp_path: Path) -> None:
    wheel = rich_wheel(tmp_path)
    assert tree_of(wheel, python="3.13").layout.record_path.startswith("lib/python3.13/site-packages/demo_pkg-1.0")
    assert tree_of(wheel, python="3.13").digest != tree_of(wheel).digest


def test_record_is_true_and_covers_every_file(tmp_path: Path) -> None:
    tree = tree_of(rich_wheel(tmp_path), tmp_path / "tree")
    site = tmp_path / "tree" / SITE
    rows = list(csv.reader(io.StringIO((tmp_path / "tree" / tree.layout.record_path).read_text(encoding="utf-8"))))
    recorded = {os.path.relpath(os.path.normpath(site / path), tmp_path / "tree") for path, _, _ in rows}
    assert recorded == {entry.path for entry in tree.files}
    assert len(rows) == len(recorded)


def test_importlib_metadata_finds_the_files_as_record_says(tmp_path: Path) -> None:
    tree = tree_of(rich_wheel(tmp_path), tmp_path / "tree")
    (distribution,) = importlib.metadata.distributions(path=[os.fspath(tmp_path / "tree" / SITE)])
    assert (distribution.metadata["Name"], distribution.read_text("INSTALLER")) == ("Demo.Pkg", "envspec\n")
    files = distribution.files or []
    assert len(files) == len(tree.files)
    for file in files:
        content = Path(str(file.locate())).read_bytes()
        if file.hash is None:
            assert file.name == "RECORD"
        else:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            assert (file.size, file.hash.mode, file.hash.value) == (len(content), "sha256", digest)
    commands = distribution.entry_points.select(group="console_scripts")
    assert {command.name for command in commands} == {"Demo-Tool", "extra"}


def test_contents_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    wheel = rich_wheel(tmp_path)
    tree = tree_of(wheel, tmp_path / "tree", keep=lambda name: name.endswith((".pth", "/RECORD", "/tool")))
    record, tool = "demo_pkg-1.0.dist-info/RECORD", "demo_pkg-1.0.data/scripts/tool"
    assert tree.kept.keys() == {"demo_pkg.pth", record, tool}
    assert tree.kept["demo_pkg.pth"] == b"demo_pkg\n"
    assert tree.kept[tool].startswith(b"#!python -E\n")
    for name, content in tree.kept.items():
        assert tree.members[name] == (hashlib.sha256(content).hexdigest(), len(content))
    assert tree.digest == tree_of(wheel).digest


def test_contents_are_kept_only_up_to_a_limit_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {f"{name}.pth": bytes(1000) for name in "abc"})
    monkeypatch.setattr(unpack, "KEPT_LIMIT_BYTES", 2999)
    with pytest.raises(ArchiveDamaged, match=r"c\.pth: has 1000 bytes, at most 999 are read into memory"):
        tree_of(wheel, keep=lambda name: name.endswith(".pth"))


def test_members_are_digested_as_the_archive_has_them(tmp_path: Path) -> None:
    tree = tree_of(rich_wheel(tmp_path))
    script = b"#!python -E\nimport sys\n"
    assert tree.members["demo_pkg-1.0.data/scripts/tool"] == (hashlib.sha256(script).hexdigest(), len(script))
    installed = next(entry for entry in tree.files if entry.path == "bin/tool")
    assert installed.sha256 != hashlib.sha256(script).hexdigest()
    assert "demo_pkg-1.0.dist-info/RECORD" not in tree.members  # not asked for


@pytest.mark.parametrize("size", [5 << 20, 40 << 20])
def test_script_may_be_a_program_of_any_size(tmp_path: Path, size: int) -> None:
    program = b"\x7fELF" + bytes(size)
    wheel = make_wheel(tmp_path, "demo", "1.0", {}, data={"scripts/tool": program})
    tree = tree_of(wheel, tmp_path / "tree")
    assert (tmp_path / "tree" / "bin" / "tool").read_bytes() == program
    assert tree.digest == naive_digest(tmp_path / "tree")


def test_long_script_is_rewritten(tmp_path: Path) -> None:
    rest = b"x = 1\n" * 500_000
    wheel = make_wheel(tmp_path, "demo", "1.0", {}, data={"scripts/tool": b"#!python\n" + rest})
    tree_of(wheel, tmp_path / "tree")
    assert (tmp_path / "tree" / "bin" / "tool").read_bytes().split(b"\n", 1)[1] == rest


def test_entry_points_of_a_mebibyte_are_not_read(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", entry_points="[console_scripts]\n" + "#\n" * (1 << 20))
    with pytest.raises(ArchiveDamaged, match="are read into memory"):
        tree_of(wheel)


def test_symbolic_link_is_told_and_left_out(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", symlinks={"demo/libx.so": "/etc/passwd", "demo-1.0.dist-info/x": "y"})
    tree = tree_of(wheel, tmp_path / "tree")
    assert [(oddity.kind, oddity.path, oddity.detail) for oddity in tree.oddities] == [
        ("symlink-member", "demo/libx.so", "is a symbolic link to `/etc/passwd`"),
        ("symlink-member", "demo-1.0.dist-info/x", "is a symbolic link to `y`"),
    ]
    assert {path.name for path in paths_below(tmp_path / "tree")}.isdisjoint({"libx.so", "x"})


def test_second_member_of_a_name_is_told_and_left_out(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/a.py": "first"}, raw_members=[("demo/a.py", b"second")])
    tree = tree_of(wheel, tmp_path / "tree")
    assert [(oddity.kind, oddity.path) for oddity in tree.oddities] == [("duplicate-member", "demo/a.py")]
    assert (tmp_path / "tree" / SITE / "demo" / "a.py").read_text() == "first"


@pytest.mark.parametrize("name", ["../../../../escaped", "/tmp/escaped", "a/../../escaped", "a\\..\\escaped"])
def test_nothing_is_written_outside_of_the_tree(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path / "wheels", "demo", "1.0", raw_members=[(name, b"x")])
    tree = tree_of(wheel, tmp_path / "deep" / "er" / "tree")
    assert [oddity.path for oddity in tree.oddities] == [name]
    assert not [path for path in paths_below(tmp_path) if "escaped" in path.name]
    assert tree.digest == naive_digest(tmp_path / "deep" / "er" / "tree")


HOSTILE: dict[str, dict[str, Any]] = {
    "RECORD of its own through purelib": {"data": {"purelib/demo-1.0.dist-info/RECORD": "mine"}},
    "INSTALLER of its own through data": {"data": {f"data/{SITE}/demo-1.0.dist-info/INSTALLER": "mine"}},
    "a folder as RECORD": {"data": {"platlib/demo-1.0.dist-info/RECORD/x": "mine"}},
    "a file as dist-info": {"data": {"purelib/demo-1.0.dist-info": "mine"}},
    "a file as site-packages": {"data": {f"data/{SITE}": "mine"}},
    "a file as bin": {"data": {"data/bin": "mine"}, "entry_points": "[console_scripts]\nx = demo:main\n"},
    "a folder as a command": {
        "data": {"data/bin/x/y": "mine"},
        "entry_points": "[console_scripts]\nx = demo:main\n",
    },
    "a file and a folder": {"files": {"demo/a": "", "demo/a/b": "", "demo/a/b/c": ""}},
    "names that are too long": {"files": {"n" * 256: "", "/".join(["m" * 200] * 30): ""}},
    "no dist-info": {"raw_members": [("other-1.0.dist-info/METADATA", b"")]},
    "an unsafe entry_points.txt without dist-info": {
        "raw_members": [
            ("other-1.0.dist-info/METADATA", b""),
            ("/entry_points.txt", b"[console_scripts]\nx = demo:main\n"),
        ]
    },
}


@pytest.mark.parametrize("case", HOSTILE, ids=str)
def test_odd_wheel_gives_a_tree_that_the_disk_agrees_with(case: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", **HOSTILE[case])
    tree = tree_of(wheel, tmp_path / "tree")
    assert tree.digest == naive_digest(tmp_path / "tree") == tree_of(wheel).digest
    if tree.layout.record_path:
        assert b"mine" not in (tmp_path / "tree" / tree.layout.record_path).read_bytes()
    else:
        assert not (tmp_path / "tree" / "bin").exists()


_parts = st.sampled_from(["a", "b", "demo", "bin", "demo-1.0.dist-info", "RECORD", "x.py", "__pycache__", "..", SITE])
_members = st.lists(_parts, min_size=1, max_size=4).map("/".join)
_data = st.builds("demo-1.0.data/{}/{}".format, st.sampled_from(["data", "purelib", "scripts"]), _members)


@given(names=st.lists(st.one_of(_members, _data), max_size=8, unique=True))
def test_any_members_give_a_tree_that_the_disk_agrees_with(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    wheel = make_wheel(root, "demo", "1.0", raw_members=[(name, name.encode()) for name in names])
    tree = tree_of(wheel, root / "tree")
    assert tree.digest == naive_digest(root / "tree")
    shutil.rmtree(root)


def test_damaged_wheel_stops_it(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/a.bin": b"content"}, compression=0)
    wheel.write_bytes(wheel.read_bytes().replace(b"content", b"Content"))
    with pytest.raises(ArchiveDamaged) as caught:
        tree_of(wheel, tmp_path / "tree")
    assert (caught.value.kind, caught.value.member) == ("bad-crc", "demo/a.bin")


def test_progress_counts_the_inflated_bytes_of_what_is_installed(tmp_path: Path) -> None:
    steps: list[int] = []
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/a": b"12345", "demo/__pycache__/b.pyc": b"x"})
    tree = tree_of(wheel, advance=steps.append)
    assert sum(steps) == sum(size for name, (_, size) in tree.members.items() if name in tree.layout.targets)


# Donors


def donor_of(tree: WheelTree, folder: Path, *, proven: bool = False) -> Donor:
    """A donor whose inodes are proven as they are now, or of which nothing is known."""
    proven_ns = 0
    if proven:
        newest = folder.with_name(f"{folder.name}.newest")
        newest.write_text("")
        proven_ns = newest.stat().st_ctime_ns
    return Donor(folder, donor_lines(tree.manifest), proven_ns)


KNOWN = pytest.mark.parametrize("known", [False, True], ids=["nothing known", "stamp and digest known"])


def inode(root: Path, member: str) -> int:
    return (root / SITE / member).stat().st_ino


CHANGED = {**RICH["files"], "demo_pkg/__init__.py": "changed = 1\n"}


@KNOWN
def test_equal_files_are_linked_from_the_donor_and_others_written(tmp_path: Path, *, known: bool) -> None:
    base = tree_of(rich_wheel(tmp_path / "base"), tmp_path / "old")
    patched = rich_wheel(tmp_path / "patched", files=CHANGED, executable=["demo_pkg/run.sh", "data/bin/ptxas"])
    donor = donor_of(base, tmp_path / "old", proven=known)
    tree = tree_of(patched, tmp_path / "new", donor=donor, expected=tree_of(patched).digest if known else "")
    assert tree.digest == naive_digest(tmp_path / "new") == tree_of(patched).digest
    assert naive_digest(tmp_path / "old") == base.digest
    linked = {
        member
        for member in [*RICH["files"], "pure.py", "demo_pkg-1.0.dist-info/METADATA", "demo_pkg-1.0.dist-info/RECORD"]
        if inode(tmp_path / "old", member) == inode(tmp_path / "new", member)
    }
    changed = {"demo_pkg/__init__.py", "demo_pkg/_core.so", "demo_pkg-1.0.dist-info/RECORD"}  # _core.so: not executable
    assert linked == {*RICH["files"], "pure.py", "demo_pkg-1.0.dist-info/METADATA"} - changed


@KNOWN
@pytest.mark.parametrize("how", ["content", "mode", "missing", "link", "folder"])
def test_donor_that_is_not_what_it_was_is_not_used(tmp_path: Path, how: str, *, known: bool) -> None:
    wheel = rich_wheel(tmp_path)
    base = tree_of(wheel, tmp_path / "old")
    donor = donor_of(base, tmp_path / "old", proven=known)
    while (tmp_path / "old.newest").exists() and tmp_path.stat().st_ctime_ns <= donor.proven_ns:
        tmp_path.chmod(0o755)  # until the clock of the file system has moved
    file = tmp_path / "old" / SITE / "demo_pkg" / "run.sh"
    content = file.read_bytes()
    if how == "mode":
        file.chmod(0o755)
    else:
        file.unlink()
    if how == "content":
        file.write_bytes(b"X" * len(content))
        file.chmod(0o555)
    elif how == "link":
        (tmp_path / "twin").write_bytes(content)
        (tmp_path / "twin").chmod(0o555)
        file.symlink_to(tmp_path / "twin")
    elif how == "folder":
        file.mkdir()
    tree = tree_of(wheel, tmp_path / "new", donor=donor, expected=base.digest if known else "")
    assert tree.digest == naive_digest(tmp_path / "new") == base.digest
    assert (tmp_path / "new" / SITE / "demo_pkg" / "run.sh").stat().st_nlink == 1
    assert inode(tmp_path / "old", "demo_pkg/empty") == inode(tmp_path / "new", "demo_pkg/empty")


def test_donor_whose_files_cannot_be_linked_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = rich_wheel(tmp_path)
    base = tree_of(wheel, tmp_path / "old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(31, "Too many links")

    monkeypatch.setattr(os, "link", refuse)
    tree_of(wheel, tmp_path / "new", donor=donor_of(base, tmp_path / "old"))
    assert naive_digest(tmp_path / "new") == base.digest


def test_what_a_donor_has_is_not_inflated_where_record_leads_to_the_expected_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = rich_wheel(tmp_path)
    base = tree_of(wheel, tmp_path / "old")
    read: list[str] = []
    whole = WheelArchive.chunks

    def noting(archive: WheelArchive, member: Member) -> Iterator[bytes]:
        read.append(member.name)
        return whole(archive, member)

    monkeypatch.setattr(WheelArchive, "chunks", noting)
    donor = donor_of(base, tmp_path / "old", proven=True)
    tree = tree_of(wheel, tmp_path / "new", donor=donor, expected=base.digest)
    assert tree == replace(base, kept=tree.kept)
    scripts = set(tree.layout.scripts)
    odd = "\u00fc n'\"$.txt"  # its row is not quoted as it should be, so that it is read
    assert {name.rpartition("/")[2] for name in set(read) - scripts} <= {"RECORD", "entry_points.txt", odd}


@pytest.mark.parametrize("lie", ["digest", "size", "a row less", "no RECORD", "not text"])
def test_a_record_that_does_not_lead_to_the_expected_digest_decides_nothing(tmp_path: Path, lie: str) -> None:
    base = tree_of(rich_wheel(tmp_path / "base"), tmp_path / "old")
    wheel = rich_wheel(tmp_path / "patched", files=CHANGED)
    honest = tree_of(wheel).digest
    record = "demo_pkg-1.0.dist-info/RECORD"
    with zipfile.ZipFile(wheel) as archive:
        members = {info: archive.read(info) for info in archive.infolist()}
        rows = archive.read(record).decode().splitlines()
    (place,) = (number for number, row in enumerate(rows) if row.startswith("demo_pkg/__init__.py,"))
    path, sha256, size = rows[place].split(",")
    with zipfile.ZipFile(tmp_path / "base" / wheel.name) as archive:
        (before,) = (row for row in archive.read(record).decode().splitlines() if row.startswith(f"{path},"))
    rows[place] = {"digest": before, "size": f"{path},{sha256},{int(size) + 1}"}.get(lie, rows[place])
    if lie == "a row less":
        del rows[place]
    with zipfile.ZipFile(wheel, "w") as archive:
        for info, content in members.items():
            if info.filename != record:
                archive.writestr(info, content)
            elif lie != "no RECORD":
                archive.writestr(info, b"\xff" if lie == "not text" else "\n".join(rows) + "\n")
    donor = donor_of(base, tmp_path / "old", proven=True)
    tree = tree_of(wheel, tmp_path / "new", donor=donor, expected=honest)
    assert tree.digest == naive_digest(tmp_path / "new") == honest
    assert (tmp_path / "new" / SITE / "demo_pkg" / "__init__.py").read_text() == CHANGED["demo_pkg/__init__.py"]


def test_lines_of_a_donor_are_those_of_its_files(tmp_path: Path) -> None:
    tree = tree_of(rich_wheel(tmp_path))
    assert donor_lines(tree.manifest).keys() == {entry.path for entry in tree.files}


# Single files


def test_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_file(os.fspath(target), b"first", executable=True)
    with pytest.raises(FileExistsError):
        write_file(os.fspath(target), b"second", executable=False)
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"first", 0o555)


def test_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        write_file(os.fspath(tmp_path / "link"), b"x", executable=False)
    assert not (tmp_path / "target").exists()


def test_file_is_hashed_but_not_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    (tmp_path / "link").symlink_to("file")
    assert hash_file(os.fspath(tmp_path / "file")) == hashlib.sha256(bytes(3 << 20)).hexdigest()
    with pytest.raises(OSError, match="symbolic links"):
        hash_file(os.fspath(tmp_path / "link"))


def test_folders_are_made_parents_first(tmp_path: Path) -> None:
    make_folders(tmp_path, {"b/c", "a", "b", "b-c", "b/c/d"})
    assert (tmp_path / "b/c/d").is_dir()


# uv


BOOKKEEPING = {"RECORD", "INSTALLER", "REQUESTED", "uv_cache.json", "direct_url.json"}
OF_UV = {".lock", ".gitignore", "CACHEDIR.TAG", "bin/pydoc.bat", "_virtualenv.py", "_virtualenv.pth"}
"""What `uv venv` makes beside the files of any environment."""


def installed_by_uv(wheel: Path, root: Path) -> Path:
    """An environment that uv made of one wheel, for the Python that runs this."""
    assert UV is not None
    environ = {
        **os.environ,
        "UV_CACHE_DIR": os.fspath(root / "cache"),
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "UV_LINK_MODE": "copy",
    }
    environ.pop("VIRTUAL_ENV", None)
    python = root / "venv" / "bin" / "python"
    for arguments in (
        ["venv", "-q", "--python", sys.executable, os.fspath(root / "venv")],
        ["pip", "install", "-q", "--no-deps", "--no-index", "--python", os.fspath(python), os.fspath(wheel)],
    ):
        subprocess.run([UV, *arguments], env=environ, check=True, capture_output=True)
    return root / "venv"


def comparable(root: Path, generated: set[str]) -> dict[str, tuple[str, bool]]:
    """Path -> digest and executable bit of what a wheel brings; of generated scripts only that they are there."""
    found: dict[str, tuple[str, bool]] = {}
    for path in paths_below(root):
        relative = os.fspath(path.relative_to(root))
        bookkeeping = path.name in BOOKKEEPING and path.parent.name.endswith(".dist-info")
        if path.is_dir() or bookkeeping or is_host_path(relative) or relative in OF_UV or path.name in OF_UV:
            continue
        digest = "generated" if relative in generated else hashlib.sha256(path.read_bytes()).hexdigest()
        found[relative] = (digest, bool(path.stat().st_mode & 0o100))
    return found


@pytest.mark.skipif(UV is None, reason="there is no uv on PATH to judge by")
@pytest.mark.parametrize("compression", [0, 8])
def test_uv_installs_the_same_files(tmp_path: Path, compression: int) -> None:
    wheel = rich_wheel(tmp_path, compression=compression)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    tree = tree_of(wheel, tmp_path / "tree", python=python)
    scripts = {
        tree.layout.targets[member] for member in tree.layout.scripts if member.rpartition("/")[2] in ("tool", "toolw")
    }
    generated = {path for path in tree.layout.generated if path.startswith("bin/")} | scripts
    ours = comparable(tmp_path / "tree", generated)
    assert comparable(installed_by_uv(wheel, tmp_path / "uv"), generated) == ours
    assert len(generated) == 5
    assert len(ours) == len(tree.files) - 2
