"""Where members lie, and what an installer adds."""

from __future__ import annotations

import csv
import hashlib
import io
import multiprocessing
import os
import subprocess
import sys
import venv
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.layout import (
    FIRST_LINE_BYTES,
    LONGEST_NAME_BYTES,
    Layout,
    console_script,
    find_dist_info,
    name_problem,
    parse_entry_points,
    plan_layout,
    record_content,
    rewrite_script,
    split_wheel_name,
)
from envspec.tree import is_host_path
from tests.support.strategies import digests, paths, sizes

if TYPE_CHECKING:
    from pathlib import Path

FILE = "demo_pkg-1.0-py3-none-any.whl"
INFO = "demo_pkg-1.0.dist-info"
DATA = "demo_pkg-1.0.data"
SITE = "lib/python3.12/site-packages"
METADATA = f"{INFO}/METADATA"


def plan(*members: str, entry_points: str = "", filename: str = FILE) -> Layout:
    return plan_layout([*members, METADATA], filename, "3.12", entry_points)


def oddities(layout: Layout) -> list[tuple[str, str]]:
    return [(oddity.kind, oddity.path) for oddity in layout.oddities]


# Names of wheels


@pytest.mark.parametrize(
    ("filename", "pieces"),
    [
        ("torch-2.11.0-cp312-cp312-any.whl", ("torch", "2.11.0", "", "cp312-cp312-any")),
        ("a.b_c-1!2.0+cu130-1-py2.py3-none-any.whl", ("a.b_c", "1!2.0+cu130", "1", "py2.py3-none-any")),
        ("torch-2.11.0-cp312-cp312-any.zip", None),
        ("torch-2.11.0-py3-none.whl", None),
        ("a-b-c-1.0-1-py3-none-any.whl", None),
        ("torch--py3-none-any.whl", None),
        ("../torch-2.11.0-py3-none-any.whl", None),
        ("x/torch-2.11.0-py3-none-any.whl", None),
        ("..-1.0-py3-none-any.whl", None),
        ("tor ch-1.0-py3-none-any.whl", None),
        ("t\u00f6rch-1.0-py3-none-any.whl", None),
        ("torch-1.0-py3-none-any\n.whl", None),
        ("", None),
    ],
)
def test_name_of_a_wheel_has_five_or_six_pieces_of_plain_characters(
    filename: str, pieces: tuple[str, ...] | None
) -> None:
    assert split_wheel_name(filename) == pieces


# Names of members


