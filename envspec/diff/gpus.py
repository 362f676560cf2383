"""Which GPUs gain or lose code.

What a package has code for is in the lock; which code runs where is `envspec.gpu`'s. Names of generations are those of NVIDIA's list of compute
capabilities, https://developer.nvidia.com/cuda-gpus, read 2026-11-30.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envspec.diff.changes import Change, literal
from envspec.gpu import how_any_runs, parse_capability
from envspec.wording import counted, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diff.pairs import Pair
    from envspec.diff.sides import Side

GENERATIONS = {
    "5.0": "Maxwell",
    "5.2": "Maxwell",
    "6.0": "Pascal: P100",
    "6.1": "Pascal: P40",
    "7.0": "Volta: V100",
    "7.5": "Turing: T4",
    "8.0": "Ampere: A100",
    "8.6": "Ampere: A10",
    "8.9": "Ada: L4, L40S",
    "9.0": "Hopper: H100, H200",
    "10.0": "Blackwell: B200",
    "10.3": "Blackwell: B300",
    "12.0": "Blackwell: RTX PRO 6000",
    "12.1": "Blackwell: GB10",
}
"""Compute capability -> what has it. Those of embedded boards are left out, but count where a spec declares them."""

_SHOWN_PACKAGES = 6


class _Move(NamedTuple):
    """What became of a capability in one package."""

    capability: str
    label: str
    """Of the package."""

    is_nvidia: bool


def changes_of_gpus(pairs: Sequence[Pair], old: Side, new: Side) -> list[Change]:
    """The capabilities for which packages have code no more, only as PTX, or for the first time.

    Args:
        pairs: The packages that changed.
        old: The old side.
        new: The new side.
    """
    declared = _declared(old, new)
    lost, jit, gained = _moves(pairs, declared)
    return [*_losses(lost, old, new), *_jits(jit, declared), *_gains(gained)]


def lost_code(pairs: Sequence[Pair], old: Side, new: Side) -> dict[str, list[str]]:
    """Compute capability -> packages that had code for it and have none now, NVIDIA's own left out.

    Args:
        pairs: The packages that changed.
        old: The old side.
        new: The new side.
    """
    found: dict[str, list[str]] = {}
    for move in _moves(pairs, _declared(old, new))[0]:
        if not move.is_nvidia:
            found.setdefault(move.capability, []).append(move.label)
    return found


def _moves(pairs: Sequence[Pair], declared: frozenset[str]) -> tuple[list[_Move], list[_Move], list[_Move]]:
    """What is lost, what is PTX only, and what is gained, by capability and package."""
    lost: list[_Move] = []
    jit: list[_Move] = []
    gained: list[_Move] = []
    capabilities = {name: parse_capability(name) for name in sorted({*GENERATIONS, *declared})}
    for pair in pairs:
        if not (pair.old and pair.new and pair.old.gpu_code and pair.new.gpu_code):
            continue
        if pair.old.gpu_code == pair.new.gpu_code:
            continue
        label, is_nvidia = f"{pair.new.name} {pair.new.version}", pair.new.name.startswith("nvidia-")
        for name, capability in capabilities.items():
            before, after = how_any_runs(pair.old.gpu_code, capability), how_any_runs(pair.new.gpu_code, capability)
            move = _Move(name, label, is_nvidia)
            if before and not after:
                lost.append(move)
            elif before == "native" and after == "jit":
                jit.append(move)
            elif after == "native" and before != "native":
                gained.append(move)
    return lost, jit, gained


def _declared(old: Side, new: Side) -> frozenset[str]:
    found: set[str] = set()
    for side in (old, new):
        found.update(side.lock.cuda_compute if side.lock else ())
        found.update(host.compute for host in (side.spec.hosts if side.spec else ()) if host.compute)
    return frozenset(found)


def _losses(moves: list[_Move], old: Side, new: Side) -> list[Change]:
    hosts: dict[str, list[str]] = {}
    for host in new.spec.hosts if new.spec else ():
        hosts.setdefault(host.compute, []).append(literal(host.name))
    return [
        Change(
            kind="gpu-lost",
            level="stop" if is_declared else "look",
            subject=", ".join(capabilities),
            old=", ".join(capabilities),
            text=f"no code any more for {_named(capabilities)}, in {_labels(labels)}",
            consequences=(
                "the spec declares this capability: what needs that code fails there",
                *([f"hosts with it: {joined(hosts[capabilities[0]])}"] if capabilities[0] in hosts else []),
            )
            if is_declared
            else ("neither [cuda] nor a host of the spec declares any of these",),
        )
        for capabilities, labels, is_declared in _grouped(moves, _declared(old, new))
    ]


def _jits(moves: list[_Move], declared: frozenset[str]) -> list[Change]:
    return [
        Change(
            kind="gpu-jit",
            level="look" if is_declared else "note",
            subject=", ".join(capabilities),
            old="native",
            new="jit",
            text=f"PTX only, and machine code before, for {_named(capabilities)}, in {_labels(labels)}",
            consequences=("the driver compiles it when it is first used, if it is as new as the CUDA that wrote it",),
        )
        for capabilities, labels, is_declared in _grouped(moves, declared)
    ]


def _gains(moves: list[_Move]) -> list[Change]:
    return [
        Change(
            kind="gpu-gained",
            level="note",
            subject=", ".join(capabilities),
            new=", ".join(capabilities),
            text=f"machine code for {_named(capabilities)}, and none before, in {_labels(labels)}",
        )
        for capabilities, labels, _ in _grouped(moves, frozenset())
        if not all(label.is_nvidia for label in labels)  # what a library of NVIDIA has is of use to those that call it
    ]


def _grouped(moves: list[_Move], declared: frozenset[str]) -> list[tuple[list[str], list[_Move], bool]]:
    """Capabilities that the same packages beside NVIDIA's gain or lose, each declared one on its own, with the packages."""
    by_capability: dict[str, list[_Move]] = {}
    for move in moves:
        by_capability.setdefault(move.capability, []).append(move)
    groups: dict[tuple[str, ...], tuple[list[str], list[_Move], bool]] = {}
    for capability in sorted(by_capability, key=parse_capability):
        labels = by_capability[capability]
        is_declared = capability in declared
        own = tuple(sorted(label.label for label in labels if not label.is_nvidia))
        key = (capability,) if is_declared else own or ("nvidia",)
        group = groups.setdefault((str(is_declared), *key), ([], [], is_declared))
        group[0].append(capability)
        known = {label.label for label in group[1]}
        group[1].extend(label for label in labels if label.label not in known)
    return sorted(groups.values(), key=lambda group: parse_capability(group[0][0]))


def _named(capabilities: list[str]) -> str:
    """Capabilities with what has them: `GPUs of compute 6.1 and 7.0 (Pascal, Volta)`, `GPUs of compute 7.0 (Volta: V100)`."""
    known = [GENERATIONS[capability] for capability in capabilities if capability in GENERATIONS]
    if len(known) > 1:
        known = list(dict.fromkeys(name.partition(":")[0] for name in known))
    names = ", ".join(known)
    return f"GPUs of compute {joined(capabilities)}{f' ({names})' if names else ''}"


def _labels(moves: list[_Move]) -> str:
    """The packages, NVIDIA's own only counted where there are others, which is where a reader looks."""
    nvidia = [move.label for move in moves if move.is_nvidia]
    others = sorted(
        (move.label for move in moves if not move.is_nvidia), key=lambda label: (label[:6] != "torch ", label)
    )
    shown = others or nvidia
    words = shown[:_SHOWN_PACKAGES]
    if len(shown) > len(words):
        words.append(f"{len(shown) - len(words)} more")
    if others and nvidia:
        words.append(counted(len(nvidia), "library of NVIDIA", "libraries of NVIDIA"))
    return joined(words)
