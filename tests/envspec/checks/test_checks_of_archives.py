"""The public reports about broken and hostile wheels, from the archive to the finding (cases C24 to C28 and C35)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from builder.measure import measure_wheel
from envspec.checks import Verdict, run_checks
from tests.support.facts import make_closure
from tests.support.wheels import make_wheel, record_row

if TYPE_CHECKING:
    from pathlib import Path

LOST = "demo/lost.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0"
INIT = "demo/__init__.py"


def judge(*wheels: Path) -> Verdict:
    """The verdict on these wheel files."""
    facts = [
        measure_wheel(
            wheel,
            filename=wheel.name,
            sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
            python="3.12",
        )
        for wheel in wheels
    ]
    return run_checks(make_closure(facts))


def found(verdict: Verdict) -> list[tuple[str, str]]:
    return [(finding.severity, finding.check) for finding in verdict.findings]


def test_sound_wheel_has_no_findings(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "Demo.Pkg",
        "1.0",
        {"demo_pkg/__init__.py": "", "demo_pkg/data, really.txt": "x"},
        entry_points="[console_scripts]\ndemo = demo_pkg:main\n",
        data={"scripts/tool": "#!python\n", "data/share/man/man1/demo.1": "man"},
        executable=["scripts/tool"],
        requires_python=">=3.10",
    )
    assert judge(wheel).findings == ()


CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "wrong digest in RECORD": ({"record": {INIT: record_row(INIT, b"other")}}, [("error", "record-hash")]),
    "no digest in RECORD": ({"record": {INIT: f"{INIT},,"}}, [("error", "record-hash")]),
    "a row without a file": ({"record_extra": [LOST]}, [("warning", "record-ghost")]),
    "every row with a slash before it": ({"record": {INIT: "/" + record_row(INIT, b"")}}, [("warning", "record-path")]),
    "a .pth that RECORD does not list": (
        {"raw_members": [("zz.pth", b"import os\n")]},
        [("error", "unrecorded-file"), ("warning", "startup-hook")],
    ),
    "data that RECORD does not list": ({"raw_members": [("demo/x.json", b"{}")]}, [("warning", "unrecorded-file")]),
    "activate and pyvenv.cfg": (
        {"data": {"data/bin/activate": "evil", "data/pyvenv.cfg": "home = /evil", "data/bin/ptxas": "fine"}},
        [("error", "reserved-path")],
    ),
    "a folder in place of an interpreter": ({"data": {"data/bin/python3/x": ""}}, [("error", "reserved-path")]),
    "a script in place of an interpreter": ({"data": {"scripts/python3": "#!python\n"}}, [("error", "reserved-path")]),
    "a command in place of an interpreter": (
        {"entry_points": "[console_scripts]\npython3 = demo:main\n"},
        [("error", "reserved-path")],
    ),
    "data in a folder of its own": ({"data": {"data/external/ffmpeg.tar": "x"}}, [("info", "data-outside")]),
    "sitecustomize": (
        {"files": {"demo/__init__.py": "", "sitecustomize.py": "print()"}},
        [("error", "startup-hook")],
    ),
    "a .pth with code": (
        {"files": {"demo/__init__.py": "", "demo.pth": "import os; os.environ['X'] = '1'\n"}},
        [("warning", "startup-hook")],
    ),
    "a .pth with paths": ({"files": {"demo/__init__.py": "", "demo.pth": "demo/sub\n"}}, [("info", "startup-hook")]),
    "a symbolic link": ({"symlinks": {"demo/libx.so": "libx.so.1"}}, [("error", "symlink-member")]),
    "bytecode": (
        {"files": {"demo/__init__.py": "", "demo/__pycache__/__init__.cpython-312.pyc": b"x"}},
        [("info", "shipped-bytecode")],
    ),
    "a local part in the file name only": (
        {"metadata_version": "2.0", "version": "2.0+cu130"},
        [("warning", "local-version-mismatch")],
    ),
    "another version in METADATA": ({"metadata_version": "2.0"}, [("error", "version-mismatch")]),
    "another machine in the file name": (
        {"tag": "cp312-cp312-manylinux_2_28_x86_64", "wheel_tags": ["cp312-cp312-manylinux_2_28_aarch64"]},
        [("warning", "tag-mismatch")],
    ),
    "two dist-info folders": (
        {"files": {"demo/__init__.py": "", "other-1.0.dist-info/METADATA": "Name: other\n"}},
        [("error", "archive-damaged")],
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_public_report_is_answered(case: str, tmp_path: Path) -> None:
    arguments, expected = CASES[case]
    arguments = {"version": "1.0", **arguments}
    wheel = make_wheel(tmp_path, "demo", **arguments)
    assert found(judge(wheel)) == expected


@pytest.mark.parametrize("member", ["../../../../x", "/etc/x", "demo/../../x"])
def test_member_that_leads_out_is_an_error(member: str, tmp_path: Path) -> None:
    verdict = judge(make_wheel(tmp_path, "demo", "1.0", raw_members=[(member, b"x")]))
    assert ("error", "path-escape") in found(verdict)


def test_name_that_the_archive_lists_twice_is_an_error(tmp_path: Path) -> None:
    verdict = judge(make_wheel(tmp_path, "demo", "1.0", raw_members=[(INIT, b"import evil\n")]))
    assert ("error", "duplicate-member") in found(verdict)


def test_file_that_is_no_archive_is_an_error_of_its_own(tmp_path: Path) -> None:
    wheel = tmp_path / "demo-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not a zip file")
    assert found(judge(wheel)) == [("error", "archive-damaged")]


def test_two_commands_of_one_name_are_an_error(tmp_path: Path) -> None:
    wheels = [
        make_wheel(tmp_path, name, "1.0", entry_points=f"[console_scripts]\nserve = {name}:main\n")
        for name in ("one", "two")
    ]
    verdict = judge(*wheels)
    assert [finding.message for finding in verdict.findings] == [
        "one and two have different contents for 1 command: `bin/serve`"
    ]


def test_two_wheels_with_the_same_path_are_an_error(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, f"libs_{which}", "1.0", {"dsl/rt.py": which}) for which in ("base", "cu13")]
    assert [finding.message for finding in judge(*wheels).findings] == [
        "libs-base and libs-cu13 have different contents for 1 file: `dsl/rt.py`"
    ]
