"""Whether the drivers of the hosts are new enough for the environment. The tables are those of `envspec.drivers`.

floor = least_driver(closure)                       # what a lock states: floor.driver is `580`
hosts_below(closure.spec.hosts, floor.driver)       # who cannot run it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.checks.causes import cuda_traces
from envspec.checks.registry import check
from envspec.checks.wording import evidence
from envspec.cuda import BUILDS_FOR_CUDA, CudaTrace, most_precise
from envspec.drivers import (
    LEAST_OF_MAJOR,
    LEAST_OF_MAJOR_SOURCE,
    SHIPPED_WITH_SOURCE,
    driver_of_release,
    hosts_below,
    is_older,
    least_driver_of_major,
    newest,
)
from envspec.facts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.spec import HostSpec

DRIVER_LIBRARY = "libcuda.so.1"

_SYMBOL = re.compile(r"(cu[A-Z]\w*?)(?:_v([0-9]))?(_pt[sd][sz])?", re.ASCII)
_PER_THREAD_SINCE = 7000


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaEvidence:
    """What shows which CUDA a package was built with."""

    package: str
    label: str
    """Of the package, for a person: `torch 2.11.0`."""

    major: int
    cuda: str
    """`13.0`; the major alone where no more is known."""

    text: str
    """What shows it: `torch/version.py says CUDA 13.0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFunction:
    """A function of the driver's library that a binary cannot be loaded without."""

    package: str
    label: str
    path: str
    """Of the binary, as findings show it."""

    symbol: str
    since: tuple[int, int]
    """CUDA release that added it: (12, 4)."""

    driver: str
    """The one that came with that release; empty for a release older than the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFloor:
    """The least driver that an environment runs with."""

    driver: str = ""
    """`580`; empty if it needs none, or none that is known."""

    cuda_major: int = 0
    """0 if nothing is built for CUDA."""

    cuda_evidence: tuple[CudaEvidence, ...] = ()
    """What shows the major, one piece for each package, torch first."""

    function: DriverFunction | None = None
    """The newest function of the driver that is needed; None if no binary is linked to the driver or its header is in no wheel."""


def least_driver(closure: Closure) -> DriverFloor:
    """The least driver that an environment runs with: for its CUDA major, and for what its binaries need of the driver's library."""
    shown = cuda_evidence(closure)
    major = max((each.major for each in shown), default=0)
    functions = sorted(_driver_functions(closure), key=lambda each: (each.package, each.path))
    function = max(functions, key=lambda each: each.since, default=None)
    return DriverFloor(
        driver=newest([least_driver_of_major(major), function.driver if function else ""]),
        cuda_major=major,
        cuda_evidence=tuple(each for each in shown if each.major == major),
        function=function,
    )


@check("driver-too-old")
def driver_too_old(closure: Closure) -> Iterable[Finding]:
    """The driver of every host is new enough for the environment's CUDA.

    Two things ask for a driver. A program runs with any driver of its CUDA major or a later one: 580 for CUDA 13, 525 for
    CUDA 12, 450 for CUDA 11. And a library that is linked to `libcuda.so.1` loads only where that has every function that it
    names; which CUDA release added one is read from `cudaTypedefs.h` in the wheels, and its driver from NVIDIA's release notes.

    A host states its driver in `driver` of [hosts.NAME]; of a host that does not, `build` asks before it copies anything.

    Severity: error.

    Why: with an older driver nothing on the GPU works, and what is said about it is `CUDA driver version is insufficient for
    CUDA runtime version`, or that there is no GPU at all.

    Example:
        error: host old has driver 570.86.10; torch 2.11.0 is built for CUDA 13.0, which needs driver 580 or later

    How to mend: install a newer driver on the host, or choose packages that are built for an older CUDA. Where a
    forward-compatibility package (`cuda-compat`) makes up for the driver, state the driver that it stands for.
    """
    floor = least_driver(closure)
    for host in hosts_below(closure.spec.hosts, floor.driver):
        yield _too_old(host, floor)


def drivers_below_needs(hosts: Iterable[HostSpec], least: str) -> Iterator[Finding]:
    """The same as the check, from what a lock says that the environment needs.

    Args:
        hosts: Of the spec.
        least: The least driver of the lock; empty if it needs none.
    """
    for host in hosts_below(hosts, least):
        yield Finding(
            check="driver-too-old",
            severity="error",
            subject=f"host {host.name}",
            message=f"host {host.name} has driver {host.driver}; the lock needs driver {least} or later",
            hint=f"install driver {least} or later on {host.name}; `envspec check` says what asks for it",
        )


def cuda_evidence(closure: Closure) -> tuple[CudaEvidence, ...]:
    """What shows which CUDA the packages were built with, one piece for each, torch first, then by name.

    The traces are those of `cuda-major-mismatch`: objects of which one is chosen at run time do not count, nor do plugins, nor NVIDIA's own
    packages, which are there for those that are linked to them. Of a package with raw cubins and nothing else their notes count.
    """
    found = [
        shown
        for wheel in closure.wheels
        if not wheel.facts.name.startswith(("nvidia-", "cuda-"))
        for shown in [_evidence_of_wheel(wheel, closure)]
        if shown is not None
    ]
    return tuple(sorted(found, key=lambda each: (each.package != "torch", each.package)))


def function_since(symbol: str, functions: Mapping[str, Iterable[int]]) -> int:
    """The version in which the driver's library got a symbol, such as 12040; 0 if that is not known.

    The header lists the versions in which a function changed. Its first form has no suffix, the second is `_v2`, and so on; a form for
    per-thread streams (`_ptsz`, `_ptds`) is not older than those are.

    Args:
        symbol: As a binary names it: `cuCtxPushCurrent_v2`.
        functions: Function -> versions, as `driver_functions` of the facts.
    """
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return 0
    versions = sorted(functions.get(found[1], ()))
    if not versions:
        return 0
    form = min(int(found[2] or 1), len(versions))
    since = versions[max(form, 1) - 1]
    return max(since, _PER_THREAD_SINCE) if found[3] else since


def _evidence_of_wheel(wheel: ClosureWheel, closure: Closure) -> CudaEvidence | None:
    traces = cuda_traces(wheel, closure.links) or tuple(
        CudaTrace(int(release.partition(".")[0]), release, f"its raw cubins were made by CUDA {release}")
        for release in wheel.facts.binaries.releases
    )
    if not traces:
        return None
    major = max(trace.major for trace in traces)
    same = [trace for trace in traces if trace.major == major]
    # What a package states says it best; of the rest any one will do.
    stated = sorted(same, key=lambda trace: ("`cuda = " not in trace.text, " says " not in trace.text, trace.text))
    return CudaEvidence(
        package=wheel.facts.name, label=wheel.label, major=major, cuda=most_precise(same), text=stated[0].text
    )