@pytest.mark.parametrize(
    ("member", "kind"),
    [
        ("demo/a.py", None),
        ("demo/..a", None),
        ("demo/a b,c;\u00fc'\"$(x)", None),
        ("demo/" + "n" * LONGEST_NAME_BYTES, None),
        ("demo/" + "n" * (LONGEST_NAME_BYTES + 1), "bad-name"),
        ("demo/" + "\U0001f40d" * (LONGEST_NAME_BYTES // 4 + 1), "bad-name"),
        ("/".join(["n" * 99] * 20), None),
        ("/".join(["n" * 99] * 21), "bad-name"),
        ("", "bad-name"),
        ("demo//a.py", "bad-name"),
        ("./demo/a.py", "bad-name"),
        ("demo/./a.py", "bad-name"),
        ("demo/a.py/", "bad-name"),
        ("demo\\a.py", "bad-name"),
        ("C:\\a.py", "bad-name"),
        ("demo/a\0.py", "bad-name"),
        ("demo/a\n.py", "bad-name"),
        ("demo/a\x7f.py", "bad-name"),
        ("demo/a\x85.py", "bad-name"),
        ("demo/a\u2028.py", "bad-name"),
        ("demo/a\udcff.py", "bad-name"),
        ("../a.py", "path-escape"),
        ("demo/../../a.py", "path-escape"),
        ("demo/..", "path-escape"),
        ("/etc/passwd", "path-escape"),
    ],
)
def test_name_that_cannot_be_joined_to_a_folder_is_told(member: str, kind: str | None) -> None:
    problem = name_problem(member)
    assert (problem and problem.kind) == kind
    layout = plan(member)
    assert (member in layout.targets) == (kind is None)
    assert oddities(layout) == ([] if kind is None else [(kind, member)])


# The dist-info folder


@pytest.mark.parametrize(
    ("folder", "filename"),
    [
        ("demo_pkg-1.0.dist-info", FILE),
        ("Demo.Pkg-1.0.dist-info", FILE),
        ("demo_pkg-1.0.dist-info", "demo_pkg-1.0+cu130-py3-none-any.whl"),
        ("demo_pkg-1.0+cu130.dist-info", FILE),
        ("demo_pkg-1.0_1.dist-info", "demo_pkg-1.0_1-py3-none-any.whl"),
        ("demo_pkg-1.0RC1.dist-info", "demo_pkg-1.0rc1-py3-none-any.whl"),
        ("other-2.dist-info", "not the name of a wheel"),
    ],
)
def test_dist_info_of_the_wheel_is_found(folder: str, filename: str) -> None:
    members = ["demo/__init__.py", f"{folder}/METADATA", "demo/_vendor/x-1.0.dist-info/METADATA", "y.dist-info"]
    assert find_dist_info(members, filename) == (folder, ())


@pytest.mark.parametrize(
    "folder", ["demo_pkg-2.0.dist-info", "other-1.0.dist-info", "demo_pkg.dist-info", ".dist-info"]
)
def test_dist_info_of_another_name_or_version_is_used_and_told(folder: str) -> None:
    found, (oddity,) = find_dist_info([f"{folder}/METADATA"], FILE)
    assert found == folder
    assert (oddity.kind, oddity.path) == ("dist-info", folder)
    assert oddity.detail == f"`{folder}` in a wheel named `{FILE}`"


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([], "found 0: none"),
        (["demo/__init__.py", "demo/x-1.0.dist-info/METADATA"], "found 0: none"),
        (["b-1.dist-info/M", "a-1.dist-info/M"], "found 2: a-1.dist-info, b-1.dist-info"),
        ([METADATA, "B-1.DIST-INFO/METADATA"], "found 2: B-1.DIST-INFO, demo_pkg-1.0.dist-info"),
        (["demo_pkg-1.0.DIST-INFO/METADATA"], "found 1: demo_pkg-1.0.DIST-INFO"),
    ],
)
def test_wheel_needs_one_dist_info(members: list[str], found: str) -> None:
    folder, (oddity,) = find_dist_info(members, FILE)
    assert folder == ""
    assert (oddity.kind, oddity.detail) == ("dist-info", f"expected one .dist-info folder, {found}")


def test_wheel_without_dist_info_has_neither_record_nor_installer() -> None:
    layout = plan_layout(["demo/__init__.py"], FILE, "3.12", "")
    assert layout.targets == {"demo/__init__.py": f"{SITE}/demo/__init__.py"}
    assert (layout.dist_info, layout.record_path, layout.generated) == ("", "", {})


@pytest.mark.parametrize(
    "name", ["RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"]
)
def test_what_is_an_installers_in_dist_info_is_left_out_wherever_it_comes_from(name: str) -> None:
    layout = plan(
        f"{INFO}/{name}", f"{DATA}/purelib/{INFO}/{name}", f"{DATA}/data/{SITE}/{INFO}/{name}", f"demo/{name}"
    )
    assert layout.targets == {METADATA: f"{SITE}/{METADATA}", f"demo/{name}": f"{SITE}/demo/{name}"}
    assert layout.oddities == ()


def test_folder_in_the_place_of_record_is_left_out() -> None:
    layout = plan(f"{INFO}/RECORD/x", f"{DATA}/platlib/{INFO}/INSTALLER/y")
    assert set(layout.targets) == {METADATA}
    assert [oddity.detail for oddity in layout.oddities] == [
        f"`{SITE}/{INFO}/RECORD` is a file and a folder",
        f"`{SITE}/{INFO}/INSTALLER` is a file and a folder",
    ]


