"""The simulated linker, with `ld.so` itself as the judge."""

from __future__ import annotations

import json
import posixpath
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from builder.elf import read_elf
from envspec.binaries import Binary, Reference, VersionNeed, joined_names
from envspec.linker import MOST_STEPS, Host, Linker, Missing, MissingVersion, Unbound, World
from tests.support.tiny_elf import RUNS_HERE, Wanted, tiny_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envspec.linker import Opened

JUDGE = Path(__file__).parents[1] / "support" / "dlopen_judge.py"
LIBC, NOT_LOADED = "libc.so.6", "libanl.so.1"
HOST = Host(libraries=frozenset({LIBC, NOT_LOADED}), defines=lambda name, _: name == "malloc", loaded=frozenset({LIBC}))


def library(
    path: str,
    *,
    needed: Sequence[str] = (),
    soname: str = "",
    rpath: str | None = None,
    runpath: str | None = None,
    exports: str = "",
    undefined: Sequence[str] = (),
    weak: Sequence[str] = (),
    machine: str = "x86_64",
    **more: Any,
) -> Binary:
    """An object; `exports` are names with spaces between."""
    return Binary(
        path=path,
        machine=machine,
        kind="shared",
        needed=tuple(needed),
        soname=soname,
        rpath=rpath,
        runpath=runpath,
        exports="\n".join(exports.split()),
        undefined=(
            *(Reference(name, weak=False, version="", library="") for name in undefined),
            *(Reference(name, weak=True, version="", library="") for name in weak),
        ),
        **more,
    )


def opened(path: str, objects: Sequence[Binary], world: World | None = None, **options: Any) -> Opened:
    linker = Linker(objects, HOST, machine="x86_64", wheel_of=options.pop("wheel_of", None))
    return linker.open(path, world or World(), **options)


def test_an_object_without_needs_loads() -> None:
    assert opened("a.so", [library("a.so")]).loads


def test_a_name_that_nobody_has_is_missing() -> None:
    assert opened("a.so", [library("a.so", needed=["libz.so.9"])]).missing == (Missing("a.so", "libz.so.9"),)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({}, False),
        ({"runpath": "$ORIGIN"}, False),
        ({"runpath": "$ORIGIN/lib"}, True),
        ({"runpath": "${ORIGIN}/lib"}, True),
        ({"runpath": "$ORIGIN/lib/"}, True),
        ({"runpath": "$ORIGIN//./lib"}, True),
        ({"runpath": "$ORIGIN/../p/lib"}, True),
        ({"runpath": "$ORIGIN/lib/../lib"}, True),
        ({"runpath": "$ORIGIN/no/../lib"}, False),
        ({"runpath": "$ORIGIN/../../p/lib"}, False),
        ({"runpath": "/elsewhere:$ORIGIN/lib"}, True),
        ({"runpath": "lib"}, False),
        ({"runpath": ""}, False),
        ({"runpath": "$ORIGINAL/lib"}, False),
        ({"runpath": "${ORIGIN/lib"}, False),
        ({"runpath": "$ORIGIN/$LIB"}, False),
        ({"runpath": "x/$ORIGIN/lib"}, False),
        ({"rpath": "$ORIGIN/lib"}, True),
        ({"rpath": "$ORIGIN/lib", "runpath": "/elsewhere"}, False),
        ({"rpath": "$ORIGIN/lib", "runpath": ""}, False),
    ],
    ids=str,
)
def test_search_path_leads_where_ld_so_looks(search: dict[str, str], found: bool) -> None:  # noqa: FBT001 - a column of the table
    objects = [library("p/a.so", needed=["libb.so"], **search), library("p/lib/libb.so")]
    assert opened("p/a.so", objects).loads is found


def test_origin_is_the_folder_with_what_follows_it() -> None:
    objects = [library("p/a.so", needed=["libb.so"], runpath="$ORIGIN.libs"), library("p.libs/libb.so")]
    assert opened("p/a.so", objects).loads


def test_rpath_is_inherited_and_runpath_is_not() -> None:
    inner = [library("l/libb.so", needed=["libc.so"]), library("l/libc.so")]
    assert opened("a.so", [library("a.so", needed=["libb.so"], rpath="$ORIGIN/l"), *inner]).loads
    with_runpath = opened("a.so", [library("a.so", needed=["libb.so"], runpath="$ORIGIN/l"), *inner])
    assert with_runpath.missing == (Missing("l/libb.so", "libc.so"),)


