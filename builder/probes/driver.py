"""Probe: the driver serves the toolkit, and each GPU is well by its own account: memory, ECC, clocks, links to the others."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "driver",
    "purpose": "The driver is new enough for the toolkit, and no GPU reports memory errors, pending repairs or slowdowns by its hardware.",
    "tolerance": "no uncorrected memory error, no row that waits for or failed a repair, no slowdown by heat or power brake",
    "needs": {"gpus": 1, "modules": []},
    "per": "host",
    "set": "quick",
    "compiles": False,
    "seconds": {"quick": 30, "full": 30},
    "memory_bytes": 0,
}

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.probes import kit
else:
    import kit

_MAJOR, _MINOR, _PROCESSORS = 75, 76, 16
"""Attributes of cuDeviceGetAttribute."""

_SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x40: "heat, by hardware",
    0x80: "power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that say the hardware protects itself."""

_MILD = {0x4: "power limit", 0x20: "heat, by software", 0x1: "idle"}
_SM, _MEMORY = 1, 2
"""Kinds of clocks."""


class Driver:
    """libcuda and NVML, each call checked."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.must("cuInit", 0)
        self.nvml: ctypes.CDLL | None = None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self.nvml.nvmlInit_v2() != 0:
            self.nvml = None

    def must(self, name: str, *values: Any) -> None:
        """A call of libcuda that has to succeed."""
        code = getattr(self.cuda, name)(*values)
        if code != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise kit.Wrong(f"{name} gives {(text.value or b'').decode()} ({code})")

    def number(self, name: str, *values: Any) -> int:
        """What a call of libcuda writes to its first argument, an int."""
        out = ctypes.c_int()
        self.must(name, ctypes.byref(out), *values)
        return out.value

    def ask(self, name: str, kind: Any, *values: Any) -> Any:
        """What a call of NVML writes to its last argument; None if this GPU or driver does not tell."""
        function = getattr(self.nvml, name, None) if self.nvml is not None else None
        if function is None:
            return None
        out = kind()
        return None if function(*values, ctypes.byref(out)) != 0 else out


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases."""
    driver = Driver()
    yield kit.Case("driver", partial(versions, probe=probe, driver=driver))
    count = driver.number("cuDeviceGetCount")
    for index in range(count):
        yield kit.Case(f"gpu-{index}", partial(gpu, driver=driver, index=index))
    if count > 1:
        yield kit.Case("links", partial(links, driver=driver, count=count))


def versions(found: kit.Found, probe: kit.Probe, driver: Driver) -> None:
    """Of the driver, against the toolkit of the lock."""
    number = driver.number("cuDriverGetVersion")
    major, minor = number // 1000, number % 1000 // 10
    found.note("cuda", f"{major}.{minor}")
    name = ctypes.create_string_buffer(96)
    if driver.nvml is not None and driver.nvml.nvmlSystemGetDriverVersion(name, 96) == 0:
        found.note("driver", name.value.decode(errors="replace"))
    else:
        found.note("nvml", "not there")
    if probe.toolkit:
        wanted = int(probe.toolkit.partition(".")[0])
        # Within a major version, older drivers run what newer toolkits made, but for PTX.
        found.require(
            major >= wanted, f"the driver serves CUDA up to {major}.{minor}, the lock's toolkit is {probe.toolkit}"
        )


def gpu(found: kit.Found, driver: Driver, index: int) -> None:
    """One GPU."""
    device = driver.number("cuDeviceGet", index)
    name = ctypes.create_string_buffer(128)
    driver.must("cuDeviceGetName", name, 128, device)
    size = ctypes.c_size_t()
    driver.must("cuDeviceTotalMem_v2", ctypes.byref(size), device)
    found.note("name", name.value.decode(errors="replace"))
    major, minor = (driver.number("cuDeviceGetAttribute", attribute, device) for attribute in (_MAJOR, _MINOR))
    found.note("compute", f"{major}.{minor}")
    found.note("processors", driver.number("cuDeviceGetAttribute", _PROCESSORS, device))
    found.note("memory", size.value, "B")
    handle = nvml_handle(driver, device)
    if handle is None:
        found.note("nvml", "does not know it")
        return
    memory_of(found, driver, handle)
    clocks_of(found, driver, handle)


