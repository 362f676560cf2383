"""The machine that a venv was made for, as the spec has to name it: Python, platform, glibc, CUDA, GPUs.

What the host says comes first, then what the packages say of themselves. What was assumed is said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.errors import EnvspecError
from envspec.forms import COMPUTE, CUDA_TOOLKIT, GLIBC, PLATFORM, PYTHON_EXACT, PYTHON_MINOR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.observed import Observation

DEFAULT_GLIBC = "2.35"
ASSUMED_COMPUTE = ("8.0", "9.0")
"""Where there is neither a GPU nor code for one that is known."""

_TAG = re.compile(
    r"manylinux_2_(\d{1,3})_(x86_64|aarch64)|manylinux(2014|2010|1)_(x86_64|aarch64)|linux_(x86_64|aarch64)"
)
_LEGACY = {"2014": 17, "2010": 12, "1": 5}
_CUDA_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d\d)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedTarget:
    """Where an environment is to run."""

    python: str
    """Minor version."""

    python_exact: str
    """That of the venv; empty if it is not known. It decides nothing about a tree."""

    platform: str
    glibc: str
    cuda_toolkit: str
    """Empty if nothing is for GPUs."""

    compute: tuple[str, ...]
    notes: tuple[str, ...]
    """What was assumed."""


def target_of(observation: Observation) -> AdoptedTarget:
    """Where a venv runs.

    Raises:
        EnvspecError: The folder says no version of CPython, or one that envspec does not know.
    """
    python = observation.python
    if not re.fullmatch(PYTHON_MINOR.pattern, python.minor):
        raise EnvspecError(
            f"the venv does not say for which Python it is: `{python.minor[:20]!a}`",
            input_name=observation.prefix,
            hint="give the folder that has `lib/python3.N/site-packages`",
        )
    exact = python.version if re.fullmatch(PYTHON_EXACT.pattern, python.version) else ""
    if exact and not exact.startswith(f"{python.minor}."):
        exact = ""
    notes: list[str] = []
    platform, floor = _from_tags(observation)
    machine = observation.host.get("machine")
    if machine in ("x86_64", "aarch64"):
        platform = f"linux-{machine}"
    elif not platform:
        platform = "linux-x86_64"
        notes.append("nothing says for which machine the venv is; `linux-x86_64` was assumed")
    glibc = str(observation.host.get("glibc") or "")
    if not re.fullmatch(GLIBC.pattern, glibc):
        glibc = floor if floor and int(floor.partition(".")[2]) > 35 else DEFAULT_GLIBC
        notes.append(f"the glibc of the host is not known; {glibc} was assumed")
    toolkit, compute, more = _cuda(observation)
    return AdoptedTarget(
        python=python.minor,
        python_exact=exact,
        platform=platform if re.fullmatch(PLATFORM.pattern, platform) else "linux-x86_64",
        glibc=glibc,
        cuda_toolkit=toolkit,
        compute=compute,
        notes=(*notes, *more),
    )


def _from_tags(observation: Observation) -> tuple[str, str]:
    """Platform and least glibc by the tags of the wheels; empty if none has a platform."""
    machine, floor = "", 0
    for distribution in observation.distributions:
        for tag in distribution.wheel_tags:
            match = _TAG.search(tag)
            if match is None:
                continue
            machine = match[2] or match[4] or match[5]
            floor = max(floor, int(match[1] or 0), _LEGACY.get(match[3] or "", 0))
    return f"linux-{machine}" if machine else "", f"2.{floor}" if floor else ""


def _cuda(observation: Observation) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The CUDA line, compute capabilities and what was assumed: torch's label first, then the runtime's version."""
    toolkit = ""
    for distribution in observation.distributions:
        if distribution.name == "torch":
            toolkit = (
                _first(
                    (
                        label.value
                        for label in distribution.binaries.labels
                        if label.path == "torch/version.py" and label.key == "cuda"
                    ),
                    CUDA_TOOLKIT.pattern,
                )
                or toolkit
            )
    if not toolkit:
        runtimes = (each.version for each in observation.distributions if _CUDA_RUNTIME.fullmatch(each.name))
        toolkit = _first((".".join(version.split(".")[:2]) for version in runtimes), CUDA_TOOLKIT.pattern)
    if not toolkit:
        return "", (), ()
    gpus = observation.host.get("gpus") or ()
    seen = {str(gpu.get("compute", "")) for gpu in gpus if isinstance(gpu, dict)}
    compute = _sorted(value for value in seen if re.fullmatch(COMPUTE.pattern, value))
    if compute:
        return toolkit, compute, ()
    compute = _torch_codes(observation)
    why = "what torch has code for" if compute else "a guess"
    compute = compute or ASSUMED_COMPUTE
    note = f"no GPU was seen; [cuda] compute is {', '.join(compute)}, {why}: name those of your hosts"
    return toolkit, compute, (note,)


def _torch_codes(observation: Observation) -> tuple[str, ...]:
    """Compute capabilities that every GPU library of torch has code for."""
    common: set[str] | None = None
    for distribution in observation.distributions:
        if distribution.name != "torch":
            continue
        for binary in distribution.binaries.binaries:
            if binary.gpu is None:
                continue
            codes = {code for codes, _ in binary.gpu.fatbins for code in codes}
            plain = {f"{match[1]}.{match[2]}" for code in codes if (match := re.fullmatch(r"sm_(\d{1,2})(\d)", code))}
            common = plain if common is None else common & plain
    return _sorted(common or ())


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values), key=lambda value: [int(part) for part in value.split(".")]))


def _first(values: Iterable[str], pattern: str) -> str:
    return next((value for value in values if re.fullmatch(pattern, value)), "")
