"""`envspec build`: realise, prove and activate."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path  # noqa: TC003 - the command line is made from annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.cli.hosts import (
    DEFAULT_JOBS,
    AllOption,
    GroupOption,
    HostOption,
    InventoryOption,
    JobsOption,
    chosen_hosts,
)
from envspec.cli.nodes import LineOption, ReceiptsOption, leave, node_name
from envspec.cli.options import Inputs, JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import make_reporter, say, say_json
from envspec.errors import FOUND_WRONG, EnvspecError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.agent.store import Store
    from builder.building import BuildRequest
    from builder.outcome import BuildOutcome


def build(
    *,
    repair: Annotated[
        bool,
        Parameter(
            name="--repair", negative=(), help="Make a drifted environment and damaged objects of the store anew."
        ),
    ] = False,
    no_verify: Annotated[
        bool,
        Parameter(
            name="--no-verify",
            negative=(),
            help="Activate without importing or probing anything; the receipt and `envspec status` say so. The tree is proven all the same.",
        ),
    ] = False,
    host: HostOption = None,
    group: GroupOption = None,
    inventory: InventoryOption = None,
    every: AllOption = False,
    jobs: JobsOption = DEFAULT_JOBS,
    receipts: ReceiptsOption = None,
    line: LineOption = False,
    reuse: Annotated[
        list[str] | None,
        Parameter(
            name="--reuse",
            negative=(),
            help="A venv on the hosts: what has every locked byte there is taken, not sent. May be given several times.",
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        Parameter(
            name="--from",
            help="A bundle (`envspec export --format bundle`): its spec, lock and wheels are built, without network. "
            "With `--spec`, only if they are these.",
        ),
    ] = None,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Build the locked environment on this machine or on hosts, prove it, and make it active.

    What is built and active already is left as it is. Nothing becomes active whose tree is not the locked one, or whose imports or probes fail.

    Hosts are reached by ssh, several at a time. What goes wrong on one touches no other; the exit code is 1 then.

    Where an engine runs it on every node, `--line` and `--receipts` say what came of each.
    """
    os.umask(0o022)  # the store is for every user of the machine to read, whoever builds
    from builder.agent.store import Store  # noqa: PLC0415

    place = Store(store_root(store))
    wanted = Wanted(
        repair=repair,
        verify=not no_verify,
        hosts=tuple(host or ()),
        groups=tuple(group or ()),
        inventories=tuple(inventory or ()),
        every=every,
        jobs=jobs,
        reuse=tuple(reuse or ()),
        receipts=receipts,
        line=line,
        as_json=as_json,
        quiet=quiet,
    )
    if bundle is None:
        return build_inputs(read_inputs(spec), place, wanted)
    from envspec.cli.build_from import build_from  # noqa: PLC0415 - only where it is meant

    return build_from(bundle, spec, place, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for."""

    repair: bool
    verify: bool
    hosts: tuple[str, ...]
    groups: tuple[str, ...]
    every: bool
    jobs: int
    reuse: tuple[str, ...]
    as_json: bool
    quiet: bool
    inventories: tuple[str, ...] = ()
    receipts: Path | None = None
    """Folder where this machine's receipt is left too."""

    line: bool = False
    """Whether one line is printed, with this node's name."""

    offline: bool = False
    """Whether all that is needed is in the store, and nothing may be fetched."""


def build_inputs(
    inputs: Inputs, place: Store, wanted: Wanted, *, bring: Callable[[BuildRequest], None] = lambda _request: None
) -> int:
    """Build what a spec and its lock say, and say what came of it.

    Args:
        inputs: The spec and its lock.
        place: The store of this machine.
        wanted: What is asked for.
        bring: Called once it is known that there is something to build.

    Returns:
        The exit code.

    Raises:
        EnvspecError: It cannot be built.
    """
    from builder.outcome import find_built  # noqa: PLC0415

    started = time.monotonic()
    lock_sha256 = hashlib.sha256(inputs.lock_bytes or b"").hexdigest()
    spec_sha256 = hashlib.sha256(inputs.spec_bytes).hexdigest()
    if wanted.hosts or wanted.groups or wanted.every or wanted.inventories:
        from envspec.cli.build_hosts import build_on_hosts  # noqa: PLC0415 - only where hosts are meant

        if wanted.receipts is not None or wanted.line:
            raise EnvspecError(
                "`--receipts` and `--line` are for a node that builds for itself",
                hint="leave out `--host`, `--group`, `--all` and `--inventory`",
            )
        hosts = chosen_hosts(
            inputs.parse_spec(),
            list(wanted.hosts),
            list(wanted.groups),
            every=wanted.every,
            inventory=list(wanted.inventories),
        )
        request = _request(inputs, place, lock_sha256, spec_sha256, wanted)
        bring(request)
        return build_on_hosts(
            request, hosts, reuse=wanted.reuse, jobs=wanted.jobs, as_json=wanted.as_json, quiet=wanted.quiet
        )
    if wanted.reuse:
        raise EnvspecError("`--reuse` is for hosts", hint="name them with `--host`, `--group` or `--all`")
    outcome = None
    if not wanted.repair:
        outcome = find_built(
            place,
            folder=inputs.spec_path.parent,
            lock_sha256=lock_sha256,
            spec_sha256=spec_sha256,
            verified=wanted.verify,
        )
    if outcome is None:
        request = _request(inputs, place, lock_sha256, spec_sha256, wanted)
        bring(request)
        outcome = _build(request, quiet=wanted.quiet)
    outcome = replace(outcome, seconds={**outcome.seconds, "total": time.monotonic() - started})
    if wanted.receipts is not None:
        if outcome.receipt is None:
            raise EnvspecError(f"there is no receipt of {outcome.env} in the store", hint="`envspec verify` leaves one")
        leave(wanted.receipts, outcome.receipt, generation=outcome.generation, path=outcome.path, now=_now())
    if wanted.line:
        outcome = replace(outcome, host=node_name(os.environ))
    if wanted.as_json:
        say_json({"hosts": [outcome.to_json()]}, line=wanted.line)
    elif wanted.line:
        say(_line(outcome))
    else:
        _report(outcome)
    return 0


def _line(outcome: BuildOutcome) -> str:
    how = "built" if outcome.built else "built before" if outcome.activated else "as it was"
    how += "" if outcome.verified else ", not verified"
    counts = {word: sum(probe.result == word for probe in outcome.probes) for word in ("pass", "compiled", "skip")}
    proofs = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no proofs"
    return (
        f"{outcome.host}  {how}  generation {outcome.generation}  env {outcome.env}  site {outcome.site}"
        f"  {proofs}  {outcome.seconds['total']:.1f} s"
    )


def _now() -> str:
    from datetime import datetime, timezone  # noqa: PLC0415

    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _request(inputs: Inputs, place: Store, lock_sha256: str, spec_sha256: str, wanted: Wanted) -> BuildRequest:
    request = build_request(inputs, place, lock_sha256, spec_sha256, repair=wanted.repair, verify=wanted.verify)
    return replace(request, offline=wanted.offline)


def _build(request: BuildRequest, *, quiet: bool) -> BuildOutcome:
    import gc  # noqa: PLC0415

    from builder.building import build_here  # noqa: PLC0415

    gc.disable()  # a short process with 200,000 small objects and hardly a cycle: looking for them again and again costs a tenth of it
    return build_here(request, make_reporter(quiet=quiet))


def build_request(
    inputs: Inputs, place: Store, lock_sha256: str, spec_sha256: str, *, repair: bool, verify: bool = True
) -> BuildRequest:
    """A request for what a lock says.

    Args:
        inputs: The spec and its lock.
        place: The store of this machine.
        lock_sha256: Of the lock's bytes.
        spec_sha256: Of the spec's bytes.
        repair: Whether drift and damage are mended.
        verify: Whether imports and probes have to pass.

    Raises:
        EnvspecError: The lock does not describe the spec.
    """
    from builder.building import BuildRequest  # noqa: PLC0415
    from builder.locking import read_all_series, stale_reasons  # noqa: PLC0415

    wanted, locked = inputs.parse_spec(), inputs.parse_lock()
    reasons = stale_reasons(wanted, locked, read_all_series(wanted, inputs.spec_path.parent))
    if reasons:
        raise EnvspecError(
            "the lock does not describe the spec any more",
            input_name=inputs.lock_name,
            problems=tuple(Problem(message=reason) for reason in reasons),
            hint="run `envspec lock`, and have the change reviewed",
            exit_code=FOUND_WRONG,
        )
    return BuildRequest(
        spec=wanted,
        lock=locked,
        folder=inputs.spec_path.parent,
        lock_name=inputs.lock_name,
        lock_sha256=lock_sha256,
        spec_sha256=spec_sha256,
        store=place,
        environ=os.environ,
        now=_now(),
        repair=repair,
        verify=verify,
    )


def _report(outcome: BuildOutcome) -> None:
    say(f"path     {outcome.path}")
    say(f"env      {outcome.env}")
    say(f"site     {outcome.site}")
    how = "" if outcome.built else ", built before" if outcome.activated else ", as it was"
    say(f"profile  generation {outcome.generation}{how}")
    width = max((len(probe.id) for probe in outcome.probes), default=0)
    for probe in outcome.probes:
        say(f"{probe.id:{max(width, 8)}} {probe.result}{f' ({probe.reason})' if probe.reason else ''}")
    if not outcome.verified:
        say("verified no: built with --no-verify")
    seconds = dict(outcome.seconds)
    total = seconds.pop("total")
    parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    say(f"seconds  {total:.2f}{f' ({parts})' if parts else ''}")
