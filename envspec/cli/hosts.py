"""Verbs on hosts: which are meant, how to reach them, and how what came of it is shown."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from envspec.cli.output import print_error, say, tell, tell_verdict
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.hosts import HostResult, Result, Target, Visit
    from builder.progress import FleetReporter
    from envspec.facts import Finding
    from envspec.spec import HostSpec, Spec

HostOption = Annotated[
    list[str] | None, Parameter(name="--host", negative=(), help="A host of the spec; may be given several times.")
]
GroupOption = Annotated[
    list[str] | None,
    Parameter(name="--group", negative=(), help="All hosts of a group of the spec; may be given several times."),
]
InventoryOption = Annotated[
    list[str] | None,
    Parameter(
        name="--inventory",
        negative=(),
        allow_leading_hyphen=True,  # `-` alone is stdin
        help="Hosts of an Ansible or pyinfra inventory (`FILE` or `FILE:GROUP`; `-` is JSON on stdin), or of Slurm (`slurm:node[1-4]`).",
    ),
]
AllOption = Annotated[bool, Parameter(name="--all", negative=(), help="All hosts of the spec.")]
JobsOption = Annotated[
    int, Parameter(name="--jobs", validator=Number(gte=1), help="How many hosts at a time. Default: 16.")
]
DEFAULT_JOBS = 16


def chosen_hosts(
    spec: Spec,
    host: list[str] | None,
    group: list[str] | None,
    *,
    every: bool,
    inventory: list[str] | None = None,
) -> tuple[HostSpec, ...]:
    """The hosts that are meant; none if this machine is.

    Args:
        spec: The spec.
        host: Names, as given.
        group: Groups, as given.
        every: Whether all are meant.
        inventory: Inventories, as given: their hosts are meant besides those of the spec.

    Raises:
        EnvspecError: A name or group is not in the spec, there are no hosts, or an inventory cannot be read.
    """
    declared = _declared_hosts(spec, host, group, every=every)
    if not inventory:
        return declared
    import sys  # noqa: PLC0415 - beside its only use

    from builder.inventory import read_inventory  # noqa: PLC0415 - only where there is one
    from envspec.inventories import merged  # noqa: PLC0415

    found = {each.name: each for each in declared}
    for given in inventory:
        if given.startswith("-") and given != "-" and not given.startswith("-:"):
            raise EnvspecError(
                f"`--inventory` needs an argument, and `{given}` is an option",
                hint="`envspec VERB --help` says what it takes",
            )
        hosts, notes = read_inventory(given, os.environ, sys.stdin.buffer)
        for note in notes:
            tell(f"warning: {note}")
        for each in merged(hosts, spec.hosts):
            found.setdefault(each.name, each)
    return tuple(found.values())


def _declared_hosts(
    spec: Spec, host: list[str] | None, group: list[str] | None, *, every: bool
) -> tuple[HostSpec, ...]:
    if not host and not group and not every:
        return ()
    if not spec.hosts:
        raise EnvspecError("the spec declares no hosts", hint="add `[hosts.NAME]` to the spec")
    names = {each.name: each for each in spec.hosts}
    groups = sorted({group for each in spec.hosts for group in each.groups})
    for kind, given, known in (("host", host, list(names)), ("group", group, groups)):
        for name in given or ():
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                listed = ", ".join(f"`{each}`" for each in known[:20]) or "none"
                raise EnvspecError(
                    f"the spec declares no {kind} `{name}`",
                    hint=f"did you mean `{near[0]}`?" if near else f"it declares {listed}",
                )
    return tuple(
        each for each in spec.hosts if every or each.name in (host or ()) or set(each.groups) & set(group or ())
    )


def targets_of(hosts: Sequence[HostSpec], *, forward_agent: bool = False) -> list[Target]:
    """The ways to hosts.

    Args:
        hosts: Which.
        forward_agent: Whether the user's configuration decides if they may use his keys to reach others; else they may not.
    """
    from builder.hosts import Target  # noqa: PLC0415 - only where hosts are meant
    from builder.transports.ssh import SshTransport  # noqa: PLC0415

    environ = dict(os.environ)
    return [
        Target(
            spec=host,
            transport=SshTransport(
                host=host.name,
                alias=host.ssh,
                user=host.user,
                port=host.port,
                key=host.key,
                environ=environ,
                forward_agent=forward_agent,
            ),
        )
        for host in hosts
    ]


def make_fleet_reporter(hosts: Sequence[HostSpec], *, quiet: bool) -> FleetReporter:
    """Where the progress of hosts goes: a live table on a terminal, else nowhere."""
    import sys  # noqa: PLC0415 - beside its only use

    from builder.progress import SilentFleet  # noqa: PLC0415

    if quiet or not sys.stderr.isatty():
        return SilentFleet()
    from envspec.cli.fleet_progress import TableReporter  # noqa: PLC0415 - rich, only where it shows

    return TableReporter([host.name for host in hosts])


def on_each(
    hosts: Sequence[HostSpec],
    work: Callable[[Visit], Result],
    *,
    jobs: int,
    quiet: bool,
    summary: Callable[[Result], str] = lambda _value: "done",
) -> tuple[HostResult[Result], ...]:
    """Do something on hosts, with progress (as `builder.hosts.on_hosts`)."""
    from builder.bundle import make_bundle  # noqa: PLC0415
    from builder.hosts import on_hosts  # noqa: PLC0415

    reporter = make_fleet_reporter(hosts, quiet=quiet)
    try:
        return on_hosts(targets_of(hosts), work, bundle=make_bundle(), jobs=jobs, reporter=reporter, summary=summary)
    finally:
        reporter.close()  # an interruption too leaves the terminal as it was


def say_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def tell_problems(results: Sequence[HostResult[Any]]) -> None:
    """Print on stderr what went wrong, host by host."""
    from builder.hosts import HostRefused  # noqa: PLC0415

    for result in results:
        if isinstance(result.error, HostRefused):
            tell_about_host(result.error.findings)
        elif result.error is not None:
            print_error(for_host(result.host, result.error), as_json=False)


def tell_about_host(findings: Sequence[Finding]) -> None:
    """Print findings about a host on stderr, with its name: their messages do not say it."""
    tell_verdict([replace(each, message=f"{each.subject}: {each.message}") for each in findings])


def for_host(host: str, error: EnvspecError) -> EnvspecError:
    """An error with its host in front."""
    named = f"`{host}`" in error.message
    return EnvspecError(
        error.message if named else f"{host}: {error.message}",
        input_name=error.input_name,
        hint=error.hint,
        problems=error.problems,
        exit_code=error.exit_code,
        detail=error.detail,
    )


def result_to_json(result: HostResult[Any], value: dict[str, Any]) -> dict[str, Any]:
    """The record of one host that `--json` prints.

    Args:
        result: What came of the host.
        value: Its value, if there is one.
    """
    from builder.hosts import HostRefused  # noqa: PLC0415
    from envspec.cli.output import error_to_json  # noqa: PLC0415

    record: dict[str, Any] = {"host": result.host, **value, "traffic": result.traffic.to_json()}
    if result.error is not None:
        record["error"] = error_to_json(result.error)
        if isinstance(result.error, HostRefused):
            record["findings"] = [finding.to_json() for finding in result.error.findings]
    return record


def amount(size_bytes: int) -> str:
    """A number of bytes for a person.

    Example:
        >>> amount(1_234_567), amount(120)
        ('1.2 MB', '120 B')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} B"