def test_metadata_of_another_distribution_is_left_out() -> None:
    members = [f"{DATA}/purelib/other-1.0.dist-info/METADATA", f"{DATA}/data/{SITE}/other-1.0.DIST-INFO/RECORD"]
    layout = plan(*members, f"{DATA}/purelib/demo/other-1.0.dist-info/METADATA")
    assert oddities(layout) == [("dist-info", member) for member in members]
    assert len(layout.targets) == 2


# Schemes


def test_members_go_to_the_place_of_their_scheme() -> None:
    layout = plan(
        "demo/__init__.py",
        "one.pth",
        f"{DATA}/purelib/pure.py",
        f"{DATA}/platlib/plat/_C.so",
        f"{DATA}/scripts/tool",
        f"{DATA}/data/share/man/man1/demo.1",
        f"{DATA}/data/bin/ptxas",
        f"{DATA}/data/top.txt",
        f"{DATA}/headers/demo/a.h",
        "other-1.0.data/scripts/x",
        "demo/demo_pkg-1.0.data/scripts/x",
    )
    assert layout.oddities == ()
    assert layout.targets == {
        "demo/__init__.py": f"{SITE}/demo/__init__.py",
        "one.pth": f"{SITE}/one.pth",
        f"{DATA}/purelib/pure.py": f"{SITE}/pure.py",
        f"{DATA}/platlib/plat/_C.so": f"{SITE}/plat/_C.so",
        f"{DATA}/scripts/tool": "bin/tool",
        f"{DATA}/data/share/man/man1/demo.1": "share/man/man1/demo.1",
        f"{DATA}/data/bin/ptxas": "bin/ptxas",
        f"{DATA}/data/top.txt": "top.txt",
        f"{DATA}/headers/demo/a.h": "include/site/python3.12/demo-pkg/demo/a.h",
        "other-1.0.data/scripts/x": f"{SITE}/other-1.0.data/scripts/x",
        "demo/demo_pkg-1.0.data/scripts/x": f"{SITE}/demo/demo_pkg-1.0.data/scripts/x",
        METADATA: f"{SITE}/{METADATA}",
    }
    assert layout.scripts == {f"{DATA}/scripts/tool"}
    assert layout.generated == {f"{SITE}/{INFO}/INSTALLER": b"envspec\n"}
    assert layout.record_path == f"{SITE}/{INFO}/RECORD"


@pytest.mark.parametrize("member", [f"{DATA}/SCRIPTS/x", f"{DATA}/lib/x", f"{DATA}/scripts", DATA])
def test_unknown_scheme_is_told(member: str) -> None:
    assert oddities(plan(member)) == [("bad-name", member)]
    assert member not in plan(member).targets


def test_script_in_a_folder_is_left_out_as_it_would_not_find_its_python() -> None:
    layout = plan(f"{DATA}/scripts/sub/tool")
    assert oddities(layout) == [("bad-name", f"{DATA}/scripts/sub/tool")]
    assert set(layout.targets) == {METADATA}


def test_headers_of_a_file_that_is_not_named_as_a_wheel_stay_inside() -> None:
    layout = plan(f"{DATA}/headers/a.h", filename="../../x-1-py3-none-any.whl")
    assert layout.targets[f"{DATA}/headers/a.h"] == "include/site/python3.12/unknown/a.h"


