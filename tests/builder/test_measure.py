"""A wheel's facts: what is there, what RECORD claims, what runs at every start. Cases C16, C24 to C28 and C35."""

from __future__ import annotations

import hashlib
import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.agent.unpack import read_wheel
from builder.measure import measure_wheel, read_facts, write_facts
from envspec.binaries import BinaryFacts, CubinCount, GpuCode, Label
from envspec.facts import INSPECTOR, StartupHook, wheel_facts_to_json
from tests.support.fatbins import Code, cubin, fatbin
from tests.support.shared_objects import needs_gcc, shared_object
from tests.support.wheels import make_wheel, record_row

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.facts import WheelFacts

SITE = "lib/python3.12/site-packages"
INFO = "demo-1.0.dist-info"
DATA = "demo-1.0.data"
INIT = "demo/__init__.py"


def sha256(content: bytes | str) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def measured(wheel: Path, **more: Any) -> WheelFacts:
    return measure_wheel(wheel, filename=wheel.name, sha256=sha256(wheel.read_bytes()), python="3.12", **more)


def demo(directory: Path, **arguments: Any) -> WheelFacts:
    return measured(make_wheel(directory, "demo", "1.0", **arguments))


def kinds(facts: WheelFacts) -> list[tuple[str, str]]:
    return [(anomaly.kind, anomaly.path) for anomaly in facts.anomalies]


def without(wheel: Path, member: str) -> Path:
    """The wheel without a member, RECORD left as it is."""
    with zipfile.ZipFile(wheel) as archive:
        kept = [(info, archive.read(info)) for info in archive.infolist() if info.filename != member]
    with zipfile.ZipFile(wheel, "w") as archive:
        for info, content in kept:
            archive.writestr(info, content)
    return wheel


# A sound wheel


def test_facts_of_a_sound_wheel(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "Demo.Pkg",
        "1.0+cu130",
        {"demo_pkg/__init__.py": "x = 1\n", "demo_pkg/run.sh": "#!/bin/sh\n", "demo_pkg/a, b.txt": "odd"},
        tag="cp311.cp312-abi3-manylinux_2_28_x86_64",
        requires=["numpy>=2", "torch==2.11.0; extra == 'gpu'"],
        requires_python=">=3.10",
        extras=["gpu", "dev"],
        entry_points="[console_scripts]\nDemo = demo_pkg:main\n",
        data={"scripts/tool": "#!python\n", "data/share/x": "s"},
        executable=["demo_pkg/run.sh"],
    )
    seen: list[int] = []
    facts = measured(wheel, advance=seen.append)
    assert facts.filename == "demo_pkg-1.0+cu130-cp311.cp312-abi3-manylinux_2_28_x86_64.whl"
    assert (facts.sha256, facts.size, facts.python) == (sha256(wheel.read_bytes()), wheel.stat().st_size, "3.12")
    assert (facts.name, facts.version, facts.requires_python) == ("demo-pkg", "1.0+cu130", ">=3.10")
    assert facts.requires_dist == ("numpy>=2", "torch==2.11.0; extra == 'gpu'")
    assert facts.provides_extra == ("gpu", "dev")
    assert facts.wheel_tags == ("cp311-abi3-manylinux_2_28_x86_64", "cp312-abi3-manylinux_2_28_x86_64")
    assert facts.scripts == ("Demo", "tool")
    assert (facts.hooks, facts.anomalies) == ((), ())
    files = {file.path: file for file in facts.files}
    info = f"{SITE}/demo_pkg-1.0+cu130.dist-info"
    assert list(files) == sorted(files)
    assert files.keys() == {
        *("bin/Demo", "bin/tool", "share/x"),
        *(f"{SITE}/demo_pkg/{name}" for name in ("__init__.py", "run.sh", "a, b.txt")),
        *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "INSTALLER", "entry_points.txt")),
    }
    module = files[f"{SITE}/demo_pkg/__init__.py"]
    assert (module.sha256, module.size, module.executable) == (sha256("x = 1\n"), 6, False)
    assert {path for path, file in files.items() if file.executable} == {
        "bin/Demo",
        "bin/tool",
        f"{SITE}/demo_pkg/run.sh",
    }
    assert facts.tree == read_wheel(wheel, wheel.name, "3.12").digest
    assert sum(seen) > 0