def _driver_functions(closure: Closure) -> Iterator[DriverFunction]:
    """For each binary that is linked to the driver, the newest function that it needs."""
    functions: dict[str, set[int]] = {}
    for wheel in closure.wheels:
        for name, versions in wheel.facts.binaries.driver_functions:
            functions.setdefault(name, set()).update(versions)
    if not functions:
        return
    for wheel in closure.wheels:
        for binary in wheel.facts.binaries.binaries:
            if DRIVER_LIBRARY not in binary.needed or binary.path in closure.links.in_variants:
                continue
            names = {reference.name for reference in binary.undefined if not reference.weak}
            since, symbol = max(((function_since(name, functions), name) for name in sorted(names)), default=(0, ""))
            if since:
                release = since // 1000, since % 1000 // 10
                yield DriverFunction(
                    package=wheel.facts.name,
                    label=wheel.label,
                    path=wheel.shown_path(binary.path),
                    symbol=symbol,
                    since=release,
                    driver=driver_of_release(*release),
                )


def _too_old(host: HostSpec, floor: DriverFloor) -> Finding:
    least = least_driver_of_major(floor.cuda_major)
    lines: list[str] = []
    packages: list[str] = []
    reason = ""
    if is_older(host.driver, least):
        built = floor.cuda_evidence[0]
        reason = f"{built.label} is built for CUDA {built.cuda}, which needs driver {least} or later"
        lines += [f"{each.label}: {each.text}" for each in floor.cuda_evidence]
        lines.append(f"CUDA {floor.cuda_major} needs driver {least}: {LEAST_OF_MAJOR_SOURCE}")
        packages += [each.package for each in floor.cuda_evidence]
    function = floor.function
    if function is not None and is_older(host.driver, function.driver):
        release = f"{function.since[0]}.{function.since[1]}"
        reason = reason or (
            f"{function.label} needs `{function.symbol}`, which came with CUDA {release} and driver {function.driver}"
        )
        lines.append(f"{function.label}: {function.path} needs `{function.symbol}` of {DRIVER_LIBRARY}")
        lines.append(f"CUDA {release} came with driver {function.driver}: {SHIPPED_WITH_SOURCE}")
        packages.append(function.package)
    return Finding(
        check="driver-too-old",
        severity="error",
        subject=f"host {host.name}",
        message=f"host {host.name} has driver {host.driver}; {reason}",
        evidence=evidence(lines),
        hint=f"install driver {floor.driver} or later on {host.name}, or {_other_remedy(host, floor)}",
        packages=tuple(dict.fromkeys(packages)),
    )


def _other_remedy(host: HostSpec, floor: DriverFloor) -> str:
    """What to do if the driver has to stay."""
    runs = [
        major
        for major, driver in LEAST_OF_MAJOR.items()
        if major < floor.cuda_major and not is_older(host.driver, driver)
    ]
    if not runs:
        return "choose packages that are built for an older CUDA"
    major = max(runs)
    builds = [BUILDS_FOR_CUDA.get(each.package, {}).get(major, "") for each in floor.cuda_evidence]
    known = "; ".join(filter(None, builds))
    return (
        f"choose packages that are built for CUDA {major}, which runs with driver {LEAST_OF_MAJOR[major]} or later"
        f"{f': {known}' if known else ''}"
    )
