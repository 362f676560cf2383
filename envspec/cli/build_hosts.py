"""`envspec build` on hosts: side by side, and a summary."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from envspec.cli.hosts import (
    amount,
    on_each,
    result_to_json,
    say_table,
    tell_about_host,
    tell_problems,
)
from envspec.cli.output import make_reporter, say_json
from envspec.errors import FOUND_WRONG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.building import BuildRequest
    from builder.host_building import HostBuild
    from builder.hosts import HostResult
    from envspec.spec import HostSpec


def build_on_hosts(
    request: BuildRequest, hosts: Sequence[HostSpec], *, reuse: tuple[str, ...], jobs: int, as_json: bool, quiet: bool
) -> int:
    """Build on hosts, and say what came of it.

    Args:
        request: What to build.
        hosts: Where.
        reuse: Paths of venvs on the hosts whose distributions may be taken.
        jobs: How many at a time.
        as_json: Whether to print one JSON object instead of a table.
        quiet: Whether to show no progress.

    Returns:
        The exit code: 1 if anything failed.

    Raises:
        EnvspecError: The patches here are not the locked ones.
    """
    from builder.building import check_overlays  # noqa: PLC0415 - the verb loads what it needs
    from builder.host_building import HostBuilder  # noqa: PLC0415
    from builder.supplying import HostSupply  # noqa: PLC0415

    series = check_overlays(request.lock, request.folder, request.lock_name)
    fetching = make_reporter(quiet=True)  # one display at a time: the table of hosts shows that they wait
    with HostSupply(request, series, fetching) as supply:
        builder = HostBuilder(request, supply, time.time, reuse=reuse)
        results = on_each(hosts, builder.build, jobs=jobs, quiet=quiet, summary=_summary)
    if as_json:
        say_json({"hosts": [result_to_json(result, _to_json(result.value)) for result in results]})
    else:
        say_table(("host", "result", "generation", "env", "site", "sent", "seconds"), [_row(each) for each in results])
    for result in results:
        if result.value is not None:
            tell_about_host(result.value.findings)
    tell_problems(results)
    return FOUND_WRONG if any(result.error is not None for result in results) else 0


def _summary(value: HostBuild) -> str:
    outcome = value.outcome
    how = "built" if outcome.built else "built before" if outcome.activated else "as it was"
    return f"{how}, generation {outcome.generation}{'' if outcome.verified else ', not verified'}"


def _row(result: HostResult[HostBuild]) -> tuple[str, ...]:
    sent, seconds = amount(result.traffic.sent_bytes), f"{result.seconds:.1f}"
    if result.value is None:
        return (result.host, "failed", "", "", "", sent, seconds)
    outcome = result.value.outcome
    word, _, _ = _summary(result.value).partition(",")
    if not outcome.verified:
        word += ", not verified"
    return (result.host, word, str(outcome.generation), outcome.env, outcome.site[:16], sent, seconds)


def _to_json(value: HostBuild | None) -> dict[str, Any]:
    if value is None:
        return {}
    return {
        **value.outcome.to_json(),
        "facts": None if value.facts is None else value.facts.to_json(),
        "reused": list(value.reused),
        "findings": [finding.to_json() for finding in value.findings],
    }