def test_name_and_version_are_those_of_metadata(tmp_path: Path) -> None:
    facts = demo(tmp_path, metadata_name="Other_Name", metadata_version="9.0")
    assert (facts.name, facts.version) == ("other-name", "9.0")


def test_headers_of_several_lines_are_read_as_one(tmp_path: Path) -> None:
    facts = demo(tmp_path, requires=["a (>=1,\n        <2)"])
    assert facts.requires_dist == ("a (>=1, <2)",)


def test_description_is_not_taken_for_headers(tmp_path: Path) -> None:
    facts = demo(tmp_path, extras=["one\n\nRequires-Dist: evil\nVersion: 9"])
    assert (facts.version, facts.requires_dist, facts.provides_extra) == ("1.0", (), ("one",))


def test_local_part_in_the_file_name_alone_is_no_anomaly(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0")
    renamed = wheel.rename(tmp_path / "demo-1.0+cu130-py3-none-any.whl")
    facts = measured(renamed)
    assert (facts.version, facts.anomalies) == ("1.0", ())


def test_tags_of_wheel_are_read_as_they_stand(tmp_path: Path) -> None:
    facts = demo(tmp_path, tag="cp312-cp312-linux_x86_64", wheel_tags=["cp312-cp312-linux_aarch64"])
    assert facts.wheel_tags == ("cp312-cp312-linux_aarch64",)


# Anomalies

DAMAGED_KINDS = [
    ("path-escape", {"raw_members": [("../x", b"")]}, "../x"),
    ("path-escape", {"raw_members": [("/x", b"")]}, "/x"),
    ("bad-name", {"raw_members": [("demo\\x.py", b"")]}, "demo\\x.py"),
    ("bad-name", {"data": {"nowhere/x": ""}}, f"{DATA}/nowhere/x"),
    ("symlink-member", {"symlinks": {"demo/libx.so": "libx.so.1"}}, "demo/libx.so"),
    ("duplicate-member", {"raw_members": [(INIT, b"other")]}, INIT),
    ("duplicate-member", {"data": {f"purelib/{INIT}": "other"}}, f"{DATA}/purelib/{INIT}"),
    ("reserved-path", {"data": {"data/pyvenv.cfg": ""}}, f"{DATA}/data/pyvenv.cfg"),
    ("reserved-path", {"data": {"data/bin/activate": ""}}, f"{DATA}/data/bin/activate"),
    ("reserved-path", {"entry_points": "[console_scripts]\npython = demo:main\n"}, "console script python"),
    ("shipped-bytecode", {"files": {INIT: "", "__pycache__/a.pyc": ""}}, "__pycache__/a.pyc"),
    ("dist-info", {"dist_info_name": "demo-2.0"}, "demo-2.0.dist-info"),
    ("dist-info", {"data": {"purelib/x-1.dist-info/METADATA": ""}}, f"{DATA}/purelib/x-1.dist-info/METADATA"),
    ("bad-metadata", {"entry_points": "[console_scripts]\nx = y\n"}, "entry_points.txt"),
    ("record-hash", {"record": {INIT: record_row(INIT, b"other")}}, INIT),
    ("record-hash", {"record": {INIT: f"{INIT},,"}}, INIT),
    ("record-hash", {"record": {INIT: f"{INIT},md5=abc,0"}}, INIT),
    ("record-hash", {"record": {INIT: record_row(INIT, b"")[:-1] + "7"}}, INIT),
    ("record-ghost", {"record_extra": ["demo/lost.py,sha256=x,1"]}, "demo/lost.py"),
    ("record-ghost", {"record_extra": [f"{INFO}/licenses/LICENSE,sha256=x,1"]}, f"{INFO}/licenses/LICENSE"),
    ("record-path", {"record": {INIT: "/" + record_row(INIT, b"")}}, f"/{INIT}"),
    ("record-path", {"record": {INIT: "./" + record_row(INIT, b"")}}, f"./{INIT}"),
    ("record-path", {"record": {INIT: record_row(INIT, b"").replace("/", "\\", 1)}}, "demo\\__init__.py"),
    ("unrecorded", {"record": {INIT: None}}, INIT),
    ("unrecorded", {"raw_members": [("zz.pth", b"import os\n")]}, "zz.pth"),
    ("unrecorded", {"record": {f"{INFO}/METADATA": None}}, f"{INFO}/METADATA"),
]


@pytest.mark.parametrize(("kind", "arguments", "path"), DAMAGED_KINDS)
def test_what_is_odd_is_told_once(kind: str, arguments: dict[str, Any], path: str, tmp_path: Path) -> None:
    facts = demo(tmp_path, **arguments)
    assert kinds(facts) == [(kind, path)]
    assert facts.anomalies[0].detail
    assert facts.tree


@pytest.mark.parametrize(
    ("bend", "kind"),
    [
        (lambda data: data[:0] + b"<html>", "bad-archive"),
        (lambda data: data[:-30], "bad-archive"),
        (lambda data: data.replace(b"content", b"Content"), "bad-crc"),
        (
            lambda data: data.replace(b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\1\0"),
            "encrypted-member",
        ),
        (lambda data: data.replace(b"\7\0\0\0\7\0\0\0", b"\7\0\0\0\6\0\0\0"), "size-lie"),
    ],
    ids=["no archive", "truncated", "bad CRC", "encrypted", "size"],
)
def test_damaged_wheel_gives_facts_and_no_exception(bend: Any, kind: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "Demo", "1.0", {"demo/a.bin": b"content"}, compression=0)
    data = bend(wheel.read_bytes())
    assert data != wheel.read_bytes()
    wheel.write_bytes(data)
    facts = measured(wheel)
    (anomaly,) = facts.anomalies
    assert anomaly.kind == kind
    assert (facts.name, facts.version, facts.size) == ("demo", "", len(data))
    assert (facts.files, facts.tree, facts.hooks) == ((), "", ())


def test_file_that_is_not_named_as_a_wheel_gives_facts(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0").rename(tmp_path / "Some_File.zip")
    facts = measured(wheel)
    assert (facts.name, facts.anomalies) == ("demo", ())
    wheel.write_bytes(b"")
    assert measured(wheel).name == "some-file-zip"


@pytest.mark.parametrize("name", ["METADATA", "WHEEL", "RECORD"])
def test_missing_metadata_is_told(name: str, tmp_path: Path) -> None:
    facts = measured(without(make_wheel(tmp_path, "demo", "1.0"), f"{INFO}/{name}"))
    expected = [("bad-metadata", f"{INFO}/{name}")]
    if name != "RECORD":
        expected.append(("record-ghost", f"{INFO}/{name}"))
    assert kinds(facts) == expected
    assert facts.anomalies[0].detail == "is missing"
    assert facts.name == "demo"
    assert facts.version == ("" if name == "METADATA" else "1.0")


@pytest.mark.parametrize(
    ("metadata", "lacks"),
    [
        (b"", ["Name", "Version"]),
        (b"\n\nName: demo\nVersion: 1.0\n", ["Name", "Version"]),
        (b"Name: demo\n", ["Version"]),
        (b"Version: 1.0\nName: \n", ["Name"]),
        (b"\x00\xff\xfe", ["Name", "Version"]),
    ],
)
def test_metadata_that_does_not_name_the_wheel_is_told(metadata: bytes, lacks: list[str], tmp_path: Path) -> None:
    path = f"{INFO}/METADATA"
    wheel = make_wheel(tmp_path, "demo", "1.0", record={path: record_row(path, metadata)})
    with zipfile.ZipFile(without(wheel, path), "a") as archive:
        archive.writestr(path, metadata)
    facts = measured(wheel)
    assert [(anomaly.kind, anomaly.detail) for anomaly in facts.anomalies] == [
        ("bad-metadata", f"has no `{header}`") for header in lacks
    ]
    assert facts.name == "demo"


def test_wheel_without_dist_info_has_one_anomaly(tmp_path: Path) -> None:
    facts = demo(tmp_path, raw_members=[("other-1.0.dist-info/METADATA", b"Name: other\n")])
    assert kinds(facts) == [("dist-info", "")]
    assert (facts.name, facts.version) == ("demo", "")


# RECORD


def test_record_with_slashes_before_every_path_is_read_as_it_is_meant(tmp_path: Path) -> None:
    files = {INIT: "", "demo/a.py": "1", "demo/b.so": "2"}
    rows: dict[str, str | None] = {path: "/" + record_row(path, text.encode()) for path, text in files.items()}
    facts = demo(tmp_path, files=files, record=rows)
    assert kinds(facts) == [("record-path", f"/{path}") for path in files]


def test_wrong_digest_is_told_with_both(tmp_path: Path) -> None:
    facts = demo(tmp_path, record={INIT: record_row(INIT, b"other")})
    right, wrong = (record_row(INIT, content).split(",")[1] for content in (b"", b"other"))
    assert [anomaly.detail for anomaly in facts.anomalies] == [f"RECORD says {wrong}, the file has {right}"]


def test_digest_with_padding_is_right(tmp_path: Path) -> None:
    path, digest, size = record_row(INIT, b"").split(",")
    assert demo(tmp_path, record={INIT: f"{path},{digest}=,{size}"}).anomalies == ()


def test_missing_size_is_no_anomaly(tmp_path: Path) -> None:
    path, digest, _ = record_row(INIT, b"").split(",")
    assert demo(tmp_path, record={INIT: f"{path},{digest},"}).anomalies == ()
    assert demo(tmp_path, record={INIT: f"{path},{digest}"}).anomalies == ()


def test_scripts_are_compared_as_the_archive_has_them(tmp_path: Path) -> None:
    facts = demo(tmp_path, data={"scripts/tool": "#!python\n"})
    assert facts.anomalies == ()
    row = record_row(f"{DATA}/scripts/tool", b"other")
    facts = demo(tmp_path / "other", data={"scripts/tool": "#!python\n"}, record={f"{DATA}/scripts/tool": row})
    assert kinds(facts) == [("record-hash", f"{DATA}/scripts/tool")]


def test_signatures_and_files_of_installers_need_no_row(tmp_path: Path) -> None:
    extra = [(f"{INFO}/{name}", b"x") for name in ("RECORD.jws", "RECORD.p7s", "INSTALLER")]
    facts = demo(tmp_path, raw_members=extra, record_extra=[f"{INFO}/REQUESTED,,"])
    assert facts.anomalies == ()


@pytest.mark.parametrize("row", ['"demo/x.py', "a" * 200_000 + ",,", "a\rb,,"])
def test_record_that_is_no_csv_is_told(row: str, tmp_path: Path) -> None:
    facts = demo(tmp_path, record_extra=[row])
    assert facts.tree
    assert {kind for kind, _ in kinds(facts)} <= {"bad-metadata", "record-ghost"}
    assert kinds(facts)


def test_many_odd_members_are_measured_quickly(tmp_path: Path) -> None:
    names = [f"__pycache__/{number}.pyc" for number in range(3000)]
    facts = demo(tmp_path, files=dict.fromkeys(names, ""), record_extra=[f"lost/{n},," for n in range(3000)])
    assert len(facts.anomalies) == 6000


# Start-up hooks


def hook(path: str, content: bytes | str, *code: str) -> StartupHook:
    return StartupHook(path=path, sha256=sha256(content), code=code)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"demo\n../other\n", ()),
        (b"# import os\n  import os\nimportlib\nimport\n", ()),
        (b"", ()),
        (b"import os; os.environ['X'] = '1'\n", ("import os; os.environ['X'] = '1'",)),
        (b"import\tos", ("import\tos",)),
        (b"a\rimport os\r\nimport sys\n", ("import os", "import sys")),
        (b"\xef\xbb\xbfimport os\n", ("import os",)),
        (b"a\x0cimport os\n", ("import os",)),
        ("a\u2028import os\n".encode(), ("import os",)),
        (b"import os\x0c; evil()\n", ("import os\x0c; evil()",)),
        (b"import os # \xff\n", ("import os # \u00ff",)),
        (b"# \xff\x85import os\n", ("import os",)),
    ],
)
def test_lines_of_a_pth_that_run_are_listed(content: bytes, code: tuple[str, ...], tmp_path: Path) -> None:
    facts = demo(tmp_path, files={"demo.pth": content})
    assert facts.hooks == (hook("demo.pth", content, *code),)


