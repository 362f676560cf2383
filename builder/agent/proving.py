"""Proves an environment that is there: its tree against the manifest, its imports by running them.

Standard library only, CPython >= 3.10.
"""

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
    with_owners,
)
from builder.agent.store import remove_readonly_tree, write_atomically
from builder.outcome import LOCALHOST, Probe
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.tree import tree_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.imports import ImportProof
    from builder.agent.observe import EnvRecord
    from builder.agent.store import Store
    from builder.progress import Reporter

IMPORT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class VerifyOrder:
    """What is to be proven."""

    name: str
    """Of the environment."""

    imports: tuple[str, ...]
    libraries: tuple[str, ...]
    now: str
    """RFC 3339 in UTC."""

    deep: bool


@dataclass(frozen=True)
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


def verify_environment(
    store: Store, order: VerifyOrder, environ: Mapping[str, str], reporter: Reporter
) -> VerifyOutcome:
    """Prove the active environment of a name on this machine, and leave a receipt.

    Raises:
        EnvspecError: Nothing is active.
    """
    store.check_format()
    generation = active_generation(store, order.name)
    if generation is None:
        raise EnvspecError(
            f"nothing is active for `{order.name}` in `{store.root}`",
            hint="`envspec build` builds it",
            exit_code=FOUND_WRONG,
        )
    record = read_env_record(store, generation.env, order.name)
    started = time.monotonic()
    drift = deep_drift(store, record, reporter) if order.deep else find_drift(store, record)
    seconds = {"tree": round(time.monotonic() - started, 3)}
    probes: tuple[Probe, ...] = (
        Probe(id="tree", result="fail" if drift else "pass", reason=f"{len(drift)} paths differ" if drift else ""),
    )
    if order.imports and not drift:
        started = time.monotonic()
        proof = prove_imports_of(store, record.env, record.path, order.imports, order.libraries, environ, reporter)
        seconds["imports"] = round(time.monotonic() - started, 3)
        probes += (probe_of(proof),)
    receipt = {
        "version": 1,
        "kind": "verify",
        "time": order.now,
        "host": platform.node(),
        "env": record.env,
        "site": record.site,
        "deep": order.deep,
        "drift": [[each.kind, each.path, each.detail, each.owner] for each in drift],
        "probes": [{"id": probe.id, "result": probe.result, "reason": probe.reason} for probe in probes],
        "seconds": seconds,
    }
    write_atomically(
        store.receipts(record.env) / f"{order.now.replace(':', '')}-verify.json",
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


def prove_imports_of(
    store: Store,
    env: str,
    path: Path,
    modules: tuple[str, ...],
    libraries: tuple[str, ...],
    environ: Mapping[str, str],
    reporter: Reporter,
) -> ImportProof:
    """Import modules in an environment that is there.

    Args:
        store: The store.
        env: The env id.
        path: The environment.
        modules: Which.
        libraries: Host libraries that the environment declares.
        environ: This process's environment.
        reporter: Where progress goes.
    """
    from builder.agent.imports import prove_imports  # noqa: PLC0415 - not for a build of what is there

    reporter.note("importing " + ", ".join(modules))
    with store.lock(f"imports-{env}", waiting=reporter.note):
        scratch = store.temporary(f"imports-{env}")
        try:
            return prove_imports(
                path / "bin" / "python",
                modules,
                env_root=path,
                scratch=scratch,
                environ=environ,
                timeout_s=IMPORT_TIMEOUT_S,
                libraries=libraries,
            )
        finally:
            remove_readonly_tree(scratch)


def probe_of(proof: ImportProof) -> Probe:
    """An import proof as one probe."""
    reason = proof.reason
    if proof.result == "pass" and proof.with_stub:
        reason = "no driver here: a stub stood in for libcuda.so.1"
    return Probe(id="imports", result=proof.result, reason=reason)


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


def deep_drift(store: Store, record: EnvRecord, reporter: Reporter) -> tuple[Drift, ...]:
    """Every byte: the site from the disk alone, then bytecode and what belongs to the host.

    Args:
        store: The store.
        record: Which environment.
        reporter: Where progress goes.
    """
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
    owned = with_owners(store, record, drift) if drift else []
    return tuple(sorted(owned, key=lambda each: each.path))
