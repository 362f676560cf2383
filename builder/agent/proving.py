"""Proves an environment that is there: its tree against the manifest, its imports by running them.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent import evidence as evidence_of
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
from builder.agent.store import remove_readonly_tree
from builder.outcome import LOCALHOST, Probe
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.tree import tree_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.imports import ImportProof
    from builder.agent.observe import EnvRecord
    from builder.agent.probe_scripts import ProbeOrder
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
    env: str = ""
    """Which environment of the store; empty for the active one."""

    probes: ProbeOrder | None = None
    """Which probes are run; None for none."""


@dataclass(frozen=True)
class VerifyOutcome:
    """What was found."""

    host: str
    env: str
    site: str
    """As locked; with `deep` and without drift also as measured."""

    path: Path
    generation: int | None
    """None if it is not the active one."""

    drift: tuple[Drift, ...]
    probes: tuple[Probe, ...]
    seconds: Mapping[str, float]
    receipt: Mapping[str, Any]
    """As `envspec.receipt` has it."""


def verify_environment(
    store: Store, order: VerifyOrder, environ: Mapping[str, str], reporter: Reporter
) -> VerifyOutcome:
    """Prove an environment of a name on this machine, by default the active one, and leave a receipt.

    What has drifted is not run, but for probes that are asked for by name.

    Raises:
        EnvspecError: Nothing is active, or the environment that is asked for is not there.
    """
    store.check_format()
    generation = active_generation(store, order.name)
    if generation is None and not order.env:
        raise EnvspecError(
            f"nothing is active for `{order.name}` in `{store.root}`",
            hint="`envspec build` builds it",
            exit_code=FOUND_WRONG,
        )
    env = order.env or (generation.env if generation else "")
    if order.env and not store.env(order.env, order.name).is_dir():
        raise EnvspecError(
            f"there is no environment `{order.env}` of `{order.name}` in `{store.root}`",
            hint="`envspec build` builds what the lock says",
            exit_code=FOUND_WRONG,
        )
    record = read_env_record(store, env, order.name)
    evidence = evidence_of.begin(environ, record.path)
    started = time.monotonic()
    drift = deep_drift(store, record, reporter) if order.deep else find_drift(store, record)
    evidence.seconds["tree"] = round(time.monotonic() - started, 3)
    differ = f"{len(drift)} path{'s' if len(drift) != 1 else ''} differ"
    evidence.probes.append(Probe(id="tree", result="fail" if drift else "pass", reason=differ if drift else ""))
    chosen = order.probes is not None and bool(order.probes.only)
    if order.imports and not drift and not chosen:
        started = time.monotonic()
        proof = prove_imports_of(store, record.env, record.path, order.imports, order.libraries, environ, reporter)
        evidence.seconds["imports"] = round(time.monotonic() - started, 3)
        evidence.imports = proof
        evidence.probes.append(probe_of(proof))
    if order.probes is not None and (chosen or not evidence.failed):
        evidence_of.probe(evidence, store, record.env, record.path, order.probes, environ, reporter)
    receipt = evidence.receipt(
        "verify",
        time=order.now,
        name=order.name,
        env=record.env,
        site=record.site,
        interpreter=record.fields["python"],
        deep=order.deep,
        drift=[[each.kind, each.path, each.detail, each.owner] for each in drift],
        verified=not chosen and not evidence.failed,
    )
    # A few probes that pass do not say that the environment is verified; one that fails says that it is not.
    evidence_of.write_receipt(store, record.env, "verify", receipt, last=not chosen or evidence.failed)
    return VerifyOutcome(
        host=LOCALHOST,
        env=record.env,
        site=record.site,
        path=record.path,
        generation=generation.number if generation is not None and generation.env == record.env else None,
        drift=drift,
        probes=tuple(evidence.probes),
        seconds=evidence.seconds,
        receipt=receipt,
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
