"""What every probe needs: the request, the stream of results, cases and their figures, fresh inputs, times, and what is mapped.

A probe is a script of its own, run by the environment that it probes. It may import the standard library, what it probes, and its neighbours in
this folder that are no probes. At its end stands `kit.main(ABOUT, cases)`, where `cases(probe)` gives the cases after the imports are done:

    def cases(probe: kit.Probe) -> Iterator[kit.Case]:
        import torch
        yield kit.Case("sum", lambda found: found.at_most("relative_error", measure(torch), 1e-6))

Results go to file descriptor 1, which is then pointed at stderr: nothing that a library prints can get between them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from builder.probes import chips, mapped

_HERE = Path(__file__).resolve().parent
# Scripts here are called like what they probe: `import torch` must not find `torch.py` of this folder.
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]


def neighbour(name: str) -> ModuleType:
    """A module of this folder that is no probe."""
    # Under a name that no package of the environment has.
    known = f"_envspec_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, _HERE / f"{name}.py")
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(name)
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


if not TYPE_CHECKING:
    chips, mapped = neighbour("chips"), neighbour("mapped")

DEVICE = "cuda"
"""Where cases put their tensors. Tests without a GPU put them elsewhere, with other functions for what is called there."""

LEAST_SHARE = 0.4
"""Of what the chip can do by its data sheet: less, on work that fills it, and it is sick, throttled, or somebody else's as well."""

REASON_LIMIT = 1800
"""Characters of a reason."""


class Skip(Exception):  # noqa: N818 - it is no error
    """The hardware for a case is missing."""


class Wrong(Exception):  # noqa: N818 - what was found, not how finding it failed
    """A case found something wrong."""