def nvml_handle(driver: Driver, device: int) -> ctypes.c_void_p | None:
    """NVML's handle of a device of libcuda, found by its UUID, since the two may count in different orders."""
    raw = (ctypes.c_ubyte * 16)()
    getter = getattr(driver.cuda, "cuDeviceGetUuid_v2", None) or driver.cuda.cuDeviceGetUuid
    if driver.nvml is None or getter(raw, device) != 0:
        return None
    digits = bytes(raw).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    handle = ctypes.c_void_p()
    for kind in ("GPU", "MIG"):
        if driver.nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{'-'.join(parts)}".encode(), ctypes.byref(handle)) == 0:
            return handle
    return None


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def memory_of(found: kit.Found, driver: Driver, handle: ctypes.c_void_p) -> None:
    """Free memory, errors and repairs."""
    memory = driver.ask("nvmlDeviceGetMemoryInfo", _Memory, handle)
    if memory is not None:
        found.note("memory_free", memory.free, "B")
    pending = ctypes.c_uint()
    mode = ctypes.c_uint()
    if (
        driver.nvml is not None
        and driver.nvml.nvmlDeviceGetEccMode(handle, ctypes.byref(mode), ctypes.byref(pending)) == 0
    ):
        found.note("ecc", "on" if mode.value else "off")
    # Uncorrected (1), since the driver was loaded (0).
    errors = driver.ask("nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, handle, 1, 0)
    if errors is not None:
        found.at_most("uncorrected_errors", errors.value, 0)
    rows = [ctypes.c_uint() for _ in range(4)]
    remapped = getattr(driver.nvml, "nvmlDeviceGetRemappedRows", None)
    if remapped is not None and remapped(handle, *(ctypes.byref(row) for row in rows)) == 0:
        found.note("remapped_rows", rows[0].value + rows[1].value)
        found.at_most("rows_to_repair", rows[2].value, 0)
        found.at_most("rows_not_repaired", rows[3].value, 0)


def clocks_of(found: kit.Found, driver: Driver, handle: ctypes.c_void_p) -> None:
    """Clocks, what holds them down, heat and power, and the link to the host."""
    for label, kind in (("clock", _SM), ("memory_clock", _MEMORY)):
        now = driver.ask("nvmlDeviceGetClockInfo", ctypes.c_uint, handle, kind)
        most = driver.ask("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, handle, kind)
        if now is not None and most is not None:
            found.note(label, now.value, "MHz")
            found.note(f"{label}_most", most.value, "MHz")
    reasons = driver.ask("nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong, handle)
    if reasons is None:
        reasons = driver.ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, handle)
    if reasons is not None:
        held = [text for bit, text in {**_SLOWDOWNS, **_MILD}.items() if reasons.value & bit]
        found.note("held_down_by", ", ".join(held) or "nothing")
        hard = [text for bit, text in _SLOWDOWNS.items() if reasons.value & bit]
        found.require(not hard, f"its clocks are held down: {', '.join(hard)}")
    heat = driver.ask("nvmlDeviceGetTemperature", ctypes.c_uint, handle, 0)
    if heat is not None:
        found.note("temperature", heat.value, "C")
    for label, name in (("power", "nvmlDeviceGetPowerUsage"), ("power_limit", "nvmlDeviceGetEnforcedPowerLimit")):
        power = driver.ask(name, ctypes.c_uint, handle)
        if power is not None:
            found.note(label, power.value / 1000, "W")
    for label, name in (("pcie_generation", "CurrPcieLinkGeneration"), ("pcie_width", "CurrPcieLinkWidth")):
        number = driver.ask(f"nvmlDeviceGet{name}", ctypes.c_uint, handle)
        if number is not None:
            found.note(label, number.value)


def links(found: kit.Found, driver: Driver, count: int) -> None:
    """Whether each GPU can reach the memory of each other one, and how many NVLinks it has up."""
    devices = [driver.number("cuDeviceGet", index) for index in range(count)]
    pairs = [(one, other) for one in devices for other in devices if one != other]
    reached = sum(driver.number("cuDeviceCanAccessPeer", one, other) for one, other in pairs)
    found.note("pairs", len(pairs))
    found.note("peer_access", reached)
    for index, device in enumerate(devices):
        handle = nvml_handle(driver, device)
        if handle is None:
            continue
        states = [driver.ask("nvmlDeviceGetNvLinkState", ctypes.c_uint, handle, link) for link in range(18)]
        up = [state.value for state in states if state is not None]
        if up:
            found.note(f"nvlinks_{index}", f"{sum(up)} of {len(up)} up")


if __name__ == "__main__":
    kit.main(ABOUT, cases)
