"""A lock -> the layers of its image. Pure: the same lock gives the same layers, and locks that share wheels share layers.

A layer has the files of some wheels, at paths in which nothing of the environment stands but its Python. So it depends on its wheels alone, and
another lock with the same wheels has the same layer, byte for byte:

- a large wheel is a layer of its own;
- the others lie in as many buckets as `BUCKETS`, each in the one that the name of its package decides;
- patched wheels lie together in a layer above;
- bytecode lies in as many buckets again, and that of modules that a patch changes in a layer of its own: the layers with wheels know nothing of
  a Python;
- what differs with every env id (`pyvenv.cfg`, activation, links) is the last layer, some kilobytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.canonical import record_sha256
from envspec.compose import site_relative
from envspec.lock import parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envspec.lock import Lock, Part

LAYER_RECIPE = "image layer 1"
BYTECODE_RECIPE = "bytecode layer 1"
IMAGE_STORE = "/opt/envspec"
"""Folder of the store in an image."""

IMAGE_ROOT = f"{IMAGE_STORE}/environment"
"""Where an environment lies in its image: no env id in it, or every layer would change with each."""

LARGE_BYTES = 16 << 20
"""Of a wheel: one of this size or more is a layer of its own."""

MOST_LARGE = 64
"""Layers of one wheel each; a container engine takes 127 layers in all."""

BUCKETS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module whose bytecode is in an image."""

    package: str
    path: str
    """In the environment."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What a layer has: the files of some wheels, or the bytecode of some of their modules."""

    title: str
    """For people: a package, `small packages 7`, `patched packages`, `bytecode 7`."""

    parts: tuple[Part, ...]
    """Sorted by package."""

    modules: tuple[Module, ...] = ()
    """Sorted by package and path; empty for a layer with files."""

    @property
    def size(self) -> int:
        """Bytes of its wheels."""
        return sum(part.size for part in self.parts)


def plan_layers(lock: Lock, modules: Iterable[Module] = ()) -> tuple[LayerPlan, ...]:
    """The layers of a lock's image, from below, without the last one.

    What changes more often lies higher: engines unpack anew what lies above a change.

    Args:
        lock: The lock.
        modules: Whose bytecode is wanted.
    """
    patched = {overlay.package: {file.path for file in overlay.files} for overlay in lock.overlays}
    plain = [part for part in parts(lock) if part.package not in patched]
    by_size = sorted((part for part in plain if part.size >= LARGE_BYTES), key=lambda part: (-part.size, part.package))
    large = sorted(by_size[:MOST_LARGE], key=lambda part: part.package)
    alone = {part.package for part in large}
    plans = [LayerPlan(title=part.package, parts=(part,)) for part in large]
    small: dict[int, list[Part]] = {}
    for part in plain:
        if part.package not in alone:
            small.setdefault(bucket_of(part.package), []).append(part)
    plans += [
        LayerPlan(title=f"small packages {number}", parts=tuple(found)) for number, found in sorted(small.items())
    ]
    as_published: dict[int, list[Module]] = {}
    changed: list[Module] = []
    for module in modules:
        if site_relative(module.path) in patched.get(module.package, ()):
            changed.append(module)
        else:
            as_published.setdefault(bucket_of(module.package), []).append(module)
    plans += [_bytecode(lock, f"bytecode {number}", found) for number, found in sorted(as_published.items())]
    if patched:
        above = tuple(part for part in parts(lock) if part.package in patched)
        plans.append(LayerPlan(title="patched packages", parts=above))
    if changed:
        plans.append(_bytecode(lock, "bytecode of patched modules", changed))
    return tuple(plans)


def _bytecode(lock: Lock, title: str, modules: Iterable[Module]) -> LayerPlan:
    ordered = tuple(sorted(modules, key=lambda module: (module.package, module.path)))
    packages = {module.package for module in ordered}
    found = tuple(part for part in parts(lock) if part.package in packages)
    return LayerPlan(title=title, parts=found, modules=ordered)


def bucket_of(package: str) -> int:
    """The bucket of a small wheel, by the name of its package: its version may change, and others may come and go.

    Example:
        >>> bucket_of("numpy")
        1
    """
    return int.from_bytes(hashlib.sha256(package.encode()).digest()[:4], "big") % BUCKETS


def layer_key(
    plan: LayerPlan, python: str, skipped: Mapping[str, Iterable[str]], instead: Mapping[str, bytes], compiler: str = ""
) -> str:
    """A digest of everything that decides the bytes of a layer.

    Args:
        plan: Which wheels.
        python: The minor version.
        skipped: Package -> paths of its tree that come from another package.
        instead: Path -> content that no wheel has.
        compiler: What makes the bytecode, if the layer has some.
    """
    if plan.modules:
        fields = [("root", IMAGE_ROOT), ("compiler", compiler)]
        fields += [("module", f"{module.sha256} {module.path}") for module in plan.modules]
        return record_sha256(BYTECODE_RECIPE, fields)
    fields = [("root", IMAGE_ROOT), ("python", python)]
    for part in plan.parts:
        fields.append(("wheel", f"{part.package} {part.sha256} {part.tree}"))
        fields += [("skipped", path) for path in sorted(skipped.get(part.package, ()))]
    fields += [
        ("instead", f"{path} {hashlib.sha256(content).hexdigest()}") for path, content in sorted(instead.items())
    ]
    return record_sha256(LAYER_RECIPE, fields)
