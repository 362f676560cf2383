"""`envspec why` and `envspec tree`: who asks for a package, and what asks for what."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.cli.options import JsonOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import say, say_json
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.forms import normalise_name
from envspec.requesters import REPEATED, find_chains, grow_tree, requests_of

if TYPE_CHECKING:
    from envspec.lock import Lock, LockedPackage
    from envspec.spec import Spec

_DEFAULT_CHAINS = 10


def why(
    package: str,
    *,
    chains: Annotated[
        int, Parameter(name="--chains", help=f"The most chains to list, shortest first. Default: {_DEFAULT_CHAINS}.")
    ] = _DEFAULT_CHAINS,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show who asks for a locked package, and the chains that lead from the spec to it.

    What each asks for, with extras and markers, comes from wheels that were measured here.
    """
    if chains < 0:
        raise EnvspecError(f"`--chains` is a number from 0 on, got {chains}")
    gc.disable()  # all values live to the end, which is soon
    inputs = read_inputs(spec)
    wanted, locked = inputs.parse_spec(), inputs.parse_lock()
    found = _find(locked, package, inputs.lock_name)
    requests = requests_of(wanted, locked)
    ways = find_chains(requests, found.name, limit=chains)
    from builder.requirement_lines import lines_about  # noqa: PLC0415

    packages = {each.name: each for each in locked.packages}
    requesters = [
        (packages[name], lines_about(locked, name, found.name, store_root(store)))
        for name in requests.requesters[found.name]
    ]
    asked = _asked(wanted, found.name)
    if as_json:
        say_json(
            {
                "lock": os.fspath(inputs.lock_path),
                "package": found.name,
                "locked": found.version,
                "spec": asked or None,
                "requesters": [
                    {
                        "package": each.name,
                        "locked": each.version,
                        "requirements": None if lines is None else list(lines),
                    }
                    for each, lines in requesters
                ],
                "chains": [list(chain) for chain in ways.shown],
                "chain_count": ways.count,
                "chain_count_is_exact": ways.is_exact,
            }
        )
        return 0
    say(f"{found.name} {found.version}")
    for line in asked:
        say(f"  {line}")
    for each, lines in requesters:
        say(f"  {each.name} {each.version} asks for {_shown(lines, found.name)}")
    number = f"{ways.count:,}" if ways.is_exact else f"at least {ways.count:,}"
    if ways.shown:
        say(
            f"{number} {'chains' if ways.count != 1 else 'chain'} from the spec"
            + (", shortest first" if ways.count > 1 else "")
        )
    for chain in ways.shown:
        say("  " + " > ".join(chain))
    if ways.count > len(ways.shown):
        say(f"  and {ways.count - len(ways.shown):,} more" + ("" if ways.is_exact else ", at least"))
    return 0


def tree(
    *,
    depth: Annotated[
        int | None, Parameter(name="--depth", help="The deepest level; 0 shows the packages of the spec only.")
    ] = None,
    spec: SpecOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what asks for what, from the spec down; what a package needs is shown where it comes first."""
    if depth is not None and depth < 0:
        raise EnvspecError(f"`--depth` is a number from 0 on, got {depth}")
    inputs = read_inputs(spec)
    wanted, locked = inputs.parse_spec(), inputs.parse_lock()
    requests = requests_of(wanted, locked)
    packages = {package.name: package for package in locked.packages}
    overlays = {overlay.package: overlay for overlay in locked.overlays}
    if as_json:
        say_json(
            {
                "lock": os.fspath(inputs.lock_path),
                "roots": sorted(requests.roots),
                "packages": [
                    {
                        "package": package.name,
                        "locked": package.version,
                        "patched": overlays[package.name].version if package.name in overlays else None,
                        "requires": list(package.requires),
                        "required_by": list(requests.requesters[package.name]),
                    }
                    for package in locked.packages
                ],
            }
        )
        return 0
    say(f"{locked.name}: {_count(len(requests.roots))} in the spec, {len(locked.packages)} locked")
    lasts: list[bool] = []
    for branch in grow_tree(requests, depth=depth):
        del lasts[branch.depth :]
        lead = "".join("    " if is_last else "│   " for is_last in lasts)
        lasts.append(branch.is_last)
        name = branch.package
        version = overlays[name].version if name in overlays else packages[name].version
        repeated = f" {REPEATED}" if branch.is_repeated else ""
        say(f"{lead}{'└── ' if branch.is_last else '├── '}{name} {version}{repeated}")
    return 0


def _find(lock: Lock, package: str, lock_name: str) -> LockedPackage:
    name = normalise_name(package)
    found = next((each for each in lock.packages if each.name == name), None)
    if found is None:
        from difflib import get_close_matches  # noqa: PLC0415 - seldom needed

        from envspec.forms import quoted  # noqa: PLC0415

        near = get_close_matches(name, [each.name for each in lock.packages], n=1)
        raise EnvspecError(
            f"there is no package {quoted(name)} in the lock",
            input_name=lock_name,
            hint=f"did you mean `{near[0]}`?" if near else "`envspec tree` shows those that there are",
            exit_code=FOUND_WRONG,
        )
    return found


def _asked(spec: Spec, name: str) -> list[str]:
    """What the spec says of a package."""
    said = []
    for table, requirements in (("packages", spec.packages), ("overrides", spec.overrides)):
        for each in requirements:
            if each.name == name:
                extras = f"[{','.join(each.extras)}]" if each.extras else ""
                said.append(f"the spec asks for `{name}{extras}{each.specifier}` in [{table}]")
    return said


def _shown(lines: tuple[str, ...] | None, name: str) -> str:
    if lines is None:
        return f"`{name}` (its wheel was not measured here, so that the requirement is not known)"
    return " and ".join(f"`{line}`" for line in lines) or f"`{name}`"


def _count(number: int) -> str:
    return f"{number} {'packages' if number != 1 else 'package'}"
