"""Receipts of hosts that this machine keeps: the newest is found, and what a host says fills neither memory nor disk nor another folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.agent.collect import find_garbage
from builder.host_receipts import HostReceipt, keep_receipt, last_receipts, seen_receipt
from envspec.errors import EnvspecError
from envspec.receipt import SIZE_LIMIT_BYTES, encode_receipt, receipt_of
from tests.support import receipts
from tests.support.stores import new_store

if TYPE_CHECKING:
    from pathlib import Path

    from builder.agent.store import Store

TIME = "2026-11-30T10:00:00Z"
LATER = "2026-11-30T11:00:00Z"
GPU = {"name": "NVIDIA H200", "compute": "9.0", "memory_mib": 143771}
HOST = {"hostname": "x", "driver": "580.65.06", "gpus": [GPU] * 8}


def seen(host: str = "h0", time: str = TIME, generation: int | None = 1, **fields: Any) -> dict[str, Any]:
    """A receipt as this machine keeps it."""
    made = {"kind": "build", "host": HOST, "interpreter": {"version": "3.12.3"}, **fields}
    receipt = receipt_of(receipts.receipt(receipts.run(), **made), name="x")
    return seen_receipt(receipt, host=host, time=time, generation=generation, path="/opt/envspec/envs/x")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "store")


def test_newest_receipt_of_a_host_is_found_whatever_its_environment(store: Store) -> None:
    keep_receipt(store, seen())
    keep_receipt(store, seen(env="b" * 32, time=LATER, generation=2))
    keep_receipt(store, seen("h1"))
    keep_receipt(store, seen(name="other", time="2026-12-30T10:00:00Z"))
    found = last_receipts(store, "demo", ["h0", "h1", "h2"])
    assert {host: receipt.generation for host, receipt in found.items()} == {"h0": 2, "h1": 1}
    keep_receipt(store, seen(time="2026-11-30T12:00:00Z"))  # rolled back and built again
    assert last_receipts(store, "demo", ["h0"])["h0"].env == "a" * 32


def test_what_status_shows_of_a_host_comes_from_its_receipt(store: Store) -> None:
    keep_receipt(store, seen())
    drift = [["modified", "x.py", "", "demo"]] * 3
    failed = [{"id": "tree", "result": "fail", "reason": "3 paths differ"}]
    keep_receipt(store, seen(kind="verify", time=LATER, drift=drift, probes=failed, runs=[], verified=False))
    found = last_receipts(store, "demo", ["h0"])["h0"]
    assert (found.kind, found.drift, found.python, found.driver) == ("verify", 3, "3.12.3", "580.65.06")
    assert found.gpus == (("NVIDIA H200", "9.0"),) * 8


def test_receipts_have_the_one_form(store: Store) -> None:
    path = keep_receipt(store, seen())
    assert path == store.receipts("a" * 32) / "demo@h0.build.json"
    assert path.read_bytes() == encode_receipt(json.loads(path.read_bytes()))


@given(
    path=st.text(max_size=2000),
    generation=st.none() | st.integers(),
    reason=st.text(max_size=5000),
    gpus=st.lists(st.fixed_dictionaries({"name": st.text(), "compute": st.text()}), max_size=200),
)
def test_whatever_a_host_says_a_receipt_is_refused_or_can_be_read(
    tmp_path_factory: pytest.TempPathFactory,
    path: str,
    generation: int | None,
    reason: str,
    gpus: list[dict[str, str]],
) -> None:
    store = new_store(tmp_path_factory.mktemp("store"))
    probes = [{"id": "torch", "result": "pass", "reason": reason}]
    try:
        fields = seen(host="h0", probes=probes, generation=generation)
        fields = {**fields, "host": {"hostname": "x", "gpus": gpus}}
        receipt = receipt_of(fields, name="x")
    except EnvspecError:
        return
    kept = keep_receipt(store, seen_receipt(receipt, host="h0", time=TIME, generation=generation, path=path))
    assert kept is not None
    assert kept.stat().st_size <= SIZE_LIMIT_BYTES
    assert last_receipts(store, "demo", ["h0"])["h0"].site == "0" * 64


def test_a_receipt_that_is_too_long_is_not_kept(store: Store) -> None:
    assert keep_receipt(store, {**seen(), "imports": {"stdout": "x" * SIZE_LIMIT_BYTES}}) is None


@pytest.mark.parametrize("env", ["", "..", "../../x", "a" * 31, "A" * 32, "a" * 32 + "/..", "a" * 31 + "\n"])
def test_env_id_of_another_form_names_no_folder(store: Store, env: str) -> None:
    before = set(store.root.rglob("*"))
    assert keep_receipt(store, {**seen(), "env": env}) is None
    assert set(store.root.rglob("*")) == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"kind":"build"}',
        b"\xff",
        b"x" * (SIZE_LIMIT_BYTES + 1),
        encode_receipt({**seen(), "host": {"hostname": "x", "gpus": [1]}}),
        encode_receipt({**seen(), "seen": {**seen()["seen"], "host": "h1"}}),
        encode_receipt({**seen(), "env": "b" * 32}),
        encode_receipt({**seen(), "seen": {**seen()["seen"], "generation": "x"}}),
        encode_receipt({**seen(), "seen": None}),
    ],
)
def test_damaged_receipt_is_none(store: Store, content: bytes) -> None:
    path = keep_receipt(store, seen())
    assert path is not None
    path.write_bytes(content)
    assert last_receipts(store, "demo", ["h0"]) == {}
    assert keep_receipt(store, seen()) == path
    assert isinstance(last_receipts(store, "demo", ["h0"])["h0"], HostReceipt)


def test_machine_without_a_store_keeps_none(tmp_path: Path, store: Store) -> None:
    assert keep_receipt(type(store)(tmp_path / "none"), seen()) is None
    assert last_receipts(type(store)(tmp_path / "none"), "demo", ["h0"]) == {}


def test_gc_leaves_the_last_receipt_of_each_host(store: Store, tmp_path: Path) -> None:
    keep_receipt(store, seen())
    keep_receipt(store, seen(env="b" * 32, time=LATER))
    (tmp_path / "proc").mkdir()
    garbage = find_garbage(store, keep=None, proc=tmp_path / "proc")
    assert garbage.paths == (store.receipts("a" * 32),)