def test_object_with_a_runpath_inherits_nothing() -> None:
    objects = [
        library("a.so", needed=["libb.so"], rpath="$ORIGIN/l"),
        library("l/libb.so", needed=["libc.so"], runpath="$ORIGIN/none"),
        library("l/libc.so"),
    ]
    assert opened("a.so", objects).missing == (Missing("l/libb.so", "libc.so"),)


def test_library_is_found_by_its_soname_once_it_is_loaded() -> None:
    objects = [
        library("a.so", needed=["libb-1234.so", "l/libc.so", "libc.so"], runpath="$ORIGIN/l"),
        library("l/libb-1234.so", soname="libb.so.1", needed=["libb.so.1"]),
        library("l/libc.so", needed=["libb.so.1"]),
    ]
    assert opened("a.so", objects).missing == (Missing("a.so", "l/libc.so"),)


def test_file_that_was_opened_by_its_path_has_only_its_soname() -> None:
    plain, named = library("l/libb.so"), library("l/libb.so", soname="libb.so")
    user = library("a.so", needed=["libb.so"])
    for each, loads in ((plain, False), (named, True)):
        linker = Linker([user, each], HOST, machine="x86_64")
        world = linker.open("l/libb.so", World()).world
        assert world.paths == {"l/libb.so"}
        assert linker.open("a.so", world).loads is loads


def test_second_copy_of_a_library_is_another_object() -> None:
    linker = Linker([library("a/x.so", soname="x"), library("b/x.so", soname="x")], HOST, machine="x86_64")
    world = linker.open("b/x.so", linker.open("a/x.so", World()).world).world
    assert world.paths == {"a/x.so", "b/x.so"}
    assert world.by_name["x"] == "a/x.so"


def test_needed_entry_with_a_slash_is_a_path() -> None:
    objects = [library("p/a.so", needed=["$ORIGIN/../q/libb.so"]), library("q/libb.so")]
    assert opened("p/a.so", objects).loads
    assert opened("p/a.so", [library("p/a.so", needed=["../q/libb.so"]), objects[1]]).missing


def test_library_of_the_host_comes_after_every_search_path() -> None:
    own = library("l/libanl.so.1")
    with_own = opened("a.so", [library("a.so", needed=[NOT_LOADED], runpath="$ORIGIN/l"), own])
    assert with_own.scope == ("a.so", "l/libanl.so.1")
    assert opened("a.so", [library("a.so", needed=[NOT_LOADED]), own]).host == {NOT_LOADED}


def test_library_of_the_host_that_is_loaded_comes_before_them() -> None:
    objects = [library("a.so", needed=[LIBC], runpath="$ORIGIN/l"), library("l/libc.so.6")]
    assert opened("a.so", objects).scope == ("a.so",)
    linker = Linker([library("b.so", needed=[NOT_LOADED]), *objects], HOST, machine="x86_64")
    assert linker.open("b.so", World()).world.by_name[NOT_LOADED] == ""


def test_object_of_another_machine_is_passed_over() -> None:
    objects = [
        library("a.so", needed=["libb.so"], runpath="$ORIGIN/arm:$ORIGIN/l"),
        library("arm/libb.so", machine="aarch64"),
        library("l/libb.so"),
    ]
    assert opened("a.so", objects).scope == ("a.so", "l/libb.so")


def test_cycle_of_needs_loads() -> None:
    objects = [
        library("a.so", needed=["b.so"], runpath="$ORIGIN", undefined=["f"]),
        library("b.so", needed=["a.so", "b.so"], runpath="$ORIGIN", exports="f"),
    ]
    assert opened("a.so", objects).loads


def test_symbol_is_bound_in_the_scope_of_what_was_opened() -> None:
    """A library need not name the library that has its symbols, if what opens it does."""
    objects = [
        library("a.so", needed=["b.so", "c.so"], rpath="$ORIGIN", exports="own"),
        library("b.so", undefined=["f", "own", "malloc"]),
        library("c.so", exports="f"),
    ]
    assert opened("a.so", objects).loads
    assert [each.reference.name for each in opened("b.so", objects).unbound] == ["f", "own"]


def test_weak_symbol_may_stay_unbound() -> None:
    assert opened("a.so", [library("a.so", weak=["f"])]).loads


def test_symbols_of_a_library_opened_for_everybody_are_seen() -> None:
    linker = Linker([library("a.so", undefined=["f"]), library("b.so", exports="f")], HOST, machine="x86_64")
    first = linker.open("b.so", World())
    assert not linker.open("a.so", first.world).loads
    world = World(by_name=first.world.by_name, paths=first.world.paths, global_paths=first.scope)
    assert linker.open("a.so", world).loads