@dataclass(frozen=True)
class Probe:
    """What a probe was asked."""

    id: str
    set: str
    """`quick` or `full`."""

    mode: str
    """`run`, or `compile` where there is no GPU."""

    gpu_name: str
    """Of the GPU that it is for; empty if there is none, or several."""

    compute: tuple[str, ...]
    """Compute capabilities that the lock covers."""

    seed: int
    prefix: str
    site: str
    toolkit: str
    modules: tuple[str, ...]
    """What to import; only for the probe of libraries."""

    memory_bytes: int
    """Most that it may take on the GPU, by its ABOUT."""

    @property
    def full(self) -> bool:
        """Whether there is time for all of it."""
        return self.set == "full"

    def has(self, path: str) -> bool:
        """Whether a path, as it is resolved, lies in the environment."""
        real = f"{os.path.realpath(path)}/"
        return any(real.startswith(f"{os.path.realpath(root)}/") for root in (self.prefix, self.site) if root)

    def number(self, name: str) -> int:
        """A seed of its own for each use of chance: the same for the same request, another one with each fresh seed."""
        digest = hashlib.sha256(f"{self.seed}:{self.id}:{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def generator(self, name: str, device: str = "cpu") -> Any:
        """A generator of torch's for one use of chance, on a device."""
        import torch

        return torch.Generator(device=device).manual_seed(self.number(name))


class Found:
    """What a case found: figures, and what is wrong with them."""

    def __init__(self, gpu_name: str = "") -> None:
        self.gpu_name = gpu_name
        self.figures: dict[str, dict[str, Any]] = {}
        self.wrong: list[str] = []

    def note(self, name: str, value: float | str, unit: str = "") -> None:
        """A figure that is not judged."""
        self.figures[name] = {"value": _plain(value), **({"unit": unit} if unit else {})}

    def at_most(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """A figure with a bound; what is no number is over every bound."""
        self.note(name, value, unit)
        self.figures[name]["bound"] = bound
        if not value <= bound:
            self.wrong.append(f"{name.replace('_', ' ')} is {value:.3g}, the bound {bound:.3g}")

    def require(self, holds: object, otherwise: str) -> None:
        """Something that is so or is not."""
        if not holds:
            self.wrong.append(otherwise)

    def speed(self, name: str, value: float, unit: str, peak: str, *, least: float = LEAST_SHARE) -> None:
        """A figure beside what the chip can do.

        Args:
            name: Of the figure.
            value: What was achieved.
            unit: `TFLOP/s` or `GB/s`.
            peak: Which of the chip's figures it is to be held against: a name of `chips.py`.
            least: Share of it below which the chip is not well; 0 if that depends on the kernel too much.
        """
        self.note(name, round(value, 2), unit)
        best = chips.can_do(self.gpu_name, peak)
        if best is None:
            return
        self.figures[name]["of"] = best
        if not value >= least * best:
            self.wrong.append(
                f"{value:.0f} {unit}, less than {least:.0%} of the {best:g} that this chip can do: the GPU is throttled, faulty, or "
                "busy with something else"
            )


@dataclass(frozen=True)
class Case:
    """One thing that a probe tries."""

    name: str
    run: Callable[[Found], None]
    result: str = "pass"
    """What it is if nothing is wrong: `pass`, or `compiled`."""


@dataclass
class _Stream:
    """Where results go."""

    descriptor: int
    count: int = 0
    failed: list[str] = field(default_factory=list)

    def say(self, record: Mapping[str, Any]) -> None:
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(self.descriptor, data) :]

    def case(self, name: str, result: str, *, reason: str = "", seconds: float = 0.0, figures: Any = None) -> None:
        self.count += 1
        if result == "fail":
            self.failed.append(name)
        record: dict[str, Any] = {
            "case": name,
            "result": result,
            "seconds": round(seconds, 4),
            "figures": figures or {},
        }
        if reason:
            record["reason"] = reason[:REASON_LIMIT]
        self.say(record)


def main(about: Mapping[str, Any], cases: Callable[[Probe], Iterable[Case]]) -> None:
    """Do what a probe is for, and end the process.

    Args:
        about: The probe's ABOUT.
        cases: What gives the cases. What it imports before the first one counts as getting ready.
    """
    stream = _Stream(os.dup(1))
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    run(about, cases, request, stream, gate=_wait_for_gate if request.get("gate") else None)
    # Libraries of CUDA may hang or crash while they are torn down; all has been said by then.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def probe_of(about: Mapping[str, Any], request: Mapping[str, Any]) -> Probe:
    """The request as a value."""
    gpu = request.get("gpu") or {}
    return Probe(
        id=about["id"],
        set=request.get("set") or "quick",
        mode=request.get("mode") or "run",
        gpu_name=gpu.get("name") or "",
        compute=tuple(request.get("compute") or ()),
        seed=int(request.get("seed") or 0),
        prefix=request.get("prefix") or sys.prefix,
        site=request.get("site") or "",
        toolkit=request.get("toolkit") or "",
        modules=tuple(request.get("modules") or ()),
        memory_bytes=int(about["memory_bytes"]),
    )


def run(
    about: Mapping[str, Any],
    cases: Callable[[Probe], Iterable[Case]],
    request: Mapping[str, Any],
    stream: _Stream,
    *,
    gate: Callable[[_Stream], None] | None = None,
) -> None:
    """Try every case that is asked for and tell the results."""
    probe = probe_of(about, request)
    asked = set(request.get("cases") or ())
    begun = time.monotonic()
    every: list[Case] = []
    problem = ""
    try:
        every = list(cases(probe))
        if not probe.gpu_name and probe.mode == "run":
            probe = _with_gpu_name(probe)
    except BaseException as error:  # noqa: BLE001 - sys.exit of a library that is imported counts, too
        traceback.print_exc()
        every, problem = [], reason_of(error) or type(error).__name__
    took = time.monotonic() - begun
    if gate is not None:
        gate(stream)
    if problem:
        stream.case("import", "fail", reason=problem, seconds=took)
    lost = ""
    for case in every:
        if asked and case.name not in asked:
            continue
        if lost:
            stream.case(case.name, "fail", reason=f"not tried: the GPU's state was lost in the case `{lost}`")
        elif not _try(case, probe, stream):
            lost = case.name
    if "torch" in sys.modules and not asked and probe.mode == "run" and probe.id != "libraries":
        _try(Case("mapped-libraries", lambda found: judge_mapped(found, probe)), probe, stream)
    stream.say({"end": True, "cases": stream.count})


def _try(case: Case, probe: Probe, stream: _Stream) -> bool:
    """One case; whether the next ones can be tried."""
    found = Found(probe.gpu_name)
    begun = time.monotonic()
    usable = True
    try:
        case.run(found)
        result, reason = (case.result, "") if not found.wrong else ("fail", "; ".join(found.wrong))
    except Skip as why:
        result, reason = "skip", str(why)
    except Wrong as what:
        result, reason = "fail", "; ".join([str(what), *found.wrong])
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is this case's
        traceback.print_exc()
        result, reason = "fail", reason_of(error)
        usable = not _context_is_lost(error)
    stream.case(case.name, result, reason=reason, seconds=time.monotonic() - begun, figures=found.figures)
    _free()
    return usable


def reason_of(error: BaseException) -> str:
    """An exception and what it was raised from, in one line; the first cause last."""
    parts: list[str] = []
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen and len(parts) < 4:
        seen.add(id(at))
        text = " ".join(str(at).split())
        parts.append(f"{type(at).__name__}: {text[:600]}" if text else type(at).__name__)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return ", from ".join(parts)


def _context_is_lost(error: BaseException) -> bool:
    # After these nothing runs in this process any more.
    text = f"{type(error).__name__} {error}"
    words = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address", "Xid")
    return any(word in text for word in (*words, "uncorrectable ECC", "illegal instruction"))


def _free() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with contextlib.suppress(Exception):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def _wait_for_gate(stream: _Stream) -> None:
    stream.say({"ready": True})
    sys.stdin.readline()


def _with_gpu_name(probe: Probe) -> Probe:
    import dataclasses

    torch = sys.modules.get("torch")
    if torch is None or probe.gpu_name or not torch.cuda.is_available():
        return probe
    return dataclasses.replace(probe, gpu_name=torch.cuda.get_device_name())


def _plain(value: float | str) -> float | int | str:
    if isinstance(value, str):
        return value[:190]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = float(value)
    return value if math.isfinite(value) else str(value)


def judge_mapped(found: Found, probe: Probe, *, maps: str | None = None, order: Sequence[str] | None = None) -> None:
    """Whether every library of CUDA that is mapped is the environment's, the driver's own excepted."""
    text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape") if maps is None else maps
    table = mapped.mapped_libraries(text, (probe.prefix, probe.site))
    harmless = mapped.shadowed(table.foreign, mapped.load_order() if order is None else order, table.inside)
    found.note("libraries", len(table.inside))
    for number, path in enumerate(harmless):
        found.note(f"shadowed_{number}", path)
    foreign = [path for path in table.foreign if path not in harmless]
    found.at_most("foreign_libraries", len(foreign), 0)
    if foreign:
        found.wrong[:] = [
            f"not of the environment: {', '.join(foreign[:6])}: look at LD_LIBRARY_PATH, LD_PRELOAD, and at what was imported"
        ]


# Measuring


def poisoned(*shape: int, dtype: Any, device: Any) -> Any:
    """A tensor that no kernel has written: NaN, or a bit pattern where there is no NaN."""
    import torch

    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.full(shape, math.nan, dtype=dtype, device=device)
    return torch.full((*shape, dtype.itemsize), 0x7D, dtype=torch.uint8, device=device).view(dtype).view(shape)


def poison_pool(*likes: Any) -> None:
    """Leave NaN, or a bit pattern, where torch will put the next tensors of these shapes: for functions that allocate their result."""
    held = [poisoned(*like.shape, dtype=like.dtype, device=like.device) for like in likes]
    del held


def errors(out: Any, reference: Any) -> tuple[float, float]:
    """How far a result is from its float64 reference: in the norm, and at the worst element against its size and the root mean square.

    Rounding an element moves it by a share of its size, and what was lost in adding up by a share of the root mean square, whatever the
    element's size. A NaN anywhere gives NaN, which no bound allows.
    """
    wide, truth = out.double().to(reference.device), reference.double()
    norm = truth.norm()
    difference = (wide - truth).abs()
    scale = norm / math.sqrt(max(1, truth.numel()))
    if float(norm) == 0.0:
        return float(difference.norm()), float(difference.max())
    return float(difference.norm() / norm), float((difference / (truth.abs() + scale)).max())


def compare(
    found: Found, out: Any, reference: Any, bound: float, *, worst: float | None = None, name: str = ""
) -> None:
    """Figures of `errors` with their bounds.

    Args:
        found: Where they go.
        out: What the kernel gave.
        reference: In float64.
        bound: Of the relative error in the norm.
        worst: Of the worst element; 6 times the bound if it is not given.
        name: Goes before the names of the figures.
    """
    if tuple(out.shape) != tuple(reference.shape):
        raise Wrong(f"the result has shape {tuple(out.shape)}, it must be {tuple(reference.shape)}")
    relative, element = errors(out, reference)
    found.at_most(f"{name}relative_error", relative, bound)
    found.at_most(f"{name}worst_element", element, 6 * bound if worst is None else worst)


def seconds_of(work: Callable[[], Any], *, least_s: float = 0.03, most: int = 50) -> float:
    """Median time of something on the GPU, by CUDA events, after three runs that do not count."""
    import torch

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < least_s and len(times) < most):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def room(probe: Probe) -> int:
    """Bytes on the GPU that a case may take: what ABOUT allows, and no more than 80 % of what is free."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return min(probe.memory_bytes, int(0.8 * free))


def capability() -> tuple[int, int]:
    """Of the GPU."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return int(major), int(minor)


def need_capability(least: tuple[int, int], what: str) -> None:
    """Skip a case that the GPU has no instructions for."""
    have = capability()
    if have < least:
        raise Skip(f"{what} needs compute {least[0]}.{least[1]}, the GPU has {have[0]}.{have[1]}")