# What belongs to the environment


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("data/pyvenv.cfg", "reserved-path"),
        ("data/pyvenv.cfg/x", "reserved-path"),
        ("data/bin/activate", "reserved-path"),
        ("data/bin/python3", "reserved-path"),
        ("data/bin/python/x", "reserved-path"),
        ("data/bin", "reserved-path"),
        ("data/lib64", "reserved-path"),
        ("data/lib64/python3.12/site-packages/x.py", "reserved-path"),
        ("scripts/python3.12", "reserved-path"),
        ("scripts/Activate.ps1", "reserved-path"),
        ("purelib/demo/__pycache__/a.cpython-312.pyc", "shipped-bytecode"),
        ("scripts/__pycache__", "shipped-bytecode"),
        ("purelib/pyvenv.cfg", None),
        ("purelib/bin/python", None),
        ("purelib/demo/a.pyc", None),
        ("data/share/bin/python", None),
        ("data/bin/pip", None),
    ],
)
def test_path_of_the_environment_itself_is_left_out(path: str, kind: str | None) -> None:
    member = f"{DATA}/{path}"
    layout = plan(member)
    assert oddities(layout) == ([] if kind is None else [(kind, member)])
    assert (member in layout.targets) == (kind is None)


def test_bytecode_at_the_root_of_a_wheel_is_left_out() -> None:
    assert oddities(plan("__pycache__/a.cpython-312.pyc")) == [("shipped-bytecode", "__pycache__/a.cpython-312.pyc")]


# One place, one file


def test_second_member_with_the_same_place_is_left_out() -> None:
    layout = plan("demo/a.py", f"{DATA}/purelib/demo/a.py", f"{DATA}/platlib/demo/a.py")
    assert set(layout.targets) == {"demo/a.py", METADATA}
    assert [(oddity.kind, oddity.path, oddity.detail) for oddity in layout.oddities] == [
        (
            "duplicate-member",
            f"{DATA}/{scheme}/demo/a.py",
            f"`demo/a.py` has the same place, `{SITE}/demo/a.py`",
        )
        for scheme in ("purelib", "platlib")
    ]


@pytest.mark.parametrize("members", [("demo", "demo/a.py"), ("demo/a.py", "demo")])
def test_file_in_the_place_of_a_folder_is_left_out(members: tuple[str, str]) -> None:
    layout = plan(*members)
    assert set(layout.targets) == {"demo/a.py", METADATA}
    assert [(oddity.kind, oddity.path, oddity.detail) for oddity in layout.oddities] == [
        ("duplicate-member", "demo", f"`{SITE}/demo` is a file and a folder")
    ]


@pytest.mark.parametrize("path", ["lib", "lib/python3.12", SITE])
def test_file_in_the_place_of_site_packages_is_left_out(path: str) -> None:
    assert oddities(plan(f"{DATA}/data/{path}")) == [("duplicate-member", f"{DATA}/data/{path}")]


def test_command_gives_way_to_a_script_and_to_a_folder_of_its_name() -> None:
    layout = plan(
        f"{DATA}/scripts/one",
        f"{DATA}/data/bin/two/x",
        entry_points="[console_scripts]\none = demo:main\ntwo = demo:main\nthree = demo:main\n",
    )
    assert [path for path in layout.generated if path.startswith("bin/")] == ["bin/three"]
    assert oddities(layout) == [("duplicate-member", "bin/one"), ("duplicate-member", "bin/two")]


# Entry points


def test_commands_of_both_groups_are_made() -> None:
    text = """
# comment
[console_scripts]
Demo-Tool = demo_pkg.cli:main
demo.tool=demo_pkg:App.run
  with_extra : x = not one
with-extra = demo_pkg:main [gpu,dev]
spaces = demo_pkg : main

[gui_scripts]
window = demo_pkg.gui:main

[other.group]
ignored = demo_pkg:plugin
"""
    scripts, found = parse_entry_points(text.replace("  with_extra : x = not one\n", ""))
    assert found == ()
    assert scripts == {
        "Demo-Tool": ("demo_pkg.cli", "main"),
        "demo.tool": ("demo_pkg", "App.run"),
        "with-extra": ("demo_pkg", "main"),
        "spaces": ("demo_pkg", "main"),
        "window": ("demo_pkg.gui", "main"),
    }