@pytest.mark.parametrize(
    "place", ["purelib/x.pth", "platlib/x.pth", f"data/{SITE}/x.pth"], ids=["purelib", "platlib", "data"]
)
def test_pth_is_found_wherever_it_comes_from(place: str, tmp_path: Path) -> None:
    facts = demo(tmp_path, data={place: "import os\n"})
    assert facts.hooks == (hook("x.pth", "import os\n", "import os"),)


def test_pth_that_record_does_not_list_is_a_hook_and_unrecorded(tmp_path: Path) -> None:
    facts = demo(tmp_path, raw_members=[("zz.pth", b"import os\n")])
    assert facts.hooks == (hook("zz.pth", "import os\n", "import os"),)
    assert kinds(facts) == [("unrecorded", "zz.pth")]


@pytest.mark.parametrize("path", ["demo/weights.pth", "x.pth.txt", "x.pth/y"])
def test_file_that_python_does_not_read_at_its_start_is_no_hook(path: str, tmp_path: Path) -> None:
    assert demo(tmp_path, files={path: "import os\n"}).hooks == ()


@pytest.mark.parametrize("module", ["sitecustomize", "usercustomize"])
@pytest.mark.parametrize(
    "form", [".py", "/__init__.py", ".pyc", "/__init__.pyc", ".so", ".cpython-312-x.so", "/__init__.abi3.so"]
)
def test_module_that_python_imports_at_its_start_is_a_hook(module: str, form: str, tmp_path: Path) -> None:
    facts = demo(tmp_path, files={module + form: "x"})
    assert facts.hooks == (hook(module + form, "x", f"the module {module}"),)


