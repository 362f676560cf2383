"""`envspec export --format bundle` and what is built from it: without network, and without believing it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent import install
from builder.image.bundle_reading import member_mode
from builder.image.tar_headers import END, FILE, LINK, padding, tar_header
from envspec.bundles import BundleMember, unfinished_bytes
from tests.support.projects import base_python, copy_tree, make_writable, serve, snapshot_of
from tests.support.pythons import pack_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.projects import Project, Ran

NOWHERE = "http://127.0.0.1:9/simple/"
WITHOUT_NETWORK = ["unshare", "--net"]


@pytest.fixture(scope="module")
def exported(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its bundle as `b` and `b.tar`."""
    folder = tmp_path_factory.mktemp("bundle") / "project"
    copy_tree(template, folder)
    with serve(folder) as project:
        for name in ("b", "b.tar"):
            project.good("export", "--format", "bundle", "--out", folder / name)
    return folder


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    """A bundle as a folder, to be broken."""
    shutil.copytree(exported / "b", tmp_path / "b")
    return tmp_path / "b"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Project]:
    """Another machine: no spec, an empty store, an index that nobody answers for."""
    with serve(tmp_path / "elsewhere") as project:
        project.environment = {"UV_DEFAULT_INDEX": NOWHERE}
        yield project


def build(project: Project, bundle: Path, *more: str | Path, **changes: Any) -> Ran:
    return project.run("build", "--from", bundle, *more, before=WITHOUT_NETWORK, **changes)


def packed(folder: Path, target: Path, *, end: bytes = END) -> Path:
    """A folder as the one tar that is its own, whatever the folder has."""
    raw = (folder / "bundle.json").read_bytes()
    pieces = [tar_header("bundle.json", kind=FILE, mode=0o644, size=len(raw)), raw, padding(len(raw))]
    for row in json.loads(raw)["members"]:
        content = (folder / row["path"]).read_bytes() if (folder / row["path"]).is_file() else b"x" * row["size"]
        mode = member_mode(BundleMember(**row))
        pieces += [tar_header(row["path"], kind=FILE, mode=mode, size=row["size"]), content, padding(len(content))]
    target.write_bytes(b"".join([*pieces, end]))
    return target


def rewrite(folder: Path, path: str, content: bytes, *, new_path: str = "") -> None:
    """Give a member other content, and an index that agrees."""
    index = json.loads((folder / "bundle.json").read_text())
    (row,) = [each for each in index["members"] if each["path"] == path]
    row.update(size=len(content), sha256=hashlib.sha256(content).hexdigest(), path=new_path or path)
    place = folder / row["path"]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.write_bytes(content)
    (folder / "bundle.json").write_text(json.dumps(index))


def wheel_of(folder: Path, name: str) -> str:
    return next(path.relative_to(folder).as_posix() for path in folder.glob(f"wheels/*/{name}-*.whl"))


@pytest.mark.parametrize("name", ["b", "b.tar"])
def test_bundle_is_built_without_network_spec_and_wheels(exported: Path, elsewhere: Project, name: str) -> None:
    ran = build(elsewhere, exported / name, "--json")
    assert ran.code == 0, ran.text
    host = ran.host()
    assert f'site = "{host["site"]}"' in (exported / "spec" / "demo.lock").read_text()
    assert host["probes"] == [{"id": "imports", "result": "pass", "reason": ""}]
    assert elsewhere.leftovers() == []
    again = build(elsewhere, exported / name, "--json").host()
    assert (again["built"], again["generation"]) == (False, host["generation"])


def test_bundle_is_the_same_bytes_each_time_and_as_a_folder(exported: Path, locked: Project, tmp_path: Path) -> None:
    for name in ("again.tar", "folder"):
        locked.good("export", "--format", "bundle", "--out", tmp_path / name, TZ="Asia/Tokyo", LC_ALL="C")
    assert (tmp_path / "again.tar").read_bytes() == (exported / "b.tar").read_bytes()
    assert packed(tmp_path / "folder", tmp_path / "packed.tar").read_bytes() == (exported / "b.tar").read_bytes()