@pytest.mark.parametrize(
    "line",
    [
        "../evil = demo:main",
        "a/b = demo:main",
        "a\\b = demo:main",
        "/etc/x = demo:main",
        ". = demo:main",
        ".. = demo:main",
        "a\x85b = demo:main",
        "a\tb = demo:main",
        "n" * (LONGEST_NAME_BYTES + 1) + " = demo:main",
        "x = demo",
        "x = demo:",
        "x = :main",
        "x = demo:main()",
        "x = demo:main; import os",
        "x = demo.:main",
        "x = demo:main\n  import os",
        "x = demo-pkg:main",
        "x = os:system('evil')",
        "x =",
    ],
)
def test_command_with_a_bad_name_or_value_is_left_out(line: str) -> None:
    scripts, (oddity,) = parse_entry_points(f"[console_scripts]\ngood = demo:main\n{line}\n")
    assert scripts == {"good": ("demo", "main")}
    assert (oddity.kind, oddity.path) == ("bad-metadata", "entry_points.txt")
    assert "is not a name and module:function" in oddity.detail


@pytest.mark.parametrize(
    "text",
    ["demo = demo:main\n", "[console_scripts\nx = demo:main\n", "[console_scripts]\nx\n", "[a]\n" + " " * 1001 + "x"],
)
def test_entry_points_that_cannot_be_read_give_no_commands(text: str) -> None:
    scripts, (oddity,) = parse_entry_points(text)
    assert scripts == {}
    assert (oddity.kind, oddity.path) == ("bad-metadata", "entry_points.txt")
    assert oddity.detail.startswith("cannot be read: ")
    assert "\n" not in oddity.detail


@pytest.mark.parametrize("name", ["python", "python3", "activate"])
def test_command_in_place_of_the_environments_own_is_left_out(name: str) -> None:
    layout = plan(entry_points=f"[console_scripts]\n{name} = demo:main\n")
    assert oddities(layout) == [("reserved-path", f"console script {name}")]
    assert set(layout.generated) == {f"{SITE}/{INFO}/INSTALLER"}


@given(st.text(max_size=200))
def test_any_text_is_read_as_entry_points_or_told(text: str) -> None:
    parse_entry_points(text)


# Scripts


@pytest.mark.parametrize("first", ["#!python", "#!pythonw", "#!python3", "#!python -E", "#!python3.12 -I -u  "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_first_line_that_begins_with_python_is_replaced(first: str, end: str) -> None:
    rewritten = rewrite_script(f"{first}{end}import sys\n".encode())
    line, rest = rewritten.split(b"\n", 1)
    assert rest == b"import sys\n"
    assert line.startswith(b"#!/usr/bin/env -S /bin/sh -c ")
    assert len(line) < 127


def test_script_of_nothing_but_its_first_line_is_rewritten() -> None:
    assert rewrite_script(b"#!python").startswith(b"#!/usr/bin/env")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!/usr/bin/env python\n",
        b"#!/usr/bin/python\n",
        b" #!python\n",
        b"#! python\n",
        b"\n#!python\n",
        b"\x7fELF\x02#!python\n",
        b"#!python" + b" " * 1001 + b"\n",
    ],
)
def test_other_scripts_stay_as_they_are(content: bytes) -> None:
    assert rewrite_script(content) == content


@given(st.binary(max_size=1020), st.sampled_from([b"\n", b"\r", b" ", b"x"]), st.integers(-20, 20))
def test_no_more_than_the_first_bytes_decide_over_the_first_line(start: bytes, filler: bytes, length: int) -> None:
    content = b"#!python" + start + filler * (FIRST_LINE_BYTES + length)
    head, tail = content[:FIRST_LINE_BYTES], content[FIRST_LINE_BYTES:]
    assert rewrite_script(content) == rewrite_script(head) + tail


def make_venv(root: Path) -> Path:
    venv.create(root, with_pip=False, symlinks=True)
    return root


def add_command(root: Path, name: str, content: bytes) -> Path:
    command = root / "bin" / name
    command.write_bytes(content)
    command.chmod(0o555)
    return command


