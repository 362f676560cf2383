"""Facts of binaries survive the cache unchanged, whatever a wheel put into them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.binaries import (
    Assembler,
    Binary,
    BinaryFacts,
    CubinCount,
    GpuCode,
    Label,
    Reference,
    VersionNeed,
    binary_facts_from_json,
    binary_facts_to_json,
    joined_names,
    sorted_references,
)
from tests.support.strategies import texts

names = st.one_of(st.sampled_from(["", "a", "_ZN3c104cuda", "GLIBC_2.34", "libc.so.6", "a\nb", "a\rb"]), texts)
codes = st.sampled_from(["sm_90", "sm_90a", "sm_100f", "compute_120", "kind-8"])
releases = st.lists(st.sampled_from(["12.8.93", "13.0.88"]), max_size=2).map(tuple)
references = st.lists(st.builds(Reference, names, st.booleans(), names, names), max_size=12).map(sorted_references)
gpu_codes = st.builds(
    GpuCode,
    fatbins=st.lists(st.tuples(st.lists(codes, max_size=3).map(tuple), st.integers(0, 9999)), max_size=4).map(tuple),
    releases=releases,
)
binaries = st.builds(
    Binary,
    path=names.filter(bool),
    machine=st.sampled_from(["", "x86_64", "machine-7"]),
    kind=st.sampled_from(["", "shared", "executable"]),
    damage=names,
    program=st.booleans(),
    executable_stack=st.booleans(),
    soname=names,
    needed=st.lists(names, max_size=4).map(tuple),
    rpath=st.none() | names,
    runpath=st.none() | names,
    version_needs=st.lists(st.builds(VersionNeed, names, st.lists(names, max_size=3).map(tuple)), max_size=3).map(
        tuple
    ),
    version_definitions=st.lists(names, max_size=3).map(tuple),
    undefined=references,
    exports=st.frozensets(names, max_size=8).map(joined_names),
    gpu=st.none() | gpu_codes,
)
facts = st.builds(
    BinaryFacts,
    binaries=st.lists(binaries, max_size=3).map(tuple),
    cubins=st.lists(st.builds(CubinCount, codes, st.integers(1, 10_000)), max_size=3).map(tuple),
    releases=releases,
    assemblers=st.lists(st.builds(Assembler, names, names, st.lists(codes, max_size=3).map(tuple)), max_size=2).map(
        tuple
    ),
    labels=st.lists(st.builds(Label, names, names, names), max_size=3).map(tuple),
    driver_functions=st.lists(
        st.tuples(names, st.lists(st.integers(1000, 20_000), max_size=3).map(tuple)), max_size=3
    ).map(tuple),
)


@given(facts)
def test_facts_survive_json(wanted: BinaryFacts) -> None:
    text = json.dumps(binary_facts_to_json(wanted))
    assert binary_facts_from_json(json.loads(text)) == wanted
    assert json.dumps(binary_facts_to_json(binary_facts_from_json(json.loads(text)))) == text


def binary(**fields: object) -> Binary:
    return Binary(**{"path": "lib/x.so", "machine": "x86_64", "kind": "shared", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "each",
    [
        binary(),
        binary(machine="", kind="", damage="address 0x1 lies in no loaded segment"),
        binary(rpath="", runpath=None),
        binary(rpath=None, runpath=""),
        binary(gpu=GpuCode(fatbins=())),
    ],
    ids=["plain", "damaged", "empty rpath", "empty runpath", "no code"],
)
def test_a_binary_survives_json(each: Binary) -> None:
    wanted = BinaryFacts(binaries=(each,))
    assert binary_facts_from_json(json.loads(json.dumps(binary_facts_to_json(wanted)))) == wanted


def test_references_that_differ_in_their_name_alone_share_a_row() -> None:
    undefined = sorted_references(
        [
            Reference("memcpy", weak=False, version="GLIBC_2.14", library="libc.so.6"),
            Reference("b", weak=False, version="", library=""),
            Reference("c", weak=True, version="", library=""),
            Reference("memmove", weak=False, version="GLIBC_2.14", library="libc.so.6"),
            Reference("a", weak=False, version="", library=""),
        ]
    )
    (record,) = binary_facts_to_json(BinaryFacts(binaries=(binary(undefined=undefined),)))["binaries"]
    assert record["undefined"] == [
        [False, "", "", "a\nb"],
        [False, "GLIBC_2.14", "libc.so.6", "memcpy\nmemmove"],
        [True, "", "", "c"],
    ]


@given(st.lists(st.builds(Reference, names, st.booleans(), names, names), max_size=12))
def test_references_do_not_depend_on_the_order_of_the_file(found: list[Reference]) -> None:
    wanted = sorted_references(found)
    assert sorted_references(reversed([*found, *found])) == wanted
    assert sorted_references(wanted) == wanted
    assert set(wanted) == {each for each in found if each.name and "\n" not in each.name}


@given(st.frozensets(names, max_size=10))
def test_exports_are_the_names_that_can_be_bound_to(found: frozenset[str]) -> None:
    each = binary(exports=joined_names(found))
    assert each.exported == {name for name in found if name and "\n" not in name}


def test_a_binary_has_a_name_and_a_folder() -> None:
    assert (binary(path="lib/site/a.so").name, binary(path="lib/site/a.so").folder) == ("a.so", "lib/site")
    assert (binary(path="a.so").name, binary(path="a.so").folder) == ("a.so", "")


@pytest.mark.parametrize(
    ("fields", "loadable"),
    [({}, True), ({"program": True}, False), ({"kind": "executable"}, False), ({"kind": "", "damage": "x"}, False)],
)
def test_only_a_shared_object_that_is_no_program_is_loadable(fields: dict[str, object], *, loadable: bool) -> None:
    assert binary(**fields).is_loadable is loadable