@pytest.mark.parametrize(
    "path", ["demo/sitecustomize.py", "sitecustomize/other.py", "sitecustomize.txt", "sitecustomizer.py", "x/a.so"]
)
def test_module_of_another_name_or_place_is_no_hook(path: str, tmp_path: Path) -> None:
    assert demo(tmp_path, files={path: "x"}).hooks == ()


# The cache


def test_facts_come_back_from_the_cache_as_they_were(tmp_path: Path) -> None:
    facts = demo(
        tmp_path,
        files={INIT: "", "x.pth": "import os\n", "sitecustomize.py": ""},
        symlinks={"demo/l": "m"},
        requires=["a"],
        extras=["b"],
    )
    assert read_facts(tmp_path / "facts", facts.sha256, "3.12") is None
    write_facts(tmp_path / "facts", facts)
    assert read_facts(tmp_path / "facts", facts.sha256, "3.12") == facts
    assert len(list((tmp_path / "facts").iterdir())) == 1


def test_facts_of_another_python_or_wheel_are_not_used(tmp_path: Path) -> None:
    facts = demo(tmp_path)
    write_facts(tmp_path / "facts", facts)
    assert read_facts(tmp_path / "facts", facts.sha256, "3.13") is None
    assert read_facts(tmp_path / "facts", "0" * 64, "3.12") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"inspector": 0}', f'{{"inspector": {INSPECTOR}}}', "\udcff"],
)
def test_damaged_facts_are_measured_anew(text: str, tmp_path: Path) -> None:
    facts = demo(tmp_path)
    write_facts(tmp_path / "facts", facts)
    (file,) = (tmp_path / "facts").iterdir()
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert read_facts(tmp_path / "facts", facts.sha256, "3.12") is None