def add_module(root: Path, name: str, text: str) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (root / "lib" / version / "site-packages" / name).write_text(text, encoding="utf-8")


SHOW = """
import sys, os
def main():
    print(sys.prefix, sys.argv[1:], sep="|")
    return 7
class App:
    run = staticmethod(main)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    root = make_venv(tmp_path / "a place with 'quotes' and $HOME")
    add_module(root, "show.py", SHOW)
    return root


@pytest.mark.parametrize("attribute", ["main", "App.run"])
def test_command_runs_the_python_beside_it(environment: Path, tmp_path: Path, attribute: str) -> None:
    command = add_command(environment, "show", console_script("show", attribute))
    link = tmp_path / "elsewhere"
    link.symlink_to(command)
    second = tmp_path / "second"
    second.symlink_to("elsewhere")
    arguments = ["two  words", "$HOME", "it's", ""]
    for start, cwd in ((command, tmp_path), (link, tmp_path), ("./second", tmp_path), ("./show", command.parent)):
        result = subprocess.run([start, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
        assert (result.stdout, result.returncode, result.stderr) == (f"{environment}|{arguments}\n", 7, "")


def test_command_found_through_path_runs(environment: Path) -> None:
    add_command(environment, "show", console_script("show", "main"))
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["show"],  # noqa: S607 - through PATH is the point
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.returncode) == (f"{environment}|[]\n", 7)


def test_spawned_process_does_not_start_the_command_again(environment: Path) -> None:
    module = """
import multiprocessing
def work(queue):
    queue.put("worked")
def main():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print("started", queue.get(timeout=60))
    process.join()
    return process.exitcode
