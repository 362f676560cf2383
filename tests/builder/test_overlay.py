from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import stat
import struct
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import packaging
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from builder import process
from builder.overlay import Series, SeriesPatch, build_patched_wheel, patched_version, read_series
from builder.wheel_writing import ArchiveWriter, Stated
from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError
from envspec.lock import LockedPatch, PatchedFile
from envspec.patch import MAX_PATCH_BYTES
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPOSITORY = Path(__file__).parents[2]
ONE = b"--- a/demo/one.py\n+++ b/demo/one.py\n@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n+y = 3\n"
ADD = b"""\
diff --git a/demo/new.sh b/demo/new.sh
new file mode 100755
--- /dev/null
+++ b/demo/new.sh
@@ -0,0 +1 @@
+#!/bin/sh
"""
DELETE = b"--- a/demo/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-z = 0\n"
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "",
    "demo/one.py": "x = 1\ny = 2\n",
    "demo/gone.py": "z = 0\n",
    "demo/tool.py": "run = True\n" * 200,
    "demo/__pycache__/one.cpython-312.pyc": b"stale",
    "demo/__pycache__/tool.cpython-312.pyc": b"fresh",
    "demo/gone.pyc": b"would be importable again",
    "demo,odd.txt": "a comma\n",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_series(folder: Path, patches: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in patches.items():
        (folder / name).write_bytes(content)
    (folder / "series").write_text("".join(f"{name}\n" for name in patches))
    return folder / "series"


def series_of(*contents: bytes, name: str = "demo") -> Series:
    patches = tuple(
        SeriesPatch(name=f"{number:04}.patch", content=content, sha256=sha256(content))
        for number, content in enumerate(contents, start=1)
    )
    return Series(name=name, patches=patches, digest=sha256(b"".join(contents)))


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return {info.filename: archive.read(info) for info in archive.infolist()}


def refusal(action: Callable[[], object]) -> EnvspecError:
    with pytest.raises(EnvspecError) as caught:
        action()
    return caught.value


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "base", "demo", "1.0", FILES, executable=["demo/tool.py"])


# --- series ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "name"),
    [("ddtree", "ddtree"), ("My-Overlay_2", "my.overlay.2"), ("a--b..c", "a.b.c"), ("Überlay", "berlay"), ("7", "7")],
)
def test_series_has_the_name_of_its_folder_as_a_version_can_carry_it(tmp_path: Path, folder: str, name: str) -> None:
    assert read_series(make_series(tmp_path / folder, {"a.patch": ONE})).name == name


def test_series_has_its_patches_in_order_with_their_digests(tmp_path: Path) -> None:
    series = read_series(make_series(tmp_path / "s", {"b.patch": ONE, "a.patch": b"any bytes \xff"}))
    assert [(patch.name, patch.content, patch.sha256) for patch in series.patches] == [
        ("b.patch", ONE, sha256(ONE)),
        ("a.patch", b"any bytes \xff", sha256(b"any bytes \xff")),
    ]


def test_series_digest_covers_contents_and_order_and_nothing_else(tmp_path: Path) -> None:
    digest = read_series(make_series(tmp_path / "s", {"1.patch": ONE, "2.patch": ADD})).digest
    renamed = make_series(tmp_path / "other", {"x.patch": ONE, "y.patch": ADD})
    renamed.write_text("# why\nx.patch -p1\n\ny.patch\n")
    assert read_series(renamed).digest == digest
    assert read_series(make_series(tmp_path / "swapped", {"2.patch": ADD, "1.patch": ONE})).digest != digest
    assert read_series(make_series(tmp_path / "longer", {"1.patch": ONE, "2.patch": ADD + b"\n"})).digest != digest
    record = b"envspec\0series 1\0" + b"5:patch64:" + sha256(ONE).encode() + b"5:patch64:" + sha256(ADD).encode()
    assert digest == sha256(record)


def test_series_tells_every_patch_that_cannot_be_read(tmp_path: Path) -> None:
    file = make_series(tmp_path / "s", {"a.patch": ONE})
    file.write_text("gone.patch\na.patch\nfolder.patch\npipe.patch\n")
    (tmp_path / "s/folder.patch").mkdir()
    os.mkfifo(tmp_path / "s/pipe.patch")
    error = refusal(lambda: read_series(file))
    assert [problem.where for problem in error.problems] == ["gone.patch", "folder.patch", "pipe.patch"]


