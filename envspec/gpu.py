"""GPU code and GPUs: which code runs on which compute capability.

A code is a name that NVIDIA's compilers use: `sm_90` is machine code (a cubin), `compute_90` is PTX, which the driver compiles when the program
first uses it. The number is the compute capability without its dot. The rules, with X.Y the capability that the code was made for:

1. `sm_XY` runs on X.Z with Z >= Y, and on no other major.
2. `sm_XYa` and `compute_XYa` use what one architecture alone has: they run on X.Y and nowhere else.
3. `sm_XYf` and `compute_XYf` use what a family has: they run on X.Z with Z >= Y (`sm_100f` on 10.0 and 10.3, `sm_120f` on 12.0 and 12.1).
4. `compute_XY` can be compiled for every capability from X.Y on, majors included, by a driver that is at least as new as the CUDA release
   that wrote the PTX: minor-version compatibility does not cover it.

Sources, read 2026-11-30: CUDA Programming Guide, "Compute Capabilities" (feature set compiler targets) and "Binary compatibility"; NVIDIA's
developer blog, "NVIDIA Blackwell and NVIDIA CUDA 12.9 Introduce Family-Specific Architecture Features"; for the last part of rule 4
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.

Limits: that code is there does not prove that it works (a kernel may be empty for an architecture). For boards with Tegra (8.7, 11.0) NVIDIA
promises rule 1 only among each other; it is applied to them like to any other, since in practice `sm_80` runs there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

How = Literal["native", "jit"]
"""How code comes to run: as it is, or compiled by the driver."""

_CODE = re.compile(r"(sm|compute)_([0-9]{1,2})([0-9])([af]?)", re.ASCII)
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9])", re.ASCII)


class Capability(NamedTuple):
    """A compute capability: `Capability(12, 0)`."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def number(self) -> str:
        """As codes have it: `120`."""
        return f"{self.major}{self.minor}"


@dataclass(frozen=True, slots=True)
class Code:
    """A piece of GPU code by its name."""

    native: bool
    """Whether it is machine code, not PTX."""

    capability: Capability
    suffix: str
    """`a` for one architecture alone, `f` for its family; empty otherwise."""


class Coverage(NamedTuple):
    """How many of some pieces run on a compute capability. A piece is a fatbin, or a raw cubin."""

    native: int
    jit: int
    missing: int
    """Those of which no code runs."""

    @property
    def total(self) -> int:
        """All pieces."""
        return self.native + self.jit + self.missing

    @property
    def runs(self) -> bool:
        """Whether anything runs."""
        return self.native + self.jit > 0


def parse_capability(text: str) -> Capability:
    """The capability that a spec writes as `12.0`.

    Raises:
        ValueError: The text is none.
    """
    found = _CAPABILITY.fullmatch(text)
    if found is None:
        raise ValueError(f"`{text}` is no compute capability")
    return Capability(int(found[1]), int(found[2]))


def parse_code(name: str) -> Code | None:
    """A code by its name: `sm_100f`, `compute_90a`; None for a name of another kind.

    Example:
        >>> parse_code("sm_100f")
        Code(native=True, capability=Capability(major=10, minor=0), suffix='f')
    """
    found = _CODE.fullmatch(name)
    if found is None:
        return None
    kind, major, minor, suffix = found.groups()
    return Code(kind == "sm", Capability(int(major), int(minor)), suffix)


def how_code_runs(name: str, capability: Capability) -> How | None:
    """How a code runs on a compute capability; None if it does not, or is not known.

    Example:
        >>> how_code_runs("sm_120a", Capability(12, 1)) is None
        True
        >>> how_code_runs("compute_90", Capability(12, 0))
        'jit'
    """
    code = parse_code(name)
    if code is None:
        return None
    if code.suffix == "a":
        fits = capability == code.capability
    elif code.native or code.suffix == "f":
        fits = capability.major == code.capability.major and capability.minor >= code.capability.minor
    else:
        fits = capability >= code.capability
    if not fits:
        return None
    return "native" if code.native else "jit"


def how_any_runs(names: Iterable[str], capability: Capability) -> How | None:
    """How the best of several codes runs: the driver prefers machine code to PTX."""
    ways = {how_code_runs(name, capability) for name in names}
    return "native" if "native" in ways else "jit" if "jit" in ways else None


def coverage(pieces: Iterable[tuple[Sequence[str], int]], capability: Capability) -> Coverage:
    """How many of some pieces run on a compute capability.

    Args:
        pieces: Sets of codes, each with the number of pieces that have exactly this set.
        capability: Of the GPU.
    """
    counts: dict[How | None, int] = {"native": 0, "jit": 0, None: 0}
    for names, number in pieces:
        counts[how_any_runs(names, capability)] += number
    return Coverage(counts["native"], counts["jit"], counts[None])


def has_native_code_of_major(names: Iterable[str], major: int) -> bool:
    """Whether some of these codes are machine code of a major: their author had GPUs of it in mind."""
    return any(code is not None and code.native and code.capability.major == major for code in map(parse_code, names))


def sorted_codes(names: Iterable[str]) -> list[str]:
    """Codes as a person lists them: machine code first, by capability, the plain one before `a` and `f`."""

    def key(name: str) -> tuple[bool, bool, Capability, str]:
        code = parse_code(name)
        if code is None:
            return (True, True, Capability(0, 0), name)
        return (False, not code.native, code.capability, code.suffix)

    return sorted(set(names), key=key)