def test_nothing_is_bound_where_a_library_is_missing() -> None:
    found = opened("a.so", [library("a.so", needed=["no.so"], undefined=["f"])])
    assert (len(found.missing), found.unbound) == (1, ())


def wants_version(version: str, of: str) -> dict[str, Any]:
    return {"needed": [of], "version_needs": (VersionNeed(of, (version,)),)}


def test_version_must_be_one_that_the_library_defines() -> None:
    lib = library("l/libb.so", version_definitions=("V1",))
    assert opened("a.so", [library("a.so", runpath="$ORIGIN/l", **wants_version("V1", "libb.so")), lib]).loads
    found = opened("a.so", [library("a.so", runpath="$ORIGIN/l", **wants_version("V2", "libb.so")), lib])
    assert found.versions == (MissingVersion("a.so", "l/libb.so", "V2"),)


def test_library_without_versions_is_only_warned_of() -> None:
    objects = [library("a.so", runpath="$ORIGIN", **wants_version("V2", "libb.so")), library("libb.so")]
    assert opened("a.so", objects).loads


def test_version_of_a_library_of_the_host_is_judged_elsewhere() -> None:
    reference = Reference("f", weak=False, version="GLIBC_9", library=LIBC)
    user = Binary(path="a.so", machine="x86_64", kind="shared", needed=(LIBC,), undefined=(reference,))
    assert opened("a.so", [user]).loads


def test_version_of_a_copy_of_a_library_of_the_host_is_judged_by_the_copy() -> None:
    reference = Reference("f", weak=False, version="A_9", library=NOT_LOADED)
    user = Binary(
        path="a.so", machine="x86_64", kind="shared", needed=(NOT_LOADED,), undefined=(reference,), runpath="$ORIGIN"
    )
    assert opened("a.so", [user, library(NOT_LOADED)]).unbound == (Unbound("a.so", reference),)


def test_libraries_of_a_wheel_are_opened_by_the_package_itself_if_asked() -> None:
    objects = [
        library("p/a.so", needed=["libb.so"]),
        library("p/lib/libb.so", soname="libb.so"),
        library("q/a.so", needed=["libb.so"]),
    ]
    wheels = {"p/a.so": "p", "p/lib/libb.so": "p", "q/a.so": "q"}
    assert not opened("p/a.so", objects, wheel_of=wheels).loads
    assert opened("p/a.so", objects, wheel_of=wheels, own=True).loads
    assert not opened("q/a.so", objects, wheel_of=wheels, own=True).loads


@pytest.mark.parametrize(
    ("file", "soname"), [("libb-12345678.so.1", "libb.so.1"), ("libb.so.1", ""), ("libb.so.1", "libc.so")]
)
def test_library_that_its_name_would_not_lead_to_is_not_taken_to_be_opened(file: str, soname: str) -> None:
    """torchvision has a private copy of libcudart for one of its libraries, and another one of them needs libcudart by name."""
    objects = [library("p/a.so", needed=["libb.so.1"]), library(f"p/lib/{file}", soname=soname)]
    wheels = {each.path: "p" for each in objects}
    assert opened("p/a.so", objects, wheel_of=wheels, own=True).missing == (Missing("p/a.so", "libb.so.1"),)


# Hostile wheels.


def test_name_with_a_line_break_is_a_name() -> None:
    odd = "lib\nb.so"
    assert opened("a.so", [library("a.so", needed=[odd], runpath="$ORIGIN"), library(odd)]).loads
    assert joined_names(frozenset({"f\ng", "h"})) == "h"


def test_paths_that_climb_out_of_the_environment_find_nothing() -> None:
    objects = [library("p/a.so", needed=["x.so"], runpath="$ORIGIN/../../../../p:$ORIGIN/.."), library("p/x.so")]
    assert opened("p/a.so", objects).missing == (Missing("p/a.so", "x.so"),)


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param(
            lambda: [
                library("a.so", needed=[f"l{number}.so" for number in range(100_000)], runpath="$ORIGIN:" * 50_000)
            ],
            id="100,000 needs",
        ),
        pytest.param(
            lambda: [
                library(
                    f"d{number}/a.so", needed=["a.so", f"d{number + 1}.so"], rpath="$ORIGIN", soname=f"d{number}.so"
                )
                for number in range(5_000)
            ],
            id="one name in 5,000 folders",
        ),
        pytest.param(
            lambda: [
                library(f"l{number}.so", needed=[f"l{number + 1}.so"], rpath=f"$ORIGIN/x{number}:$ORIGIN")
                for number in range(3_000)
            ],
            id="a chain of 3,000, each of which inherits",
        ),
        pytest.param(
            lambda: [
                library(f"l{number}.so", needed=[f"l{each}.so" for each in range(400)], rpath="$ORIGIN")
                for number in range(400)
            ],
            id="everyone needs everyone",
        ),
    ],
)
def test_work_is_bounded_and_what_is_beyond_the_bound_is_missing(objects: Callable[[], list[Binary]]) -> None:
    made = objects()
    linker = Linker(made, HOST, machine="x86_64")
    for each in made[:50]:
        linker.open(each.path, World())
    linker._steps = 0
    last = library("l.so", needed=["m.so"], runpath="$ORIGIN")
    bounded = Linker([last, library("m.so")], HOST, machine="x86_64")
    assert bounded.open("l.so", World()).loads
    bounded._steps = 0
    assert bounded.open("l.so", World()).missing == (Missing("l.so", "m.so"),)
    assert linker._steps <= MOST_STEPS


