"""`envspec copy`: the wheels of the lock from one host to others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from envspec.cli.build import build_request
from envspec.cli.hosts import (
    DEFAULT_JOBS,
    JobsOption,
    amount,
    chosen_hosts,
    on_each,
    result_to_json,
    say_table,
    targets_of,
    tell_problems,
)
from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import make_reporter, say, say_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from builder.host_copying import Copied
    from builder.hosts import HostResult


def copy(
    *,
    source: Annotated[str, Parameter(name="--from", help="The host of the spec that has the wheels.")],
    to: Annotated[
        list[str], Parameter(name="--to", negative=(), help="A host that is to have them; may be given several times.")
    ],
    through_here: Annotated[
        bool,
        Parameter(
            name="--through-here",
            negative=(),
            help="Send everything through this machine, also where they reach each other.",
        ),
    ] = False,
    jobs: JobsOption = DEFAULT_JOBS,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Copy the wheels of the lock from one host to others; nothing is built.

    They go straight where the source reaches the other with the ssh configuration that it has there, else through this machine. Only what a host
    lacks is sent, and only what has the locked sha256 is taken. What the source does not have is fetched.
    """
    os.umask(0o022)
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.building import check_overlays  # noqa: PLC0415
    from builder.bundle import make_bundle  # noqa: PLC0415
    from builder.host_copying import HostCopier, Lender  # noqa: PLC0415
    from builder.progress import SilentHost  # noqa: PLC0415
    from builder.session import Session  # noqa: PLC0415
    from builder.supplying import HostSupply  # noqa: PLC0415

    inputs = read_inputs(spec)
    wanted = inputs.parse_spec()
    (lending,) = targets_of(chosen_hosts(wanted, [source], None, every=False), forward_agent=True)
    hosts = chosen_hosts(wanted, to, None, every=False)
    request = build_request(inputs, Store(store_root(store)), "", "", repair=False)
    series = check_overlays(request.lock, request.folder, request.lock_name)
    request.store.ensure()
    with Session(lending.transport, make_bundle(), store=lending.spec.store) as session, session.kept_alive():
        lender = Lender(session, request, SilentHost())
        with HostSupply(request, series, make_reporter(quiet=True), bring=lender.bring) as supply:
            copier = HostCopier(request, supply, source=lending, lent=lender.there, straight=not through_here)
            results = on_each(hosts, copier.copy, jobs=jobs, quiet=quiet)
    if as_json:
        say_json({"hosts": [result_to_json(result, _to_json(result)) for result in results]})
    else:
        say_table(("host", "result", "wheels", "bytes", "straight", "seconds"), [_row(result) for result in results])
        for result in results:
            if result.value is not None and result.value.not_straight:
                say(f"{result.host}  not straight from {source}: {result.value.not_straight}")
    tell_problems(results)
    return FOUND_WRONG if any(result.error is not None for result in results) else 0


def _row(result: HostResult[Copied]) -> tuple[str, ...]:
    if result.value is None:
        return (result.host, "failed", "", "", "", f"{result.seconds:.1f}")
    copied = result.value
    straight, seconds = str(copied.straight), f"{result.seconds:.1f}"
    return (result.host, "copied", str(copied.wheels), amount(copied.bytes), straight, seconds)


def _to_json(result: HostResult[Copied]) -> dict[str, Any]:
    copied = result.value
    if copied is None:
        return {}
    return {
        "wheels": copied.wheels,
        "bytes": copied.bytes,
        "straight": copied.straight,
        "not_straight": copied.not_straight or None,
    }
