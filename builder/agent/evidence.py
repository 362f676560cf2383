"""Gathers the evidence that an environment works where it lies: imports, then probes; and writes the receipt of it.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.agent.host import machine_facts
from builder.agent.hostfiles import state_folder
from builder.agent.store import remove_readonly_tree, write_atomically
from builder.outcome import Probe
from envspec import __version__
from envspec.printable import printable_json
from envspec.receipt import RECEIPT_FORMAT, encode_receipt, summaries

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.imports import ImportProof
    from builder.agent.probe_scripts import ProbeOrder
    from builder.agent.store import Store
    from builder.progress import Reporter
    from envspec.probe import ProbeRun

STEERING_VARIABLES = (
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
)
TOOL = f"envspec {__version__}"


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What was found so far."""

    machine: Mapping[str, Any]
    """What the machine is, as `builder.agent.host.machine_facts` has it."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that decide which libraries, compilers and GPUs are used."""

    prefix: str = ""
    """The environment that was proven."""

    probes: list[Probe] = field(default_factory=list)
    runs: tuple[ProbeRun, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    imports: ImportProof | None = None
    set: str = "none"
    seed: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether any proof failed."""
        return any(probe.result == "fail" for probe in self.probes)

    def add_runs(self, order: ProbeOrder, runs: tuple[ProbeRun, ...], left_out: tuple[tuple[str, str], ...]) -> None:
        """Take in what probes found."""
        self.runs, self.left_out = runs, left_out
        self.set, self.seed = "chosen" if order.only else order.set, order.seed
        self.probes += [Probe(**row) for row in summaries(runs)]

    def receipt(self, kind: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """The receipt.

        Args:
            kind: `build`, `verify` or `venv`.
            fields: What else it says; `name`, `env`, `site`, `time` and `verified` at least.
        """
        receipt: dict[str, Any] = printable_json(
            {
                "version": RECEIPT_FORMAT,
                "kind": kind,
                "tool": TOOL,
                "host": dict(self.machine),
                "variables": dict(self.variables),
                "prefix": self.prefix,
                "set": self.set,
                "seed": self.seed,
                "probes": [{"id": each.id, "result": each.result, "reason": each.reason} for each in self.probes],
                "runs": [run.to_json() for run in self.runs],
                "left_out": [list(each) for each in self.left_out],
                "imports": None if self.imports is None else self.imports.to_json(),
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                **fields,
            }
        )
        return receipt


def begin(environ: Mapping[str, str], prefix: Path) -> Evidence:
    """Nothing yet but what the machine is.

    Args:
        environ: This process's environment.
        prefix: The environment that is to be proven.
    """
    notes: list[str] = []
    machine = machine_facts(environ, notes)
    return Evidence(
        machine={**machine, "notes": notes},
        variables={name: environ[name] for name in STEERING_VARIABLES if environ.get(name)},
        prefix=os.fspath(prefix),
    )


def probe(
    evidence: Evidence,
    store: Store,
    env: str,
    path: Path,
    order: ProbeOrder,
    environ: Mapping[str, str],
    reporter: Reporter,
) -> None:
    """Run the probes of an environment of the store, and add what they found.

    Args:
        evidence: Gets it.
        store: The store.
        env: The env id.
        path: The environment.
        order: Which probes.
        environ: This process's environment.
        reporter: Where progress goes.
    """
    from builder.agent.probe_scripts import choose_probes, read_scripts  # noqa: PLC0415 - not for a build of what is there
    from builder.agent.probing import ProbePlace, run_probes, visible_gpus  # noqa: PLC0415 - not for a build of what is there

    started = time.monotonic()
    scripts = read_scripts()
    site = next(iter(sorted(path.glob("lib/python3.*/site-packages"))), path)
    choice = choose_probes(scripts, order, site)
    runs: tuple[ProbeRun, ...] = ()
    if choice.probes or choice.problems:
        # One at a time: what is measured on a GPU that another one uses is not what it can do.
        with store.lock("probes", waiting=reporter.note):
            scratch = store.temporary("probes")
            try:
                state = state_folder(store, env, environ)
                place = ProbePlace(python=path / "bin" / "python", prefix=path, site=site, state=state, scratch=scratch)
                gpus = visible_gpus(evidence.machine["gpus"], environ)
                runs = run_probes(scripts, choice, order, place, gpus, environ, reporter)
            finally:
                remove_readonly_tree(scratch)
    evidence.add_runs(order, runs, choice.left_out)
    evidence.seconds["probes"] = time.monotonic() - started


def write_receipt(store: Store, env: str, kind: str, receipt: Mapping[str, Any], *, last: bool = True) -> Path:
    """Leave a receipt in the store.

    Args:
        store: The store.
        env: The env id.
        kind: `build` or `verify`.
        receipt: It.
        last: Whether it is the last word on the environment, and so also `<kind>.json`.

    Returns:
        Its file.
    """
    folder = store.receipts(env)
    content = encode_receipt(receipt)
    path = folder / f"{str(receipt['time']).replace(':', '')}-{kind}.json"
    write_atomically(path, content)
    if last:
        write_atomically(folder / f"{kind}.json", content)
    return path
