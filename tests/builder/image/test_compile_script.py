"""Bytecode of images: the same bytes whatever the process did before, and what does not compile is no error."""

from __future__ import annotations

import base64
import importlib.util
import json
import marshal
import sys
from pathlib import Path

import pytest

from builder.image import compile_script
from tests.support.images import command

SOURCE = '''
"""A module whose constants a compiler may or may not share."""
import os

def first(x, y=("a b", 1.5, None)):
    return x in {"awq", "awq_marlin", "moe wna16"} or y == ("a b", 1.5, None) or os.path

class Second:
    names = frozenset({"b", "c"})

    def method(self, x):
        return [each for each in x if each in {"awq", "awq_marlin", "moe wna16"}] or (lambda: ("a b", 1.5, None))
'''

WORKS = """
import random, sys
sys.path.insert(0, sys.argv[1])
held = [frozenset({f"awq{number}", "awq_marlin"}) for number in range(random.randrange(5000))]
import compile_script
for number in range(random.randrange(20)):
    compile_script.bytecode_of("x.py", b"x in {'awq', 'awq_marlin', 'moe wna16'}")
held.clear()
print(compile_script.bytecode_of("lib/module.py", sys.argv[2].encode()).hex())
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sets are marshalled in a fixed order since 3.11")
def test_bytecode_depends_on_the_module_alone() -> None:
    folder = Path(compile_script.__file__).parent
    found = {
        command(sys.executable, "-B", "-c", WORKS, folder, SOURCE, environ={"PYTHONHASHSEED": str(seed)})
        for seed in range(6)
    }
    made = compile_script.bytecode_of("lib/module.py", SOURCE.encode())
    assert made is not None
    assert {bytes.fromhex(each.strip()) for each in found} == {made}


def test_header_says_that_the_source_is_to_be_compared() -> None:
    made = compile_script.bytecode_of("lib/module.py", SOURCE.encode())
    assert made is not None
    assert made[:16] == importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + importlib.util.source_hash(SOURCE.encode())
    names: dict[str, object] = {}
    exec(marshal.loads(made[16:]), names)  # noqa: S302, S102 - it was made two lines above
    assert names["__doc__"] == "A module whose constants a compiler may or may not share."


@pytest.mark.parametrize(
    "source",
    [b"def", b"{{ template }}x", b"\0", b"# coding: nonsense\n", b"\xff", b"-" * 200_000 + b"1"],
    ids=["syntax", "template", "zero", "coding", "not UTF-8", "too deep"],
)
def test_what_python_cannot_compile_has_no_bytecode(source: bytes) -> None:
    lines = "".join(
        json.dumps({"path": "x.py", "source": base64.b64encode(each).decode()}) + "\n" for each in (source, b"x = 1")
    )
    script = f'printf %s "$2" | {sys.executable} -s -S -B "$1"'
    said = command("sh", "-c", script, "sh", compile_script.__file__, lines) if len(lines) < 100_000 else None
    if said is None:
        assert compile_script.bytecode_of("x.py", source) is None
        return
    first, second = [json.loads(line)["bytecode"] for line in said.splitlines()]
    assert first is None
    assert base64.b64decode(second) == compile_script.bytecode_of("x.py", b"x = 1")
