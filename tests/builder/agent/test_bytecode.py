"""Bytecode is made once, is the same everywhere, and is all that Python wants."""

from __future__ import annotations

import importlib.util
import json
import os
import string
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder import process
from builder.agent.bytecode import bytecode_path, bytecode_tag, compile_tree, source_path
from builder.agent.lending import Donor
from builder.agent.pool import WorkerPool
from builder.agent.realise import CorruptObjects, bytecode_tag_of
from builder.agent.store import ObjectChanged, Store
from envspec.layout import LONGEST_NAME_BYTES
from envspec.tree import manifest_lines, parse_line
from tests.support.stores import (
    SITE,
    InlinePool,
    add_wheel,
    built,
    edit_in_place,
    make_objects,
    make_plan,
    new_store,
    snapshot,
    this_interpreter,
    unpack_task,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.agent.realise import PlanPart

CACHE_TAG = sys.implementation.cache_tag or ""
LONGEST_STEM = "n" * (LONGEST_NAME_BYTES - len(".py"))
ODD_SOURCES: dict[str, bytes | str] = {
    "alpha/template.py": "{{ cookiecutter.name }} = ",
    "alpha/old.py": "print 'hello'\n",
    "alpha/null.py": "x = 1\0\n",
    "alpha/encoding.py": "# coding: no-such-encoding\n",
    "alpha/latin.py": b"# coding: latin-1\nx = '\xe4'\n",
    "alpha/undeclared.py": b"x = '\xe4'\n",
    "alpha/deep.py": "x = " + "(" * 300 + ")" * 300 + "\n",
    "alpha/warns.py": "x = '\\d'\nassert (1, 'always true')\n",
    f"alpha/{LONGEST_STEM}.py": "x = 1\n",
}
NOT_COMPILED = {"template", "old", "null", "encoding", "undeclared", "deep"}


def unpack(store: Store, part: PlanPart, *, donor: str = "") -> tuple[Path, str]:
    """Make a tree without its bytecode; its folder and its manifest."""
    InlinePool(store).submit(unpack_task(store, part, donor=donor)).result()
    return store.tree(part.tree).path, store.tree(part.tree).manifest_path.read_text(encoding="ascii")


def compiled(tree: Path, text: str, folder: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    folder.mkdir()
    listed, failed = compile_tree(tree, text, folder, None)
    entries = [parse_line(line) for line in manifest_lines(listed) if line.endswith("=file")]
    assert {entry.path for entry in entries} == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    return {entry.path: (folder / entry.path).read_bytes() for entry in entries}, failed


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "store")


# -- names ----------------------------------------------------------------------------------------------------------------------------

stems = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12)
folders = st.lists(st.text(string.ascii_lowercase + "._- ", min_size=1, max_size=6), min_size=1, max_size=3).map(
    "/".join
)
tags = st.sampled_from(["cpython-310", "cpython-312", "cpython-313", CACHE_TAG])


@given(folder=folders, stem=stems, tag=tags)
def test_the_place_of_bytecode_leads_back_to_its_source(folder: str, stem: str, tag: str) -> None:
    source = f"{folder}/{stem}.py"
    assert source_path(bytecode_path(source, tag)) == source