"""
    add_module(environment, "spawning.py", module)
    command = add_command(environment, "spawn", console_script("spawning", "main"))
    result = subprocess.run([command], capture_output=True, text=True, check=False, timeout=120)
    assert (result.stdout, result.returncode, result.stderr) == ("started worked\n", 0, "")
    assert "spawn" in multiprocessing.get_all_start_methods()


def test_rewritten_script_keeps_its_encoding_docstring_and_future(environment: Path, tmp_path: Path) -> None:
    source = (
        "#!python -E\n# -*- coding: latin-1 -*-\n"
        '"""Usage: \u00fc."""\nfrom __future__ import annotations\nimport sys\n'
        "print(__doc__, sys.prefix, sys.argv[1:], __file__, sep='|')\nraise ValueError\n"
    )
    command = add_command(environment, "tool", rewrite_script(source.encode("latin-1")))
    link = tmp_path / "linked tool"
    link.symlink_to(command)
    result = subprocess.run(
        [link, "a  b", "$HOME"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert result.stdout == f"Usage: \u00fc.|{environment}|['a  b', '$HOME']|{link}\n"
    assert "line 7, in <module>" in result.stderr  # lines keep their numbers
    assert result.returncode == 1


def test_command_of_a_module_that_is_missing_says_so(environment: Path) -> None:
    command = add_command(environment, "lost", console_script("lost_module", "main"))
    result = subprocess.run([command], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "No module named 'lost_module'" in result.stderr


# RECORD


def test_record_lists_every_file_sorted_and_itself_without_digest() -> None:
    empty = hashlib.sha256(b"").hexdigest()
    content = record_content(
        f"{SITE}/{INFO}/RECORD",
        [
            (f"{SITE}/demo/b, c.py", empty, 0),
            ("bin/demo", empty, 0),
            (f'{SITE}/demo/a"b.py', empty, 0),
            ("share/\u00fc", empty, 0),
            (f"{SITE}_not/x", empty, 0),
        ],
    )
    digest = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0"
    assert content.decode() == (
        f"../../../bin/demo,{digest}\n"
        f"../../../lib/python3.12/site-packages_not/x,{digest}\n"
        f"../../../share/\u00fc,{digest}\n"
        f'"demo/a""b.py",{digest}\n'
        f'"demo/b, c.py",{digest}\n'
        f"{INFO}/RECORD,,\n"
    )


@given(st.dictionaries(paths, st.tuples(digests, sizes), max_size=8))
def test_record_is_what_a_csv_reader_expects(files: dict[str, tuple[str, int]]) -> None:
    record = f"{SITE}/{INFO}/RECORD"
    listed = {path: row for path, row in files.items() if name_problem(path) is None}
    content = record_content(record, [(path, *row) for path, row in listed.items()])
    rows = list(csv.reader(io.StringIO(content.decode())))
    # importlib.metadata splits at every line end that str knows
    assert rows == list(csv.reader(content.decode().splitlines()))
    found = {os.path.normpath(f"{SITE}/{path}"): (digest, size) for path, digest, size in rows}
    assert found.pop(record) == ("", "")
    assert {path: size for path, (_, size) in found.items()} == {path: str(size) for path, (_, size) in listed.items()}
    assert len(rows) == len(listed) + 1
    assert rows == sorted(rows)


# Anything


_words = st.sampled_from(
    [
        "demo",
        "a",
        "b.py",
        "..",
        ".",
        "",
        "bin",
        "lib",
        "lib64",
        "python3",
        "python3.12",
        "site-packages",
        "__pycache__",
        "pyvenv.cfg",
        "activate",
        "tool",
        INFO,
        DATA,
        "other-1.0.dist-info",
        "x.DIST-INFO",
        "RECORD",
        "INSTALLER",
        "METADATA",
        "data",
        "scripts",
        "purelib",
        "headers",
        "share",
        "\\",
        "\0",
    ]
)
member_names = st.one_of(
    st.lists(_words, min_size=1, max_size=5).map("/".join),
    st.builds("{}/{}/{}".format, st.just(DATA), st.sampled_from(["data", "scripts", "purelib"]), _words),
    st.builds(f"{DATA}/data/{SITE}/{{}}/{{}}".format, _words, _words),
    st.text(max_size=30),
)
command_names = st.sampled_from(["tool", "a", "python", "sub/x", "..", "demo", "b.py"])


@settings(max_examples=1000)
@given(
    members=st.lists(member_names, max_size=12),
    commands=st.lists(command_names, max_size=3),
    filename=st.one_of(st.just(FILE), st.text(max_size=20), st.just("../../e-1.0-py3-none-any.whl")),
    with_metadata=st.booleans(),
)
def test_any_names_give_a_tree_that_can_be_made(
    members: list[str], commands: list[str], filename: str, *, with_metadata: bool
) -> None:
    entry_points = "[console_scripts]\n" + "".join(f"{name} = demo:main\n" for name in commands)
    all_members = [*members, METADATA] if with_metadata else members
    layout = plan_layout(all_members, filename, "3.12", entry_points)
    made = [*layout.targets.values(), *layout.generated, *([layout.record_path] if layout.record_path else [])]
    assert len(set(made)) == len(made)
    above = {str(folder) for path in made for folder in PurePosixPath(path).parents}
    assert above.isdisjoint(made)
    for path in made:
        assert path == os.path.normpath(path)
        assert not path.startswith("/")
        assert path.split("/")[0] != ".."
        assert max(len(os.fsencode(part)) for part in path.split("/")) < 256
    places = set(made) | above
    assert not any(is_host_path(path) for path in places)
    assert layout.scripts <= layout.targets.keys() <= set(all_members)


@given(st.lists(member_names, max_size=8))
def test_every_member_is_installed_or_told_or_an_installers(members: list[str]) -> None:
    layout = plan(*members)
    told = {oddity.path for oddity in layout.oddities}
    if not layout.dist_info:
        assert set(members) <= layout.targets.keys() | told
        return
    for member in set(members) - layout.targets.keys() - told:
        assert member.rpartition("/")[2] in {"RECORD", "INSTALLER"}
        assert INFO in member