def test_series_that_cannot_be_read_is_an_envspec_error(tmp_path: Path) -> None:
    large = make_series(tmp_path / "large", {"a.patch": b"x" * (MAX_PATCH_BYTES + 1)})
    assert f"`a.patch` has more than the {MAX_PATCH_BYTES} bytes" in str(refusal(lambda: read_series(large)))
    assert "there is no file `series`" in str(refusal(lambda: read_series(tmp_path / "none/series")))
    binary = make_series(tmp_path / "s", {})
    binary.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in str(refusal(lambda: read_series(binary)))
    nameless = make_series(tmp_path / "___", {})
    assert "has no letter or digit" in str(refusal(lambda: read_series(nameless)))


@pytest.mark.parametrize(
    ("base_version", "name", "digest", "version"),
    [
        ("0.5.11", "ddtree", "1a2b3c4d" + "0" * 56, "0.5.11+ddtree.1a2b3c4d"),
        ("2.11.0+cu130", "ddtree", "1a2b3c4d" + "0" * 56, "2.11.0+cu130.ddtree.1a2b3c4d"),
        ("2.11.0+CU130_x", "ddtree", "1a2b3c4d" + "0" * 56, "2.11.0+cu130.x.ddtree.1a2b3c4d"),
        ("1!2.0.post1.dev3", "a.2", "deadbeef" + "0" * 56, "1!2.0.post1.dev3+a.2.deadbeef"),
        ("1.0-1", "a", "deadbeef" + "0" * 56, "1.0.post1+a.deadbeef"),
        ("1.0RC1", "a", "deadbeef" + "0" * 56, "1.0rc1+a.deadbeef"),
        ("1.0", "a", "00123456" + "0" * 56, "1.0+a.123456"),
        ("1.0", "007", "0" * 64, "1.0+7.0"),
    ],
)
def test_patched_version_is_canonical_and_keeps_the_local_part(
    base_version: str, name: str, digest: str, version: str
) -> None:
    found = patched_version(base_version, Series(name=name, patches=(), digest=digest))
    assert found == version == str(Version(found))
    assert Version(found).public == Version(base_version).public


def test_version_that_is_not_pep_440_is_refused() -> None:
    assert "`1.0-x` is not one of PEP 440" in str(refusal(lambda: patched_version("1.0-x", series_of(ONE))))


# --- the patched wheel ----------------------------------------------------------------------------------------------


def test_patched_wheel_has_the_changed_files_and_says_what_they_were(tmp_path: Path, base: Path) -> None:
    series = series_of(ONE, ADD, DELETE)
    wheel = build_patched_wheel(base, series, destination_dir=tmp_path / "out")
    assert wheel.version == f"1.0+demo.{series.digest[:8]}"
    assert wheel.file == f"demo-{wheel.version}-py3-none-any.whl"
    assert wheel.path == tmp_path / "out" / wheel.file
    assert (wheel.size, wheel.sha256) == (wheel.path.stat().st_size, sha256(wheel.path.read_bytes()))
    assert wheel.patches == tuple(LockedPatch(name=patch.name, sha256=patch.sha256) for patch in series.patches)
    assert wheel.files == (
        PatchedFile(path="demo/__pycache__/one.cpython-312.pyc", before=sha256(b"stale"), after=""),
        PatchedFile(path="demo/gone.py", before=sha256(b"z = 0\n"), after=""),
        PatchedFile(path="demo/gone.pyc", before=sha256(b"would be importable again"), after=""),
        PatchedFile(path="demo/new.sh", before="", after=sha256(b"#!/bin/sh\n")),
        PatchedFile(path="demo/one.py", before=sha256(b"x = 1\ny = 2\n"), after=sha256(b"x = 1\ny = 3\n")),
    )
    after = members(wheel.path)
    info = f"demo-{wheel.version}.dist-info"
    assert list(after) == [
        "demo,odd.txt",
        "demo/__init__.py",
        "demo/__pycache__/tool.cpython-312.pyc",
        "demo/new.sh",
        "demo/one.py",
        "demo/tool.py",
        f"{info}/METADATA",
        f"{info}/WHEEL",
        f"{info}/RECORD",
    ]
    assert after["demo/one.py"] == b"x = 1\ny = 3\n"
    assert f"\nVersion: {wheel.version}\n".encode() in after[f"{info}/METADATA"]
    name, version, _, _ = parse_wheel_filename(wheel.file)
    assert (name, str(version)) == ("demo", wheel.version)


