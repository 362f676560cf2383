"""What the binaries of an environment need, for the lock: measured, so that a host can be asked before anything is sent to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.checks.causes import cuda_traces
from envspec.checks.driver import least_driver
from envspec.checks.floors import measured_floors
from envspec.cuda import most_precise
from envspec.gpu import sorted_codes
from envspec.host import DRIVER_LIBRARIES, GLIBC_LIBRARIES, is_interpreter
from envspec.lock import LockedNeeds

if TYPE_CHECKING:
    from envspec.checks.closure import Closure, ClosureWheel

_OF_GCC = frozenset({"libgcc_s.so.1", "libstdc++.so.6"})


def needs_of(closure: Closure) -> LockedNeeds:
    """What an environment needs of a host."""
    floors = measured_floors(closure)
    driver = least_driver(closure)
    function = driver.function
    return LockedNeeds(
        glibc=floors.glibc.version if floors.glibc else "",
        libstdcxx=floors.glibcxx.version if floors.glibcxx else "",
        cxxabi=floors.cxxabi.version if floors.cxxabi else "",
        libraries=host_libraries(closure),
        driver=driver.driver,
        driver_api=f"{function.since[0]}.{function.since[1]}" if function else "",
    )


def host_libraries(closure: Closure) -> tuple[str, ...]:
    """Sonames that the host has to offer beyond glibc, GCC and the driver, sorted; those of plugins are left out."""
    found = {
        soname
        for soname in closure.links.host
        if soname not in GLIBC_LIBRARIES
        and soname not in _OF_GCC
        and soname not in DRIVER_LIBRARIES
        and not is_interpreter(soname)
    }
    return tuple(sorted(found))


def cuda_of(wheel: ClosureWheel, closure: Closure) -> str:
    """The CUDA that a wheel was built for, as precisely as it says: `13.0`, or `13`; empty if it says nothing, or several things."""
    traces = cuda_traces(wheel, closure.links)
    if len({trace.major for trace in traces}) != 1:
        return ""
    return most_precise(traces)


def gpu_code_of(wheel: ClosureWheel) -> tuple[str, ...]:
    """The targets for which a wheel carries GPU code, sorted."""
    facts = wheel.facts.binaries
    found = {cubin.code for cubin in facts.cubins}
    for binary in facts.binaries:
        for codes, _ in binary.gpu.fatbins if binary.gpu else ():
            found.update(codes)
    return tuple(sorted_codes(found))