@pytest.mark.parametrize("module", ["a/b.py", "a/b.c.py", "a/b.c-1.d.py", "lib/p ython/ü.py", "a/__init__.py"])
def test_the_place_of_bytecode_is_where_python_looks(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", None)
    assert bytecode_path(module, CACHE_TAG) == importlib.util.cache_from_source(module, optimization="")


def test_the_tag_is_that_of_the_interpreter() -> None:
    assert bytecode_tag() == bytecode_tag_of(this_interpreter())


# -- what is made ---------------------------------------------------------------------------------------------------------------------


def test_bytecode_is_hash_based_and_unchecked_and_names_no_place(store: Store, tmp_path: Path) -> None:
    part = add_wheel(store, "alpha", {"alpha/__init__.py": "x = 1\n", "alpha/inner/m.py": "def f(): return 1\n"})
    files, failed = compiled(*unpack(store, part), tmp_path / "out")
    assert failed == ()
    assert set(files) == {
        f"{SITE}/alpha/__pycache__/__init__.{CACHE_TAG}.pyc",
        f"{SITE}/alpha/inner/__pycache__/m.{CACHE_TAG}.pyc",
    }
    for path, content in files.items():
        source = (store.tree(part.tree).path / source_path(path)).read_bytes()
        assert content[:4] == importlib.util.MAGIC_NUMBER
        assert content[4:8] == b"\x01\0\0\0", "hash-based (bit 0), source not checked (bit 1)"
        assert content[8:16] == importlib.util.source_hash(source)
        assert os.fspath(tmp_path).encode() not in content
        assert (tmp_path / "out" / path).stat().st_mode & 0o777 == 0o444


def test_two_places_give_the_same_bytes(tmp_path: Path) -> None:
    results = []
    for place in ("one", "deeper/and/elsewhere"):
        (tmp_path / place).mkdir(parents=True)
        store = new_store(tmp_path / place / "store")
        source = (
            "def f(x):\n    'doc'\n    class C:\n        y = (1, 2.5, 'name', b'b')\n    return [f for f in x if C]\n"
        )
        part = add_wheel(store, "alpha", {"alpha/__init__.py": source, "alpha/json.py": "import json, os\n"})
        results.append(compiled(*unpack(store, part), tmp_path / place / "out"))
    assert results[0] == results[1]


def test_a_worker_that_did_much_before_gives_the_same_bytes(tmp_path: Path) -> None:
    """What a process has compiled and imported changes which strings it shares, and marshal writes what is shared differently."""
    sources = {
        f"alpha/m{index}.py": f"import zipfile, email\ndef decompress_{index % 3}(chunk, member): return member.name, chunk\n"
        for index in range(20)
    }
    manifests = []
    for place, warm_up in (("one", 0), ("two", 3)):
        store = new_store(tmp_path / place)
        part = add_wheel(store, "alpha", sources)
        others = [
            add_wheel(store, f"other{index}", {f"other{index}.py": "def member(chunk, name): return name\n"})
            for index in range(warm_up)
        ]
        with WorkerPool(this_interpreter().path, store.root, size=1) as pool:
            for each in (*others, part):
                make_objects(store, make_plan(store, [each]), pool)
        manifests.append(store.bytecode(part.tree, bytecode_tag()).manifest_path.read_text())
    assert manifests[0] == manifests[1]


def test_what_cannot_be_compiled_is_listed_and_stops_nothing(store: Store, tmp_path: Path) -> None:
    part = add_wheel(store, "alpha", {"alpha/__init__.py": "", **ODD_SOURCES})
    files, failed = compiled(*unpack(store, part), tmp_path / "out")
    assert set(failed) == {f"{SITE}/alpha/{name}.py" for name in NOT_COMPILED}
    assert {source_path(path) for path in files} == {
        f"{SITE}/alpha/{name}.py" for name in ("__init__", "latin", "warns", LONGEST_STEM)
    }


def test_only_modules_of_packages_are_compiled(store: Store, tmp_path: Path) -> None:
    part = add_wheel(store, "alpha", {"alpha.py": ""}, data={"data/share/x.py": "", "scripts/tool.py": "#!python\n"})
    files, _ = compiled(*unpack(store, part), tmp_path / "out")
    assert set(files) == {f"{SITE}/__pycache__/alpha.{CACHE_TAG}.pyc"}


# -- Python and its bytecode ----------------------------------------------------------------------------------------------------------


def test_python_uses_the_bytecode_and_writes_nothing(store: Store) -> None:
    modules = {
        "alpha/__init__.py": "from alpha import inner, late\n",
        "alpha/inner.py": "",
        "alpha/late.py": "def f(): import alpha.lazy\n",
        "alpha/lazy.py": "import beta\n",
    }
    parts = [add_wheel(store, "alpha", {**modules, **ODD_SOURCES}), add_wheel(store, "beta", {"beta.py": ""})]
    made = built(store, make_plan(store, parts))
    before = snapshot(store.root)
    code = """
import importlib, json, sys
import alpha.late, alpha.latin
alpha.late.f()
for name in ("template", "old", "undeclared"):
    try:
        importlib.import_module("alpha." + name)
    except SyntaxError:
        pass
print(json.dumps([[n, m.__cached__, m.__spec__.loader.get_code(n).co_filename]
                  for n, m in sys.modules.items() if n.partition(".")[0] in ("alpha", "beta")]))
"""
    argv = [os.fspath(made.path / "bin" / "python"), "-c", code]
    # Without PYTHONDONTWRITEBYTECODE; as root, a read-only folder stops nobody.
    done = process.run(argv, env={"PATH": os.defpath})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name for name, _, _ in found} == {"alpha", "alpha.inner", "alpha.late", "alpha.lazy", "alpha.latin", "beta"}
    for _, cached, filename in found:
        assert Path(cached).parents[1].samefile((made.path / filename).parent)
    assert snapshot(store.root) == before


def test_python_does_not_look_at_the_source_s_time_or_content(store: Store) -> None:
    made = built(store, make_plan(store, [add_wheel(store, "alpha", {"alpha.py": "print('as built')\n"})]))
    edit_in_place(made.path / SITE / "alpha.py", b"print('edited!!')\n")
    os.utime(made.path / SITE / "alpha.py", (1, 1))
    done = process.run([os.fspath(made.path / "bin" / "python"), "-c", "import alpha"], env={})
    assert done.stdout == "as built\n"