def test_record_lists_every_member_with_its_digest_in_the_archives_order(tmp_path: Path, base: Path) -> None:
    wheel = build_patched_wheel(base, series_of(ONE, ADD, DELETE), destination_dir=tmp_path)
    after = members(wheel.path)
    record = next(path for path in after if path.endswith("/RECORD"))
    expected = [
        [
            path,
            f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')}",
            str(len(content)),
        ]
        for path, content in after.items()
        if path != record
    ]
    assert list(csv.reader(io.StringIO(after[record].decode()))) == [*expected, [record, "", ""]]
    assert b'"demo,odd.txt",sha256=' in after[record]
    assert b"\r" not in after[record]


def test_every_entry_of_the_archive_has_the_fixed_form(tmp_path: Path, base: Path) -> None:
    wheel = build_patched_wheel(base, series_of(ONE, ADD), destination_dir=tmp_path)
    with zipfile.ZipFile(base) as archive:
        compressed = {info.filename: info.compress_type for info in archive.infolist()}
    with zipfile.ZipFile(wheel.path) as archive:
        assert archive.comment == b""
        for info in archive.infolist():
            name = info.filename.replace(wheel.version, "1.0")
            ours = name in ("demo/one.py", "demo/new.sh") or name.endswith(("/METADATA", "/RECORD"))
            assert info.compress_type == (zipfile.ZIP_STORED if ours else compressed[name])
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            mode = 0o755 if name in ("demo/tool.py", "demo/new.sh") else 0o644
            assert info.external_attr == (stat.S_IFREG | mode) << 16
            assert (info.create_system, info.create_version, info.extract_version) == (3, 20, 20)
            assert (info.flag_bits, info.internal_attr, info.extra, info.comment) == (0, 0, b"", b"")


def test_member_that_does_not_change_keeps_its_compressed_bytes(tmp_path: Path) -> None:
    content = b"".join(b"%d\n" % (n * n) for n in range(3000))
    compressor = zlib.compressobj(1, zlib.DEFLATED, -15, 3)  # unlike what zipfile would choose
    raw = compressor.compress(content) + compressor.flush()
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", {**FILES, "demo/raw.bin": content})
    with zipfile.ZipFile(wheel) as archive:
        usual = archive.getinfo("demo/raw.bin")
        start = usual.header_offset + 30 + len("demo/raw.bin")
        theirs = wheel.read_bytes()[start : start + usual.compress_size]
    assert theirs != raw
    odd = tmp_path / "odd" / wheel.name
    odd.parent.mkdir()
    odd.write_bytes(with_raw_member(wheel, "demo/raw.bin", raw, content))
    patched = build_patched_wheel(odd, series_of(ONE), destination_dir=tmp_path / "out")
    assert raw in patched.path.read_bytes()
    assert members(patched.path)["demo/raw.bin"] == content


def with_raw_member(wheel: Path, name: str, raw: bytes, content: bytes) -> bytes:
    """The wheel written anew, with other compressed bytes for one member."""
    stream = io.BytesIO()
    writer = ArchiveWriter(stream)
    for path, data in members(wheel).items():
        if path == name:
            stated = Stated(method=8, crc=zlib.crc32(content), compressed_size=len(raw), size=len(content))
            writer._member(path, [raw], stated, executable=False)
        else:
            writer.add(path, data, executable=False)
    writer.finish()
    return stream.getvalue()


def test_build_tag_data_folder_entry_points_and_nested_metadata_survive(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path / "base",
        "Demo.Pkg",
        "2.0+cu130",
        {"demo/one.py": "x = 1\ny = 2\n", "demo/vendor/other-1.dist-info/METADATA": "Version: 1\n"},
        build="3local",
        tag="cp311.cp312-abi3-manylinux_2_28_x86_64",
        data={"scripts/run": "#!python\n", "purelib/p.py": "p = 1\n"},
        executable=["scripts/run"],
        entry_points="[console_scripts]\nd = demo.one:x\n",
        requires=["numpy>=2"],
    )
    patched = build_patched_wheel(wheel, series_of(ONE), destination_dir=tmp_path / "out")
    stem = f"demo_pkg-{patched.version}"
    assert patched.version.startswith("2.0+cu130.demo.")
    assert patched.file == f"{stem}-3local-cp311.cp312-abi3-manylinux_2_28_x86_64.whl"
    before, after = members(wheel), members(patched.path)
    assert after[f"{stem}.data/scripts/run"] == b"#!python\n"
    assert after[f"{stem}.data/purelib/p.py"] == b"p = 1\n"
    assert after[f"{stem}.dist-info/entry_points.txt"] == before["demo_pkg-2.0+cu130.dist-info/entry_points.txt"]
    assert after["demo/vendor/other-1.dist-info/METADATA"] == b"Version: 1\n"
    old, new = before["demo_pkg-2.0+cu130.dist-info/METADATA"], after[f"{stem}.dist-info/METADATA"]
    assert new == old.replace(b"Version: 2.0+cu130", f"Version: {patched.version}".encode())
    with zipfile.ZipFile(patched.path) as archive:
        assert archive.getinfo(f"{stem}.data/scripts/run").external_attr >> 16 == stat.S_IFREG | 0o755


