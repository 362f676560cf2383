"""`file-collision`, `script-collision` and `reserved-path`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envspec.checks import ClosureWheel, run_checks
from envspec.compose import owner_of
from tests.support.facts import Row, fails, make_closure, make_facts, make_spec, passes, waiver

if TYPE_CHECKING:
    from envspec.facts import WheelFacts


def _dsl(which: str, *, shared: int = 1, differing: int = 1) -> WheelFacts:
    files = {f"dsl/{number:03}.py": which if number < differing else "same" for number in range(shared)}
    return make_facts(f"libs-{which}", files=files)


def _many(name: str, package: str, *, differing: int, shared: int, own: str = "") -> WheelFacts:
    files = {f"{package}/{number:03}.py": name if number < differing else "same" for number in range(shared)}
    return make_facts(name, files=files | ({own: name} if own else {}))


BUILD_BACKENDS = [
    make_facts("flashinfer-python", files={"flashinfer/__init__.py": "a", "build_backend.py": "a"}),
    make_facts("torch-c-dlpack-ext", files={"torch_c_dlpack_ext/__init__.py": "b", "build_backend.py": "b"}),
]
SERVERS = [
    make_facts("sglang-router", environment_files={"bin/serve": "router"}),
    make_facts("vllm-router", environment_files={"bin/serve": "vllm"}),
]
TOOLS_TWICE = [
    make_facts("one", files={"one/tools": "a file"}),
    make_facts("two", files={"one/tools/x.py": "a", "one/tools/y.py": "b"}),
]


ROWS = (
    passes(
        "file-collision",
        "packages that share a folder",
        make_closure(
            [
                make_facts("nvidia-cublas", files={"nvidia/cublas/lib/libcublas.so.13": "a"}),
                make_facts("nvidia-cudnn", files={"nvidia/cudnn/lib/libcudnn.so.9": "b"}),
            ]
        ),
    ),
    fails(
        "file-collision",
        "different contents for one path",
        make_closure(BUILD_BACKENDS),
        "error",
        "flashinfer-python and torch-c-dlpack-ext have different contents for 1 file: `build_backend.py`",
    ),
    fails(
        "file-collision",
        "the same content, executable in one of them",
        make_closure(
            [make_facts("a", files={"x/t.sh": "1"}), make_facts("b", files={"x/t.sh": "1"}, executable=["x/t.sh"])]
        ),
        "error",
        "a and b have different contents for 1 file: `x/t.sh`",
    ),
    fails(
        "file-collision",
        "the same content in three packages",
        make_closure([make_facts(name, files={"nvidia/__init__.py": ""}) for name in ("x", "y", "z")]),
        "info",
        "1 file with equal contents in several packages: `nvidia/__init__.py`",
    ),
    fails(
        "file-collision",
        "different contents in three packages",
        make_closure([make_facts(name, files={"cv2/__init__.py": name}) for name in ("x", "y", "z")]),
        "error",
        "x, y and z have different contents for 1 file: `cv2/__init__.py`",
    ),
    fails(
        "file-collision",
        "a file in one and a folder in the other",
        make_closure(TOOLS_TWICE),
        "error",
        "`one/tools` is a file in one and a folder in two",
    ),
    fails(
        "file-collision",
        "paths that differ in case only",
        make_closure([make_facts("a", files={"pil/Image.py": "1"}), make_facts("b", files={"PIL/Image.py": "2"})]),
        "warning",
        "1 path of a and b differ only in case: `PIL/Image.py / pil/Image.py`",
    ),
    passes(
        "file-collision",
        "a waiver that names the owner",
        make_closure(
            BUILD_BACKENDS,
            make_spec(
                waivers=[
                    waiver("file-collision", "flashinfer-python", path="build_backend.py", owner="torch-c-dlpack-ext")
                ]
            ),
        ),
    ),
    fails(
        "file-collision",
        "a waiver that names no owner",
        make_closure(
            BUILD_BACKENDS,
            make_spec(waivers=[waiver("file-collision", "flashinfer-python", path="build_backend.py")]),
        ),
        "error",
        "flashinfer-python and torch-c-dlpack-ext have different contents for 1 file: `build_backend.py`; the waiver has no"
        " effect, it names no `owner`, the package whose file stays",
    ),
    fails(
        "file-collision",
        "a waiver whose owner is a third package",
        make_closure(
            BUILD_BACKENDS,
            make_spec(waivers=[waiver("file-collision", "flashinfer-python", path="build_backend.py", owner="torch")]),
        ),
        "error",
        "flashinfer-python and torch-c-dlpack-ext have different contents for 1 file: `build_backend.py`; the waiver has no"
        " effect, its owner `torch` is none of the packages that have the file",
    ),
    fails(
        "file-collision",
        "a waiver with an owner for no path",
        make_closure(
            BUILD_BACKENDS,
            make_spec(waivers=[waiver("file-collision", "flashinfer-python", owner="flashinfer-python")]),
        ),
        "error",
        "flashinfer-python and torch-c-dlpack-ext have different contents for 1 file: `build_backend.py`; the waiver has no"
        " effect, it names no `path` beside its `owner`",
    ),
    fails(
        "file-collision",
        "a waiver for a file against a folder",
        make_closure(TOOLS_TWICE, make_spec(waivers=[waiver("file-collision", "one", path="*", owner="two")])),
        "error",
        "`one/tools` is a file in one and a folder in two; the waiver has no effect, a file cannot stand in place of a folder,"
        " so one of the packages has to go",
    ),
    passes(
        "script-collision",
        "commands of different names",
        make_closure(
            [
                make_facts("a", environment_files={"bin/a": "1"}),
                make_facts("b", environment_files={"bin/b": "1"}),
            ]
        ),
    ),
    passes("script-collision", "two files of site-packages", make_closure(BUILD_BACKENDS)),
    passes("file-collision", "two commands", make_closure(SERVERS)),
    fails(
        "script-collision",
        "two packages with the same command",
        make_closure(SERVERS),
        "error",
        "sglang-router and vllm-router have different contents for 1 command: `bin/serve`",
    ),
    passes(
        "script-collision",
        "a waiver that names the owner",
        make_closure(
            SERVERS,
            make_spec(waivers=[waiver("script-collision", "vllm-router", path="bin/serve", owner="vllm-router")]),
        ),
    ),
    passes(
        "reserved-path",
        "commands, data and a package named like a reserved path",
        make_closure(
            [
                make_facts(
                    "z3-solver",
                    files={"pyvenv.cfg": "", "bin/python": "", "lib64/x.so": ""},
                    environment_files={"bin/z3": "z", "bin/pip": "", "share/man/man1/z3.1": "", "lib/libz3.so": ""},
                )
            ]
        ),
    ),
    fails(
        "reserved-path",
        "an archive that holds reserved paths",
        make_closure(
            [
                make_facts(
                    "dd",
                    anomalies=[
                        (
                            "reserved-path",
                            "dd-1.0.data/data/pyvenv.cfg",
                            "`pyvenv.cfg` belongs to the environment itself",
                        ),
                        ("reserved-path", "dd-1.0.data/data/bin/activate", "`bin/activate` belongs to ..."),
                    ],
                )
            ]
        ),
        "error",
        "dd 1.0 has 2 files for paths that belong to the environment itself: `dd-1.0.data/data/bin/activate` and"
        " `dd-1.0.data/data/pyvenv.cfg`",
    ),
    *(
        fails(
            "reserved-path",
            f"the path {path}",
            make_closure([make_facts("dd", environment_files={path: "x"})]),
            "error",
            f"dd 1.0 has 1 file for a path that belongs to the environment itself: `{path}`",
        )
        for path in (
            "bin/python3.12",
            "bin/activate.fish",
            "pyvenv.cfg",
            "lib64",
            "lib64/python3.12/x.py",
            "bin/python3/x",
        )
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_collision_of_two_packages_is_one_finding_with_count_and_three_examples() -> None:
    closure = make_closure([_dsl("base", shared=175, differing=93), _dsl("cu13", shared=175, differing=93)])
    verdict = run_checks(closure)
    error, info = (finding for finding in verdict.findings if finding.check == "file-collision")
    assert error.message == (
        "libs-base and libs-cu13 have different contents for 93 of 175 shared files:"
        " `dsl/000.py`, `dsl/001.py`, `dsl/002.py` and 90 more"
    )
    assert error.packages == ("libs-base", "libs-cu13")
    assert error.path == "dsl/000.py"
    assert error.evidence[-1] == "and 73 more"
    assert info.severity == "info"
    assert info.message.startswith("82 files with equal contents")


def test_waiver_of_some_paths_leaves_the_others_a_finding() -> None:
    spec = make_spec(waivers=[waiver("file-collision", "libs-cu13", path="dsl/00*", owner="libs-cu13")])
    verdict = run_checks(
        make_closure([_dsl("base", shared=12, differing=12), _dsl("cu13", shared=12, differing=12)], spec)
    )
    (remaining,) = verdict.findings
    assert remaining.message == (
        "libs-base and libs-cu13 have different contents for 2 of 12 shared files: `dsl/010.py` and `dsl/011.py`"
    )
    ((waived, by),) = verdict.waived
    assert waived.message.startswith("libs-base and libs-cu13 have different contents for 10 of 12 shared files")
    assert by.owner == "libs-cu13"


@pytest.mark.parametrize(
    ("old", "new"), [("sgl-kernel", "sglang-kernel"), ("sglang-kernel", "sgl-kernel"), ("pil", "pillow")]
)
def test_package_under_an_old_and_a_new_name_is_recognised(old: str, new: str) -> None:
    closure = make_closure(
        [_many(name, "sgl_kernel", differing=47, shared=60, own=f"{name}.txt") for name in (old, new)]
    )
    hint = run_checks(closure).findings[0].hint
    first, second = sorted((old, new))
    assert hint == (
        f"{first} and {second} are one package under an old and a new name, both install `sgl_kernel`: keep the successor"
        " package and exclude the other by an override"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("opencv-python", "opencv-python-headless"),
        ("nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"),
        ("nvidia-cublas-cu12", "nvidia-cublas-cu13"),
    ],
)
def test_variants_of_one_package_are_recognised(first: str, second: str) -> None:
    closure = make_closure([_many(name, "cv2", differing=3, shared=79) for name in (first, second)])
    assert run_checks(closure).findings[0].hint == (
        f"{first} and {second} both install `cv2`: keep one and exclude the other by an override"
    )


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [("sgl-kernel", "sglang-kernel", 1), ("sgl-kernel", "sglang-kernel", 9), ("torch", "flashinfer-python", 60)],
)
def test_packages_that_share_few_files_or_no_word_are_not_taken_for_one(first: str, second: str, shared: int) -> None:
    closure = make_closure([_many(name, "x", differing=shared, shared=shared) for name in (first, second)])
    assert run_checks(closure).findings[0].hint == (
        "keep one of the packages, or waive it with a `path` and the `owner` whose file stays"
    )


def test_evidence_of_a_collision_says_who_asks_for_the_packages() -> None:
    wheels = [ClosureWheel(facts=facts, required_by=("sglang",)) for facts in SERVERS[:1]]
    closure = make_closure([*wheels, *SERVERS[1:]])
    assert run_checks(closure).findings[0].evidence[-1] == "sglang-router is required by sglang"


def test_owner_among_three_packages_resolves_their_collision() -> None:
    spec = make_spec(waivers=[waiver("file-collision", "x", path="cv2/*", owner="y")])
    closure = make_closure([make_facts(name, files={"cv2/a.py": name}) for name in ("x", "y", "z")], spec)
    assert run_checks(closure).findings == ()


def test_two_wheels_of_one_name_do_not_hide_each_other() -> None:
    closure = make_closure([make_facts("a", "1.0", files={"a.py": "1"}), make_facts("a", "2.0", files={"a.py": "2"})])
    messages = [finding.message for finding in run_checks(closure).findings]
    assert messages == ["a and a have different contents for 1 file: `a.py`"]


def test_owner_of_the_pattern_that_sorts_first_is_the_one_shown() -> None:
    waivers = [
        waiver("file-collision", "x", path="cv2/a.py", owner="x"),
        waiver("file-collision", "x", path="*", owner="y"),
    ]
    closure = make_closure(
        [make_facts(name, files={"cv2/a.py": name}) for name in ("x", "y")], make_spec(waivers=waivers)
    )
    ((_, by),) = run_checks(closure).waived
    assert by.owner == "y" == owner_of("cv2/a.py", {waiver.path: waiver.owner for waiver in waivers})