def test_facts_of_an_older_inspector_are_refused(tmp_path: Path) -> None:
    facts = demo(tmp_path)
    write_facts(tmp_path / "facts", facts)
    (file,) = (tmp_path / "facts").iterdir()
    record = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**record, "inspector": INSPECTOR - 1}), encoding="utf-8")
    assert read_facts(tmp_path / "facts", facts.sha256, "3.12") is None


@pytest.mark.parametrize("binaries", [None, [], {}, {"binaries": ["x"]}, {"binaries": [{}]}, {"binaries": 1}])
def test_damaged_facts_of_binaries_are_measured_anew(binaries: Any, tmp_path: Path) -> None:
    facts = demo(tmp_path)
    write_facts(tmp_path / "facts", facts)
    (file,) = (tmp_path / "facts").iterdir()
    record = json.loads(file.read_text(encoding="utf-8"))
    whole = {**record["binaries"], **binaries} if isinstance(binaries, dict) and binaries else binaries
    file.write_text(json.dumps({**record, "binaries": whole}), encoding="utf-8")
    assert read_facts(tmp_path / "facts", facts.sha256, "3.12") is None


# Binaries


@needs_gcc
def test_binaries_of_a_wheel_are_among_its_facts(tmp_path: Path) -> None:
    library = shared_object(soname="libdemo.so", needed=["libcudart.so.13"], fatbins=[fatbin("sm_90a")], modules=["_C"])
    facts = demo(
        tmp_path,
        files={"demo/_C.so": library, "demo/a_sm100f.cubin": cubin("sm_100"), "demo/version.py": "cuda = '13.0'\n"},
        data={"scripts/tool": shared_object(program=True)},
    )
    tool, extension = facts.binaries.binaries
    assert (tool.path, tool.program) == ("bin/tool", True)
    assert (extension.path, extension.soname) == (f"{SITE}/demo/_C.so", "libdemo.so")
    assert (extension.needed, extension.exports) == (("libcudart.so.13",), "PyInit__C")
    assert extension.gpu == GpuCode(fatbins=((("sm_90a",), 1),), releases=("13.0.88",))
    assert facts.binaries.cubins == (CubinCount("sm_100f", 1),)
    assert facts.binaries.labels == (Label("demo/version.py", "cuda", "13.0"),)
    assert facts.anomalies == ()


