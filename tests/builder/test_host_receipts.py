"""Receipts of hosts that this machine keeps: the newest is found, and what a host says fills neither memory nor disk nor another folder."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.agent.collect import find_garbage
from builder.host_receipts import SIZE_LIMIT_BYTES, HostReceipt, keep_receipt, last_receipts
from builder.outcome import Probe
from envspec.canonical import canonical_json
from tests.support.stores import new_store

if TYPE_CHECKING:
    from pathlib import Path

    from builder.agent.store import Store

RECEIPT = HostReceipt(
    kind="build",
    host="h0",
    name="demo",
    time="2026-11-30T10:00:00Z",
    env="a" * 32,
    site="1" * 64,
    generation=1,
    path="/opt/envspec/envs/x",
    probes=(Probe(id="imports", result="pass"),),
    python="3.12.3",
    driver="580.65.06",
    gpus=(("NVIDIA H200", "9.0"),) * 8,
)
LATER = "2026-11-30T11:00:00Z"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "store")


def test_newest_receipt_of_a_host_is_found_whatever_its_environment(store: Store) -> None:
    keep_receipt(store, RECEIPT)
    keep_receipt(store, replace(RECEIPT, env="b" * 32, time=LATER, generation=2))
    keep_receipt(store, replace(RECEIPT, host="h1"))
    keep_receipt(store, replace(RECEIPT, name="other", time="2026-12-30T10:00:00Z"))
    found = last_receipts(store, "demo", ["h0", "h1", "h2"])
    assert {host: receipt.generation for host, receipt in found.items()} == {"h0": 2, "h1": 1}
    keep_receipt(store, replace(RECEIPT, time="2026-11-30T12:00:00Z"))  # rolled back and built again
    assert last_receipts(store, "demo", ["h0"])["h0"].env == "a" * 32


def test_what_was_not_asked_for_this_time_is_known_from_before(store: Store) -> None:
    keep_receipt(store, RECEIPT)
    keep_receipt(store, replace(RECEIPT, time=LATER, python="", driver="", gpus=()))
    verified = replace(RECEIPT, kind="verify", time="2026-11-30T12:00:00Z", python="", driver="", gpus=(), drift=3)
    keep_receipt(store, verified)
    found = last_receipts(store, "demo", ["h0"])["h0"]
    assert (found.kind, found.drift, found.python, found.gpus) == ("verify", 3, "3.12.3", RECEIPT.gpus)


def test_receipts_are_canonical(store: Store) -> None:
    assert keep_receipt(store, RECEIPT)
    raw = (store.receipts("a" * 32) / "demo@h0.build.json").read_bytes()
    assert raw == canonical_json(json.loads(raw)) + b"\n"


@given(
    site=st.text(max_size=2000),
    path=st.text(max_size=2000),
    generation=st.integers(),
    probes=st.lists(st.text(max_size=1000), max_size=200),
    gpus=st.lists(st.tuples(st.text(), st.text()), max_size=200),
)
def test_whatever_a_host_says_a_receipt_is_small_and_can_be_read(
    tmp_path_factory: pytest.TempPathFactory,
    site: str,
    path: str,
    generation: int,
    probes: list[str],
    gpus: list[tuple[str, str]],
) -> None:
    store = new_store(tmp_path_factory.mktemp("store"))
    receipt = replace(
        RECEIPT,
        site=site,
        path=path,
        generation=generation,
        probes=tuple(Probe(id=each, result=each, reason=each) for each in probes),
        gpus=tuple(gpus),
    )
    assert keep_receipt(store, receipt)
    (written,) = store.receipts(RECEIPT.env).iterdir()
    assert written.stat().st_size < SIZE_LIMIT_BYTES
    assert last_receipts(store, "demo", ["h0"])["h0"].site == site[:300]


@pytest.mark.parametrize("env", ["", "..", "../../x", "a" * 31, "A" * 32, "a" * 32 + "/..", "a" * 31 + "\n"])
def test_env_id_of_another_form_names_no_folder(store: Store, env: str) -> None:
    before = set(store.root.rglob("*"))
    assert not keep_receipt(store, replace(RECEIPT, env=env))
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
        canonical_json({**RECEIPT.to_json(), "gpus": [1]}),
        canonical_json({**RECEIPT.to_json(), "host": "h1"}),
        canonical_json({**RECEIPT.to_json(), "env": "b" * 32}),
        canonical_json({**RECEIPT.to_json(), "generation": "x"}),
    ],
)
def test_damaged_receipt_is_none(store: Store, content: bytes) -> None:
    keep_receipt(store, RECEIPT)
    (store.receipts("a" * 32) / "demo@h0.build.json").write_bytes(content)
    assert last_receipts(store, "demo", ["h0"]) == {}
    assert keep_receipt(store, RECEIPT)


def test_machine_without_a_store_keeps_none(tmp_path: Path, store: Store) -> None:
    assert not keep_receipt(type(store)(tmp_path / "none"), RECEIPT)
    assert last_receipts(type(store)(tmp_path / "none"), "demo", ["h0"]) == {}


def test_gc_leaves_the_last_receipt_of_each_host(store: Store, tmp_path: Path) -> None:
    keep_receipt(store, RECEIPT)
    keep_receipt(store, replace(RECEIPT, env="b" * 32, time=LATER))
    (tmp_path / "proc").mkdir()
    garbage = find_garbage(store, keep=None, proc=tmp_path / "proc")
    assert garbage.paths == (store.receipts("a" * 32),)