def test_a_traceback_still_finds_its_source(store: Store) -> None:
    made = built(store, make_plan(store, [add_wheel(store, "alpha", {"alpha.py": "def f():\n    1 / 0  # here\n"})]))
    done = process.run([os.fspath(made.path / "bin" / "python"), "-c", "import alpha; alpha.f()"], env={})
    assert f'{made.path}/{SITE}/alpha.py", line 2, in f' in done.stderr
    assert "1 / 0  # here" in done.stderr


# -- donors and damage ----------------------------------------------------------------------------------------------------------------


def donor_pair(store: Store) -> tuple[PlanPart, PlanPart]:
    same = {"alpha/__init__.py": "", "alpha/same.py": "x = 1\n", "alpha/broken.py": "x =\n"}
    base = add_wheel(store, "alpha", {**same, "alpha/patched.py": "x = 2\n", "alpha/gone.py": ""})
    patched = add_wheel(store, "alpha", {**same, "alpha/patched.py": "x = 3\n", "alpha/new.py": ""}, version="1.0+p")
    return base, patched


def donor_of(store: Store, part: PlanPart) -> tuple[Donor, Mapping[str, str]]:
    bytecode, tree = Donor.of(store.bytecode(part.tree, bytecode_tag())), Donor.of(store.tree(part.tree))
    assert bytecode is not None
    assert tree is not None
    return bytecode, tree.lines


def pyc(name: str) -> str:
    return bytecode_path(f"{SITE}/alpha/{name}.py", CACHE_TAG)


def test_bytecode_of_equal_sources_is_linked_from_the_donor_and_no_other(store: Store, tmp_path: Path) -> None:
    base, patched = donor_pair(store)
    make_objects(store, make_plan(store, [base]), InlinePool(store))
    tree, text = unpack(store, patched, donor=base.tree)
    (tmp_path / "out").mkdir()
    with_donor, failed = compile_tree(tree, text, tmp_path / "out", donor_of(store, base))
    (tmp_path / "alone").mkdir()
    assert (with_donor, failed) == compile_tree(tree, text, tmp_path / "alone", None)
    assert failed == (f"{SITE}/alpha/broken.py",)
    links = {name: (tmp_path / "out" / pyc(name)).stat().st_nlink for name in ("__init__", "same", "patched", "new")}
    assert links == {"__init__": 2, "same": 2, "patched": 1, "new": 1}
    assert not (tmp_path / "out" / pyc("gone")).exists()


@pytest.mark.parametrize("damage", ["edited", "missing", "writable", "a link"])
def test_a_donor_that_is_not_as_it_was_gives_nothing(store: Store, tmp_path: Path, damage: str) -> None:
    base, patched = donor_pair(store)
    make_objects(store, make_plan(store, [base]), InlinePool(store))
    path = store.bytecode(base.tree, bytecode_tag()).path / pyc("same")
    path.parent.chmod(0o755)
    if damage == "edited":
        edit_in_place(path, bytes(path.stat().st_size))
    elif damage == "writable":
        path.chmod(0o644)
    elif damage == "a link":
        path.rename(path.with_name("moved"))
        path.symlink_to("moved")
    else:
        path.unlink()
    tree, text = unpack(store, patched)
    (tmp_path / "out").mkdir()
    (tmp_path / "alone").mkdir()
    with_donor = compile_tree(tree, text, tmp_path / "out", donor_of(store, base))
    assert with_donor == compile_tree(tree, text, tmp_path / "alone", None)
    assert (tmp_path / "out" / pyc("same")).stat().st_nlink == 1
    assert (tmp_path / "out" / pyc("same")).read_bytes() == (tmp_path / "alone" / pyc("same")).read_bytes()


@pytest.mark.parametrize("damage", ["edited", "missing"])
def test_bytecode_is_not_made_from_a_source_that_changed_after_it_was_unpacked(
    store: Store, tmp_path: Path, damage: str
) -> None:
    part = add_wheel(store, "alpha", {"alpha/__init__.py": "x = 1\n"})
    tree, text = unpack(store, part)
    path = tree / SITE / "alpha" / "__init__.py"
    path.parent.chmod(0o755)
    if damage == "edited":
        edit_in_place(path, b"x = 2\n")
    else:
        path.unlink()
    (tmp_path / "out").mkdir()
    with pytest.raises(ObjectChanged, match=f"trees/{part.tree}/{SITE}/alpha/__init__.py"):
        compile_tree(tree, text, tmp_path / "out", None)
    with pytest.raises(CorruptObjects) as caught:
        make_objects(store, make_plan(store, [part]), InlinePool(store))
    assert caught.value.trees == (part.tree,)
    assert caught.value.files == (f"trees/{part.tree}/{SITE}/alpha/__init__.py",)
    assert not store.bytecode(part.tree, bytecode_tag()).exists


def test_a_failure_to_write_is_an_error(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, text = unpack(store, add_wheel(store, "alpha", {"alpha.py": ""}))
    (tmp_path / "out").mkdir()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builder.agent.bytecode.write_file", full)
    with pytest.raises(OSError, match="No space"):
        compile_tree(tree, text, tmp_path / "out", None)
