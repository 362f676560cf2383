"""`generic-top-level`, `shipped-bytecode` and `data-outside`."""

from __future__ import annotations

import pytest

from tests.support.facts import Row, fails, make_closure, make_facts, passes

ROWS = (
    passes(
        "generic-top-level",
        "a package with folders of such names inside",
        make_closure([make_facts("torch", files={"torch/lib/x.so": "", "torch/test/a.py": "", "torch/tools.py": ""})]),
    ),
    passes("generic-top-level", "a package whose own name it is", make_closure([make_facts("tools")])),
    passes(
        "generic-top-level",
        "such folders outside of site-packages",
        make_closure([make_facts("z3", environment_files={"lib/libz3.so": "", "include/z3.h": ""})]),
    ),
    fails(
        "generic-top-level",
        "names that anyone could use",
        make_closure(
            [
                make_facts(
                    "k", files={"k.py": "", "lib/a.so": "", "lib/b.so": "", "build_backend.py": "", "Test/a.py": ""}
                )
            ]
        ),
        "info",
        "k 1.0 has 3 names at the root of site-packages that anyone could use: `Test`, `build_backend.py` and `lib`",
    ),
    passes("shipped-bytecode", "a wheel of sources", make_closure([make_facts("demo")])),
    fails(
        "shipped-bytecode",
        "bytecode",
        make_closure(
            [make_facts("c", anomalies=[("shipped-bytecode", "c/__pycache__/a.cpython-312.pyc", "left out")])]
        ),
        "info",
        "c 1.0 has 1 file of bytecode, which is left out: `c/__pycache__/a.cpython-312.pyc`",
    ),
    passes(
        "data-outside",
        "the usual folders",
        make_closure(
            [
                make_facts(
                    "sympy",
                    environment_files={"share/man/man1/isympy.1": "", "bin/isympy": "", "etc/x": "", "include/a.h": ""},
                )
            ]
        ),
    ),
    passes(
        "data-outside",
        "a reserved path, which is an error already",
        make_closure([make_facts("dd", environment_files={"pyvenv.cfg": "", "lib64/x": ""})]),
    ),
    fails(
        "data-outside",
        "a folder of its own, and a file at the root",
        make_closure([make_facts("video", environment_files={"external/ffmpeg/src.tar.xz": "", "bin": ""})]),
        "info",
        "video 1.0 has 2 files in a folder of their own in the environment: `bin` and `external/ffmpeg/src.tar.xz`",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()
