"""`envspec size`: what takes the gigabytes."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.cli.options import JsonOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import say, say_json, tell
from envspec.sizes import KINDS, shown_bytes, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envspec.lock import Lock
    from envspec.sizes import PackageSize

_DEFAULT_TOP = 20


def size(
    *,
    top: Annotated[
        int, Parameter(name="--top", help=f"How many packages to list, largest first. Default: {_DEFAULT_TOP}.")
    ] = _DEFAULT_TOP,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what takes the space of the locked environment: per package, per kind of file, GPU code per architecture.

    Sizes of wheels stand in the lock; what is inside of them is known where they were measured or built on this machine.
    """
    from builder.agent.store import Store  # noqa: PLC0415
    from builder.sizing import measure_sizes  # noqa: PLC0415

    gc.disable()  # many small values that live to the end
    inputs = read_inputs(spec)
    locked = inputs.parse_lock()
    packages = measure_sizes(locked, Store(store_root(store)))
    unknown = [package.name for package in packages if package.kinds is None]
    if as_json:
        say_json(_record(locked, packages, os.fspath(inputs.lock_path), unknown))
        return 0
    ordered = sorted(packages, key=lambda each: (-(each.installed or 0), -each.wheel, each.name))
    kinds = total(each.kinds for each in packages if each.kinds)
    gpu = total(each.gpu_code for each in packages)
    installed = sum(kinds.values())
    wheels = sum(each.wheel for each in packages)
    say(f"{locked.name}: {len(packages)} packages, {shown_bytes(wheels)} of wheels, {shown_bytes(installed)} installed")
    _say_table("kind", {kind: kinds[kind] for kind in KINDS if kinds.get(kind)}, installed)
    if gpu:
        _say_table("GPU code", dict(sorted(gpu.items(), key=lambda item: (-item[1], item[0]))), installed)
    say("")
    say(f"{'installed':>10}  {'wheel':>10}  package")
    for each in ordered[:top]:
        inside = "unknown" if each.installed is None else shown_bytes(each.installed)
        gpu_bytes = sum(each.gpu_code.values())
        share = f"  ({shown_bytes(gpu_bytes)} GPU code)" if gpu_bytes else ""
        say(f"{inside:>10}  {shown_bytes(each.wheel):>10}  {each.name} {each.version}{share}")
    if len(ordered) > top:
        rest = ordered[top:]
        say(
            f"{shown_bytes(sum(each.installed or 0 for each in rest)):>10}  "
            f"{shown_bytes(sum(each.wheel for each in rest)):>10}  {len(rest)} more"
        )
    if unknown:
        tell(
            f"note: {len(unknown)} of {len(packages)} packages were neither measured nor built here; `envspec check` measures them"
        )
    elif not gpu and locked.cuda_toolkit:
        tell("note: GPU code is counted where the environment was built")
    return 0


def _say_table(title: str, rows: Mapping[str, int], whole: int) -> None:
    say("")
    say(f"{'bytes':>10}  {'share':>6}  {title}")
    for name, number in rows.items():
        say(f"{shown_bytes(number):>10}  {number / whole if whole else 0:>6.1%}  {name}")


def _record(lock: Lock, packages: Sequence[PackageSize], lock_path: str, unknown: list[str]) -> dict[str, object]:
    kinds = total(each.kinds for each in packages if each.kinds)
    return {
        "lock": lock_path,
        "env": lock.env,
        "wheels": sum(each.wheel for each in packages),
        "installed": sum(kinds.values()),
        "kinds": kinds,
        "gpu_code": total(each.gpu_code for each in packages),
        "unknown": unknown,
        "packages": [
            {
                "package": each.name,
                "locked": each.version,
                "wheel": each.wheel,
                "installed": each.installed,
                "kinds": each.kinds,
                "gpu_code": each.gpu_code,
            }
            for each in packages
        ],
    }
