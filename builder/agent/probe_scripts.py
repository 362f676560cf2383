"""The probes that came with this program, and which of them are meant.

They lie in `builder/probes`, or in the agent's file, which is named by its sha256: a host runs the probes that its controller has. What a probe
says of itself is read, not run.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from envspec.probe import About, Choice, choose, parse_about

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class ProbeOrder:
    """Which probes are to be run, and with what."""

    kernels: tuple[str, ...]
    """`[verify] kernels` of the spec."""

    set: str
    """`quick` or `full`."""

    only: tuple[tuple[str, tuple[str, ...]], ...]
    """Ids with cases: then these are run and no others."""

    compute: tuple[str, ...]
    """Compute capabilities that the lock covers."""

    toolkit: str
    """Of CUDA: `13.0`; empty if the lock has none."""

    seed: int
    compile: bool
    """Whether what can be compiled without a GPU is, where there is none."""

    def to_json(self) -> dict[str, Any]:
        """The order as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ProbeOrder:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError: It is none.
        """
        return cls(
            kernels=tuple(fields["kernels"]),
            set=fields["set"],
            only=tuple((name, tuple(cases)) for name, cases in fields["only"]),
            compute=tuple(fields["compute"]),
            toolkit=fields["toolkit"],
            seed=fields["seed"],
            compile=fields["compile"],
        )


@dataclass(frozen=True)
class ProbeScripts:
    """The probes that there are: their sources, and what each says of itself."""

    sources: Mapping[str, bytes]
    """Name of the file -> content, `kit.py` and other helpers included."""

    abouts: Mapping[str, About]


def read_scripts() -> ProbeScripts:
    """The probes that came with this program: from its folder, or from the agent's file."""
    folder = resources.files("builder").joinpath("probes")
    sources: dict[str, bytes] = {}
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name.endswith(".py") and entry.name != "__init__.py":
                sources[entry.name] = entry.read_bytes()
    return scripts_of(dict(sorted(sources.items())))


def scripts_of(sources: Mapping[str, bytes]) -> ProbeScripts:
    """The probes among some sources: those that have an ABOUT.

    Raises:
        ValueError: One says something of itself that cannot be.
    """
    abouts: dict[str, About] = {}
    for file, source in sources.items():
        if re.search(rb"^ABOUT\b", source, re.MULTILINE):
            name = file.removesuffix(".py")
            abouts[name] = parse_about(name, source.decode("utf-8"))
    return ProbeScripts(sources=sources, abouts=abouts)


def choose_probes(scripts: ProbeScripts, order: ProbeOrder, site: Path) -> Choice:
    """Which probes an order means in an environment.

    Args:
        scripts: All that there are.
        order: The order.
        site: The environment's folder of packages.
    """
    return choose(
        scripts.abouts,
        kernels=order.kernels,
        chosen=order.set,
        only=order.only,
        has_module=lambda module: has_module(site, module),
    )


def has_module(site: Path, module: str) -> bool:
    """Whether a folder of packages has a top-level module."""
    return (site / module).is_dir() or (site / f"{module}.py").is_file() or any(site.glob(f"{module}.*.so"))
