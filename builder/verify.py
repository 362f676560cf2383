"""Proves an environment that is there: its tree against the manifest, its imports by running them."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.generations import active_generation
from builder.agent.observe import (
    Drift,
    SiteMeasurement,
    bytecode_drift,
    compare_manifests,
    find_drift,
    read_env_record,
)
from builder.agent.store import write_atomically
from builder.outcome import LOCALHOST, Probe
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.tree import tree_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.observe import EnvRecord
    from builder.agent.store import Store
    from builder.progress import Reporter
    from envspec.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What is to be proven."""

    spec: Spec
    store: Store
    environ: Mapping[str, str]
    now: str
    """RFC 3339 in UTC."""

    deep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOutcome:
    """What was found."""

    host: str
    env: str
    site: str
    """As locked; with `deep` and without drift also as measured."""

    path: Path
    generation: int
    drift: tuple[Drift, ...]
    probes: tuple[Probe, ...]
    seconds: Mapping[str, float]


def verify_here(request: VerifyRequest, reporter: Reporter) -> VerifyOutcome:
    """Prove the active environment of a spec on this machine, and leave a receipt.

    Raises:
        EnvspecError: Nothing is active.
    """
    store, name = request.store, request.spec.name
    store.check_format()
    generation = active_generation(store, name)
    if generation is None:
        raise EnvspecError(
            f"nothing is active for `{name}` in `{store.root}`", hint="`envspec build` builds it", exit_code=FOUND_WRONG
        )
    record = read_env_record(store, generation.env, name)
    started = time.monotonic()
    drift = _deep_drift(store, record, reporter) if request.deep else find_drift(store, record)
    seconds = {"tree": round(time.monotonic() - started, 3)}
    probes: tuple[Probe, ...] = (
        Probe(id="tree", result="fail" if drift else "pass", reason=f"{len(drift)} paths differ" if drift else ""),
    )
    if request.spec.verify.imports and not drift:
        from builder.building import probe_of, prove_imports_of  # noqa: PLC0415 - not where the tree is wrong already

        started = time.monotonic()
        proof = prove_imports_of(store, record.env, record.path, request.spec, request.environ, reporter)
        seconds["imports"] = round(time.monotonic() - started, 3)
        probes += (probe_of(proof),)
    receipt = {
        "version": 1,
        "kind": "verify",
        "time": request.now,
        "host": platform.node(),
        "env": record.env,
        "site": record.site,
        "deep": request.deep,
        "drift": [[each.kind, each.path, each.detail] for each in drift],
        "probes": [{"id": probe.id, "result": probe.result, "reason": probe.reason} for probe in probes],
        "seconds": seconds,
    }
    write_atomically(
        store.receipts(record.env) / f"{request.now.replace(':', '')}-verify.json",
        json.dumps(receipt, indent=1, sort_keys=True) + "\n",
    )
    return VerifyOutcome(
        host=LOCALHOST,
        env=record.env,
        site=record.site,
        path=record.path,
        generation=generation.number,
        drift=drift,
        probes=probes,
        seconds=seconds,
    )


def read_site_manifest(store: Store, record: EnvRecord) -> str:
    """The manifest that an environment was proven with.

    Raises:
        EnvspecError: It is gone, or is not the one that was proven.
    """
    try:
        text = (store.receipts(record.env) / "site.mtree").read_bytes().decode("ascii", "replace")
        found = f"has digest {tree_digest(text)}" if text.isascii() else "is not ASCII"
    except OSError as error:
        text, found = "", f"cannot be read: {error.strerror}"
    if not text or not text.isascii() or tree_digest(text) != record.site:
        raise EnvspecError(
            f"the store's manifest of `{record.env}` {found}, its record says {record.site}",
            hint="`envspec build --repair` makes the environment anew",
            exit_code=FOUND_WRONG,
        )
    return text


def _deep_drift(store: Store, record: EnvRecord, reporter: Reporter) -> tuple[Drift, ...]:
    """Every byte: the site from the disk alone, then bytecode and what belongs to the host."""
    from builder.agent.pool import WorkerPool, own_interpreter  # noqa: PLC0415 - only here

    expected = read_site_manifest(store, record)
    total = sum(int(line.split(" size=", 1)[1].split(" ", 1)[0]) for line in expected.splitlines() if " size=" in line)
    with (
        WorkerPool(own_interpreter(), store.root) as pool,
        reporter.stage("hashing", total=total, unit="bytes") as advance,
    ):
        measurement = SiteMeasurement(record.path, pool)
        elsewhere = [*bytecode_drift(store, record), *find_drift(store, record)]  # while the workers hash
        found = measurement.finish(advance)
    drift = list(compare_manifests(expected, found))
    seen = {each.path for each in drift}
    for each in elsewhere:
        if each.path not in seen:
            seen.add(each.path)
            drift.append(each)
    return tuple(sorted(drift, key=lambda each: each.path))