def test_tar_unpacks_to_the_folder(exported: Path, tmp_path: Path) -> None:
    subprocess.run(["/usr/bin/env", "tar", "-xf", exported / "b.tar", "-C", tmp_path], check=True)
    ours, theirs = snapshot_of(tmp_path), snapshot_of(exported / "b")
    assert {path: raw for path, (_, raw) in ours.items()} == {path: raw for path, (_, raw) in theirs.items()}
    assert (tmp_path / "install").stat().st_mode & 0o111


def test_folder_of_a_bundle_before_is_brought_up_to_date(locked: Project, tmp_path: Path) -> None:
    locked.good("export", "--format", "bundle", "--out", tmp_path / "b")
    old = set(snapshot_of(tmp_path / "b"))
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    locked.good("lock")
    locked.good("export", "--format", "bundle", "--out", tmp_path / "b")
    listed = {row["path"] for row in json.loads((tmp_path / "b" / "bundle.json").read_text())["members"]}
    assert set(snapshot_of(tmp_path / "b")) == listed | {"bundle.json"}
    assert len(old - listed) == 2  # the index, which lists itself nowhere, and the wheel that was patched otherwise


@pytest.mark.parametrize(
    "content", ['{"mine": 1}', '{"bundle": 0, "paths": ["../x"]}', '{"bundle": 0, "paths": ["keep"]}']
)
def test_folder_that_no_export_wrote_stays_as_it_is(locked: Project, tmp_path: Path, content: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "bundle.json").write_text(content)
    (tmp_path / "b" / "keep").write_text("mine")
    before = snapshot_of(tmp_path)
    ran = locked.run("export", "--format", "bundle", "--out", tmp_path / "b")
    assert (ran.code, "is not empty, and no bundle" in ran.stderr) == (2, True)
    assert snapshot_of(tmp_path) == before


def test_folder_of_an_export_that_was_killed_is_no_bundle_and_is_gone_on_with(
    exported: Path, bundle: Path, locked: Project, elsewhere: Project
) -> None:
    rows = json.loads((bundle / "bundle.json").read_text())["members"]
    stray = f"wheels/{'a' * 64}/old-1-py3-none-any.whl"  # of the bundle that was there before
    (bundle / "bundle.json").write_bytes(unfinished_bytes([stray, *(row["path"] for row in rows)]))
    (bundle / wheel_of(bundle, "beta")).unlink()
    for path in (".envspec-999999999-bundle.json", stray):
        (bundle / path).parent.mkdir(exist_ok=True)
        (bundle / path).write_text("half")
    ran = build(elsewhere, bundle)
    assert (ran.code, "did not come to its end" in ran.stderr) == (1, True)
    locked.good("export", "--format", "bundle", "--out", bundle)
    assert snapshot_of(bundle) == snapshot_of(exported / "b")


def test_what_an_index_says_never_reaches_a_terminal_as_it_is(bundle: Path, elsewhere: Project) -> None:
    index = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**index, "env": "a\x1b[31m\ud800"}))
    ran = build(elsewhere, bundle, "--json")
    assert (ran.code, "\x1b" in ran.text) == (1, False)
    assert r"names env a\x1b[31m\ud800, its lock has" in ran.stderr
    assert "a\x1b[31m\ud800" in ran.json()["error"]["message"]