def test_folders_and_signatures_of_the_base_are_left_out(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path / "base",
        "demo",
        "1.0",
        {**FILES, "demo-1.0.dist-info/RECORD.jws": "{}", "demo-1.0.dist-info/RECORD.p7s": "x", "RECORD.jws": "kept"},
        raw_members=[("demo/", b""), ("demo/empty/", b"")],
    )
    after = members(build_patched_wheel(wheel, series_of(ONE), destination_dir=tmp_path / "out").path)
    assert not [path for path in after if path.endswith(("/", ".dist-info/RECORD.jws", ".p7s"))]
    assert after["RECORD.jws"] == b"kept"


def test_record_of_the_base_is_not_believed(tmp_path: Path) -> None:
    lie = {"demo/tool.py": "demo/tool.py,sha256=AAAA,1", "demo/__init__.py": None}
    honest = make_wheel(tmp_path / "honest", "demo", "1.0", FILES)
    lying = make_wheel(tmp_path / "lying", "demo", "1.0", FILES, record=lie, record_extra=["ghost.py,,"])
    one, two = (
        build_patched_wheel(wheel, series_of(ONE), destination_dir=tmp_path / wheel.parent.name / "out")
        for wheel in (honest, lying)
    )
    assert one.path.read_bytes() == two.path.read_bytes()


def test_file_that_ends_up_as_it_was_is_not_listed_as_patched(tmp_path: Path, base: Path) -> None:
    back = ONE.replace(b"-y = 2", b"-y = 0").replace(b"+y = 3", b"+y = 2").replace(b"-y = 0", b"-y = 3")
    vanishing = ADD + b"", b"--- a/demo/new.sh\n+++ /dev/null\n@@ -1 +0,0 @@\n-#!/bin/sh\n"
    wheel = build_patched_wheel(base, series_of(ONE, back, *vanishing), destination_dir=tmp_path)
    assert wheel.files == ()
    assert "demo/new.sh" not in members(wheel.path)