# The judge.

FOLDERS = ("", "a", "b", "a/c", "a.x")
FILES = ("liba.so", "libb.so.1", "libc.so", "libd.so", NOT_LOADED, LIBC)
NAMES = (*FILES, *FILES[:4], "libx.so", "$ORIGIN/liba.so", "${ORIGIN}/../b/libb.so.1", "/nowhere/liba.so", "./liba.so")
ENTRIES = (
    *("$ORIGIN", "$ORIGIN/..", "${ORIGIN}/../b", "$ORIGIN/c", "$ORIGIN/../a/c", "$ORIGIN/a", "$ORIGIN/../a"),
    *("$ORIGIN/no/..", "$ORIGIN.x", "$ORIGINAL", "$ORIGIN/$LIB", "/nowhere", "", "x/$ORIGIN", "$ORIGIN/"),
    *("$ORIGIN//../a/./c", "${ORIGIN", "${ORIGIN}.x", "$ORIGIN/../..", "$PLATFORM/$ORIGIN"),
)
# A symbol has one version, or none: which version of a symbol a library has is beyond the facts.
SYMBOLS = ("tiny_f", "tiny_g", "tiny_h@V1", "tiny_k@V2")


@dataclass(frozen=True)
class Tiny:
    """A library of a generated tree."""

    path: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: str | None = None
    runpath: str | None = None
    exports: tuple[str, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    foreign: bool = False

    def content(self) -> bytes:
        options: dict[str, Any] = {"machine": "riscv"} if self.foreign else {}
        return tiny_library(
            soname=self.soname,
            needed=self.needed,
            rpath=self.rpath,
            runpath=self.runpath,
            exports=self.exports,
            undefined=self.wanted,
            **options,
        )


@dataclass(frozen=True)
class Tree:
    libraries: tuple[Tiny, ...]
    first: tuple[tuple[str, bool], ...] = field(default=())
    """What the process opens before: path, and whether for everybody."""


def _entry(folder: str, target: str) -> str:
    """A search path's entry that leads from one folder to another."""
    return f"$ORIGIN/{posixpath.relpath(target or '.', folder or '.')}"


@st.composite
def tiny_libraries(draw: st.DrawFn, path: str, sonames: Mapping[str, str]) -> Tiny:
    """A library at a path; the others and their sonames are known, so that most of what is needed can be found."""
    folder = posixpath.dirname(path)
    there = [posixpath.basename(each) for each in sonames] + [each for each in sonames.values() if each]
    names = st.sampled_from(there) | st.sampled_from(there) | st.sampled_from(there) | st.sampled_from(NAMES)
    good = st.sampled_from(sorted({_entry(folder, posixpath.dirname(each)) for each in sonames}))
    search = st.none() | st.lists(good | good | st.sampled_from(ENTRIES), min_size=1, max_size=3).map(":".join)
    needed = tuple(draw(st.lists(names, max_size=3)))
    wanted = []
    for symbol in draw(st.lists(st.sampled_from(SYMBOLS), max_size=2, unique=True)):
        name, _, version = symbol.partition("@")
        plain = [each for each in needed if "/" not in each and each not in (LIBC, NOT_LOADED)]
        # An entry for a version has to name a library that is needed: ld.so gives up on others.
        library_of = draw(st.sampled_from(plain)) if version and plain else ""
        wanted.append(Wanted(name, draw(st.booleans()), version if library_of else "", library_of))
    return Tiny(
        path=path,
        soname=sonames[path],
        needed=needed,
        rpath=draw(search),
        runpath=draw(st.none() | st.none() | search),
        exports=tuple(draw(st.lists(st.sampled_from(SYMBOLS), max_size=4, unique=True))),
        wanted=tuple(wanted),
        foreign=draw(st.sampled_from((False,) * 19 + (True,))),
    )


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Up to six libraries, and what a process opens of them before."""
    places = st.tuples(st.sampled_from(FOLDERS), st.sampled_from(FILES)).map(lambda place: posixpath.join(*place))
    paths = draw(st.lists(places, min_size=2, max_size=6, unique=True))
    sonames = {path: draw(st.sampled_from(("", "", "liba.so", "libb.so.1", "libx.so"))) for path in paths}
    made = [draw(tiny_libraries(path, sonames)) for path in paths]
    usable = [each.path for each in made if not each.foreign]
    first = draw(st.lists(st.tuples(st.sampled_from(usable), st.booleans()), max_size=2)) if usable else []
    return Tree(tuple(made), tuple(first))


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """The real linker."""
    if not RUNS_HERE:
        pytest.skip("the tiny libraries are for glibc on x86_64 and aarch64")
    with subprocess.Popen(
        [sys.executable, "-I", JUDGE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd="/",
        env={},
    ) as judge:
        requests, answers = judge.stdin, judge.stdout
        assert requests is not None
        assert answers is not None

        def answer(request: Mapping[str, Any]) -> dict[str, Any]:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            said: dict[str, Any] = json.loads(answers.readline())
            return said

        yield answer
        requests.close()


def facts_of(path: str, content: bytes) -> Binary:
    facts = read_elf(content, symbols=True)
    assert facts is not None
    assert facts.symbols is not None
    return Binary(
        path=path,
        machine=facts.machine,
        kind=facts.file_type,
        soname=facts.soname or "",
        needed=facts.needed,
        rpath=facts.rpath,
        runpath=facts.runpath,
        version_needs=tuple(VersionNeed(need.library, need.versions) for need in facts.version_needs),
        version_definitions=facts.version_definitions,
        undefined=tuple(Reference(*symbol) for symbol in facts.symbols.undefined),
        exports=joined_names(facts.symbols.exported),
    )


def predictions(objects: Sequence[Binary], first: Sequence[tuple[str, bool]]) -> dict[str, Opened]:
    machine = facts_of("x", tiny_library()).machine
    linker = Linker(objects, HOST, machine=machine)
    world = World()
    for path, is_global in first:
        before = linker.open(path, world)
        if before.loads:
            world = World(
                by_name=before.world.by_name,
                paths=before.world.paths,
                global_paths=(*world.global_paths, *(before.scope if is_global else ())),
                global_host=world.global_host | (before.host if is_global else frozenset()),
            )
    return {path: linker.open(path, world) for path in linker.objects}


@given(trees())
@example(Tree((Tiny("liba.so", needed=("libx.so",)), Tiny("b/libb.so.1", soname="libx.so")), (("b/libb.so.1", False),)))
@example(Tree((Tiny("liba.so", needed=("libc.so",)), Tiny("b/libc.so")), (("b/libc.so", True),)))
@example(
    Tree(
        (
            Tiny("liba.so"),
            Tiny("b/liba.so", needed=("$ORIGIN/liba.so",)),
            Tiny("a/libb.so.1", needed=("$ORIGIN/liba.so",)),
        ),
        (("b/liba.so", False),),
    )
)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_ld_so_agrees_on_every_object_of_generated_trees(
    ask: Callable[[Mapping[str, Any]], dict[str, Any]], tree: Tree
) -> None:
    with tempfile.TemporaryDirectory(prefix="envspec-linker-") as work:
        root = Path(work) / "root"
        contents = {each.path: each.content() for each in tree.libraries}
        for folder in FOLDERS:
            if any(path.startswith(f"{folder}/") for path in contents):
                (root / folder).mkdir(parents=True, exist_ok=True)
        root.mkdir(exist_ok=True)
        for path, content in contents.items():
            (root / path).write_bytes(content)
        predicted = predictions([facts_of(path, content) for path, content in contents.items()], tree.first)
        said = ask(
            {
                "first": [[f"{root}/{path}", is_global] for path, is_global in tree.first],
                "paths": [f"{root}/{path}" for path in predicted],
            }
        )["errors"]
    for path, each in predicted.items():
        error = said[f"{root}/{path}"]
        assert each.loads == (not error), (path, each, error)
        if error:
            names = {
                *(
                    absent.soname.replace("${ORIGIN}", "$ORIGIN").partition("$ORIGIN")[2] or absent.soname
                    for absent in each.missing
                ),
                *(unbound.reference.name for unbound in each.unbound),
                *(lack.version for lack in each.versions),
            }
            assert any(name in error for name in names), (path, names, error)