def test_install_needs_neither_envspec_nor_network(exported: Path, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command: list[str | Path] = [
        *WITHOUT_NETWORK,
        sys.executable,
        "-I",
        exported / "b" / "install",
        "--store",
        tmp_path / "store",
    ]
    before = snapshot_of(exported / "b")
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = subprocess.run([tmp_path / "store/profiles/demo/bin/alpha"], capture_output=True, text=True, check=True)
    assert said.stdout == "alpha 2\n"
    assert snapshot_of(exported / "b") == before
    make_writable(tmp_path / "store")


@pytest.mark.parametrize(
    ("member", "said"),
    [("agent.zip", "agent.zip is damaged"), ("order.json", "is not the one of this bundle"), ("alpha", "has sha256")],
)
def test_install_of_a_damaged_bundle_activates_nothing(bundle: Path, tmp_path: Path, member: str, said: str) -> None:
    path = bundle / (wheel_of(bundle, member) if member == "alpha" else member)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = subprocess.run(
        [sys.executable, "-I", bundle / "install", "--store", tmp_path / "store"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stdout + done.stderr
    assert not (tmp_path / "store" / "profiles" / "demo").exists()


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{}", "is not the index of a whole bundle"),
        ('{"members": [5]}', "is not the index of a whole bundle"),
        ('{"bundle": 0, "paths": []}', "export it again if that did not come to its end"),
        ("[" * 100_000, "bundle.json` is damaged"),
        ("", "bundle.json` is damaged"),
        (None, "No such file or directory"),
    ],
)
def test_install_tells_what_is_wrong_with_an_index(bundle: Path, tmp_path: Path, index: str | None, said: str) -> None:
    (bundle / "bundle.json").unlink()
    if index is not None:
        (bundle / "bundle.json").write_text(index)
    outcome: list[str] = []
    told: list[str] = []
    code = install.main(str(bundle), ["--store", str(tmp_path / "store")], outcome.append, told.append)
    assert (code, outcome, said in told[0]) == (2 if index is None else 1, [], True)


@pytest.mark.parametrize("fields", [{}, {"order": 5}, {"order": {}, "sizes": 5}, {"sizes": {}}])
def test_install_refuses_an_order_that_is_none(bundle: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    rewrite(bundle, "order.json", json.dumps(fields).encode())
    told: list[str] = []
    assert install.main(str(bundle), ["--store", str(tmp_path / "store")], told.append, told.append) == 1
    assert "`order.json` is not what this bundle's agent reads" in told[0]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "usage: python3 install"),
        (["--python"], 2, "`--python` needs a path"),
        (["--python", "/nowhere"], 2, "`/nowhere` is no program"),
        (["--bogus"], 2, "`--bogus` is no option"),
    ],
)
def test_install_has_few_options(bundle: Path, tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    told: list[str] = []
    more = ["--store", str(tmp_path / "store")]
    assert install.main(str(bundle), [*more, *arguments], told.append, told.append) == code
    assert said in told[0]


def test_bundle_of_another_lock_is_not_built_for_this_spec(exported: Path, locked: Project) -> None:
    assert build(locked, exported / "b.tar", "--spec", locked.spec_path).code == 0
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 3")
    locked.good("lock")
    ran = build(locked, exported / "b.tar", "--spec", locked.spec_path)
    assert ran.code == 1
    assert "the bundle has another `demo.lock` than the one here" in ran.stderr


def test_bundle_that_is_cut_off_is_refused_wherever_it_is_cut(exported: Path, elsewhere: Project) -> None:
    raw = (exported / "b.tar").read_bytes()
    for length in (0, 100, 511, 600, 3000, 5000, 300_000, len(raw) - 4000, len(raw) - 1500, len(raw) - 1):
        cut = elsewhere.folder / "cut.tar"
        cut.write_bytes(raw[:length])
        ran = elsewhere.run("build", "--from", cut)
        assert ran.code == 1, (length, ran.text)
        assert elsewhere.active() is None


def spoil(how: str, bundle: Path) -> None:
    alpha = wheel_of(bundle, "alpha")
    index = json.loads((bundle / "bundle.json").read_text())
    match how:
        case "wheel with other bytes":
            content = (bundle / alpha).read_bytes()
            (bundle / alpha).unlink()
            (bundle / alpha).write_bytes(content[:-1] + b"x")
        case "wheel that the lock does not name":
            content = b"another wheel"
            sha256 = hashlib.sha256(content).hexdigest()
            rewrite(bundle, alpha, content, new_path=f"wheels/{sha256}/alpha-1.0-py3-none-any.whl")
        case "wheel under another file name":
            rewrite(bundle, alpha, (bundle / alpha).read_bytes(), new_path=alpha.replace("alpha-1.0", "alpha-2.0"))
        case "wheel that is missing in the index":
            index["members"] = [row for row in index["members"] if row["path"] != alpha]
            (bundle / "bundle.json").write_text(json.dumps(index))
        case "lock of another wheel":
            lock = (bundle / "spec/demo.lock").read_text()
            sha256 = alpha.split("/")[1]
            rewrite(bundle, "spec/demo.lock", lock.replace(sha256, "0" * 64).encode())
        case "patch that is not the locked one":
            patch = (bundle / "spec/overlays/0001-change.patch").read_bytes()
            rewrite(bundle, "spec/overlays/0001-change.patch", patch.replace(b"VALUE = 2", b"VALUE = 9"))
        case "path out of the folder":
            rewrite(bundle, "spec/overlays/series", b"x\n", new_path="spec/../../../escaped")
        case "absolute path":
            rewrite(bundle, "spec/overlays/series", b"x\n", new_path=os.fspath(bundle.parent / "escaped"))
        case "other env id in the index":
            (bundle / "bundle.json").write_text(json.dumps({**index, "env": "a" * 32}))
        case "more than the index says":
            (bundle / "spec/demo.toml").write_text((bundle / "spec/demo.toml").read_text() + "\n# more\n")
        case "size that no disk has":
            index["members"][0]["size"] = 1 << 39
            (bundle / "bundle.json").write_text(json.dumps(index))
        case "index of 40 MB":
            (bundle / "bundle.json").write_text(json.dumps({**index, "name": "x" * (40 << 20)}))
        case "spec that is a file and a folder":
            index["members"].insert(0, {**index["members"][0], "path": "spec/demo.toml/x"})
            (bundle / "spec" / "demo.toml").rename(bundle / "toml")
            (bundle / "spec" / "demo.toml").mkdir()
            shutil.copy(bundle / "spec" / "demo.lock", bundle / "spec" / "demo.toml" / "x")
            (bundle / "bundle.json").write_text(json.dumps(index))
        case _:
            raise ValueError(how)


@pytest.mark.parametrize("form", ["folder", "tar"])
@pytest.mark.parametrize(
    "how",
    [
        "wheel with other bytes",
        "wheel that the lock does not name",
        "wheel under another file name",
        "wheel that is missing in the index",
        "lock of another wheel",
        "patch that is not the locked one",
        "path out of the folder",
        "absolute path",
        "other env id in the index",
        "more than the index says",
        "size that no disk has",
        "index of 40 MB",
        "spec that is a file and a folder",
    ],
)
def test_hostile_bundle_is_not_believed_and_writes_nothing_outside(
    bundle: Path, elsewhere: Project, tmp_path: Path, how: str, form: str
) -> None:
    spoil(how, bundle)
    place = packed(bundle, tmp_path / "b.tar") if form == "tar" else bundle
    ran = elsewhere.run("build", "--from", place)
    assert ran.code in {1, 2}, ran.text
    assert "bug in envspec" not in ran.text
    assert elsewhere.active() is None
    assert elsewhere.leftovers() == []
    assert not list(elsewhere.folder.rglob("escaped"))
    for wheel in elsewhere.store.glob("wheels/*/*.whl"):
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == wheel.parent.name


@pytest.mark.parametrize("kind", ["link", "fifo", "folder-link"])
def test_member_of_a_folder_that_is_no_file_is_refused(bundle: Path, elsewhere: Project, kind: str) -> None:
    target = bundle / wheel_of(bundle, "alpha")
    if kind == "folder-link":  # to the right bytes
        (bundle / "wheels").rename(elsewhere.folder / "outside")
        (bundle / "wheels").symlink_to(elsewhere.folder / "outside")
    else:
        target.unlink()
    if kind == "link":
        target.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(target)
    ran = elsewhere.run("build", "--from", bundle)
    assert ran.code == 1
    assert "of the bundle" in ran.stderr


def test_link_in_a_tar_is_no_member(exported: Path, elsewhere: Project) -> None:
    raw = (exported / "b.tar").read_bytes()
    header = tar_header("spec/demo.lock", kind=FILE, mode=0o644, size=(exported / "spec/demo.lock").stat().st_size)
    assert header in raw
    spoilt = elsewhere.folder / "b.tar"
    spoilt.write_bytes(raw.replace(header, tar_header("spec/demo.lock", kind=LINK, mode=0o644, target="/etc/passwd")))
    ran = elsewhere.run("build", "--from", spoilt)
    assert ran.code == 1
    assert "does not follow where the index says" in ran.stderr


def test_what_follows_the_end_is_refused(exported: Path, elsewhere: Project) -> None:
    spoilt = elsewhere.folder / "b.tar"
    spoilt.write_bytes((exported / "b.tar").read_bytes() + b"\0" * 512)
    assert "something follows the end" in elsewhere.run("build", "--from", spoilt).stderr


def test_every_single_bit_that_counts_is_noticed(exported: Path, elsewhere: Project) -> None:
    raw = bytearray((exported / "b.tar").read_bytes())
    for place in (3, 200, 700, 1500, 4000, 6000, 150_000, 1_000_000, len(raw) - 3500, len(raw) - 2000, len(raw) - 10):
        raw[place] ^= 4
        (elsewhere.folder / "b.tar").write_bytes(raw)
        ran = elsewhere.run("build", "--from", elsewhere.folder / "b.tar")
        assert ran.code in {1, 2}, (place, ran.text)
        assert elsewhere.active() is None
        raw[place] ^= 4


@pytest.mark.parametrize("path", ["/dev/null", "/nowhere/b.tar", "/proc/self/mem"])
def test_what_is_no_bundle_is_said(elsewhere: Project, path: str) -> None:
    ran = elsewhere.run("build", "--from", path)
    assert ran.code in {1, 2}
    assert "bundle" in ran.stderr


def test_python_of_the_bundle_is_used_where_there_is_none(project: Project, tmp_path: Path) -> None:
    if base_python().parent == Path("/usr/bin"):
        pytest.skip("the Python of the tests is the system's: a machine cannot be without it")
    sha256 = pack_python(project.spec_folder / "python.tar.gz")
    wanted = f'exact = "{platform.python_version()}"\narchive = "python.tar.gz"\narchive-sha256 = "{sha256}"'
    project.wheel("alpha", "1.0", {"alpha.py": ""})
    project.write_spec({"alpha": "==1.0"}, imports=["alpha"], python=wanted)
    project.good("lock")
    project.good("export", "--format", "bundle", "--out", tmp_path / "b")
    with serve(tmp_path / "elsewhere") as other:
        shutil.rmtree(other.folder / "bin")
        ran = build(other, tmp_path / "b", "--json", UV_DEFAULT_INDEX=NOWHERE, UV_PYTHON_PREFERENCE="only-managed")
        assert ran.code == 0, ran.text
        assert [path.name for path in (other.store / "pythons").iterdir()] == [sha256]
    command: list[str | Path] = [
        *WITHOUT_NETWORK,
        "/usr/bin/python3",
        "-I",
        tmp_path / "b" / "install",
        "--store",
        tmp_path / "store",
    ]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "store" / "pythons").iterdir()] == [sha256]
    make_writable(tmp_path / "store")