def test_names_beyond_ascii_are_marked_as_utf_8(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", {**FILES, "demo/ü.txt": "ü\n"})
    patch = "--- a/demo/ü.txt\n+++ b/demo/ü.txt\n@@ -1 +1 @@\n-ü\n+é\n".encode()
    patched = build_patched_wheel(wheel, series_of(patch), destination_dir=tmp_path)
    with zipfile.ZipFile(patched.path) as archive:
        assert archive.getinfo("demo/ü.txt").flag_bits == 0x800
        assert archive.read("demo/ü.txt") == "é\n".encode()


def test_crlf_file_keeps_its_line_ends(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", {"demo/one.py": b"x = 1\r\ny = 2\r\n"})
    patched = build_patched_wheel(
        wheel,
        series_of(ONE.replace(b" x = 1\n-y = 2\n+y = 3\n", b" x = 1\r\n-y = 2\r\n+y = 3\r\n")),
        destination_dir=tmp_path,
    )
    assert members(patched.path)["demo/one.py"] == b"x = 1\r\ny = 3\r\n"


# --- the same bytes everywhere --------------------------------------------------------------------------------------

BUILD = """
import json, os, sys
from pathlib import Path
from builder.overlay import build_patched_wheel, read_series
base, series, out, umask = sys.argv[1:]
os.umask(int(umask, 8))
wheel = build_patched_wheel(Path(base), read_series(Path(series)), destination_dir=Path(out))
print(json.dumps([wheel.file, wheel.sha256, oct(wheel.path.stat().st_mode)]))
"""


def find_python_312() -> str:
    """A CPython 3.12 that runs, from PATH or from pyenv; empty if there is none."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))]
    versions = [str(path) for root in roots for path in sorted(root.glob("versions/3.12*/bin/python3.12"))]
    for candidate in [*versions, shutil.which("python3.12") or ""]:
        done = process.run([candidate, "-c", "import sys; print(sys.version_info[:2])"]) if candidate else None
        if done is not None and done.stdout == "(3, 12)\n":
            return candidate
    return ""


def built_elsewhere(python: str, base: Path, folder: Path, umask: str, environ: Mapping[str, str]) -> list[Any]:
    """What `BUILD` prints in a process of its own."""
    folder.mkdir()
    paths = os.pathsep.join([str(REPOSITORY), str(Path(packaging.__file__).parents[1])])
    argv = [
        python,
        "-B",
        "-W",
        "error",
        "-c",
        BUILD,
        str(base),
        str(base.parent / "demo.x/series"),
        str(folder / "out"),
        umask,
    ]
    done = process.run(argv, cwd=folder, env={"PATH": os.defpath, "PYTHONPATH": paths, **environ})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def test_another_process_umask_zone_locale_and_folder_give_the_same_bytes(tmp_path: Path, base: Path) -> None:
    make_series(base.parent / "demo.x", {"1.patch": ONE, "2.patch": ADD, "3.patch": DELETE})
    plain = {"TZ": "UTC", "PYTHONHASHSEED": "1"}
    odd = {
        "TZ": "Asia/Kathmandu",
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "2",
        "SOURCE_DATE_EPOCH": "1",
    }
    one = built_elsewhere(sys.executable, base, tmp_path / "a", "000", plain)
    two = built_elsewhere(sys.executable, base, tmp_path / "b", "077", odd)
    here = build_patched_wheel(base, read_series(base.parent / "demo.x/series"), destination_dir=tmp_path / "here")
    assert one == two == [here.file, here.sha256, "0o100644"]
    assert (tmp_path / "a/out" / here.file).read_bytes() == (tmp_path / "b/out" / here.file).read_bytes()


def test_another_python_gives_the_same_bytes(tmp_path: Path, base: Path) -> None:
    python = find_python_312()
    if not python:
        pytest.skip("there is no CPython 3.12 in PATH or in pyenv")
    make_series(base.parent / "demo.x", {"1.patch": ONE, "2.patch": ADD, "3.patch": DELETE})
    here = build_patched_wheel(base, read_series(base.parent / "demo.x/series"), destination_dir=tmp_path / "here")
    assert built_elsewhere(python, base, tmp_path / "a", "022", {})[:2] == [here.file, here.sha256]


def write_stored(path: Path, files: Mapping[str, str]) -> None:
    """A second writer of the fixed form, for wheels without compression: the standard library's."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)


def test_published_vector_comes_out_of_this_and_of_a_naive_implementation(tmp_path: Path) -> None:
    metadata = "Metadata-Version: 2.1\nName: demo\nVersion: {}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    base = tmp_path / "demo-1.0-py3-none-any.whl"
    info = "demo-1.0.dist-info"
    files = {"demo/one.py": "x = 1\ny = 2\n", f"{info}/METADATA": metadata.format("1.0"), f"{info}/WHEEL": wheel}
    write_stored(base, files | {f"{info}/RECORD": ""})
    patched = build_patched_wheel(
        base, read_series(make_series(tmp_path / "vector", {"0001-y.patch": ONE})), destination_dir=tmp_path / "out"
    )

    digest = sha256(b"envspec\0series 1\0" + b"5:patch64:" + sha256(ONE).encode())
    version = f"1.0+vector.{digest[:8]}"
    info = f"demo-{version}.dist-info"
    files = {"demo/one.py": "x = 1\ny = 3\n", f"{info}/METADATA": metadata.format(version), f"{info}/WHEEL": wheel}
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode()[:-1]},{len(content)}"
        for name, content in files.items()
    ]
    naive = tmp_path / "naive.whl"
    write_stored(naive, files | {f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,", ""])})
    assert patched.path.read_bytes() == naive.read_bytes()

    text = (REPOSITORY / "docs/overlays.md").read_text(encoding="utf-8")
    assert ONE.decode() in text
    assert f"`{patched.file}`" in text
    assert f"`{patched.sha256}`" in text


# --- all or nothing -------------------------------------------------------------------------------------------------


def test_patch_that_does_not_fit_names_file_and_lines_and_nothing_is_written(tmp_path: Path) -> None:
    before = make_wheel(tmp_path / "base", "demo", "1.1", {**FILES, "demo/one.py": "x = 1\ny = 7\n"})
    bytes_before = before.read_bytes()
    error = refusal(lambda: build_patched_wheel(before, series_of(ONE, DELETE), destination_dir=tmp_path / "out"))
    assert error.exit_code == FOUND_WRONG
    assert str(error) == (
        "1 file does not fit; nothing was written\n"
        "  input: demo on demo 1.1\n"
        "  - 0001.patch: demo/one.py: hunk 1 of 1: line 2: expected `y = 2`, found `y = 7`\n"
        "hint: the files are not those that the patch was made for: base it on this version of the package"
    )
    assert not (tmp_path / "out").exists()
    assert before.read_bytes() == bytes_before


def test_every_patch_that_cannot_be_used_is_told(tmp_path: Path, base: Path) -> None:
    bad = b"diff --git a/x b/x\nrename from x\n"
    error = refusal(lambda: build_patched_wheel(base, series_of(bad, ONE, b"words\n"), destination_dir=tmp_path))
    assert [problem.where for problem in error.problems] == ["0001.patch: line 2", "0003.patch: file"]
    assert not list(tmp_path.glob("*.whl"))


def test_series_without_patches_is_refused(tmp_path: Path, base: Path) -> None:
    assert "has no patch" in str(refusal(lambda: build_patched_wheel(base, series_of(), destination_dir=tmp_path)))


def test_failure_while_writing_leaves_the_old_file_and_no_other(tmp_path: Path, base: Path) -> None:
    out = tmp_path / "out"
    built = build_patched_wheel(base, series_of(ONE), destination_dir=out)
    before = built.path.read_bytes()
    damaged = bytearray(base.read_bytes())
    with zipfile.ZipFile(base) as archive:
        info = archive.getinfo("demo/tool.py")
    damaged[info.header_offset + 30 + len(info.filename) + 5] ^= 0xFF
    base.write_bytes(damaged)
    error = refusal(lambda: build_patched_wheel(base, series_of(ONE), destination_dir=out))
    assert "demo/tool.py" in str(error)
    assert [path.name for path in out.iterdir()] == [built.file]
    assert built.path.read_bytes() == before


def test_place_that_cannot_be_written_is_an_envspec_error(tmp_path: Path, base: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refusal(lambda: build_patched_wheel(base, series_of(ONE), destination_dir=tmp_path / "file"))
    assert error.exit_code == COULD_NOT_LOOK
    (tmp_path / "out" / build_patched_wheel(base, series_of(ONE), destination_dir=tmp_path / "out").file).unlink()
    (tmp_path / "out" / f"demo-{patched_version('1.0', series_of(ONE))}-py3-none-any.whl").mkdir()
    refusal(lambda: build_patched_wheel(base, series_of(ONE), destination_dir=tmp_path / "out"))
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_base_that_is_not_there_is_an_envspec_error(tmp_path: Path) -> None:
    gone = tmp_path / "demo-1.0-py3-none-any.whl"
    assert "No such file" in str(refusal(lambda: build_patched_wheel(gone, series_of(ONE), destination_dir=tmp_path)))


# --- hostile wheels -------------------------------------------------------------------------------------------------


def rewritten(wheel: Path, name: str, local: Mapping[int, bytes], central: Mapping[int, bytes]) -> None:
    """Overwrite bytes of a member's two headers: offset in the header -> bytes."""
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        at_local = archive.getinfo(name).header_offset
        directory = archive.start_dir
    at_central = data.index(name.encode(), directory) - 46
    for at, edits in ((at_local, local), (at_central, central)):
        for offset, value in edits.items():
            data[at + offset : at + offset + len(value)] = value
    wheel.write_bytes(data)


SIZE = len(FILES["demo/tool.py"])


@pytest.mark.parametrize(
    ("local", "central", "message"),
    [
        pytest.param({30: b"demo/tool.pY"}, {}, "tool.p", id="another local name"),
        pytest.param({8: b"\0\0"}, {}, "tool.py", id="another local method"),
        pytest.param({14: b"\1\2\3\4"}, {}, "the local header says 67305985", id="another local CRC"),
        pytest.param(
            {22: struct.pack("<L", 7)}, {}, f"the local header says 7 where the directory says {SIZE}", id="local size"
        ),
        pytest.param({18: struct.pack("<L", 7)}, {}, "the local header says 7", id="another local compressed size"),
        pytest.param({6: b"\1\0"}, {}, "tool.py", id="encrypted by the local header"),
        pytest.param({}, {8: b"\1\0"}, "is encrypted", id="encrypted by the directory"),
        pytest.param(
            {22: struct.pack("<L", 9)}, {24: struct.pack("<L", 9)}, "inflates beyond the 9 bytes", id="inflates beyond"
        ),
        pytest.param(
            {22: struct.pack("<L", 1 << 30)},
            {24: struct.pack("<L", 1 << 30)},
            f"has {SIZE} bytes, the archive states",
            id="absurd size",
        ),
        pytest.param({14: b"\1\2\3\4"}, {16: b"\1\2\3\4"}, "has the CRC", id="wrong CRC"),
        pytest.param({8: b"\x0c\0"}, {10: b"\x0c\0"}, "compression method 12", id="bzip2"),
        pytest.param({0: b"XXXX"}, {}, "no local header where the directory places the member", id="no local header"),
        pytest.param(
            {}, {42: struct.pack("<L", 0)}, "shares its bytes with another member", id="two members at one place"
        ),
        pytest.param(
            {18: struct.pack("<L", 9000)}, {20: struct.pack("<L", 9000)}, "overlaps what comes after it", id="overlap"
        ),
        pytest.param(
            {18: struct.pack("<L", 9)}, {20: struct.pack("<L", 9)}, "the compressed data is cut off", id="cut off"
        ),
        pytest.param({8: b"\0\0"}, {10: b"\0\0"}, "bytes, the archive states", id="stored with the size of deflated"),
        pytest.param({}, {38: struct.pack("<L", 0xA1FF << 16)}, "is a symbolic link", id="a link"),
    ],
)
def test_archive_that_contradicts_itself_is_refused(
    tmp_path: Path, base: Path, local: dict[int, bytes], central: dict[int, bytes], message: str
) -> None:
    rewritten(base, "demo/tool.py", local, central)
    error = refusal(lambda: build_patched_wheel(base, series_of(ONE), destination_dir=tmp_path / "out"))
    assert message in str(error)
    assert error.input_name == base.name
    assert not list((tmp_path / "out").glob("*"))


def test_members_that_state_more_than_any_wheel_has_are_refused_before_they_are_inflated(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"demo/{number:02}.py": "x = 1\n" for number in range(20)}
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", files)
    for name in files:
        rewritten(wheel, name, {}, {24: struct.pack("<L", 0xFFFFFFFE)})
    error = refusal(lambda: build_patched_wheel(wheel, series_of(ONE), destination_dir=tmp_path / "out"))
    assert "more than the 68719476736 that are read" in str(error)


def test_bytes_after_the_end_of_a_members_compressed_data_are_refused(tmp_path: Path, base: Path) -> None:
    content = b"x = 1\n" * 50
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    raw = compressor.compress(content) + compressor.flush() + b"hidden"
    base.write_bytes(with_raw_member(base, "demo/tool.py", raw, content))
    error = refusal(lambda: build_patched_wheel(base, series_of(ONE), destination_dir=tmp_path))
    assert "bytes follow the end of its compressed data" in str(error)


@pytest.mark.parametrize(
    ("raw_members", "message"),
    [
        ([("../x.py", b"")], "leads out of the environment"),
        ([("/x.py", b"")], "leads out of the environment"),
        ([("demo/a\\b.py", b"")], "a control character, a backslash"),
        ([("demo/\x1b[2J.py", b"")], "a control character, a backslash"),
        ([("demo/one.py", b"x = 1\ny = 2\n")], "demo/one.py: is there twice"),
        ([("other-1.0.dist-info/METADATA", b"")], "expected one .dist-info folder, found 2"),
        ([("demo/one.py/x", b"")], "demo/one.py: is a file and a folder at once"),
    ],
)
def test_member_that_an_honest_wheel_does_not_have_is_refused(
    tmp_path: Path, raw_members: list[tuple[str, bytes]], message: str
) -> None:
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", FILES, raw_members=raw_members)
    error = refusal(lambda: build_patched_wheel(wheel, series_of(ONE), destination_dir=tmp_path / "out"))
    assert message in str(error)
    assert all(char.isprintable() or char == "\n" for char in str(error))


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (ADD.replace(b"demo/new.sh", b"demo"), "demo: is a file and a folder at once"),
        (ADD.replace(b"demo/new.sh", b"demo/one.py/x"), "demo/one.py: is a file and a folder at once"),
    ],
)
def test_patch_that_makes_a_file_of_a_folder_is_refused(tmp_path: Path, base: Path, patch: bytes, message: str) -> None:
    assert message in str(refusal(lambda: build_patched_wheel(base, series_of(patch), destination_dir=tmp_path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata_version": "1.1"}, "METADATA states the version `1.1`, the file name `1.0`"),
        ({"metadata_version": "1.0\nVersion: 1.0"}, "METADATA has 2 lines `Version:`"),
        ({"metadata_version": "1.0\n folded"}, "METADATA states the version"),
        ({"metadata_version": "nonsense"}, "METADATA states the version `nonsense`"),
        ({"dist_info_name": "demo-2.0"}, "`demo-2.0.dist-info` in a wheel named"),
    ],
)
def test_metadata_that_contradicts_the_file_name_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", FILES, **change)
    assert message in str(refusal(lambda: build_patched_wheel(wheel, series_of(ONE), destination_dir=tmp_path)))


@pytest.mark.parametrize(
    "name", ["demo.whl", "demo-1.0-py3-none-any.zip", "a-b-c-d-e-f-g.whl", "demo-x-py3-none-any.whl"]
)
def test_base_with_a_name_that_no_wheel_has_is_refused(tmp_path: Path, base: Path, name: str) -> None:
    odd = base.rename(base.with_name(name))
    refusal(lambda: build_patched_wheel(odd, series_of(ONE), destination_dir=tmp_path))


@given(cuts=st.lists(st.tuples(st.integers(0, 5000), st.binary(min_size=1, max_size=6)), min_size=1, max_size=3))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_wheel_gives_a_patched_wheel_or_an_envspec_error(tmp_path: Path, cuts: list[tuple[int, bytes]]) -> None:
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", FILES)
    data = bytearray(wheel.read_bytes())
    for at, value in cuts:
        data[at % len(data) : at % len(data) + len(value)] = value
    wheel.write_bytes(data)
    out = tmp_path / "out"
    try:
        built = build_patched_wheel(wheel, series_of(ONE), destination_dir=out)
    except EnvspecError:
        assert not out.exists() or not list(out.iterdir())
    else:
        assert members(built.path)["demo/one.py"] == b"x = 1\ny = 3\n"
        built.path.unlink()


def test_large_member_passes_through_in_small_pieces(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "base", "demo", "1.0", {**FILES, "demo/big.bin": bytes(64 << 20)})
    tracemalloc.start()
    try:
        build_patched_wheel(wheel, series_of(ONE), destination_dir=tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


# --- installed ------------------------------------------------------------------------------------------------------


def test_patched_wheel_installs_with_uv_and_imports(tmp_path: Path, base: Path) -> None:
    if shutil.which("uv") is None or process.run(["uv", "--version"]).returncode != 0:
        pytest.skip("uv does not run here")
    wheel = build_patched_wheel(base, series_of(ONE, ADD, DELETE), destination_dir=tmp_path)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_OFFLINE": "1",
    }
    if "PYENV_ROOT" in os.environ:
        environ["PYENV_ROOT"] = os.environ["PYENV_ROOT"]
    uv = shutil.which("uv") or ""
    venv = tmp_path / "venv"
    for words in (
        ["venv", "--python", sys.executable, str(venv)],
        ["pip", "install", "--no-deps", "--no-index", "--python", str(venv / "bin/python"), str(wheel.path)],
    ):
        done = process.run([uv, *words], env=environ)
        assert done.returncode == 0, done.stderr
    script = (
        "import importlib.metadata as m, demo.one\n"
        "files = m.files('demo')\n"
        "bad = [f for f in files if f.hash and __import__('base64').urlsafe_b64encode(\n"
        "    __import__('hashlib').sha256(f.read_binary()).digest()).rstrip(b'=').decode() != f.hash.value]\n"
        "print(m.version('demo'), demo.one.y, bad)\n"
    )
    done = process.run([str(venv / "bin/python"), "-B", "-c", script])
    assert done.stdout == f"{wheel.version} 3 []\n", done.stderr
    site = next((venv / "lib").glob("python*/site-packages"))
    assert (site / "demo/new.sh").stat().st_mode & 0o111
    assert not (site / "demo/gone.py").exists()