@needs_gcc
def test_facts_of_binaries_come_back_from_the_cache(tmp_path: Path) -> None:
    odd = b"\x7fELF" + bytes(100)
    library = shared_object(undefined=["b", "a"], weak=["c"], exports=["x@V1", "y"], needed=["libc.so.6"])
    facts = demo(tmp_path, files={"demo/a.so": library, "demo/damaged.so": odd})
    assert [bool(each.damage) for each in facts.binaries.binaries] == [False, True]
    write_facts(tmp_path / "facts", facts)
    assert read_facts(tmp_path / "facts", facts.sha256, "3.12") == facts


@needs_gcc
def test_measuring_twice_gives_the_same_facts_byte_for_byte(tmp_path: Path) -> None:
    library = shared_object(undefined=["b", "a"], weak=["c"], exports=["x", "y"], fatbins=[fatbin("sm_90", "sm_80")])
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/a.so": library, "demo/b.so": library})
    first, second = (json.dumps(wheel_facts_to_json(measured(wheel))) for _ in range(2))
    assert first == second


@needs_gcc
def test_a_wheel_that_cannot_be_read_has_no_binaries(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/a.so": shared_object(), "demo/z.py": "x = 1\n" * 100})
    content = bytearray(wheel.read_bytes())
    content[content.index(b"demo/z.py") + 9] ^= 0xFF
    wheel.write_bytes(content)
    facts = measured(wheel)
    assert [anomaly.kind for anomaly in facts.anomalies] == ["bad-archive"]
    assert facts.binaries == BinaryFacts()


@needs_gcc
def test_a_binary_that_is_read_twice_is_measured_once(tmp_path: Path) -> None:
    """All of it lies in the payload of a fatbin that there is not."""
    fake = fatbin(Code("compute_90", payload=b""))
    library = shared_object(soname="libx.so", sections={".rodata.x": fake})
    place = library.index(fake)
    body = (len(library) - place - 16) // 8 * 8
    stretched = library[: place + 8] + body.to_bytes(8, "little") + library[place + 16 :]
    stretched = stretched[: place + 24] + (body - 80).to_bytes(8, "little") + stretched[place + 32 :]
    plain, hidden = (
        demo(tmp_path / name, files={"demo/x.so": content}) for name, content in (("a", library), ("b", stretched))
    )
    assert hidden.binaries == plain.binaries
    assert hidden.binaries.binaries[0].soname == "libx.so"


# Anything


@given(
    metadata=st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)),
    record=st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)),
    pth=st.binary(max_size=60),
)
def test_any_metadata_gives_facts(
    metadata: bytes, record: bytes, pth: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    members = [("x-1.dist-info/METADATA", metadata), ("x-1.dist-info/RECORD", record), ("x.pth", pth)]
    wheel = root / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    facts = measured(wheel)
    write_facts(root, facts)
    assert read_facts(root, facts.sha256, "3.12") == facts
    wheel.unlink()
